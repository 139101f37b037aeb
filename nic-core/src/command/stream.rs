//! `SEND` and `RECV`.

use ringbell_gtlb::Need;
use ringbell_nic_abi::{
    Descriptor, Flags, InlineSend, Opcode, PdId, Receive, SessionId, Status, WorkQueueEntry,
};

use super::Core;
use crate::dma::Dma;
use crate::engine::Direction;
use crate::permit::Permit;
use crate::session::{State, Stream};
use crate::transport::{Buffer, Payload, RecvWork, SendWork};
use crate::works::Work;

/// Why a stream operation cannot be posted.
type Refusal = (Status, u64);

impl Core {
    /// The stream of a descriptor's session.
    #[inline]
    fn stream(&mut self, pd: PdId, id: SessionId) -> Result<(u32, Stream), Refusal> {
        let Some(session) = self.sessions.get(id, pd) else {
            return Err((Status::BadSession, id.0.into()));
        };
        match &session.state {
            State::Stream(s) if s.reset => Err((Status::ConnectionReset, 0)),
            State::Stream(s) => Ok((Core::slot(id), *s)),
            State::Broken => Err((Status::NotConnected, 0)),
            _ => Err((Status::BadState, id.0.into())),
        }
    }

    /// Sends an inline payload at once, which needs no work, no deadline and no event: the commonest
    /// small message. `false`: nothing happened, take the entry the long way.
    #[inline]
    pub(super) fn send_inline(
        &mut self,
        q: usize,
        ticket: u32,
        entry: &WorkQueueEntry,
        send: &InlineSend,
    ) -> bool {
        let queue = &self.queues[q];
        if self.stopping || send.len == 0 {
            return false;
        }
        let Some(session) = self.sessions.get(send.session, queue.pd) else {
            return false;
        };
        let stream = match &session.state {
            State::Stream(s) if !s.reset && !s.shut => s,
            _ => return false,
        };
        // An engine must see it: only the long way shows it one.
        let key = (stream.transport, stream.conn, Direction::Send);
        if self.dma.engines.is_on(key) {
            return false;
        }
        if !self.transports[stream.transport].send_now(stream.conn, send) {
            return false;
        }
        let bytes = u64::from(send.len);
        session.tx_bytes += bytes;
        self.counters.tx_bytes += bytes;
        self.counters.accepted += 1;
        self.queues[q].consume();
        let permit = Permit::new(q as u32, ticket, Opcode::Send.code(), entry.wr_id());
        self.finish(permit, Status::Ok, bytes, 0);
        true
    }

    pub(super) fn send(&mut self, permit: Permit, pd: PdId, d: &Descriptor) {
        let (slot, stream) = match self.stream(pd, d.session) {
            Ok((_, s)) if s.shut => return self.finish(permit, Status::NotConnected, 0, 0),
            Ok(ok) => ok,
            Err((status, detail)) => return self.finish(permit, status, 0, detail),
        };
        if d.len == 0 {
            return self.finish(permit, Status::Ok, 0, 0);
        }
        let (work, payload) = if d.flags.contains(Flags::INLINE) {
            let payload = Payload::Inline {
                bytes: d.inline,
                len: d.inline_len,
            };
            (self.work(permit, d, slot), payload)
        } else {
            let range = (d.local_va, d.len);
            let Some((permit, pin, buffer)) =
                self.pin(permit, pd, d.lkey.0, range, Need::Read, slot)
            else {
                return;
            };
            let mut work = self.work(permit, d, slot);
            work.pins[0] = Some(pin);
            (work, Payload::Memory(buffer))
        };
        let token = self.works.insert(Work {
            conn: Some((stream.transport, stream.conn)),
            ..work
        });
        self.transports[stream.transport].post_send(
            stream.conn,
            SendWork {
                token,
                payload,
                push: d.flags.contains(Flags::PUSH),
            },
        );
    }

    /// A `RECV` that was just consumed. Its permit is minted where it is used, so that the commonest
    /// operation does not move it about.
    #[inline]
    pub(super) fn recv(&mut self, queue: u32, ticket: u32, wr_id: u64, d: &Receive) {
        let permit = || Permit::new(queue, ticket, Opcode::Recv.code(), wr_id);
        if self.stopping {
            return self.finish(permit(), Status::ShuttingDown, 0, 0);
        }
        let q = &self.queues[queue as usize];
        let (pd, default_timeout_us) = (q.pd, q.default_timeout_us);
        let (slot, stream) = match self.stream(pd, d.session) {
            Ok(ok) => ok,
            Err((status, detail)) => return self.finish(permit(), status, 0, detail),
        };
        if d.len == 0 {
            return self.finish(permit(), Status::Ok, 0, 0);
        }
        let pinned = self
            .mmu
            .pin(pd, d.lkey, d.local_va, d.len.into(), Need::Write);
        let pin = match pinned {
            Ok(pin) => pin,
            Err(fault) => return self.refuse_pin(permit(), fault, slot),
        };
        let buffer = Buffer {
            region: pin.region,
            va: d.local_va,
            len: d.len,
        };
        let some = d.flags.contains(Flags::SOME);
        self.dma.carrier = stream.transport;
        let mut dma = Dma {
            mmu: &mut self.mmu,
            state: &mut self.dma,
        };
        let transport = &mut self.transports[stream.transport];
        if let Some(n) = transport.recv_now(stream.conn, &buffer, some, &mut dma) {
            self.mmu.unpin(pin);
            self.counters.rx_bytes += u64::from(n);
            if let Some(s) = self.sessions.at(slot) {
                s.rx_bytes += u64::from(n);
            }
            return self.finish(permit(), Status::Ok, n.into(), 0);
        }
        let token = self.works.insert(Work {
            permit: permit(),
            opcode: Opcode::Recv,
            session: slot,
            conn: Some((stream.transport, stream.conn)),
            pins: [Some(pin), None],
            va: d.local_va.0,
            timeout_us: match d.timeout_us {
                0 => default_timeout_us,
                us => us,
            },
        });
        self.transports[stream.transport].post_recv(
            stream.conn,
            RecvWork {
                token,
                buffer,
                some,
            },
        );
    }
}
