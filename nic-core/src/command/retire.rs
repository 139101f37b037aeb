//! Ends of operations: completion, time-outs, cancellation, regions that are freed, reset and
//! shutdown.

use std::sync::Arc;

use ringbell_nic_abi::{GpuVa, Opcode, QueueId, Status};
use rustc_hash::FxHashSet;

use super::refusal::is_fault;
use super::streams::Conn;
use super::{Core, Undelivered};
use crate::collective::{CancelError, Fate};
use crate::outstanding::Operation;
use crate::permit::Permit;
use crate::queue::QueueMemory;
use crate::transport::TransportEvent;
use crate::types::{Owner, WorkToken};

impl Core {
    /// Retires a descriptor that never became an operation.
    #[inline]
    pub(super) fn finish(&mut self, permit: Permit, status: Status, bytes: u64, detail: u64) {
        let memory = &*self.memory.dma.memory;
        self.queues[permit.queue as usize].retire(permit, status, bytes, detail, memory);
        self.report.counters.retired += 1;
    }

    /// Retires an operation, unless it has retired already.
    pub(super) fn retire(&mut self, token: WorkToken, status: Status, bytes: u64, detail: u64) {
        if let Some(work) = self.outstanding.remove(token) {
            self.retire_work(work, status, bytes, detail);
        }
    }

    /// Retires an operation that is no longer outstanding.
    #[inline]
    pub(super) fn retire_work(
        &mut self,
        mut work: Operation,
        status: Status,
        bytes: u64,
        detail: u64,
    ) {
        if status != Status::Ok {
            self.note_failure(&work, status, detail);
        }
        for pin in work.pins.iter_mut().filter_map(Option::take) {
            self.memory.mmu.unpin(pin);
        }
        match work.opcode {
            Opcode::Send | Opcode::Put => self.report.counters.tx_bytes += bytes,
            Opcode::Recv | Opcode::Get => self.report.counters.rx_bytes += bytes,
            _ => {}
        }
        if work.scatter_to_cqe {
            return self.finish_scattered(work.permit, GpuVa(work.va), status, bytes, detail);
        }
        self.finish(work.permit, status, bytes, detail);
    }

    /// An operation fails: nothing of it is read any more, and those chained to it fail as well.
    #[cold]
    fn note_failure(&mut self, work: &Operation, status: Status, detail: u64) {
        for pin in work.pins.iter().flatten() {
            self.memory.dma.forget_reads(pin.region);
        }
        if is_fault(status) {
            let id = self.streams.sessions.id(work.session);
            self.report.fault(self.time.now, id, detail);
        }
        if let Some(id) = work.chain {
            self.streams.sessions.end_chain(id, status, detail);
        }
    }

    /// Retires the collectives that have ended.
    #[inline]
    pub(super) fn retire_collectives(&mut self) {
        if self.collectives.table.has_retired() {
            self.retire_all_collectives();
        }
    }

    fn retire_all_collectives(&mut self) {
        // Before the pins go: kernels that wait at a stream are notified that it has failed.
        self.collectives.table.streams.tell(&mut self.memory.dma());
        while let Some(r) = self.collectives.table.take_retired() {
            self.retire(r.token, r.status, r.bytes, r.detail);
        }
    }

    /// Retires what the streams have ended.
    pub(super) fn retire_ended(&mut self) {
        for r in std::mem::take(&mut self.streams.ended) {
            self.retire(r.token, r.status, r.bytes, r.detail);
        }
    }

    /// Retires what is past its deadline. Returns whether anything was.
    pub(super) fn expire(&mut self) -> bool {
        let mut expired = std::mem::take(&mut self.expired);
        self.outstanding.advance(self.time.now, &mut expired);
        let mut moved = !expired.is_empty();
        for token in expired.drain(..) {
            self.time_out(token);
        }
        self.expired = expired;
        if self.is_lingering() {
            moved |= self.streams(|s, env| s.end_lingering(env));
        }
        moved
    }

    fn time_out(&mut self, token: WorkToken) {
        if self.probe_peers(token) {
            return;
        }
        match self.take_back(token, Status::TimedOut, 0) {
            Some(bytes) => {
                self.report.counters.timed_out += 1;
                self.retire(token, Status::TimedOut, bytes, 0);
            }
            // The part that works on it retires it soon.
            None => self.outstanding.postpone(token),
        }
    }

    /// A collective operation has used up its time except the part reserved for answers: probes the
    /// peers. `false`: all its time is up.
    fn probe_peers(&mut self, token: WorkToken) -> bool {
        let Some(w) = self.outstanding.get_mut(token) else {
            return false;
        };
        let extra = std::mem::take(&mut w.extra_us);
        if extra == 0 || !self.collectives(|c, io| c.probe_peers(io, token)) {
            return false;
        }
        self.outstanding.rearm(token, extra);
        true
    }

    /// Takes an operation back from the part that works on it, to be retired. The bytes that it has
    /// moved; `None`: it has retired, or that part is about to retire it.
    fn take_back(&mut self, token: WorkToken, status: Status, detail: u64) -> Option<u64> {
        let work = self.outstanding.get_mut(token)?;
        let (opcode, slot, conn) = (work.opcode, work.session, work.conn);
        match opcode {
            op if op.is_one_sided() && slot == u32::MAX => self.withdraw_symmetric(conn, token),
            op if uses_stream(op) => self.streams(|s, env| s.withdraw(conn?, token, opcode, env)),
            Opcode::Accept | Opcode::Connect => {
                self.streams.give_up(slot, token);
                Some(0)
            }
            Opcode::Copy => Some(self.copies.cancel(token).unwrap_or(0)),
            Opcode::Collective => {
                let fate = self.collectives(|c, io| c.give_up(io, token, status, detail));
                (fate == Fate::Now).then_some(0)
            }
            // These retire in the step that accepts them.
            _ => Some(0),
        }
    }

    /// Takes a one-sided operation on a communicator's window back. The bytes that it may have
    /// moved.
    fn withdraw_symmetric(&mut self, conn: Option<Conn>, token: WorkToken) -> Option<u64> {
        let Some((t, conn)) = conn else {
            return Some(self.cancel_here(token).unwrap_or(0));
        };
        let bytes = self.streams.transports[t].cancel(conn, token)?;
        if bytes > 0 {
            // The link to that rank has to end, and the communicator with it.
            self.on_transport_event(t, TransportEvent::Reset { conn });
        }
        Some(bytes)
    }

    /// Cancels a copy, or a one-sided operation that no transport has. The bytes that it has moved.
    fn cancel_here(&mut self, token: WorkToken) -> Option<u64> {
        match self.windows.dialled.cancel(token) {
            true => Some(0),
            false => self.copies.cancel(token),
        }
    }

    /// Cancels the operation of a ticket; it retires with `CANCELLED`.
    pub(crate) fn cancel_collective(&mut self, queue: u32, ticket: u32) -> Result<(), CancelError> {
        // A ticket of the host's.
        let ring = self.queues.get(queue as usize).map_or(queue, |q| q.host);
        let found = self.outstanding.tokens().into_iter().find(|t| {
            let w = self.outstanding.get_mut(*t);
            w.is_some_and(|w| {
                w.opcode == Opcode::Collective
                    && (w.permit.queue, w.permit.ticket) == (ring, ticket)
            })
        });
        let token = found.ok_or(CancelError::NotUnderWay { queue, ticket })?;
        if !self.collectives(|c, _| c.cancel(token)) {
            return Err(CancelError::Begun { queue, ticket });
        }
        self.retire(token, Status::Cancelled, 0, 0);
        Ok(())
    }

    /// Retires the operations that wait on a region being freed. Copies under way continue
    /// and keep the region pinned.
    pub(crate) fn retire_region(&mut self, region: u32) {
        for token in self.outstanding.tokens() {
            let Some(work) = self.outstanding.get_mut(token) else {
                continue;
            };
            if !work.pins.iter().flatten().any(|p| p.region == region) {
                continue;
            }
            let va = work.va;
            if let Some(bytes) = self.take_back(token, Status::RegionFreed, va) {
                self.retire(token, Status::RegionFreed, bytes, va);
            }
        }
    }

    /// The last handle of a queue is gone. What was posted is taken; sends get `linger` to leave,
    /// and the rest is aborted. Returns memory that is to be dropped without the NIC's lock.
    pub(crate) fn close_queue(&mut self, queue: QueueId) -> Vec<Arc<QueueMemory>> {
        let rings = self.queues.rings_of(queue);
        let slots: usize = self.queues[rings.clone()].iter().map(|r| r.slots()).sum();
        for _ in 0..=slots / self.config.batch {
            if !self.take_descriptors() {
                break;
            }
        }
        let linger_us = u32::try_from(self.config.linger.as_micros()).unwrap_or(u32::MAX);
        for token in self.outstanding.tokens() {
            let Some(work) = self.outstanding.get_mut(token) else {
                continue;
            };
            if !rings.contains(&(work.permit.queue as usize)) {
                continue;
            }
            if work.opcode == Opcode::Send {
                let us = work.timeout_us.min(linger_us);
                self.outstanding.rearm(token, us);
            } else if let Some(bytes) = self.take_back(token, Status::Aborted, 0) {
                self.retire(token, Status::Aborted, bytes, 0);
            }
        }
        // What the rings still show waits for a reading of the clock.
        for q in rings {
            for _ in 0..self.queues[q].slots() {
                let Some((ticket, entry)) = self.queues[q].peek() else {
                    break;
                };
                self.queues[q].consume();
                self.report.counters.accepted += 1;
                let permit = Permit::new(q as u32, ticket, entry.0[0] as u8, entry.wr_id());
                self.finish(permit, Status::Aborted, 0, 0);
            }
        }
        // Its engines stay, so that they can still be queried.
        self.memory.engines.unwatch(Owner::queue(queue.0));
        self.queues.close(queue);
        self.settle_queues()
    }

    /// Frees the numbers of closed queues whose operations have retired; returns as
    /// [`close_queue`](Core::close_queue).
    pub(crate) fn settle_queues(&mut self) -> Vec<Arc<QueueMemory>> {
        let back = self.queues.settle(&*self.memory.dma.memory);
        for slots in &back.scatter {
            self.memory.free_scatter_slots(slots);
        }
        back.memory
    }

    /// Aborts every session and retires every operation with `status`.
    pub(crate) fn abort_all(&mut self, status: Status) {
        if self.collectives.exists() {
            let last = self.stopping;
            self.collectives(|c, io| c.abort_all(io, status, last));
        }
        self.abort_streams(status, &FxHashSet::default());
    }

    /// As [`abort_all`](Core::abort_all), except for collectives. Sends on streams in `keep`
    /// continue, and these streams are closed in order.
    fn abort_streams(&mut self, status: Status, keep: &FxHashSet<Conn>) {
        for token in self.outstanding.tokens() {
            let Some(work) = self.outstanding.get_mut(token) else {
                continue;
            };
            let bytes = match (work.opcode, work.conn) {
                (Opcode::Send, Some(conn)) if keep.contains(&conn) => continue,
                (op, Some((t, conn))) if uses_stream(op) => {
                    self.streams.transports[t].cancel(conn, token)
                }
                (op, _) if op == Opcode::Copy || op.is_one_sided() => self.cancel_here(token),
                // It ends with its session below.
                (Opcode::Connect, _) => continue,
                _ => None,
            };
            self.retire(token, status, bytes.unwrap_or(0), 0);
        }
        let stopping = self.stopping;
        self.streams(|s, env| s.close_all(status, keep, stopping, env));
    }

    /// Starts the shutdown: waiting operations retire with `SHUTTING_DOWN`, open sessions are
    /// reset. Those that were closed or half-closed are still delivered.
    pub(crate) fn begin_end(&mut self) {
        self.stopping = true;
        if self.collectives.exists() {
            self.collectives(|c, io| c.abort_all(io, Status::ShuttingDown, true));
        }
        let keep = self.streams.delivering();
        self.abort_streams(Status::ShuttingDown, &keep);
    }

    /// Whether closed sessions are still being delivered.
    pub(crate) fn is_lingering(&self) -> bool {
        !self.streams.lingering.is_empty()
    }

    /// Ends the rest. Returns what was reported as sent but has not arrived, since the NIC was
    /// made.
    pub(crate) fn finish_end(&mut self) -> Vec<Undelivered> {
        self.stopping = true;
        self.abort_all(Status::ShuttingDown);
        self.streams.transports.iter_mut().for_each(|t| t.end());
        self.streams.take_lost()
    }
}

/// Whether an operation is handed to the transport of a stream.
const fn uses_stream(opcode: Opcode) -> bool {
    matches!(opcode, Opcode::Send | Opcode::Recv) || opcode.is_one_sided()
}
