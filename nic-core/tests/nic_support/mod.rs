//! A NIC with memory behind it and a queue in front, driven as a kernel would: by descriptors.
#![allow(clippy::disallowed_methods)] // Tests at the edge: deadlines, so that a hang fails.
#![allow(dead_code, unreachable_pub)] // Each test uses a part of this module.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use std::time::Duration;

use ringbell_gtlb::testing::{GpuView, HostMemory, Layout};
use ringbell_gtlb::Access;
use ringbell_nic_abi::{Completion, Descriptor, Flags, GpuVa, Opcode, PdId, SessionId, Status};
use ringbell_nic_core::{
    HostQueue, LocalConfig, Nic, NicBuilder, NicConfig, ProgressMode, QueueConfig,
};

/// Where the GPU memory of every test NIC begins.
pub const BASE: GpuVa = GpuVa(0x7_0000_0000);

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
        let path = std::env::temp_dir().join(format!("rb-test-{}-{n}", std::process::id()));
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
}

impl Host {
    /// A NIC over the `local` transport.
    pub fn new(setup: &Setup) -> Host {
        Host::with(setup, |nic| nic.local(setup.local.clone()))
    }

    /// A NIC over what `transports` adds.
    pub fn with(setup: &Setup, transports: impl FnOnce(NicBuilder) -> NicBuilder) -> Host {
        let memory = Arc::new(HostMemory::new(setup.memory_bytes).expect("memory"));
        let nic = transports(Nic::builder(setup.nic.clone(), memory.clone()))
            .build()
            .expect("NIC");
        let pd = nic.alloc_pd().expect("domain");
        let host = Host {
            queue: nic.create_queue(pd, setup.queue).expect("queue"),
            memory,
            layout: setup.layout,
            nic,
            pd,
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

    /// Posts a descriptor.
    pub fn post(&self, d: &Descriptor) -> u32 {
        self.queue.try_post(d).expect("room in the queue")
    }
}

/// Steps every NIC until all tickets have completed.
pub fn settle(hosts: &[&Host], tickets: &[(usize, u32)]) -> Vec<Completion> {
    let start = std::time::Instant::now();
    let mut out = vec![None; tickets.len()];
    while out.iter().any(Option::is_none) {
        for h in hosts {
            h.nic.step();
        }
        for (slot, (h, t)) in out.iter_mut().zip(tickets) {
            if slot.is_none() {
                *slot = hosts[*h].queue.poll(*t);
            }
        }
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "hung: {out:?}\n{}",
            hosts.iter().map(|h| h.nic.describe()).collect::<String>()
        );
    }
    out.into_iter().flatten().collect()
}

/// Steps every NIC until nothing has moved for a while.
pub fn quiesce(hosts: &[&Host]) {
    let mut idle = 0;
    while idle < 2000 {
        let moved = hosts.iter().fold(false, |m, h| h.nic.step() | m);
        idle = if moved { 0 } else { idle + 1 };
    }
}

/// Posts one descriptor and waits for it.
pub fn call(hosts: &[&Host], at: usize, d: &Descriptor) -> Completion {
    let t = hosts[at].post(d);
    settle(hosts, &[(at, t)])[0]
}

fn op(opcode: Opcode, session: SessionId) -> Descriptor {
    Descriptor {
        session,
        ..Descriptor::new(opcode)
    }
}

/// `SOCKET`.
pub fn socket() -> Descriptor {
    Descriptor::new(Opcode::Socket)
}
/// `LISTEN`.
pub fn listen(s: SessionId, port: u16) -> Descriptor {
    Descriptor {
        imm: port.into(),
        ..op(Opcode::Listen, s)
    }
}
/// `ACCEPT`.
pub fn accept(s: SessionId) -> Descriptor {
    op(Opcode::Accept, s)
}
/// `CONNECT`.
pub fn connect(s: SessionId, ip: Ipv4Addr, port: u16) -> Descriptor {
    Descriptor {
        operand: u32::from(ip).into(),
        imm: port.into(),
        ..op(Opcode::Connect, s)
    }
}
/// `SEND` from memory.
pub fn send(s: SessionId, offset: u64, len: u32) -> Descriptor {
    Descriptor {
        local_va: GpuVa(BASE.0 + offset),
        len,
        ..op(Opcode::Send, s)
    }
}
/// `SEND` of bytes inside the descriptor.
pub fn send_inline(s: SessionId, bytes: &[u8]) -> Descriptor {
    let mut d = op(Opcode::Send, s);
    d.flags = Flags::INLINE;
    d.inline_len = bytes.len() as u8;
    d.inline[..bytes.len()].copy_from_slice(bytes);
    d
}
/// `RECV` of exactly `len`.
pub fn recv(s: SessionId, offset: u64, len: u32) -> Descriptor {
    Descriptor {
        local_va: GpuVa(BASE.0 + offset),
        len,
        ..op(Opcode::Recv, s)
    }
}
/// `RECV` of what is there.
pub fn recv_some(s: SessionId, offset: u64, len: u32) -> Descriptor {
    Descriptor {
        flags: Flags::SOME,
        ..recv(s, offset, len)
    }
}
/// `SHUTDOWN`.
pub fn shutdown(s: SessionId) -> Descriptor {
    op(Opcode::Shutdown, s)
}
/// `CLOSE`.
pub fn close(s: SessionId) -> Descriptor {
    op(Opcode::Close, s)
}
/// `ABORT`.
pub fn abort(s: SessionId) -> Descriptor {
    op(Opcode::Abort, s)
}
/// With a time-out.
pub fn within(d: Descriptor, timeout_us: u32) -> Descriptor {
    Descriptor { timeout_us, ..d }
}

/// A session id from a completion.
pub fn session_of(c: Completion) -> SessionId {
    assert_eq!(c.status, Status::Ok, "{c:?}");
    SessionId(c.detail as u32)
}

/// Listens on `port` at host `b`.
pub fn listener(hosts: &[&Host], b: usize, port: u16) -> SessionId {
    let l = session_of(call(hosts, b, &socket()));
    assert_eq!(call(hosts, b, &listen(l, port)).status, Status::Ok);
    l
}

/// A connection from `a` to `b`: (session at a, session at b).
pub fn connected(hosts: &[&Host], a: usize, b: usize, port: u16) -> (SessionId, SessionId) {
    let l = listener(hosts, b, port);
    let s = session_of(call(hosts, a, &socket()));
    let ip = hosts[b].nic.config().ip;
    let ta = hosts[a].post(&connect(s, ip, port));
    let tb = hosts[b].post(&accept(l));
    let done = settle(hosts, &[(a, ta), (b, tb)]);
    assert_eq!(done[0].status, Status::Ok, "{done:?}");
    let peer = session_of(done[1]);
    assert_eq!(call(hosts, b, &close(l)).status, Status::Ok);
    (s, peer)
}
