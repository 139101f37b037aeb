//! `SEND` and `RECV`, and where checked one-sided operations go.

use ringbell_gtlb::{Fault, Need};
use ringbell_nic_abi::completion::SCATTER_MAX;
use ringbell_nic_abi::{
    Completion, Descriptor, Flags, GpuVa, Opcode, PdId, SessionId, Status, WorkQueueEntry,
};

use super::dialled::Remote;
use super::one_sided::{Ready, Way};
use super::streams::Conn;
use super::Core;
use crate::engine::Direction;
use crate::outstanding::Operation;
use crate::permit::Permit;
use crate::session::{slot_of, State};
use crate::transport::{Payload, RecvWork, SendWork, Work};
use crate::types::{Buffer, ConnId, Owner, WorkToken};

impl Core {
    /// Executes the entry that a queue has shown to its end, with success.
    #[inline(always)]
    pub(super) fn complete_next(
        &mut self,
        q: usize,
        opcode: Opcode,
        entry: &WorkQueueEntry,
        bytes: u64,
    ) {
        let completion = Completion {
            status: Status::Ok,
            opcode: opcode.code(),
            wr_id: entry.wr_id(),
            bytes,
            detail: 0,
        };
        self.queues[q].complete_next(&completion, &*self.memory.dma.memory);
        self.report.counters.accepted += 1;
        self.report.counters.retired += 1;
    }

    /// Sends up to 40 bytes at once, inline or from memory that the CPU can read: without operation
    /// record, deadline or event. `false`: nothing happened; the general path also reports faults.
    #[inline(never)]
    pub(super) fn send_now(&mut self, q: usize, entry: &WorkQueueEntry, is_inline: bool) -> bool {
        let (pd, by) = (self.queues[q].pd, self.queues[q].owner());
        let Some(session) = self.streams.sessions.get(entry.session(), pd) else {
            return false;
        };
        let (transport, conn) = match &session.state {
            State::Stream(s) if !s.reset && !s.shut && session.chain.is_none() => {
                (s.transport, s.conn)
            }
            _ => return false,
        };
        // Only the general path passes the sent bytes to an engine.
        let engines = &self.memory.engines;
        if self.stopping
            || engines.is_on((transport, conn, Direction::Send))
            || engines.is_watched(by, Direction::Send)
        {
            return false;
        }
        let send = match is_inline {
            true => entry.inline_send(),
            false => match self.memory.read_small(pd, &entry.transfer()) {
                Some(send) => send,
                None => return false,
            },
        };
        if send.len == 0 || !self.streams.transports[transport].send_now(conn, &send) {
            return false;
        }
        self.streams.is_unflushed = true;
        let bytes = u64::from(send.len);
        if !is_inline {
            self.memory.dma.copied += bytes;
        }
        session.tx_bytes += bytes;
        self.report.counters.tx_bytes += bytes;
        self.complete_next(q, Opcode::Send, entry, bytes);
        true
    }

    /// Receives up to 40 bytes at once that have arrived, into memory that the CPU can write.
    /// `false`: nothing happened.
    #[inline(never)]
    pub(super) fn receive_now(&mut self, q: usize, entry: &WorkQueueEntry) -> bool {
        let queue = &self.queues[q];
        let (pd, by) = (queue.pd, queue.owner());
        let Some(session) = self.streams.sessions.get(entry.session(), pd) else {
            return false;
        };
        let (transport, conn) = match &session.state {
            State::Stream(s) if !s.reset && session.chain.is_none() => (s.transport, s.conn),
            _ => return false,
        };
        let engines = &self.memory.engines;
        if self.stopping
            || queue.scatter.is_some()
            || engines.is_on((transport, conn, Direction::Receive))
            || engines.is_watched(by, Direction::Receive)
        {
            return false;
        }
        let (transport, memory) = (&mut self.streams.transports[transport], &mut self.memory);
        let mut n = 0;
        let received = transport.recv_small(conn, &mut |small| {
            let d = entry.transfer();
            n = u32::from(small.len);
            let fits = n == d.len || (d.flags.contains(Flags::SOME) && n < d.len);
            n != 0 && fits && memory.write_small(pd, &d, small)
        });
        if !received {
            return false;
        }
        session.rx_bytes += u64::from(n);
        self.report.counters.rx_bytes += u64::from(n);
        self.complete_next(q, Opcode::Recv, entry, n.into());
        true
    }

    /// A `RECV`: at once when its bytes have arrived, else posted.
    #[inline(never)]
    pub(super) fn receive(&mut self, q: usize, ticket: u32, entry: &WorkQueueEntry) {
        let d = entry.transfer();
        let (pd, by) = (self.queues[q].pd, self.queues[q].owner());
        let permit = |c: &mut Core| c.take(q, ticket, Opcode::Recv, entry);
        let stream = match self.stopping {
            true => Err((Status::ShuttingDown, 0)),
            false => {
                let engines = &self.memory.engines;
                self.streams.established(pd, d.session, d.flags, engines)
            }
        };
        let stream = match stream {
            Ok(stream) => stream,
            Err((status, detail)) => {
                let permit = permit(self);
                return self.finish(permit, status, 0, detail);
            }
        };
        if d.len == 0 {
            return self.complete_next(q, Opcode::Recv, entry, 0);
        }
        self.show_watcher(by, Direction::Receive, d.session, stream);
        let need = Need::Write;
        let mmu = &mut self.memory.mmu;
        let region = match mmu.check(pd, d.lkey, d.local_va, d.len.into(), need) {
            Ok(region) => region,
            Err(fault) => {
                let permit = permit(self);
                return self.refuse_buffer(permit, fault, d.flags, d.session);
            }
        };
        let buffer = Buffer {
            region,
            va: d.local_va,
            len: d.len,
        };
        let place = self.scatter_room(q, ticket, &buffer);
        let (scatter_to_cqe, buffer) = (place.is_some(), place.unwrap_or(buffer));
        let some = d.flags.contains(Flags::SOME);
        let (t, conn) = stream;
        let transport = &mut self.streams.transports[t];
        let memory = &mut self.memory;
        let received =
            memory.with_datapath(t, |data| transport.recv_now(conn, &buffer, some, data));
        if let Some(n) = received {
            let bytes = u64::from(n);
            self.report.counters.rx_bytes += bytes;
            if let Some(s) = self.streams.sessions.at(slot_of(d.session)) {
                s.rx_bytes += bytes;
            }
            if scatter_to_cqe {
                let permit = permit(self);
                return self.finish_scattered(permit, d.local_va, Status::Ok, bytes, 0);
            }
            return self.complete_next(q, Opcode::Recv, entry, bytes);
        }
        let permit = permit(self);
        let token = self.outstanding.insert(Operation {
            permit,
            scatter_to_cqe,
            opcode: Opcode::Recv,
            session: slot_of(d.session),
            chain: d.flags.contains(Flags::CHAIN).then_some(d.session),
            conn: Some(stream),
            pins: [self.memory.mmu.hold(region), None],
            va: d.local_va.0,
            timeout_us: self.queues[q].timeout_us(d.timeout_us),
            extra_us: 0,
        });
        let work = RecvWork {
            token,
            by,
            buffer,
            some,
        };
        self.streams.transports[t].post(conn, Work::Receive(work));
    }

    /// Consumes the entry that a queue has shown.
    #[inline]
    fn take(&mut self, q: usize, ticket: u32, opcode: Opcode, entry: &WorkQueueEntry) -> Permit {
        self.queues[q].consume();
        self.report.counters.accepted += 1;
        Permit::new(q as u32, ticket, opcode.code(), entry.wr_id())
    }

    /// Retires an operation whose buffer may not be used.
    #[cold]
    fn refuse_buffer(&mut self, permit: Permit, fault: Fault, flags: Flags, id: SessionId) {
        let (status, detail) = fault.status();
        if flags.contains(Flags::CHAIN) {
            self.streams.sessions.end_chain(id, status, detail);
        }
        self.report.fault(self.time.now, id, detail);
        self.finish(permit, status, 0, detail);
    }

    /// Puts the stream of an operation before the engine on its queue, when there is one.
    #[inline]
    fn show_watcher(
        &mut self,
        by: Owner,
        direction: Direction,
        id: SessionId,
        (transport, conn): (usize, ConnId),
    ) {
        if self.memory.engines.is_watched(by, direction) {
            let key = (transport, conn, direction);
            self.memory.engines.show(by, key, id.0);
        }
    }

    /// A `SEND` that cannot leave at once.
    pub(super) fn send(&mut self, permit: Permit, pd: PdId, d: &Descriptor) {
        let engines = &self.memory.engines;
        let stream = match self.streams.established(pd, d.session, d.flags, engines) {
            Ok(_) if self.streams.is_shut(d.session) => {
                if d.flags.contains(Flags::CHAIN) {
                    self.streams
                        .sessions
                        .end_chain(d.session, Status::NotConnected, 0);
                }
                return self.finish(permit, Status::NotConnected, 0, 0);
            }
            Ok(ok) => ok,
            Err((status, detail)) => return self.finish(permit, status, 0, detail),
        };
        if d.len == 0 {
            return self.finish(permit, Status::Ok, 0, 0);
        }
        let slot = slot_of(d.session);
        let by = self.queues[permit.queue as usize].owner();
        self.show_watcher(by, Direction::Send, d.session, stream);
        let (work, payload) = if d.flags.contains(Flags::INLINE) {
            let payload = Payload::Inline {
                bytes: d.inline,
                len: d.inline_len,
            };
            (self.operation(permit, d, slot), payload)
        } else {
            let pinned = self
                .memory
                .mmu
                .pin(pd, d.lkey, d.local_va, d.len.into(), Need::Read);
            let pin = match pinned {
                Ok(pin) => pin,
                Err(fault) => return self.refuse_buffer(permit, fault, d.flags, d.session),
            };
            let buffer = Buffer {
                region: pin.region,
                va: d.local_va,
                len: d.len,
            };
            let mut work = self.operation(permit, d, slot);
            work.pins[0] = Some(pin);
            (work, Payload::Memory(buffer))
        };
        let token = self.outstanding.insert(Operation {
            conn: Some(stream),
            ..work
        });
        let work = SendWork {
            token,
            by,
            payload,
            push: d.flags.contains(Flags::PUSH),
        };
        self.streams.transports[stream.0].post(stream.1, Work::Send(work));
    }

    /// Where a receive arrives instead of in `buffer`, when that is better.
    #[inline]
    fn scatter_room(&self, q: usize, ticket: u32, buffer: &Buffer) -> Option<Buffer> {
        let slots = self.queues[q].scatter.as_ref()?;
        let fits = buffer.len as usize <= SCATTER_MAX;
        (fits && !self.memory.dma.is_immediate() && !self.memory.mmu.is_flat(buffer.region))
            .then(|| slots.buffer(ticket, buffer.len))
    }

    /// Retires a receive that arrived in NIC memory and belongs at `va`.
    pub(super) fn finish_scattered(
        &mut self,
        permit: Permit,
        va: GpuVa,
        status: Status,
        bytes: u64,
        detail: u64,
    ) {
        if status == Status::RegionFreed {
            // Its owner may have freed the memory, so nothing is stored there any more.
            return self.finish(permit, status, 0, detail);
        }
        let queue = &mut self.queues[permit.queue as usize];
        let Some(slots) = queue.scatter.filter(|_| bytes != 0) else {
            return self.finish(permit, status, bytes, detail);
        };
        let ticket = permit.ticket;
        let mut payload = [0; SCATTER_MAX];
        let n = (bytes as usize).min(SCATTER_MAX);
        self.memory
            .dma
            .nic_memory
            .read(slots.at(ticket), &mut payload[..n]);
        let words: [u64; SCATTER_MAX / 8] = std::array::from_fn(|i| {
            let mut word = [0; 8];
            word.copy_from_slice(&payload[i * 8..][..8]);
            u64::from_le_bytes(word)
        });
        debug_assert_eq!(permit.opcode, Opcode::Recv.code());
        let completion = permit.retire(status, bytes, detail);
        let memory = &*self.memory.dma.memory;
        queue.complete_scattered(ticket, &completion, (va, words), memory);
        self.report.counters.retired += 1;
    }

    /// A one-sided operation that has been checked.
    #[inline]
    pub(super) fn begin_one_sided(&mut self, permit: Permit, d: &Descriptor, mut ready: Ready) {
        let slot = match d.flags.contains(Flags::SYMMETRIC) {
            true => u32::MAX,
            false => slot_of(d.session),
        };
        let mut work = self.operation(permit, d, slot);
        work.pins = std::mem::take(&mut ready.pins);
        match ready.way {
            Way::Own(sides, ending) => {
                let token = self.outstanding.insert(work);
                self.is_due = true;
                self.copies.begin(token, sides, 0, ending);
            }
            Way::Remote(conn, remote) => {
                work.conn = Some(conn);
                let token = self.outstanding.insert(work);
                self.post_remote(conn, token, &remote);
            }
            Way::Dialled(comm, rank, remote) => {
                let token = self.outstanding.insert(work);
                // The others are behind it; the link may be there by now.
                if !self.windows.dialled.has(comm, rank) {
                    self.collectives.want(comm, rank);
                }
                self.windows.dialled.put(comm, rank, token, remote);
                self.is_due = true;
            }
        }
    }

    #[inline]
    fn post_remote(&mut self, (t, conn): Conn, token: WorkToken, remote: &Remote) {
        let transport = &mut self.streams.transports[t];
        transport.post(conn, Work::Remote(remote.work(token)));
        // A transport that does not notice work by itself.
        self.is_due |= transport.is_quiet();
    }

    /// Posts the operations whose rank has been dialled, and ends those whose rank is gone.
    #[cold]
    pub(super) fn post_dialled(&mut self) {
        for (token, way) in self.windows.dialled.take(&self.collectives) {
            match way {
                Ok((conn, remote)) => {
                    if let Some(work) = self.outstanding.get_mut(token) {
                        work.conn = Some(conn);
                        self.post_remote(conn, token, &remote);
                    }
                }
                Err((status, detail)) => self.retire(token, status, 0, detail),
            }
        }
    }
}
