//! The path of messages: every operation can take it, and user messages, passes over own memory and
//! channels take no other.

use std::net::Ipv4Addr;

use ringbell_nic_abi::Status;
use ringbell_onc_engines::program::Layout;

use super::cut::Cut;
use super::executor::{self, Op};
use super::group::{Body, Groups};
use super::in_transit::{self, InTransit, Sums};
use super::job::{Job, Windows};
use super::kernel_stream;
use super::number::Number;
use super::on_card::CardOp;
use super::params::takes_blocks_in_order;
use super::table::{Active, State, Table};
use super::task::Progress;
use super::{taps, Params, Plan, Task};
use crate::dma::ReadStatus;
use crate::engine::{Engines, Place};
use crate::link::Io;
use crate::memory::nic_memory::Block;
use crate::message::{RecvRequest, SendRequest, USER_TAG};
use crate::types::NicTime;

/// Elements that one step reduces before the NIC looks at everything else again.
const STEP_ELEMENTS: u64 = 128 << 10;

/// Result of starting an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Begun {
    /// It is under way, or has ended.
    Yes,
    /// NIC memory is short, or a peer has not reported yet whether it has mapped the memory.
    Later,
}

/// See the module text.
#[derive(Debug)]
pub(crate) struct MessagePath {
    pub(super) groups: Groups,
    pub(super) sums: Sums,
}

impl MessagePath {
    pub(super) fn new(ip: Ipv4Addr) -> MessagePath {
        MessagePath {
            groups: Groups::new(ip),
            sums: Sums::default(),
        }
    }

    /// Starts an operation.
    pub(super) fn start(
        &mut self,
        table: &mut Table,
        io: &mut Io<'_>,
        slot: u32,
        id: u32,
    ) -> Begun {
        let Some((c, a)) = table.both(slot, id) else {
            return Begun::Yes;
        };
        let streams = a.streams();
        let key = u64::from(id) << 32;
        match std::mem::replace(&mut a.task, Task::Nop) {
            Task::Nop => {
                table.finish(slot, id, Status::Ok, 0, 0);
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
                    when_met: false,
                    key,
                };
                match itself {
                    false => self.groups.messages.send(request),
                    true => self.groups.messages.send_own(request),
                }
                self.copy_own(table);
            }
            Task::Recv { from, tag, pieces } => {
                c.active.push(id);
                let request = RecvRequest {
                    ctx: c.ctx,
                    from,
                    tag: tag.map(|t| USER_TAG | u64::from(t)),
                    hash: 0,
                    pieces,
                    in_use: false,
                    key,
                };
                a.state = State::Message(None);
                let n = self.groups.messages.recv(io, request);
                let met = self.copy_own(table);
                match (n.filter(|_| !met), table.ops.get_mut(id)) {
                    (Some(n), Some(a)) => a.state = State::Message(Some(n)),
                    (None, _) if met => {}
                    (None, _) => table.finish(slot, id, Status::NoResources, 0, 1 << 18),
                    _ => {}
                }
            }
            Task::Channel(task) => {
                self.start_channel(table, io, slot, id, task);
            }
            Task::Local(combine) => {
                a.bytes = combine.count * combine.dtype.bytes();
                a.state = State::Local(combine);
                c.active.push(id);
                table.wake(id);
            }
            Task::Program(p) => {
                let (plan, mut params) = (p.plan.clone(), p.params);
                let (mut input, mut output, streamed) = (p.input, p.output, p.streamed);
                let done = a.done.unwrap_or(0);
                params.count -= done / params.dtype.bytes();
                input.va += done;
                output.va += done;
                let sides = p.sides;
                a.task = Task::Program(p);
                let layout = Layout {
                    count: params.count,
                    block_chunks: plan.program.block_chunks,
                };
                let slots = slots_of(&plan, &params);
                // Without elements every rank takes part in the one window.
                let in_blocks =
                    streamed && params.count > 0 && takes_blocks_in_order(params.kind, params.algo);
                let blocks = if in_blocks { c.ranks() } else { 1 };
                let streamed = streamed.then_some(blocks);
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
                        table.finish(slot, id, Status::NoResources, 0, short.needed);
                        return Begun::Yes;
                    }
                };
                let windows = windows.map(|parts| Windows {
                    parts,
                    own: in_blocks.then_some(c.rank),
                });
                let ends = match kernel_stream::open(io, streams) {
                    Ok(ends) => ends,
                    Err((status, detail)) => {
                        table.finish(slot, id, status, 0, detail);
                        return Begun::Yes;
                    }
                };
                let job = Job {
                    hash: params.hash(),
                    ctx: c.ctx,
                    seq: a.call.seq.unwrap_or(Number::first(0)),
                    plan,
                    params,
                    input,
                    output,
                    layout,
                    segments,
                    slot_bytes,
                    windows,
                    streams: streams.map(|s| s.is_some()),
                    by_copies: c.settings.trees,
                    scratch: c.scratch,
                };
                if a.done.is_none() && InTransit::is_possible(&job, c.ranks(), io) {
                    return self.start_in_transit(table, slot, id, job);
                }
                let job = match io.dma.card.clone().filter(|_| c.life.cards) {
                    Some(card)
                        if streams.iter().all(Option::is_none) && CardOp::is_possible(&job) =>
                    {
                        if card.lock().ring_owner() == Some(slot) {
                            // In order, after the one before it.
                            return Begun::Later;
                        }
                        match CardOp::begin(job, io, &mut c.arena, &card, slot, sides) {
                            Ok(op) => {
                                a.state = State::OnCard(Box::new(op));
                                c.count(params.kind, params.algo);
                                c.counters.card += 1;
                                c.active.push(id);
                                table.on_card = Some(id);
                                table.wake(id);
                                return Begun::Yes;
                            }
                            Err(job) => {
                                card.lock().counts.programs_in_software += 1;
                                *job
                            }
                        }
                    }
                    _ => job,
                };
                let each = job.instance_bytes();
                // Streams wait for each other's kernels: one leaves half of the memory to others.
                let half = match streamed {
                    Some(_) => (c.scratch.len() - c.arena.used()) / 2 / each.max(1),
                    None => u64::MAX,
                };
                let want = segments.min(in_flight).min(half.max(1));
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
                        table.finish(slot, id, Status::NoResources, 0, each);
                        return Begun::Yes;
                    }
                    return Begun::Later;
                }
                let viewers = a.tap.as_ref().map(|t| t.viewers(slot, id, &streams));
                let op = Op::new(job, blocks, ends, viewers.unwrap_or_default());
                a.state = State::Running(Box::new(op));
                c.count(params.kind, params.algo);
                c.active.push(id);
                table.streams.take(id, streams);
                table.wake(id);
            }
        }
        Begun::Yes
    }

    /// Starts an operation that the NICs on the way combine.
    fn start_in_transit(&mut self, table: &mut Table, slot: u32, id: u32, job: Job) -> Begun {
        self.sums.retain(|op| table.ops.get(op).is_some());
        let Some((c, a)) = table.both(slot, id) else {
            return Begun::Yes;
        };
        let Some(block) = c.arena.alloc(in_transit::MEMORY) else {
            if c.active.is_empty() {
                table.finish(slot, id, Status::NoResources, 0, in_transit::MEMORY);
                return Begun::Yes;
            }
            return Begun::Later;
        };
        c.count(job.params.kind, job.params.algo);
        let op = InTransit::new(job, c.rank, c.ranks(), block);
        a.state = State::InTransit(Box::new(op));
        c.active.push(id);
        table.wake(id);
        Begun::Yes
    }

    /// Takes the frames of reductions in transit that have come.
    pub(super) fn take_sums(&mut self, table: &mut Table, io: &mut Io<'_>) -> bool {
        let mut moved = false;
        while let Some(frame) = io.net.next_of_sums() {
            moved = true;
            let id = self.sums.op_of(&frame);
            if let Some(id) = id.filter(|id| table.ops.get(*id).is_some()) {
                let a = table.ops.get_mut(id).map(|a| (a.comm, &mut a.state));
                match a {
                    Some((slot, State::InTransit(op))) => match op.on_frame(&frame, io) {
                        Ok(()) => table.wake(id),
                        Err(why) => table.fail(slot, id, why),
                    },
                    _ => self.sums.forget(id),
                }
            }
            io.net.copy_is_read(frame);
        }
        moved
    }

    /// Wakes the sum of which this NIC is the root, if it may stand, or the next.
    #[inline]
    pub(super) fn look_at_sums(&mut self, table: &mut Table, now: NicTime) {
        if self.sums.next_timer().is_none_or(|due| due > now) {
            return;
        }
        let lives = |id| {
            let a = table.ops.get(id);
            a.is_some_and(|a| matches!(a.state, State::InTransit(_)))
        };
        for id in self.sums.due_at(now, lives) {
            table.wake(id);
        }
    }

    /// An operation in transit is over. What is left of it is the program's.
    fn end_in_transit(&mut self, table: &mut Table, io: &mut Io<'_>, slot: u32, id: u32) {
        self.sums.forget(id);
        let Some((c, a)) = table.both(slot, id) else {
            return;
        };
        let bytes = a.bytes;
        let State::InTransit(op) = &a.state else {
            return;
        };
        let Some(done) = op.rest() else {
            return table.complete(slot, id, bytes, 0);
        };
        c.arena.free(op.block());
        c.active.retain(|o| *o != id);
        (a.state, a.done) = (State::Waiting, Some(done));
        if self.start(table, io, slot, id) == Begun::Later {
            table.waiting += 1;
            if let Some(c) = table.comm_mut(slot) {
                c.queue.push_front(id);
            }
        }
    }

    /// Moves operations on. Returns whether anything moved.
    pub(super) fn step(&mut self, table: &mut Table, io: &mut Io<'_>) -> bool {
        if !table.streams.is_quiet() {
            table.look_at_streams(io);
        }
        table.look_at_card();
        let n = table.ready();
        let mut budget = STEP_ELEMENTS;
        for _ in 0..n {
            let Some((id, slot)) = table.next_ready() else {
                break;
            };
            if !table.has_ended(slot) {
                self.run(table, io, slot, id, &mut budget);
            }
        }
        n > 0
    }

    /// Tells the peers of a communicator that has ended.
    pub(super) fn abort(&mut self, table: &mut Table, io: &mut Io<'_>, slot: u32) {
        let Some((c, end)) = table.comm(slot).and_then(|c| Some((c, c.life.end?))) else {
            return;
        };
        let (ctx, rank, status) = (c.ctx, end.rank, end.status);
        self.groups.kill(io, ctx, Body::Abort { rank, status });
    }

    fn run(&mut self, table: &mut Table, io: &mut Io<'_>, slot: u32, id: u32, budget: &mut u64) {
        let Some(a) = table.ops.get_mut(id) else {
            return;
        };
        let bytes = a.bytes;
        let mut watch = false;
        let result = match &mut a.state {
            State::Running(op) => {
                let ran = op.run(id, &mut self.groups.messages, io, budget);
                watch = op.waits_for_kernel();
                ran
            }
            State::OnCard(op) => op.run(id, &mut self.groups.messages, io),
            State::InTransit(op) => {
                match op.run(id, &mut self.sums, &mut self.groups.messages, io) {
                    Ok(Progress::Done) => return self.end_in_transit(table, io, slot, id),
                    ran => ran,
                }
            }
            State::Local(c) => match c.run(&mut io.dma(), budget) {
                Ok(ReadStatus::Done) => Ok(Progress::Done),
                Ok(ReadStatus::Pending) => Ok(Progress::More),
                Err(fault) => Err(fault.status()),
            },
            State::FromItself(_) => return table.run_own(io, id, budget),
            State::Channel(_) => return self.run_channel(table, io, id),
            State::Leaving { .. } => return table.leave(io, id),
            State::Waiting | State::Message(_) | State::ToItself(_) => return,
        };
        match result {
            Ok(Progress::Done) => table.complete(slot, id, bytes, 0),
            Ok(Progress::More) => table.wake(id),
            Ok(Progress::Waits) if watch => table.streams.watch(id),
            Ok(Progress::Waits) => {}
            Err(why) => table.fail(slot, id, why),
        }
    }

    /// A message has left.
    pub(super) fn sent(&mut self, table: &mut Table, key: u64, status: Status, detail: u64) {
        let id = executor::op_of(key);
        let Some(a) = table.ops.get_mut(id) else {
            return;
        };
        let (slot, bytes) = (a.comm, a.bytes);
        match &mut a.state {
            State::Running(op) if status == Status::Ok => {
                op.sent(key);
                table.wake(id);
            }
            State::OnCard(op) if status == Status::Ok => {
                op.sent(key);
                table.wake(id);
            }
            State::InTransit(op) if status == Status::Ok => {
                op.sent();
                table.wake(id);
            }
            State::Running(_) | State::OnCard(_) | State::InTransit(_) => {
                table.fail(slot, id, (status, detail));
            }
            State::Message(_) => {
                let n = if status == Status::Ok { bytes } else { 0 };
                table.finish(slot, id, status, n, detail);
            }
            State::Channel(c) if status == Status::Ok => {
                c.sent(key);
                table.wake(id);
            }
            State::Channel(_) => self.channel_fails(table, id, status, detail),
            _ => {}
        }
    }

    /// A message from a rank has come: its length.
    pub(super) fn received(
        &mut self,
        table: &mut Table,
        io: &mut Io<'_>,
        key: u64,
        (status, detail): (Status, u64),
        (from, len): (u32, u64),
    ) {
        let id = executor::op_of(key);
        let Some(a) = table.ops.get_mut(id) else {
            return;
        };
        let slot = a.comm;
        match &mut a.state {
            State::Running(op) if status == Status::Ok => {
                op.received(key);
                table.wake(id);
            }
            State::OnCard(op) if status == Status::Ok => {
                op.received(key);
                table.wake(id);
            }
            State::InTransit(op) if status == Status::Ok => {
                op.received(key, &mut self.sums, &mut self.groups.messages, io);
                table.wake(id);
            }
            State::Running(_) | State::OnCard(_) | State::InTransit(_) => {
                table.fail(slot, id, (status, detail));
            }
            State::Message(_) => {
                let detail = match status {
                    Status::Ok => u64::from(from) << 32 | (detail & 0xffff_ffff),
                    _ => detail,
                };
                match status {
                    Status::Ok => table.complete(slot, id, len, detail),
                    _ => table.finish(slot, id, status, len, detail),
                }
            }
            State::Channel(c) => {
                let moved = match status {
                    Status::Ok => c.received(&mut io.dma(), len),
                    _ => Err((status, detail)),
                };
                match moved {
                    Ok(()) => table.wake(id),
                    Err((status, detail)) => self.channel_fails(table, id, status, detail),
                }
            }
            _ => {}
        }
    }

    /// Takes an operation back that no other rank depends on yet. `false`: too late.
    pub(super) fn take_back(&mut self, a: &mut Active, id: u32) -> bool {
        match &mut a.state {
            State::Channel(c) => c.take_back(id, &mut self.groups.messages),
            State::Waiting => a.call.seq.is_none(),
            State::Message(Some(recv)) => self.groups.messages.cancel_recv(*recv),
            State::Message(None) => self.groups.messages.cancel_send(u64::from(id) << 32),
            _ => false,
        }
    }

    /// Starts the copies of messages of this rank to itself. Returns whether there were any.
    pub(super) fn copy_own(&mut self, table: &mut Table) -> bool {
        let mut any = false;
        while let Some(own) = self.groups.messages.take_own() {
            any = true;
            table.begin_own(own);
        }
        any
    }

    /// Puts the streams to peers before the engines that are to see messages.
    pub(super) fn show(&self, table: &Table, engines: &mut Engines) {
        for slot in table.slots() {
            if !taps::shows_messages(engines, slot) {
                continue;
            }
            let Some(c) = table.comm(slot) else { continue };
            for r in (0..c.ranks()).filter(|r| *r != c.rank) {
                let Some((t, conn, _)) = self.groups.messages.route(c.ctx, r) else {
                    continue;
                };
                for place in [Place::Sent, Place::Received] {
                    let (by, direction) = place.at(slot);
                    engines.show(by, (t, conn, direction), r);
                }
            }
        }
    }
}

/// Slots of NIC memory of the rank that needs most.
fn slots_of(plan: &Plan, params: &Params) -> u64 {
    plan.most_slots(params.converts()).max(1).into()
}
