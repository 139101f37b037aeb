//! The direct path: collectives through shared memory, without messages, between ranks of one host.
//!
//! Each rank has an *area* in its NIC memory ([`area`]) which the other ranks write. An operation:
//!
//! 1. Every rank stores a *record* into every peer's area ([`record`]): sequence number and shape,
//!    and for a small operation the input itself (*eager*), otherwise where its buffers lie (pages
//!    in bus addresses, from a table in its own NIC memory when there are many).
//! 2. Every rank waits for all records and compares the shapes. From the records every rank
//!    draws the same conclusion on how to go on ([`Way`]).
//! 3. *Eager*: the rank computes its own results from the inputs that came, and is done; this was
//!    the only synchronisation. *Push*: it runs its steps of the `DIRECT` program ([`ranges`],
//!    [`pass`]): one pass that reads every rank's memory and stores to every rank's. *Pull*, when
//!    an output does not grant writing: it computes its own results from the peers' inputs.
//! 4. After push and pull it stores a *done* flag into every peer's area and waits for theirs.
//!
//! When memory cannot be reached at all, or an in-place operation must not write it, every rank
//! sees this in the records, and the operation goes through windows in NIC memory, slice by slice
//! ([`bounce`]). Only when an engine needs to see messages, or a rank has no NIC memory left, it
//! uses messages instead ([`Outcome::Fallback`]).
//!
//! # Records are never overwritten unread
//!
//! Operation `q` uses record slot `q mod 4`. A rank publishes record `q` only when it has ended
//! operation `q − 2` ([`WINDOW`]), for which it had every peer's record of `q − 2`; a peer
//! published that one only when it had ended `q − 4`, the last user of the slot.
//!
//! # When time is up
//!
//! A writer marks itself busy in the owner's area around every batch and looks whether the owner
//! has revoked its memory ([`guard`]). [`Direct::abort`] revokes, and operations end only when no
//! peer is busy: after that no rank accesses the buffers. A peer that is stopped inside a batch for
//! longer than [`DRAIN_GRACE`] is named with the outcome [`Outcome::Unsafe`].

mod area;
mod bounce;
pub(crate) mod guard;
mod operation;
mod pages;
mod pass;
mod ranges;
mod ranks;
mod record;
mod run;
mod steps;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

use ringbell_onc_engines::program::Order;

use super::Params;
use crate::memory::nic_memory::NicMemory;
pub(crate) use crate::sync;
use crate::transport::PeerWindow;
use crate::types::NicTime;
pub(crate) use area::AreaPool;
pub(crate) use area::Peers;
use area::{Area, Flag, WINDOW};
use bounce::{Bounce, Windows};
pub(crate) use operation::{Call, Kept, Key, Located, Outcome, Prepared};
use operation::{Looked, Phase, Way};
pub(crate) use pages::{Access, Pages};
pub(crate) use pass::DirectStats;
use pass::{Cursor, Found, BATCH_BYTES};
use ranges::Plans;
use ranks::{Ranks, MAX_DIRECT_RANKS};
use record::{flag, Form, Record, Shape, INLINE_BYTES};

/// Bytes that a rank receives in the records of one operation, at most. With longer inputs of many
/// ranks the copies, which every rank combines for itself, cost more than a second synchronisation.
const EAGER_TOTAL: u64 = 8 << 10;
/// Idle steps between two checks that the awaited peers still live.
const LOOK_EVERY: u32 = 32;
/// How long an abort waits for a peer inside a batch (which takes microseconds).
pub(crate) const DRAIN_GRACE: Duration = Duration::from_secs(2);

/// What a step of the path has done.
#[derive(Debug)]
pub(crate) enum Stepped {
    /// Nothing.
    Idle,
    /// It has moved something, and goes on in a later step.
    Moved,
    /// An operation has ended.
    Ended(Outcome, Box<Prepared>),
}

/// The direct path of one communicator on one rank.
#[derive(Debug)]
pub(crate) struct Direct {
    rank: u32,
    ranks: u32,
    everybody_else: Ranks,
    area: Area,
    /// Bus address of each rank's area.
    peers: Vec<u64>,
    plans: Plans,
    ops: VecDeque<Box<Prepared>>,
    /// How many of them, from the front, have their records out.
    published: usize,
    /// Operations ever posted, and ended. Sequence numbers count from 1.
    posted: u64,
    ended: u64,
    /// Records of the front operation.
    records: Vec<Record>,
    /// For operations on memory that peers cannot reach, once there was one.
    windows: Option<Windows>,
    /// Slices of all such operations that have ended.
    slices: u64,
    idle: u32,
    /// Start of the abort, and its reason.
    ending: Option<(NicTime, Outcome)>,
    stats: DirectStats,
}

impl Direct {
    /// A path of the communicator `ctx` with inputs of up to `eager_bytes` inside the records, and
    /// of all ranks together up to [`EAGER_TOTAL`]; its area comes from NIC memory, `None` when
    /// that has no room.
    pub(crate) fn new(
        nic_memory: &mut NicMemory,
        pool: &mut AreaPool,
        ctx: u64,
        rank: u32,
        ranks: u32,
        eager_bytes: u64,
        order: Order,
    ) -> Option<Direct> {
        if ranks > MAX_DIRECT_RANKS {
            return None;
        }
        let eager_bytes = eager_bytes.min(EAGER_TOTAL / u64::from(ranks));
        let area = Area::new(nic_memory, pool, ctx, ranks, eager_bytes)?;
        Some(Direct {
            rank,
            ranks,
            everybody_else: Ranks::all_but(rank, ranks),
            area,
            peers: vec![0; ranks as usize],
            plans: Plans::new(rank, ranks, order),
            ops: VecDeque::new(),
            published: 0,
            posted: 0,
            ended: 0,
            records: vec![Record::default(); ranks as usize],
            windows: None,
            slices: 0,
            idle: 0,
            ending: None,
            stats: DirectStats::default(),
        })
    }

    /// Bus address of this rank's area, to be sent to every peer.
    pub(crate) fn address(&self) -> u64 {
        self.area.bus()
    }

    /// Bytes of NIC memory that the area takes.
    pub(crate) fn nic_memory(&self) -> u64 {
        self.area.bytes() + self.windows.as_ref().map_or(0, Windows::bytes)
    }

    /// Sets the address of a peer's area.
    pub(crate) fn set_peer(&mut self, rank: u32, address: u64) {
        // Frames give addresses in whole pairs of lines.
        debug_assert!(address.is_multiple_of(area::PAIR as u64));
        self.peers[rank as usize] = address;
    }

    /// Whether all areas are known.
    pub(crate) fn is_ready(&self) -> bool {
        let others = self.peers.iter().enumerate();
        others
            .filter(|(r, _)| *r as u32 != self.rank)
            .all(|(_, a)| *a != 0)
    }

    /// Whether an operation is under way: then the NIC steps it.
    pub(crate) fn is_active(&self) -> bool {
        !self.ops.is_empty()
    }

    /// Whether a step would find nothing new. (Steps caused by the clock check now and then whether
    /// peers still live.)
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        let Some(op) = self.ops.front() else {
            return true;
        };
        if self.ending.is_some() || self.ops.len() as u64 > 1 || self.published == 0 {
            return false;
        }
        let none = |missing: &Ranks, there: &dyn Fn(u32) -> bool| !missing.iter().any(there);
        match &op.course.phase {
            Phase::Pass { .. } => false,
            Phase::Records { missing, .. } => {
                !self.area.may_have_all(op.course.number)
                    || none(missing, &|r| self.area.shape(r, op.course.number).is_some())
            }
            Phase::Flags { missing } => none(missing, &|r| self.area.is_done(r, op.course.number)),
            Phase::Bounce(b) => !b.can_move(&|f, n| self.lack(f, n).is_empty()),
        }
    }

    /// Whether something under way still needs that rank, which has stored all that it ever will.
    pub(crate) fn waits_for(&self, rank: u32) -> bool {
        // Operations that were given up end with the communicator.
        self.ending.is_some()
            || self.ops.iter().any(|op| match &op.course.phase {
                Phase::Records { .. } => self.area.shape(rank, op.course.number).is_none(),
                Phase::Pass { .. } | Phase::Flags { .. } => {
                    !self.area.is_done(rank, op.course.number)
                }
                Phase::Bounce(b) => !self.area.has(rank, Flag::Passed, b.number(b.slices)),
            })
    }

    /// Its counts.
    pub(crate) fn stats(&self) -> DirectStats {
        self.stats
    }

    /// Payload bytes stored so far.
    pub(crate) fn stored(&self) -> u64 {
        self.stats.stored
    }

    /// Gives all memory back.
    pub(crate) fn free(mut self, nic_memory: &mut NicMemory, pool: &mut AreaPool) {
        while let Some(op) = self.ops.pop_front() {
            let tables = op.course.tables.into_iter();
            tables.flatten().for_each(|t| nic_memory.free(t));
        }
        if let Some(windows) = self.windows {
            windows.free(nic_memory);
        }
        self.area.give_back(pool);
    }

    /// What is done with these buffers, for every call.
    pub(crate) fn locate(&mut self, params: &Params, input: Pages, output: Pages) -> Located {
        let [push, pull] = self.plans.ranges(params);
        let form = match push.input_bytes {
            n if n > self.area.eager_bytes() => Form::Placed,
            n if n > INLINE_BYTES => Form::Eager,
            _ => Form::Inline,
        };
        let found = match form {
            Form::Placed => None,
            _ => Found::of(&pull, self.rank, &input, &output),
        };
        Located {
            known: true,
            head: record::head(params),
            found,
            shape: Shape::of(params, form),
            input,
            output,
            form,
            push,
            pull,
        }
    }

    /// Queues an operation that was located; it comes back from [`Direct::step`] with its outcome.
    /// `messages`: an engine of this rank needs to see messages, which this path has not.
    pub(crate) fn post(&mut self, call: Call, mut op: Box<Prepared>, messages: bool) {
        self.posted += 1;
        op.call = call;
        op.course.number = self.posted;
        op.course.messages = messages;
        op.course.phase = Phase::Records {
            missing: self.everybody_else,
            differ: Ranks::default(),
        };
        self.ops.push_back(op);
    }

    /// The operations on the path, in order.
    pub(crate) fn ops(&self) -> impl Iterator<Item = &Prepared> {
        self.ops.iter().map(|op| &**op)
    }

    /// The same, to change.
    pub(crate) fn ops_mut(&mut self) -> impl Iterator<Item = &mut Prepared> {
        self.ops.iter_mut().map(|op| &mut **op)
    }

    /// Ends everything: peers stop writing, then [`Direct::step`] reports the operations. The path
    /// cannot be used after that. It does the same by itself when a peer has failed.
    pub(crate) fn abort(&mut self, now: NicTime) {
        self.end_all(now, Outcome::Aborted);
    }

    fn end_all(&mut self, now: NicTime, why: Outcome) {
        if self.ending.is_none() {
            self.ending = Some((now, why));
            guard::revoke(self.area.revoked());
        }
    }

    /// Moves the front operation on, until it ends. Call it again then: the next one may move at
    /// once.
    pub(crate) fn step(
        &mut self,
        now: NicTime,
        nic_memory: &mut NicMemory,
        peers: &dyn Peers,
    ) -> Stepped {
        if self.ops.is_empty() {
            return Stepped::Idle;
        }
        if self.ending.is_some() {
            return self.drain(now, nic_memory, peers);
        }
        let moved = self.published < self.ops.len() && self.publish(nic_memory, peers);
        match self.advance(nic_memory, peers) {
            None if moved => Stepped::Moved,
            None => Stepped::Idle,
            Some(Ok(None)) => Stepped::Moved,
            Some(Ok(Some(outcome))) => self.end_front(nic_memory, outcome),
            Some(Err(outcome)) => {
                // Peers may still be writing this rank's buffers.
                self.end_all(now, outcome);
                Stepped::Moved
            }
        }
    }

    fn end_front(&mut self, nic_memory: &mut NicMemory, outcome: Outcome) -> Stepped {
        let Some(mut op) = self.ops.pop_front() else {
            return Stepped::Idle;
        };
        self.ended = op.course.number;
        self.published = self.published.saturating_sub(1);
        if op.at.form == Form::Placed {
            for table in op.course.tables.iter_mut().filter_map(Option::take) {
                nic_memory.free(table);
            }
        }
        Stepped::Ended(outcome, op)
    }

    /// Waits until no peer is inside a batch, then ends all operations, one in each call.
    fn drain(&mut self, now: NicTime, nic_memory: &mut NicMemory, peers: &dyn Peers) -> Stepped {
        let Some((since, why)) = self.ending else {
            return Stepped::Idle;
        };
        let busy = (0..self.ranks).find(|r| {
            *r != self.rank
                && !guard::is_quiet(self.area.busy(*r))
                // A dead peer writes nothing.
                && self.area_of(peers, *r).is_some()
        });
        let outcome = match busy {
            None => why,
            Some(rank) if now >= since.plus(DRAIN_GRACE) => {
                // It may still write them: they are never used again.
                self.windows = None;
                Outcome::Unsafe { rank }
            }
            Some(_) => return Stepped::Idle,
        };
        self.end_front(nic_memory, outcome)
    }

    fn area_of<'p>(
        &self,
        peers: &'p dyn Peers,
        rank: u32,
    ) -> Option<(&'p dyn PeerWindow, area::Remote<'p>)> {
        let window = peers.window(rank)?;
        let remote = self.area.of_peer(window, self.peers[rank as usize])?;
        Some((window, remote))
    }

    /// From the next rank on, so that not all begin with rank 0.
    fn others(&self) -> impl Iterator<Item = u32> + use<> {
        (self.rank + 1..self.ranks).chain(0..self.rank)
    }

    /// Puts records out, as far as the window allows.
    fn publish(&mut self, nic_memory: &mut NicMemory, peers: &dyn Peers) -> bool {
        let mut moved = false;
        while let Some(op) = self.ops.get_mut(self.published) {
            if op.course.number > self.ended + WINDOW {
                break;
            }
            let seq = op.course.number;
            let shape = op.at.shape.with_messages(op.course.messages);
            let mut placed = None;
            if op.at.form == Form::Placed {
                let buffers = (&op.at.input, &op.at.output);
                let record = Record::of(&op.params, buffers, &mut op.course.tables, nic_memory);
                op.course.flags = record.flags();
                placed = Some(record.words());
            }
            let d = &self.ops[self.published].at;
            for r in self.others() {
                let Some((window, remote)) = self.area_of(peers, r) else {
                    // Detected again, and reported, when its record does not come.
                    continue;
                };
                match &placed {
                    Some(words) => remote.put_words(self.rank, seq, words),
                    None => {
                        if d.form == Form::Eager {
                            remote.put_words(self.rank, seq, &d.head);
                        }
                        remote.put_input(self.rank, seq, &d.input);
                    }
                }
                if remote.publish(self.rank, seq, shape) {
                    window.wake();
                }
            }
            self.published += 1;
            moved = true;
        }
        moved
    }

    /// Moves the front operation on. `None`: nothing to do now; `Ok(None)`: moved, and more is to
    /// do in a later step; `Ok(Some)`: ended.
    fn advance(
        &mut self,
        nic_memory: &mut NicMemory,
        peers: &dyn Peers,
    ) -> Option<Result<Option<Outcome>, Outcome>> {
        if self.published == 0 {
            return None;
        }
        let mut moved = false;
        let everybody_else = self.everybody_else;
        loop {
            let op = self.ops.front_mut()?;
            let seq = op.course.number;
            match &mut op.course.phase {
                &mut Phase::Records {
                    mut missing,
                    mut differ,
                } => {
                    // Now and then, independent of the arrivals: a rank may have died before its
                    // arrival.
                    let look = self.idle == 0 || self.area.may_have_all(seq);
                    let left = if look { missing } else { Ranks::default() };
                    for r in left.iter() {
                        let Some(theirs) = self.area.shape(r, seq) else {
                            continue;
                        };
                        missing.remove(r);
                        op.course.messages |= theirs.wants_messages();
                        let record = &mut self.records[r as usize];
                        if !agrees(op, theirs, |i| self.area.record_word(r, seq, i), record) {
                            differ.insert(r);
                        }
                    }
                    if !missing.is_empty() {
                        op.course.phase = Phase::Records { missing, differ };
                        return self.wait(peers, missing).or(moved.then_some(Ok(None)));
                    }
                    self.idle = 0;
                    moved = true;
                    if let Some(rank) = differ.iter().next() {
                        return Some(Ok(Some(Outcome::Mismatch { rank })));
                    }
                    let way = way(op, &self.records, self.rank);
                    match way {
                        Way::Eager => {
                            self.stats.eager += 1;
                            return Some(self.run_eager(peers).map(Some));
                        }
                        Way::Push => self.stats.push += 1,
                        Way::Pull => self.stats.pull += 1,
                        Way::Bounce => {
                            let bytes = [op.at.input.bytes(), op.at.output.bytes()];
                            let b = Bounce::new(
                                op.params,
                                &op.at.push,
                                bytes,
                                self.slices,
                                &mut self.plans,
                            );
                            op.course.phase = Phase::Bounce(Box::new(b));
                            self.show_windows(nic_memory, peers);
                            continue;
                        }
                        Way::Fallback => {
                            self.stats.fallback += 1;
                            return Some(Ok(Some(Outcome::Fallback)));
                        }
                    }
                    op.course.phase = Phase::Pass {
                        way,
                        cursor: Cursor::default(),
                    };
                }
                Phase::Pass { .. } => {
                    match self.run_pass(peers) {
                        Ok(true) => {}
                        // The batch is used up.
                        Ok(false) => return Some(Ok(None)),
                        Err(outcome) => return Some(Err(outcome)),
                    }
                    moved = true;
                    for r in self.others() {
                        if let Some((window, remote)) = self.area_of(peers, r) {
                            if remote.done(self.rank, seq) {
                                window.wake();
                            }
                        }
                    }
                    if let Some(op) = self.ops.front_mut() {
                        op.course.phase = Phase::Flags {
                            missing: everybody_else,
                        };
                    }
                }
                Phase::Bounce(_) => {
                    let budget = self.stats.stored + BATCH_BYTES;
                    let looked = loop {
                        match self.run_bounce(peers) {
                            Ok(Looked::Moved) if self.stats.stored < budget => {
                                moved = true;
                                self.idle = 0;
                            }
                            looked => break looked,
                        }
                    };
                    match looked {
                        Ok(Looked::Ended(outcome)) => {
                            self.idle = 0;
                            match outcome {
                                Outcome::Fallback => self.stats.fallback += 1,
                                _ => self.stats.bounced += 1,
                            }
                            return Some(Ok(Some(outcome)));
                        }
                        Ok(Looked::Moved) => {
                            self.idle = 0;
                            return Some(Ok(None));
                        }
                        Ok(Looked::Waits(missing)) => {
                            return self.wait(peers, missing).or(moved.then_some(Ok(None)));
                        }
                        Err(outcome) => return Some(Err(outcome)),
                    }
                }
                Phase::Flags { missing } => {
                    for r in missing.iter() {
                        if self.area.is_done(r, seq) {
                            missing.remove(r);
                        }
                    }
                    if missing.is_empty() {
                        self.idle = 0;
                        return Some(Ok(Some(Outcome::Done)));
                    }
                    let missing = *missing;
                    return self.wait(peers, missing).or(moved.then_some(Ok(None)));
                }
            }
        }
    }

    /// Checks now and then that the awaited ranks still live.
    fn wait(
        &mut self,
        peers: &dyn Peers,
        missing: Ranks,
    ) -> Option<Result<Option<Outcome>, Outcome>> {
        self.idle += 1;
        if self.idle < LOOK_EVERY {
            return None;
        }
        self.idle = 0;
        for rank in missing.iter() {
            match self.area_of(peers, rank) {
                None => return Some(Err(Outcome::PeerFailed { rank })),
                Some((_, remote)) if guard::is_revoked(remote.revoked()) => {
                    // It may have finished this operation between the two looks.
                    if !self.waits_for(rank) {
                        continue;
                    }
                    return Some(Err(Outcome::PeerAborted { rank }));
                }
                Some(_) => {}
            }
        }
        None
    }
}

/// Whether a peer's record, which has come, is of the same operation as this rank's. One with
/// places is kept.
#[inline]
fn agrees(d: &Prepared, theirs: Shape, word: impl Fn(usize) -> u64, kept: &mut Record) -> bool {
    d.at.shape.agrees(theirs)
        && match d.at.form {
            Form::Inline => true,
            Form::Eager => d.at.head == [word(1), word(2), word(3)],
            Form::Placed => {
                *kept = Record::from_words(&std::array::from_fn(|i| word(i + 1)));
                kept.agrees(&d.params)
            }
        }
}

/// What all ranks conclude from the records.
fn way(op: &Prepared, records: &[Record], rank: u32) -> Way {
    if op.course.messages {
        return Way::Fallback;
    }
    if op.at.form != Form::Placed {
        return Way::Eager;
    }
    let (mut all, mut any) = (op.course.flags, op.course.flags);
    for (_, record) in (0..).zip(records).filter(|(r, _)| *r != rank) {
        all &= record.flags();
        any |= record.flags();
    }
    if all & flag::READABLE == 0 {
        Way::Bounce
    } else if all & flag::WRITABLE != 0 {
        Way::Push
    } else if any & flag::IN_PLACE == 0 {
        Way::Pull
    } else {
        // A rank's source would be overwritten while others still read it.
        Way::Bounce
    }
}
