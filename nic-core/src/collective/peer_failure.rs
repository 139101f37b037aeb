//! Peer-failure tests: a rank fails at every moment of an operation; the others end and name it.
//!
//! Failure means that its transports are gone from one call to the next, without a last packet: a
//! Unix socket that closes, a TCP that stops sending. (NICs that end in order are in
//! `tests/collective_leaving.rs`.) One thread and virtual time; seeds change the order in which the
//! ranks are stepped, so a case can be run again from its message.
#![allow(clippy::disallowed_methods)] // What is shared with the tests outside has deadlines.

#[path = "../../tests/collective_support/mod.rs"]
pub(crate) mod support;

use std::net::SocketAddrV4;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;

use ringbell_nic_abi::{
    Algorithm, CollectiveKind, Completion, DataType, InlineSend, ReduceOp, Status,
};
use support::{Call, Rng, Wire, World};

use super::CollectiveSettings;
use crate::datapath::Datapath;
use crate::network::Network;
use crate::transport::{
    Caps, Close, ConnState, PacketTransport, PeerWindow, Transport, TransportEvent, Work,
};
use crate::types::{Buffer, ConnId, ListenerId, NicTime, WorkToken};

const MS: u64 = 1_000_000;
const OUT: u64 = 1 << 20;
/// Time-out of every operation. The loss of a link is detected long before.
const DEADLINE_US: u32 = 5_000_000;
/// Two ticks of the wheel of deadlines.
const SLACK: u64 = 200_000;

/// Calls that are left until the end, and whether it has come.
#[derive(Debug, Default)]
struct Countdown {
    left: AtomicU64,
    over: AtomicBool,
}

impl Countdown {
    /// One more call. `true`: the victim has failed and makes none.
    fn burn(&self) -> bool {
        let left = self.left.load(Ordering::Relaxed);
        if left == 0 {
            self.over.store(true, Ordering::Relaxed);
        } else {
            self.left.store(left - 1, Ordering::Relaxed);
        }
        self.is_blown()
    }
    fn is_blown(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }
}

/// A transport that does nothing more once its countdown is over, and is finally dropped.
struct Failing {
    inner: Option<Box<dyn Transport>>,
    countdown: Arc<Countdown>,
}

impl Failing {
    /// For what counts.
    fn counted(&mut self) -> Option<&mut Box<dyn Transport>> {
        self.inner.as_mut().filter(|_| !self.countdown.burn())
    }
    /// For what does not.
    fn alive(&mut self) -> Option<&mut Box<dyn Transport>> {
        self.inner.as_mut().filter(|_| !self.countdown.is_blown())
    }
}

impl Transport for Failing {
    fn caps(&self) -> Caps {
        let alive = self.inner.as_ref().filter(|_| !self.countdown.is_blown());
        Caps {
            protocol: alive.and_then(|t| t.caps().protocol),
            ..Caps::streams("mortal")
        }
    }
    fn listen(&mut self, port: u16, backlog: usize) -> Result<ListenerId, Status> {
        let t = self.alive().ok_or(Status::NoResources)?;
        t.listen(port, backlog)
    }
    fn unlisten(&mut self, listener: ListenerId) {
        self.alive().into_iter().for_each(|t| t.unlisten(listener));
    }
    fn connect(
        &mut self,
        now: NicTime,
        remote: SocketAddrV4,
        deadline: NicTime,
    ) -> Result<ConnId, Status> {
        let t = self.alive().ok_or(Status::NoResources)?;
        t.connect(now, remote, deadline)
    }
    fn post(&mut self, conn: ConnId, work: Work) {
        if let Some(t) = self.counted() {
            t.post(conn, work);
        }
    }
    fn send_now(&mut self, conn: ConnId, payload: &InlineSend) -> bool {
        self.counted().is_some_and(|t| t.send_now(conn, payload))
    }
    fn recv_now(
        &mut self,
        conn: ConnId,
        buffer: &Buffer,
        some: bool,
        data: &mut Datapath<'_>,
    ) -> Option<u32> {
        self.counted()?.recv_now(conn, buffer, some, data)
    }
    fn cancel(&mut self, conn: ConnId, token: WorkToken) -> Option<u64> {
        self.alive()?.cancel(conn, token)
    }
    fn watch(&mut self, conn: ConnId) {
        self.alive().into_iter().for_each(|t| t.watch(conn));
    }
    fn close(&mut self, conn: ConnId, how: Close) {
        self.alive().into_iter().for_each(|t| t.close(conn, how));
    }
    fn step(&mut self, now: NicTime, net: &mut Network, data: &mut Datapath<'_>) -> bool {
        let moved = self.alive().is_some_and(|t| t.step(now, net, data));
        moved && !self.countdown.burn()
    }
    fn packets(&mut self) -> Option<&mut dyn PacketTransport> {
        self.alive()?.packets()
    }
    fn poll_event(&mut self) -> Option<TransportEvent> {
        self.alive()?.poll_event()
    }
    fn next_timer(&self) -> Option<NicTime> {
        self.inner.as_ref()?.next_timer()
    }
    fn conn_state(&self, conn: ConnId) -> Option<ConnState> {
        let state = self.inner.as_ref()?.conn_state(conn)?;
        Some(ConnState::between(state.local, state.peer))
    }
    fn peer_window(&self, conn: ConnId) -> Option<&dyn PeerWindow> {
        let t = self.inner.as_ref().filter(|_| !self.countdown.burn())?;
        t.peer_window(conn)
    }
}

/// One way to die.
#[derive(Debug, Clone, Copy)]
struct Case {
    wire: Wire,
    ranks: usize,
    victim: usize,
    call: Call,
    seed: u64,
    /// Calls of its transport that the victim still makes after the operation was posted.
    calls: u64,
}

fn settings() -> CollectiveSettings {
    CollectiveSettings {
        segment_bytes: 1024,
        eager_max: 512,
        eager_buffers: 2,
        scratch_bytes: 64 << 10,
        ..CollectiveSettings::default()
    }
}

struct Run {
    w: World,
    countdown: Arc<Countdown>,
    rng: Rng,
    /// The failed NIC, never stepped again. Its memory lives until no peer has it mapped.
    dead: Option<support::nic::Host>,
}

impl Run {
    fn new(case: &Case) -> Run {
        let mut w = World::unjoined(case.ranks, case.wire, 4 << 20);
        let countdown = Arc::new(Countdown::default());
        countdown.left.store(u64::MAX, Ordering::Relaxed);
        w.host(case.victim).nic.core(|core| {
            let inner = Some(core.streams.transports.remove(0));
            let countdown = countdown.clone();
            core.streams
                .transports
                .push(Box::new(Failing { inner, countdown }));
        });
        let all: Vec<usize> = (0..case.ranks).collect();
        w.comms = w.communicator(7, &all, &settings());
        Run {
            w,
            countdown,
            rng: Rng(case.seed),
            dead: None,
        }
    }

    /// One round: every rank a step, in another order each time. Time jumps when nothing moves.
    fn round(&mut self, victim: usize) {
        let n = self.w.ranks();
        let mut order: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            order.swap(i, (self.rng.next() % (i as u64 + 1)) as usize);
        }
        let mut moved = false;
        for r in order {
            let Some(h) = &self.w.hosts[r] else { continue };
            moved |= h.nic.step_at(NicTime(self.w.now));
            if r == victim && self.countdown.is_blown() {
                self.kill(victim);
                moved = true;
            }
        }
        let next = self.w.now + 500;
        let hosts = self.w.hosts.iter().flatten();
        let timer = hosts.filter_map(|h| h.nic.next_timer()).map(|t| t.0).min();
        self.w.now = match timer {
            // Unix sockets are polled now and then, without a timer.
            Some(t) if !moved => t.clamp(next, next + MS / 5),
            None if !moved => next + MS / 5,
            _ => next,
        };
    }

    fn kill(&mut self, victim: usize) {
        let h = self.w.hosts[victim].take().expect("once");
        // Nothing but its descriptors: what it has stored in others' memory, and in its own that
        // others have mapped, stays as it is.
        let countdown = self.countdown.clone();
        h.nic.core(|core| {
            core.streams.transports[0] = Box::new(Failing {
                inner: None,
                countdown,
            })
        });
        self.dead = Some(h);
    }
}

fn input(rank: usize, count: u64) -> Vec<u32> {
    let mut rng = Rng(rank as u64 + 77);
    (0..count).map(|_| rng.next() as u32).collect()
}

fn poke(w: &World, rank: usize, v: &[u32]) {
    let b: Vec<u8> = v.iter().flat_map(|x| x.to_le_bytes()).collect();
    w.host(rank).poke(0, &b);
}

fn sum(inputs: &[Vec<u32>]) -> Vec<u8> {
    let of = |i: usize| inputs.iter().fold(0u32, |a, v| a.wrapping_add(v[i]));
    let n = inputs[0].len();
    (0..n).flat_map(|i| of(i).to_le_bytes()).collect()
}

/// Runs a case; returns the calls that the victim's transport was asked for (of a case without a
/// death: all that there are).
fn run(case: &Case) -> u64 {
    let mut run = Run::new(case);
    let count = case.call.count;
    let inputs: Vec<_> = (0..case.ranks).map(|r| input(r, count)).collect();
    for (r, v) in inputs.iter().enumerate() {
        poke(&run.w, r, v);
    }
    let begin = run.w.now;
    run.countdown.left.store(case.calls, Ordering::Relaxed);
    let tickets: Vec<u32> = (0..case.ranks).map(|r| run.w.post(r, &case.call)).collect();
    let mut ends: Vec<Option<Completion>> = vec![None; case.ranks];
    let survivors: Vec<usize> = (0..case.ranks).filter(|r| *r != case.victim).collect();
    let limit = begin + u64::from(case.call.timeout_us) * 1000;
    loop {
        for (r, end) in ends.iter_mut().enumerate() {
            if let (None, Some(h)) = (&end, &run.w.hosts[r]) {
                *end = h.queue.poll(tickets[r]);
            }
        }
        if survivors.iter().all(|r| ends[*r].is_some()) {
            break;
        }
        assert!(
            run.w.now < limit + SLACK,
            "not within the deadline: {case:?} {ends:?}"
        );
        run.round(case.victim);
    }
    if run.dead.is_none() && ends[case.victim].is_none() {
        // All that it does for this operation, for the count.
        for _ in 0..100 {
            run.round(case.victim);
        }
    }
    let want = sum(&inputs);
    let named = (Status::PeerFailed, case.victim as u64);
    for r in &survivors {
        let Some(c) = ends[*r] else { continue };
        if c.status == Status::Ok {
            let got = run.w.host(*r).peek(OUT, want.len());
            assert!(got == want, "rank {r} has a wrong sum: {case:?}");
        } else {
            assert_eq!((c.status, c.detail), named, "rank {r}: {case:?}");
        }
    }
    let calls = case.calls - run.countdown.left.load(Ordering::Relaxed);
    let killed = run.dead.is_some();
    if killed {
        shrink(&mut run, case, &survivors, &inputs);
    }
    calls
}

/// The survivors go on without it.
fn shrink(run: &mut Run, case: &Case, survivors: &[usize], inputs: &[Vec<u32>]) {
    let ids = run.w.begin_communicator(8, survivors, &settings());
    let call = Call {
        spec: case.call.spec,
        ..case.call
    };
    let tickets: Vec<u32> = survivors
        .iter()
        .zip(&ids)
        .map(|(r, id)| run.w.host(*r).post(&call.descriptor(*id)))
        .collect();
    let mut left: Vec<usize> = (0..tickets.len()).collect();
    let limit = run.w.now + u64::from(DEADLINE_US) * 1000;
    let rest: Vec<_> = survivors.iter().map(|r| inputs[*r].clone()).collect();
    let want = sum(&rest);
    while !left.is_empty() {
        assert!(run.w.now < limit, "the survivors hang: {case:?}");
        run.round(case.victim);
        left.retain(|i| {
            let h = run.w.host(survivors[*i]);
            let Some(c) = h.queue.poll(tickets[*i]) else {
                return true;
            };
            assert_eq!(c.status, Status::Ok, "survivor {i}: {c:?} {case:?}");
            assert!(h.peek(OUT, want.len()) == want, "survivor {i}: {case:?}");
            false
        });
    }
}

/// Kills a rank, another one each time, after each call of its transport that an operation makes,
/// or after `most` of them evenly spread.
fn at_every_call(wire: fn(u64) -> Wire, algo: Algorithm, ranks: usize, counts: &[u64], most: u64) {
    within(DEADLINE_US, wire, algo, ranks, counts, most);
}

fn within(
    deadline_us: u32,
    wire: fn(u64) -> Wire,
    algo: Algorithm,
    ranks: usize,
    counts: &[u64],
    most: u64,
) {
    for (i, count) in counts.iter().enumerate() {
        let seed = ranks as u64 * 100 + i as u64;
        let call = Call::new(CollectiveKind::AllReduce, *count)
            .of(DataType::U32, ReduceOp::Sum)
            .algo(algo)
            .at(0, OUT)
            .within(deadline_us);
        let alive = Case {
            wire: wire(seed),
            ranks,
            victim: i % ranks,
            call,
            seed,
            calls: u64::MAX,
        };
        let all = run(&alive);
        assert!(all >= ranks as u64 - 1, "{alive:?} makes {all} calls");
        for (k, calls) in (0..all).step_by(all.div_ceil(most) as usize).enumerate() {
            let seed = seed + calls * 1000;
            run(&Case {
                wire: wire(seed),
                victim: (i + k) % ranks,
                seed,
                calls,
                ..alive
            });
        }
    }
}

/// A message in one piece, one segment with all its steps, and several segments at once.
const RING: [u64; 3] = [5, 700, 2500];
/// Inputs that travel with the record, one batch, and several.
const DIRECT: [u64; 3] = [5, 2500, 70_001];

#[test]
fn at_every_call_of_a_ring_of_3() {
    at_every_call(|_| Wire::Local, Algorithm::Ring, 3, &RING, 1000);
}

#[test]
fn at_every_call_of_a_ring_of_4() {
    at_every_call(|_| Wire::Local, Algorithm::Ring, 4, &RING, 1000);
}

#[test]
fn at_every_call_of_a_ring_of_5() {
    at_every_call(|_| Wire::Local, Algorithm::Ring, 5, &RING, 100);
}

#[test]
fn at_every_call_of_a_ring_of_3_over_tcp() {
    at_every_call(|_| Wire::Probed(0, 0), Algorithm::Ring, 3, &RING, 1000);
}

#[test]
fn at_every_call_of_a_ring_of_4_over_tcp() {
    at_every_call(|_| Wire::Probed(0, 0), Algorithm::Ring, 4, &RING, 60);
}

#[test]
fn at_every_call_of_a_ring_of_5_over_tcp() {
    at_every_call(|_| Wire::Probed(0, 0), Algorithm::Ring, 5, &RING, 40);
}

/// A peer that stops sending is detected only by the missing answers: it is named when the time is
/// up.
#[test]
fn in_a_ring_of_3_over_tcp_without_probes() {
    at_every_call(|_| Wire::Tcp, Algorithm::Ring, 3, &RING, 20);
}

// The time that is up passes in many steps of all ranks: fewer places for more ranks.
#[test]
fn in_a_ring_of_5_over_tcp_without_probes() {
    at_every_call(|_| Wire::Tcp, Algorithm::Ring, 5, &RING, 6);
}

/// The same when there is little time: the shortest with which answers are waited for, and one in
/// between.
#[test]
fn over_tcp_without_probes_in_a_tenth_of_a_second() {
    for (ranks, deadline_us) in [(3, 100_000), (4, 400_000)] {
        let (wire, ring) = (|_| Wire::Tcp, Algorithm::Ring);
        within(deadline_us, wire, ring, ranks, &RING, 20);
    }
}

#[test]
fn over_a_wire_that_loses_and_reorders() {
    for ranks in [3, 4, 5] {
        at_every_call(
            |seed| Wire::Probed(3, seed),
            Algorithm::Ring,
            ranks,
            &RING,
            20,
        );
    }
}

#[test]
fn at_every_call_of_the_direct_path() {
    for ranks in [3, 4, 5] {
        at_every_call(|_| Wire::Local, Algorithm::Direct, ranks, &DIRECT, 40);
    }
}

/// Ranks that differ in their counts, of which one dies after so many calls of its transport: the
/// others learn at once that they differ, or that it is gone. Returns the calls that it has made.
fn mismatched(case: &Case, odd: usize) -> u64 {
    let mut run = Run::new(case);
    let begin = run.w.now;
    run.countdown.left.store(case.calls, Ordering::Relaxed);
    let post = |r: usize| {
        let count = case.call.count + u64::from(r == odd);
        run.w.post(r, &Call { count, ..case.call })
    };
    let tickets: Vec<u32> = (0..case.ranks).map(post).collect();
    let mut left: Vec<usize> = (0..case.ranks).filter(|r| *r != case.victim).collect();
    while !left.is_empty() {
        left.retain(|r| {
            let end = run.w.host(*r).queue.poll(tickets[*r]);
            if let Some(c) = end {
                let known = [Status::Mismatch, Status::PeerFailed];
                assert!(known.contains(&c.status), "rank {r}: {c:?} {case:?}");
            }
            end.is_none()
        });
        let waited = run.w.now - begin;
        assert!(
            waited < 1000 * MS,
            "{left:?} wait for {waited} ns: {case:?}"
        );
        run.round(case.victim);
    }
    case.calls - run.countdown.left.load(Ordering::Relaxed)
}

#[test]
fn at_every_call_of_ranks_that_differ() {
    for (ranks, count) in [(2, 5), (2, 2500), (3, 5)] {
        let call = Call::new(CollectiveKind::AllReduce, count);
        let call = call.of(DataType::U32, ReduceOp::Sum).at(0, OUT);
        for (victim, odd) in [(0, 1), (1, 1), (1, 0)] {
            let mut case = Case {
                wire: Wire::Local,
                ranks,
                victim,
                call,
                seed: count,
                calls: u64::MAX,
            };
            let all = mismatched(&case, odd);
            for calls in 0..=all {
                (case.calls, case.seed) = (calls, count + calls * 1000);
                mismatched(&case, odd);
            }
        }
    }
}
