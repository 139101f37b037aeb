//! The software NIC as a [`Backend`]: `ringbell-nic-core` with the transports and the port of the
//! settings.
#![allow(unsafe_code)] // Forwards a registration of memory that lives elsewhere.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use ringbell_cuda_kernels::Gpu;
use ringbell_gtlb::{
    Access, DeregisterError, MapError, MemoryRegion, PageTable, PdError, RegisterError, UnmapError,
};
use ringbell_nic_abi::{EngineId, Event, GpuVa, Lkey, PdId, QueueId, SessionId};
use ringbell_nic_core::card::{CardCounts, MakeCard};
use ringbell_nic_core::collective::{
    CancelError, CommError, CommInfo, CommStatus, CommunicatorConfig, ProgramError,
};
use ringbell_nic_core::engine::{Direction, EngineInfo, EngineUseError, Place, Return};
use ringbell_nic_core::network::{Network, NetworkError, PortInfo, Protocol};
use ringbell_nic_core::port::{MacAddr, Port};
use ringbell_nic_core::progress::ProgressStats;
use ringbell_nic_core::transport::iwarp::{IwarpConfig, IwarpTransport};
use ringbell_nic_core::transport::rdma::{RdmaConfig, RdmaTransport};
use ringbell_nic_core::transport::tcp::{TcpConfig, TcpTransport};
use ringbell_nic_core::transport::udp::{UdpConfig, UdpTransport};
use ringbell_nic_core::transport::Transport;
use ringbell_nic_core::types::CommId;
use ringbell_nic_core::{
    BarError, Counters, EngineResult, HostBuffer, HostQueue, HostRegion, Inbox, MemoryError, Nic,
    NicBuffer, NicError, NotDelivered, PointerInfo, QueueConfig, SessionInfo, Window,
};
use ringbell_onc_engines::program::Program;
use ringbell_onc_engines::stream::StreamEngine;

use super::control_path::{control_path, Backend, EngineKind, EngineMaker};
use crate::open_error::OpenError;
use crate::options::NicOptions;
use crate::port;
use crate::seed::seed;
use crate::spec::{PortSpec, TransportSpec};

/// Opens a software NIC over the GPU's memory.
pub(crate) fn open(options: &NicOptions, gpu: &Gpu) -> Result<Arc<dyn Backend>, OpenError> {
    open_with(options, gpu, None)
}

/// The same, with hardware as its data path where some is given.
pub(super) fn open_with(
    options: &NicOptions,
    gpu: &Gpu,
    card: Option<MakeCard>,
) -> Result<Arc<dyn Backend>, OpenError> {
    let ip = options.ip;
    let mut config = options.limits.clone();
    config.ip = ip.ip;
    config.progress = options.progress;
    config.engine_thread = options.engine_thread;
    config.mac = station(ip.ip);
    let mut builder = Nic::builder(config, gpu.memory()).mmu(options.mmu.clone());
    if let Some(card) = card {
        builder = builder.card(card);
    }
    // The ranks of a mesh are to use its wires, on one host too.
    let has_mesh = matches!(options.port, PortSpec::Mesh { .. });
    let named = options.transport == TransportSpec::Local;
    if !options.transport.needs_port() && (named || !has_mesh) {
        let mut local = options.local.clone();
        // `local` by name reaches other network namespaces; `auto` does not.
        local.across_networks |= named;
        builder = builder.local(local);
    }
    if options.transport != TransportSpec::Local {
        let ports = port::open(options, MacAddr(station(ip.ip)))?;
        if !ports.is_empty() {
            let mut net = Network::new(ip.ip, ip.prefix, ports, &options.routes)?;
            for (nic, address) in named_hosts(options) {
                net.know_host(nic, address);
            }
            if options.transport == TransportSpec::Udp {
                net.carry_by_datagrams(Protocol::Udp);
            }
            for transport in over_ports(options, &net)? {
                builder = builder.transport(transport);
            }
            builder = builder.network(net);
        } else if options.transport.needs_port() {
            let transport = options.transport;
            return Err(OpenError::NoPort { transport });
        } else if let Some(&route) = options.routes.first() {
            return Err(NetworkError::NoSuchPort { route, ports: 0 }.into());
        }
    }
    Ok(Arc::new(Soft(builder.build()?)))
}

/// NICs whose hosts the ports name.
fn named_hosts(options: &NicOptions) -> impl Iterator<Item = (Ipv4Addr, SocketAddr)> + '_ {
    let more = options.more_ports.iter().map(|p| &p.spec);
    let ports = std::iter::once(&options.port).chain(more);
    ports.flat_map(|port| match port {
        PortSpec::Roce { peers, .. } => peers.clone(),
        _ => Vec::new(),
    })
}

/// The transports that send packets, the preferred one first: that of port 0, by `auto`. Of `iwarp`
/// and `rdma` each peer's host decides.
fn over_ports(options: &NicOptions, net: &Network) -> Result<Vec<Box<dyn Transport>>, OpenError> {
    let frames = |p: &dyn Port| p.capabilities().medium.has_frames();
    let (any, all) = (
        net.ports().iter().any(|p| frames(&**p)),
        net.ports().iter().all(|p| frames(&**p)),
    );
    Ok(match options.transport {
        TransportSpec::Rdma => vec![rdma(options, net)?],
        TransportSpec::Udp => vec![udp(options, net)?],
        TransportSpec::Iwarp => vec![iwarp(options, net)?],
        TransportSpec::Tcp if !any => return Err(OpenError::NoFrames),
        TransportSpec::Tcp => vec![tcp(options, net)?],
        _ if matches!(options.port, PortSpec::Mesh { .. }) => vec![rdma(options, net)?],
        _ if all => vec![tcp(options, net)?],
        _ if !any && net.ports().iter().all(|p| p.listener().is_some()) => {
            vec![iwarp(options, net)?, rdma(options, net)?]
        }
        _ if !any => vec![rdma(options, net)?],
        _ if frames(&*net.ports()[0]) => vec![tcp(options, net)?, rdma(options, net)?],
        _ => vec![rdma(options, net)?, tcp(options, net)?],
    })
}

fn rdma(options: &NicOptions, net: &Network) -> Result<Box<dyn Transport>, OpenError> {
    let bytes = options.tcp_buffer;
    let config = RdmaConfig {
        rx_buffer: bytes,
        tx_buffer: bytes,
        window: bytes,
        watch: options.tcp_watch,
        give_up: options.peer_timeout,
        congestion: options.congestion,
        udp_ports: options.rdma_udp_ports,
        connections: options.limits.max_sessions,
        icrc: options.icrc,
        seed: seed(options)?,
        ..RdmaConfig::default()
    };
    Ok(Box::new(RdmaTransport::new(net, config)?))
}

fn udp(options: &NicOptions, net: &Network) -> Result<Box<dyn Transport>, OpenError> {
    let config = UdpConfig {
        rx_buffer: options.tcp_buffer,
        watch: options.tcp_watch,
        give_up: options.peer_timeout,
        connections: options.limits.max_sessions,
        seed: seed(options)?,
        ..UdpConfig::default()
    };
    Ok(Box::new(UdpTransport::new(net, config)?))
}

fn iwarp(options: &NicOptions, net: &Network) -> Result<Box<dyn Transport>, OpenError> {
    let config = IwarpConfig {
        rx_buffer: options.tcp_buffer,
        give_up: options.peer_timeout,
        connections: options.limits.max_sessions,
        crc: options.icrc,
        seed: seed(options)?,
    };
    Ok(Box::new(IwarpTransport::new(net, config)?))
}

fn tcp(options: &NicOptions, net: &Network) -> Result<Box<dyn Transport>, OpenError> {
    let config = TcpConfig {
        rx_buffer: options.tcp_buffer,
        tx_buffer: options.tcp_buffer,
        rto_min: options.tcp_rto_min,
        watch: options.tcp_watch,
        connections: options.limits.max_sessions,
        seed: seed(options)?,
        ..TcpConfig::default()
    };
    Ok(Box::new(TcpTransport::new(net, config)?))
}

/// A locally administered MAC address, unique as long as the IP addresses are.
fn station(ip: Ipv4Addr) -> [u8; 6] {
    let [a, b, c, d] = ip.octets();
    [0x02, 0x52, a, b, c, d]
}

/// The software NIC.
#[derive(Debug)]
struct Soft(Nic);

/// One method after the other, by the software NIC's own.
macro_rules! forward {
    ([] $($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),*) $(-> $out:ty)?;)*) => {
        impl Backend for Soft {
            $(fn $name(&self, $($arg: $ty),*) $(-> $out)? {
                self.0.$name($($arg),*)
            })*

            unsafe fn register_host(
                &self,
                pd: PdId,
                ptr: NonNull<u8>,
                bytes: usize,
                access: Access,
            ) -> Result<HostRegion, MemoryError> {
                // SAFETY: the caller's contract.
                unsafe { self.0.register_host(pd, ptr, bytes, access) }
            }
        }
    };
}
control_path!(forward);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_new_at_each_opening_unless_a_seed_is_given() {
        let drawn = |options: &NicOptions| seed(options).expect("the system's random numbers");
        let random = NicOptions::default();
        assert_ne!(drawn(&random), drawn(&random));
        let fixed = NicOptions {
            seed: Some(7),
            ..NicOptions::default()
        };
        assert_eq!(drawn(&fixed), drawn(&fixed));
        let ip = "10.0.0.9/24".parse().expect("an address");
        let neighbour = NicOptions {
            ip,
            ..fixed.clone()
        };
        assert_ne!(drawn(&fixed), drawn(&neighbour));
    }
}
