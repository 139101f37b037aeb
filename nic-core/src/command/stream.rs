//! `SEND` and `RECV`.

use ringbell_gtlb::{Fault, Need};
use ringbell_nic_abi::completion::SCATTER_MAX;
use ringbell_nic_abi::{
    Completion, Descriptor, Flags, GpuVa, InlineSend, Opcode, PdId, SessionId, Status, Transfer,
    WorkQueueEntry, INLINE_MAX,
};

use super::Core;
use crate::engine::{Direction, EngineFailed};
use crate::outstanding::Operation;
use crate::permit::Permit;
use crate::session::{State, Stream};
use crate::transport::{Payload, RecvWork, SendWork};
use crate::types::{Buffer, ConnId, Owner};

/// Why a stream operation cannot be posted.
type Refusal = (Status, u64);

impl Core {
    /// The stream of a descriptor's session.
    #[inline]
    fn stream(&mut self, pd: PdId, id: SessionId, flags: Flags) -> Result<(u32, Stream), Refusal> {
        let Some(session) = self.sessions.get(id, pd) else {
            return Err((Status::BadSession, id.0.into()));
        };
        let chained = flags.contains(Flags::CHAIN);
        if let (true, Some(failed)) = (chained, session.chain) {
            return Err(failed);
        }
        let refusal = match &session.state {
            State::Stream(s) if s.reset => {
                let failed = self.memory.dma.engines.failure_on(s.transport, s.conn);
                failed.map_or((Status::ConnectionReset, 0), EngineFailed::status)
            }
            State::Stream(s) => return Ok((Core::slot(id), *s)),
            State::Broken => (Status::NotConnected, 0),
            _ => (Status::BadState, id.0.into()),
        };
        if chained {
            session.chain = Some(refusal);
        }
        Err(refusal)
    }

    /// A chained operation has failed: those behind it fail with its status.
    #[cold]
    pub(super) fn end_chain(&mut self, id: SessionId, status: Status, detail: u64) {
        let slot = Core::slot(id);
        // Its session may be closed by now, and its slot another's.
        if self.sessions.id(slot) == id {
            if let Some(session) = self.sessions.at(slot) {
                session.chain.get_or_insert((status, detail));
            }
        }
    }

    /// As [`end_chain`](Core::end_chain) for an operation whose buffer may not be used, which then retires.
    #[cold]
    fn refuse_buffer(&mut self, permit: Permit, fault: Fault, flags: Flags, id: SessionId) {
        if flags.contains(Flags::CHAIN) {
            let (status, detail) = fault.status();
            self.end_chain(id, status, detail);
        }
        self.refuse_pin(permit, fault, Core::slot(id));
    }

    /// Sends an inline payload at once, without operation record, deadline or event: the most frequent
    /// small message. `false`: nothing happened, take the entry the general path.
    #[inline]
    pub(super) fn send_inline(
        &mut self,
        q: usize,
        ticket: u32,
        entry: &WorkQueueEntry,
        send: &InlineSend,
    ) -> bool {
        if self.stopping || send.len == 0 {
            return false;
        }
        let Some((transport, conn)) = self.open_stream(q, send.session) else {
            return false;
        };
        if !self.streams.transports[transport].send_now(conn, send) {
            return false;
        }
        self.sent_now(q, ticket, entry, send);
        true
    }

    /// As [`send_inline`](Core::send_inline), for as few bytes in memory that the CPU can read.
    #[inline]
    pub(super) fn send_small(
        &mut self,
        q: usize,
        ticket: u32,
        entry: &WorkQueueEntry,
        d: &Transfer,
    ) -> bool {
        let len = d.len;
        if self.stopping || len == 0 || len as usize > INLINE_MAX {
            return false;
        }
        let pd = self.queues[q].pd;
        let Some((transport, conn)) = self.open_stream(q, d.session) else {
            return false;
        };
        // The general path reports any fault of the range.
        let pinned = self
            .memory
            .mmu
            .pin(pd, d.lkey, d.local_va, len.into(), Need::Read);
        let Ok(pin) = pinned else {
            return false;
        };
        let buffer = Buffer {
            region: pin.region,
            va: d.local_va,
            len,
        };
        let mut dma = self.memory.dma();
        let words = dma.read_small(&buffer);
        self.memory.mmu.unpin(pin);
        let Some(words) = words else {
            return false;
        };
        let send = InlineSend {
            session: d.session,
            len: len as u8,
            words,
        };
        if !self.streams.transports[transport].send_now(conn, &send) {
            return false;
        }
        self.memory.dma.copied += u64::from(len);
        self.sent_now(q, ticket, entry, &send);
        true
    }

    /// The transport and connection of a session that may send, when no engine is on its path or its queue:
    /// only the general path passes the sent bytes to an engine.
    #[inline]
    fn open_stream(&mut self, q: usize, id: SessionId) -> Option<(usize, ConnId)> {
        let pd = self.queues[q].pd;
        let session = self.sessions.get(id, pd)?;
        let stream = match &session.state {
            State::Stream(s) if !s.reset && !s.shut && session.chain.is_none() => {
                (s.transport, s.conn)
            }
            _ => return None,
        };
        let key = (stream.0, stream.1, Direction::Send);
        let engines = &self.memory.dma.engines;
        let seen = engines.is_on(key) || engines.is_watched(self.queues[q].mover(), key.2);
        (!seen).then_some(stream)
    }

    /// Puts the stream of an operation before the engine on its queue, when there is one.
    #[inline]
    fn show_watcher(&mut self, by: Owner, direction: Direction, id: SessionId, s: Stream) {
        if self.memory.dma.engines.is_watched(by, direction) {
            let key = (s.transport, s.conn, direction);
            self.memory.dma.engines.show(by, key, id.0);
        }
    }

    /// A message has left: its entry is consumed and retires.
    #[inline]
    fn sent_now(&mut self, q: usize, ticket: u32, entry: &WorkQueueEntry, send: &InlineSend) {
        let bytes = u64::from(send.len);
        if let Some(session) = self.sessions.at(Core::slot(send.session)) {
            session.tx_bytes += bytes;
        }
        self.report.counters.tx_bytes += bytes;
        self.report.counters.accepted += 1;
        self.queues[q].consume();
        let permit = Permit::new(q as u32, ticket, Opcode::Send.code(), entry.wr_id());
        self.finish(permit, Status::Ok, bytes, 0);
    }

    pub(super) fn send(&mut self, permit: Permit, pd: PdId, d: &Descriptor) {
        let (slot, stream) = match self.stream(pd, d.session, d.flags) {
            Ok((_, s)) if s.shut => {
                if d.flags.contains(Flags::CHAIN) {
                    self.end_chain(d.session, Status::NotConnected, 0);
                }
                return self.finish(permit, Status::NotConnected, 0, 0);
            }
            Ok(ok) => ok,
            Err((status, detail)) => return self.finish(permit, status, 0, detail),
        };
        if d.len == 0 {
            return self.finish(permit, Status::Ok, 0, 0);
        }
        let by = self.queues[permit.queue as usize].mover();
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
            conn: Some((stream.transport, stream.conn)),
            ..work
        });
        self.streams.transports[stream.transport].post_send(
            stream.conn,
            SendWork {
                token,
                by,
                payload,
                push: d.flags.contains(Flags::PUSH),
            },
        );
    }

    /// A `RECV` that was just consumed. Its permit is made where it is used, so that the most frequent
    /// operation does not move it.
    #[inline]
    pub(super) fn recv(&mut self, queue: u32, ticket: u32, wr_id: u64, d: &Transfer) {
        let permit = || Permit::new(queue, ticket, Opcode::Recv.code(), wr_id);
        if self.stopping {
            return self.finish(permit(), Status::ShuttingDown, 0, 0);
        }
        let q = &self.queues[queue as usize];
        let (pd, default_timeout_us, by) = (q.pd, q.default_timeout_us, q.mover());
        let (slot, stream) = match self.stream(pd, d.session, d.flags) {
            Ok(ok) => ok,
            Err((status, detail)) => return self.finish(permit(), status, 0, detail),
        };
        if d.len == 0 {
            return self.finish(permit(), Status::Ok, 0, 0);
        }
        self.show_watcher(by, Direction::Receive, d.session, stream);
        let pinned = self
            .memory
            .mmu
            .pin(pd, d.lkey, d.local_va, d.len.into(), Need::Write);
        let pin = match pinned {
            Ok(pin) => pin,
            Err(fault) => return self.refuse_buffer(permit(), fault, d.flags, d.session),
        };
        let buffer = Buffer {
            region: pin.region,
            va: d.local_va,
            len: d.len,
        };
        let place = self.in_line(queue, ticket, &buffer);
        let (in_line, buffer) = (place.is_some(), place.unwrap_or(buffer));
        let some = d.flags.contains(Flags::SOME);
        self.memory.dma.transport_index = stream.transport;
        let mut dma = self.memory.dma();
        let transport = &mut self.streams.transports[stream.transport];
        if let Some(n) = transport.recv_now(stream.conn, &buffer, some, &mut dma) {
            self.memory.mmu.unpin(pin);
            self.report.counters.rx_bytes += u64::from(n);
            if let Some(s) = self.sessions.at(slot) {
                s.rx_bytes += u64::from(n);
            }
            if in_line {
                return self.finish_in_line(permit(), d.local_va, Status::Ok, n.into(), 0);
            }
            return self.finish(permit(), Status::Ok, n.into(), 0);
        }
        let token = self.outstanding.insert(Operation {
            permit: permit(),
            in_line,
            opcode: Opcode::Recv,
            session: slot,
            chain: d.flags.contains(Flags::CHAIN).then_some(d.session),
            conn: Some((stream.transport, stream.conn)),
            pins: [Some(pin), None],
            va: d.local_va.0,
            timeout_us: match d.timeout_us {
                0 => default_timeout_us,
                us => us,
            },
            extra_us: 0,
        });
        self.streams.transports[stream.transport].post_recv(
            stream.conn,
            RecvWork {
                token,
                by,
                buffer,
                some,
            },
        );
    }

    /// Where a receive arrives instead of in `buffer`, when that is better.
    pub(super) fn in_line(&self, queue: u32, ticket: u32, buffer: &Buffer) -> Option<Buffer> {
        let slots = self.queues[queue as usize].scatter.as_ref()?;
        let fits = buffer.len as usize <= SCATTER_MAX;
        (fits && !self.memory.dma.is_mapped() && !self.memory.mmu.is_flat(buffer.region))
            .then(|| slots.buffer(ticket, buffer.len))
    }

    /// Retires a receive that arrived in NIC memory and belongs at `va`.
    pub(super) fn finish_in_line(
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
        let (queue, ticket) = (permit.queue as usize, permit.ticket);
        let Some(slots) = self.queues[queue].scatter.filter(|_| bytes != 0) else {
            return self.finish(permit, status, bytes, detail);
        };
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
        let completion: Completion = permit.retire(status, bytes, detail);
        let memory = self.memory.dma.memory.clone();
        self.queues[queue].complete_in_line(ticket, &completion, (va, words), &*memory);
        self.report.counters.retired += 1;
        debug_assert_eq!(completion.opcode, Opcode::Recv.code());
    }
}
