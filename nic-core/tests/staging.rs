//! Staging of payloads that a local peer cannot reach: through NIC memory, in two copies, with
//! any amount of room.

#![allow(clippy::disallowed_methods)] // Tests at the edge: deadlines, so that a hang fails.

use crate::nic_support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use nic_support::*;
use ringbell_gtlb::testing::{DelayedMemory, GpuView, Layout, Rng};
use ringbell_gtlb::Access;
use ringbell_nic_abi::{Completion, Descriptor, GpuVa, SessionId, Status};
use ringbell_nic_core::engine::Direction;
use ringbell_nic_core::{HostBuffer, HostQueue, Nic, StagingConfig};
use ringbell_onc_engines::stream::Registry;

const LIMIT: Duration = Duration::from_secs(60);

fn pair(dir: &TempDir, staging: StagingConfig, nic_memory_bytes: u64) -> [Host; 2] {
    [1, 2].map(|n| {
        let mut setup = Setup::new(dir, n);
        setup.local.staging = staging;
        setup.nic.nic_memory_bytes = nic_memory_bytes;
        Host::new(&setup)
    })
}

/// Bytes that the program had: the peer has no way to map them.
fn adopt(h: &Host, bytes: Vec<u8>) -> HostBuffer {
    h.nic.adopt_host(h.pd, bytes, Access::LOCAL).expect("host")
}

fn at(d: Descriptor, va: GpuVa, offset: u64) -> Descriptor {
    Descriptor {
        local_va: GpuVa(va.0 + offset),
        ..d
    }
}

#[test]
fn each_side_copies_once_for_every_piece_size() {
    let mut rng = Rng::new(77);
    for (chunk, depth) in [(4096, 2), (5000, 3), (64 << 10, 4), (1 << 20, 2)] {
        let dir = TempDir::new();
        let hosts = pair(&dir, StagingConfig { chunk, depth }, 4 << 20);
        let hosts = &[&hosts[0], &hosts[1]];
        let (s, r) = connected(hosts, 0, 1, 7);
        let data = rng.bytes(700_000);
        let src = adopt(hosts[0], data.clone());
        let mut sent = 0;
        for (i, len) in [121, 4095, 4097, 15_001, 60_001, 600_007]
            .into_iter()
            .enumerate()
        {
            let from = 7 * i as u64;
            let before = hosts.map(|h| h.nic.counters().copied_bytes);
            let tickets = [
                (1, hosts[1].post(&recv(r, 3, len))),
                (0, hosts[0].post(&at(send(s, 0, len), src.va(), from))),
            ];
            for c in settle(hosts, &tickets) {
                assert_eq!((c.status, c.bytes), (Status::Ok, len.into()));
            }
            let from = from as usize;
            assert!(hosts[1].peek(3, len as usize) == data[from..from + len as usize]);
            for (h, before) in hosts.iter().zip(before) {
                let copied = h.nic.counters().copied_bytes - before;
                assert_eq!(copied, u64::from(len), "{len} in pieces of {chunk}");
            }
            sent += u64::from(len);
        }
        assert_eq!(hosts[0].nic.counters().staged_bytes, sent);
        assert_eq!(hosts[1].nic.counters().staged_bytes, 0);
        let (used, _) = hosts[0].nic.nic_memory();
        assert!(
            used <= StagingConfig { chunk, depth }.room().next_multiple_of(128),
            "{used}"
        );
    }
}

/// The last piece ends the receive, although more would have fitted.
#[test]
fn a_receive_of_available_bytes_ends_with_the_pieces() {
    let dir = TempDir::new();
    let staging = StagingConfig {
        chunk: 4096,
        depth: 2,
    };
    let hosts = pair(&dir, staging, 1 << 20);
    let hosts = &[&hosts[0], &hosts[1]];
    let (s, r) = connected(hosts, 0, 1, 7);
    let data = Rng::new(4).bytes(50_000);
    let src = adopt(hosts[0], data.clone());
    for len in [300_u32, 4096, 5000, 50_000] {
        let ts = (0, hosts[0].post(&at(send(s, 0, len), src.va(), 0)));
        let mut got = 0;
        while got < u64::from(len) {
            let c = call(hosts, 1, &recv_some(r, got, 60_000));
            assert_eq!(c.status, Status::Ok, "{len} bytes, {got} so far");
            got += c.bytes;
        }
        assert_eq!(settle(hosts, &[ts])[0].status, Status::Ok);
        assert!(hosts[1].peek(0, len as usize) == data[..len as usize]);
    }
}

#[test]
fn many_sends_share_the_room_in_order() {
    let dir = TempDir::new();
    let staging = StagingConfig {
        chunk: 4096,
        depth: 3,
    };
    let hosts = pair(&dir, staging, 1 << 20);
    let hosts = &[&hosts[0], &hosts[1]];
    let (s, r) = connected(hosts, 0, 1, 7);
    let mut rng = Rng::new(5);
    let data = [rng.bytes(300_000), rng.bytes(300_000)];
    let bufs = [
        adopt(hosts[0], data[0].clone()),
        adopt(hosts[1], data[1].clone()),
    ];
    // Both directions at once; small ones travel in lines between the staged ones.
    let mut tickets = Vec::new();
    for (i, (from, to)) in [(s, r), (r, s)].into_iter().enumerate() {
        let mut done = 0;
        while done < 300_000 {
            let len = (1 + rng.below(9000)).min(300_000 - done);
            tickets.push((i, at(send(from, 0, len as u32), bufs[i].va(), done)));
            done += len;
        }
        tickets.push((1 - i, recv(to, 1 << 20, 300_000)));
    }
    // A queue has 256 slots; the oldest are settled as it fills.
    let posted: Vec<_> = tickets
        .iter()
        .map(|(h, d)| (*h, hosts[*h].post(d)))
        .collect();
    for c in settle(hosts, &posted) {
        assert_eq!(c.status, Status::Ok);
    }
    assert!(hosts[1].peek(1 << 20, 300_000) == data[0]);
    assert!(hosts[0].peek(1 << 20, 300_000) == data[1]);
}

#[test]
fn without_room_in_nic_memory_bytes_still_arrive() {
    let dir = TempDir::new();
    let hosts = pair(
        &dir,
        StagingConfig {
            chunk: 64 << 10,
            depth: 4,
        },
        1 << 20,
    );
    let hosts = &[&hosts[0], &hosts[1]];
    let (s, r) = connected(hosts, 0, 1, 7);
    let data = Rng::new(9).bytes(100_001);
    let src = adopt(hosts[0], data.clone());
    let all = hosts[0]
        .nic
        .alloc_on_nic(hosts[0].pd, 1 << 20, Access::LOCAL);
    let mut all = Some(all.expect("the whole board"));
    // Full; then with a hole that is smaller than the setting asks for; then empty.
    for staged in [false, true, true] {
        hosts[1].poke(0, &vec![0; 100_001]);
        let before = hosts[0].nic.counters().staged_bytes;
        let tickets = [
            (1, hosts[1].post(&recv(r, 0, 100_001))),
            (0, hosts[0].post(&at(send(s, 0, 100_001), src.va(), 0))),
        ];
        for c in settle(hosts, &tickets) {
            assert_eq!((c.status, c.bytes), (Status::Ok, 100_001));
        }
        assert!(hosts[1].peek(0, 100_001) == data);
        assert_eq!(hosts[0].nic.counters().staged_bytes > before, staged);
        let had = all.take();
        if !staged {
            drop(had);
            let most = (1 << 20) - (20 << 10);
            let most = hosts[0].nic.alloc_on_nic(hosts[0].pd, most, Access::LOCAL);
            all = Some(most.expect("most of the board"));
        }
    }
}

/// A NIC over a memory that finishes reads late and in another order.
struct Slow {
    memory: Arc<DelayedMemory>,
    nic: Nic,
    queue: HostQueue,
    seed: u64,
}

impl Slow {
    fn new(dir: &TempDir, n: u8, seed: u64, staging: StagingConfig) -> Slow {
        let s = Setup::new(dir, n);
        let memory = Arc::new(DelayedMemory::new(s.memory_bytes, seed).expect("memory"));
        let mut local = s.local;
        local.staging = staging;
        let nic = Nic::builder(s.nic, memory.clone()).local(local).build();
        let nic = nic.expect("NIC");
        let pd = nic.alloc_pd().expect("domain");
        let queue = nic.create_queue(pd, s.queue).expect("queue");
        let slow = Slow {
            memory,
            nic,
            queue,
            seed,
        };
        slow.nic.map(slow.view().table()).expect("map");
        slow.nic
            .register(pd, BASE, s.memory_bytes, Access::LOCAL)
            .expect("register");
        slow
    }

    fn view(&self) -> GpuView<'_> {
        GpuView::new(self.memory.host(), BASE, Layout::Scattered(self.seed))
    }

    fn post(&self, d: &Descriptor) -> u32 {
        self.queue.try_post(d).expect("room")
    }
}

fn wait(nics: &[Slow; 2], i: usize, t: u32) -> Completion {
    let start = Instant::now();
    loop {
        if let Some(c) = nics[i].queue.poll(t) {
            return c;
        }
        assert!(start.elapsed() < LIMIT, "{}", nics[i].nic.describe());
        for n in nics {
            n.nic.step();
        }
    }
}

fn open(nics: &[Slow; 2], port: u16) -> (SessionId, SessionId) {
    let call = |i: usize, d| wait(nics, i, nics[i].post(&d));
    let l = session_of(call(1, socket()));
    assert_eq!(call(1, listen(l, port)).status, Status::Ok);
    let s = session_of(call(0, socket()));
    let ip = nics[1].nic.config().ip;
    let tc = nics[0].post(&connect(s, ip, port));
    let r = session_of(call(1, accept(l)));
    assert_eq!(wait(nics, 0, tc).status, Status::Ok);
    (s, r)
}

#[test]
fn an_asynchronous_memory_is_read_piece_by_piece() {
    for seed in 0..6 {
        let dir = TempDir::new();
        let staging = StagingConfig {
            chunk: [4096, 64 << 10, 300_000][seed as usize % 3],
            depth: 2 + seed as u32 % 4,
        };
        let nics = [1, 2].map(|n| Slow::new(&dir, n, seed + 10 * u64::from(n), staging));
        let (s, r) = open(&nics, 7);
        let mut rng = Rng::new(seed);
        for len in [41_usize, 121, 5000, 65_537, 700_001] {
            let data = rng.bytes(len);
            nics[0].view().write(GpuVa(BASE.0 + 33), &data);
            let before = nics[0].nic.counters().copied_bytes;
            let tr = nics[1].post(&recv(r, 77, len as u32));
            let ts = nics[0].post(&send(s, 33, len as u32));
            let c = wait(&nics, 1, tr);
            assert_eq!((c.status, c.bytes), (Status::Ok, len as u64));
            let mut got = vec![0; len];
            nics[1].view().read(GpuVa(BASE.0 + 77), &mut got);
            assert!(got == data, "seed {seed}: {len} bytes");
            assert_eq!(wait(&nics, 0, ts).status, Status::Ok);
            assert_eq!(nics[0].nic.counters().copied_bytes - before, len as u64);
        }
    }
}

/// What an engine makes of a stream.
fn model(spec: &str, data: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let mut engine = Registry::builtin().make(spec).expect("a good text");
    let (mut out, mut result) = (Vec::new(), Vec::new());
    engine.process(data, &mut out);
    engine.result(&mut result);
    (if engine.is_tap() { data.to_vec() } else { out }, result)
}

#[test]
fn an_engine_at_the_sender_sees_each_staged_byte_once() {
    let lens = [41_usize, 121, 5000, 65_537, 200_001];
    for spec in ["checksum", "hll:p=8,width=2", "cast:bf16-f32"] {
        let data = Rng::new(5).bytes(lens.iter().sum());
        let (out, result) = model(spec, &data);
        let engine = || Registry::builtin().make(spec).expect("a good text");
        // Memory of the program, which the peer cannot map.
        let dir = TempDir::new();
        let staging = StagingConfig {
            chunk: 5000,
            depth: 3,
        };
        let hosts = pair(&dir, staging, 4 << 20);
        let hosts = &[&hosts[0], &hosts[1]];
        let (s, r) = connected(hosts, 0, 1, 7);
        let nic = &hosts[0].nic;
        let id = nic.attach_engine(s, Direction::Send, engine());
        let id = id.expect("attach");
        let src = adopt(hosts[0], data.clone());
        let mut tickets = vec![(1, hosts[1].post(&recv(r, 3, out.len() as u32)))];
        let mut from = 0;
        for len in lens {
            let d = at(send(s, 0, len as u32), src.va(), from);
            tickets.push((0, hosts[0].post(&d)));
            from += len as u64;
        }
        assert!(settle(hosts, &tickets)
            .iter()
            .all(|c| c.status == Status::Ok));
        assert!(hosts[1].peek(3, out.len()) == out, "{spec}");
        let got = nic.engine_result(id).expect("there").bytes;
        assert!(got == result, "{spec}: staged");
        // A memory that answers late.
        let dir = TempDir::new();
        let nics = [1, 2].map(|n| Slow::new(&dir, n, 30 + u64::from(n), staging));
        let (s, r) = open(&nics, 7);
        let id = nics[0].nic.attach_engine(s, Direction::Send, engine());
        let id = id.expect("attach");
        nics[0].view().write(GpuVa(BASE.0 + 33), &data);
        let tr = nics[1].post(&recv(r, 77, out.len() as u32));
        let mut from = 33;
        for len in lens {
            let ts = nics[0].post(&send(s, from, len as u32));
            assert_eq!(wait(&nics, 0, ts).status, Status::Ok);
            from += len as u64;
        }
        assert_eq!(wait(&nics, 1, tr).status, Status::Ok);
        let mut got = vec![0; out.len()];
        nics[1].view().read(GpuVa(BASE.0 + 77), &mut got);
        assert!(got == out, "{spec}: late");
        let got = nics[0].nic.engine_result(id).expect("there").bytes;
        assert!(got == result, "{spec}: late");
    }
}

/// A read that was cancelled with its connection must not answer for a later one of the same bytes.
#[test]
fn a_cancelled_read_answers_no_later_one() {
    let mut aborted = 0;
    // Staged, and so small that it is read line by line.
    for (seed, len) in (0..20).flat_map(|seed| [(seed, 40_000_u32), (seed, 100)]) {
        let dir = TempDir::new();
        let staging = StagingConfig {
            chunk: 4096,
            depth: 4,
        };
        let nics = [1, 2].map(|n| Slow::new(&dir, n, seed + 10 * u64::from(n), staging));
        let (s, _r) = open(&nics, 7);
        let (old, new) = (vec![1_u8; len as usize], vec![2_u8; len as usize]);
        nics[0].view().write(BASE, &old);
        let first = nics[0].post(&send(s, 0, len));
        for _ in 0..1 + seed % 7 {
            nics[0].nic.step();
        }
        assert_eq!(wait(&nics, 0, nics[0].post(&abort(s))).status, Status::Ok);
        // So few bytes may have left before that.
        let ended = wait(&nics, 0, first).status;
        assert!(ended == Status::Aborted || (len == 100 && ended == Status::Ok));
        aborted += u32::from(ended == Status::Aborted);
        // Aborted means: the buffer is the program's again.
        nics[0].view().write(BASE, &new);
        let (s, r) = open(&nics, 8);
        let tr = nics[1].post(&recv(r, 0, len));
        let ts = nics[0].post(&send(s, 0, len));
        assert_eq!(wait(&nics, 1, tr).status, Status::Ok);
        assert_eq!(wait(&nics, 0, ts).status, Status::Ok);
        let mut got = vec![0; len as usize];
        nics[1].view().read(BASE, &mut got);
        assert!(got == new, "seed {seed}, {len} bytes: old bytes were sent");
    }
    assert!(aborted > 20, "{aborted}");
}
