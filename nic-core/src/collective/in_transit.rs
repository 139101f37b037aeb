//! A reduction in transit: the NICs of a mesh combine the ranks' elements on their way to the root
//! (ADR 87).
//!
//! Each rank tells the root when its operation has begun. When all have, the root *begins* the sum:
//! it gives each rank a number, a place in the elements, and the bytes of a segment. Ranks send
//! their segments up the root's tree, at most a window ahead of what the root has, which *grants*
//! more by frames to all. At the end each rank is told, and keeps its source until then: where
//! segments are missing, because a wire or a NIC on the way died, the root begins again from what
//! it has. When that fails, too, what is left is reduced by the messages of the program.
//!
//! What ranks say to each other are messages of the operation, so that a rank that differs or dies
//! is found as in any other. A NIC is the root of one sum at a time: all ranks have begun it then,
//! and none waits for another one.

use std::time::Duration;

use ringbell_net::port::MacAddr;
use ringbell_net::sum::{SumHead, GRANT, SUM, SUM_HEAD, WINDOW};
use ringbell_nic_abi::GpuVa;
use rustc_hash::FxHashMap;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::job::Job;
use super::kernel_stream::Refusal;
use super::params::Side;
use super::task::Progress;
use crate::dma::{DmaAccess as _, ReadStatus};
use crate::link::{Io, Pieces};
use crate::memory::nic_memory::Block;
use crate::message::{Messages, RecvRequest, SendRequest};
use crate::types::{Buffer, NicTime};

/// Channels of tags that no program has.
const READY: u8 = 254;
const ORDERS: u8 = 255;
/// Bit of a message's key: it is an order of the root, received.
const ORDER: u64 = 1;
/// Operations of more bytes go so: less is over before all ranks have met.
const LEAST: u64 = 32 << 10;
/// A sum that has not moved for so long begins again: longer than a wire that loses packets needs
/// to send them again.
const STANDS: Duration = Duration::from_millis(200);
/// How often it begins again without a segment more before the program takes over: for 2 s, in
/// which all nodes learn of a wire that died.
const TRIES: u32 = 10;
/// Most bytes of a segment, and what they are a multiple of.
const SEGMENT_MAX: usize = 32 << 10;
const SEGMENT_UNIT: usize = 8;
/// Segments that one step gives at most.
const BUDGET: usize = 64;

/// What the root tells each rank.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
struct Order {
    /// Of the first byte that is not at the root.
    at: U64,
    /// Number of the sum; 0: it is over.
    id: U32,
    segment: U32,
    root: [u8; 6],
    spare: [u8; 10],
}

const ORDER_BYTES: usize = size_of::<Order>();
/// NIC memory of an operation: the order that leaves, or the one that comes.
pub(super) const MEMORY: u64 = ORDER_BYTES as u64;

/// A sum that has begun.
#[derive(Debug, Clone, Copy)]
struct Sum {
    id: u32,
    /// Where its first segment is, in bytes of the operation.
    at: u64,
    segment: u32,
    root: MacAddr,
    /// Segments that this rank has given, and may give.
    given: u32,
    granted: u32,
}

/// What only the root knows.
#[derive(Debug)]
struct AtRoot {
    /// Ranks that have not begun the operation.
    absent: u32,
    /// Segments of this sum that are here, and those granted last.
    have: u32,
    told: u32,
    /// When one came last, and how often it began again since.
    moved: NicTime,
    tries: u32,
}

/// See the module text.
#[derive(Debug)]
pub(super) struct InTransit {
    job: Job,
    rank: u32,
    ranks: u32,
    block: Block,
    len: u64,
    at_root: Option<AtRoot>,
    sum: Option<Sum>,
    has_begun: bool,
    /// Number of the next order.
    orders: u32,
    /// Messages that have not left.
    sends: u32,
    /// Bytes that are done; the rest is the program's.
    over: Option<u64>,
}

/// The sums of a NIC: operations by their numbers.
#[derive(Debug, Default)]
pub(super) struct Sums {
    ops: FxHashMap<u32, u32>,
    /// The operation whose root this NIC is.
    root: Option<u32>,
    /// Those that wait for it.
    waiting: Vec<u32>,
    /// Number of the last sum of this root.
    last: u32,
    /// When the root looks whether its sum stands.
    due: Option<NicTime>,
}

impl Sums {
    /// The operation that a frame is for.
    pub(super) fn op_of(&self, frame: &[u8]) -> Option<u32> {
        let (head, _) = SumHead::read_from_prefix(frame).ok()?;
        self.ops.get(&head.id.get()).copied()
    }

    /// The operations that are to be moved on: the root's sum where it may stand, or those that
    /// wait for their turn. `lives`: whether an operation has not ended.
    pub(super) fn due_at(&mut self, now: NicTime, lives: impl Fn(u32) -> bool) -> Vec<u32> {
        if let Some(root) = self.root.filter(|root| !lives(*root)) {
            self.forget(root);
        }
        let is_due = self.due.is_some_and(|due| due <= now);
        // It may end by other means, and is looked for again.
        self.due = self.root.map(|_| now.plus(STANDS));
        match self.root {
            Some(root) if is_due => vec![root],
            Some(_) => Vec::new(),
            None => std::mem::take(&mut self.waiting),
        }
    }

    /// When there is something to do although nothing arrives.
    pub(super) fn next_timer(&self) -> Option<NicTime> {
        match self.root {
            None if !self.waiting.is_empty() => Some(NicTime(0)),
            _ => self.due,
        }
    }

    /// Forgets operations that have ended with their communicators.
    pub(super) fn retain(&mut self, lives: impl Fn(u32) -> bool) {
        self.ops.retain(|_, op| lives(*op));
        self.waiting.retain(|op| lives(*op));
    }

    /// An operation has ended.
    pub(super) fn forget(&mut self, op: u32) {
        self.ops.retain(|_, of| *of != op);
        if self.root == Some(op) {
            (self.root, self.due) = (None, None);
        }
    }
}

impl InTransit {
    /// Whether an operation goes so: over a mesh whose trees reach exactly its ranks.
    pub(super) fn is_possible(job: &Job, ranks: u32, io: &Io<'_>) -> bool {
        use ringbell_nic_abi::{Algorithm, CollectiveKind};
        let p = &job.params;
        let is_tree = (p.kind, p.algo) == (CollectiveKind::Reduce, Algorithm::Tree);
        job.by_copies
            && is_tree
            && !p.converts()
            && job.scratch.is_on_nic()
            && job.streams == [false; 2]
            && ranks > 1
            && p.count * job.size() > LEAST
            && io.net.reached_by_tree() + 1 == ranks as usize
    }

    pub(super) fn new(job: Job, rank: u32, ranks: u32, block: Block) -> InTransit {
        let at_root = (rank == job.params.root).then_some(AtRoot {
            absent: ranks - 1,
            have: 0,
            told: 0,
            moved: NicTime(0),
            tries: 0,
        });
        InTransit {
            len: job.params.count * job.size(),
            job,
            rank,
            ranks,
            block,
            at_root,
            sum: None,
            has_begun: false,
            orders: 0,
            sends: 0,
            over: None,
        }
    }

    /// NIC memory, to be given back.
    pub(super) fn block(&self) -> Block {
        self.block
    }

    /// Bytes that are not done when it has ended: those from here on are the program's.
    pub(super) fn rest(&self) -> Option<u64> {
        self.over.filter(|done| *done < self.len)
    }

    fn root(&self) -> u32 {
        self.job.params.root
    }

    fn tag(&self, channel: u8, index: u32) -> u64 {
        self.job.tag(0, channel, index)
    }

    fn order_buffer(&self, io: &Io<'_>) -> Pieces {
        Pieces::one(io.dma.nic_memory.buffer(self.block.at, ORDER_BYTES as u32))
    }

    fn send(&mut self, op: u32, messages: &mut Messages, to: u32, (tag, pieces): (u64, Pieces)) {
        self.sends += 1;
        messages.send(SendRequest {
            ctx: self.job.ctx,
            to,
            tag,
            hash: self.job.hash,
            pieces,
            when_met: false,
            key: u64::from(op) << 32,
        });
    }

    fn receive(&self, messages: &mut Messages, io: &mut Io<'_>, from: u32, r: (u64, Pieces, u64)) {
        let (tag, pieces, key) = r;
        let request = RecvRequest {
            ctx: self.job.ctx,
            from: Some(from),
            tag: Some(tag),
            hash: self.job.hash,
            pieces,
            in_use: false,
            key,
        };
        // Without a free number the operation waits until its time-out.
        let _ = messages.recv(io, request);
    }

    /// A message has left.
    pub(super) fn sent(&mut self) {
        self.sends = self.sends.saturating_sub(1);
    }

    /// A message of a rank has come.
    pub(super) fn received(
        &mut self,
        key: u64,
        sums: &mut Sums,
        messages: &mut Messages,
        io: &mut Io<'_>,
    ) {
        if key & ORDER == 0 {
            if let Some(root) = &mut self.at_root {
                root.absent = root.absent.saturating_sub(1);
            }
            return;
        }
        let mut bytes = [0; ORDER_BYTES];
        io.dma.nic_memory.read(self.block.at, &mut bytes);
        let order: Order = zerocopy::transmute!(bytes);
        let op = (key >> 32) as u32;
        if let Some(sum) = self.sum.take() {
            sums.ops.remove(&sum.id);
        }
        if order.id.get() == 0 {
            self.over = Some(order.at.get().min(self.len));
            return;
        }
        self.await_order(op, messages, io);
        self.sum = Some(Sum {
            id: order.id.get(),
            at: order.at.get(),
            segment: order.segment.get().max(1),
            root: MacAddr(order.root),
            given: 0,
            granted: WINDOW as u32,
        });
        sums.ops.insert(order.id.get(), op);
    }

    fn await_order(&mut self, op: u32, messages: &mut Messages, io: &mut Io<'_>) {
        let (tag, pieces) = (self.tag(ORDERS, self.orders), self.order_buffer(io));
        self.orders += 1;
        self.receive(
            messages,
            io,
            self.root(),
            (tag, pieces, u64::from(op) << 32 | ORDER),
        );
    }

    /// A frame of its sum has come.
    ///
    /// # Errors
    /// The fault of the user's memory.
    pub(super) fn on_frame(&mut self, frame: &[u8], io: &mut Io<'_>) -> Result<(), Refusal> {
        let Ok((head, elements)) = SumHead::read_from_prefix(frame) else {
            return Ok(());
        };
        let Some(sum) = self.sum.as_mut().filter(|s| s.id == head.id.get()) else {
            return Ok(());
        };
        let segment = head.segment.get();
        match (head.kind, &mut self.at_root) {
            (GRANT, None) => sum.granted = sum.granted.max(segment),
            (SUM, Some(root)) => {
                let at = sum.at + u64::from(segment) * u64::from(sum.segment);
                let len = self.len.saturating_sub(at).min(sum.segment.into()) as usize;
                let is_whole = u32::from(head.ranks.get()) == self.ranks;
                let elements = elements.get(..len);
                // One that lacks ranks went by a tree that has changed: the sum stands then.
                let (true, Some(elements)) = (is_whole && segment == root.have, elements) else {
                    return Ok(());
                };
                let to = buffer(self.job.output, at, len);
                io.dma().write(&to, 0, elements).map_err(|f| f.status())?;
                root.have += 1;
                (root.moved, root.tries) = (io.now, 0);
                sum.granted = root.have + WINDOW as u32;
            }
            _ => {}
        }
        Ok(())
    }

    /// Moves on.
    ///
    /// # Errors
    /// The fault of the user's memory.
    pub(super) fn run(
        &mut self,
        op: u32,
        sums: &mut Sums,
        messages: &mut Messages,
        io: &mut Io<'_>,
    ) -> Result<Progress, Refusal> {
        if !self.has_begun {
            self.has_begun = true;
            self.meet(op, messages, io);
        }
        if self.over.is_some() {
            return Ok(match self.sends {
                0 => Progress::Done,
                _ => Progress::Waits,
            });
        }
        if self.at_root.is_some() {
            self.lead(op, sums, messages, io);
            if self.over.is_some() {
                return Ok(Progress::Waits);
            }
        }
        self.give(io)
    }

    /// Tells the root that this rank has begun; the root expects all.
    fn meet(&mut self, op: u32, messages: &mut Messages, io: &mut Io<'_>) {
        let tag = self.tag(READY, 0);
        if self.at_root.is_some() {
            for from in (0..self.ranks).filter(|r| *r != self.rank) {
                let key = u64::from(op) << 32;
                self.receive(messages, io, from, (tag, Pieces::default(), key));
            }
            return;
        }
        self.await_order(op, messages, io);
        self.send(op, messages, self.root(), (tag, Pieces::default()));
    }

    /// The root's part: begins, begins again, grants and ends.
    fn lead(&mut self, op: u32, sums: &mut Sums, messages: &mut Messages, io: &mut Io<'_>) {
        let Some(root) = &mut self.at_root else {
            return;
        };
        // Orders leave from one place.
        let is_free = sums.root.is_none_or(|of| of == op);
        if root.absent > 0 || self.sends > 0 {
            return;
        }
        if !is_free {
            if !sums.waiting.contains(&op) {
                sums.waiting.push(op);
            }
            return;
        }
        sums.root = Some(op);
        let Some(sum) = &mut self.sum else {
            root.moved = io.now;
            return self.begin(op, 0, sums, messages, io);
        };
        let done = sum.at + u64::from(root.have) * u64::from(sum.segment);
        if done >= self.len {
            return self.end(op, self.len, sums, messages, io);
        }
        let due = root.moved.plus(STANDS);
        if io.now >= due {
            root.tries += 1;
            root.moved = io.now;
            tracing::debug!(done, tries = root.tries, "a sum in transit stands");
            return match root.tries > TRIES {
                true => self.end(op, done, sums, messages, io),
                false => self.begin(op, done, sums, messages, io),
            };
        }
        sums.due = Some(due);
        if root.have - root.told >= WINDOW as u32 / 2 {
            let head = SumHead {
                kind: GRANT,
                dtype: 0,
                op: 0,
                spare: 0,
                len: 0.into(),
                ranks: 0.into(),
                id: sum.id.into(),
                segment: sum.granted.into(),
            };
            let fill = |room: &mut [u8]| {
                room[..SUM_HEAD].copy_from_slice(head.as_bytes());
                Ok::<_, ()>(SUM_HEAD)
            };
            if io.net.send_to_all(io.now, fill).is_some() {
                root.told = root.have;
                io.net.flush_to_all(io.now);
            }
        }
    }

    /// Begins a sum of what follows `at` bytes.
    fn begin(
        &mut self,
        op: u32,
        at: u64,
        sums: &mut Sums,
        messages: &mut Messages,
        io: &mut Io<'_>,
    ) {
        let Some((mac, mtu)) = io.net.sum_root() else {
            return self.end(op, at, sums, messages, io);
        };
        let room = mtu.saturating_sub(SUM_HEAD).min(SEGMENT_MAX);
        // Numbers of this NIC's life before are others: it began at another time.
        if sums.last == 0 {
            sums.last = (io.now.0 >> 10) as u32;
        }
        sums.last = sums.last.wrapping_add(1).max(1);
        let sum = Sum {
            id: sums.last,
            at,
            segment: (room / SEGMENT_UNIT * SEGMENT_UNIT) as u32,
            root: mac,
            given: 0,
            granted: WINDOW as u32,
        };
        if let Some(before) = self.sum.replace(sum) {
            sums.ops.remove(&before.id);
        }
        sums.ops.insert(sum.id, op);
        if let Some(root) = &mut self.at_root {
            (root.have, root.told) = (0, 0);
            sums.due = Some(root.moved.plus(STANDS));
        }
        self.tell(op, sum, messages, io);
    }

    /// Ends it with so many bytes done.
    fn end(
        &mut self,
        op: u32,
        done: u64,
        sums: &mut Sums,
        messages: &mut Messages,
        io: &mut Io<'_>,
    ) {
        self.over = Some(done);
        sums.forget(op);
        let none = Sum {
            id: 0,
            at: done,
            segment: 0,
            root: MacAddr::default(),
            given: 0,
            granted: 0,
        };
        self.tell(op, none, messages, io);
    }

    /// Gives all ranks an order.
    fn tell(&mut self, op: u32, sum: Sum, messages: &mut Messages, io: &mut Io<'_>) {
        let order = Order {
            at: sum.at.into(),
            id: sum.id.into(),
            segment: sum.segment.into(),
            root: sum.root.0,
            spare: [0; 10],
        };
        io.dma.nic_memory.write(self.block.at, order.as_bytes());
        let tag = self.tag(ORDERS, self.orders);
        self.orders += 1;
        let me = self.rank;
        for to in (0..self.ranks).filter(|r| *r != me) {
            let pieces = self.order_buffer(io);
            self.send(op, messages, to, (tag, pieces));
        }
    }

    /// Gives segments to the sum, as many as are granted and find room.
    fn give(&mut self, io: &mut Io<'_>) -> Result<Progress, Refusal> {
        let (p, len, input) = (self.job.params, self.len, self.job.input);
        let Some(sum) = &mut self.sum else {
            return Ok(Progress::Waits);
        };
        let mut progress = Progress::Waits;
        for n in 0..=BUDGET {
            let at = sum.at + u64::from(sum.given) * u64::from(sum.segment);
            if at >= len || sum.given >= sum.granted {
                break;
            }
            progress = Progress::More;
            if n == BUDGET {
                break;
            }
            let bytes = (len - at).min(sum.segment.into()) as usize;
            let head = SumHead {
                kind: SUM,
                dtype: p.dtype.code(),
                op: p.op.code(),
                spare: 0,
                // At most `SEGMENT_MAX`.
                len: (bytes as u16).into(),
                ranks: 1.into(),
                id: sum.id.into(),
                segment: sum.given.into(),
            };
            let mut dma = crate::dma::Dma {
                mmu: io.mmu,
                state: io.dma,
            };
            let filled = io.net.send_to_sum(io.now, sum.root, |room| {
                let (head_room, rest) = room.split_at_mut(SUM_HEAD);
                head_room.copy_from_slice(head.as_bytes());
                let from = buffer(input, at, bytes);
                match dma.read(&from, 0, &mut rest[..bytes]) {
                    Ok(ReadStatus::Done) => Ok(SUM_HEAD + bytes),
                    Ok(ReadStatus::Pending) => Err(None),
                    Err(fault) => Err(Some(fault.status())),
                }
            });
            match filled {
                Some(Ok(_)) => sum.given += 1,
                Some(Err(Some(refusal))) => return Err(refusal),
                // No room, or the memory is not ready.
                Some(Err(None)) | None => break,
            }
        }
        io.net.flush_to_all(io.now);
        Ok(progress)
    }
}

/// A part of an operation's memory.
fn buffer(side: Side, at: u64, len: usize) -> Buffer {
    Buffer {
        region: side.region,
        va: GpuVa(side.va + at),
        // At most `SEGMENT_MAX`.
        len: len as u32,
    }
}
