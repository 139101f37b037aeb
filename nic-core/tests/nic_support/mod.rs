//! A NIC with memory behind it and a queue in front, driven as a kernel would: by descriptors.
#![allow(clippy::disallowed_methods)] // Tests at the edge: deadlines, so that a hang fails.
#![allow(dead_code, unreachable_pub)] // Each test uses a part of this module.

pub mod driven;

use std::any::Any;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use ringbell_gtlb::testing::{DelayedMemory, GpuView, HostMemory, Layout};
use ringbell_gtlb::{Access, DmaMemory};
use ringbell_nic_abi::{Descriptor, GpuVa, PdId};
use ringbell_nic_core::network::Network;
use ringbell_nic_core::port::mem::MemSwitch;
use ringbell_nic_core::port::roce::{RoceConfig, RocePort};
use ringbell_nic_core::port::streams::StreamPort;
use ringbell_nic_core::port::{Checksums, Port};
use ringbell_nic_core::transport::iwarp::{IwarpConfig, IwarpTransport};
use ringbell_nic_core::transport::rdma::{RdmaConfig, RdmaTransport};
use ringbell_nic_core::transport::tcp::{TcpConfig, TcpTransport};
use ringbell_nic_core::transport::udp::{UdpConfig, UdpTransport};
use ringbell_nic_core::transport::Icrc;
use ringbell_nic_core::{
    HostQueue, LocalConfig, Nic, NicBuilder, NicConfig, ProgressMode, QueueConfig,
};

pub use driven::*;

/// A directory of this test process alone; removed with the last handle.
#[derive(Debug, Clone)]
pub struct TempDir(Arc<Inner>);

#[derive(Debug)]
struct Inner(PathBuf);

impl Drop for Inner {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl TempDir {
    /// A fresh one.
    pub fn new() -> TempDir {
        static N: AtomicU32 = AtomicU32::new(0);
        let n = N.fetch_add(1, Ordering::Relaxed);
        // A test program may hold this file more than once, each with a counter of its own.
        let copy = (&raw const N).addr() & 0xff_ffff;
        let name = format!("rb-test-{}-{n}-{copy:x}", std::process::id());
        let path = std::env::temp_dir().join(name);
        TempDir(Arc::new(Inner(path)))
    }

    /// Its path.
    pub fn path(&self) -> PathBuf {
        self.0 .0.clone()
    }
}

/// What tests vary.
#[derive(Debug, Clone)]
pub struct Setup {
    pub memory_bytes: u64,
    pub layout: Layout,
    pub nic: NicConfig,
    pub local: LocalConfig,
    pub queue: QueueConfig,
    pub register: bool,
    /// Rights of the region.
    pub access: Access,
    /// Memory that no CPU maps, whose operations end late and out of order, by this seed.
    pub slow: Option<u64>,
}

impl Setup {
    /// NIC number `n` of a test.
    pub fn new(dir: &TempDir, n: u8) -> Setup {
        Setup {
            memory_bytes: 8 << 20,
            layout: Layout::Mixed(n.into()),
            nic: NicConfig {
                ip: Ipv4Addr::new(10, 0, 0, n),
                progress: ProgressMode::Manual,
                ..NicConfig::default()
            },
            local: LocalConfig {
                directory: Some(dir.path()),
                ..LocalConfig::default()
            },
            queue: QueueConfig::default(),
            register: true,
            access: Access::LOCAL,
            slow: None,
        }
    }
}

/// A NIC, its memory, and one queue.
pub struct Host {
    pub memory: Arc<HostMemory>,
    pub layout: Layout,
    pub nic: Nic,
    pub queue: HostQueue,
    pub pd: PdId,
    /// What the way to its peer needs.
    pub keep: Option<Box<dyn Any + Send + Sync>>,
}

/// Adds TCP over a port.
pub fn with_tcp(
    setup: &Setup,
    nic: NicBuilder,
    port: Box<dyn Port>,
    config: TcpConfig,
) -> NicBuilder {
    let net = Network::new(setup.nic.ip, 24, vec![port], &[]).expect("a host's address");
    let tcp = TcpTransport::new(&net, config).expect("transport");
    nic.transport(Box::new(tcp)).network(net)
}

/// Adds RDMA over a port.
pub fn with_rdma(
    setup: &Setup,
    nic: NicBuilder,
    port: Box<dyn Port>,
    config: RdmaConfig,
) -> NicBuilder {
    let net = Network::new(setup.nic.ip, 24, vec![port], &[]).expect("a host's address");
    let rdma = RdmaTransport::new(&net, config).expect("transport");
    nic.transport(Box::new(rdma)).network(net)
}

/// Two NICs that reach each other by RoCEv2 over plain UDP sockets of this host.
pub fn over_sockets(setups: [Setup; 2]) -> [Host; 2] {
    let bind = (Ipv4Addr::LOCALHOST, 0).into();
    let open = |_: &Setup| RocePort::open(&RoceConfig { bind, mtu: None }).expect("a free port");
    let mut ports = setups.each_ref().map(open).map(Some);
    let at = ports.each_ref().map(|p| p.as_ref().map(RocePort::local));
    let ips = setups.each_ref().map(|s| s.nic.ip);
    let mut n = 0;
    setups.map(|setup| {
        let port: Box<dyn Port> = Box::new(ports[n].take().expect("one for each"));
        let mut net = Network::new(setup.nic.ip, 24, vec![port], &[]).expect("a host's address");
        net.know_host(ips[1 - n], at[1 - n].expect("its address"));
        n += 1;
        let config = RdmaConfig {
            seed: n as u64,
            ..RdmaConfig::default()
        };
        let rdma = RdmaTransport::new(&net, config).expect("a valid configuration");
        Host::with(&setup, |nic| nic.transport(Box::new(rdma)).network(net))
    })
}

/// UDP over a port of frames.
pub fn with_udp(
    setup: &Setup,
    nic: NicBuilder,
    port: Box<dyn Port>,
    config: UdpConfig,
) -> NicBuilder {
    let net = Network::new(setup.nic.ip, 24, vec![port], &[]).expect("a host's address");
    let udp = UdpTransport::new(&net, config).expect("transport");
    nic.transport(Box::new(udp)).network(net)
}

/// Ports of streams at an address of this host, and what each NIC knows of the others.
pub struct IwarpPorts {
    ports: Vec<StreamPort>,
    known: Vec<(Ipv4Addr, SocketAddr)>,
}

impl IwarpPorts {
    /// One for each NIC.
    pub fn open(ip: IpAddr, nics: &[Ipv4Addr]) -> IwarpPorts {
        let open = |_: &Ipv4Addr| StreamPort::open((ip, 0).into()).expect("a free port");
        let ports: Vec<_> = nics.iter().map(open).collect();
        let at = ports.iter().map(StreamPort::local);
        let known = nics.iter().copied().zip(at).collect();
        IwarpPorts { ports, known }
    }

    /// Adds iWARP over the next port.
    pub fn next(&mut self, setup: &Setup, nic: NicBuilder, crc: bool) -> NicBuilder {
        let net = Network::new(setup.nic.ip, 24, vec![Box::new(self.ports.remove(0))], &[]);
        let mut net = net.expect("a host's address");
        for (nic, address) in &self.known {
            net.know_host(*nic, *address);
        }
        let config = IwarpConfig {
            crc: if crc { Icrc::Always } else { Icrc::Never },
            ..IwarpConfig::default()
        };
        let iwarp = IwarpTransport::new(&net, config).expect("a valid configuration");
        nic.transport(Box::new(iwarp)).network(net)
    }
}

/// Two NICs that reach each other by iWARP at an address of this host.
pub fn iwarp_hosts(ip: IpAddr, crc: bool, setups: [Setup; 2]) -> [Host; 2] {
    let mut ports = IwarpPorts::open(ip, &setups.each_ref().map(|s| s.nic.ip));
    setups.map(|setup| Host::with(&setup, |nic| ports.next(&setup, nic, crc)))
}

impl Host {
    /// A NIC over the `local` transport.
    pub fn new(setup: &Setup) -> Host {
        Host::with(setup, |nic| nic.local(setup.local.clone()))
    }

    /// A NIC with TCP over this port.
    pub fn over(setup: &Setup, port: Box<dyn Port>, config: TcpConfig) -> Host {
        Host::with(setup, |nic| with_tcp(setup, nic, port, config))
    }

    /// A NIC over what `transports` adds.
    pub fn with(setup: &Setup, transports: impl FnOnce(NicBuilder) -> NicBuilder) -> Host {
        let memory = Arc::new(HostMemory::new(setup.memory_bytes).expect("memory"));
        let reached: Arc<dyn DmaMemory> = match setup.slow {
            None => memory.clone(),
            Some(seed) => Arc::new(DelayedMemory::over(memory.clone(), seed)),
        };
        let nic = transports(Nic::builder(setup.nic.clone(), reached))
            .build()
            .expect("NIC");
        let pd = nic.alloc_pd().expect("domain");
        let host = Host {
            queue: nic.create_queue(pd, setup.queue).expect("queue"),
            memory,
            layout: setup.layout,
            nic,
            pd,
            keep: None,
        };
        host.nic.map(host.view().table()).expect("map");
        if setup.register {
            host.nic
                .register(pd, BASE, setup.memory_bytes, setup.access)
                .expect("register");
        }
        host
    }

    /// The memory as a kernel sees it.
    pub fn view(&self) -> GpuView<'_> {
        GpuView::new(&self.memory, BASE, self.layout)
    }

    /// Writes memory at an offset.
    pub fn poke(&self, offset: u64, bytes: &[u8]) {
        self.view().write(GpuVa(BASE.0 + offset), bytes);
    }

    /// Reads memory at an offset.
    pub fn peek(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut v = vec![0; len];
        self.view().read(GpuVa(BASE.0 + offset), &mut v);
        v
    }

    /// The remote key of the memory.
    pub fn rkey(&self) -> ringbell_nic_abi::Rkey {
        let info = self.nic.pointer_info(self.pd, BASE);
        info.expect("registered").region.rkey
    }

    /// Posts a descriptor.
    pub fn post(&self, d: &Descriptor) -> u32 {
        self.queue.try_post(d).expect("room in the queue")
    }
}

/// The transports that have one-sided operations.
#[derive(Debug, Clone, Copy)]
pub enum Via {
    Local,
    Rdma,
    Iwarp,
    /// `rdma`, between NICs that a function makes.
    Given(fn([Setup; 2]) -> [Host; 2]),
}

impl Via {
    /// Two NICs that reach each other.
    pub fn hosts(self, setups: [Setup; 2]) -> [Host; 2] {
        self.over(setups, 1500)
    }

    /// The same with another MTU of the ports that are ours.
    pub fn over(self, setups: [Setup; 2], mtu: usize) -> [Host; 2] {
        match self {
            Via::Local => return setups.map(|setup| Host::new(&setup)),
            Via::Iwarp => return iwarp_hosts(Ipv4Addr::LOCALHOST.into(), true, setups),
            Via::Given(hosts) => return hosts(setups),
            Via::Rdma => {}
        }
        let switch = MemSwitch::private(2, mtu, Checksums::Software).expect("numbers in range");
        let mut at = 0;
        setups.map(|setup| {
            let port = Box::new(switch.port(at).expect("free"));
            at += 1;
            let config = RdmaConfig {
                seed: at as u64,
                // One end spreads its packets.
                udp_ports: [1, 3][at - 1],
                ..RdmaConfig::default()
            };
            Host::with(&setup, |nic| with_rdma(&setup, nic, port, config))
        })
    }
}

/// Tests of all of them, from functions of a [`Via`].
#[allow(unused_macros)] // Not every user of this module has such tests.
macro_rules! over_each {
    ($($name:ident),+ $(,)?) => {
        mod local {
            $(#[test] fn $name() { super::$name(super::Via::Local); })+
        }
        mod rdma {
            $(#[test] fn $name() { super::$name(super::Via::Rdma); })+
        }
        mod iwarp {
            $(#[test] fn $name() { super::$name(super::Via::Iwarp); })+
        }
    };
}

impl Driven for Host {
    fn nic(&self) -> &Nic {
        &self.nic
    }

    fn queue(&self) -> &HostQueue {
        &self.queue
    }

    fn post(&self, d: &Descriptor) -> u32 {
        Host::post(self, d)
    }

    fn poke(&self, offset: u64, bytes: &[u8]) {
        Host::poke(self, offset, bytes);
    }

    fn peek(&self, offset: u64, len: usize) -> Vec<u8> {
        Host::peek(self, offset, len)
    }
}
