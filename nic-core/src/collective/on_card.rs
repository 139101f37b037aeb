//! A program of a ring whose steps the card executes (FpgaNIC §A.2).
//!
//! The card reads the operands, reduces them, and writes the results through its GTLB. Its messages
//! are those of the [executor](super::executor): the same lengths, tags and hash, through slots of
//! NIC memory and messages. So one rank may run the program on its card and another in software.
//! Ranks that fail, or whose arguments differ, are noticed as before.
//!
//! ```text
//! previous rank ─▶ message ─▶ slot ─▶ card (sequencer, reduce) ─▶ slot ─▶ message ─▶ next rank
//!                                      ▲  │
//!                            source ───┘  └──▶ destination
//! ```
//!
//! A card keeps a few steps: a long operation is several starts, one after the other. Steps go
//! segment by segment, so that the card never waits for a message of a later segment than a rank
//! that runs them in software gives.

use std::collections::VecDeque;

use ringbell_nic_abi::collective::COMM_ENDED;
use ringbell_nic_abi::{DataType, GpuVa, ReduceOp, Status};
use ringbell_onc_engines::program::Place;

use super::job::Job;
use super::kernel_stream::Refusal;
use super::params::Side;
use super::plan::{Plan, PlanStep, Source};
use super::task::Progress;
use crate::card::{reduces, RingEnd, RingEvent, RingLease, RingStep, SharedCard};
use crate::dma::{DmaAccess, ReadStatus};
use crate::link::{Io, Pieces};
use crate::memory::nic_memory::{Block, Space};
use crate::message::{Messages, RecvRequest, SendRequest};
use crate::types::Buffer;

/// Slots for messages in each direction.
const SLOTS: usize = 4;
/// Messages that lie at the card.
const AHEAD: usize = 2;

/// An operation under way.
#[derive(Debug)]
pub(crate) struct CardOp {
    job: Job,
    lease: RingLease,
    /// Where source and destination begin for the card.
    at: [u64; 2],
    /// Slots of messages to the card, then of those from it.
    slots: Vec<Block>,
    /// Steps of all segments that were started, those of the last start included.
    started: u64,
    running: bool,
    /// Type and operation for the card; of any that it has, where nothing is reduced.
    reduces: (DataType, ReduceOp),
    /// The next steps that receive and send.
    receives: u64,
    sends: u64,
    /// Messages to the card, in order: their slot, bytes, and whether they are there.
    incoming: VecDeque<(usize, u32, bool)>,
    /// Free slots of each direction.
    free: [Vec<usize>; 2],
    pub(super) steps_run: u64,
    pub(super) reduced: u64,
}

/// Whether the block of a card can execute a plan.
pub(super) fn is_of_ring(plan: &Plan) -> bool {
    let (mut from, mut to) = (None, None);
    plan.steps.iter().all(|s| {
        let sources: Vec<_> = s.sources.iter().filter_map(net).collect();
        let same = |known: &mut Option<(u32, u8)>, is: (u32, u8)| *known.get_or_insert(is) == is;
        let reads = s.sources.len() - sources.len();
        let scratch = |s: &Source| matches!(s, Source::Local(Place::Scratch(_)));
        sources.len() <= 1
            && reads <= 1
            && s.sends.len() <= 1
            && written(s).count() <= 1
            && s.chunks == 1
            && !s.sources.iter().any(scratch)
            && sources.into_iter().all(|is| same(&mut from, is))
            && s.sends.iter().all(|n| same(&mut to, (n.to, n.channel)))
    })
}

fn net(source: &Source) -> Option<(u32, u8)> {
    match source {
        Source::Net(n) => Some((n.from, n.channel)),
        Source::Local(_) => None,
    }
}

/// Where a step writes memory of the user. What it keeps in NIC memory for its message, the card
/// keeps itself.
fn written(s: &PlanStep) -> impl Iterator<Item = Place> + '_ {
    let stores = s.stores.iter().copied();
    stores.filter(|p| !matches!(p, Place::Scratch(_)))
}

fn read(s: &PlanStep) -> Option<Place> {
    s.sources.iter().find_map(|o| match o {
        Source::Local(p) => Some(*p),
        Source::Net(_) => None,
    })
}

/// Whether the steps of a segment read what earlier ones have written, which the card does not wait
/// for.
fn reads_back(job: &Job) -> bool {
    let steps = &job.plan.steps;
    let range = |p: Place| {
        let (side, at, len) = job.local(p, 0);
        (side.va + at, len)
    };
    let meets = |a: (u64, u64), b: (u64, u64)| a.0 < b.0 + b.1 && b.0 < a.0 + a.1;
    steps.iter().enumerate().any(|(k, s)| {
        let Some(r) = read(s).map(range) else {
            return false;
        };
        let before = steps[..k].iter().flat_map(written);
        before.map(range).any(|w| meets(r, w))
    })
}

impl CardOp {
    /// Whether a card can execute the program of an operation that is not streamed.
    pub(super) fn is_possible(job: &Job) -> bool {
        let (p, plan) = (&job.params, &job.plan);
        let is_reduced = plan.steps.iter().any(|s| s.sources.len() > 1);
        p.count > 0
            && !p.converts()
            && job.windows.is_none()
            && (!is_reduced || reduces(p.dtype, p.op))
            && plan.steps.iter().any(|s| !s.sends.is_empty() || s.lands)
            && is_of_ring(plan)
            && !reads_back(job)
    }

    /// Gives the card an operation whose source and destination have `sides` bytes. Gives it back
    /// when the card is in use, or there is no room for it in the card's GTLB or in NIC memory.
    pub(super) fn begin(
        job: Job,
        io: &mut Io<'_>,
        arena: &mut Space,
        card: &SharedCard,
        owner: u32,
        sides: [u64; 2],
    ) -> Result<CardOp, Box<Job>> {
        let Some(mut lease) = RingLease::take(card, owner) else {
            return Err(Box::new(job));
        };
        let mut at = [0; 2];
        for ((at, side), bytes) in at.iter_mut().zip([job.input, job.output]).zip(sides) {
            if bytes == 0 {
                continue;
            }
            match map(&mut lease, io, side, bytes) {
                Some(va) => *at = va,
                None => return Err(Box::new(job)),
            }
        }
        // Half of them for each direction, and one each at least.
        let mut slots = Vec::new();
        while slots.len() < 2 * SLOTS {
            match arena.alloc(job.slot_bytes) {
                Some(block) => slots.push(block),
                None => break,
            }
        }
        if slots.len() < 2 {
            slots.into_iter().for_each(|b| arena.free(b));
            return Err(Box::new(job));
        }
        let half = slots.len() / 2;
        lease.grant((slots.len() - half) as u32);
        lease.count();
        let is_reduced = job.plan.steps.iter().any(|s| s.sources.len() > 1);
        let mut op = CardOp {
            lease,
            reduces: match is_reduced {
                true => (job.params.dtype, job.params.op),
                false => (DataType::I32, ReduceOp::Sum),
            },
            at,
            started: 0,
            running: false,
            receives: 0,
            sends: 0,
            incoming: VecDeque::new(),
            free: [(0..half).collect(), (half..slots.len()).collect()],
            slots,
            steps_run: 0,
            reduced: 0,
            job,
        };
        op.receives = op.next(0, |s| s.sources.iter().any(|o| net(o).is_some()));
        op.sends = op.next(0, |s| !s.sends.is_empty());
        Ok(op)
    }

    /// Blocks of NIC memory, to be given back.
    pub(super) fn blocks(&self) -> Vec<Block> {
        self.slots.clone()
    }

    /// Whether the card has given something.
    pub(super) fn has_news(&self) -> bool {
        self.lease.has_events()
    }

    fn total(&self) -> u64 {
        self.job.segments * self.job.plan.steps.len() as u64
    }

    /// A step by its number among those of all segments.
    fn step(&self, n: u64) -> (u64, &PlanStep) {
        let steps = &self.job.plan.steps;
        let each = steps.len() as u64;
        (n / each, &steps[(n % each) as usize])
    }

    /// The first step from `n` on which is so.
    fn next(&self, n: u64, is: impl Fn(&PlanStep) -> bool) -> u64 {
        let mut rest = n..self.total();
        rest.find(|n| is(self.step(*n).1)).unwrap_or(self.total())
    }

    /// A step's bytes.
    fn bytes(&self, n: u64) -> u32 {
        let (segment, s) = self.step(n);
        // A segment fits its slot, which is no longer than 1 GiB.
        self.job.step_bytes(s, segment) as u32
    }

    fn slot(&self, io: &Io<'_>, slot: usize, len: u32) -> Buffer {
        io.dma.nic_memory.buffer(self.slots[slot].at, len)
    }

    /// The steps of the next start, as the card takes them.
    fn next_steps(&self) -> Vec<RingStep> {
        let most = self.lease.most_steps() as u64;
        let last = self.total().min(self.started + most);
        let of = |n: u64| {
            let (segment, s) = self.step(n);
            let at = |p: Place| {
                let (_, offset, _) = self.job.local(p, segment);
                self.at[usize::from(matches!(p, Place::Output(_)))] + offset
            };
            RingStep {
                receives: s.sources.iter().any(|o| net(o).is_some()),
                sends: !s.sends.is_empty(),
                read: read(s).map(at),
                write: written(s).next().map(at),
                bytes: self.bytes(n),
            }
        };
        (self.started..last).map(of).collect()
    }

    /// A message is in its slot.
    pub(super) fn received(&mut self, key: u64) {
        let slot = key as u32 as usize;
        if let Some(message) = self.incoming.iter_mut().find(|m| m.0 == slot) {
            message.2 = true;
        }
    }

    /// A message has left its slot.
    pub(super) fn sent(&mut self, key: u64) {
        self.free[1].push(key as u32 as usize);
        self.lease.grant(1);
    }

    /// Proceeds as far as possible. `id` is the operation's number.
    ///
    /// # Errors
    /// What the operation ends with.
    pub(super) fn run(
        &mut self,
        id: u32,
        messages: &mut Messages,
        io: &mut Io<'_>,
    ) -> Result<Progress, Refusal> {
        while let Some(event) = self.lease.event() {
            match event {
                RingEvent::Sent(message) => self.send(id, messages, io, &message)?,
                RingEvent::Ended(end) => self.end(end)?,
            }
        }
        self.receive(id, messages, io)?;
        self.give(io)?;
        if !self.running && self.started < self.total() {
            let steps = self.next_steps();
            self.started += steps.len() as u64;
            let reduced = steps.iter().filter(|s| s.receives && s.read.is_some());
            let bytes: u64 = reduced.map(|s| u64::from(s.bytes)).sum();
            self.reduced += bytes / self.job.params.dtype.bytes();
            self.running = true;
            let (dtype, op) = self.reduces;
            self.lease.start(&steps, dtype, op);
            return Ok(Progress::More);
        }
        let left = self.free[1].len() == self.slots.len() - self.slots.len() / 2;
        Ok(match !self.running && left && self.sends == self.total() {
            true => Progress::Done,
            false => Progress::Waits,
        })
    }

    /// A message of the card goes to the next rank.
    fn send(
        &mut self,
        id: u32,
        messages: &mut Messages,
        io: &mut Io<'_>,
        message: &[u8],
    ) -> Result<(), Refusal> {
        let (segment, step) = self.step(self.sends);
        let to = step.sends.first().copied();
        // The card sends what it has room for, and what its steps say.
        let (Some(slot), Some(to)) = (self.free[1].pop(), to) else {
            return Err((Status::NoResources, self.slots.len() as u64));
        };
        let buffer = self.slot(io, slot, message.len() as u32);
        let written = io.dma().write(&buffer, 0, message);
        written.map_err(|fault| fault.status())?;
        messages.send(SendRequest {
            ctx: self.job.ctx,
            to: to.to,
            tag: self.job.tag(segment, to.channel, to.index),
            hash: self.job.hash,
            pieces: Pieces::one(buffer),
            when_met: false,
            key: key(id, slot),
        });
        self.sends = self.next(self.sends + 1, |s| !s.sends.is_empty());
        Ok(())
    }

    /// Posts receives for the free slots.
    fn receive(
        &mut self,
        id: u32,
        messages: &mut Messages,
        io: &mut Io<'_>,
    ) -> Result<(), Refusal> {
        while self.receives < self.total() {
            let Some(slot) = self.free[0].pop() else {
                break;
            };
            let (segment, step) = self.step(self.receives);
            let from = step.sources.iter().find_map(|o| match o {
                Source::Net(n) => Some(*n),
                Source::Local(_) => None,
            });
            let Some(from) = from else { break };
            let len = self.bytes(self.receives);
            self.incoming.push_back((slot, len, false));
            let request = RecvRequest {
                ctx: self.job.ctx,
                from: Some(from.from),
                tag: Some(self.job.tag(segment, from.channel, from.index)),
                hash: self.job.hash,
                pieces: Pieces::one(self.slot(io, slot, len)),
                in_use: false,
                key: key(id, slot),
            };
            if messages.recv(io, request).is_none() {
                return Err((Status::NoResources, 1 << 18));
            }
            let receives = |s: &PlanStep| s.sources.iter().any(|o| net(o).is_some());
            self.receives = self.next(self.receives + 1, receives);
        }
        Ok(())
    }

    /// Gives the card the messages that are there.
    fn give(&mut self, io: &mut Io<'_>) -> Result<(), Refusal> {
        while let Some(&(slot, len, true)) = self.incoming.front() {
            if self.lease.backlog() >= AHEAD {
                break;
            }
            let mut message = vec![0; len as usize];
            let buffer = self.slot(io, slot, len);
            let read = io.dma().read(&buffer, 0, &mut message);
            if read.map_err(|fault| fault.status())? == ReadStatus::Pending {
                return Err((Status::InvalidArgument, buffer.va.0));
            }
            self.lease.give(message);
            self.incoming.pop_front();
            self.free[0].push(slot);
        }
        Ok(())
    }

    fn end(&mut self, end: RingEnd) -> Result<(), Refusal> {
        self.running = false;
        match end {
            RingEnd::Done => {
                self.steps_run = self.started;
                Ok(())
            }
            RingEnd::Late => Err((Status::TimedOut, COMM_ENDED)),
            RingEnd::Length => {
                let mut sources = self.job.plan.steps.iter().flat_map(|s| &s.sources);
                let from = sources.find_map(net).map_or(0, |n| n.0);
                Err((Status::Mismatch, from.into()))
            }
            RingEnd::Type => Err((Status::Unsupported, self.job.params.dtype.code().into())),
            RingEnd::Fault(va) => Err((Status::NoTranslation, va)),
        }
    }
}

/// Enters a buffer of the operation into the card's GTLB.
fn map(lease: &mut RingLease, io: &mut Io<'_>, side: Side, bytes: u64) -> Option<u64> {
    let len = u32::try_from(bytes).ok()?;
    let buffer = Buffer {
        region: side.region,
        va: GpuVa(side.va),
        len,
    };
    let mut dma = io.dma();
    lease.map(side.va, bytes, &mut |va| {
        let span = dma.span(&buffer, va - side.va).ok()?;
        Some(span.addr.value())
    })
}

/// The number that a message's event carries: operation and slot.
fn key(op: u32, slot: usize) -> u64 {
    u64::from(op) << 32 | slot as u64
}
