//! The same bits from every run, wire, port, algorithm and progress mode, special values included.

use crate::collective_support;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use collective_support::nic::{Host, Setup, TempDir};
use collective_support::{address, Call, Rng, Wire, World};
use ringbell_gtlb::testing::Layout as PageLayout;
use ringbell_nic_abi::{Algorithm, CollectiveKind as K, DataType, ReduceOp, Status};
use ringbell_nic_core::collective::{CollectiveSettings, CommunicatorConfig};
use ringbell_nic_core::port::mem::MemSwitch;
use ringbell_nic_core::port::udp::{UdpConfig, UdpPort};
use ringbell_nic_core::port::{Checksums, MacAddr, Port};
use ringbell_nic_core::transport::tcp::TcpConfig;
use ringbell_nic_core::ProgressMode;
use ringbell_onc_engines::program::Layout;

const OUT: u64 = 4 << 20;
const RANKS: usize = 3;

/// Signed zeros and infinities, numbers that are none (quiet and signalling, with payloads), the
/// ends of the range, denormals, and numbers so far apart that every order gives other bits.
fn special(rng: &mut Rng) -> u32 {
    const VALUES: [u32; 16] = [
        0x0000_0000,
        0x8000_0000,
        0x7f80_0000,
        0xff80_0000,
        0x7fc0_0000,
        0xffc0_1234,
        0x7f80_0001,
        0xffa0_0000,
        0x7f7f_ffff,
        0xff7f_ffff,
        0x0000_0001,
        0x807f_ffff,
        0x0080_0000,
        0x3f80_0000,
        0xbf80_0000,
        0x4b80_0001,
    ];
    match rng.next() % 3 {
        0 => VALUES[(rng.next() % 16) as usize],
        _ => {
            let x = (rng.next() as u32 as f32) * 2f32.powi((rng.next() % 60) as i32 - 50);
            if rng.next().is_multiple_of(2) { x } else { -x }.to_bits()
        }
    }
}

fn inputs(count: usize, seed: u64) -> Vec<Vec<u32>> {
    let of = |r: usize| {
        let mut rng = Rng(seed * 100 + r as u64);
        (0..count).map(|_| special(&mut rng)).collect()
    };
    (0..RANKS).map(of).collect()
}

fn bytes(v: &[u32]) -> Vec<u8> {
    v.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// `a op b`, as the module text of `onc-engines/src/reduce` says.
fn f32_op(op: ReduceOp, a: f32, b: f32) -> f32 {
    let r = match op {
        ReduceOp::Sum => a + b,
        ReduceOp::Prod => a * b,
        _ if a.is_nan() || b.is_nan() => f32::NAN,
        // IEEE 754-2019 §9.6: −0 is below +0.
        ReduceOp::Min if a.total_cmp(&b).is_lt() => a,
        ReduceOp::Max if a.total_cmp(&b).is_gt() => a,
        _ => b,
    };
    if r.is_nan() {
        f32::from_bits(0x7fc0_0000)
    } else {
        r
    }
}

/// The all-reduce of f32 in Table 8's order: chunk i begins at rank i.
fn model(op: ReduceOp, inputs: &[Vec<u32>]) -> Vec<u8> {
    let n = inputs.len();
    let l = Layout {
        count: inputs[0].len() as u64,
        block_chunks: n as u32,
    };
    let mut out = vec![0u32; inputs[0].len()];
    for c in 0..n {
        for e in l.chunk(c as u32) {
            let at = |k: usize| f32::from_bits(inputs[(c + k) % n][e as usize]);
            let all = (1..n).fold(at(0), |a, k| f32_op(op, a, at(k)));
            out[e as usize] = all.to_bits();
        }
    }
    bytes(&out)
}

fn all_reduce(op: ReduceOp, dtype: DataType, count: usize, algo: Algorithm) -> Call {
    Call::new(K::AllReduce, count as u64)
        .of(dtype, op)
        .algo(algo)
        .at(0, OUT)
}

#[test]
fn special_values_have_the_bits_of_the_model_on_every_path() {
    let algos = [
        Algorithm::Auto,
        Algorithm::Ring,
        Algorithm::Pairwise,
        Algorithm::AllGatherReduce,
    ];
    for wire in [
        Wire::Local,
        Wire::Tcp,
        Wire::Lossy(2, 9),
        Wire::Rdma,
        Wire::LossyRdma(2, 9),
    ] {
        let settings = CollectiveSettings {
            segment_bytes: 4096,
            eager_max: 512,
            ..CollectiveSettings::default()
        };
        let mut w = World::new(RANKS, wire, &settings);
        for count in [1usize, 7, 250, 5003] {
            let inputs = inputs(count, count as u64);
            for (r, v) in inputs.iter().enumerate() {
                w.host(r).poke(0, &bytes(v));
            }
            for op in ReduceOp::ALL.iter().filter(|op| op.takes(DataType::F32)) {
                let want = model(*op, &inputs);
                for algo in algos {
                    w.run(&all_reduce(*op, DataType::F32, count, algo));
                    for r in 0..RANKS {
                        let got = w.host(r).peek(OUT, count * 4);
                        assert!(got == want, "{wire:?} {op:?} {algo:?} {count}: rank {r}");
                    }
                }
            }
            // The other formats: any bits are special enough, and all ways must agree.
            for dtype in [DataType::F16, DataType::Bf16, DataType::F64] {
                let n = count * 4 / dtype.bytes() as usize;
                for op in ReduceOp::ALL.iter().filter(|op| op.takes(dtype)) {
                    let mut first = None;
                    for algo in algos {
                        w.run(&all_reduce(*op, dtype, n, algo));
                        for r in 0..RANKS {
                            let got = w.host(r).peek(OUT, n * dtype.bytes() as usize);
                            let same = *first.get_or_insert_with(|| got.clone()) == got;
                            assert!(same, "{wire:?} {dtype:?} {op:?} {algo:?} {n}: rank {r}");
                        }
                    }
                }
            }
        }
    }
}

/// How the NICs reach each other.
#[derive(Debug, Clone, Copy)]
enum Way {
    Local,
    Switch,
    Udp,
}

fn hosts(way: Way, mode: ProgressMode, dir: &TempDir) -> Vec<Host> {
    let switch = MemSwitch::private(RANKS, 9000, Checksums::Omitted).expect("switch");
    let mut opened: Vec<SocketAddr> = Vec::new();
    // The last rank first: lower ranks connect to higher ones and need their addresses.
    let mut all: Vec<Host> = (0..RANKS)
        .rev()
        .map(|r| {
            let mut s = Setup::new(dir, r as u8 + 1);
            s.nic.progress = mode;
            s.access.remote_write = true;
            s.layout = PageLayout::Mixed(r as u64);
            let port: Box<dyn Port> = match way {
                Way::Local => return Host::new(&s),
                Way::Switch => Box::new(switch.port(r).expect("port")),
                Way::Udp => {
                    let config = UdpConfig {
                        bind: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
                        peers: opened.clone(),
                        vni: 5,
                        secret: Some(77),
                        mac: MacAddr::local(r as u32 + 1),
                        mtu: Some(1450),
                    };
                    let port = UdpPort::open(config).expect("a free port");
                    opened.push(port.local_addr());
                    Box::new(port)
                }
            };
            let config = TcpConfig {
                seed: r as u64,
                ..TcpConfig::default()
            };
            Host::over(&s, port, config)
        })
        .collect();
    all.reverse();
    all
}

#[test]
fn every_port_and_progress_mode_gives_the_bits_of_the_model() {
    const COUNTS: [usize; 4] = [3, 700, 5003, 70_001];
    for (way, mode) in [
        (Way::Local, ProgressMode::Waiter),
        (Way::Local, ProgressMode::Dedicated),
        (Way::Switch, ProgressMode::Waiter),
        (Way::Switch, ProgressMode::Dedicated),
        (Way::Udp, ProgressMode::Waiter),
        (Way::Udp, ProgressMode::Dedicated),
    ] {
        let dir = TempDir::new();
        let hosts = hosts(way, mode, &dir);
        let peers: Vec<_> = (0..RANKS).map(address).collect();
        std::thread::scope(|scope| {
            for (r, h) in hosts.iter().enumerate() {
                let peers = peers.clone();
                scope.spawn(move || {
                    let config = CommunicatorConfig {
                        ctx: 1,
                        rank: r as u32,
                        peers,
                        settings: CollectiveSettings::default(),
                    };
                    let comm = h.nic.create_communicator(&config).expect("communicator");
                    for algo in [Algorithm::Auto, Algorithm::Ring] {
                        for count in COUNTS {
                            let inputs = inputs(count, count as u64);
                            for op in [ReduceOp::Sum, ReduceOp::Max] {
                                h.poke(0, &bytes(&inputs[r]));
                                let call = all_reduce(op, DataType::F32, count, algo);
                                let call = call.within(60_000_000);
                                let c = h.queue.call(&call.descriptor(comm)).expect("answered");
                                assert_eq!(c.status, Status::Ok, "{way:?} {mode:?}: {c:?}");
                                let same = h.peek(OUT, count * 4) == model(op, &inputs);
                                assert!(same, "{way:?} {mode:?} {op:?} {algo:?} {count}: rank {r}");
                            }
                        }
                    }
                    h.nic.free_communicator(comm).expect("known");
                    assert!(h.nic.flush(Duration::from_secs(30)), "{}", h.nic.describe());
                });
            }
        });
    }
}
