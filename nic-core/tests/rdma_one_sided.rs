//! One-sided operations over RDMA in virtual time: bad wires, refusals between operations, keys
//! that go, peers that fall silent, and the wire as tshark and scapy see it.

use crate::scapy_support;
use crate::transport_support;

use std::net::SocketAddrV4;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use ringbell_gtlb::Access;
use ringbell_nic_abi::{GpuVa, PdId, Rkey, Status};
use ringbell_nic_core::port::capture::Capture;
use ringbell_nic_core::port::impair::{Faults, Impair};
use ringbell_nic_core::port::{Checksums, Port};
use ringbell_nic_core::transport::{
    Close, Payload, RemoteOp, RemoteWork, Signal, Transport, TransportEvent, Work,
};
use ringbell_nic_core::types::{Buffer, ConnId, NicTime, WorkToken};
use transport_support::rdma::{Pair, Side};
use transport_support::{wire, Flow, Rng, Wire, IP_B, MINUTE};

const PD: PdId = PdId(3);
const OTHER: PdId = PdId(4);
const KEY: u32 = 0x1234;
/// A key of a region in another domain, and one of a region that grants nothing.
const FOREIGN: u32 = 0x1235;
const LOCKED: u32 = 0x1236;
const BYTES: usize = 64 << 10;

/// Signals and atomics use the first bytes, puts the rest of the lower half; gets read the upper
/// half, which nothing writes.
const WORDS: u64 = 512;

fn expose(side: &mut Side, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; BYTES];
    Rng(seed).fill(&mut bytes);
    let whole = side.dma.region(bytes.clone());
    let locked = Access {
        remote_read: false,
        remote_write: false,
        remote_atomic: false,
        ..Access::REMOTE
    };
    let keys = [
        (KEY, PD, Access::REMOTE),
        (FOREIGN, OTHER, Access::REMOTE),
        (LOCKED, PD, locked),
    ];
    for (key, pd, access) in keys {
        side.dma.keys.insert(key, (pd, whole, access));
    }
    bytes
}

/// What an operation must end with, and what it must have read.
struct Expected {
    token: u64,
    end: (Status, u64, u64),
    got: Option<(Buffer, Vec<u8>)>,
}

/// The operations of one direction, with a model of the memory that they change.
struct Direction {
    conn: ConnId,
    model: Vec<u8>,
    expected: Vec<Expected>,
}

fn word(model: &mut [u8], at: u64) -> &mut [u8] {
    &mut model[at as usize..at as usize + 8]
}

impl Direction {
    /// Posts an operation; every fourth is one that the target must refuse.
    fn post(&mut self, side: &mut Side, token: u64, rng: &mut Rng) {
        let len = match rng.below(4) {
            0 => rng.below(48),
            1 => 1436 * rng.below(4),
            _ => rng.below(12_000),
        };
        let half = BYTES as u64 / 2;
        let kind = rng.below(5);
        let (mut key, mut va) = match kind {
            0 | 1 => (KEY, WORDS + rng.below(half - WORDS - len)),
            2 => (KEY, half + rng.below(half - len)),
            _ => (KEY, rng.below(WORDS / 8) * 8),
        };
        let size = if kind < 3 { len } else { 8 };
        let end = BYTES as u64;
        let refusal = match rng.below(16) {
            0 => {
                key ^= 1 << (8 + rng.below(20));
                Some((Status::BadKey, key.into()))
            }
            1 => {
                key = FOREIGN;
                Some((Status::BadKey, key.into()))
            }
            2 => {
                key = LOCKED;
                Some((Status::AccessDenied, va))
            }
            // One byte past the end.
            3 => {
                va = end - size + 1;
                Some((Status::OutOfBounds, end))
            }
            4 if kind >= 3 => {
                va += 1 + rng.below(7);
                match va + 8 > end {
                    true => Some((Status::OutOfBounds, end)),
                    false => Some((Status::InvalidArgument, va)),
                }
            }
            _ => None,
        };
        let mut data = vec![0; len as usize];
        rng.fill(&mut data);
        let value = rng.next();
        let (mut detail, mut got) = (0, None);
        let mut refusal = refusal;
        let op = match kind {
            0 | 1 => {
                let signal = (kind == 1).then(|| {
                    let lost = rng.below(12) == 0;
                    let index = match lost {
                        true => BYTES as u32 / 8,
                        false => rng.below(WORDS / 8) as u32,
                    };
                    if lost && refusal.is_none() {
                        refusal = Some((Status::OutOfBounds, end));
                    }
                    let set = rng.below(3) == 0;
                    Signal { index, value, set }
                });
                if refusal.is_none() {
                    self.model[va as usize..][..data.len()].copy_from_slice(&data);
                    if let Some(s) = signal {
                        let at = word(&mut self.model, u64::from(s.index) * 8);
                        let old = u64::from_le_bytes((&*at).try_into().unwrap()); // 8 bytes
                        let new = if s.set {
                            value
                        } else {
                            old.wrapping_add(value)
                        };
                        at.copy_from_slice(&new.to_le_bytes());
                    }
                }
                let payload = match len <= 8 && rng.below(2) == 0 {
                    true => {
                        let mut bytes = [0; 40];
                        bytes[..data.len()].copy_from_slice(&data);
                        let len = data.len() as u8;
                        Payload::Inline { bytes, len }
                    }
                    false => Payload::Memory(side.dma.region(data)),
                };
                RemoteOp::Put { payload, signal }
            }
            2 => {
                let into = side.dma.region(data.clone());
                let bytes = match refusal {
                    None => self.model[va as usize..][..data.len()].to_vec(),
                    Some(_) => data,
                };
                got = Some((into, bytes));
                RemoteOp::Get { into }
            }
            _ => {
                let mut old = 0;
                if refusal.is_none() {
                    let at = word(&mut self.model, va);
                    old = u64::from_le_bytes((&*at).try_into().unwrap()); // 8 bytes
                }
                detail = old;
                let (new, op) = match kind {
                    3 => (
                        old.wrapping_add(value),
                        RemoteOp::FetchAdd { addend: value },
                    ),
                    _ => {
                        let hits = rng.below(2) == 0;
                        let compare = if hits { old } else { !old };
                        let swap = value;
                        let op = RemoteOp::CompareSwap { compare, swap };
                        (if hits { value } else { old }, op)
                    }
                };
                if refusal.is_none() {
                    word(&mut self.model, va).copy_from_slice(&new.to_le_bytes());
                }
                op
            }
        };
        let bytes = size;
        let end = match refusal {
            Some((status, detail)) => (status, 0, detail),
            None => (Status::Ok, bytes, detail),
        };
        self.expected.push(Expected { token, end, got });
        let work = RemoteWork {
            token: WorkToken(token),
            rkey: Rkey(key),
            va: GpuVa(va),
            op,
        };
        side.transport.post(self.conn, Work::Remote(work));
    }

    /// Checks what has ended. `true`: everything.
    fn collect(&mut self, side: &mut Side) -> bool {
        self.expected.retain(|e| {
            let Some(end) = ended(side, e.token) else {
                return true;
            };
            assert_eq!(end, e.end, "operation {:#x}", e.token);
            if let Some((into, bytes)) = &e.got {
                assert!(side.dma.bytes(*into) == bytes, "got {:#x}", e.token);
            }
            false
        });
        self.expected.is_empty()
    }
}

fn ended(side: &mut Side, token: u64) -> Option<(Status, u64, u64)> {
    side.take(|e| match *e {
        TransportEvent::RemoteDone {
            token: t,
            status,
            bytes,
            detail,
            ..
        } if t.0 == token => Some((status, bytes, detail)),
        _ => None,
    })
}

/// As [`Pair::connect`]; again, when a bad wire has lost all questions for the address.
fn connect(p: &mut Pair) -> (ConnId, ConnId) {
    p.b.transport.listen(7000, 16).unwrap(); // the port is free
    let remote = SocketAddrV4::new(IP_B, 7000);
    let a = loop {
        let deadline = NicTime(p.now.0 + MINUTE);
        let a = p.a.transport.connect(p.now, remote, deadline).unwrap(); // on the same network
        let connected = p.until(MINUTE, |p| {
            p.a.take(|e| match *e {
                TransportEvent::Connected { conn } if conn == a => Some(true),
                TransportEvent::ConnectFailed { conn, .. } if conn == a => Some(false),
                _ => None,
            })
        });
        if connected {
            break a;
        }
    };
    let b = p.until(MINUTE, |p| {
        p.b.take(|e| match *e {
            TransportEvent::Incoming { conn, .. } => Some(conn),
            _ => None,
        })
    });
    (a, b)
}

/// Connected, with memory exposed on both sides, which the connection may name.
fn pair(ports: Wire, seed: u64) -> (Pair, Direction, Direction) {
    let mut p = Pair::new(ports, seed);
    // The first region of each.
    let models = [expose(&mut p.a, seed), expose(&mut p.b, seed + 1)];
    let (a, b) = connect(&mut p);
    p.a.transport.grant(a, PD);
    p.b.transport.grant(b, PD);
    let [at_a, at_b] = models;
    let direction = |conn, model| Direction {
        conn,
        model,
        expected: Vec::new(),
    };
    (p, direction(a, at_b), direction(b, at_a))
}

fn memory(side: &Side) -> &[u8] {
    &side.dma.regions[0]
}

fn faulty(seed: u64, faults: &Faults) -> Wire {
    let (a, b) = wire(1500, Checksums::Software);
    let impair = |port: Box<dyn Port>, seed| -> Box<dyn Port> {
        let faults = Faults { seed, ..*faults };
        Box::new(Impair::new(port, faults).unwrap()) // probabilities
    };
    (impair(a, seed * 2), impair(b, seed * 2 + 1))
}

#[test]
fn operations_are_executed_once_and_in_order_over_thousands_of_bad_wires() {
    let mut all = [0; 3];
    for seed in 0..2_000 {
        let mut rng = Rng(seed ^ 0x0e51);
        let mut part = |max: u64| rng.below(max) as f64 / 1000.0;
        let faults = Faults {
            loss: part(60),
            duplicate: part(60),
            reorder: part(60),
            corrupt: part(30),
            reorder_by: Duration::from_micros(50),
            ..Faults::default()
        };
        let (mut p, mut there, mut back) = pair(faulty(seed, &faults), seed);
        // Bytes of the stream go beside them.
        let conns = (there.conn, back.conn);
        let mut flow = Flow::new(&mut p.a, &mut p.b, conns, 20_000, seed + 9);
        let count = 1 + rng.below(24);
        for token in 0..count {
            there.post(&mut p.a, token | 1 << 40, &mut rng);
            back.post(&mut p.b, token | 1 << 41, &mut rng);
            for _ in 0..rng.below(3) {
                p.tick();
            }
        }
        p.until(20 * MINUTE, |p| {
            let done = there.collect(&mut p.a) & back.collect(&mut p.b);
            (done & flow.drive(&mut p.a, &mut p.b)).then_some(())
        });
        flow.check(&p.a, &p.b);
        assert!(memory(&p.b) == there.model, "seed {seed}: memory of b");
        assert!(memory(&p.a) == back.model, "seed {seed}: memory of a");
        p.a.transport.close(there.conn, Close::Now);
        p.until(MINUTE, |p| (p.a.transport.connections() == 0).then_some(()));
        let n = p.a.transport.counters();
        all[0] += n.repeated;
        all[1] += n.out_of_order;
        all[2] += n.duplicates;
    }
    assert!(all.iter().all(|&n| n > 1000), "{all:?}");
}

fn put(len: usize, side: &mut Side, signal: Option<Signal>) -> RemoteOp {
    let mut data = vec![0; len];
    Rng(len as u64).fill(&mut data);
    let payload = Payload::Memory(side.dma.region(data));
    RemoteOp::Put { payload, signal }
}

fn post(side: &mut Side, conn: ConnId, token: u64, (key, va): (u32, u64), op: RemoteOp) {
    let work = RemoteWork {
        token: WorkToken(token),
        rkey: Rkey(key),
        va: GpuVa(va),
        op,
    };
    side.transport.post(conn, Work::Remote(work));
}

#[test]
fn a_key_that_goes_ends_the_operation_under_way_and_no_other() {
    const LONG: usize = 1 << 20;
    let mut ended_early = 0;
    for after in 0..40 {
        let (mut p, there, _) = pair(wire(1500, Checksums::Software), after);
        let conn = there.conn;
        let whole = p.b.dma.region(vec![0; LONG]);
        p.b.dma.keys.insert(9, (PD, whole, Access::REMOTE));
        let signal = Signal {
            index: 0,
            value: 1,
            set: false,
        };
        let op = match after % 2 {
            0 => put(LONG, &mut p.a, Some(signal)),
            _ => RemoteOp::Get {
                into: p.a.dma.region(vec![0; LONG]),
            },
        };
        post(&mut p.a, conn, 1, (9, 0), op);
        let add = RemoteOp::FetchAdd { addend: 5 };
        post(&mut p.a, conn, 2, (KEY, 8), add);
        for _ in 0..after / 2 {
            p.tick();
        }
        p.b.dma.keys.remove(&9);
        let kept = p.b.dma.bytes(whole).to_vec();
        let end = p.until(MINUTE, |p| ended(&mut p.a, 1));
        match end.0 {
            // All of it was there before.
            Status::Ok => continue,
            _ => assert_eq!(end, (Status::BadKey, 0, 9), "after {after} ticks"),
        }
        ended_early += 1;
        let before = p.until(MINUTE, |p| ended(&mut p.a, 2));
        assert_eq!((before.0, before.1), (Status::Ok, 8));
        // Once.
        let at = u64::from_le_bytes(memory(&p.b)[8..16].try_into().unwrap()); // 8 bytes
        assert_eq!(at, before.2.wrapping_add(5));
        p.run(1_000_000_000);
        assert!(p.b.dma.bytes(whole) == kept, "written without a key");
    }
    assert!(ended_early > 20, "{ended_early}");
}

#[test]
fn a_peer_that_acknowledges_nothing_is_given_up_in_time() {
    let (mut p, there, _) = pair(wire(1500, Checksums::Software), 5);
    let conn = there.conn;
    let ops = [
        put(5_000, &mut p.a, None),
        RemoteOp::Get {
            into: p.a.dma.region(vec![0; 70_000]),
        },
        RemoteOp::FetchAdd { addend: 1 },
    ];
    for (token, op) in ops.into_iter().enumerate() {
        post(&mut p.a, conn, token as u64, (KEY, 1024), op);
    }
    let start = p.now;
    let mut now = start;
    while p.a.has(TransportEvent::Reset { conn }).is_none() {
        p.a.step(now);
        let next = p.a.next_timer().map_or(now.0 + 1_000_000, |t| t.0);
        now = NicTime(next.max(now.0 + 10_000));
        assert!(now.0 < start.0 + 8_000_000_000, "{:?}", p.a.transport);
    }
    assert!(now.0 >= start.0 + 5_000_000_000);
    for token in 0..3 {
        let end = ended(&mut p.a, token);
        assert_eq!(end, Some((Status::ConnectionReset, 0, 0)));
    }
    post(
        &mut p.a,
        conn,
        9,
        (KEY, 0),
        RemoteOp::FetchAdd { addend: 1 },
    );
    let late = p.until(MINUTE, |p| ended(&mut p.a, 9));
    assert_eq!(late.0, Status::ConnectionReset);
}

#[test]
fn cancelled_operations_leave_local_memory_alone() {
    let (mut p, there, _) = pair(wire(1500, Checksums::Software), 8);
    let conn = there.conn;
    let into = p.a.dma.region(vec![7; 100_000]);
    p.b.dma.keys.insert(9, (PD, into, Access::REMOTE));
    let whole = p.b.dma.region(vec![1; 100_000]);
    p.b.dma.keys.insert(9, (PD, whole, Access::REMOTE));
    post(&mut p.a, conn, 1, (9, 0), RemoteOp::Get { into });
    let long = put(50_000, &mut p.a, None);
    post(&mut p.a, conn, 2, (KEY, 0), long);
    p.a.step(p.now);
    assert_eq!(p.a.transport.cancel(conn, WorkToken(1)), Some(0));
    // Its source may be sent again.
    assert_eq!(p.a.transport.cancel(conn, WorkToken(2)), Some(1));
    assert_eq!(p.a.transport.cancel(conn, WorkToken(2)), None);
    let short = put(40, &mut p.a, None);
    post(&mut p.a, conn, 3, (KEY, 0), short);
    p.a.step(p.now);
    assert_eq!(p.a.transport.cancel(conn, WorkToken(3)), Some(0));
    p.run(1_000_000_000);
    assert!(p.a.dma.bytes(into) == vec![7; 100_000]);
    assert!(p.a.events.is_empty(), "{:?}", p.a.events);
}

#[test]
fn tshark_and_scapy_read_every_operation() {
    let path = std::env::temp_dir().join(format!("ringbell-os-{}.pcapng", std::process::id()));
    let file = std::fs::File::create_new(&path).expect("a name of our own");
    let (a, b) = wire(1500, Checksums::Software);
    let recorded = Capture::new(a, file, Duration::ZERO).expect("a new file can be written");
    let (mut p, there, _) = pair((Box::new(recorded), b), 3);
    let conn = there.conn;
    let signal = Some(Signal {
        index: 1,
        value: 1,
        set: false,
    });
    let mut ops = Vec::new();
    for len in [100, 2_000, 9_000] {
        ops.extend([put(len, &mut p.a, None), put(len, &mut p.a, signal)]);
        let into = p.a.dma.region(vec![0; len]);
        ops.push(RemoteOp::Get { into });
    }
    ops.push(RemoteOp::FetchAdd { addend: 3 });
    ops.push(RemoteOp::CompareSwap {
        compare: 1,
        swap: 2,
    });
    let last = ops.len() as u64;
    for (token, op) in ops.into_iter().enumerate() {
        post(&mut p.a, conn, token as u64, (KEY, 1024), op);
    }
    let refused = put(8, &mut p.a, None);
    post(&mut p.a, conn, last, (KEY ^ 0x100, 1024), refused);
    for token in 0..last {
        assert_eq!(p.until(MINUTE, |p| ended(&mut p.a, token)).0, Status::Ok);
    }
    let end = p.until(MINUTE, |p| ended(&mut p.a, last));
    assert_eq!(end.0, Status::BadKey);
    drop(p);
    match scapy_support::python() {
        None => eprintln!("SKIPPED tshark_and_scapy_read_every_operation: there is no scapy"),
        Some(python) => {
            let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/roce_scapy.py");
            let copy = path.with_extension("pcap");
            let judged = Command::new(python)
                .arg(script)
                .args([&copy, &path])
                .output()
                .expect("python runs");
            let _ = std::fs::remove_file(copy);
            let err = String::from_utf8_lossy(&judged.stderr);
            assert!(judged.status.success(), "{err}");
            let frames = String::from_utf8_lossy(&judged.stdout);
            assert!(frames.trim().parse::<u32>().expect("a number") > 30);
        }
    }
    let shown = Command::new("tshark")
        // Random payloads look like those of another protocol now and then.
        .args(["-n", "--disable-protocol", "rpcordma", "-T", "fields"])
        .args(["-e", "_ws.malformed", "-e", "_ws.expert"])
        .args(["-e", "infiniband.bth.opcode", "-r"])
        .arg(&path)
        .output();
    std::fs::remove_file(&path).expect("written above");
    let Ok(shown) = shown else {
        eprintln!("SKIPPED tshark_and_scapy_read_every_operation: there is no tshark");
        return;
    };
    let text = String::from_utf8_lossy(&shown.stdout);
    let odd = text.lines().find(|l| !l.starts_with("\t\t"));
    assert_eq!(odd, None, "malformed, or an expert's remark");
    let seen: std::collections::BTreeSet<u32> = text
        .lines()
        .filter_map(|line| {
            let cell = line.split('\t').nth(2)?;
            match cell.strip_prefix("0x") {
                Some(hex) => u32::from_str_radix(hex, 16).ok(),
                None => cell.parse().ok(),
            }
        })
        .collect();
    // SEND of notes; WRITE first, middle, last and only, the last two with immediate data; READ and
    // its answers; acknowledgements; the atomic operations and their answer; connection management.
    let all = [
        4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 0x64,
    ];
    assert_eq!(seen, all.into());
}
