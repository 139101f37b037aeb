//! `SEND` and `RECV`.

use ringbell_gtlb::Need;
use ringbell_nic_abi::{Descriptor, Flags, PdId, Status};

use super::Core;
use crate::permit::Permit;
use crate::session::{State, Stream};
use crate::transport::{Payload, RecvWork, SendWork};

/// Why a stream operation cannot be posted.
type Refusal = (Status, u64);

impl Core {
    /// The stream of a descriptor's session.
    fn stream(&mut self, pd: PdId, d: &Descriptor) -> Result<(u32, Stream), Refusal> {
        let id = d.session;
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

    pub(super) fn send(&mut self, permit: Permit, pd: PdId, d: &Descriptor) {
        let (slot, stream) = match self.stream(pd, d) {
            Ok((_, s)) if s.shut => return self.finish(permit, Status::NotConnected, 0, 0),
            Ok(ok) => ok,
            Err((status, detail)) => return self.finish(permit, status, 0, detail),
        };
        if d.len == 0 {
            return self.finish(permit, Status::Ok, 0, 0);
        }
        let (work, payload) = if d.flags.contains(Flags::INLINE) {
            // The commonest small message: it needs no work, no deadline and no event.
            let bytes = &d.inline[..usize::from(d.inline_len)];
            if self.transports[stream.transport].send_now(stream.conn, bytes) {
                self.counters.tx_bytes += bytes.len() as u64;
                if let Some(s) = self.sessions.at(slot) {
                    s.tx_bytes += bytes.len() as u64;
                }
                return self.finish(permit, Status::Ok, bytes.len() as u64, 0);
            }
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
        let token = self.works.insert(crate::works::Work {
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

    pub(super) fn recv(&mut self, permit: Permit, pd: PdId, d: &Descriptor) {
        let (slot, stream) = match self.stream(pd, d) {
            Ok(ok) => ok,
            Err((status, detail)) => return self.finish(permit, status, 0, detail),
        };
        if d.len == 0 {
            return self.finish(permit, Status::Ok, 0, 0);
        }
        let range = (d.local_va, d.len);
        let Some((permit, pin, buffer)) = self.pin(permit, pd, d.lkey.0, range, Need::Write, slot)
        else {
            return;
        };
        let mut work = self.work(permit, d, slot);
        work.pins[0] = Some(pin);
        work.conn = Some((stream.transport, stream.conn));
        let token = self.works.insert(work);
        self.transports[stream.transport].post_recv(
            stream.conn,
            RecvWork {
                token,
                buffer,
                some: d.flags.contains(Flags::SOME),
            },
        );
    }
}
