//! `ringbell nc`: netcat whose bytes go through GPU memory and a GPU kernel.
//!
//! ```text
//! standard input → host → ring in GPU memory → kernel, gpu_send → NIC → network
//! network → NIC → kernel, gpu_recv_some → ring in GPU memory → host → standard output
//! ```
//!
//! Each direction has a ring, a kernel and a queue of its own, so that neither waits for the other.
#![allow(clippy::disallowed_methods)] // A program at the edge: it waits for people and networks.

use std::io::{ErrorKind, IsTerminal as _, Read as _, Write as _};
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{sync_channel, Receiver, RecvTimeoutError};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ringbell::abi::{SessionId, Status};
use ringbell::nic::{Cidr, Faults, PortSpec, Route, TransportSpec};
use ringbell::parts::cuda_kernels::pump::{Pump, PumpTimes};
use ringbell::{DeviceBuffer, Nic, NicBuilder};
use signal_hook::consts::{SIGINT, SIGTERM};

use ringbell_perf::side::{failed, Side};

use super::perf::pair::{check_frames, frames_need_a_port};
use super::secret::SecretArgs;
use super::{stdio, Exit, Problem};
use crate::open::with_ports;

/// Bytes of a ring; as much can be on the way in one direction.
const RING: u64 = 1 << 20;
/// Bytes that are read from standard input at once.
const CHUNK: usize = 64 << 10;
/// Longest delay until a kernel or a thread sees that it is to stop.
const NOTICE: Duration = Duration::from_millis(100);
/// How long closing may take to deliver what was sent.
const LINGER: Duration = Duration::from_secs(5);
/// How long to wait for a connection without `-w`.
const CONNECT: Duration = Duration::from_secs(10);
/// Idle limit of the kernels: the host decides, because it sees both directions. A hundred years.
const NEVER_US: u64 = 100 * 365 * 86_400 * 1_000_000;

/// Arguments of `ringbell nc`.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// With -l: only PORT. Else: HOST PORT, where HOST is an address or a name; one of IPv6 is that
    /// of another NIC's port roce
    #[arg(value_name = "[HOST] PORT", num_args = 1..=2, required = true)]
    target: Vec<String>,
    /// Wait for a connection instead of making one
    #[arg(short = 'l')]
    listen: bool,
    /// What carries the packets: `tap:NAME`, `udp[:BIND[,PEER...]]` VXLAN over UDP,
    /// `roce[:ADDR[:PORT][,NIC=ADDR:PORT...]]` the host's UDP, for rdma and udp, or its TCP, for
    /// iwarp, `none`; `,mtu=BYTES` at the end of tap, udp or roce sets the IP MTU. Given several
    /// times, the NIC has several ports
    #[arg(long, default_value = "none", value_name = "PORT")]
    port: Vec<PortSpec>,
    /// Leads a network to a port, numbered from 0 in the order of --port: `10.0.2.0/24=1`, or
    /// behind a gateway `0.0.0.0/0=0,via=10.0.1.254`; can be given several times [default: the own
    /// network to port 0]
    #[arg(long, value_name = "NETWORK/BITS=PORT[,via=NEXT_HOP]")]
    route: Vec<Route>,
    /// Address of the NIC, and its network
    #[arg(long, value_name = "A.B.C.D/N")]
    ip: Cidr,
    /// Address that the kernel's end of the TAP device gets [default: it keeps what it has]
    #[arg(long, value_name = "A.B.C.D/N")]
    host_ip: Option<Cidr>,
    /// `local` from memory to memory on one host, `tcp`, `rdma` or `udp` (a lost packet ends the
    /// session) over the port, `iwarp` over the kernel's TCP, `auto` is `local` where it reaches
    /// the peer, else over port roce `rdma` on one host and `iwarp` to another host, and `tcp` over
    /// other ports
    #[arg(
        long,
        default_value = "auto",
        value_name = "auto|local|tcp|rdma|udp|iwarp"
    )]
    transport: TransportSpec,
    /// End when connecting, or both directions being idle, lasts this long [default: 10 to connect,
    /// idle without limit]
    #[arg(short = 'w', value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    wait: Option<u64>,
    /// Half-close when standard input ends; the default here, taken so that command lines of nc
    /// work
    #[arg(short = 'N', conflicts_with = "keep_open")]
    _shutdown: bool,
    /// Leave our side open when standard input ends, until the peer closes
    #[arg(long)]
    keep_open: bool,
    /// Do not read standard input
    #[arg(short = 'd')]
    no_stdin: bool,
    /// Say what happens on standard error
    #[arg(short = 'v')]
    verbose: bool,
    #[command(flatten)]
    secret: SecretArgs,
    /// Record every frame to this file (pcapng). With transport auto it means the one over the
    /// port, as do --loss and --reorder
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Lose this fraction of the frames that are sent
    #[arg(long, default_value_t = 0.0, value_name = "P", value_parser = super::perf::pair::probability)]
    loss: f64,
    /// Let this fraction of the frames be overtaken by later ones
    #[arg(long, default_value_t = 0.0, value_name = "P", value_parser = super::perf::pair::probability)]
    reorder: f64,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

/// Runs it.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    let (host, port) = target(args)?;
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // The first signal asks this process to end; a second one, when that takes too long, ends
        // it.
        signal_hook::flag::register_conditional_shutdown(signal, 130, interrupted.clone())
            .and_then(|_| signal_hook::flag::register(signal, interrupted.clone()))
            .context("cannot watch for Ctrl-C")?;
    }
    let frames = args.loss > 0.0 || args.reorder > 0.0 || args.pcap.is_some();
    if frames {
        check_frames(args.transport)?;
    }
    let nic = with_ports(Nic::builder(), &args.port, &args.route)
        .ip(args.ip)
        .transport(frames_need_a_port(
            args.transport,
            frames,
            args.port.first(),
        ))
        .when(args.host_ip, NicBuilder::tap_host)
        .udp_secret(args.secret.read()?)
        .when(args.pcap.clone(), NicBuilder::pcap)
        .faults(Faults {
            loss: args.loss,
            reorder: args.reorder,
            seed: 1,
            ..Faults::default()
        })
        .tcp_buffer(RING as usize)
        .gpu_memory(64 << 20);
    let wait = args.wait.map(Duration::from_secs);
    let side = Side::new(crate::open::nic(nic)?, wait.unwrap_or(CONNECT))?;
    let say = |text: String| {
        if args.verbose {
            stdio::note(text);
        }
    };
    let session = match host {
        None => {
            let listener = side.listen(port, 1)?;
            say(format!("listening on {}:{port}", args.ip.ip));
            let session = accept(&side, listener, &interrupted)?;
            // One connection, as with nc: the next one is refused, not left waiting.
            side.close(listener)?;
            session
        }
        Some(host) => Some(side.connect_once(side.name(host)?)?),
    };
    let Some(session) = session else {
        return Ok(Exit::Interrupted);
    };
    let sessions = side.nic.sessions();
    if let Some(info) = sessions.iter().find(|s| s.id == session) {
        let peer = info.peer.map_or("?".into(), |p| p.to_string());
        say(format!(
            "connected with {peer} over {}",
            info.transport.unwrap_or("?")
        ));
    }
    let end = carry(args, &side, session, &interrupted);
    finish(&side, session, end)
}

/// Closes or resets the session, as the transfer ended.
fn finish(side: &Side, session: SessionId, end: Result<End>) -> Result<Exit> {
    let nic = &side.nic;
    match end {
        Ok(End::Both) => {
            side.close(session)?;
            if !nic.flush(LINGER) {
                return Err(Problem::new(
                    Exit::Failed,
                    format!("the peer did not take everything within {LINGER:?} of the end"),
                    "check that the peer still reads",
                )
                .into());
            }
            Ok(Exit::Ok)
        }
        Ok(end @ (End::Interrupted | End::Unread)) => {
            side.abort(session);
            nic.flush(NOTICE);
            Ok(match end {
                End::Interrupted => Exit::Interrupted,
                _ => Exit::Ok,
            })
        }
        Err(e) => {
            // A peer that still sends gets a reset, because no reader is left.
            side.abort(session);
            nic.flush(NOTICE);
            Err(e)
        }
    }
}

/// HOST and PORT; no HOST when listening.
fn target(args: &Args) -> Result<(Option<SocketAddr>, u16)> {
    let usage = |what: String| {
        Problem::new(Exit::Usage, what, "write `ringbell nc HOST PORT` or `ringbell nc -l PORT`, with the NIC's own address in --ip")
    };
    let (host, port) = match (args.listen, args.target.as_slice()) {
        (true, [port]) => (None, port),
        (false, [host, port]) => (Some(host), port),
        (true, _) => {
            return Err(usage("-l takes only a port: the address is that of --ip".into()).into())
        }
        (false, _) => return Err(usage("a host and a port are needed".into()).into()),
    };
    let number = port
        .parse::<u16>()
        .ok()
        .filter(|p| *p != 0)
        .ok_or_else(|| usage(format!("`{port}` is not a port of 1 to 65535")))?;
    let Some(host) = host else {
        return Ok((None, number));
    };
    let found = (host.as_str(), number)
        .to_socket_addrs()
        .with_context(|| usage(format!("cannot find host `{host}`")))?
        .min_by_key(SocketAddr::is_ipv6);
    let found = found.ok_or_else(|| usage(format!("`{host}` has no address")))?;
    Ok((Some(found), number))
}

/// Waits for a connection until it is interrupted.
fn accept(side: &Side, listener: SessionId, interrupted: &AtomicBool) -> Result<Option<SessionId>> {
    while !interrupted.load(Ordering::Relaxed) {
        if let Some(session) = side.try_accept(listener, NOTICE)? {
            return Ok(Some(session));
        }
    }
    Ok(None)
}

/// The end of a transfer that did not fail.
enum End {
    /// Both directions have ended.
    Both,
    /// Ctrl-C.
    Interrupted,
    /// The reader of standard output is gone.
    Unread,
}

/// State that the two directions share.
struct Shared {
    start: Instant,
    /// Milliseconds from `start` to the last byte moved, in either direction.
    moved_ms: AtomicU64,
    /// The peer has ended its stream.
    peer_ended: AtomicBool,
    /// The sending thread is to end.
    stop: AtomicBool,
}

impl Shared {
    fn moved(&self) {
        let ms = self.start.elapsed().as_millis() as u64;
        self.moved_ms.store(ms, Ordering::Relaxed);
    }

    fn idle(&self) -> Duration {
        let moved = Duration::from_millis(self.moved_ms.load(Ordering::Relaxed));
        self.start.elapsed().saturating_sub(moved)
    }
}

/// Naps that grow while nothing happens: a fast transfer is not slowed down, an idle one costs
/// little.
struct Nap(u32);

impl Nap {
    fn rest(&mut self) {
        self.0 = (self.0 + 1).min(200);
        std::thread::sleep(Duration::from_micros(u64::from(self.0) * 10));
    }
}

/// Moves bytes in both directions until both have ended.
fn carry(args: &Args, side: &Side, session: SessionId, interrupted: &AtomicBool) -> Result<End> {
    let nic = &side.nic;
    let outgoing = Pump::send(
        nic.gpu(),
        side.queue.handle(),
        session,
        nic.alloc::<u8>(RING)?,
        PumpTimes {
            operation_us: u32::MAX,
            idle_limit_us: NEVER_US,
        },
    )?;
    let receiving = nic.create_queue()?;
    let mut incoming = Pump::receive(
        nic.gpu(),
        receiving.handle(),
        session,
        nic.alloc::<u8>(RING)?,
        PumpTimes {
            operation_us: NOTICE.as_micros() as u32,
            idle_limit_us: NEVER_US,
        },
    )?;
    let shared = Shared {
        start: Instant::now(),
        moved_ms: AtomicU64::new(0),
        peer_ended: AtomicBool::new(false),
        stop: AtomicBool::new(false),
    };
    let input = match args.no_stdin {
        true => None,
        false => Some(read_input().context("cannot start the thread that reads standard input")?),
    };
    std::thread::scope(|scope| {
        let sender = std::thread::Builder::new()
            .spawn_scoped(scope, || {
                send(args, side, session, outgoing, input, &shared)
            })
            .context("cannot start the sending thread")?;
        let end = receive(args, &mut incoming, interrupted, &shared, || {
            sender.is_finished()
        });
        if !matches!(end, Ok(End::Both)) {
            // An operation of a kernel that waits for the peer ends with the session.
            side.abort(session);
        }
        shared.stop.store(true, Ordering::Relaxed);
        incoming.stop()?;
        incoming.launch().wait(LINGER)?;
        let sent = sender
            .join()
            .map_err(|_| anyhow::anyhow!("the sending thread panicked"))?;
        match end {
            // The side that failed first reports the reason: a reset ends the receiving side, too.
            Ok(End::Both) => sent.map(|()| End::Both),
            other => other,
        }
    })
}

/// Reads standard input on a thread of its own: a read cannot be interrupted. An empty chunk is the
/// end.
fn read_input() -> std::io::Result<Receiver<std::io::Result<Vec<u8>>>> {
    let (to, from) = sync_channel(4);
    let read = move || {
        let mut input = std::io::stdin().lock();
        loop {
            let mut chunk = vec![0; CHUNK];
            let read = match input.read(&mut chunk) {
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                Ok(n) => {
                    chunk.truncate(n);
                    Ok(chunk)
                }
                Err(e) => Err(e),
            };
            let last = read.as_ref().map_or(true, Vec::is_empty);
            if to.send(read).is_err() || last {
                return;
            }
        }
    };
    std::thread::Builder::new()
        .name("nc-input".into())
        .spawn(read)?;
    Ok(from)
}

/// Standard input → GPU memory, until it has ended and everything was sent, or `stop`.
fn send(
    args: &Args,
    side: &Side,
    session: SessionId,
    mut pump: Pump<DeviceBuffer>,
    input: Option<Receiver<std::io::Result<Vec<u8>>>>,
    shared: &Shared,
) -> Result<()> {
    let stopped = || shared.stop.load(Ordering::Relaxed);
    let peer_ended = || shared.peer_ended.load(Ordering::Relaxed);
    // As with nc: a user who serves at a terminal need not also type the end of a file.
    let typed = args.listen && std::io::stdin().is_terminal();
    let mut fill = || -> Result<()> {
        while !stopped() && pump.ended()?.is_none() {
            let chunk = match &input {
                None => None,
                Some(input) => match input.recv_timeout(NOTICE) {
                    Ok(chunk) => Some(chunk.context("cannot read standard input")?),
                    Err(RecvTimeoutError::Timeout) if typed && peer_ended() => None,
                    Err(RecvTimeoutError::Timeout) => continue,
                    Err(RecvTimeoutError::Disconnected) => None,
                },
            };
            let mut rest = chunk.as_deref().unwrap_or(&[]);
            if rest.is_empty() {
                break;
            }
            let mut nap = Nap(0);
            while !rest.is_empty() && !stopped() && pump.ended()?.is_none() {
                match pump.put(rest)? {
                    0 => nap.rest(),
                    n => {
                        nap = Nap(0);
                        rest = &rest[n..];
                        shared.moved();
                    }
                }
            }
        }
        Ok(())
    };
    let filled = fill();
    let mut nap = Nap(0);
    let mut told = false;
    let ended = loop {
        if filled.is_ok() && !told && (!args.keep_open || peer_ended()) {
            pump.end()?;
            told = true;
        }
        if let Some(ended) = pump.ended()? {
            break Some(ended);
        }
        if filled.is_err() || stopped() {
            pump.stop()?;
            break None;
        }
        nap.rest();
    };
    if ended.is_none() && pump.launch().wait(NOTICE * 2).is_err() {
        // It waits for the peer to take bytes: only the end of the session ends that.
        side.abort(session);
    }
    pump.launch().wait(LINGER)?;
    filled?;
    match ended {
        None | Some((Status::Ok, _)) => Ok(()),
        Some((status, detail)) => Err(failed("send", status, detail)),
    }
}

/// GPU memory → standard output, until both directions have ended. `sent` says whether the other
/// direction has.
fn receive(
    args: &Args,
    pump: &mut Pump<DeviceBuffer>,
    interrupted: &AtomicBool,
    shared: &Shared,
    sent: impl Fn() -> bool,
) -> Result<End> {
    let mut out = std::io::stdout().lock();
    let mut chunk = vec![0; CHUNK];
    let mut nap = Nap(0);
    loop {
        // Before the ring is read: bytes put there before the end are still taken.
        let ended = pump.ended()?;
        let n = pump.take(&mut chunk)?;
        if n > 0 {
            match out.write_all(&chunk[..n]).and_then(|()| out.flush()) {
                Err(e) if e.kind() == ErrorKind::BrokenPipe => return Ok(End::Unread),
                done => done.context("cannot write standard output")?,
            }
            shared.moved();
            nap = Nap(0);
            continue;
        }
        match ended {
            None => {}
            Some((Status::Ok, _)) => {
                shared.peer_ended.store(true, Ordering::Relaxed);
                if sent() {
                    return Ok(End::Both);
                }
            }
            Some((status, detail)) => return Err(failed("receive", status, detail)),
        }
        if interrupted.load(Ordering::Relaxed) {
            return Ok(End::Interrupted);
        }
        if let Some(limit) = args.wait.map(Duration::from_secs) {
            if shared.idle() >= limit {
                return Err(Problem::new(
                    Exit::Failed,
                    format!("no byte went either way for {limit:?}"),
                    "raise -w, or leave it away to wait for ever",
                )
                .into());
            }
        }
        nap.rest();
    }
}
