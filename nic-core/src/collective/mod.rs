//! Collective operations on the NIC (the off-path model, FpgaNIC §3.4).
//!
//! A rank is a NIC. A *communicator* is made through the control path ([`CommunicatorConfig`]), and
//! used by `COLLECTIVE` descriptors of any queue. The path of an operation:
//!
//! 1. `command` checks the descriptor, chooses the algorithm, and pins source and destination in
//!    the queue's protection domain;
//! 2. `plan` makes the program of the shape ready: generated or the user's own, proved once;
//! 3. the operation waits here until the communicator is ready, what it comes `after` has ended,
//!    and NIC memory for its segments is free; operations of a communicator begin in the order in
//!    which they were posted, on every rank, where they do not have ports of their own (`number`);
//! 4. `executor` runs the program, several segments at once; `combine` is its data path;
//! 5. messages between ranks go over any transport that reaches the peer
//!    ([`message`](crate::message)); `group` knows who takes part;
//! 6. engines that are attached to the communicator see source, messages and result (`taps`);
//! 7. the ticket retires when the last message has left and the last result is stored.
//!
//! A host thread's own messages take no queue: `host` has their inboxes.
//!
//! Ranks that disagree are detected by a hash that every message carries; then all exchange their
//! parameters, and the first rank that differs is named everywhere. A rank that ends, times out or
//! aborts ends the communicator on all ranks: every operation retires, and a new communicator with
//! a new number works at once on the same NICs.

mod agree;
mod channel;
mod combine;
mod communicator;
mod control;
mod cut;
mod desk;
mod direct;
mod direct_path;
mod ending;
mod executor;
mod gone;
mod group;
mod host;
mod in_transit;
mod job;
mod kernel_stream;
mod messages;
mod named;
mod number;
mod on_card;
mod own;
mod params;
#[cfg(test)]
pub(crate) mod peer_failure;
mod plan;
mod scratch;
mod settings;
mod streams;
mod table;
mod taps;
mod task;

use std::net::Ipv4Addr;
use std::sync::atomic::AtomicUsize;
use std::sync::Arc;

use ringbell_gtlb::Mmu;
use ringbell_nic_abi::{GpuVa, Lkey, PdId, Status};
pub use ringbell_onc_engines::program::{HostRanks, Thresholds};

use crate::engine::Engines;
use crate::link::Io;
use crate::message::{copies_timer, has_ready_copies, step_copies};
use crate::transport::TransportEvent;
use crate::types::{CommId, ConnId, NicTime, WorkToken};
use communicator::{End, GRACE};
use direct::Call;
use direct_path::{DirectPaths, NotBegun};
use messages::{Begun, MessagePath};
use number::{Number, Ports};
use scratch::Given;
use table::{Active, State, Table};

pub(crate) use desk::{Desk, Payload};
pub use desk::{MessageError, MessageId};
pub(crate) use direct::{Key, Prepared};
pub(crate) use direct_path::reach;
pub(crate) use host::Inboxes;
pub use host::{Found, MessageEvent, Wants, MAX_CONTEXTS};
pub(crate) use kernel_stream::{Rings, StreamSide};
pub(crate) use params::{takes_blocks_in_order, Params, Reach, Side};
pub use plan::{plan_size, PlanError, PlanSize, Shape};
pub(crate) use plan::{Plan, Plans};
pub use settings::{
    CancelError, CollectiveCounters, CollectiveSettings, CommError, CommInfo, CommStatus,
    CommunicatorConfig, PeerInfo, ProgramProgress, MAX_RANKS,
};
use taps::Tap;
pub(crate) use taps::{seen, Seen};
pub(crate) use task::{After, ChannelTask, LocalPass, Task};

/// A user's program that was refused, with rank, step and reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub struct ProgramError(pub ringbell_onc_engines::program::CheckError);

/// Outcome for an operation that must end now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It may retire: no copy uses its memory any more.
    Now,
    /// It retires as soon as nothing does.
    Later,
}

/// All communicators of a NIC. See the module text.
#[derive(Debug)]
pub(crate) struct Collectives {
    pub(crate) table: Table,
    pub(crate) messages: MessagePath,
    direct: DirectPaths,
    pub(crate) plans: Plans,
    pub(crate) inboxes: Inboxes,
    pd: Option<PdId>,
    /// What the program has given for partial results.
    given: Option<Given>,
}

impl Collectives {
    pub(crate) fn new(ip: Ipv4Addr) -> Collectives {
        Collectives {
            table: Table::default(),
            messages: MessagePath::new(ip),
            direct: DirectPaths::default(),
            plans: Plans::default(),
            inboxes: Inboxes::default(),
            pd: None,
            given: None,
        }
    }

    /// Takes a range of registered memory for the partial results of communicators that are made
    /// from now on.
    ///
    /// # Errors
    /// [`CommError::Scratch`].
    pub(crate) fn give_scratch(
        &mut self,
        mmu: &mut Mmu,
        key: (PdId, Lkey),
        range: (GpuVa, u64),
    ) -> Result<(), CommError> {
        let refused = |why| CommError::Scratch { why };
        if self.given.is_some() {
            return Err(refused("the NIC was given some before".into()));
        }
        let given = Given::new(mmu, key, range);
        self.given = Some(given.map_err(|fault| refused(fault.to_string()))?);
        Ok(())
    }

    /// Opens an inbox for a communicator, and gives its number.
    pub(crate) fn open_inbox(
        &mut self,
        id: CommId,
        pd: PdId,
        news: Arc<AtomicUsize>,
    ) -> Result<u32, CommError> {
        let slot = self.table.find(id.0);
        let place = slot.and_then(|s| Some((s, self.table.comm(s)?.ctx)));
        let place = place.ok_or(CommError::Unknown { id })?;
        let opened = self.inboxes.open(place, pd, news);
        opened.ok_or(CommError::TooMany { limit: 1 << 18 })
    }

    /// Runs `f` with the inboxes of a communicator, and does what it has brought about.
    pub(crate) fn with_inboxes<R>(
        &mut self,
        io: &mut Io<'_>,
        comm: CommId,
        f: impl FnOnce(&mut Inboxes, &mut Desk<'_, '_>) -> R,
    ) -> R {
        let slot = self.table.find(comm.0);
        let gone = Some((Status::BadCommunicator, 0));
        let mut desk = Desk {
            ranks: slot.map_or((0, 0), |s| self.table.shape_of(s)),
            over: slot.map_or(gone, |s| self.table.ended(s)),
            gone: slot.map_or(&[], |s| self.table.gone(s)),
            messages: &mut self.messages.groups.messages,
            io,
        };
        let r = f(&mut self.inboxes, &mut desk);
        // The next step's transports have it: they come before communicators.
        if self.messages.groups.messages.has_queued() {
            self.messages.groups.step(io, false);
        }
        self.take_events(io);
        r
    }

    /// Whether there is any communicator, or something left of one.
    #[inline]
    pub(crate) fn exists(&self) -> bool {
        self.pd.is_some()
    }

    /// The connection to another rank.
    pub(crate) fn conn_to(&self, slot: u32, rank: u32) -> Option<(usize, ConnId)> {
        let ctx = self.table.comm(slot)?.ctx;
        let (t, conn, _) = self.messages.groups.messages.route(ctx, rank)?;
        Some((t, conn))
    }

    /// Whether a rank without a link is dialled by what is sent to it.
    pub(crate) fn dials(&self, slot: u32, rank: u32) -> bool {
        let ctx = self.table.comm(slot).map(|c| c.ctx);
        ctx.is_some_and(|ctx| self.messages.groups.dials(ctx, rank))
    }

    /// Dials a rank, unless something else does.
    pub(crate) fn want(&mut self, id: CommId, rank: u32) {
        let comm = self.table.find(id.0).and_then(|slot| self.table.comm(slot));
        if let Some(ctx) = comm.map(|c| c.ctx) {
            self.messages.groups.messages.want(ctx, rank);
        }
    }

    /// Lets the other ranks' one-sided operations reach regions of a domain, also over links that
    /// are made later.
    pub(crate) fn grant(&mut self, io: &mut Io<'_>, slot: u32, pd: PdId) {
        if let Some(ctx) = self.table.comm(slot).map(|c| c.ctx) {
            self.messages.groups.grant(io, ctx, pd);
        }
    }

    /// Whether something waits for a reading of the clock.
    #[inline]
    pub(crate) fn wants_clock(&self) -> bool {
        self.table.lives.unsettled && self.table.wait_for_clock()
    }

    /// Whether operations by messages can proceed at once.
    #[inline]
    pub(crate) fn has_ready(&self) -> bool {
        self.table.ready() > 0
    }

    /// Whether transports have been given messages, or room for payloads, since this was last
    /// asked.
    #[inline]
    pub(crate) fn take_posted(&mut self) -> bool {
        self.messages.groups.messages.links.take_posted()
    }

    /// Whether messages or operations are under way.
    pub(crate) fn is_active(&self) -> bool {
        self.messages.groups.messages.is_busy()
            || !self.table.ops.is_empty()
            || self.direct.active > 0
            || self.inboxes.is_active()
    }

    /// Whether a step without a clock reading would find nothing to do.
    pub(crate) fn is_quiet(&self) -> bool {
        self.table.is_quiet()
            && self.direct.is_quiet(&self.table)
            && self.messages.groups.is_quiet()
            && !self.table.is_ending()
    }

    /// When the NIC must step although nothing arrives.
    pub(crate) fn next_timer(&self) -> Option<NicTime> {
        let times = self.table.comms().filter_map(|c| match c.life.end {
            Some(e) if !e.reaped => Some(e.until),
            Some(_) => None,
            None if !c.life.ready => c.life.deadline,
            None => c.life.gone.iter().filter_map(|g| g.until).min(),
        });
        let groups = &self.messages.groups;
        let times = times.chain(groups.next_timer());
        let times = times.chain(copies_timer(&groups.messages));
        times.chain(self.messages.sums.next_timer()).min()
    }

    /// Takes an operation on. It retires through [`Table::take_retired`].
    #[inline]
    pub(crate) fn post(
        &mut self,
        io: &mut Io<'_>,
        slot: u32,
        token: WorkToken,
        mut task: Task,
        (rings, seen): (Rings, Seen),
        after: After,
    ) {
        let Some(c) = self.table.comm_mut(slot) else {
            return;
        };
        let (mut seq, mut bytes) = (None, 0);
        if let Task::Program(p) = &task {
            bytes = p.bytes;
            seq = Some(c.numbers.take(p.port));
        }
        let call = Call::new(token, seq);
        // Nothing is before it, and no rank has said anything of it.
        let next = seq.is_some()
            && c.queue.is_empty()
            && after == After::Nothing
            && c.life.ready
            && c.life.end.is_none()
            && c.dispute.is_none()
            && !self.messages.groups.messages.has_early();
        if let (Task::Program(p), true) = (&mut task, c.life.cards) {
            p.use_cards();
        }
        let tap = Tap::of(&task, &rings, seen);
        let task = match task {
            Task::Program(p)
                if next && p.reach != Reach::Messages && rings.is_none() && tap.is_none() =>
            {
                match self.direct.start(&mut self.table, io, slot, call, p) {
                    Ok(()) => return self.settle(io),
                    Err(NotBegun::No(p) | NotBegun::Later(p)) => Task::Program(p),
                }
            }
            task => task,
        };
        let active = Active {
            call,
            tap,
            comm: slot,
            after,
            task,
            state: State::Waiting,
            bytes,
            done: None,
            queued: false,
            messages: false,
            rings,
        };
        let Some(id) = self.table.ops.insert(active) else {
            return self.table.refuse(token, Status::NoResources, 1 << 18);
        };
        self.table.route(slot, id);
        if next && self.start(io, slot, id) {
            return self.settle(io);
        }
        self.table.waiting += 1;
        if let Some(c) = self.table.comm_mut(slot) {
            c.queue.push_back(id);
        }
        if let Some(seq) = seq {
            // Ranks that are ahead have sent their parameters already.
            let differs = self.messages.was_said_otherwise(&self.table, slot, id, seq);
            let disputed = self.table.comm(slot).and_then(|c| c.dispute.as_ref());
            if differs || disputed.is_some_and(|d| d.seq == seq) {
                self.messages.dispute(&mut self.table, slot, seq);
                self.settle(io);
            }
        }
    }

    /// Starts the operations that can start. `ended` returns whether an operation's predecessors
    /// have ended.
    fn begin(&mut self, io: &mut Io<'_>, ended: &dyn Fn(After) -> bool) -> bool {
        let mut moved = false;
        for slot in self.table.slots() {
            // Collective operations of a port begin in order; messages and local ones when they
            // can.
            let (mut blocked, mut i) = (Ports::default(), 0);
            while let Some(c) = self.table.comm(slot) {
                if c.life.end.is_some() || !c.life.ready {
                    break;
                }
                let Some(&id) = c.queue.get(i) else { break };
                let Some(a) = self.table.ops.get(id) else {
                    break;
                };
                let port = a.call.seq.map(Number::port);
                if port.is_some_and(|p| blocked.has(p)) || !ended(a.after) {
                    port.into_iter().for_each(|p| blocked.add(p));
                    i += 1;
                    continue;
                }
                let started = self.start(io, slot, id);
                self.settle(io);
                if started {
                    self.table.waiting -= 1;
                    moved = true;
                    if let Some(c) = self.table.comm_mut(slot) {
                        c.queue.retain(|q| *q != id);
                    }
                } else {
                    port.into_iter().for_each(|p| blocked.add(p));
                    i += 1;
                }
            }
        }
        moved
    }

    /// Begins an operation. `false`: it cannot begin yet.
    fn start(&mut self, io: &mut Io<'_>, slot: u32, id: u32) -> bool {
        let Some(a) = self.table.ops.get(id) else {
            return true;
        };
        if !matches!(a.state, State::Waiting) {
            return true;
        }
        if a.call.seq.is_some_and(|seq| self.table.is_ahead(slot, seq)) {
            return false;
        }
        let reach = match &a.task {
            Task::Program(p) if !a.messages => p.reach,
            _ => Reach::Messages,
        };
        // Memory alone, which no engine is to see, is never in the way.
        let special = a.rings.is_some() || a.tap.is_some() || matches!(a.task, Task::Channel(_));
        if special
            && (streams::are_taken(&self.table, slot, id) || !self.table.show_source(io, slot, id))
        {
            return false;
        }
        if reach != Reach::Messages {
            match self.start_direct(io, slot, id) {
                Some(begun) => return begun,
                None if reach == Reach::MustDirect => {
                    let direct = u64::from(ringbell_nic_abi::Algorithm::Direct.code());
                    self.table.finish(slot, id, Status::Unsupported, 0, direct);
                    return true;
                }
                None => {}
            }
        }
        self.messages.start(&mut self.table, io, slot, id) == Begun::Yes
    }

    /// Begins an operation on the direct path, if there is one; it is not among the others then.
    /// `Some(false)`: later.
    fn start_direct(&mut self, io: &mut Io<'_>, slot: u32, id: u32) -> Option<bool> {
        let a = self.table.ops.get_mut(id)?;
        let call = a.call;
        let p = match std::mem::replace(&mut a.task, Task::Nop) {
            Task::Program(p) => p,
            task => {
                a.task = task;
                return None;
            }
        };
        let (p, begun) = match self.direct.start(&mut self.table, io, slot, call, p) {
            Ok(()) => {
                let tap = self.table.ops.remove(id).and_then(|a| a.tap);
                let tap = tap.filter(|t| t.shows_result());
                let direct = self.table.comm_mut(slot).and_then(|c| c.direct.as_mut());
                if let (Some(seq), Some(tap), Some(d)) = (call.seq, tap, direct) {
                    d.taps.push((seq, tap));
                }
                return Some(true);
            }
            Err(NotBegun::No(p)) => (p, None),
            Err(NotBegun::Later(p)) => (p, Some(false)),
        };
        if let Some(a) = self.table.ops.get_mut(id) {
            a.task = Task::Program(p);
        }
        begun
    }

    /// Advances all operations. `ended` returns whether an operation's predecessors have ended,
    /// `fresh` whether the time was read in this step.
    #[inline]
    pub(crate) fn step(
        &mut self,
        io: &mut Io<'_>,
        fresh: bool,
        ended: &dyn Fn(After) -> bool,
    ) -> bool {
        if self.table.is_empty() && !self.messages.groups.messages.is_busy() {
            return false;
        }
        self.show_messages(io.engines);
        let mut moved = io.net.has_copies() && step_copies(&mut self.messages.groups.messages, io);
        moved |= io.net.has_sums() && self.messages.take_sums(&mut self.table, io);
        moved |= self.take_events(io);
        if fresh {
            self.messages.look_at_sums(&mut self.table, io.now);
        }
        if fresh && self.table.lives.unsettled {
            moved |= self.look_at_clock(io);
            self.table.lives.unsettled = self.table.wait_for_clock();
        }
        moved |= self.table.waiting > 0 && self.begin(io, ended);
        moved |= self.table.has_ready() && self.messages.step(&mut self.table, io);
        moved |= self.direct.active > 0 && self.direct.step(&mut self.table, io);
        self.settle(io);
        moved |= self.reap(io);
        if fresh || !self.messages.groups.is_quiet() {
            moved |= self.messages.groups.step(io, fresh);
            moved |= self.take_events(io);
        }
        if fresh || has_ready_copies(&self.messages.groups.messages) {
            moved |= step_copies(&mut self.messages.groups.messages, io);
        }
        moved | (self.table.lives.gone > 0 && self.look_at_gone(io))
    }

    /// Puts the streams to peers before the engines that are to see messages.
    #[inline]
    pub(crate) fn show_messages(&self, engines: &mut Engines) {
        if engines.is_watching() {
            self.messages.show(&self.table, engines);
        }
    }

    /// Whether an event belongs to a link; if so it was processed.
    #[inline]
    pub(crate) fn on_event(&mut self, io: &mut Io<'_>, t: usize, e: &TransportEvent) -> bool {
        self.messages.groups.on_event(io, t, e)
    }
}
