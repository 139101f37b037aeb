//! Collective operations on the NIC (the off-path model, FpgaNIC §3.4).
//!
//! A rank is a NIC. A *communicator* is made through the control path ([`CommunicatorConfig`]), and
//! used by `COLLECTIVE` descriptors of any queue. The path of an operation:
//!
//! 1. `command` checks the descriptor, chooses the algorithm, and pins source and destination in the
//!    queue's protection domain;
//! 2. `plan` makes the program of the shape ready: generated or the user's own, proved once;
//! 3. the operation waits here until the communicator is ready, what it comes `after` has ended, and
//!    NIC memory for its segments is free; operations of a communicator begin in the order in which
//!    they were posted, on every rank;
//! 4. `executor` runs the program, several segments at once; `combine` is its data path;
//! 5. `fabric` carries messages between ranks, over any transport that reaches the peer;
//! 6. engines that are attached to the communicator see source, messages and result (`taps`);
//! 7. the ticket retires when the last message has left and the last result is stored.
//!
//! Ranks that disagree are detected by a hash that every message carries; then all exchange their
//! parameters, and the first rank that differs is named everywhere. A rank that ends, times out or
//! aborts ends the communicator on all ranks: every operation retires, and a new communicator with a
//! new number works at once on the same NICs.

mod agree;
mod cancel;
mod channel;
mod combine;
mod communicator;
mod control;
mod cut;
mod direct;
mod direct_path;
mod ending;
mod events;
mod executor;
mod fabric;
mod kernel_stream;
mod named;
mod own;
mod params;
#[cfg(test)]
pub(crate) mod peer_failure;
mod plan;
mod prepared;
mod settings;
mod slab;
mod streams;
mod taps;
mod task;

use std::collections::VecDeque;
use std::net::Ipv4Addr;

use ringbell_nic_abi::{PdId, Status};
use ringbell_onc_engines::program::Layout;
pub use ringbell_onc_engines::program::Thresholds;
use rustc_hash::FxHashMap;

use crate::dma::ReadStatus;
use crate::memory::nic_memory::Block;
use crate::outstanding::Retired;
use crate::transport::TransportEvent;
use crate::types::{NicTime, WorkToken};
use channel::Channel;
use combine::Combine;
use communicator::{Comm, Dispute, End, Lives, GRACE};
use cut::Cut;
use executor::{Job, Op, Progress};
use fabric::{Fabric, RecvRequest, SendRequest, USER_TAG};

pub use cancel::CancelError;
pub(crate) use direct_path::reach;
use direct_path::Begun;
pub(crate) use fabric::{Io, Pieces};
pub(crate) use kernel_stream::StreamSide;
pub(crate) use params::{Params, Reach, Side};
pub(crate) use plan::{Plan, PlanError, Plans, Shape};
pub(crate) use prepared::{Key, Prepared};
pub use settings::{
    CollectiveCounters, CollectiveSettings, CommError, CommInfo, CommStatus, CommunicatorConfig,
    PeerInfo, MAX_RANKS,
};
use slab::Slab;
pub(crate) use taps::Seen;
use taps::Tap;
pub(crate) use task::{After, ChannelTask, LocalPass, Task};

/// A user's program that was refused, with rank, step and reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub struct ProgramError(pub ringbell_onc_engines::program::CheckError);

/// Elements that one step reduces before the NIC looks at everything else again.
const STEP_ELEMENTS: u64 = 128 << 10;

#[derive(Debug)]
enum State {
    /// Not begun.
    Waiting,
    /// A user message; the receive's number.
    Message(Option<u32>),
    Local(Box<Combine>),
    /// A message from this rank, as it is copied.
    FromItself(Box<own::Copy>),
    /// The same at its sender: the receive.
    ToItself(u32),
    Channel(Box<Channel>),
    Running(Box<Op>),
    /// On the direct path.
    Direct,
    /// Done, but for the engine that its result passes.
    Leaving {
        bytes: u64,
        detail: u64,
    },
}

#[derive(Debug)]
struct Active {
    token: WorkToken,
    comm: u32,
    after: After,
    /// The task: kept until it begins, and a program's until it ends.
    task: Task,
    state: State,
    /// Number among the communicator's collective operations.
    seq: Option<u32>,
    bytes: u64,
    /// How it ends when its communicator does, if not like the others.
    own_end: Option<(Status, u64)>,
    /// When it has asked whether the other ranks are alive.
    asked: Option<NicTime>,
    queued: bool,
    /// It has tried the direct path, and goes over messages.
    messages: bool,
    rings: Rings,
    /// The bytes that attached engines get.
    tap: Option<Box<Tap>>,
}

impl Active {
    /// What the ranks of a collective must agree on.
    fn params(&self) -> Option<Params> {
        match &self.task {
            Task::Program(p) => Some(p.params),
            _ => None,
        }
    }

    /// Kernels' streams that stand for source and destination.
    fn streams(&self) -> [Option<StreamSide>; 2] {
        self.rings.as_deref().copied().unwrap_or_default()
    }
}

/// Kernels' streams that stand for source and destination, where there are any.
pub(crate) type Rings = Option<Box<[Option<StreamSide>; 2]>>;

/// Outcome for an operation that must end now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It may retire: no copy uses its memory any more.
    Now,
    /// It retires as soon as nothing does.
    Later,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u8,
    comm: Option<Comm>,
}

/// All communicators of a NIC. See the module text.
#[derive(Debug)]
pub(crate) struct Collectives {
    pub(crate) fabric: Fabric,
    comms: Vec<Slot>,
    by_ctx: FxHashMap<u64, u32>,
    ops: Slab<Active>,
    /// Operations that can go on.
    ready: VecDeque<u32>,
    /// Operations that wait for a ticket or for their communicator.
    waiting: usize,
    pub(crate) plans: Plans,
    pd: Option<PdId>,
    retired: Vec<Retired>,
    lives: Lives,
    /// Operations on the direct path.
    direct_active: usize,
    outcomes: Vec<direct::Ended>,
    areas: direct::AreaPool,
    /// What peers can map of this NIC's GPU memory: bus address and length.
    exports: Vec<(u64, u64)>,
    streams: streams::Streams,
}

impl Collectives {
    pub(crate) fn new(ip: Ipv4Addr) -> Collectives {
        Collectives {
            fabric: Fabric::new(ip),
            comms: Vec::new(),
            by_ctx: FxHashMap::default(),
            ops: Slab::default(),
            ready: VecDeque::new(),
            waiting: 0,
            plans: Plans::default(),
            pd: None,
            retired: Vec::new(),
            lives: Lives::default(),
            direct_active: 0,
            outcomes: Vec::new(),
            areas: direct::AreaPool::default(),
            exports: Vec::new(),
            streams: streams::Streams::default(),
        }
    }

    fn comm(&self, slot: u32) -> Option<&Comm> {
        self.comms.get(slot as usize)?.comm.as_ref()
    }

    fn comm_mut(&mut self, slot: u32) -> Option<&mut Comm> {
        self.comms.get_mut(slot as usize)?.comm.as_mut()
    }

    /// The communicator that a descriptor names: its slot.
    pub(crate) fn find(&self, session: u32) -> Option<u32> {
        let slot = session & 0xffff;
        let s = self.comms.get(slot as usize)?;
        let comm = s.comm.as_ref()?;
        (u32::from(s.generation) == session >> 16 && !comm.life.freed).then_some(slot)
    }

    /// Rank and ranks of a communicator.
    pub(crate) fn shape_of(&self, slot: u32) -> (u32, u32) {
        self.comm(slot).map_or((0, 1), |c| (c.rank, c.ranks()))
    }

    /// Where a communicator changes from one algorithm to another.
    pub(crate) fn thresholds(&self, slot: u32) -> Thresholds {
        self.comm(slot)
            .map_or_else(Thresholds::default, |c| c.settings.thresholds)
    }

    /// The operation that was prepared for a descriptor of this shape, unless a region was freed since or the
    /// communicator has ended.
    #[inline]
    pub(crate) fn repeated(&mut self, slot: u32, key: &Key, freed: u64) -> Option<Box<Prepared>> {
        let c = self.comm_mut(slot).filter(|c| c.life.end.is_none())?;
        c.kept.take(key, freed)
    }

    /// How a communicator has ended, if it has.
    pub(crate) fn ended(&self, slot: u32) -> Option<(Status, u64)> {
        Some(self.comm(slot)?.life.end?.of_operations())
    }

    /// Whether there is any communicator, or something left of one.
    #[inline]
    pub(crate) fn exists(&self) -> bool {
        self.pd.is_some()
    }

    /// Whether something waits for a reading of the clock.
    #[inline]
    pub(crate) fn wants_clock(&self) -> bool {
        self.lives.unsettled && self.some_wait_for_clock()
    }

    fn some_wait_for_clock(&self) -> bool {
        let waits = |s: &u32| {
            self.comm(*s).is_some_and(|c| {
                (!c.life.ready && c.life.end.is_none()) || c.life.end.is_some_and(|e| !e.reaped)
            })
        };
        self.by_ctx.values().any(waits)
    }

    /// Whether works have ended, or kernels are to be notified.
    #[inline]
    pub(crate) fn has_retired(&self) -> bool {
        !self.retired.is_empty() || self.streams.have_failed()
    }

    /// The next work that has ended.
    pub(crate) fn take_retired(&mut self) -> Option<Retired> {
        self.retired.pop()
    }

    /// Whether messages or operations are under way.
    pub(crate) fn is_active(&self) -> bool {
        self.fabric.is_busy() || !self.ops.is_empty()
    }

    /// Whether a step without a clock reading would find nothing to do.
    pub(crate) fn is_quiet(&self) -> bool {
        self.ready.is_empty()
            && self.waiting == 0
            && self.retired.is_empty()
            && self.streams.is_quiet()
            && self.is_direct_quiet()
            && self.fabric.is_quiet()
            && (self.lives.ending == 0
                || !self.by_ctx.values().any(|s| {
                    let end = self.comm(*s).and_then(|c| c.life.end);
                    end.is_some_and(|e| !e.reaped)
                }))
    }

    /// When the NIC must step although nothing arrives.
    pub(crate) fn next_timer(&self) -> Option<NicTime> {
        let of = self.by_ctx.values().filter_map(|s| self.comm(*s));
        let times = of.filter_map(|c| match c.life.end {
            Some(e) if !e.reaped => Some(e.until),
            Some(_) => None,
            None => c.life.deadline.filter(|_| !c.life.ready),
        });
        times.chain(self.fabric.next_timer()).min()
    }

    /// Takes an operation on. It retires through [`Collectives::take_retired`].
    pub(crate) fn post(
        &mut self,
        io: &mut Io<'_>,
        slot: u32,
        token: WorkToken,
        task: Task,
        (rings, seen): (Rings, Seen),
        after: After,
    ) {
        let Some(c) = self
            .comms
            .get_mut(slot as usize)
            .and_then(|s| s.comm.as_mut())
        else {
            return;
        };
        let (mut seq, mut bytes, mut routed) = (None, 0, true);
        if let Task::Program(p) = &task {
            bytes = p.bytes;
            routed = p.params.direct;
            seq = Some(c.next_seq);
            c.next_seq = c.next_seq.wrapping_add(1);
        }
        // Nothing is before it, and no rank has said anything of it.
        let next = seq.is_some()
            && c.queue.is_empty()
            && after == After::Nothing
            && c.life.ready
            && c.life.end.is_none()
            && c.dispute.is_none()
            && !self.fabric.has_early();
        let tap = Tap::of(&task, &rings, seen);
        let active = Active {
            token,
            tap,
            comm: slot,
            after,
            task,
            state: State::Waiting,
            seq,
            bytes,
            own_end: None,
            asked: None,
            queued: false,
            messages: false,
            rings,
        };
        let Some(id) = self.ops.insert(active) else {
            self.retired.push(Retired {
                token,
                status: Status::NoResources,
                bytes: 0,
                detail: 1 << 18,
            });
            return;
        };
        if !routed {
            self.route(slot, id);
        }
        if next && self.start(io, slot, id) {
            return;
        }
        self.waiting += 1;
        if let Some(c) = self.comm_mut(slot) {
            c.queue.push_back(id);
        }
        if let Some(seq) = seq {
            // Ranks that are ahead have sent their parameters already.
            let differs = self.was_said_otherwise(slot, id, seq);
            let disputed = self.comm(slot).and_then(|c| c.dispute.as_ref());
            if differs || disputed.is_some_and(|d| d.seq == seq) {
                self.dispute(io, slot, seq);
            }
        }
    }

    /// The operation of a work: a search, for what happens seldom.
    fn op_of(&self, token: WorkToken) -> Option<u32> {
        let mut all = self.ops.iter();
        all.find(|(_, a)| a.token == token).map(|(id, _)| id)
    }

    fn wake(&mut self, id: u32) {
        if let Some(a) = self.ops.get_mut(id) {
            if !std::mem::replace(&mut a.queued, true) {
                self.ready.push_back(id);
            }
        }
    }

    /// Starts the operations that can start. `ended` returns whether an operation's predecessors have ended.
    fn begin(&mut self, io: &mut Io<'_>, ended: &dyn Fn(After) -> bool) -> bool {
        let mut moved = false;
        for slot in 0..self.comms.len() as u32 {
            // Collective operations begin in order; messages and local ones when they can.
            let (mut blocked, mut i) = (false, 0);
            while let Some(c) = self.comm(slot) {
                if c.life.end.is_some() || !c.life.ready {
                    break;
                }
                let Some(&id) = c.queue.get(i) else { break };
                let Some(a) = self.ops.get(id) else { break };
                let collective = a.seq.is_some();
                if (collective && blocked) || !ended(a.after) {
                    blocked |= collective;
                    i += 1;
                    continue;
                }
                if self.start(io, slot, id) {
                    self.waiting -= 1;
                    moved = true;
                    if let Some(c) = self.comm_mut(slot) {
                        c.queue.retain(|q| *q != id);
                    }
                } else {
                    blocked |= collective;
                    i += 1;
                }
            }
        }
        moved
    }

    /// Begins an operation. `false`: NIC memory is short, later.
    fn start(&mut self, io: &mut Io<'_>, slot: u32, id: u32) -> bool {
        let Some(a) = self.ops.get(id) else {
            return true;
        };
        if !matches!(a.state, State::Waiting) {
            return true;
        }
        let streams = a.streams();
        // Memory alone, which no engine is to see, is never in the way.
        if a.rings.is_some() || a.tap.is_some() || matches!(a.task, Task::Channel(_)) {
            if self.streams.are_taken(streams) || self.is_channel_taken(slot, &a.task) {
                return false;
            }
            if !self.show_source(io, slot, id) {
                return false;
            }
        }
        let Some(a) = self.ops.get(id) else {
            return true;
        };
        let reach = match &a.task {
            Task::Program(p) if !a.messages => p.reach,
            _ => Reach::Messages,
        };
        if reach != Reach::Messages {
            match self.start_direct(io, slot, id) {
                Begun::Yes => return true,
                Begun::Later => return false,
                Begun::No => {}
            }
            if reach == Reach::MustDirect {
                let direct = u64::from(ringbell_nic_abi::Algorithm::Direct.code());
                self.finish(slot, id, Status::Unsupported, 0, direct);
                return true;
            }
        }
        let Some(c) = self.comms[slot as usize].comm.as_mut() else {
            return false;
        };
        let Some(a) = self.ops.get_mut(id) else {
            return true;
        };
        let key = u64::from(id) << 32;
        match std::mem::replace(&mut a.task, Task::Nop) {
            Task::Nop => {
                self.finish(slot, id, Status::Ok, 0, 0);
            }
            Task::Send { to, tag, pieces } => {
                a.bytes = pieces.len();
                a.state = State::Message(None);
                c.active.push(id);
                let itself = to == c.rank;
                let request = SendRequest {
                    ctx: c.ctx,
                    to,
                    tag: USER_TAG | u64::from(tag),
                    hash: 0,
                    pieces,
                    key,
                };
                match itself {
                    false => self.fabric.send(request),
                    true => self.fabric.send_own(request),
                }
                self.copy_own();
            }
            Task::Recv { from, tag, pieces } => {
                c.active.push(id);
                let request = RecvRequest {
                    ctx: c.ctx,
                    from,
                    tag: tag.map(|t| USER_TAG | u64::from(t)),
                    hash: 0,
                    pieces,
                    key,
                };
                a.state = State::Message(None);
                let n = self.fabric.recv(io, request);
                let met = self.copy_own();
                match (n.filter(|_| !met), self.ops.get_mut(id)) {
                    (Some(n), Some(a)) => a.state = State::Message(Some(n)),
                    (None, _) if met => {}
                    (None, _) => self.finish(slot, id, Status::NoResources, 0, 1 << 18),
                    _ => {}
                }
            }
            Task::Channel(task) => {
                self.start_channel(io, slot, id, task);
            }
            Task::Local(combine) => {
                a.bytes = combine.count * combine.dtype.bytes();
                a.state = State::Local(combine);
                c.active.push(id);
                self.wake(id);
            }
            Task::Program(p) => {
                let (plan, params) = (p.plan.clone(), p.params);
                let (input, output, streamed) = (p.input, p.output, p.streamed);
                a.task = Task::Program(p);
                let layout = Layout {
                    count: params.count,
                    block_chunks: plan.program.block_chunks,
                };
                let slots = slots_of(&plan, &params);
                let cut = Cut::of(&c.settings, &layout, params.dtype.bytes(), slots, streamed);
                let Cut {
                    segments,
                    windows,
                    slot_bytes,
                    in_flight,
                } = match cut {
                    Ok(cut) => cut,
                    Err(short) => {
                        c.life.why = Some(short.to_string());
                        self.finish(slot, id, Status::NoResources, 0, short.needed);
                        return true;
                    }
                };
                let ends = match streams::open(io, streams) {
                    Ok(ends) => ends,
                    Err((status, detail)) => {
                        self.finish(slot, id, status, 0, detail);
                        return true;
                    }
                };
                let job = Job {
                    hash: params.hash(),
                    ctx: c.ctx,
                    seq: a.seq.unwrap_or(0),
                    plan,
                    params,
                    input,
                    output,
                    layout,
                    segments,
                    slot_bytes,
                    windows,
                    streams: streams.map(|s| s.is_some()),
                };
                let each = job.instance_bytes();
                let want = segments.min(in_flight);
                let mut blocks: Vec<Option<Block>> = Vec::new();
                for _ in 0..want {
                    if each == 0 {
                        blocks.push(None);
                        continue;
                    }
                    match c.arena.alloc(each) {
                        Some(b) => blocks.push(Some(b)),
                        None => break,
                    }
                }
                if blocks.is_empty() {
                    if c.active.is_empty() {
                        self.finish(slot, id, Status::NoResources, 0, each);
                        return true;
                    }
                    return false;
                }
                let viewers = a.tap.as_ref().map(|t| t.viewers(slot, id, &streams));
                let op = Op::new(job, blocks, ends, viewers.unwrap_or_default());
                a.state = State::Running(Box::new(op));
                c.count(params.kind, params.algo);
                self.streams.take(id, streams);
                c.active.push(id);
                self.wake(id);
            }
        }
        true
    }

    /// An operation has ended.
    fn finish(&mut self, slot: u32, id: u32, status: Status, bytes: u64, detail: u64) {
        let Some(a) = self.ops.remove(id) else { return };
        if let Some(rings) = a.rings {
            self.streams.give_back(id, *rings, status, detail);
        }
        if let Some(c) = self.comms[slot as usize].comm.as_mut() {
            c.active.retain(|o| *o != id);
            c.release(&a.state);
            if status == Status::Ok {
                c.counters.completed += 1;
            } else {
                c.counters.failed += 1;
            }
            if let (Some(seq), Task::Program(p)) = (a.seq, a.task) {
                c.remember(seq, p.params);
                c.kept.put(p);
                let settles = |d: &Dispute| d.seq == seq && d.suspect().is_none();
                if status == Status::Ok && c.dispute.as_ref().is_some_and(settles) {
                    // The dispute was unfounded: some rank was late.
                    c.dispute = None;
                }
            }
        }
        self.retired.push(Retired {
            token: a.token,
            status,
            bytes,
            detail,
        });
        if a.tap.is_some() {
            self.wake_leaving(slot);
        }
    }

    /// Advances all operations. `ended` returns whether an operation's predecessors have ended, `fresh`
    /// whether the time was read in this step.
    pub(crate) fn step(
        &mut self,
        io: &mut Io<'_>,
        fresh: bool,
        ended: &dyn Fn(After) -> bool,
    ) -> bool {
        if self.by_ctx.is_empty() && !self.fabric.is_busy() {
            return false;
        }
        self.show_messages(&mut io.dma.engines);
        let mut moved = self.take_events(io);
        if fresh && self.lives.unsettled {
            moved |= self.look_at_clock(io);
            self.lives.unsettled = self.some_wait_for_clock();
        }
        moved |= self.waiting > 0 && self.begin(io, ended);
        if !self.streams.is_quiet() {
            self.look_at_streams(io);
        }
        let mut budget = STEP_ELEMENTS;
        for _ in 0..self.ready.len() {
            let Some(id) = self.ready.pop_front() else {
                break;
            };
            moved = true;
            self.run(io, id, &mut budget);
        }
        moved |= self.direct_active > 0 && self.step_direct(io);
        moved |= self.reap(io);
        if fresh || !self.fabric.is_quiet() {
            moved |= self.fabric.step(io, fresh);
            moved |= self.take_events(io);
        }
        moved | (self.lives.gone > 0 && self.look_at_gone(io))
    }

    fn run(&mut self, io: &mut Io<'_>, id: u32, budget: &mut u64) {
        let Some(a) = self.ops.get_mut(id) else {
            return;
        };
        a.queued = false;
        let (slot, bytes) = (a.comm, a.bytes);
        let ended = self.comms[slot as usize]
            .comm
            .as_ref()
            .is_none_or(|c| c.life.end.is_some());
        if ended {
            return;
        }
        let mut watch = false;
        let result = match &mut a.state {
            State::Running(op) => {
                let ran = op.run(id, &mut self.fabric, io, budget);
                watch = op.waits_for_kernel;
                ran
            }
            State::Local(c) => match c.run(&mut io.dma(), budget) {
                Ok(ReadStatus::Done) => Ok(Progress::Done),
                Ok(ReadStatus::Pending) => Ok(Progress::More),
                Err(fault) => Err(fault.status()),
            },
            State::FromItself(_) => return self.run_own(io, id, budget),
            State::Channel(_) => return self.run_channel(io, id),
            State::Leaving { .. } => return self.leave(io, id),
            State::Waiting | State::Message(_) | State::ToItself(_) | State::Direct => return,
        };
        match result {
            Ok(Progress::Done) => self.complete(slot, id, bytes, 0),
            Ok(Progress::More) => self.wake(id),
            Ok(Progress::Waits) if watch => self.streams.watch(id),
            Ok(Progress::Waits) => {}
            Err(why) => self.fault(io, slot, id, why),
        }
    }

    /// Whether an event belongs to the fabric; if so it was processed.
    #[inline]
    pub(crate) fn on_event(&mut self, io: &mut Io<'_>, t: usize, e: &TransportEvent) -> bool {
        self.fabric.on_event(io, t, e)
    }
}

/// Slots of NIC memory of the rank that needs most.
fn slots_of(plan: &Plan, params: &Params) -> u64 {
    plan.most_slots(params.converts()).max(1).into()
}
