//! The values of a NIC's settings, with their defaults.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ringbell_cuda_kernels::EmulatedGpuConfig;
use ringbell_gtlb::MmuConfig;
use ringbell_mesh::Control;
use ringbell_nic_core::network::Route;
use ringbell_nic_core::port::impair::Faults;
use ringbell_nic_core::port::mem::MemSwitch;
use ringbell_nic_core::transport::rdma::{Congestion, RdmaConfig};
use ringbell_nic_core::transport::Icrc;
use ringbell_nic_core::{EngineThread, LocalConfig, NicConfig, ProgressMode, QueueConfig};

use crate::gpu_choice::GpuChoice;
use crate::nic_kind::NicKind;
use crate::spec::{Cidr, PortSpec, TransportSpec};

/// Environment variable with the file of traces of simulated hardware where the program names none.
pub const VCD_VARIABLE: &str = "RINGBELL_VCD";

/// One more port of a NIC.
#[derive(Debug, Clone)]
pub(crate) struct PortOptions {
    pub(crate) spec: PortSpec,
    /// Of [`PortSpec::Mem`]: the switch, and the number of its port.
    pub(crate) switch: Option<(Arc<MemSwitch>, usize)>,
}

/// A NIC's place in the network of [`PortSpec::Mesh`].
#[derive(Debug, Clone, Default)]
pub(crate) struct MeshOptions {
    /// The rank of its node.
    pub(crate) node: u32,
    /// Its wires, by the node's ports.
    pub(crate) wires: Vec<(u8, PortOptions)>,
    /// File of the network's tables; none computes them.
    pub(crate) tables: Option<PathBuf>,
    /// The file of the tables is followed: what is written there replaces them.
    pub(crate) is_followed: bool,
    /// How long no wire may lead to a node before it is given up.
    pub(crate) grace: Option<Duration>,
    /// Packets that an output takes from one queue in a row.
    pub(crate) poll: Option<u32>,
    /// The port's handle, once it is open.
    pub(crate) control: Arc<OnceLock<Control>>,
}

/// The values of a [`NicBuilder`](crate::NicBuilder).
#[derive(Debug, Clone)]
pub(crate) struct NicOptions {
    pub(crate) nic: Option<NicKind>,
    pub(crate) ip: Cidr,
    pub(crate) transport: TransportSpec,
    pub(crate) port: PortSpec,
    pub(crate) switch: Option<(Arc<MemSwitch>, usize)>,
    pub(crate) more_ports: Vec<PortOptions>,
    pub(crate) mesh: MeshOptions,
    pub(crate) routes: Vec<Route>,
    pub(crate) faults: Faults,
    pub(crate) vni: u32,
    pub(crate) udp_secret: Option<u64>,
    pub(crate) tap_host: Option<Cidr>,
    /// Address of this host for a port of datagrams that names none, with UDP port 0.
    pub(crate) host: Option<SocketAddr>,
    pub(crate) icrc: Icrc,
    pub(crate) pcap: Option<PathBuf>,
    /// Of simulated hardware.
    pub(crate) vcd: Option<PathBuf>,
    pub(crate) gpu_choice: GpuChoice,
    pub(crate) gpu: EmulatedGpuConfig,
    pub(crate) mmu: MmuConfig,
    pub(crate) progress: ProgressMode,
    pub(crate) engine_thread: EngineThread,
    pub(crate) queue: QueueConfig,
    pub(crate) local: LocalConfig,
    pub(crate) limits: NicConfig,
    pub(crate) tcp_buffer: usize,
    pub(crate) tcp_rto_min: Duration,
    pub(crate) tcp_watch: Option<Duration>,
    pub(crate) peer_timeout: Duration,
    pub(crate) congestion: Congestion,
    pub(crate) rdma_udp_ports: u16,
    pub(crate) seed: Option<u64>,
}

impl Default for NicOptions {
    fn default() -> NicOptions {
        NicOptions {
            nic: None,
            ip: Cidr {
                ip: Ipv4Addr::new(10, 77, 0, 1),
                prefix: 24,
            },
            transport: TransportSpec::Auto,
            port: PortSpec::None,
            switch: None,
            more_ports: Vec::new(),
            mesh: MeshOptions::default(),
            routes: Vec::new(),
            faults: Faults::default(),
            vni: 0x52_4245,
            udp_secret: None,
            tap_host: None,
            host: None,
            icrc: Icrc::Auto,
            pcap: None,
            vcd: std::env::var_os(VCD_VARIABLE).map(PathBuf::from),
            gpu_choice: GpuChoice::Auto,
            gpu: EmulatedGpuConfig::default(),
            mmu: MmuConfig::default(),
            progress: ProgressMode::Waiter,
            engine_thread: EngineThread::default(),
            queue: QueueConfig::default(),
            local: LocalConfig::default(),
            limits: NicConfig::default(),
            tcp_buffer: 256 << 10,
            tcp_rto_min: Duration::from_millis(200),
            tcp_watch: Some(Duration::from_millis(500)),
            peer_timeout: RdmaConfig::default().give_up,
            congestion: Congestion::default(),
            rdma_udp_ports: RdmaConfig::default().udp_ports,
            seed: None,
        }
    }
}
