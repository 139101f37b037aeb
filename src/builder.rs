//! [`NicBuilder`]: the settings of a NIC, each with a default that works on one machine without privileges.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ringbell_cuda_kernels::EmulatedGpuConfig;
use ringbell_gtlb::MmuConfig;
use ringbell_nic_core::network::Route;
use ringbell_nic_core::port::impair::Faults;
use ringbell_nic_core::port::mem::MemSwitch;
use ringbell_nic_core::transport::rdma::Congestion;
use ringbell_nic_core::transport::Icrc;
use ringbell_nic_core::{EngineThread, NicConfig, ProgressMode, QueueConfig, StagingConfig};

use crate::backend;
use crate::gpu_choice::GpuChoice;
use crate::nic_kind::NicKind;
use crate::options::{NicOptions, PortOptions};
use crate::spec::{polls, readable, Cidr, PortSpec, SpecError, TransportSpec};
use crate::{Nic, OpenError};

readable!(GpuChoice, NicKind);

/// Settings of a NIC that is to be opened: `Nic::builder().ip("10.0.0.1/24").port("udp").open()?`.
///
/// Settings with a text form take the text or the typed value. A text that cannot be read is an
/// error of [`open`](Self::open), which names the setting and the text.
///
/// ```
/// use ringbell::Nic;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // On one machine an address is enough: NICs of one user find each other.
/// let nic = Nic::builder().ip("10.9.9.21/24").open()?;
/// assert_eq!(nic.ip().to_string(), "10.9.9.21/24");
/// // Over Ethernet in UDP, with a peer that is known beforehand. Port 0 is any free one.
/// let port = "udp:127.0.0.1:0,127.0.0.1:4790";
/// let far = Nic::builder().ip("10.9.9.22/24").port(port).transport("tcp").open()?;
/// assert_eq!(far.port().to_string(), port);
/// let wrong = Nic::builder().ip("10.9.9").open().expect_err("no address");
/// assert!(wrong.to_string().contains("ip: `10.9.9`"), "{wrong}");
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "a builder opens a NIC by `open`"]
pub struct NicBuilder {
    pub(crate) options: NicOptions,
    /// The first value that could not be used, for [`NicBuilder::open`].
    pub(crate) wrong: Option<OpenError>,
}

/// `address on port PORT`, for messages.
impl fmt::Display for NicBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on port {}", self.options.ip, self.options.port)
    }
}

impl Nic {
    /// A builder with the defaults: address 10.77.0.1/24, no port for frames (NICs of this machine
    /// and user connect through memory), the first CUDA GPU where there is one, else the emulated
    /// GPU with 256 MiB.
    pub fn builder() -> NicBuilder {
        NicBuilder {
            options: NicOptions::default(),
            wrong: None,
        }
    }
}

impl NicBuilder {
    /// Opens the NIC, beside its GPU.
    ///
    /// # Errors
    /// [`OpenError`]: the first setting whose value cannot be used, or the part that failed, and why.
    pub fn open(self) -> Result<Nic, OpenError> {
        let kind = match self.options.nic {
            Some(kind) => kind,
            None => NicKind::from_env()?,
        };
        match self.wrong {
            Some(wrong) => Err(wrong),
            None => Nic::with(self.options, kind, backend::opener(kind)),
        }
    }

    /// Applies a setting where there is a value: `builder.when(given_port, NicBuilder::port)`.
    pub fn when<T>(self, value: Option<T>, set: impl FnOnce(Self, T) -> Self) -> Self {
        match value {
            Some(value) => set(self, value),
            None => self,
        }
    }

    /// The value, or `None` and a note for `open`.
    pub(crate) fn read<T, V>(&mut self, setting: &'static str, value: V) -> Option<T>
    where
        V: TryInto<T, Error: Into<SpecError>>,
    {
        match value.try_into() {
            Ok(value) => Some(value),
            Err(why) => {
                self.wrong.get_or_insert(OpenError::Setting {
                    setting,
                    why: why.into(),
                });
                None
            }
        }
    }

    /// What implements the NIC: `"soft"`, `"rtl"` or a [`NicKind`]. Default: the value of
    /// `RINGBELL_NIC`, else `soft`.
    pub fn nic(mut self, nic: impl TryInto<NicKind, Error: Into<SpecError>>) -> Self {
        if let Some(nic) = self.read("nic", nic) {
            self.options.nic = Some(nic);
        }
        self
    }

    /// Own address and network: `"10.0.0.1/24"` or a [`Cidr`]; a text without a prefix means `/24`.
    /// Two NICs that reach each other have different ones. Default: 10.77.0.1/24.
    pub fn ip(mut self, ip: impl TryInto<Cidr, Error: Into<SpecError>>) -> Self {
        if let Some(ip) = self.read("ip", ip) {
            self.options.ip = ip;
        }
        self
    }

    /// Port that carries frames: `"none"`, `"mem"` (with [`switch`](Self::switch)), `"udp"`,
    /// `"udp:BIND[,PEER...]"`, `"tap:NAME"`; or datagrams of transport `rdma`: `"roce"`,
    /// `"roce:ADDR[:PORT][,NIC=ADDR:PORT...]"` with `ADDR` of `A.B.C.D` or `[IPv6]`; or a
    /// [`PortSpec`]. `,mtu=BYTES` at the end of udp, roce or tap sets the IP MTU. `"mesh:NETWORK"`
    /// joins NICs that forward for each other, by [`wire`](Self::wire)s. Default: `none`.
    pub fn port(mut self, port: impl TryInto<PortSpec, Error: Into<SpecError>>) -> Self {
        if let Some(port) = self.read("port", port) {
            self.options.port = port;
        }
        self
    }

    /// Transports to offer and to try: `"auto"`, `"local"`, `"tcp"`, `"rdma"`, `"udp"`, `"iwarp"`
    /// or a [`TransportSpec`]. Default: `auto`, which is memory to memory on one machine, else over
    /// a port `roce` RDMA on one machine and iWARP between machines, TCP over any other.
    pub fn transport(
        mut self,
        transport: impl TryInto<TransportSpec, Error: Into<SpecError>>,
    ) -> Self {
        if let Some(transport) = self.read("transport", transport) {
            self.options.transport = transport;
        }
        self
    }

    /// Which GPU to use: `"auto"`, `"cuda:N"`, `"emulated"` or a [`GpuChoice`]. Default: `auto`,
    /// the value of `RINGBELL_GPU`, else GPU 0, else the emulated one.
    pub fn gpu(mut self, gpu: impl TryInto<GpuChoice, Error: Into<SpecError>>) -> Self {
        if let Some(gpu) = self.read("gpu", gpu) {
            self.options.gpu_choice = gpu;
        }
        self
    }

    /// Bytes of an emulated GPU's memory. Default: 256 MiB, of which used pages alone take memory
    /// of the host.
    pub fn gpu_memory(mut self, bytes: u64) -> Self {
        self.options.gpu.memory_bytes = bytes;
        self
    }

    /// All settings of an emulated GPU. Default: [`EmulatedGpuConfig::default`].
    pub fn emulated_gpu(mut self, config: EmulatedGpuConfig) -> Self {
        self.options.gpu = config;
        self
    }

    /// Who steps the NIC when no kernel waits. Default: a thread that sleeps while there is nothing
    /// to do.
    pub fn progress(mut self, progress: ProgressMode) -> Self {
        self.options.progress = progress;
        self
    }

    /// Where engines run that only look at long messages. Default: on the thread that steps the
    /// NIC.
    pub fn engine_thread(mut self, thread: EngineThread) -> Self {
        self.options.engine_thread = thread;
        self
    }

    /// Depth and time-outs of queues. Default: [`QueueConfig::default`].
    pub fn queue(mut self, queue: QueueConfig) -> Self {
        self.options.queue = queue;
        self
    }

    /// Limits of the NIC: sessions, queues, its memory, how long a close waits for undelivered
    /// data. The address, MAC, progress and engine thread in it are ignored. Default:
    /// [`NicConfig::default`].
    pub fn limits(mut self, limits: NicConfig) -> Self {
        self.options.limits = limits;
        self
    }

    /// Settings of the GTLBs. Default: [`MmuConfig::default`].
    pub fn mmu(mut self, mmu: MmuConfig) -> Self {
        self.options.mmu = mmu;
        self
    }

    /// Directory in which NICs of this machine find each other for transport `local`. Default: one
    /// for the user.
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.options.local.directory = Some(directory.into());
        self
    }

    /// Pieces by which transport `local` moves memory that a peer cannot map. Default:
    /// [`StagingConfig::default`].
    pub fn staging(mut self, staging: StagingConfig) -> Self {
        self.options.local.staging = staging;
        self
    }

    /// Port `mem`, as this number on an in-memory switch. Default: none.
    pub fn switch(mut self, switch: Arc<MemSwitch>, number: usize) -> Self {
        self.options.port = PortSpec::Mem;
        self.options.switch = Some((switch, number));
        self
    }

    /// One more port, numbered from 1 in the order of the calls: a text or value as
    /// [`port`](Self::port) takes it, which is number 0. [`route`](Self::route) says which
    /// addresses it leads to. Default: none.
    pub fn add_port(mut self, port: impl TryInto<PortSpec, Error: Into<SpecError>>) -> Self {
        if let Some(spec) = self.read("add_port", port) {
            let switch = None;
            self.options.more_ports.push(PortOptions { spec, switch });
        }
        self
    }

    /// One more port, as this number on an in-memory switch. Default: none.
    pub fn add_switch(mut self, switch: Arc<MemSwitch>, number: usize) -> Self {
        self.options.more_ports.push(PortOptions {
            spec: PortSpec::Mem,
            switch: Some((switch, number)),
        });
        self
    }

    /// The rank of the NIC's node in the network of port `mesh:NETWORK`. Default: 0, or the rank in
    /// the job.
    pub fn node(mut self, rank: u32) -> Self {
        self.options.mesh.node = rank;
        self
    }

    /// A wire of the NIC's node in the network of port `mesh:NETWORK`: the port's number there, and
    /// what carries it, as [`port`](Self::port) takes it: `"udp:BIND,PEER"` or `"tap:NAME"`. Each
    /// port that the network has at the node gets one. Default: none.
    pub fn wire(
        mut self,
        number: u8,
        carrier: impl TryInto<PortSpec, Error: Into<SpecError>>,
    ) -> Self {
        if let Some(spec) = self.read("wire", carrier) {
            let switch = None;
            let port = PortOptions { spec, switch };
            self.options.mesh.wires.push((number, port));
        }
        self
    }

    /// How long no wire may lead to a node of port `mesh:NETWORK` before what is connected to it
    /// ends with `HOST_UNREACHABLE`. A wire that is back before costs no connection. Default: 1 s.
    pub fn wire_grace(mut self, grace: Duration) -> Self {
        self.options.mesh.grace = Some(grace);
        self
    }

    /// Packets that an output of port `mesh:NETWORK` takes from one queue before it looks at the
    /// next, 1 to 4,096: R, the polling parameter of SMI's communication kernels (SC'19 §4.2). A
    /// small one serves all queues alike; each node has its own. Default: 8.
    pub fn wire_poll(mut self, packets: u32) -> Self {
        match polls(packets) {
            Ok(packets) => self.options.mesh.poll = Some(packets),
            Err(why) => {
                let setting = "wire_poll";
                self.wrong
                    .get_or_insert(OpenError::Setting { setting, why });
            }
        }
        self
    }

    /// File of the tables by which the NICs of port `mesh:NETWORK` forward, as `ringbell routes
    /// NETWORK --json FILE` writes it: the same for all of them. Tables that the checker refuses
    /// are refused when the NIC is opened. Default: those that `ringbell routes NETWORK` prints.
    pub fn tables(mut self, file: impl Into<PathBuf>) -> Self {
        self.options.mesh.tables = Some(file.into());
        self
    }

    /// As [`wire`](Self::wire), over an in-memory switch of two ports, of which this is one.
    pub fn wire_switch(mut self, number: u8, switch: Arc<MemSwitch>, side: usize) -> Self {
        let port = PortOptions {
            spec: PortSpec::Mem,
            switch: Some((switch, side)),
        };
        self.options.mesh.wires.push((number, port));
        self
    }

    /// A row of the forwarding table: `"10.0.2.0/24=1"` for a network at port 1,
    /// `"0.0.0.0/0=0,via=10.0.1.254"` for a network behind a gateway, which may also be a hardware
    /// address; or a [`Route`]. The longest prefix decides. An address without a route is refused
    /// with `HOST_UNREACHABLE`. Default: the NIC's own network is at port 0.
    pub fn route(mut self, route: impl TryInto<Route, Error: Into<SpecError>>) -> Self {
        if let Some(route) = self.read("route", route) {
            self.options.routes.push(route);
        }
        self
    }

    /// Network identifier (VNI, 24 bits) of port `udp`; frames of another network are dropped.
    /// Default: 0x524245.
    pub fn vni(mut self, vni: u32) -> Self {
        self.options.vni = vni;
        self
    }

    /// Whether transports `rdma` and `iwarp` compute the CRC of RoCEv2's packets, of MPA's units.
    /// Default: unless the ports of both ends share memory, or are sockets of the loopback.
    pub fn icrc(mut self, icrc: Icrc) -> Self {
        self.options.icrc = icrc;
        self
    }

    /// Secret of port `udp`: peers that prove it are learned from their frames. Default: only the
    /// peers that the port names.
    pub fn udp_secret(mut self, secret: impl Into<Option<u64>>) -> Self {
        self.options.udp_secret = secret.into();
        self
    }

    /// Address for the kernel's end of a TAP device: `"10.0.0.2/24"` or a [`Cidr`]. Default: as it
    /// is.
    pub fn tap_host(mut self, host: impl TryInto<Cidr, Error: Into<SpecError>>) -> Self {
        if let Some(host) = self.read("tap_host", host) {
            self.options.tap_host = Some(host);
        }
        self
    }

    /// Writes every frame of the port to this file (pcapng); those of another port, by its number,
    /// to `FILE.1` and so on. Default: no file.
    pub fn pcap(mut self, file: impl Into<PathBuf>) -> Self {
        self.options.pcap = Some(file.into());
        self
    }

    /// Writes a trace of all signals (VCD) of NIC `rtl` to this file, with the NIC's address in its
    /// name: `t-10.77.0.1.vcd` for `t.vcd`. Default: the value of `RINGBELL_VCD`, else no file.
    pub fn vcd(mut self, file: impl Into<PathBuf>) -> Self {
        self.options.vcd = Some(file.into());
        self
    }

    /// Faults between TCP and the port. Default: none.
    pub fn faults(mut self, faults: Faults) -> Self {
        self.options.faults = faults;
        self
    }

    /// Bytes of a TCP or RDMA connection's receive buffer, and as many to send. Default: 256 KiB.
    pub fn tcp_buffer(mut self, bytes: usize) -> Self {
        self.options.tcp_buffer = bytes;
        self
    }

    /// Shortest time after which TCP sends a segment again. Default: 200 ms.
    pub fn tcp_rto_min(mut self, shortest: Duration) -> Self {
        self.options.tcp_rto_min = shortest;
        self
    }

    /// How often TCP probes idle links of communicators, so that the end of a rank is noticed;
    /// `None` is never. Default: every 500 ms. See
    /// [`TcpConfig::watch`](ringbell_nic_core::transport::tcp::TcpConfig::watch).
    pub fn tcp_watch(mut self, every: impl Into<Option<Duration>>) -> Self {
        self.options.tcp_watch = every.into();
        self
    }

    /// How long a peer of transport `rdma` or `udp` may acknowledge nothing before it counts as
    /// gone: its connections are reset then. Longer for programs that a debugger stops. Default: 5
    /// s.
    pub fn peer_timeout(mut self, longest: Duration) -> Self {
        self.options.peer_timeout = longest;
        self
    }

    /// What decides on window and rate of a connection of transport `rdma`. Default:
    /// [`Congestion::Window`].
    pub fn congestion(mut self, control: Congestion) -> Self {
        self.options.congestion = control;
        self
    }

    /// UDP source ports over which each connection of transport `rdma` spreads its packets, 1 to
    /// 64: a network that chooses ways by ports (ECMP) then sends them by several. More than one
    /// needs a port of frames, as a kernel's socket has one. Default: 1. See
    /// [`RdmaConfig::udp_ports`](ringbell_nic_core::transport::rdma::RdmaConfig::udp_ports).
    pub fn rdma_udp_ports(mut self, ports: u16) -> Self {
        self.options.rdma_udp_ports = ports;
        self
    }

    /// Seed of faults, and of the numbers by which transports recognise peers. Default: random
    /// numbers of the system, so that a NIC opened again does not use the numbers of the one
    /// before; give a seed only in tests.
    pub fn seed(mut self, seed: u64) -> Self {
        self.options.seed = Some(seed);
        self
    }
}
