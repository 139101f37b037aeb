//! A run of a plan: posts its operations, and compares how they end with the model.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use ringbell_gtlb::Access;
use ringbell_nic_abi::{
    CollectiveKind as K, Completion, DataType, Descriptor, ReduceOp, SessionId, Status,
};
use ringbell_nic_core::collective::{CollectiveSettings, CommStatus};
use ringbell_nic_core::port::impair::{Faults, Impair};
use ringbell_nic_core::port::{Checksums, Port};

use super::collective_support::nic::driven::*;
use super::collective_support::nic::Host;
use super::collective_support::{Call, Ether, Wire, World};
use super::model;
use super::plan::{Break, Net, Op, Plan, OPERAND};
use super::wire::Severable;

/// Operands of operations that may be under way.
const SLOTS: usize = 16;
/// Memory of a NIC: a source and a destination for each.
const MEMORY: usize = 2 * SLOTS * OPERAND;
const TIMEOUT_US: u32 = 20_000_000;
/// Virtual time after which an operation hangs.
const PATIENCE: u64 = 60_000_000_000;
/// Longest jump of the time when nothing moves.
const JUMP: u64 = 1_000_000;
const PORT: u16 = 7;

/// What is in a NIC's memory when an operation has ended well.
struct Holds {
    on: usize,
    at: u64,
    want: Vec<u8>,
}

/// An operation under way at one NIC.
struct Pending {
    id: usize,
    rank: usize,
    ticket: u32,
    /// The NICs that take part; the communicator's ranks, in their order, or a session's ends.
    parties: Vec<usize>,
    in_group: bool,
    holds: Vec<Holds>,
    /// Bytes and detail that the completion must have.
    bytes: Option<u64>,
    detail: Option<u64>,
    until: u64,
}

/// What a run has come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Outcome {
    /// Of every completion and of all memory.
    pub(super) hash: u64,
    pub(super) operations: u64,
    pub(super) failed: u64,
}

struct Run<'a> {
    plan: &'a Plan,
    w: World,
    cuts: Vec<Arc<AtomicBool>>,
    /// NICs that are not stepped any more.
    stopped: Vec<Host>,
    broken: Option<Break>,
    sessions: BTreeMap<(usize, usize), (SessionId, SessionId)>,
    pending: Vec<Pending>,
    used: usize,
    contexts: u64,
    out: Outcome,
}

fn settings() -> CollectiveSettings {
    CollectiveSettings {
        segment_bytes: 4096,
        eager_max: 512,
        eager_buffers: 4,
        scratch_bytes: 256 << 10,
        ..CollectiveSettings::default()
    }
}

/// Runs a plan.
///
/// # Errors
/// What is wrong, in words.
pub(super) fn run(plan: &Plan) -> Result<Outcome, String> {
    let Some(mut run) = Run::new(plan)? else {
        return Ok(Outcome {
            hash: 0,
            operations: 0,
            failed: 0,
        });
    };
    run.connect()?;
    for step in &plan.steps {
        for _ in 0..step.after {
            run.step()?;
        }
        run.take(step.id, &step.op)?;
    }
    run.settle()?;
    run.finish()
}

impl<'a> Run<'a> {
    /// `None`: ranks over a wire that loses have not met.
    fn new(plan: &'a Plan) -> Result<Option<Run<'a>>, String> {
        let wire = match plan.net {
            Net::Local => Wire::Local,
            Net::Tcp => Wire::Tcp,
            Net::Rdma => Wire::Rdma,
            Net::Udp => Wire::Udp,
        };
        let ether = Ether {
            mtu: plan.mtu,
            checksums: Checksums::Software,
            access: Access::REMOTE,
        };
        let cuts = RefCell::new(Vec::new());
        let at_port = |rank: usize, port: Box<dyn Port>| -> Box<dyn Port> {
            let seed = plan.seed.wrapping_mul(31).wrapping_add(rank as u64);
            let faults = Faults {
                seed,
                ..plan.faults
            };
            let (port, cut) = Severable::new(port);
            cuts.borrow_mut().push(cut);
            Box::new(Impair::new(Box::new(port), faults).expect("probabilities"))
        };
        let memory = MEMORY as u64;
        let w = World::on(plan.ranks, wire, memory, |_, nic| nic, at_port, ether);
        let mut run = Run {
            plan,
            w,
            cuts: cuts.into_inner(),
            stopped: Vec::new(),
            broken: None,
            sessions: BTreeMap::new(),
            pending: Vec::new(),
            used: 0,
            contexts: 7,
            out: Outcome {
                hash: 0xcbf2_9ce4_8422_2325,
                operations: 0,
                failed: 0,
            },
        };
        let all: Vec<usize> = (0..plan.ranks).collect();
        let comms = run.meet(&all)?;
        Ok(comms.map(|comms| {
            run.w.comms = comms;
            run
        }))
    }

    fn is_alive(&self, rank: usize) -> bool {
        self.w.hosts[rank].is_some()
    }

    fn victim(&self) -> Option<usize> {
        self.broken.map(Break::victim)
    }

    /// One step of all NICs, and what has ended with it. When nothing moves, time passes.
    fn step(&mut self) -> Result<(), String> {
        if !self.w.step() {
            let timers = self.w.hosts.iter().flatten();
            let next = timers.filter_map(|h| h.nic.next_timer()).min();
            let latest = self.w.now + JUMP;
            let next = next.map_or(latest, |t| t.0.min(latest));
            self.w.now = self.w.now.max(next);
        }
        let mut at = 0;
        while let Some(p) = self.pending.get(at) {
            match self.w.host(p.rank).queue.poll(p.ticket) {
                Some(c) => {
                    let p = self.pending.remove(at);
                    self.judge(&p, &c)?;
                }
                None if self.w.now > p.until => return Err(self.hung()),
                None => at += 1,
            }
        }
        Ok(())
    }

    fn hung(&self) -> String {
        let mut text = format!("at {} ns these have not ended:\n", self.w.now);
        for p in &self.pending {
            let _ = writeln!(text, "  operation {} at NIC {}", p.id, p.rank);
        }
        let alive = self.w.hosts.iter().flatten();
        text + &alive.map(|h| h.nic.describe()).collect::<String>()
    }

    fn settle(&mut self) -> Result<(), String> {
        while !self.pending.is_empty() {
            self.step()?;
        }
        self.used = 0;
        Ok(())
    }

    fn note(&mut self, words: &[u64]) {
        for word in words {
            self.out.hash = (self.out.hash ^ word).wrapping_mul(0x100_0000_01b3);
            self.out.hash ^= self.out.hash >> 32;
        }
    }

    /// Whether an operation may end so, and has left behind what it must.
    fn judge(&mut self, p: &Pending, c: &Completion) -> Result<(), String> {
        let status = c.status as u64;
        let now = self.w.now;
        self.note(&[p.id as u64, p.rank as u64, status, c.bytes, c.detail, now]);
        self.out.operations += 1;
        let what = || format!("operation {} at NIC {}: {c:?}", p.id, p.rank);
        if c.status != Status::Ok {
            self.out.failed += 1;
            return match self.may_fail(p, c) {
                true => Ok(()),
                false => Err(format!("{}, which nothing explains", what())),
            };
        }
        let differs = |want: Option<u64>, got| want.is_some_and(|w| w != got);
        if differs(p.bytes, c.bytes) || differs(p.detail, c.detail) {
            let wanted = (p.bytes, p.detail);
            return Err(format!("{}, not {wanted:?}", what()));
        }
        for h in p.holds.iter().filter(|h| self.is_alive(h.on)) {
            let got = self.w.host(h.on).peek(h.at, h.want.len());
            if let Some(i) = got.iter().zip(&h.want).position(|(a, b)| a != b) {
                let (len, at) = (h.want.len(), h.on);
                return Err(format!("{}: byte {i} of {len} differs at NIC {at}", what()));
            }
        }
        Ok(())
    }

    fn may_fail(&self, p: &Pending, c: &Completion) -> bool {
        let by_peer = matches!(
            c.status,
            Status::TimedOut
                | Status::ConnectionReset
                | Status::ConnectionRefused
                | Status::HostUnreachable
                | Status::EndOfStream
                | Status::NotConnected
                | Status::Aborted
                | Status::BadState
                | Status::PeerFailed
                | Status::CommAborted
        );
        if self.plan.may_lose() {
            return by_peer;
        }
        let Some(victim) = self.victim().filter(|v| p.parties.contains(v)) else {
            return false;
        };
        let named = p.parties.get(c.detail as u32 as usize);
        // One whose wire is cut finds that all others are gone.
        let right = p.rank == victim || named == Some(&victim);
        match c.status {
            Status::PeerFailed if p.in_group => right,
            Status::TimedOut if p.in_group && c.detail >> 32 & 1 == 1 => right,
            _ => by_peer,
        }
    }

    /// Posts a descriptor. The slot is that of the operation's operands.
    fn post(&mut self, rank: usize, d: &Descriptor, p: Pending) -> Result<(), String> {
        let ticket = self.w.host(rank).queue.try_post(d);
        let ticket = ticket.ok_or_else(|| format!("the queue of NIC {rank} is full"))?;
        let until = self.w.now + PATIENCE;
        self.pending.push(Pending { ticket, until, ..p });
        Ok(())
    }

    fn pending(id: usize, rank: usize, parties: &[usize]) -> Pending {
        Pending {
            id,
            rank,
            ticket: 0,
            parties: parties.to_vec(),
            in_group: false,
            holds: Vec::new(),
            bytes: None,
            detail: None,
            until: 0,
        }
    }

    /// Posts a descriptor and waits for its end.
    fn call(&mut self, rank: usize, d: &Descriptor) -> Result<Completion, String> {
        let ticket = self.w.host(rank).post(&within(*d, TIMEOUT_US));
        self.wait(rank, ticket)
    }

    fn wait(&mut self, rank: usize, ticket: u32) -> Result<Completion, String> {
        let until = self.w.now + PATIENCE;
        loop {
            if let Some(c) = self.w.host(rank).queue.poll(ticket) {
                return Ok(c);
            }
            self.step()?;
            if self.w.now > until {
                return Err(format!("NIC {rank} has not connected\n{}", self.hung()));
            }
        }
    }

    /// Makes a communicator. `None`: a wire that loses has prevented it.
    fn meet(
        &mut self,
        members: &[usize],
    ) -> Result<Option<Vec<ringbell_nic_core::types::CommId>>, String> {
        self.contexts += 1;
        let (ctx, until) = (self.contexts, self.w.now + PATIENCE);
        let ids = self.w.begin_communicator(ctx, members, &settings());
        loop {
            let status = |(m, id): (&usize, _)| self.w.host(*m).nic.communicator_status(id);
            let all = members.iter().zip(ids.iter().copied()).map(status);
            let all = all.collect::<Result<Vec<_>, _>>();
            let all = all.map_err(|e| format!("no communicator of {members:?}: {e}"))?;
            let ended = |s: &&CommStatus| matches!(s, CommStatus::Aborted { .. });
            if all.iter().all(|s| *s == CommStatus::Ready) {
                return Ok(Some(ids));
            }
            match all.iter().find(ended) {
                Some(_) if self.plan.may_lose() => return Ok(None),
                Some(end) => {
                    let seen = self.hung();
                    return Err(format!("{members:?} have not met: {end:?}\n{seen}"));
                }
                None => self.step()?,
            }
            if self.w.now > until {
                return Err(format!("{members:?} do not meet\n{}", self.hung()));
            }
        }
    }

    /// Connects the pairs that have sessions.
    fn connect(&mut self) -> Result<(), String> {
        let pairs = self.plan.steps.iter().filter_map(|s| s.op.pair());
        let pairs: BTreeMap<(usize, usize), ()> = pairs.map(|p| (p, ())).collect();
        let mut listeners = BTreeMap::new();
        for &(from, to) in pairs.keys() {
            let listener = match listeners.get(&to) {
                Some(l) => *l,
                None => {
                    let l = session_of(self.call(to, &socket())?);
                    let c = self.call(to, &listen(l, PORT))?;
                    if c.status != Status::Ok {
                        return Err(format!("NIC {to} does not listen: {c:?}"));
                    }
                    listeners.insert(to, l);
                    l
                }
            };
            let accept = self.w.host(to).post(&within(accept(listener), TIMEOUT_US));
            let session = session_of(self.call(from, &socket())?);
            let ip = self.w.host(to).nic.config().ip;
            let c = self.call(from, &connect(session, ip, PORT))?;
            let a = self.wait(to, accept)?;
            match (c.status, a.status) {
                (Status::Ok, Status::Ok) => {
                    let ends = (session, session_of(a));
                    self.sessions.insert((from, to), ends);
                }
                _ if self.plan.may_lose() => {}
                _ => return Err(format!("{from} does not reach {to}: {c:?}, {a:?}")),
            }
        }
        Ok(())
    }

    fn slot(&mut self) -> Result<(u64, u64), String> {
        if self.used == SLOTS {
            self.settle()?;
        }
        let at = 2 * self.used * OPERAND;
        self.used += 1;
        Ok((at as u64, (at + OPERAND) as u64))
    }

    fn source(&self, id: usize, rank: usize, at: u64, len: usize) -> Vec<u8> {
        let bytes = model::bytes(self.plan.seed, id, rank, len);
        if let Some(h) = &self.w.hosts[rank] {
            h.poke(at, &bytes);
        }
        bytes
    }

    fn take(&mut self, id: usize, op: &Op) -> Result<(), String> {
        match *op {
            Op::Settle => self.settle(),
            Op::Break(what) => {
                self.break_one(what);
                Ok(())
            }
            Op::Collective { kind, root, count } => {
                let members: Vec<usize> = (0..self.plan.ranks).collect();
                let comms = self.w.comms.clone();
                self.collective(id, &members, &comms, (kind, root as usize, count as usize))
            }
            Op::Group { ref members, count } => {
                let well = |m: &&usize| Some(**m) != self.victim();
                let members: Vec<usize> = members.iter().filter(well).copied().collect();
                if members.len() < 2 {
                    return Ok(());
                }
                let Some(comms) = self.meet(&members)? else {
                    return Ok(());
                };
                self.collective(id, &members, &comms, (K::AllReduce, 0, count as usize))?;
                while self.pending.iter().any(|p| p.id == id) {
                    self.step()?;
                }
                for (m, comm) in members.iter().zip(comms) {
                    let freed = self.w.host(*m).nic.free_communicator(comm);
                    freed.map_err(|e| format!("NIC {m} does not free a communicator: {e}"))?;
                }
                Ok(())
            }
            Op::Message { from, to, len } => self.message(id, from, to, len as usize),
            _ => self.of_session(id, op),
        }
    }

    fn break_one(&mut self, what: Break) {
        let victim = what.victim();
        self.broken = Some(what);
        match what {
            Break::Ends(_) | Break::Stops(_) => {
                self.pending.retain(|p| p.rank != victim);
                let host = self.w.hosts[victim].take();
                if what == Break::Stops(victim) {
                    self.stopped.extend(host);
                }
            }
            Break::Cut(_) => self.cuts[victim].store(true, Ordering::Relaxed),
        }
    }

    fn collective(
        &mut self,
        id: usize,
        members: &[usize],
        comms: &[ringbell_nic_core::types::CommId],
        (kind, root, count): (K, usize, usize),
    ) -> Result<(), String> {
        let (src, dst) = self.slot()?;
        let ranks = members.len();
        let input = |(r, m): (usize, &usize)| {
            let blocks = model::blocks(kind, ranks, r == root).0;
            self.source(id, *m, src, blocks * count * 4)
        };
        let sources: Vec<Vec<u8>> = members.iter().enumerate().map(input).collect();
        let call = Call::new(kind, count as u64)
            .of(DataType::U32, ReduceOp::Sum)
            .root(root as u32)
            .at(src, dst)
            .within(TIMEOUT_US);
        for (r, &m) in members.iter().enumerate() {
            if !self.is_alive(m) {
                continue;
            }
            let want = model::result(kind, &sources, root, r, count * 4);
            let p = Pending {
                in_group: true,
                holds: vec![Holds {
                    on: m,
                    at: dst,
                    want,
                }],
                ..Run::pending(id, m, members)
            };
            self.post(m, &call.descriptor(comms[r]), p)?;
        }
        Ok(())
    }

    fn message(&mut self, id: usize, from: usize, to: usize, len: usize) -> Result<(), String> {
        let (src, dst) = self.slot()?;
        let want = self.source(id, from, src, len);
        let all: Vec<usize> = (0..self.plan.ranks).collect();
        let call = |kind| {
            Call::new(kind, len as u64)
                .of(DataType::U8, ReduceOp::Sum)
                .tag(id as u32)
                .at(src, dst)
                .within(TIMEOUT_US)
        };
        for (rank, kind, peer) in [(from, K::Send, to), (to, K::Recv, from)] {
            if !self.is_alive(rank) {
                continue;
            }
            let mut p = Pending {
                in_group: true,
                ..Run::pending(id, rank, &all)
            };
            if kind == K::Recv {
                p.bytes = Some(len as u64);
                let want = want.clone();
                p.holds = vec![Holds {
                    on: to,
                    at: dst,
                    want,
                }];
            }
            let mut call = call(kind).root(peer as u32);
            if kind == K::Recv {
                call = call.at(dst, dst);
            }
            let d = call.descriptor(self.w.comms[rank]);
            self.post(rank, &d, p)?;
        }
        Ok(())
    }

    fn of_session(&mut self, id: usize, op: &Op) -> Result<(), String> {
        let Some((from, to)) = op.pair() else {
            return Ok(());
        };
        let Some(&(here, there)) = self.sessions.get(&(from, to)) else {
            return Ok(());
        };
        if !self.is_alive(from) || !self.is_alive(to) {
            return Ok(());
        }
        let (src, dst) = self.slot()?;
        let key = self.w.host(to).rkey();
        let pending = |rank| Run::pending(id, rank, &[from, to]);
        let one = |d: Descriptor| within(d, TIMEOUT_US);
        match *op {
            Op::Stream {
                ref sends,
                ref recvs,
                ..
            } => {
                let len: u32 = sends.iter().sum();
                let bytes = self.source(id, from, src, len as usize);
                let mut at = 0;
                for &n in sends {
                    let d = one(send(here, src + at, n));
                    self.post(from, &d, pending(from))?;
                    at += u64::from(n);
                }
                at = 0;
                for &n in recvs {
                    let want = bytes[at as usize..][..n as usize].to_vec();
                    let p = Pending {
                        bytes: Some(n.into()),
                        holds: vec![Holds {
                            on: to,
                            at: dst + at,
                            want,
                        }],
                        ..pending(to)
                    };
                    self.post(to, &one(recv(there, dst + at, n)), p)?;
                    at += u64::from(n);
                }
                Ok(())
            }
            Op::Put { len, signal, .. } => {
                let want = self.source(id, from, src, len as usize);
                let word = dst + OPERAND as u64 - 8;
                self.w.host(to).poke(word, &[0; 8]);
                let mut holds = vec![Holds {
                    on: to,
                    at: dst,
                    want,
                }];
                let mut d = one(put(here, key, src, dst, len));
                if signal {
                    let value = id as u64 + 1;
                    d = signalled(d, (word / 8) as u32, value);
                    let want = value.to_le_bytes().to_vec();
                    holds.push(Holds {
                        on: to,
                        at: word,
                        want,
                    });
                }
                let p = Pending {
                    holds,
                    ..pending(from)
                };
                self.post(from, &d, p)
            }
            Op::Get { len, .. } => {
                let want = self.source(id, to, src, len as usize);
                let p = Pending {
                    holds: vec![Holds {
                        on: from,
                        at: dst,
                        want,
                    }],
                    ..pending(from)
                };
                self.post(from, &one(get(here, key, src, dst, len)), p)
            }
            Op::Add { .. } | Op::Swap { .. } => {
                let word = self.source(id, to, dst, 8);
                let old = u64::from_le_bytes(word.try_into().expect("8 bytes"));
                let (d, new) = match *op {
                    Op::Add { addend, .. } => {
                        let d = fetch_add(here, key, dst, addend);
                        (d, old.wrapping_add(addend))
                    }
                    Op::Swap { finds: true, .. } => (compare_swap(here, key, dst, old, !old), !old),
                    _ => (compare_swap(here, key, dst, !old, 1), old),
                };
                let p = Pending {
                    detail: Some(old),
                    holds: vec![Holds {
                        on: to,
                        at: dst,
                        want: new.to_le_bytes().to_vec(),
                    }],
                    ..pending(from)
                };
                self.post(from, &one(d), p)
            }
            _ => Ok(()),
        }
    }

    /// Nothing is under way any more, on any NIC.
    fn finish(mut self) -> Result<Outcome, String> {
        for rank in 0..self.plan.ranks {
            let Some(host) = &self.w.hosts[rank] else {
                continue;
            };
            let c = host.nic.counters();
            if c.accepted != c.retired {
                return Err(format!("NIC {rank} has not retired all: {c:?}"));
            }
            let memory = host.peek(0, MEMORY);
            let word = |b: &[u8]| u64::from_le_bytes(b.try_into().expect("8 bytes"));
            let words: Vec<u64> = memory.chunks_exact(8).map(word).collect();
            self.note(&words);
        }
        Ok(self.out)
    }
}
