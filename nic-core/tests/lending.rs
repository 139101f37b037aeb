//! Memory that no CPU maps, exported to a peer beside the same GPU: one copy from memory to memory by an engine that ends
//! late and in another order, and all failures that may happen meanwhile.

#![allow(clippy::disallowed_methods)] // Tests at the edge: deadlines, so that a hang fails.

use crate::nic_support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use nic_support::*;
use ringbell_gtlb::testing::{DelayedMemory, GpuView, Layout, Rng};
use ringbell_gtlb::{Access, DeregisterError, MemoryRegion};
use ringbell_nic_abi::{Completion, Descriptor, GpuVa, Opcode, SessionId, Status};
use ringbell_nic_core::engine::Direction;
use ringbell_nic_core::{HostQueue, Nic};
use ringbell_onc_engines::stream::Registry;

const LIMIT: Duration = Duration::from_secs(60);
const MEMORY: u64 = 8 << 20;
/// The pages of both NICs, which use a half each.
const LAYOUT: Layout = Layout::Scattered(3);
const HALF: u64 = MEMORY / 2;

/// A NIC beside a GPU whose memory only its engine reaches.
struct Late {
    memory: Arc<DelayedMemory>,
    nic: Nic,
    queue: HostQueue,
    region: MemoryRegion,
}

impl Late {
    fn new(dir: &TempDir, n: u8, memory: DelayedMemory) -> Late {
        let mut s = Setup::new(dir, n);
        s.nic.deregister_timeout = Duration::from_millis(300);
        // Slots are used in order: a send that waits keeps those behind it.
        s.queue.depth = 4096;
        let memory = Arc::new(memory);
        let nic = Nic::builder(s.nic, memory.clone()).local(s.local).build();
        let nic = nic.expect("NIC");
        let pd = nic.alloc_pd().expect("domain");
        let queue = nic.create_queue(pd, s.queue).expect("queue");
        let view = GpuView::new(memory.host(), BASE, LAYOUT);
        nic.map(view.table()).expect("map");
        let region = nic.register(pd, BASE, MEMORY, Access::LOCAL);
        Late {
            region: region.expect("register"),
            memory,
            nic,
            queue,
        }
    }

    fn view(&self) -> GpuView<'_> {
        GpuView::new(self.memory.host(), BASE, LAYOUT)
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        self.view().write(GpuVa(BASE.0 + offset), bytes);
    }

    fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.view().read(GpuVa(BASE.0 + offset), &mut bytes);
        bytes
    }

    fn post(&self, d: &Descriptor) -> u32 {
        self.queue.try_post(d).expect("room")
    }
}

/// Two NICs beside one GPU.
fn pair(dir: &TempDir, seed: u64) -> [Late; 2] {
    let first = DelayedMemory::new(MEMORY, seed).expect("memory");
    let second = first.beside(seed + 100);
    [Late::new(dir, 1, first), Late::new(dir, 2, second)]
}

fn until(nics: &[Late; 2], what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(
            start.elapsed() < LIMIT,
            "{what}: {}",
            nics[0].nic.describe()
        );
        nics.iter().for_each(|n| {
            n.nic.step();
        });
    }
}

fn wait(nics: &[Late; 2], i: usize, t: u32) -> Completion {
    let mut found = None;
    until(nics, "a completion", || {
        found = nics[i].queue.poll(t);
        found.is_some()
    });
    found.expect("there")
}

fn open(nics: &[Late; 2], port: u16) -> (SessionId, SessionId) {
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

/// Waits until each copies from the other's memory.
fn lent(nics: &[Late; 2]) {
    until(nics, "the loans", || {
        let said = |n: &Late| {
            n.nic
                .describe()
                .contains("from 1 allocations of ours and we from 1")
        };
        nics.iter().all(said)
    });
}

/// Steps until the second NIC copies, and some steps more; then its engine rests for longer than operations may take.
fn while_it_copies(nics: &[Late; 2], more: u64) {
    until(nics, "a copy", || nics[1].memory.pending() > 0);
    for _ in 0..more % 8 {
        nics[1].nic.step();
    }
    nics[1].memory.hold(true);
    let start = Instant::now();
    until(nics, "time", || start.elapsed() > Duration::from_millis(12));
    nics[1].memory.hold(false);
}

#[test]
fn bytes_go_once_from_memory_to_memory() {
    for seed in 0..6 {
        let dir = TempDir::new();
        let nics = pair(&dir, seed);
        let (s, r) = open(&nics, 7);
        lent(&nics);
        let mut rng = Rng::new(seed);
        for (i, len) in [41_usize, 121, 5000, 65_537, 700_001]
            .into_iter()
            .enumerate()
        {
            let from = 33 + 7 * i as u64;
            let to = HALF + 77 - i as u64;
            let data = rng.bytes(len);
            nics[0].write(from, &data);
            nics[1].write(to, &vec![0; len]);
            let before = nics.each_ref().map(|n| n.nic.counters());
            let tr = nics[1].post(&recv(r, to, len as u32));
            let ts = nics[0].post(&send(s, from, len as u32));
            let c = wait(&nics, 1, tr);
            // The completion was published, and with it the bytes.
            assert!(nics[1].read(to, len) == data, "seed {seed}: {len} bytes");
            assert_eq!((c.status, c.bytes), (Status::Ok, len as u64));
            assert_eq!(wait(&nics, 0, ts).status, Status::Ok);
            let after = nics.each_ref().map(|n| n.nic.counters());
            let direct = after[1].direct_bytes - before[1].direct_bytes;
            let small = len <= 120;
            assert_eq!(direct, if small { 0 } else { len as u64 }, "{len}");
            assert_eq!(after[1].copied_bytes - before[1].copied_bytes, len as u64);
            assert_eq!(after[0].staged_bytes, before[0].staged_bytes);
            assert_eq!(after[0].direct_bytes, before[0].direct_bytes);
        }
        assert!(nics[1].memory.copies() > 4, "{}", nics[1].memory.copies());
    }
}

/// `COPY` inside a memory that no CPU maps never leaves it.
#[test]
fn a_copy_of_a_descriptor_stays_in_memory() {
    for seed in 0..3 {
        let dir = TempDir::new();
        let nics = pair(&dir, seed);
        for (len, burst) in [(1_u32, 0), (300_007, 0), (700_001, 99_991)] {
            let data = Rng::new(seed).bytes(len as usize);
            nics[0].write(11, &data);
            let d = Descriptor {
                local_va: GpuVa(BASE.0 + 11),
                remote_va: GpuVa(BASE.0 + HALF + 5),
                len,
                imm: burst,
                ..Descriptor::new(Opcode::Copy)
            };
            let before = nics[0].nic.counters();
            let c = wait(&nics, 0, nics[0].post(&d));
            assert_eq!((c.status, c.bytes), (Status::Ok, len.into()));
            assert!(nics[0].read(HALF + 5, len as usize) == data, "{len}");
            let after = nics[0].nic.counters();
            assert_eq!(after.direct_bytes - before.direct_bytes, len.into());
            assert_eq!(after.copied_bytes - before.copied_bytes, len.into());
        }
    }
}

/// What our own engine has still to write is not the peer's to read: a collective sends what it has just reduced.
#[test]
fn a_peer_reads_nothing_before_our_own_engine_has_written_it() {
    for seed in 0..6 {
        let dir = TempDir::new();
        let nics = pair(&dir, seed);
        let (s, r) = open(&nics, 7);
        lent(&nics);
        let (len, between, to) = (5000_u32, 3 * 65536 + 5, HALF + 65536 + 77);
        let data = Rng::new(seed + 9).bytes(len as usize);
        nics[0].write(11, &data);
        nics[0].memory.hold(true);
        let copying = nics[0].post(&Descriptor {
            local_va: GpuVa(BASE.0 + 11),
            remote_va: GpuVa(BASE.0 + between),
            len,
            ..Descriptor::new(Opcode::Copy)
        });
        until(&nics, "the copy", || nics[0].memory.pending() > 0);
        let tr = nics[1].post(&recv(r, to, len));
        let ts = nics[0].post(&send(s, between, len));
        let start = Instant::now();
        until(&nics, "time", || start.elapsed() > Duration::from_millis(5));
        nics[0].memory.hold(false);
        assert_eq!(wait(&nics, 1, tr).bytes, u64::from(len));
        assert!(nics[1].read(to, len as usize) == data, "seed {seed}");
        assert_eq!(wait(&nics, 0, ts).status, Status::Ok);
        assert_eq!(wait(&nics, 0, copying).status, Status::Ok);
        assert_eq!(nics[0].nic.counters().staged_bytes, 0, "by the peer");
    }
}

/// Both ways at once, many messages in the window, lines of small ones between, receives that are cut elsewhere.
#[test]
fn a_window_of_messages_stays_a_stream() {
    for seed in 0..8 {
        let dir = TempDir::new();
        let nics = pair(&dir, seed);
        let (s, r) = open(&nics, 7);
        if seed % 2 == 0 {
            lent(&nics); // else it becomes so on the way
        }
        let mut rng = Rng::new(50 + seed);
        const LEN: u64 = 400_001;
        let data = [rng.bytes(LEN as usize), rng.bytes(LEN as usize)];
        let mut jobs = Vec::new();
        for (i, (from, to)) in [(s, r), (r, s)].into_iter().enumerate() {
            let own = i as u64 * HALF;
            let others = HALF - own + (1 << 20);
            nics[i].write(own, &data[i]);
            for (who, session, base, sends) in [(i, from, own, true), (1 - i, to, others, false)] {
                let (mut done, mut all) = (0, Vec::new());
                while done < LEN {
                    let most = [90, 9000, 100_000][rng.below(3) as usize];
                    let len = (1 + rng.below(most)).min(LEN - done);
                    let d = match sends {
                        true => send(session, base + done, len as u32),
                        false => recv(session, base + done, len as u32),
                    };
                    all.push(d);
                    done += len;
                }
                jobs.push((who, all));
            }
        }
        // A queue has room for some of them at a time.
        let mut open: Vec<(usize, u32)> = Vec::new();
        while jobs.iter().any(|(_, all)| !all.is_empty()) {
            for (who, all) in &mut jobs {
                if let Some(d) = all.first() {
                    if let Some(t) = nics[*who].queue.try_post(d) {
                        open.push((*who, t));
                        all.remove(0);
                    }
                }
            }
            nics.iter().for_each(|n| {
                n.nic.step();
            });
            if open.len() > 100 {
                for (who, t) in open.drain(..20) {
                    assert_eq!(wait(&nics, who, t).status, Status::Ok);
                }
            }
        }
        for (who, t) in open {
            assert_eq!(wait(&nics, who, t).status, Status::Ok);
        }
        for i in 0..2 {
            let at = HALF - i as u64 * HALF + (1 << 20);
            assert!(
                nics[1 - i].read(at, LEN as usize) == data[i],
                "seed {seed}, {i}"
            );
        }
    }
}

#[test]
fn early_bytes_and_receives_of_available_bytes() {
    for seed in 0..4 {
        let dir = TempDir::new();
        let nics = pair(&dir, seed);
        let (s, r) = open(&nics, 7);
        lent(&nics);
        let data = Rng::new(seed).bytes(150_001);
        nics[0].write(0, &data);
        for len in [300_u32, 5000, 150_001] {
            let ts = nics[0].post(&send(s, 0, len));
            if seed % 2 == 0 {
                // No receive waits for them for so long that they are fetched, as far as the window goes.
                let copied = nics[1].nic.counters().copied_bytes;
                until(&nics, "early bytes", || {
                    nics[1].nic.counters().copied_bytes > copied
                });
            }
            let mut got = 0;
            while got < u64::from(len) {
                let t = nics[1].post(&recv_some(r, HALF + got, 60_000));
                let c = wait(&nics, 1, t);
                assert_eq!(c.status, Status::Ok, "{len} bytes, {got} so far");
                got += c.bytes;
            }
            assert_eq!(wait(&nics, 0, ts).status, Status::Ok);
            assert!(nics[1].read(HALF, len as usize) == data[..len as usize]);
        }
    }
}

#[test]
fn memory_that_the_engine_does_not_write_is_read_into() {
    let dir = TempDir::new();
    let nics = pair(&dir, 5);
    let (s, r) = open(&nics, 7);
    lent(&nics);
    let pd = nics[1].region.pd;
    let host = nics[1]
        .nic
        .alloc_host(pd, 800_000, Access::LOCAL)
        .expect("host");
    let board = nics[1]
        .nic
        .alloc_on_nic(pd, 800_000, Access::LOCAL)
        .expect("board");
    let data = Rng::new(8).bytes(700_001);
    nics[0].write(9, &data);
    for va in [host.va(), board.va()] {
        let d = Descriptor {
            local_va: va,
            ..recv(r, 0, 700_001)
        };
        let (tr, ts) = (nics[1].post(&d), nics[0].post(&send(s, 9, 700_001)));
        assert_eq!(wait(&nics, 1, tr).status, Status::Ok);
        assert_eq!(wait(&nics, 0, ts).status, Status::Ok);
        // Back into GPU memory, to be looked at.
        let d = Descriptor {
            local_va: va,
            ..send(r, 0, 700_001)
        };
        nics[0].write(1 << 20, &vec![0; 700_001]);
        let (ts, tr) = (nics[1].post(&d), nics[0].post(&recv(s, 1 << 20, 700_001)));
        assert_eq!(wait(&nics, 0, tr).status, Status::Ok);
        assert_eq!(wait(&nics, 1, ts).status, Status::Ok);
        assert!(nics[0].read(1 << 20, 700_001) == data);
    }
    assert_eq!(nics[1].nic.counters().direct_bytes, 0);
    assert_eq!(nics[0].nic.counters().staged_bytes, 0);
}

#[test]
fn an_engine_at_either_end_sees_every_byte() {
    for (at, spec) in [(0, "checksum"), (1, "checksum"), (1, "cast:bf16-f32")] {
        let dir = TempDir::new();
        let nics = pair(&dir, 6);
        let (s, r) = open(&nics, 7);
        lent(&nics);
        let data = Rng::new(5).bytes(300_002);
        let mut model = Registry::builtin().make(spec).expect("a good text");
        let (mut out, mut result) = (Vec::new(), Vec::new());
        model.process(&data, &mut out);
        model.result(&mut result);
        if model.is_tap() {
            out = data.clone();
        }
        let engine = Registry::builtin().make(spec).expect("a good text");
        let (session, direction) = [(s, Direction::Send), (r, Direction::Receive)][at];
        let id = nics[at].nic.attach_engine(session, direction, engine);
        let id = id.expect("attach");
        nics[0].write(3, &data);
        let tr = nics[1].post(&recv(r, HALF, out.len() as u32));
        let ts = nics[0].post(&send(s, 3, data.len() as u32));
        assert_eq!(wait(&nics, 1, tr).status, Status::Ok);
        assert_eq!(wait(&nics, 0, ts).status, Status::Ok);
        assert!(nics[1].read(HALF, out.len()) == out, "{spec} at {at}");
        let got = nics[at].nic.engine_result(id).expect("there").bytes;
        assert!(got == result, "{spec} at {at}");
    }
}

/// A receive comes while the bytes are read early, and takes them by a copy of its own. The next message lies at the same
/// address: what was read for the one before is not delivered in its place.
#[test]
fn bytes_read_early_for_one_message_are_no_others() {
    for seed in 0..4 {
        let dir = TempDir::new();
        let nics = pair(&dir, seed);
        let (s, r) = open(&nics, 7);
        lent(&nics);
        let mut rng = Rng::new(seed);
        for round in 0..40 {
            let data = rng.bytes(5003);
            nics[0].write(0, &data);
            let ts = nics[0].post(&send(s, 0, 5003));
            until(&nics, "an early read", || nics[1].memory.pending() > 0);
            for _ in 0..rng.below(8) {
                nics[1].nic.step();
            }
            let tr = nics[1].post(&recv(r, HALF, 5003));
            for (i, t) in [(1, tr), (0, ts)] {
                let c = wait(&nics, i, t);
                assert_eq!((c.status, c.bytes), (Status::Ok, 5003));
            }
            let got = nics[1].read(HALF, 5003);
            assert!(got == data, "seed {seed}, round {round}: other bytes");
        }
    }
}

/// What was read early into the NIC is given back to the byte: the whole window is used again and again.
#[test]
fn the_window_of_early_reads_is_given_back() {
    let dir = TempDir::new();
    let nics = pair(&dir, 3);
    let (s, r) = open(&nics, 7);
    lent(&nics);
    let window = Setup::new(&dir, 1).local.early_window as u64;
    let quarter = window / 4;
    let data = Rng::new(3).bytes(window as usize);
    nics[0].write(0, &data);
    for round in 0..20 {
        // Each send ends only when its bytes were read, because no receive is there.
        let sends: Vec<u32> = (0..4)
            .map(|i| nics[0].post(&send(s, i * quarter, quarter as u32)))
            .collect();
        for t in sends {
            assert_eq!(wait(&nics, 0, t).status, Status::Ok, "round {round}");
        }
        let t = nics[1].post(&recv(r, HALF, window as u32));
        assert_eq!(wait(&nics, 1, t).status, Status::Ok, "round {round}");
        assert!(nics[1].read(HALF, window as usize) == data, "round {round}");
    }
}

/// Aborted while the peer's engine copies, and no word of it comes through to the peer: what was copied is not delivered.
#[test]
fn a_buffer_taken_back_while_it_is_copied_is_no_message() {
    const LEN: u32 = 6000;
    for early in [false, true] {
        let dir = TempDir::new();
        let nics = pair(&dir, 1);
        let (s, r) = open(&nics, 7);
        let (fill, drain) = open(&nics, 8);
        lent(&nics);
        nics[0].write(0, &[1; LEN as usize]);
        let receive = recv(r, HALF, LEN);
        let waiting = (!early).then(|| nics[1].post(&receive));
        nics[1].memory.hold(true);
        let sent = nics[0].post(&send(s, 0, LEN));
        until(&nics, "a copy", || nics[1].memory.pending() > 0);
        // The peer stands still from here on, and the ring to it is filled by another connection.
        let alone = |t: u32, most: u32| {
            (0..most).find_map(|_| {
                nics[0].nic.step();
                nics[0].queue.poll(t)
            })
        };
        while alone(nics[0].post(&send_inline(fill, &[9; 40])), 1000).is_some() {}
        nics[0].post(&abort(s));
        let ended = alone(sent, 1_000_000).expect("it ends without the peer");
        assert_eq!(ended.status, Status::Aborted);
        // The buffer is the program's again before the engine reads it.
        nics[0].write(0, &[2; LEN as usize]);
        nics[1].memory.hold(false);
        for _ in 0..200 {
            nics[1].nic.step();
        }
        let waiting = waiting.unwrap_or_else(|| nics[1].post(&receive));
        let start = Instant::now();
        let c = loop {
            nics[1].nic.step();
            if let Some(c) = nics[1].queue.poll(waiting) {
                break c;
            }
            assert!(start.elapsed() < LIMIT, "hung");
        };
        let got = (c.status, c.bytes);
        assert_eq!(got, (Status::ConnectionReset, 0), "early: {early}");
        // The other connection goes on.
        let t = nics[1].post(&recv(drain, HALF, 40));
        assert_eq!(wait(&nics, 1, t).status, Status::Ok);
    }
}

/// A receive that is given up while its bytes are on their way: later bytes are whole, and the buffer is the
/// program's after the completion.
#[test]
fn a_receive_that_is_given_up_leaves_its_buffer_and_the_stream_alone() {
    let (mut late, mut in_time, mut broken) = (0, 0, 0);
    for seed in 0..30 {
        let dir = TempDir::new();
        let nics = pair(&dir, seed);
        let (s, r) = open(&nics, 7);
        lent(&nics);
        const LEN: u32 = 1_500_001;
        let data = Rng::new(seed).bytes(LEN as usize);
        nics[0].write(0, &data);
        let ts = nics[0].post(&send(s, 0, LEN));
        let hurried = nics[1].post(&within(recv(r, HALF, LEN), 5_000));
        while_it_copies(&nics, seed);
        let c = wait(&nics, 1, hurried);
        match (c.status, c.bytes) {
            (Status::Ok, _) => in_time += 1,
            (Status::TimedOut, 0) => {
                late += 1;
                let mine = vec![0xa5; LEN as usize];
                nics[1].write(HALF, &mine);
                let next = nics[1].post(&recv(r, HALF + (2 << 20), LEN));
                assert_eq!(wait(&nics, 1, next).status, Status::Ok);
                assert!(
                    nics[1].read(HALF + (2 << 20), LEN as usize) == data,
                    "{seed}"
                );
                for _ in 0..200 {
                    nics[1].nic.step();
                }
                assert!(
                    nics[1].read(HALF, LEN as usize) == mine,
                    "{seed}: written late"
                );
            }
            (Status::TimedOut, n) => {
                assert!(n < u64::from(LEN));
                broken += 1;
                assert_ne!(wait(&nics, 0, ts).status, Status::Ok);
                continue;
            }
            other => panic!("seed {seed}: {other:?}"),
        }
        assert_eq!(wait(&nics, 0, ts).status, Status::Ok);
    }
    // How often which happens is the seeds' and the machine's, but some are given up on any.
    assert!(late + broken > 5, "{late} {in_time} {broken}");
}

/// A send that is given up: its buffer is written again at once, and the receiver never takes that for the message.
#[test]
fn a_send_that_is_given_up_is_no_message() {
    let mut given_up = 0;
    for seed in 0..30 {
        let dir = TempDir::new();
        let nics = pair(&dir, seed);
        let (s, r) = open(&nics, 7);
        lent(&nics);
        const LEN: u32 = 1_500_001;
        let data = Rng::new(seed).bytes(LEN as usize);
        nics[0].write(0, &data);
        let tr = nics[1].post(&recv(r, HALF, LEN));
        let ts = nics[0].post(&within(send(s, 0, LEN), 5_000));
        while_it_copies(&nics, seed);
        let c = wait(&nics, 0, ts);
        if c.status != Status::Ok {
            given_up += 1;
            nics[0].write(0, &vec![0xee; LEN as usize]);
        }
        let got = wait(&nics, 1, tr);
        if got.status == Status::Ok {
            assert!(
                nics[1].read(HALF, LEN as usize) == data,
                "{seed}: not the message"
            );
        } else {
            assert_ne!(c.status, Status::Ok, "{seed}: {:?}", got.status);
        }
    }
    assert!(given_up > 5, "{given_up}");
}

#[test]
fn a_region_is_freed_once_its_importer_has_released_it() {
    let dir = TempDir::new();
    let nics = pair(&dir, 9);
    let (s, r) = open(&nics, 7);
    lent(&nics);
    assert_eq!(nics[1].memory.imported(), 1);
    // No thread steps the importer: the region is kept, and nothing hangs.
    let lkey = nics[0].region.lkey;
    let kept = nics[0].nic.deregister(lkey);
    assert_eq!(kept, Err(DeregisterError::Imported { lkey, peers: 1 }));
    assert_eq!(nics[1].memory.imported(), 1);
    until(&nics, "the way back", || nics[1].memory.imported() == 0);
    // The confirmation is on its way.
    until(&nics, "the end", || nics[0].nic.deregister(lkey).is_ok());
    // The other direction is as it was.
    let data = Rng::new(8).bytes(10_000);
    let host = nics[0]
        .nic
        .alloc_host(nics[0].region.pd, 10_000, Access::LOCAL);
    let host = host.expect("host memory");
    nics[1].write(HALF, &data);
    let d = Descriptor {
        local_va: host.va(),
        ..recv(s, 0, 10_000)
    };
    let (tr, ts) = (nics[0].post(&d), nics[1].post(&send(r, HALF, 10_000)));
    assert_eq!(wait(&nics, 0, tr).status, Status::Ok);
    assert_eq!(wait(&nics, 1, ts).status, Status::Ok);
    // Registered again, it is exported again.
    let again = nics[0]
        .nic
        .register(nics[0].region.pd, BASE, MEMORY, Access::LOCAL);
    again.expect("free again");
    until(&nics, "the new loan", || nics[1].memory.imported() == 1);
}

#[test]
fn a_peer_that_is_gone_holds_nothing() {
    let dir = TempDir::new();
    let [a, b] = pair(&dir, 11);
    let both = [a, b];
    let (_s, _r) = open(&both, 7);
    lent(&both);
    let [a, b] = both;
    assert_eq!(a.memory.imported(), 1);
    drop(b);
    let start = Instant::now();
    // Its end is seen at the socket; then its memory goes back and ours is free.
    while a.memory.imported() > 0 {
        a.nic.step();
        assert!(start.elapsed() < LIMIT);
    }
    a.nic.deregister(a.region.lkey).expect("no peer holds it");
}

#[test]
fn memory_of_another_gpu_is_staged_and_reported() {
    let dir = TempDir::new();
    let memories = [1, 2].map(|seed| DelayedMemory::new(MEMORY, seed).expect("memory"));
    let [first, second] = memories;
    let nics = [
        Late::new(&dir, 1, first),
        Late::new(&dir, 2, second.alone()),
    ];
    let (s, r) = open(&nics, 7);
    until(&nics, "the refusal", || {
        nics[0].nic.describe().contains("1 are staged, because")
    });
    let own = nics[1].nic.describe();
    assert!(own.contains("1 regions are staged for every peer"), "{own}");
    let data = Rng::new(3).bytes(70_000);
    nics[0].write(1, &data);
    let tr = nics[1].post(&recv(r, 2, 70_000));
    let ts = nics[0].post(&send(s, 1, 70_000));
    assert_eq!(wait(&nics, 1, tr).status, Status::Ok);
    assert_eq!(wait(&nics, 0, ts).status, Status::Ok);
    assert!(nics[1].read(2, 70_000) == data);
    assert_eq!(nics[0].nic.counters().staged_bytes, 70_000);
    assert_eq!(nics[1].nic.counters().direct_bytes, 0);
    // What was refused is free at once.
    nics[0].nic.deregister(nics[0].region.lkey).expect("free");
}
