//! The NIC of `ringbell-nic-core` with `nic_top` behind it, driven by descriptors as a kernel
//! would: streams over each transport, entries of the card's GTLB that vanish under way, deadlines,
//! ends of streams, and more connections than the card has. `ring`: collectives.

mod ring;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use crate::collective_support::nic::*;
use ringbell_gtlb::testing::Rng;
use ringbell_gtlb::LARGE_PAGE_BYTES;
use ringbell_hw_sim::card::{Bus, Card, Control, Cycles, Event, Io};
use ringbell_nic_abi::bar::Reg;
use ringbell_nic_abi::translation::GTLB_INVALIDATE;
use ringbell_nic_abi::{DataType, Descriptor, EngineId, Opcode, ReduceOp, SessionId, Status};
use ringbell_nic_core::card::{self as nic, CardCounts};
use ringbell_nic_core::engine::Direction;
use ringbell_nic_core::port::mem::MemSwitch;
use ringbell_nic_core::port::Checksums;
use ringbell_nic_core::transport::rdma::RdmaConfig;
use ringbell_nic_core::transport::tcp::TcpConfig;
use ringbell_nic_core::NicBuilder;
use ringbell_onc_engines::stream::checksum::ChecksumEngine;
use ringbell_onc_engines::stream::StreamEngine;

const READ_CYCLES: u64 = 60;

/// A card that loses the entry of an operation's memory at times, after the operation was posted.
struct Forgetful {
    card: Card,
    /// Loses that of one operation in so many; 0: of none.
    one_in: u64,
    /// Loses the next of a collective.
    in_ring: Arc<AtomicBool>,
    rng: Rng,
    base: u64,
}

impl Forgetful {
    /// After some cycles the card loses the entry of an address.
    fn lose(&mut self, va: u64, cycles: u64) {
        let cycles = self.rng.below(cycles);
        (0..cycles).for_each(|_| self.card.cycle());
        let index = (va - self.base) / LARGE_PAGE_BYTES;
        self.card.bar_write(Reg::GtlbIndex.offset(), index as u32);
        let lost = self
            .card
            .bar_write(Reg::GtlbCommand.offset(), GTLB_INVALIDATE);
        assert!(lost, "entry {index} is in the window");
    }
}

impl nic::Ring for Forgetful {
    fn most_steps(&self) -> usize {
        nic::Ring::most_steps(&self.card)
    }
    fn start(&mut self, steps: &[nic::RingStep], dtype: DataType, op: ReduceOp) {
        nic::Ring::start(&mut self.card, steps, dtype, op);
        let write = steps.iter().rev().find_map(|s| s.write);
        if let Some(va) = write.filter(|_| self.in_ring.swap(false, Ordering::Relaxed)) {
            self.lose(va, 300);
        }
    }
    fn give(&mut self, message: Vec<u8>) {
        nic::Ring::give(&mut self.card, message);
    }
    fn backlog(&self) -> usize {
        nic::Ring::backlog(&self.card)
    }
    fn grant(&mut self, messages: u32) {
        nic::Ring::grant(&mut self.card, messages);
    }
    fn event(&mut self) -> Option<nic::RingEvent> {
        nic::Ring::event(&mut self.card)
    }
    fn clear(&mut self) {
        nic::Ring::clear(&mut self.card);
    }
}

impl nic::Card for Forgetful {
    fn bar_read(&mut self, offset: usize) -> Option<u32> {
        self.card.bar_read(offset)
    }
    fn cycle(&mut self) {
        self.card.cycle();
    }
    fn is_busy(&self) -> bool {
        self.card.is_busy()
    }
    fn cycles(&self) -> Cycles {
        self.card.cycles()
    }
    fn event(&mut self) -> Option<Event> {
        self.card.event()
    }
    fn setup_queue(&mut self, queue: u32, sq: u64, cq: u64, depth_log2: u32, first: u32) {
        self.card.setup_queue(queue, sq, cq, depth_log2, first);
    }
    fn bar_write(&mut self, offset: usize, value: u32) -> bool {
        for (reg, shift) in [(Reg::GtlbBaseLo, 0), (Reg::GtlbBaseHi, 32)] {
            if reg.offset() == offset {
                self.base |= u64::from(value) << shift;
            }
        }
        self.card.bar_write(offset, value)
    }
    fn control(&mut self, conn: u16, what: Control) {
        self.card.control(conn, what);
    }
    fn post(&mut self, io: Io) {
        self.card.post(io);
        if self.one_in > 0 && self.rng.below(self.one_in) == 0 {
            // Some of it may have been looked up already.
            self.lose(io.va + u64::from(io.len) - 1, 900);
        }
    }
    fn complete(&mut self, queue: u32, ticket: u32, status: u8, bytes: u64, detail: u64) {
        self.card.complete(queue, ticket, status, bytes, detail);
    }
    fn credit(&mut self, conn: u16, bytes: u32) {
        self.card.credit(conn, bytes);
    }
    fn receive(&mut self, conn: u16, bytes: Vec<u8>, again: bool) {
        nic::Card::receive(&mut self.card, conn, bytes, again);
    }
    fn backlog(&self) -> usize {
        nic::Card::backlog(&self.card)
    }
    fn reduce(&mut self, dtype: DataType, op: ReduceOp, a: &[u8], b: &[u8]) -> Option<Vec<u8>> {
        nic::Card::reduce(&mut self.card, dtype, op, a, b)
    }
    fn ring(&mut self) -> Option<&mut dyn nic::Ring> {
        Some(self)
    }
}

fn with_card(nic: NicBuilder, one_in: u64, seed: u64) -> NicBuilder {
    with_losses(nic, one_in, Arc::default(), seed)
}

fn with_losses(nic: NicBuilder, one_in: u64, in_ring: Arc<AtomicBool>, seed: u64) -> NicBuilder {
    nic.card(Box::new(move |bus: Box<dyn Bus>| {
        Box::new(Forgetful {
            card: Card::new(bus, READ_CYCLES),
            one_in,
            in_ring,
            rng: Rng::new(seed),
            base: 0,
        })
    }))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Over {
    Local,
    Tcp,
    Rdma,
}

/// Two NICs that reach each other, each with a card that forgets one entry in so many.
fn hosts(over: Over, one_in: u64) -> (TempDir, [Host; 2]) {
    let dir = TempDir::new();
    let switch = MemSwitch::private(2, 1500, Checksums::Software).expect("numbers in range");
    let hosts = [1_u8, 2].map(|n| {
        let setup = Setup::new(&dir, n);
        Host::with(&setup, |nic| {
            let nic = with_card(nic, one_in, n.into());
            if over == Over::Local {
                return nic.local(setup.local.clone());
            }
            let port = Box::new(switch.port(usize::from(n) - 1).expect("free"));
            let seed = n.into();
            match over {
                Over::Rdma => with_rdma(
                    &setup,
                    nic,
                    port,
                    RdmaConfig {
                        seed,
                        ..RdmaConfig::default()
                    },
                ),
                _ => with_tcp(
                    &setup,
                    nic,
                    port,
                    TcpConfig {
                        seed,
                        ..TcpConfig::default()
                    },
                ),
            }
        })
    });
    (dir, hosts)
}

fn counts(host: &Host) -> CardCounts {
    host.nic.card_counts().expect("it has a card")
}

/// A checksum of what a host receives, counted by its card, and that of the bytes that it should
/// have received.
struct Checked {
    id: EngineId,
    own: ChecksumEngine,
}

impl Checked {
    fn new(host: &Host, session: SessionId) -> Checked {
        let engine = Box::new(ChecksumEngine::new());
        let id = host.nic.attach_engine(session, Direction::Receive, engine);
        Checked {
            id: id.expect("a path"),
            own: ChecksumEngine::new(),
        }
    }

    /// These bytes have come.
    fn expect(&mut self, host: &Host, bytes: &[u8]) {
        self.own.process(bytes, &mut Vec::new());
        let mut wanted = Vec::new();
        self.own.result(&mut wanted);
        let result = host.nic.engine_result(self.id).expect("a result");
        assert_eq!(result.bytes, wanted, "checksum and bytes");
    }
}

/// Streams both ways at once, cut otherwise by sender and receiver, by all kinds of sends and
/// receives.
fn streams(over: Over, one_in: u64) -> [CardCounts; 2] {
    let (_dir, hosts) = hosts(over, one_in);
    let refs = [&hosts[0], &hosts[1]];
    let (s, r) = connected(&refs, 0, 1, 7);
    let ends = [s, r];
    let mut checked = [0, 1].map(|i| Checked::new(refs[i], ends[i]));
    let mut rng = Rng::new(one_in + 5);
    for round in 0..5 {
        let total = [200, 70_000, 300_000, 9_000, 1_200_000][round];
        let mut tickets = Vec::new();
        let mut data = [Vec::new(), Vec::new()];
        for side in 0..2 {
            data[side] = rng.bytes(total);
            refs[side].poke(77, &data[side]);
            let mut at = 0;
            while at < total {
                let n = (1 + rng.below(total as u64 / 3) as usize).min(total - at);
                let small = rng.below(4) == 0;
                let d = match small {
                    true => {
                        let n = n.min(40);
                        let d = send_inline(ends[side], &data[side][at..at + n]);
                        at += n;
                        d
                    }
                    false => {
                        at += n;
                        send(ends[side], (77 + at - n) as u64, n as u32)
                    }
                };
                tickets.push((side, refs[side].post(&d)));
            }
            let mut at = 0;
            while at < total {
                let n = (1 + rng.below(total as u64 / 3) as usize).min(total - at);
                let to = (4 << 20) + at as u64;
                tickets.push((side, refs[side].post(&recv(ends[side], to, n as u32))));
                at += n;
            }
        }
        for done in settle(&refs, &tickets) {
            assert_eq!(done.status, Status::Ok, "{over:?}, round {round}: {done:?}");
        }
        for side in 0..2 {
            let got = refs[1 - side].peek(4 << 20, total);
            assert!(got == data[side], "{over:?}, round {round}: bytes differ");
            checked[1 - side].expect(refs[1 - side], &data[side]);
        }
    }
    // Receives that take what is there, one after the other.
    let data = rng.bytes(50_000);
    refs[0].poke(0, &data);
    let sent = refs[0].post(&send(s, 0, 50_000));
    let mut at = 0;
    while at < 50_000 {
        let done = call(&refs, 1, &recv_some(r, (1 << 20) + at, 20_000));
        assert!(done.status == Status::Ok && done.bytes > 0, "{done:?}");
        at += done.bytes;
    }
    assert_eq!(settle(&refs, &[(0, sent)])[0].status, Status::Ok);
    assert!(refs[1].peek(1 << 20, 50_000) == data);
    checked[1].expect(refs[1], &data);
    // The end of the stream ends a receive with the bytes that it has.
    assert_eq!(call(&refs, 0, &send(s, 0, 1_000)).bytes, 1_000);
    let late = refs[1].post(&recv(r, 2 << 20, 3_000));
    let later = refs[1].post(&recv(r, 3 << 20, 3_000));
    assert_eq!(call(&refs, 0, &shutdown(s)).status, Status::Ok);
    let ends = settle(&refs, &[(1, late), (1, later)]);
    assert_eq!(
        ends.iter().map(|e| (e.status, e.bytes)).collect::<Vec<_>>(),
        [(Status::EndOfStream, 1_000), (Status::EndOfStream, 0)]
    );
    assert!(refs[1].peek(2 << 20, 1_000) == data[..1_000]);
    checked[1].expect(refs[1], &data[..1_000]);
    for (host, id) in [(0, s), (1, r)] {
        assert_eq!(call(&refs, host, &close(id)).status, Status::Ok);
    }
    // What it has counted outlives the session.
    checked[1].expect(refs[1], &[]);
    let all = [counts(refs[0]), counts(refs[1])];
    for (host, c) in refs.iter().zip(all) {
        let n = host.nic.counters();
        assert_eq!(n.accepted, n.retired);
        assert_eq!(c.cycles.completed, n.retired, "each by the card");
        assert_eq!(c.engines, 1);
        // With many faults a receive leaves the card, and the engine with it.
        assert!(one_in == 3 || c.cycles.engine_beats > 10_000, "{c:?}");
        // It takes a beat a cycle.
        assert_eq!(c.cycles.engine_stalls, 0);
        assert!(c.cycles.strays == 0 && (c.cycles.dropped == 0 || c.faults > 0));
    }
    all
}

#[test]
fn streams_over_local_pass_the_card() {
    for c in streams(Over::Local, 0) {
        assert!(c.tx_bytes > 1_000_000 && c.rx_bytes > 1_000_000, "{c:?}");
        assert!(c.in_software > 0, "inline payloads: {c:?}");
        assert!(c.faults == 0 && c.entries > 10, "{c:?}");
    }
}

#[test]
fn streams_over_tcp_pass_the_card() {
    streams(Over::Tcp, 0);
}

#[test]
fn streams_over_rdma_pass_the_card() {
    streams(Over::Rdma, 0);
}

#[test]
fn entries_that_vanish_under_way_are_written_again() {
    let mut faults = [0; 2];
    // With one in 12 the engine stays in the card, and is not shown again what came before.
    for (over, one_in) in [(Over::Local, 3), (Over::Tcp, 3), (Over::Local, 12)] {
        for (i, c) in streams(over, one_in).into_iter().enumerate() {
            faults[i] += c.faults;
        }
    }
    assert!(faults.iter().all(|n| *n > 3), "{faults:?}");
}

#[test]
fn an_engine_that_gets_a_second_stream_goes_on_in_software() {
    let (_dir, hosts) = hosts(Over::Local, 0);
    let refs = [&hosts[0], &hosts[1]];
    let streams = [7, 8].map(|port| connected(&refs, 0, 1, port));
    let mut checked = Checked::new(refs[1], streams[0].1);
    let mut rng = Rng::new(21);
    let mut seen = 0;
    for round in 0..6 {
        let (s, r) = streams[round % 2 * (round / 2).min(1)];
        let data = rng.bytes(5_001);
        refs[0].poke(0, &data);
        let sent = refs[0].post(&send(s, 0, 5_001));
        let received = refs[1].post(&recv(r, 0, 5_001));
        settle(&refs, &[(0, sent), (1, received)]);
        checked.expect(refs[1], &data);
        if round == 1 {
            let nic = &refs[1].nic;
            let shared = nic.share_engine(checked.id, streams[1].1, Direction::Receive, 1);
            shared.expect("a tap");
            seen = counts(refs[1]).cycles.engine_beats;
        }
    }
    let c = counts(refs[1]);
    assert!(
        seen >= 2 * 5_001 / 64 && c.cycles.engine_beats == seen,
        "{c:?}"
    );
    // The card's engine is free again.
    refs[1].nic.detach_engine(checked.id).expect("it");
    Checked::new(refs[1], streams[1].1);
    assert_eq!(counts(refs[1]).engines, 2);
}

#[test]
fn a_receive_without_bytes_ends_at_its_deadline_and_the_stream_goes_on() {
    let (_dir, hosts) = hosts(Over::Local, 0);
    let refs = [&hosts[0], &hosts[1]];
    let (s, r) = connected(&refs, 0, 1, 7);
    let first = refs[1].post(&within(recv(r, 0, 5_000), 20_000));
    let second = refs[1].post(&recv(r, 8_192, 5_000));
    let end = settle(&refs, &[(1, first)])[0];
    assert_eq!((end.status, end.bytes), (Status::TimedOut, 0));
    let data = Rng::new(3).bytes(5_000);
    refs[0].poke(0, &data);
    let sent = refs[0].post(&send(s, 0, 5_000));
    let done = settle(&refs, &[(0, sent), (1, second)]);
    assert!(done.iter().all(|d| d.status == Status::Ok), "{done:?}");
    assert!(refs[1].peek(8_192, 5_000) == data);
    // With a part of its bytes it ends the stream, as without a card.
    assert_eq!(call(&refs, 0, &send(s, 0, 700)).status, Status::Ok);
    let end = call(&refs, 1, &within(recv(r, 16_384, 5_000), 20_000));
    assert_eq!((end.status, end.bytes), (Status::TimedOut, 700));
    assert!(refs[1].peek(16_384, 700) == data[..700]);
    assert_eq!(call(&refs, 1, &recv(r, 0, 8)).status, Status::NotConnected);
}

#[test]
fn an_aborted_peer_ends_what_waits_on_both_sides() {
    for over in [Over::Local, Over::Rdma] {
        let (_dir, hosts) = hosts(over, 0);
        let refs = [&hosts[0], &hosts[1]];
        let (s, r) = connected(&refs, 0, 1, 7);
        let waits = [
            (1, refs[1].post(&recv(r, 0, 5_000))),
            (1, refs[1].post(&recv(r, 8_192, 5_000))),
            // Nothing receives it.
            (1, refs[1].post(&send(r, 0, 3_000_000))),
        ];
        quiesce(&refs);
        assert_eq!(call(&refs, 0, &abort(s)).status, Status::Ok);
        for end in settle(&refs, &waits) {
            assert_eq!(end.status, Status::ConnectionReset, "{over:?}: {end:?}");
        }
        let again = connected(&refs, 0, 1, 8);
        let sent = refs[0].post(&send(again.0, 0, 100_000));
        let done = call(&refs, 1, &recv(again.1, 0, 100_000));
        assert_eq!((done.status, done.bytes), (Status::Ok, 100_000));
        assert_eq!(settle(&refs, &[(0, sent)])[0].status, Status::Ok);
    }
}

#[test]
fn more_connections_than_the_card_has_take_turns_or_go_past_it() {
    let (_dir, hosts) = hosts(Over::Local, 0);
    let refs = [&hosts[0], &hosts[1]];
    let all: Vec<(SessionId, SessionId)> = (0..70)
        .map(|port| connected(&refs, 0, 1, 100 + port))
        .collect();
    // One after the other.
    for (s, r) in &all {
        let sent = refs[0].post(&send(*s, 0, 600));
        let done = call(&refs, 1, &recv(*r, 1 << 20, 600));
        assert_eq!((done.status, done.bytes), (Status::Ok, 600));
        assert_eq!(settle(&refs, &[(0, sent)])[0].status, Status::Ok);
    }
    assert_eq!(
        [counts(refs[0]).in_software, counts(refs[1]).in_software],
        [0, 0]
    );
    // All at once.
    let receives = all
        .iter()
        .map(|(_, r)| (1, refs[1].post(&recv(*r, 1 << 20, 600))));
    let receives: Vec<_> = receives.collect();
    quiesce(&refs);
    assert_eq!(counts(refs[1]).in_software, 6);
    let sends = all
        .iter()
        .map(|(s, _)| (0, refs[0].post(&send(*s, 0, 600))));
    let tickets: Vec<_> = sends.chain(receives).collect();
    let done = settle(&refs, &tickets);
    assert!(done.iter().all(|d| d.status == Status::Ok));
}

#[test]
fn malformed_descriptors_and_foreign_memory_end_as_without_a_card() {
    let (_dir, hosts) = hosts(Over::Local, 0);
    let refs = [&hosts[0], &hosts[1]];
    let (s, r) = connected(&refs, 0, 1, 7);
    // No such opcode.
    let mut words = Descriptor::new(Opcode::Nop).encode(0).0;
    words[0] = words[0] & !0xff | 200;
    let bad = refs[0].queue.try_post_raw(words).expect("room");
    assert_eq!(settle(&refs, &[(0, bad)])[0].status, Status::BadDescriptor);
    // Past the end of the memory.
    let end = call(&refs, 0, &send(s, (8 << 20) - 5, 10));
    assert_eq!(end.status, Status::OutOfBounds);
    assert_eq!(
        call(&refs, 1, &recv(r, 9 << 20, 10)).status,
        Status::NotRegistered
    );
    assert_eq!(
        call(&refs, 0, &send(SessionId(77), 0, 10)).status,
        Status::BadSession
    );
}

#[test]
fn queues_that_the_card_has_not_are_refused() {
    let (_dir, hosts) = hosts(Over::Local, 0);
    let config = ringbell_nic_core::QueueConfig {
        depth: 2_048,
        ..ringbell_nic_core::QueueConfig::default()
    };
    let e = hosts[0].nic.create_queue(hosts[0].pd, config);
    assert!(e.expect_err("too deep").to_string().contains("1024 slots"));
}
