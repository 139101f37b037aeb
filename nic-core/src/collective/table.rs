//! The communicators of a NIC, and their operations from the post to the end.

use std::collections::VecDeque;

use ringbell_nic_abi::Status;
use ringbell_onc_engines::program::{HostRanks, Locality, Order};
use rustc_hash::FxHashMap;

use super::channel::Channel;
use super::combine::Combine;
use super::communicator::{Comm, Lives};
use super::direct::{Call, Key, Prepared};
use super::executor::Op;
use super::gone::Gone;
use super::in_transit::InTransit;
use super::kernel_stream::Streams;
use super::number::Number;
use super::on_card::CardOp;
use super::taps::{Tap, Viewer};
use super::task::OwnCopy;
use super::{After, Params, Reach, Rings, StreamSide, Task, Thresholds};
use crate::engine::Place;
use crate::link::Io;
use crate::outstanding::Retired;
use crate::slab::Slab;
use crate::types::{CommId, WorkToken};

/// Bytes that one operation passes to an engine before the NIC continues with other work.
const SHOWN: u64 = 256 << 10;
/// Most communicators of one NIC.
pub(super) const MAX_COMMS: usize = 1 << 12;

/// How far an operation is.
#[derive(Debug)]
pub(super) enum State {
    /// Not begun.
    Waiting,
    /// A user message; the receive's number.
    Message(Option<u32>),
    Local(Box<Combine>),
    /// A message from this rank, as it is copied.
    FromItself(Box<OwnCopy>),
    /// The same at its sender: the receive.
    ToItself(u32),
    Channel(Box<Channel>),
    Running(Box<Op>),
    /// Its steps are the card's.
    OnCard(Box<CardOp>),
    /// The NICs on the way combine its elements.
    InTransit(Box<InTransit>),
    /// Done, but for the engine that its result passes.
    Leaving {
        bytes: u64,
        detail: u64,
    },
}

/// An operation of a communicator that waits to begin, or goes over messages. On the direct path it
/// is a [`Prepared`] alone.
#[derive(Debug)]
pub(super) struct Active {
    pub(super) call: Call,
    pub(super) comm: u32,
    pub(super) after: After,
    /// The task: kept until it begins, and a program's until it ends.
    pub(super) task: Task,
    pub(super) state: State,
    pub(super) bytes: u64,
    /// Bytes that went in transit, when that has ended: the program has the rest.
    pub(super) done: Option<u64>,
    pub(super) queued: bool,
    /// It has tried the direct path, and goes over messages.
    pub(super) messages: bool,
    pub(super) rings: Rings,
    /// The bytes that attached engines get.
    pub(super) tap: Option<Box<Tap>>,
}

impl Active {
    /// What the ranks of a collective must agree on.
    pub(super) fn params(&self) -> Option<Params> {
        match &self.task {
            Task::Program(p) => Some(p.params),
            _ => None,
        }
    }

    /// Kernels' streams that stand for source and destination.
    pub(super) fn streams(&self) -> [Option<StreamSide>; 2] {
        self.rings.as_deref().copied().unwrap_or_default()
    }
}

/// By their ids; a freed one keeps its slot, and its id is refused, until it has ended.
type Comms = Slab<Comm, 16, 0, 0xff>;
/// Bit 31 of their numbers is free: keys of messages with it are of no operation
/// ([`HOST_KEY`](super::host::HOST_KEY)).
type Ops = Slab<Active, 18, 1, { u32::MAX >> 19 }>;

/// What the paths of operations have found out, for the communicators.
#[derive(Debug)]
pub(super) enum News {
    /// A communicator ends because of a rank, on all ranks.
    Ends {
        slot: u32,
        rank: u32,
        status: Status,
    },
    /// Ranks disagree about an operation.
    Differs { slot: u32, seq: Number, rank: u32 },
}

/// See the module text. Communicators are named by their slot, operations by their number in the
/// slab.
#[derive(Debug, Default)]
pub(crate) struct Table {
    comms: Comms,
    by_ctx: FxHashMap<u64, u32>,
    pub(super) lives: Lives,
    pub(super) ops: Ops,
    /// Operations that can go on.
    ready: VecDeque<u32>,
    /// Operations that wait for a ticket or for their communicator.
    pub(super) waiting: usize,
    retired: Vec<Retired>,
    /// The kernels' streams of operations.
    pub(crate) streams: Streams,
    pub(super) news: VecDeque<News>,
    /// The operation that the card was given last.
    pub(super) on_card: Option<u32>,
}

impl Table {
    pub(super) fn comm(&self, slot: u32) -> Option<&Comm> {
        self.comms.at(slot as usize)
    }

    pub(super) fn comm_mut(&mut self, slot: u32) -> Option<&mut Comm> {
        self.comms.at_mut(slot as usize)
    }

    /// A communicator and an operation.
    pub(super) fn both(&mut self, slot: u32, id: u32) -> Option<(&mut Comm, &mut Active)> {
        let c = self.comms.at_mut(slot as usize)?;
        Some((c, self.ops.get_mut(id)?))
    }

    /// All slots, used or not.
    pub(super) fn slots(&self) -> std::ops::Range<u32> {
        0..self.comms.indices().end as u32
    }

    /// The slot that the next communicator gets; `None` when there are too many.
    pub(super) fn next_slot(&self) -> Option<u32> {
        let slot = self.comms.next().filter(|slot| *slot < MAX_COMMS);
        slot.map(|slot| slot as u32)
    }

    /// Adds a communicator.
    pub(super) fn add(&mut self, comm: Comm) -> Option<CommId> {
        let ctx = comm.ctx;
        let id = self.comms.insert(comm)?;
        self.by_ctx.insert(ctx, id & 0xffff);
        self.lives.unsettled = true;
        Some(CommId(id))
    }

    /// The id of a communicator is refused from now on.
    pub(super) fn free_id(&mut self, slot: u32) -> Option<&mut Comm> {
        let c = self.comm_mut(slot)?;
        c.life.freed = true;
        Some(c)
    }

    /// Takes a communicator out.
    pub(super) fn take(&mut self, slot: u32) -> Option<Comm> {
        let c = self.comms.remove_at(slot as usize)?;
        self.lives.ending -= usize::from(c.life.end.is_some());
        self.by_ctx.remove(&c.ctx);
        Some(c)
    }

    /// The slot of a communicator's number.
    pub(super) fn slot_of(&self, ctx: u64) -> Option<u32> {
        self.by_ctx.get(&ctx).copied()
    }

    /// Whether there is no communicator.
    pub(super) fn is_empty(&self) -> bool {
        self.by_ctx.is_empty()
    }

    /// Slots in use.
    pub(super) fn used(&self) -> Vec<u32> {
        self.by_ctx.values().copied().collect()
    }

    /// Every communicator.
    pub(super) fn comms(&self) -> impl Iterator<Item = &Comm> {
        self.comms.iter().map(|(_, c)| c)
    }

    /// Every communicator that is not freed.
    pub(crate) fn ids(&self) -> Vec<CommId> {
        let live = self.comms.ids(|c| !c.life.freed);
        live.into_iter().map(CommId).collect()
    }

    /// The communicator that a descriptor names: its slot.
    pub(crate) fn find(&self, session: u32) -> Option<u32> {
        let comm = self.comms.get(session)?;
        (!comm.life.freed).then_some(session & 0xffff)
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

    /// Which ranks of a communicator share a host.
    pub(crate) fn host_ranks(&self, slot: u32) -> HostRanks {
        self.comm(slot)
            .map_or_else(HostRanks::default, |c| c.settings.host_ranks.clone())
    }

    /// How the ranks of a communicator reach each other by messages.
    pub(crate) fn locality(&self, slot: u32) -> Locality {
        self.comm(slot)
            .map_or(Locality::Network, |c| match c.settings.trees {
                true => Locality::Trees,
                false => Locality::of_hosts(c.ranks(), &c.settings.host_ranks),
            })
    }

    /// Whether this rank's card executes programs of rings for a communicator of several ranks.
    pub(crate) fn offers_card(&self, slot: u32) -> bool {
        self.comm(slot)
            .is_some_and(|c| c.life.offers_card && c.ranks() > 1)
    }

    /// The order of a communicator's reductions.
    pub(crate) fn order(&self, slot: u32) -> Order {
        self.comm(slot).map_or(Order::Ring, |c| c.settings.order())
    }

    /// Least size of a stream's ring.
    pub(crate) fn stream_bytes(&self, slot: u32) -> u64 {
        self.comm(slot).map_or(0, |c| c.settings.stream_bytes)
    }

    /// The operation that was prepared for a descriptor of this shape, unless a region was freed
    /// since or the communicator has ended.
    #[inline]
    pub(crate) fn repeated(&mut self, slot: u32, key: &Key, freed: u64) -> Option<Box<Prepared>> {
        let c = self.comm_mut(slot).filter(|c| c.life.end.is_none())?;
        c.kept.take(key, freed)
    }

    /// How a communicator has ended, if it has.
    pub(crate) fn ended(&self, slot: u32) -> Option<(Status, u64)> {
        Some(self.comm(slot)?.life.end?.of_operations())
    }

    /// Ranks of a communicator that send nothing more.
    pub(super) fn gone(&self, slot: u32) -> &[Gone] {
        self.comm(slot).map_or(&[], |c| &c.life.gone)
    }

    /// Whether a communicator waits for a reading of the clock.
    pub(super) fn wait_for_clock(&self) -> bool {
        self.comms().any(|c| match c.life.end {
            Some(e) => !e.reaped,
            None => !c.life.ready,
        })
    }

    /// Whether a communicator has ended and not retired its operations.
    pub(super) fn is_ending(&self) -> bool {
        self.lives.ending > 0 && self.comms().any(|c| c.life.end.is_some_and(|e| !e.reaped))
    }

    /// Whether operations have ended, or kernels are to be notified.
    #[inline]
    pub(crate) fn has_retired(&self) -> bool {
        !self.retired.is_empty() || self.streams.have_failed()
    }

    /// The next operation that has ended.
    pub(crate) fn take_retired(&mut self) -> Option<Retired> {
        self.retired.pop()
    }

    /// Whether no operation can go on, waits, or has ended.
    pub(super) fn is_quiet(&self) -> bool {
        self.ready.is_empty()
            && self.waiting == 0
            && self.retired.is_empty()
            && self.streams.is_quiet()
    }

    /// An operation ends that has no place here.
    pub(super) fn refuse(&mut self, token: WorkToken, status: Status, detail: u64) {
        self.retired.push(Retired {
            token,
            status,
            bytes: 0,
            detail,
        });
    }

    /// The operation of a work, unless it is on the direct path: a search, for what happens seldom.
    pub(super) fn op_of(&self, token: WorkToken) -> Option<u32> {
        let mut all = self.ops.iter();
        all.find(|(_, a)| a.call.token == token).map(|(id, _)| id)
    }

    /// The same on any path: its communicator, and its state.
    pub(super) fn call_of(&mut self, token: WorkToken) -> Option<(u32, &mut Call)> {
        if let Some(id) = self.op_of(token) {
            let a = self.ops.get_mut(id)?;
            return Some((a.comm, &mut a.call));
        }
        self.comms.iter_mut().find_map(|(id, c)| {
            let mut calls = c.direct.as_mut()?.calls();
            let call = calls.find(|c| c.token == token)?;
            Some((id & 0xffff, call))
        })
    }

    /// The parameters of the collective under way whose number matches.
    pub(super) fn params_of(
        &self,
        slot: u32,
        is: impl Fn(Number) -> bool,
    ) -> Option<(Number, Params)> {
        let c = self.comm(slot)?;
        let ids = c.active.iter().chain(&c.queue);
        let others = ids.filter_map(|id| self.ops.get(*id));
        let others = others.filter_map(|a| Some((a.call.seq?, a.params()?)));
        let direct = c.direct.iter().flat_map(|d| d.ops());
        let direct = direct.filter_map(|op| Some((op.call.seq?, op.params)));
        direct.chain(others).find(|(seq, _)| is(*seq))
    }

    /// Whether an operation of a port is too far behind the oldest under way for it to begin.
    #[inline]
    pub(super) fn is_ahead(&self, slot: u32, seq: Number) -> bool {
        let Some(c) = self.comm(slot).filter(|_| seq.port() != 0) else {
            return false;
        };
        let mut numbers = c.active.iter().filter_map(|id| self.ops.get(*id)?.call.seq);
        let oldest = numbers.find(|n| n.port() == seq.port());
        oldest.is_some_and(|oldest| !seq.is_near(oldest))
    }

    /// An operation can go on.
    pub(super) fn wake(&mut self, id: u32) {
        if let Some(a) = self.ops.get_mut(id) {
            if !std::mem::replace(&mut a.queued, true) {
                self.ready.push_back(id);
            }
        }
    }

    /// Chooses the path of a waiting operation, once the ranks are known. Messages of ranks without
    /// the flag of the direct path belong to another operation, even where the messages would be
    /// equal.
    pub(super) fn route(&mut self, slot: u32, id: u32) {
        let Some(c) = self.comm(slot).filter(|c| c.life.cards || c.is_direct()) else {
            return;
        };
        let (cards, direct) = (c.life.cards, c.is_direct());
        let Some(a) = self.ops.get_mut(id) else {
            return;
        };
        if let Task::Program(p) = &mut a.task {
            if cards {
                p.use_cards();
            }
            if direct && p.reach != Reach::Messages {
                p.params.direct = true;
            }
        }
    }

    /// Wakes the operations whose kernels have moved.
    pub(super) fn look_at_streams(&mut self, io: &mut Io<'_>) {
        let mut i = 0;
        while let Some(&id) = self.streams.watched.get(i) {
            let news = match self.ops.get(id).map(|a| &a.state) {
                Some(State::Channel(c)) => c.has_news(&mut io.dma()),
                Some(State::Running(op)) => op.has_news(io),
                _ => true,
            };
            if news {
                self.streams.watched.swap_remove(i);
                self.wake(id);
            } else {
                i += 1;
            }
        }
    }

    /// Wakes the operation whose steps the card executes, when that has given something.
    pub(super) fn look_at_card(&mut self) {
        let Some(id) = self.on_card else { return };
        match self.ops.get(id).map(|a| &a.state) {
            Some(State::OnCard(op)) if op.has_news() => self.wake(id),
            Some(State::OnCard(_)) => {}
            _ => self.on_card = None,
        }
    }

    /// Whether operations can go on, or wait for a kernel.
    #[inline]
    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty() || !self.streams.is_quiet() || self.on_card.is_some()
    }

    /// How many operations can go on.
    pub(super) fn ready(&self) -> usize {
        self.ready.len()
    }

    /// The next operation that can go on, and its communicator.
    pub(super) fn next_ready(&mut self) -> Option<(u32, u32)> {
        loop {
            let id = self.ready.pop_front()?;
            if let Some(a) = self.ops.get_mut(id) {
                a.queued = false;
                return Some((id, a.comm));
            }
        }
    }

    /// Whether a communicator has ended, or is about to.
    pub(super) fn has_ended(&self, slot: u32) -> bool {
        let ends = |n: &News| matches!(n, News::Ends { slot: s, .. } if *s == slot);
        self.comm(slot).is_none_or(|c| c.life.end.is_some())
            || (!self.news.is_empty() && self.news.iter().any(ends))
    }

    /// A communicator is to end because of a rank.
    pub(super) fn end(&mut self, slot: u32, rank: u32, status: Status) {
        self.news.push_back(News::Ends { slot, rank, status });
    }

    /// An operation cannot go on, because of this rank's memory or a stream of it: the other ranks
    /// of a collective, which wait for this one, are notified.
    pub(super) fn fail(&mut self, slot: u32, id: u32, (status, detail): (Status, u64)) {
        let Some(a) = self.ops.get_mut(id) else {
            return;
        };
        if a.call.seq.is_none() {
            return self.finish(slot, id, status, 0, detail);
        }
        a.call.own_end = Some((status, detail));
        self.end(slot, self.shape_of(slot).0, Status::CommAborted);
    }

    /// An operation ends before it has begun for others.
    pub(super) fn forget(&mut self, id: u32, status: Status, detail: u64) {
        let Some(a) = self.ops.remove(id) else { return };
        self.streams.give_back(id, a.streams(), status, detail);
        self.waiting -= usize::from(matches!(a.state, State::Waiting));
        if let Some(c) = self.comm_mut(a.comm) {
            c.active.retain(|o| *o != id);
            c.queue.retain(|o| *o != id);
        }
    }

    /// An operation has ended.
    pub(super) fn finish(&mut self, slot: u32, id: u32, status: Status, bytes: u64, detail: u64) {
        let Some(a) = self.ops.get_mut(id) else {
            return;
        };
        if let Some(rings) = a.rings.take() {
            self.streams.give_back(id, *rings, status, detail);
        }
        let (call, seen) = (a.call, a.tap.is_some());
        if let Some(c) = self.comms.at_mut(slot as usize) {
            if let Some(i) = c.active.iter().position(|o| *o == id) {
                c.active.remove(i);
            }
            // A card that is under way is stopped before the memory is the user's again.
            match std::mem::replace(&mut a.state, State::Waiting) {
                State::Running(op) => c.release(&op),
                State::OnCard(op) => c.release_card(op),
                State::InTransit(op) => c.arena.free(op.block()),
                _ => {}
            }
            c.count_end(status);
            if let Task::Program(p) = std::mem::replace(&mut a.task, Task::Nop) {
                c.end_program(call.seq, p, status);
            }
        }
        self.ops.free(id);
        self.retired.push(Retired {
            token: call.token,
            status,
            bytes,
            detail,
        });
        if seen {
            self.wake_leaving(slot);
        }
    }

    /// A collective on the direct path has ended.
    #[inline]
    pub(super) fn end_direct(
        &mut self,
        slot: u32,
        op: Box<Prepared>,
        status: Status,
        (bytes, detail): (u64, u64),
    ) {
        let call = op.call;
        if let Some(c) = self.comm_mut(slot) {
            c.count_end(status);
            c.end_program(call.seq, op, status);
        }
        self.retired.push(Retired {
            token: call.token,
            status,
            bytes,
            detail,
        });
    }

    /// Shows the source of an operation before it begins. `false`: there is more, later.
    pub(super) fn show_source(&mut self, io: &mut Io<'_>, slot: u32, id: u32) -> bool {
        let tap = self.ops.get_mut(id).and_then(|a| a.tap.as_mut());
        let Some((tap, engine)) = tap.and_then(|t| t.seen.input.map(|e| (t, e))) else {
            return true;
        };
        if tap.taken == tap.source.len() {
            return true;
        }
        let viewer = Viewer::new(slot, Place::Input, engine, id);
        match viewer.show(io, &tap.source, &mut tap.taken, SHOWN) {
            Ok(false) => false,
            Ok(true) => {
                viewer.end(io);
                true
            }
            // The operation itself finds and reports the fault.
            Err(_) => true,
        }
    }

    /// An operation has ended well: it completes when its result has passed the engine that is
    /// there.
    pub(super) fn complete(&mut self, slot: u32, id: u32, bytes: u64, detail: u64) {
        let Some(a) = self.ops.get_mut(id) else {
            return;
        };
        let Some(tap) = a.tap.as_mut().filter(|t| t.shows_result()) else {
            return self.finish(slot, id, Status::Ok, bytes, detail);
        };
        if a.call.seq.is_none() {
            // A message may be shorter than its receive.
            tap.result = tap.result.prefix(bytes);
        }
        let state = std::mem::replace(&mut a.state, State::Leaving { bytes, detail });
        match (state, self.comm_mut(slot)) {
            (State::Running(op), Some(c)) => c.release(&op),
            (State::OnCard(op), Some(c)) => c.release_card(op),
            (State::InTransit(op), Some(c)) => c.arena.free(op.block()),
            _ => {}
        }
        self.wake(id);
    }

    /// Shows the result of an operation that is otherwise done.
    pub(super) fn leave(&mut self, io: &mut Io<'_>, id: u32) {
        let Some(a) = self.ops.get(id) else { return };
        let (slot, seq) = (a.comm, a.call.seq);
        // Results that come before it pass before it. Those of streams pass as they come.
        let before = |o: &&u32| {
            let Some((x, seq)) = self.ops.get(**o).zip(seq) else {
                return false;
            };
            x.tap.as_ref().is_some_and(|t| t.shows_result())
                && x.call.seq.is_some_and(|s| s.is_before(seq))
        };
        let on_path = |c: &Comm| {
            let mut seqs = c.direct.iter().flat_map(|d| &d.taps).map(|(s, _)| *s);
            seqs.any(|s| seq.is_some_and(|seq| s.is_before(seq)))
        };
        if self
            .comm(slot)
            .is_none_or(|c| c.active.iter().any(|o| before(&o)) || on_path(c))
        {
            return;
        }
        let Some(a) = self.ops.get_mut(id) else {
            return;
        };
        let State::Leaving { bytes, detail } = a.state else {
            return;
        };
        let Some((tap, engine)) = a.tap.as_mut().and_then(|t| t.seen.output.map(|e| (t, e))) else {
            return self.finish(slot, id, Status::Ok, bytes, detail);
        };
        let viewer = Viewer::new(slot, Place::Output, engine, id);
        match viewer.show(io, &tap.result, &mut tap.given, SHOWN) {
            Ok(false) => self.wake(id),
            Ok(true) => {
                viewer.end(io);
                self.finish(slot, id, Status::Ok, bytes, detail);
            }
            Err(fault) => {
                let (status, detail) = fault.status();
                self.finish(slot, id, status, 0, detail);
            }
        }
    }

    /// An operation is gone: others whose results came behind it may pass.
    pub(super) fn wake_leaving(&mut self, slot: u32) {
        let Some(c) = self.comm(slot) else { return };
        let leaves = |id: &&u32| {
            let a = self.ops.get(**id);
            a.is_some_and(|a| matches!(a.state, State::Leaving { .. }))
        };
        let ids: Vec<u32> = c.active.iter().filter(leaves).copied().collect();
        for id in ids {
            self.wake(id);
        }
    }
}
