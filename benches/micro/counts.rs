//! Instructions of the paths that small operations take, counted by callgrind.
//!
//! `cargo xtask counts` runs this program under valgrind, once for each path, and compares with the
//! counts of `counts.json`: a time on a shared machine says little about a few instructions more, a
//! count does. Only what runs inside [`counted`] is counted. All NICs are stepped by one thread, so
//! that nothing waits, and their time stands still, so that the counts repeat however busy the
//! machine is. Valgrind knows AVX2 but not AVX-512: data paths are
//! those of such a processor.
//!
//! `counts PATH` runs a path and prints by how much its instructions are to be divided, `counts`
//! all of them; `counts --list` names them.
#![allow(clippy::disallowed_methods)] // Deadlines at the edge.

mod ranks;

use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddr};

use ranks::nic::{
    connected, over_sockets, recv, remote, send, send_inline, signalled, with_tcp, Host, Setup,
    TempDir, BASE,
};
use ranks::World;
use ringbell_gtlb::Access;
use ringbell_nic_abi::{Algorithm, CollectiveKind, Descriptor, Flags, Opcode, SessionId, Status};
use ringbell_nic_core::port::mem::MemSwitch;
use ringbell_nic_core::port::udp::{UdpConfig, UdpPort};
use ringbell_nic_core::port::{Checksums, MacAddr};
use ringbell_nic_core::transport::tcp::TcpConfig;
use ringbell_nic_core::types::NicTime;
use ringbell_nic_core::{HostQueue, QueueConfig};
use ringbell_onc_engines::stream::hll::{HashKind, HllConfig, HllEngine};
use ringbell_onc_engines::stream::StreamEngine;

/// Rounds that are counted, after as many that are not.
const ROUNDS: u64 = 200;
/// The same of a path that takes a million instructions.
const FEW_ROUNDS: u64 = 10;
/// Queues of a NIC with several.
const QUEUES: u32 = 8;

/// Callgrind counts from here on, and no longer when this returns.
#[inline(never)]
fn counted(work: &mut dyn FnMut()) {
    work();
    // Not a tail call: that would leave before it begins.
    black_box(());
}

/// Runs `work` uncounted, so that everything is grown and cached, then counted.
fn rounds(work: impl FnMut()) -> u64 {
    repeated(ROUNDS, work)
}

fn repeated(n: u64, mut work: impl FnMut()) -> u64 {
    (0..n).for_each(|_| work());
    counted(&mut || (0..n).for_each(|_| work()));
    n
}

/// What stands beside the transport that is counted.
#[derive(Clone, Copy, PartialEq)]
enum Beside {
    Nothing,
    /// More queues of each NIC.
    Queues,
    /// `tcp` over an in-memory switch.
    Tcp,
}

/// The time of the NICs stands still from here on: no reading of the clock starts anything.
fn stop_time<'a>(hosts: impl IntoIterator<Item = &'a Host>) {
    for h in hosts {
        h.nic.step_at(NicTime(1 << 40));
    }
}

/// Some time passes: over a network where none does, everything is late at once.
fn pass_time(hosts: &[Host], now: &mut u64) {
    *now += 10_000;
    for h in hosts {
        h.nic.step_at(NicTime(*now));
    }
}

/// Two NICs over `local` that are connected.
struct Pair {
    a: Host,
    b: Host,
    s: SessionId,
    r: SessionId,
    _more: Vec<HostQueue>,
    _dir: TempDir,
}

fn pair(beside: Beside) -> Pair {
    let dir = TempDir::new();
    let switch = MemSwitch::private(2, 1500, Checksums::Omitted).expect("switch");
    let host = |n: u8| {
        let setup = Setup::new(&dir, n);
        Host::with(&setup, |nic| {
            let nic = nic.local(setup.local.clone());
            if beside != Beside::Tcp {
                return nic;
            }
            let port = switch.port(usize::from(n) - 1).expect("port");
            with_tcp(&setup, nic, Box::new(port), tcp())
        })
    };
    let (a, b) = (host(1), host(2));
    let more = match beside {
        Beside::Queues => QUEUES - 1,
        _ => 0,
    };
    let queues = |h: &Host| {
        let queue = || h.nic.create_queue(h.pd, QueueConfig::default());
        (0..more)
            .map(|_| queue().expect("queue"))
            .collect::<Vec<_>>()
    };
    let more = [queues(&a), queues(&b)].concat();
    let (s, r) = connected(&[&a, &b], 0, 1, 7);
    stop_time([&a, &b]);
    Pair {
        a,
        b,
        s,
        r,
        _more: more,
        _dir: dir,
    }
}

fn tcp() -> TcpConfig {
    TcpConfig {
        seed: 1,
        ..TcpConfig::default()
    }
}

/// When a receive is posted.
#[derive(Clone, Copy, PartialEq)]
enum Posted {
    /// With its message, which it finds there.
    Late,
    /// A step before its message.
    Early,
}

/// Post, step and complete of 8 bytes sent and received: both ends.
fn send_receive(inline: bool, posted: Posted, beside: Beside) -> u64 {
    let Pair { a, b, s, r, .. } = &pair(beside);
    let message = *b"ringbell";
    a.poke(0, &message);
    let tx = match inline {
        true => send_inline(*s, &message),
        false => send(*s, 0, 8),
    };
    let rx = recv(*r, 64, 8);
    let n = rounds(|| {
        let received = b.post(&rx);
        if posted == Posted::Early {
            b.nic.step();
        }
        let ends = [(b, received), (a, a.post(&tx))];
        let mut open = [true; 2];
        while open != [false; 2] {
            a.nic.step();
            b.nic.step();
            for ((h, t), open) in ends.iter().zip(&mut open) {
                if let Some(c) = h.queue.poll(*t) {
                    assert_eq!(c.status, Status::Ok, "{c:?}");
                    *open = false;
                }
            }
        }
    });
    assert_eq!(b.peek(64, 8), message, "wrong bytes");
    n
}

/// 8 bytes put with a signal, there and back, by the waits of kernels: both ends.
fn put_signal() -> u64 {
    let dir = TempDir::new();
    let host = |n| {
        Host::new(&Setup {
            access: Access::REMOTE,
            ..Setup::new(&dir, n)
        })
    };
    let hosts = [host(1), host(2)];
    let (s, r) = connected(&[&hosts[0], &hosts[1]], 0, 1, 7);
    stop_time(&hosts);
    let message = *b"ringbell";
    let puts = [(s, hosts[1].rkey()), (r, hosts[0].rkey())].map(|(session, rkey)| {
        let d = signalled(remote(Opcode::Put, session, rkey, 64), 0, 1);
        let mut d = Descriptor {
            flags: d.flags.union(Flags::INLINE),
            inline_len: 8,
            ..d
        };
        d.inline[..8].copy_from_slice(&message);
        d
    });
    // Making a view takes longer than the operation.
    let views = [0, 1].map(|i: usize| hosts[i].view());
    let (mut seen, mut under_way) = (0_u64, [None; 2]);
    let n = rounds(|| {
        seen += 1;
        for (i, put) in puts.iter().enumerate() {
            // As the kernel does: the put before has completed by the time the answer to it was
            // seen.
            let before = under_way[i].replace(hosts[i].post(put));
            let mut word = [0; 8];
            while u64::from_le_bytes(word) != seen {
                hosts[i].nic.step();
                hosts[1 - i].nic.step();
                views[1 - i].read(BASE, &mut word);
            }
            if let Some(before) = before {
                let c = hosts[i].queue.poll(before).expect("answered");
                assert_eq!(c.status, Status::Ok, "{c:?}");
            }
        }
    });
    assert_eq!(hosts[1].peek(64, 8), message, "wrong bytes");
    2 * n
}

/// A message in a frame over the UDP port, in virtual time: both ends, with its acknowledgement.
fn udp_frame() -> u64 {
    const LEN: u32 = 1024;
    let dir = TempDir::new();
    let mut peers: Vec<SocketAddr> = Vec::new();
    let mut host = |n: u8| {
        let setup = Setup::new(&dir, n);
        let config = UdpConfig {
            bind: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            peers: peers.clone(),
            vni: 5,
            secret: Some(77),
            mac: MacAddr::local(n.into()),
            mtu: Some(1450),
        };
        let port = UdpPort::open(config).expect("a free port");
        peers.push(port.local_addr());
        Host::over(&setup, Box::new(port), tcp())
    };
    // The one that connects knows where the other is.
    let (b, a) = (host(2), host(1));
    let (s, r) = connected(&[&a, &b], 0, 1, 7);
    let message: Vec<u8> = (0..LEN).map(|i| i as u8).collect();
    a.poke(0, &message);
    let (tx, rx) = (send(s, 0, LEN), recv(r, 4096, LEN));
    let mut now = 1 << 40;
    let n = rounds(|| {
        let ends = [(&b, b.post(&rx)), (&a, a.post(&tx))];
        let mut open = [true; 2];
        while open != [false; 2] {
            now += 1000;
            a.nic.step_at(NicTime(now));
            b.nic.step_at(NicTime(now));
            for ((h, t), open) in ends.iter().zip(&mut open) {
                if let Some(c) = h.queue.poll(*t) {
                    assert_eq!(c.status, Status::Ok, "{c:?}");
                    *open = false;
                }
            }
        }
    });
    assert_eq!(b.peek(4096, LEN as usize), message, "wrong bytes");
    n
}

/// 8 bytes from memory there and back by RoCEv2 over plain UDP sockets: both ends of both messages.
/// The kernel's own instructions are not counted.
fn rdma_send() -> u64 {
    let dir = TempDir::new();
    let hosts = over_sockets([1, 2].map(|n| Setup::new(&dir, n)));
    let (s, r) = connected(&[&hosts[0], &hosts[1]], 0, 1, 7);
    stop_time(&hosts);
    hosts[0].poke(0, b"ringbell");
    let there = (send(s, 0, 8), recv(r, 64, 8));
    let back = (send(r, 64, 8), recv(s, 128, 8));
    let mut now = 1 << 40;
    let n = rounds(|| {
        pass_time(&hosts, &mut now);
        for (i, (tx, rx)) in [there, back].iter().enumerate() {
            let (from, to) = (&hosts[i], &hosts[1 - i]);
            let ends = [(to, to.post(rx)), (from, from.post(tx))];
            let mut open = [true; 2];
            while open != [false; 2] {
                from.nic.step();
                to.nic.step();
                for ((h, t), open) in ends.iter().zip(&mut open) {
                    if let Some(c) = h.queue.poll(*t) {
                        assert_eq!(c.status, Status::Ok, "{c:?}");
                        *open = false;
                    }
                }
            }
        }
    });
    assert_eq!(&hosts[0].peek(128, 8), b"ringbell", "wrong bytes");
    2 * n
}

/// The least that a descriptor costs: posted, accepted, completed, polled.
fn nop() -> u64 {
    let dir = TempDir::new();
    let h = Host::new(&Setup::new(&dir, 1));
    stop_time([&h]);
    let d = Descriptor::new(ringbell_nic_abi::Opcode::Nop);
    rounds(|| {
        let t = h.post(&d);
        let c = loop {
            h.nic.step();
            if let Some(c) = h.queue.poll(t) {
                break c;
            }
        };
        assert_eq!(c.status, Status::Ok, "{c:?}");
    })
}

/// A step of a NIC with a connection that finds nothing to do.
fn idle_step(beside: Beside) -> u64 {
    let pair = pair(beside);
    rounds(|| {
        pair.a.nic.step();
    })
}

/// An all-reduce of two ranks on the direct path: both ranks.
fn direct_all_reduce(bytes: u64, n: u64) -> u64 {
    let w = World::new(2);
    stop_time(&w.hosts);
    let n = repeated(n, || {
        w.call(CollectiveKind::AllReduce, Algorithm::Auto, bytes / 4);
    });
    assert_eq!(w.direct(), 4 * n, "some went over messages");
    assert_eq!(w.wrong_sums(bytes as usize / 4), 0, "wrong sums");
    n
}

/// An all-reduce of two ranks by RoCEv2 over plain UDP sockets: both ranks.
fn rdma_all_reduce(bytes: u64) -> u64 {
    let w = World::over_sockets();
    stop_time(&w.hosts);
    let mut now = 1 << 40;
    let n = rounds(|| {
        pass_time(&w.hosts, &mut now);
        w.call(CollectiveKind::AllReduce, Algorithm::Auto, bytes / 4);
    });
    assert_eq!(w.wrong_sums(bytes as usize / 4), 0, "wrong sums");
    n
}

/// The ring all-reduce of four ranks over messages, by the steps that all ranks run.
fn ring_step() -> u64 {
    const COUNT: u64 = 16;
    let w = World::new(4);
    stop_time(&w.hosts);
    let before = w.steps();
    rounds(|| w.call(CollectiveKind::AllReduce, Algorithm::Ring, COUNT));
    let steps = (w.steps() - before) / 2;
    assert!(steps > 0, "no program ran");
    assert_eq!(w.wrong_sums(COUNT as usize), 0, "wrong sums");
    steps
}

/// HyperLogLog (`mix`, p = 14, u32) over a stream: by its beats of 64 bytes.
fn hll_beat() -> u64 {
    const PIECE: usize = 64 << 10;
    let config = HllConfig {
        precision: 14,
        hash: HashKind::Mix,
        ..HllConfig::default()
    };
    let mut engine = HllEngine::new(config).expect("valid");
    let items = |round: u64| -> Vec<u8> {
        let first = round as u32 * (PIECE as u32 / 4);
        (first..first + PIECE as u32 / 4)
            .flat_map(|i| i.wrapping_mul(0x9e37_79b9).to_le_bytes())
            .collect()
    };
    let pieces: Vec<_> = (0..2 * ROUNDS).map(items).collect();
    let (mut next, mut out) = (pieces.iter(), Vec::new());
    let n = rounds(|| {
        if let Some(piece) = next.next() {
            engine.process(piece, &mut out);
        }
    });
    let distinct = (2 * ROUNDS) as f64 * (PIECE / 4) as f64;
    let off = (engine.sketch().estimate() / distinct - 1.0).abs();
    assert!(off < 0.05, "the estimate is {off} off");
    n * (PIECE as u64 / 64)
}

/// A path's name, and what runs it.
type Path = (&'static str, fn() -> u64);

const PATHS: [Path; 18] = [
    ("idle step", || idle_step(Beside::Nothing)),
    ("idle step, 8 queues", || idle_step(Beside::Queues)),
    ("idle step, tcp beside", || idle_step(Beside::Tcp)),
    ("nop", nop),
    ("send and receive 8 B", || {
        send_receive(false, Posted::Late, Beside::Nothing)
    }),
    ("send and receive 8 B inline", || {
        send_receive(true, Posted::Late, Beside::Nothing)
    }),
    ("receive 8 B posted early", || {
        send_receive(true, Posted::Early, Beside::Nothing)
    }),
    ("put 8 B with a signal", put_signal),
    ("8 B inline, 8 queues", || {
        send_receive(true, Posted::Late, Beside::Queues)
    }),
    ("8 B inline, tcp beside", || {
        send_receive(true, Posted::Late, Beside::Tcp)
    }),
    ("frame over UDP", udp_frame),
    ("8 B over rdma", rdma_send),
    ("all-reduce 1 KiB over rdma", || rdma_all_reduce(1 << 10)),
    ("all-reduce 1 KiB direct", || {
        direct_all_reduce(1 << 10, ROUNDS)
    }),
    ("all-reduce 64 KiB direct", || {
        direct_all_reduce(64 << 10, ROUNDS)
    }),
    ("all-reduce 1 MiB direct", || {
        direct_all_reduce(1 << 20, FEW_ROUNDS)
    }),
    ("ring step", ring_step),
    ("hll beat", hll_beat),
];

fn main() {
    let (options, asked): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|a| a.starts_with("--"));
    if options.iter().any(|o| o == "--list") {
        return PATHS.iter().for_each(|p| println!("{}", p.0));
    }
    let wanted = |name: &str| asked.is_empty() || asked.iter().any(|a| a == name);
    for (name, run) in PATHS.iter().filter(|p| wanted(p.0)) {
        println!("{name}: {}", run());
    }
}
