//! [`OpenError`]: why a NIC could not be opened.

use std::path::PathBuf;

use ringbell_gtlb::PdError;
use ringbell_mesh::MeshError;
use ringbell_nic_core::network::NetworkError;
#[cfg(feature = "pcap")]
use ringbell_nic_core::port::capture::CaptureError;
use ringbell_nic_core::port::impair::ImpairError;
use ringbell_nic_core::port::mem::SwitchError;
use ringbell_nic_core::port::roce::RoceError;
use ringbell_nic_core::port::streams::StreamsError;
#[cfg(feature = "tap")]
use ringbell_nic_core::port::tap::TapError;
use ringbell_nic_core::port::udp::UdpError;
use ringbell_nic_core::transport::iwarp::IwarpError;
use ringbell_nic_core::transport::rdma::RdmaConfigError;
use ringbell_nic_core::transport::tcp::TcpConfigError;
use ringbell_nic_core::transport::udp::UdpConfigError;
use ringbell_nic_core::NicError;
use ringbell_routes::named::{NamedError, TablesError};

use crate::debug::DebugLevelError;
use crate::gpu_choice::GpuOpenError;
use crate::spec::{PortSpec, SpecError, TransportSpec};

/// Why a NIC could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The system starts no thread.
    #[error("cannot start a thread that follows the file of a mesh's tables; raise `ulimit -u`")]
    Thread {
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The value of a setting cannot be read.
    #[error("setting {setting}: {why}")]
    Setting {
        /// The setting of [`NicBuilder`](crate::NicBuilder), or an environment variable.
        setting: &'static str,
        /// The wrong value, and the valid ones.
        why: SpecError,
    },
    /// The in-memory switch of a job's launcher.
    #[error("cannot attach to the launcher's switch at {path}: {why}")]
    JobSwitch {
        /// The value of RINGBELL_SWITCH.
        path: PathBuf,
        /// The cause.
        why: String,
    },
    /// The log variable is invalid.
    #[error(transparent)]
    Debug(#[from] DebugLevelError),
    /// The GPU failed.
    #[error("cannot open the GPU")]
    Gpu(#[from] GpuOpenError),
    /// The NIC failed.
    #[error("cannot open the NIC")]
    Nic(#[from] NicError),
    /// The protection domain failed.
    #[error("cannot make the protection domain")]
    Pd(#[from] PdError),
    /// TCP's settings are invalid.
    #[error("cannot start TCP")]
    Tcp(#[from] TcpConfigError),
    /// RDMA's settings are invalid.
    #[error("cannot start RDMA")]
    Rdma(#[from] RdmaConfigError),
    /// The settings of transport `udp` are invalid.
    #[error("cannot start transport udp")]
    UdpTransport(#[from] UdpConfigError),
    /// The settings of transport `iwarp` are invalid, or a port is none of streams.
    #[error("cannot start transport iwarp")]
    Iwarp(#[from] IwarpError),
    /// The port of streams failed.
    #[error("cannot open port roce for transport iwarp")]
    Streams(#[from] StreamsError),
    /// Faults or a capture on a port of streams.
    #[error("{what} acts on packets, and those of transport iwarp are the kernel's: use tc-netem, or tcpdump -w FILE tcp port NUMBER")]
    KernelPackets {
        /// The option.
        what: &'static str,
    },
    /// The in-memory switch refused.
    #[error("cannot attach to the in-memory switch")]
    Switch(#[from] SwitchError),
    /// `tcp`, `rdma`, `udp` or `iwarp` was selected, but there is no port to carry it.
    #[error("transport {transport} needs a port; open the NIC with port mem, udp or tap:NAME, for iwarp with port roce")]
    NoPort {
        /// As selected.
        transport: TransportSpec,
    },
    /// `tcp` was selected, and all ports carry datagrams.
    #[error("transport tcp needs a port that carries frames, and port roce carries datagrams; open the NIC with transport rdma, udp or auto, or with port udp, tap:NAME or mem")]
    NoFrames,
    /// More ports were added, but there is no first one.
    #[error("ports were added, but port 0 is none; give it first")]
    NoFirstPort,
    /// Addresses, ports or routes make no network.
    #[error("cannot make the network")]
    Network(#[from] NetworkError),
    /// Port `mem` was selected without its switch.
    #[error("port mem needs a switch; make a MemSwitch and give it by `switch`")]
    NoSwitch,
    /// The network of port `mesh` cannot be read.
    #[error("cannot read the network of port mesh")]
    Topology(#[from] NamedError),
    /// The tables of port `mesh` cannot be read.
    #[error("cannot read the tables of port mesh")]
    Tables(#[from] TablesError),
    /// Port `mesh` failed.
    #[error("cannot open port mesh")]
    Mesh(#[from] MeshError),
    /// A port that cannot be a wire.
    #[error(
        "{port} is no wire of port mesh; give mem (by `wire_switch`), udp:BIND,PEER or tap:NAME"
    )]
    NoWire {
        /// As given.
        port: PortSpec,
    },
    /// The UDP socket failed.
    #[error("cannot open the UDP port")]
    Udp(#[from] UdpError),
    /// The UDP socket of a port of datagrams failed.
    #[error("cannot open port roce")]
    Roce(#[from] RoceError),
    /// The TAP device failed.
    #[cfg(feature = "tap")]
    #[error("cannot open the TAP device")]
    Tap(#[from] TapError),
    /// The crate was built without what the options ask for.
    #[error("{what} needs the feature `{feature}` of the crate `ringbell`; build with it")]
    NotBuilt {
        /// The option.
        what: &'static str,
        /// The feature.
        feature: &'static str,
    },
    /// The faults are invalid.
    #[error("cannot impair the port")]
    Faults(#[from] ImpairError),
    /// The capture's file cannot be written.
    #[error("cannot write the capture {path}; check the path and free space")]
    CaptureFile {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// The trace of simulated hardware cannot be written.
    #[error("cannot write the trace {path}; check the path and free space")]
    TraceFile {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// The capture's header cannot be written.
    #[cfg(feature = "pcap")]
    #[error("cannot start the capture")]
    Capture(#[from] CaptureError),
    /// The system gave no seed.
    #[error("the system gave no random numbers")]
    Random(#[source] rustix::io::Errno),
}
