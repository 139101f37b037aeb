//! A run of a plan: posts its operations, and compares how they end with the model.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use ringbell_gtlb::{Access, GtlbConfig, MmuConfig};
use ringbell_nic_abi::{CollectiveKind as K, Completion, Descriptor, SessionId, Status};
use ringbell_nic_core::collective::CommStatus;
use ringbell_nic_core::port::impair::{Faults, Impair};
use ringbell_nic_core::port::{Checksums, Port};
use ringbell_nic_core::types::CommId;
use ringbell_nic_core::NicBuilder;

use super::clocks::Clocks;
use super::collective_support::nic::driven::*;
use super::collective_support::nic::Host;
use super::collective_support::{Ether, Wire, World};
use super::plan::{Break, Net, Op, Plan, OPERAND, PLAIN};
use super::wire::Severable;
use super::{model, returning, scenes};

/// Operands of operations that may be under way.
const SLOTS: usize = 16;
/// Memory of a NIC: a source and a destination for each.
pub(super) const MEMORY: usize = 2 * SLOTS * OPERAND;
/// Bytes behind them, which are mapped a second time and withdrawn.
pub(super) const SPARE: usize = 4 << 16;
pub(super) const TIMEOUT_US: u32 = 20_000_000;
/// Time in which an error is told to all, also where frames are lost.
pub(super) const TOLD: u64 = 10_000_000_000;
/// Sessions of a NIC beside those of its pairs and a listener: few, so that slots are used again.
const SPARE_SESSIONS: usize = 4;
/// Virtual time after which an operation hangs.
const PATIENCE: u64 = 60_000_000_000;
/// Longest jump of the time when nothing moves, and when nothing has for long.
const JUMP: u64 = 1_000_000;
const JUMP_MAX: u64 = 50_000_000;
const PORT: u16 = 7;

/// What is in a NIC's memory when an operation has ended, and stays there until all have.
pub(super) struct Holds {
    pub(super) on: usize,
    pub(super) at: u64,
    pub(super) want: Vec<u8>,
}

/// Bytes that only an operation uses: its program writes them again as soon as it has ended.
pub(super) struct Lent {
    pub(super) on: usize,
    pub(super) at: u64,
    pub(super) len: usize,
}

/// An operation under way at one NIC.
pub(super) struct Pending {
    pub(super) id: usize,
    pub(super) rank: usize,
    pub(super) ticket: u32,
    /// The NICs that take part; the communicator's ranks, in their order, or a session's ends.
    pub(super) parties: Vec<usize>,
    pub(super) in_group: bool,
    pub(super) holds: Vec<Holds>,
    pub(super) reads: Vec<Lent>,
    /// How it may end.
    pub(super) want: &'static [Status],
    /// Bytes and detail that the completion must have.
    pub(super) bytes: Option<u64>,
    pub(super) detail: Option<u64>,
    /// When it must have ended; 0: by the patience of a run.
    pub(super) until: u64,
    /// Its completion is asked for.
    pub(super) asked: bool,
    /// It was posted before the broken NIC came back.
    pub(super) old: bool,
}

/// What a run has come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Outcome {
    /// Of every completion and of all memory.
    pub(super) hash: u64,
    pub(super) operations: u64,
    pub(super) failed: u64,
}

/// Whether a new NIC has taken the place of the broken one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Back {
    No,
    /// It is there, and the others have not met it.
    Comes,
    /// It has a part in all that is posted.
    Yes,
}

pub(super) struct Run<'a> {
    pub(super) plan: &'a Plan,
    pub(super) w: World,
    cuts: Vec<Arc<AtomicBool>>,
    /// NICs that are not stepped any more.
    stopped: Vec<Host>,
    broken: Option<Break>,
    back: Back,
    pub(super) sessions: BTreeMap<(usize, usize), (SessionId, SessionId)>,
    listeners: BTreeMap<usize, SessionId>,
    /// Sessions that were closed, with their NICs.
    pub(super) closed: Vec<(usize, SessionId)>,
    pending: Vec<Pending>,
    /// Completions that are asked for.
    ended: Vec<(usize, u32, Completion)>,
    /// What operations since the last settling have left behind.
    kept: Vec<(usize, Holds)>,
    used: [bool; SLOTS],
    /// Memory behind these operands is untouched.
    most: usize,
    contexts: u64,
    clocks: Clocks,
    /// Steps since anything has moved.
    idle: u64,
    out: Outcome,
}

/// The GTLB of a plan's NICs.
fn with_entries(plan: &Plan, nic: NicBuilder) -> NicBuilder {
    match plan.hosts.refills {
        false => nic,
        true => nic.mmu(MmuConfig {
            instances: vec![GtlbConfig {
                main_entries: 4,
                complementary_entries: 32,
            }],
            refill: true,
        }),
    }
}

/// The wire of a plan's NIC, and in `cuts` what cuts it.
fn impaired(
    plan: &Plan,
    rank: usize,
    port: Box<dyn Port>,
    cuts: &RefCell<Vec<Arc<AtomicBool>>>,
) -> Box<dyn Port> {
    let faults = Faults {
        seed: plan.seed.wrapping_mul(31).wrapping_add(rank as u64),
        ..plan.faults
    };
    let (port, cut) = Severable::new(port);
    cuts.borrow_mut().push(cut);
    Box::new(Impair::new(Box::new(port), faults).expect("probabilities"))
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
    run.connect_all()?;
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
            window: plan.hosts.window,
            sessions: plan.sessions() + SPARE_SESSIONS,
            slow: plan.hosts.slow.then_some(plan.seed),
            // Large pages otherwise, so that both kinds of entries are refilled.
            scattered: plan.hosts.refills && plan.seed.is_multiple_of(2),
        };
        let cuts = RefCell::new(Vec::new());
        let at_port = |rank: usize, port| impaired(plan, rank, port, &cuts);
        let memory = (MEMORY + SPARE) as u64;
        let make = |_, nic| with_entries(plan, nic);
        let w = World::on(plan.ranks, wire, memory, make, at_port, ether);
        let mut run = Run {
            plan,
            w,
            cuts: cuts.into_inner(),
            stopped: Vec::new(),
            broken: None,
            back: Back::No,
            sessions: BTreeMap::new(),
            listeners: BTreeMap::new(),
            closed: Vec::new(),
            pending: Vec::new(),
            ended: Vec::new(),
            kept: Vec::new(),
            used: [false; SLOTS],
            most: 0,
            contexts: 7,
            clocks: Clocks::new(plan),
            idle: 0,
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

    pub(super) fn is_alive(&self, rank: usize) -> bool {
        self.w.hosts[rank].is_some()
    }

    /// The NIC that operations posted now may fail by.
    pub(super) fn victim(&self) -> Option<usize> {
        self.broken
            .filter(|_| self.back != Back::Yes)
            .map(Break::victim)
    }

    /// Puts a new NIC in the place of one that has ended or stopped. `None`: there is none.
    pub(super) fn replace(&mut self) -> Result<Option<usize>, String> {
        let rank = match self.broken {
            Some(Break::Ends(rank) | Break::Stops(rank)) if self.back == Back::No => rank,
            _ => return Ok(None),
        };
        // A process that was killed says nothing more.
        if let Some(cut) = self.cuts.get(rank) {
            cut.store(true, Ordering::Relaxed);
        }
        self.stopped.clear();
        let cuts = RefCell::new(Vec::new());
        let plan = self.plan;
        let at_port = |rank: usize, port| impaired(plan, rank, port, &cuts);
        self.w
            .again(rank, 1, |_, nic| with_entries(plan, nic), at_port);
        if let Some(cut) = cuts.into_inner().pop() {
            self.cuts[rank] = cut;
        }
        (self.clocks.paused[rank], self.clocks.parted[rank]) = (0, 0);
        self.back = Back::Comes;
        // What its peers have done to the old one's memory is nothing to the new one.
        self.kept.retain(|(_, h)| h.on != rank);
        for p in &mut self.pending {
            p.old = true;
            p.holds.retain(|h| h.on != rank);
            p.reads.retain(|l| l.on != rank);
        }
        self.listeners.remove(&rank);
        self.closed.retain(|(on, _)| *on != rank);
        Ok(Some(rank))
    }

    /// All have met the new NIC.
    pub(super) fn rejoined(&mut self) {
        self.back = Back::Yes;
    }

    /// One step of all NICs, in an order of its own.
    fn step_nics(&mut self) -> bool {
        let now = self.w.now;
        for (rank, heals) in self.clocks.parted.iter_mut().enumerate() {
            if *heals != 0 && *heals <= now {
                *heals = 0;
                let is_cut = self.broken == Some(Break::Cut(rank));
                self.cuts[rank].store(is_cut, Ordering::Relaxed);
            }
        }
        let mut moved = false;
        for rank in self.clocks.order() {
            let Some(h) = &self.w.hosts[rank] else {
                continue;
            };
            if self.clocks.paused[rank] <= now {
                moved |= h.nic.step_at(self.clocks.at(rank, now));
            }
        }
        self.w.now += if moved { 500 } else { 20_000 };
        moved
    }

    /// When something happens next that no NIC does at once.
    fn next_timer(&self) -> Option<u64> {
        let of = |(rank, h): (usize, &Option<Host>)| match self.clocks.paused[rank] {
            goes_on if goes_on > self.w.now => Some(goes_on),
            _ => {
                let timer = h.as_ref()?.nic.next_timer()?;
                Some(self.clocks.when(rank, timer))
            }
        };
        let timers = self.w.hosts.iter().enumerate().filter_map(of);
        let heals = self.clocks.parted.iter().copied().filter(|t| *t != 0);
        timers.chain(heals).min()
    }

    /// One step of all NICs, and what has ended with it. When nothing moves, time passes.
    pub(super) fn step(&mut self) -> Result<(), String> {
        if self.step_nics() {
            self.idle = 0;
        } else {
            self.idle += 1;
            let latest = self.w.now + (JUMP * (1 + self.idle / 20)).min(JUMP_MAX);
            let next = self.next_timer().map_or(latest, |t| t.min(latest));
            self.w.now = self.w.now.max(next);
        }
        let mut at = 0;
        while let Some(p) = self.pending.get(at) {
            match self.w.host(p.rank).queue.poll(p.ticket) {
                Some(c) => {
                    let p = self.pending.remove(at);
                    if p.asked {
                        self.ended.push((p.rank, p.ticket, c));
                    }
                    self.judge(p, &c)?;
                }
                None if self.w.now > p.until => return Err(self.hung()),
                None => at += 1,
            }
        }
        Ok(())
    }

    /// A NIC does nothing for a while, or its wire carries nothing.
    fn rest(&mut self, rank: usize, us: u64, parted: bool) {
        let until = self.w.now + us * 1000;
        if parted {
            self.cuts[rank].store(true, Ordering::Relaxed);
            self.clocks.parted[rank] = until;
        } else {
            self.clocks.paused[rank] = until;
        }
    }

    pub(super) fn hung(&self) -> String {
        let mut text = format!("at {} ns these have not ended:\n", self.w.now);
        for p in &self.pending {
            let _ = writeln!(text, "  operation {} at NIC {}", p.id, p.rank);
        }
        let alive = self.w.hosts.iter().flatten();
        text + &alive.map(|h| h.nic.describe()).collect::<String>()
    }

    pub(super) fn settle(&mut self) -> Result<(), String> {
        while !self.pending.is_empty() {
            self.step()?;
        }
        // What is late writes to memory now.
        for _ in 0..if self.plan.hosts.slow { 400 } else { 20 } {
            self.step()?;
        }
        for (id, h) in std::mem::take(&mut self.kept) {
            self.holds(&h)
                .map_err(|e| format!("after operation {id} had ended: {e}"))?;
        }
        self.used = [false; SLOTS];
        Ok(())
    }

    /// Whether a NIC's memory has what it must.
    fn holds(&self, h: &Holds) -> Result<(), String> {
        if !self.is_alive(h.on) {
            return Ok(());
        }
        let got = self.w.host(h.on).peek(h.at, h.want.len());
        match got.iter().zip(&h.want).position(|(a, b)| a != b) {
            None => Ok(()),
            Some(i) => Err(format!(
                "byte {i} of {} at {:#x} differs at NIC {}",
                h.want.len(),
                h.at,
                h.on
            )),
        }
    }

    fn note(&mut self, words: &[u64]) {
        for word in words {
            self.out.hash = (self.out.hash ^ word).wrapping_mul(0x100_0000_01b3);
            self.out.hash ^= self.out.hash >> 32;
        }
    }

    /// Whether an operation may end so, and has left behind what it must.
    fn judge(&mut self, p: Pending, c: &Completion) -> Result<(), String> {
        let status = c.status as u64;
        let now = self.w.now;
        // Keys of memory are drawn anew in each run.
        let detail = match c.status {
            Status::BadKey => 0,
            _ => c.detail,
        };
        self.note(&[p.id as u64, p.rank as u64, status, c.bytes, detail, now]);
        self.out.operations += 1;
        let what = || format!("operation {} at NIC {}: {c:?}", p.id, p.rank);
        if !p.want.contains(&c.status) {
            self.out.failed += 1;
            if !self.may_fail(&p, c) {
                return Err(format!("{}, which nothing explains", what()));
            }
            // Its own memory is the program's again, and stays as it is.
            let own = p.holds.into_iter().filter(|h| h.on == p.rank);
            let host = self.w.host(p.rank);
            let now = own.map(|h| Holds {
                want: host.peek(h.at, h.want.len()),
                ..h
            });
            self.kept.extend(now.map(|h| (p.id, h)));
            return Ok(());
        }
        // Over a network that loses messages a rank may name another than the one that left.
        let is_exact = c.status == Status::Ok || !self.plan.may_lose();
        let differs = |want: Option<u64>, got| is_exact && want.is_some_and(|w| w != got);
        if differs(p.bytes, c.bytes) || differs(p.detail, c.detail) {
            let wanted = (p.bytes, p.detail);
            return Err(format!("{}, not {wanted:?}", what()));
        }
        for h in &p.holds {
            self.holds(h).map_err(|e| format!("{}: {e}", what()))?;
        }
        for l in p.reads.iter().filter(|l| self.is_alive(l.on)) {
            self.w.host(l.on).poke(l.at, &vec![0xdb; l.len]);
        }
        self.kept.extend(p.holds.into_iter().map(|h| (p.id, h)));
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
        let victim = match p.old {
            true => self.broken.map(Break::victim),
            false => self.victim(),
        };
        let Some(victim) = victim.filter(|v| p.parties.contains(v)) else {
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
    pub(super) fn post(&mut self, rank: usize, d: &Descriptor, p: Pending) -> Result<u32, String> {
        let ticket = self.w.host(rank).queue.try_post(d);
        let ticket = ticket.ok_or_else(|| format!("the queue of NIC {rank} is full"))?;
        let until = match p.until {
            0 => self.w.now + PATIENCE,
            until => until,
        };
        self.pending.push(Pending { ticket, until, ..p });
        Ok(ticket)
    }

    /// Posts an operation and waits for its end; others go on meanwhile.
    pub(super) fn ends(
        &mut self,
        rank: usize,
        d: &Descriptor,
        p: Pending,
    ) -> Result<Completion, String> {
        let ticket = self.post(rank, d, Pending { asked: true, ..p })?;
        loop {
            self.step()?;
            let found = |e: &(usize, u32, Completion)| (e.0, e.1) == (rank, ticket);
            if let Some(i) = self.ended.iter().position(found) {
                return Ok(self.ended.swap_remove(i).2);
            }
        }
    }

    /// Waits until nothing of an operation is under way.
    pub(super) fn all_end(&mut self, id: usize) -> Result<(), String> {
        while self.is_under_way(id) {
            self.step()?;
        }
        Ok(())
    }

    pub(super) fn pending(id: usize, rank: usize, parties: &[usize]) -> Pending {
        Pending {
            id,
            rank,
            ticket: 0,
            parties: parties.to_vec(),
            in_group: false,
            holds: Vec::new(),
            reads: Vec::new(),
            want: &[Status::Ok],
            bytes: None,
            detail: None,
            until: 0,
            asked: false,
            old: false,
        }
    }

    /// Posts a descriptor that no fault reaches, and waits for its end.
    pub(super) fn call(&mut self, rank: usize, d: &Descriptor) -> Result<Completion, String> {
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

    /// Whether NICs that are well may not reach each other at first.
    fn may_miss(&self) -> bool {
        self.plan.may_lose() || self.back == Back::Comes
    }

    /// Makes a communicator. `None`: a wire that loses has prevented it.
    pub(super) fn meet(&mut self, members: &[usize]) -> Result<Option<Vec<CommId>>, String> {
        let ids = self.begin(members);
        self.met(members, ids)
    }

    /// Begins to make a communicator.
    pub(super) fn begin(&mut self, members: &[usize]) -> Vec<CommId> {
        let ctx = self.context();
        self.w
            .begin_communicator(ctx, members, &self.plan.settings())
    }

    /// The number of a new communicator.
    pub(super) fn context(&mut self) -> u64 {
        self.contexts += 1;
        self.contexts
    }

    /// Waits until a communicator is ready.
    pub(super) fn met(
        &mut self,
        members: &[usize],
        ids: Vec<CommId>,
    ) -> Result<Option<Vec<CommId>>, String> {
        let until = self.w.now + PATIENCE;
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
                Some(_) if self.may_miss() => return Ok(None),
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

    /// Gives communicators back.
    pub(super) fn free(&self, members: &[usize], comms: &[CommId]) -> Result<(), String> {
        for (m, comm) in members.iter().zip(comms) {
            let freed = self.w.host(*m).nic.free_communicator(*comm);
            freed.map_err(|e| format!("NIC {m} does not free a communicator: {e}"))?;
        }
        Ok(())
    }

    /// Connects the pairs that have sessions.
    fn connect_all(&mut self) -> Result<(), String> {
        let pairs = self.plan.steps.iter().filter_map(|s| s.op.pair());
        let pairs: BTreeMap<(usize, usize), ()> = pairs.map(|p| (p, ())).collect();
        for &(from, to) in pairs.keys() {
            if let Some(ends) = self.connect(from, to)? {
                self.sessions.insert((from, to), ends);
            }
        }
        Ok(())
    }

    /// A new session between two NICs that are well: their ends of it.
    pub(super) fn connect(
        &mut self,
        from: usize,
        to: usize,
    ) -> Result<Option<(SessionId, SessionId)>, String> {
        let listener = match self.listeners.get(&to) {
            Some(l) => *l,
            None => {
                let l = session_of(self.call(to, &socket())?);
                let c = self.call(to, &listen(l, PORT))?;
                if c.status != Status::Ok {
                    return Err(format!("NIC {to} does not listen: {c:?}"));
                }
                self.listeners.insert(to, l);
                l
            }
        };
        let accept = self.w.host(to).post(&within(accept(listener), TIMEOUT_US));
        let session = session_of(self.call(from, &socket())?);
        let ip = self.w.host(to).nic.config().ip;
        let c = self.call(from, &connect(session, ip, PORT))?;
        let a = self.wait(to, accept)?;
        match (c.status, a.status) {
            (Status::Ok, Status::Ok) => Ok(Some((session, session_of(a)))),
            _ if self.may_miss() => Ok(None),
            _ => Err(format!("{from} does not reach {to}: {c:?}, {a:?}")),
        }
    }

    /// Memory for operands: a source and a destination. Its place depends on the operation's
    /// number first of all, so that it stays where it is in a shorter plan.
    pub(super) fn slot(&mut self, id: usize) -> Result<(u64, u64), String> {
        let first = id * 5 % SLOTS;
        let mut all = (first..first + SLOTS).map(|at| at % SLOTS);
        let at = all.find(|at| !self.used[*at]);
        let at = at.ok_or("a step has more operands than there are")?;
        self.used[at] = true;
        self.most = self.most.max(at + 1);
        let at = 2 * at * OPERAND;
        Ok((at as u64, (at + OPERAND) as u64))
    }

    /// The session of two NICs that are well.
    pub(super) fn session(&self, from: usize, to: usize) -> Option<(SessionId, SessionId)> {
        let well = self.is_alive(from) && self.is_alive(to);
        self.sessions.get(&(from, to)).copied().filter(|_| well)
    }

    /// Whether something of an operation has not ended.
    pub(super) fn is_under_way(&self, id: usize) -> bool {
        self.pending.iter().any(|p| p.id == id)
    }

    pub(super) fn source(&self, id: usize, rank: usize, at: u64, len: usize) -> Vec<u8> {
        let bytes = model::bytes(self.plan.seed, id, rank, len);
        if let Some(h) = &self.w.hosts[rank] {
            h.poke(at, &bytes);
        }
        bytes
    }

    fn take(&mut self, id: usize, op: &Op) -> Result<(), String> {
        // A step has two at most.
        if self.used.iter().filter(|used| !**used).count() < 2 {
            self.settle()?;
        }
        match *op {
            Op::Settle => self.settle(),
            Op::Break(what) => {
                self.break_one(what);
                Ok(())
            }
            Op::Collective {
                kind,
                root,
                count,
                how,
            } => {
                let members: Vec<usize> = (0..self.plan.ranks).collect();
                let comms = self.w.comms.clone();
                let what = (kind, root as usize, count as usize);
                self.collective(id, &members, &comms, what, how)
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
                let what = (K::AllReduce, 0, count as usize);
                self.collective(id, &members, &comms, what, PLAIN)?;
                self.all_end(id)?;
                self.free(&members, &comms)
            }
            Op::Message { from, to, len } => self.message(id, from, to, len as usize),
            Op::Pause { who, us } => {
                self.rest(who, us, false);
                Ok(())
            }
            Op::Part { who, us } => {
                self.rest(who, us, true);
                Ok(())
            }
            Op::Scene(ref scene) => scenes::play(self, id, scene),
            Op::Return(early) => returning::play(self, early),
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
            let memory = host.peek(0, 2 * self.most * OPERAND);
            let word = |b: &[u8]| u64::from_le_bytes(b.try_into().expect("8 bytes"));
            let words: Vec<u64> = memory.chunks_exact(8).map(word).collect();
            self.note(&words);
        }
        Ok(self.out)
    }
}
