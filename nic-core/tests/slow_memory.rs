//! Messages between two NICs whose memory no CPU maps: staged in NIC memory by engines that end
//! late and in another order.

#![allow(clippy::disallowed_methods)] // Tests at the edge: deadlines, so that a hang fails.

use crate::nic_support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use nic_support::*;
use ringbell_gtlb::testing::{DelayedMemory, GpuView, Layout, Rng};
use ringbell_gtlb::{Access, MemoryRegion};
use ringbell_nic_abi::{Completion, Descriptor, GpuVa, Opcode, SessionId, Status};
use ringbell_nic_core::engine::Direction;
use ringbell_nic_core::{HostQueue, Nic};
use ringbell_onc_engines::stream::Registry;

const LIMIT: Duration = Duration::from_secs(60);
const MEMORY: u64 = 8 << 20;
/// The pages of each NIC.
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

/// Two NICs of one host.
fn pair(dir: &TempDir, seed: u64) -> [Late; 2] {
    [1, 2].map(|n| {
        let memory = DelayedMemory::new(MEMORY, seed + 100 * u64::from(n));
        Late::new(dir, n, memory.expect("memory"))
    })
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
            assert_eq!(after.direct_bytes - before.direct_bytes, u64::from(len));
            assert_eq!(after.copied_bytes - before.copied_bytes, u64::from(len));
        }
    }
}

/// What our own engine has still to write is not sent before: a collective sends what it has just
/// reduced.
#[test]
fn nothing_is_sent_before_our_own_engine_has_written_it() {
    for seed in 0..6 {
        let dir = TempDir::new();
        let nics = pair(&dir, seed);
        let (s, r) = open(&nics, 7);
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
    }
}

/// Both ways at once, many messages in the window, lines of small ones between, receives that are
/// cut elsewhere.
#[test]
fn a_window_of_messages_stays_a_stream() {
    for seed in 0..8 {
        let dir = TempDir::new();
        let nics = pair(&dir, seed);
        let (s, r) = open(&nics, 7);
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
        let data = Rng::new(seed).bytes(150_001);
        nics[0].write(0, &data);
        for len in [300_u32, 5000, 150_001] {
            let ts = nics[0].post(&send(s, 0, len));
            if seed % 2 == 0 {
                // No receive waits for them for so long that they are fetched, as far as the window
                // goes.
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
fn memory_that_the_engine_does_not_write_is_received_into() {
    let dir = TempDir::new();
    let nics = pair(&dir, 5);
    let (s, r) = open(&nics, 7);
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
}

#[test]
fn an_engine_at_either_end_sees_every_byte() {
    for (at, spec) in [(0, "checksum"), (1, "checksum"), (1, "cast:bf16-f32")] {
        let dir = TempDir::new();
        let nics = pair(&dir, 6);
        let (s, r) = open(&nics, 7);
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

/// What was read early into the NIC is given back to the byte: the whole window is used again and
/// again.
#[test]
fn the_window_of_early_reads_is_given_back() {
    let dir = TempDir::new();
    let nics = pair(&dir, 3);
    let (s, r) = open(&nics, 7);
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
