//! Units of a session's stream: bytes in Sends or Writes, the end of the stream, and credit.

use std::collections::VecDeque;

use super::conn::Conn;
use super::outgoing::{Payload, BY_REFERENCE, WRITE_MAX};
use super::session::Fin;
use crate::datapath::{self, Datapath, Sent};
use crate::dma::{each_mapped, ReadStatus};
use crate::engine::{Direction, EngineFailed};
use crate::transport::life::Phase;
use crate::transport::{Target, TransportEvent};
use crate::types::Buffer;
use ringbell_net::wire::iwarp::ddp::{Header, Opcode, Place, UNTAGGED_BYTES};
use ringbell_net::wire::iwarp::mpa::UNIT_MAX;
use ringbell_net::wire::iwarp::session::{Kind, MESSAGE_BYTES};

/// Most bytes of the stream in one Send.
const DATA_MAX: usize = UNIT_MAX - UNTAGGED_BYTES - MESSAGE_BYTES;

/// Bytes of a send that leave from their memory.
#[derive(Debug, Clone, Copy)]
struct Referred {
    buffer: Buffer,
    offset: u32,
    len: u32,
    /// Of all such bytes, those up to these.
    until: u64,
}

impl Conn {
    /// Makes the next unit: bytes, the end of the stream, or credit. `false`: there is none.
    pub(super) fn append_unit(
        &mut self,
        data: &mut Datapath<'_>,
        events: &mut VecDeque<TransportEvent>,
    ) -> Result<bool, EngineFailed> {
        let is_open = matches!(self.life.phase, Phase::Open | Phase::Closing);
        let is_up = is_open || self.life.phase == Phase::Orphan;
        // In turn, so that neither kind keeps the other waiting.
        self.one_sided_next ^= true;
        for one_sided in [self.one_sided_next, !self.one_sided_next] {
            let made = match one_sided {
                true => is_up && self.append_one_sided(data, events),
                false => is_open && self.append_bytes(data, events)?,
            };
            if made {
                return Ok(true);
            }
        }
        let ends = is_open
            && self.session.tx.fin == Fin::Wanted
            && self.session.one_sided.asking.is_idle()
            && self.life.sends.unsent().is_none()
            && !self.life.pending;
        let is_whole = ends && self.life.sends.finish(data)?;
        // What an engine has kept for the end: nothing else would have it sent.
        if ends && !is_whole && self.append_bytes(data, events)? {
            return Ok(true);
        }
        let kind = if is_whole {
            self.session.tx.fin = Fin::Sent;
            Kind::End
        } else if is_up && self.session.rx.must_announce() {
            Kind::Credit
        } else {
            return Ok(false);
        };
        let (header, message) = self.session.next(kind, 0);
        self.add(&header, Payload::Bytes(&message));
        Ok(true)
    }

    /// Makes a unit of the next bytes of the stream.
    fn append_bytes(
        &mut self,
        data: &mut Datapath<'_>,
        events: &mut VecDeque<TransportEvent>,
    ) -> Result<bool, EngineFailed> {
        let conn = self.life.id;
        if self.life.sends.unsent().is_none() && !data.on_path(conn, Direction::Send) {
            return Ok(false);
        }
        if let Some(to) = self.target() {
            return self.append_write(to, data, events);
        }
        let most = self.session.tx.room().min(DATA_MAX);
        if most == 0 {
            return Ok(false);
        }
        if let Some(referred) = self.refer(most, data, events) {
            if let Some(Referred {
                buffer,
                offset,
                len,
                until,
            }) = referred
            {
                self.session.tx.sent += u64::from(len);
                let (header, message) = self.session.next(Kind::Data, 0);
                let payload = Payload::Memory {
                    first: &message,
                    buffer,
                    offset,
                    len,
                    until,
                };
                self.add(&header, payload);
            }
            return Ok(true);
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.resize(DATA_MAX, 0);
        let filled = self.fill(&mut scratch[..most], data, events);
        if let Ok(n @ 1..) = filled {
            self.session.tx.sent += n as u64;
            let (header, message) = self.session.next(Kind::Data, 0);
            self.add(&header, Payload::After(&message, &scratch[..n]));
        }
        self.scratch = scratch;
        Ok(filled? > 0)
    }

    /// Where the next send goes, when it goes to a receive of the peer.
    fn target(&self) -> Option<Target> {
        let (work, _) = self.life.sends.unsent()?;
        self.session.tx.targets.of(work.token)
    }

    /// Makes a unit of the next bytes of a send that goes to a receive of the peer.
    fn append_write(
        &mut self,
        to: Target,
        data: &mut Datapath<'_>,
        events: &mut VecDeque<TransportEvent>,
    ) -> Result<bool, EngineFailed> {
        let Some((token, done, left)) = self.life.sends.unsent().map(|(work, done)| {
            let left = work.payload.len() - done;
            (work.token, done, left)
        }) else {
            return Ok(false);
        };
        let header = |n: u32| Header {
            opcode: Opcode::Write,
            last: to.last && n == left,
            place: Place::Tagged {
                stag: to.key,
                offset: u64::from(to.offset) + u64::from(done),
            },
        };
        let n = match self.refer(WRITE_MAX, data, events) {
            // A fault: the send has ended, and the receive stays.
            Some(None) => {
                self.session.tx.targets.forget(token);
                return Ok(true);
            }
            Some(Some(r)) => {
                let payload = Payload::Memory {
                    first: &[],
                    buffer: r.buffer,
                    offset: r.offset,
                    len: r.len,
                    until: r.until,
                };
                self.add(&header(r.len), payload);
                r.len
            }
            None => {
                let mut scratch = std::mem::take(&mut self.scratch);
                scratch.resize(DATA_MAX, 0);
                let sent = self.life.sends.fill(&mut scratch, data, events);
                if let Sent::Bytes(n @ 1..) = sent {
                    let header = header(n as u32);
                    self.add(&header, Payload::Bytes(&scratch[..n]));
                }
                self.scratch = scratch;
                match sent {
                    Sent::Bytes(n) => n as u32,
                    Sent::Pending => {
                        self.life.pending = true;
                        return Ok(false);
                    }
                    Sent::Fault(_) => {
                        self.session.tx.targets.forget(token);
                        return Ok(true);
                    }
                    Sent::Failed(failed) => return Err(failed),
                }
            }
        };
        if n == left {
            self.session.tx.targets.forget(token);
            if to.last {
                let (header, message) = self.session.next(Kind::Written, to.key);
                self.add(&header, Payload::Bytes(&message));
            }
        }
        Ok(true)
    }

    /// Copies the next bytes, as far as they do not leave from their memory. Returns how many.
    fn fill(
        &mut self,
        room: &mut [u8],
        data: &mut Datapath<'_>,
        events: &mut VecDeque<TransportEvent>,
    ) -> Result<usize, EngineFailed> {
        let mut n = 0;
        let goes_on =
            |c: &Conn, data: &Datapath<'_>| c.reference(data).is_none() && c.target().is_none();
        while n < room.len() && (n == 0 || goes_on(self, data)) {
            match self.life.sends.fill(&mut room[n..], data, events) {
                Sent::Bytes(0) => break,
                Sent::Bytes(more) => n += more,
                Sent::Pending => {
                    self.life.pending = true;
                    break;
                }
                Sent::Fault(_) => {}
                Sent::Failed(failed) => return Err(failed),
            }
        }
        Ok(n)
    }

    /// The next send, where it leaves from its memory: buffer, bytes that have left, and the rest.
    fn reference(&self, data: &Datapath<'_>) -> Option<(Buffer, u32, u32)> {
        let (conn, sends) = (self.life.id, &self.life.sends);
        let (work, done) = sends.unsent()?;
        let datapath::Payload::Memory(buffer) = work.payload else {
            return None;
        };
        let left = buffer.len - done;
        let is_plain = !data.transforms(conn) && data.held(conn, Direction::Send) == 0;
        let is_long = left as usize >= BY_REFERENCE && sends.pending() == 0;
        (is_plain && is_long).then_some((buffer, done, left))
    }

    /// Lets the next bytes leave from their memory, at most so many. `None`: they do not;
    /// `Some(None)`: they cannot be read, and their send has ended.
    fn refer(
        &mut self,
        most: usize,
        data: &mut Datapath<'_>,
        events: &mut VecDeque<TransportEvent>,
    ) -> Option<Option<Referred>> {
        let (buffer, offset, left) = self.reference(data)?;
        // At most a unit.
        let len = left.min(most as u32);
        let mapped = each_mapped(data.dma, &buffer, offset.into(), len as usize, |_, _| {});
        if mapped < len as usize {
            return None;
        }
        let until = self.referred + u64::from(len);
        let sends = &mut self.life.sends;
        let sent = sends.refer(len, until, data, events, |dma, at, to| {
            match dma.read(&buffer, at.into(), to)? {
                // Mapped memory answers at once.
                ReadStatus::Done | ReadStatus::Pending => Ok(()),
            }
        });
        if !matches!(sent, Sent::Bytes(_)) {
            return Some(None);
        }
        self.referred = until;
        Some(Some(Referred {
            buffer,
            offset,
            len,
            until,
        }))
    }
}
