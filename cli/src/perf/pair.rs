//! The two sides of a measurement: threads, processes, or two commands on two machines.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{anyhow, bail, Context, Result};
use ringbell::nic::{Cidr, Congestion, Faults, PortSpec, ProgressMode, Route, TransportSpec};
use ringbell::parts::nic_core::port::mem::MemSwitch;
use ringbell::parts::nic_core::port::Checksums;
use ringbell::parts::nic_core::transport::Icrc;
use ringbell::{Nic, NicBuilder};

use ringbell_perf::hardware::{Hardware, NOTE};
use ringbell_perf::send::Settings;
use ringbell_perf::serve;
use ringbell_perf::side::{Pair, Side};

use super::exchange::{self, Exchange, Place, Question, PORT};
use super::receiver::{Receiver, START};
use crate::child::dies_with_us;
use crate::report::{Progress, Report, Row, SweepArgs};
use crate::run::carriers::free_sockets;
use crate::scratch::Folder;
use crate::secret::SecretArgs;
use crate::{open, stdio, Exit, Problem};

const SERVER_IP: Cidr = Cidr {
    ip: Ipv4Addr::new(10, 77, 0, 1),
    prefix: 24,
};
const CLIENT_IP: Cidr = Cidr {
    ip: Ipv4Addr::new(10, 77, 0, 2),
    prefix: 24,
};

/// Flags that say between whom, and over what.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct WireArgs {
    /// What carries the bytes: `local` from memory to memory on one host, `tcp`, `rdma` (RoCEv2,
    /// between NICs of this kind) or `udp` (ACCL's: a lost packet ends the session) over the port,
    /// `iwarp` over the kernel's TCP, `auto` is `local` where it reaches the peer, else over port
    /// roce `rdma` on one host and `iwarp` to another host, and `tcp` over other ports
    #[arg(
        long,
        default_value = "auto",
        value_name = "auto|local|tcp|rdma|udp|iwarp"
    )]
    transport: TransportSpec,
    /// What carries the packets: `mem` an in-memory switch, `udp[:BIND[,PEER...]]` VXLAN over UDP,
    /// `tap:NAME`, `roce[:ADDR[:PORT][,NIC=ADDR:PORT...]]` the host's UDP, for rdma and udp, or its
    /// TCP, for iwarp, `none`. Given several times with --listen or --connect, the NIC has several
    /// ports [default: mem, for iwarp roce; with --listen or --connect: none]
    #[arg(long, value_name = "PORT")]
    port: Vec<PortSpec>,
    /// Leads a network to a port, numbered from 0 in the order of --port: `10.0.2.0/24=1`, or
    /// behind a gateway `0.0.0.0/0=0,via=10.0.1.254`; can be given several times [default: the own
    /// network to port 0]
    #[arg(long, value_name = "NETWORK/BITS=PORT[,via=NEXT_HOP]")]
    route: Vec<Route>,
    /// Two processes, a NIC and a GPU each (the default)
    #[arg(long, conflicts_with = "threads")]
    procs: bool,
    /// Two threads of one process, a NIC and a GPU each
    #[arg(long)]
    threads: bool,
    /// As with perftest: measure to this host, where the command runs with --listen alone. Both
    /// sides tell each other their addresses over a TCP connection (port 18515), and measure over
    /// RoCEv2: transport rdma, port roce at the address by which they reach each other
    #[arg(value_name = "HOST[:PORT]", conflicts_with_all = ["listen", "connect", "threads", "procs"], value_parser = exchange::host)]
    host: Option<(String, u16)>,
    /// Be the receiving side. Alone or with a TCP port, as perftest's server: for a client that
    /// names this host. With a NIC address, for a client with --connect
    #[arg(long, value_name = "IP[:PORT]|:PORT", num_args = 0..=1, default_missing_value = ":18515", conflicts_with_all = ["connect", "threads", "procs"], value_parser = listen)]
    listen: Option<Listen>,
    /// Measure to the NIC at this address, where `--listen IP` runs; ports and peers of both are
    /// those of --port. One of IPv6 is that of the other NIC's port roce
    #[arg(long, value_name = "IP[:PORT]", conflicts_with_all = ["threads", "procs"], value_parser = to)]
    connect: Option<SocketAddr>,
    /// Own NIC address with --connect [default: 10.77.0.2/24]
    #[arg(long, value_name = "IP/N", requires = "connect")]
    ip: Option<Cidr>,
    /// Who steps the NIC: `waiter` the waiting kernel, else a parked thread; `dedicated` a thread
    /// that polls
    #[arg(long, default_value = "waiter", value_name = "waiter|dedicated", value_parser = progress)]
    progress: ProgressMode,
    /// IP MTU of the port, in bytes: 4144 is a payload of 4,096 for RDMA [default: mem 9000; udp
    /// and roce what the way to the other side carries; tap that of the device]
    #[arg(long, value_name = "BYTES", value_parser = PortSpec::parse_mtu)]
    mtu: Option<u16>,
    /// RDMA's invariant CRC: `on` for each packet, `off` when the other side agrees, `auto` unless
    /// the ports share memory or are sockets of the loopback
    #[arg(long, default_value = "auto", value_name = "auto|on|off", value_parser = crate::open::icrc)]
    icrc: Icrc,
    /// Record every frame to this file (pcapng); with --procs those of the sending side. With
    /// transport auto it means the one over the port, as do --loss and --reorder
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Lose this fraction of the frames that are sent
    #[arg(long, default_value_t = 0.0, value_name = "P", value_parser = probability)]
    loss: f64,
    /// Let this fraction of the frames be overtaken by later ones
    #[arg(long, default_value_t = 0.0, value_name = "P", value_parser = probability)]
    reorder: f64,
    #[command(flatten)]
    secret: SecretArgs,
    /// Seed of faults and data
    #[arg(long, default_value_t = 1, value_name = "S")]
    seed: u64,
    /// Time-out of each operation, and of finding the other side with --listen and --connect, in
    /// seconds [default: 10; --listen waits an hour for a client]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: Option<u64>,
    /// Bytes of a connection's receive buffer, with TCP and RDMA as many to send [default: 1M; perf
    /// connections: 64K]
    #[arg(long, value_name = "SIZE", value_parser = tcp_buffer)]
    pub(super) tcp_buffer: Option<u64>,
    /// Shortest time after which TCP sends a segment again, in milliseconds [default: 20 between
    /// NICs of this command, else 200]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(20..=1000))]
    rto_min: Option<u64>,
    /// What decides on window and rate of transport rdma: `window` halves on losses and marks,
    /// `dcqcn` paces by the marks of switches, `fixed` reacts to nothing
    #[arg(long, default_value = "window", value_name = "window|dcqcn|fixed")]
    congestion: Congestion,
    /// UDP source ports over which a connection of transport rdma spreads its packets, over ports
    /// of frames: a network that chooses ways by ports then sends them by several
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    udp_ports: u16,
    /// The switch of the process that started this one
    #[arg(long, hide = true)]
    join_switch: Option<PathBuf>,
    /// Where NICs of this measurement find each other
    #[arg(long, hide = true)]
    directory: Option<PathBuf>,
    /// Bytes of GPU memory
    #[arg(long, hide = true)]
    memory: Option<u64>,
}

fn progress(text: &str) -> Result<ProgressMode, String> {
    match text {
        "waiter" => Ok(ProgressMode::Waiter),
        "dedicated" => Ok(ProgressMode::Dedicated),
        _ => Err(format!(
            "`{text}` is no way to step a NIC; write waiter or dedicated"
        )),
    }
}

pub(crate) fn probability(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(p) if (0.0..1.0).contains(&p) => Ok(p),
        _ => Err(format!(
            "`{text}` is not a probability; write a number from 0 up to, but not, 1"
        )),
    }
}

/// Bytes of a TCP buffer.
fn tcp_buffer(text: &str) -> Result<u64, String> {
    match crate::report::parse_size(text)? {
        bytes if (4 << 10..=1 << 30).contains(&bytes) => Ok(bytes),
        _ => Err("a TCP buffer holds 4K to 1G".into()),
    }
}

/// The transport, when frames are to be lost, reordered or recorded: `auto` is then the one over
/// the port.
pub(crate) fn frames_need_a_port(
    transport: TransportSpec,
    frames: bool,
    port: Option<&PortSpec>,
) -> TransportSpec {
    match (transport, port) {
        (TransportSpec::Auto, Some(PortSpec::Roce { .. })) if frames => TransportSpec::Rdma,
        (TransportSpec::Auto, _) if frames => TransportSpec::Tcp,
        (other, _) => other,
    }
}

/// Refuses to lose, reorder or record frames where there are none.
pub(crate) fn check_frames(transport: TransportSpec) -> Result<()> {
    match transport {
        TransportSpec::Local | TransportSpec::Iwarp => Err(Problem::new(
            Exit::Usage,
            format!("--loss, --reorder and --pcap act on frames, and transport {transport} has none"),
            "give --transport tcp, rdma or udp, or leave --transport away; packets of iwarp are the kernel's: tc-netem loses, tcpdump records them",
        )
        .into()),
        _ => Ok(()),
    }
}

/// A NIC's address, with or without a port.
fn address(text: &str) -> Result<SocketAddrV4, String> {
    let parsed = text.parse::<SocketAddrV4>().or_else(|_| {
        text.parse::<Ipv4Addr>()
            .map(|ip| SocketAddrV4::new(ip, PORT))
    });
    match parsed {
        Ok(at) if at.port() != 0 => Ok(at),
        Ok(_) => Err("there is no port 0; write a port of 1 to 65535".into()),
        Err(_) => Err(format!(
            "write A.B.C.D, or A.B.C.D:PORT for another port than {PORT}"
        )),
    }
}

/// The same, or an address of IPv6.
fn to(text: &str) -> Result<SocketAddr, String> {
    match PortSpec::parse_host(text, PORT) {
        Ok(at @ SocketAddr::V6(_)) if at.port() != 0 => Ok(at),
        _ => address(text)
            .map(SocketAddr::V4)
            .map_err(|why| format!("{why}; or an IPv6 address, as [fd00::2] or [fd00::2]:PORT")),
    }
}

/// Whom the receiving side waits for.
#[derive(Debug, Clone, Copy)]
enum Listen {
    /// A NIC that connects to this address.
    Nic(SocketAddrV4),
    /// A client that connects to this TCP port.
    Tcp(u16),
}

fn listen(text: &str) -> Result<Listen, String> {
    match text.strip_prefix(':') {
        None => address(text).map(Listen::Nic),
        Some(port) => match port.parse() {
            Ok(0) | Err(_) => Err(format!("`{port}` is no port; write :1 to :65535")),
            Ok(port) => Ok(Listen::Tcp(port)),
        },
    }
}

/// The measuring side, connected.
pub(super) struct Client {
    pub(super) pair: Pair,
    peer: Peer,
}

enum Peer {
    Thread(std::thread::JoinHandle<Result<()>>),
    Process(Receiver),
    Elsewhere,
}

/// Role of this process, by the command line.
pub(super) enum Role {
    /// The receiving side has served; nothing to report.
    Served,
    /// Measure.
    Client(Box<Client>),
}

impl WireArgs {
    /// Settings of each size of a sweep.
    pub(super) fn settings(&self, sweep: &SweepArgs, window: u16) -> Settings {
        let few = |n| open::is_simulated().then_some(n);
        Settings {
            window,
            iters: sweep.iters.or(few(16)),
            warmup: sweep.warmup.or(few(2)),
            check: sweep.checks(),
            both_ways: false,
            seed: self.seed,
        }
    }

    /// Seed of the data.
    pub(super) fn seed(&self) -> u64 {
        self.seed
    }

    /// A NIC of the measurement.
    fn nic(&self, ip: Cidr, port: PortSpec, memory: u64) -> Result<NicBuilder> {
        let rto_min = self
            .rto_min
            .unwrap_or(if self.both_ours() { 20 } else { 200 });
        let mut ports = vec![port];
        ports.extend(self.port.iter().skip(1).cloned());
        let ports: Vec<_> = ports.into_iter().map(|p| p.or_mtu(self.mtu)).collect();
        Ok(open::with_ports(Nic::builder(), &ports, &self.route)
            .ip(ip)
            .transport(self.transport())
            .icrc(self.icrc)
            .faults(Faults {
                loss: self.loss,
                reorder: self.reorder,
                seed: self.seed,
                ..Faults::default()
            })
            .udp_secret(self.secret.read()?)
            .progress(self.progress)
            .tcp_buffer(self.tcp_buffer() as usize)
            .tcp_rto_min(Duration::from_millis(rto_min))
            .congestion(self.congestion)
            .rdma_udp_ports(self.udp_ports)
            .gpu_memory(memory.max(64 << 20))
            .when(self.directory.clone(), NicBuilder::directory))
    }

    /// A NIC whose frames are recorded, where that was asked for.
    fn recorded(&self, ip: Cidr, port: PortSpec, memory: u64) -> Result<NicBuilder> {
        let nic = self.nic(ip, port, memory)?;
        Ok(nic.when(self.pcap.clone(), NicBuilder::pcap))
    }

    /// Both NICs belong to this command, so that no unknown peer's delayed acknowledgements count.
    fn both_ours(&self) -> bool {
        let elsewhere = self.listen.is_some() || self.connect.is_some() || self.host.is_some();
        self.directory.is_some() || !elsewhere
    }

    fn tcp_buffer(&self) -> u64 {
        self.tcp_buffer.unwrap_or(1 << 20)
    }

    fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout.unwrap_or(10))
    }

    /// How long `--listen` waits for its client.
    fn client_patience(&self) -> Duration {
        match (&self.directory, self.timeout) {
            // Started by a command that connects at once.
            (Some(_), _) => START,
            (None, Some(_)) => self.timeout(),
            (None, None) => Duration::from_secs(3600),
        }
    }

    /// Faults and captures act on frames, which only TCP has.
    fn transport(&self) -> TransportSpec {
        if self.host.is_some() || matches!(self.listen, Some(Listen::Tcp(_))) {
            return TransportSpec::Rdma;
        }
        frames_need_a_port(self.transport, self.acts_on_frames(), self.port.first())
    }

    fn acts_on_frames(&self) -> bool {
        self.loss > 0.0 || self.reorder > 0.0 || self.pcap.is_some()
    }

    fn port_or(&self, default: PortSpec) -> PortSpec {
        self.port.first().cloned().unwrap_or(default)
    }

    /// Opens the sides that belong to this process; serves when this is the receiving side.
    /// `command` is the benchmark's name, for the process that is started.
    pub(super) fn start(&self, command: &str, memory: u64) -> Result<Role> {
        if self.acts_on_frames() {
            check_frames(self.transport)?;
        }
        match (&self.host, self.listen) {
            (Some(host), _) => return self.measure_to(host, command, memory).map(Role::client),
            (_, Some(Listen::Tcp(port))) => return self.serve_hosts(port),
            _ => {}
        }
        if let Some(Listen::Nic(at)) = self.listen {
            let mut nic = self.recorded(
                Cidr {
                    ip: *at.ip(),
                    prefix: 24,
                },
                self.port_or(PortSpec::None),
                self.memory.unwrap_or(memory),
            )?;
            if let Some(path) = &self.join_switch {
                nic = nic.switch(join(path)?, 1);
            }
            let side = Side::new(open::nic(nic)?, self.timeout())?;
            let listener = side.listen(at.port(), 1024)?;
            stdio::note(format_args!("listening on {at}"));
            serve::serve(&side, listener, self.client_patience())?;
            side.nic.flush(Duration::from_secs(2));
            return Ok(Role::Served);
        }
        if let Some(to) = self.connect {
            let nic = self.recorded(
                self.ip.unwrap_or(CLIENT_IP),
                self.port_or(PortSpec::None),
                memory,
            )?;
            let side = Side::new(open::nic(nic)?, self.timeout())?;
            let to = side.name(to)?;
            return Client::connect(side, to, Peer::Elsewhere, self.timeout()).map(Role::client);
        }
        if self.port.len() > 1 || !self.route.is_empty() {
            return Err(Problem::new(
                Exit::Usage,
                "several ports and routes are for a NIC of --listen or --connect",
                "give --port once, or start each side by a command of its own",
            )
            .into());
        }
        if let Some(PortSpec::Tap { name, .. }) = self.port.first() {
            return Err(Problem::new(
                Exit::Usage,
                format!("tap:{name} leads to this machine's kernel, not to a second NIC"),
                "use --port mem or udp between two NICs of this command, or --listen and --connect",
            )
            .into());
        }
        let what = format!("{command} between two NICs, with messages of that size");
        let advice = "give a smaller -e, or fewer messages in flight";
        super::memory::enough(&what, memory.saturating_mul(2), advice)?;
        let client = if self.threads {
            self.in_threads(memory)?
        } else {
            self.in_processes(command, memory)?
        };
        Ok(Role::client(client))
    }

    /// A side of a measurement between hosts, at the address by which the other host is reached
    /// unless --port names one.
    fn side_of_hosts(&self, ip: Cidr, exchange: &Exchange, memory: u64) -> Result<(Side, Place)> {
        let port = match self.port.as_slice() {
            [] => None,
            [PortSpec::Roce { bind, mtu, peers }] if peers.is_empty() => Some((*bind, *mtu)),
            _ => None.context(Problem::new(
                Exit::Usage,
                "a measurement between hosts has one port, which is roce, and its peers are found",
                "leave --port away or give --port roce:ADDR; for others give both sides NIC addresses by --listen IP and --connect IP",
            ))?,
        };
        let (bind, mtu) = port.unwrap_or((None, None));
        let bind = match bind {
            Some(bind) => bind,
            None => exchange.local()?,
        };
        let port = PortSpec::Roce {
            bind: Some(bind),
            peers: Vec::new(),
            mtu,
        };
        // What these benchmarks are for; `auto` would take iwarp to another host.
        let nic = self.recorded(ip, port, memory)?;
        let nic = open::nic(nic.transport(TransportSpec::Rdma))?;
        let side = Side::new(nic, self.timeout())?;
        let at = side.nic.ports().iter().find_map(|p| p.address);
        let place = Place {
            nic: ip.ip,
            at: at.context("the NIC has no port of datagrams")?,
        };
        Ok((side, place))
    }

    /// The measuring side between hosts.
    fn measure_to(&self, host: &(String, u16), command: &str, memory: u64) -> Result<Client> {
        self.check_hosts()?;
        let mut exchange = exchange::connect(host, self.timeout())?;
        let (side, place) = self.side_of_hosts(CLIENT_IP, &exchange, memory)?;
        let server = exchange.ask(Question {
            benchmark: command.into(),
            memory,
            place,
        })?;
        know(&side, server)?;
        let to = SocketAddrV4::new(server.nic, PORT);
        Client::connect(side, to, Peer::Elsewhere, self.timeout())
    }

    /// The receiving side between hosts.
    fn serve_hosts(&self, port: u16) -> Result<Role> {
        self.check_hosts()?;
        let (mut exchange, client) = exchange::wait(port, self.client_patience())?;
        let (peer, what) = (exchange.peer(), client.benchmark.escape_debug());
        stdio::note(format_args!("{peer} measures {what}"));
        super::memory::enough(
            &format!("{what} of {peer}"),
            client.memory,
            "give a smaller -e there, or fewer messages in flight",
        )?;
        let (side, place) = self.side_of_hosts(SERVER_IP, &exchange, client.memory)?;
        know(&side, client.place)?;
        let listener = side.listen(PORT, 1024)?;
        exchange.answer(place)?;
        serve::serve(&side, listener, START)?;
        side.nic.flush(Duration::from_secs(2));
        Ok(Role::Served)
    }

    fn check_hosts(&self) -> Result<()> {
        match self.transport {
            TransportSpec::Auto | TransportSpec::Rdma => Ok(()),
            other => Err(Problem::new(
                Exit::Usage,
                format!("between hosts that find each other the transport is rdma, not {other}"),
                "leave --transport away, or give both sides NIC addresses by --listen IP and --connect IP",
            )
            .into()),
        }
    }

    /// The switch between both sides, and both sides' port.
    fn ports(&self) -> Result<(Option<Arc<MemSwitch>>, PortSpec, PortSpec)> {
        let port = match (self.port.first(), self.transport()) {
            (Some(port), _) => port.clone(),
            (None, TransportSpec::Auto) => PortSpec::Mem,
            (None, named) => named.port_on_one_host(),
        };
        Ok(match port {
            PortSpec::Mem => {
                // Both ends share memory: no bit can flip, unless faults are set.
                let checksums = match self.acts_on_frames() {
                    true => Checksums::Software,
                    false => Checksums::Omitted,
                };
                let switch = open::switch(2, self.mtu, checksums)?;
                (Some(Arc::new(switch)), PortSpec::Mem, PortSpec::Mem)
            }
            PortSpec::Udp { bind, peers, mtu } if peers.is_empty() => {
                // Two sockets on this host, each configured with the other's address; the port
                // numbers are free ones.
                let host = match bind.ip().is_unspecified() {
                    true => SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
                    false => bind,
                };
                let sockets = free_sockets(host, 2, self.transport())?;
                let (a, b) = (sockets[0], sockets[1]);
                (
                    None,
                    PortSpec::Udp {
                        bind: a,
                        peers: vec![b],
                        mtu,
                    },
                    PortSpec::Udp {
                        bind: b,
                        peers: vec![a],
                        mtu,
                    },
                )
            }
            PortSpec::Roce { bind, peers, mtu } if peers.is_empty() => {
                let sockets = free_sockets(
                    bind.unwrap_or((Ipv4Addr::LOCALHOST, 0).into()),
                    2,
                    self.transport(),
                )?;
                let of = |own: usize, peer: Cidr| PortSpec::Roce {
                    bind: Some(sockets[own]),
                    peers: vec![(peer.ip, sockets[1 - own])],
                    mtu,
                };
                (None, of(0, CLIENT_IP), of(1, SERVER_IP))
            }
            other => (None, other.clone(), other),
        })
    }

    fn in_threads(&self, memory: u64) -> Result<Client> {
        let (switch, server_port, client_port) = self.ports()?;
        let folder = Folder::new("perf")?;
        let nic = self.nic(SERVER_IP, server_port, memory)?;
        let nic = nic.directory(folder.path());
        let nic = nic.when(switch.clone(), |nic, switch| nic.switch(switch, 1));
        let server = Side::new(open::nic(nic)?, self.timeout())?;
        let listener = server.listen(PORT, 1024)?;
        let nic = self.recorded(CLIENT_IP, client_port, memory)?;
        let nic = nic.directory(folder.path());
        let nic = nic.when(switch, |nic, switch| nic.switch(switch, 0));
        let client = Side::new(open::nic(nic)?, self.timeout())?;
        // The server ends last, and removes the discovery folder.
        let thread = std::thread::Builder::new()
            .name("perf-server".into())
            .spawn(move || -> Result<()> {
                let done = serve::serve(&server, listener, START);
                server.nic.flush(Duration::from_secs(2));
                drop(server);
                drop(folder);
                done
            })
            .context("cannot start a thread")?;
        Client::connect(
            client,
            SocketAddrV4::new(SERVER_IP.ip, PORT),
            Peer::Thread(thread),
            START,
        )
    }

    fn in_processes(&self, command: &str, memory: u64) -> Result<Client> {
        let (switch, server_port, client_port) = self.ports()?;
        let folder = Folder::new("perf")?;
        let exe = std::env::current_exe().context("cannot find this program's own file")?;
        let mut child = Command::new(exe);
        child
            .args([
                "perf",
                command,
                "--listen",
                &format!("{}:{PORT}", SERVER_IP.ip),
            ])
            .args([
                "--transport",
                &self.transport().to_string(),
                "--port",
                &server_port.to_string(),
            ])
            .args([
                "--timeout",
                &self.timeout().as_secs().to_string(),
                "--seed",
                &self.seed.to_string(),
            ])
            .args([
                "--loss",
                &self.loss.to_string(),
                "--reorder",
                &self.reorder.to_string(),
            ])
            .args([
                "--tcp-buffer",
                &self.tcp_buffer().to_string(),
                "--memory",
                &memory.to_string(),
            ])
            .args(["--icrc", crate::open::icrc_name(self.icrc)])
            .args(["--congestion", &self.congestion.to_string()])
            .args(["--udp-ports", &self.udp_ports.to_string()])
            .arg("--progress")
            .arg(if self.progress == ProgressMode::Dedicated {
                "dedicated"
            } else {
                "waiter"
            })
            .arg("--directory")
            .arg(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        if let Some(fd) = switch.as_ref().and_then(|s| s.fd()) {
            // The child opens the switch's memory through this process, because no descriptor is
            // inherited.
            child.arg("--join-switch").arg(format!(
                "/proc/{}/fd/{}",
                std::process::id(),
                fd.as_raw_fd()
            ));
        }
        dies_with_us(&mut child);
        let child = child
            .spawn()
            .context("cannot start the receiving process")?;
        let mut receiver = Receiver::new(child, folder);
        receiver.ready()?;
        let nic = self.recorded(CLIENT_IP, client_port, memory)?;
        let nic = nic.directory(receiver.folder.path());
        let nic = nic.when(switch, |nic, switch| nic.switch(switch, 0));
        let side = Side::new(open::nic(nic)?, self.timeout())?;
        receiver.watch(&side)?;
        let server = SocketAddrV4::new(SERVER_IP.ip, PORT);
        Client::connect(side, server, Peer::Process(receiver), START)
    }
}

impl Role {
    fn client(client: Client) -> Role {
        Role::Client(Box::new(client))
    }
}

/// Tells a NIC where the other side's receives.
fn know(side: &Side, other: Place) -> Result<()> {
    let own = side.nic.ports().iter().find_map(|p| p.address);
    let is_reached = own.is_some_and(|own| own.is_ipv6() == other.at.is_ipv6());
    if other.at.port() == 0 || !is_reached {
        bail!("the other side receives at {}, which port roce does not reach from {own:?}; give both sides --port roce:ADDR with addresses of one version of IP", other.at);
    }
    side.nic.backend().know_host(other.nic, other.at);
    Ok(())
}

/// Attaches to the switch of the process that started this one.
fn join(path: &std::path::Path) -> Result<Arc<MemSwitch>> {
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .with_context(|| format!("cannot open the switch at {}", path.display()))?;
    Ok(Arc::new(
        MemSwitch::attach(file.into()).context("cannot attach to the switch")?,
    ))
}

impl Client {
    fn connect(side: Side, server: SocketAddrV4, peer: Peer, patience: Duration) -> Result<Client> {
        let goes_on = || match &peer {
            Peer::Process(receiver) => receiver.ended().is_none(),
            _ => true,
        };
        match side.connect(server, patience, goes_on) {
            Ok(session) => Ok(Client {
                pair: Pair {
                    side,
                    session,
                    server,
                },
                peer,
            }),
            Err(e) => Err(peer.blame(e)),
        }
    }

    /// Sends the server the end of the measurement, and waits for it to end.
    pub(super) fn end(self) -> Result<()> {
        if let Peer::Process(receiver) = &self.peer {
            receiver.may_end();
        }
        match self.pair.end() {
            Ok(()) => self.peer.join(),
            Err(e) => Err(self.peer.blame(e)),
        }
    }

    /// Adds the rows of each point to a report. When one cannot be measured, both sides are ended.
    pub(super) fn sweep<P>(
        self,
        report: &mut Report,
        points: &[P],
        label: impl Fn(&P) -> String,
        measure: impl Fn(&Client, &P) -> Result<Vec<Row>>,
    ) -> Result<Client> {
        let progress = Progress::new(&report.meta.benchmark, points.len() as u64);
        let nic = self.pair.side.nic.clone();
        let mut hardware = Hardware::of(&nic);
        report.meta.notes.extend(hardware.map(|_| NOTE.into()));
        for point in points {
            progress.message(label(point));
            match measure(&self, point) {
                Ok(rows) => report.rows.extend(rows),
                Err(e) => return Err(self.abandon(e)),
            }
            let done = hardware.as_mut().and_then(|h| h.part(&nic, &label(point)));
            report.meta.notes.extend(done);
            progress.step();
        }
        Ok(self)
    }

    /// Ends the measurement because of an error: the other side is ended if it is ours. Returns the
    /// error, with the other side's end in front where that is the cause.
    pub(super) fn abandon(self, error: anyhow::Error) -> anyhow::Error {
        let error = self.peer.blame(error);
        drop(self.pair);
        error
    }
}

impl Peer {
    fn join(self) -> Result<()> {
        match self {
            Peer::Elsewhere => Ok(()),
            Peer::Thread(thread) => thread
                .join()
                .map_err(|_| anyhow!("the receiving thread panicked"))?,
            Peer::Process(receiver) => receiver.join(),
        }
    }

    /// Ends the other side if it is ours; returns the error, with the cause of that end in front.
    fn blame(self, error: anyhow::Error) -> anyhow::Error {
        match self {
            Peer::Process(receiver) => receiver.blame(error),
            _ => error,
        }
    }
}
