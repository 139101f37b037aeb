//! WRITEs of a stream's connection: messages that go straight to receives whose keys the peer has been given.
//!
//! They are requests of the stream's own queue pair, so they arrive in order with its bytes. A WRITE is one packet, so that all packets of
//! a message have the same headers, and the kernel can put them into place. The immediate data of the last one name the receive, which ends.
//!
//! A key is drawn at random and serves one message, whose bytes come in order. A receive that was cancelled is not written any more: what
//! still comes for it is dropped, because the peer could not know. Any other access ends the connection.

use std::collections::VecDeque;

use ringbell_nic_abi::{NakCode, Status};

use super::qp::{Refusal, Remote, Request, Work};
use crate::dma::DmaAccess;
use crate::transport::{RecvWork, Target, TransportEvent};
use crate::types::{Buffer, ConnId, WorkToken};

/// Bits of immediate data below their kind.
pub(super) const KIND_SHIFT: u32 = 28;
/// The kind of those that name a receive, and the bits of its key that do so.
pub(super) const WRITTEN: u32 = 2;
const NAMED: u32 = (1 << KIND_SHIFT) - 1;
/// Receives that were cancelled, and of which the peer may still write.
const CANCELLED_MAX: usize = 4096;

/// Immediate data that end the receive of that key.
fn word(key: u32) -> u32 {
    WRITTEN << KIND_SHIFT | key & NAMED
}

/// Bytes of the stream's positions that leave as WRITEs.
#[derive(Debug)]
struct Range {
    start: u64,
    end: u64,
    /// Where the first goes.
    to: Target,
    /// They are the last of their message.
    is_whole: bool,
}

/// The sending side.
#[derive(Debug, Default)]
pub(super) struct Writes {
    /// Posted sends that are WRITEs.
    targets: VecDeque<(WorkToken, Target)>,
    ranges: VecDeque<Range>,
    /// Bytes that WRITEs have taken: the window does not count them.
    pub(super) framed: u64,
}

impl Writes {
    /// A send was posted that goes there.
    pub(super) fn post(&mut self, token: WorkToken, to: Target) {
        self.targets.push_back((token, to));
    }

    /// A send has ended, or all have.
    pub(super) fn drop_target(&mut self, token: Option<WorkToken>) {
        self.targets
            .retain(|(t, _)| token.is_some_and(|token| *t != token));
    }

    /// Where a send goes, when it is a WRITE.
    pub(super) fn target(&self, token: WorkToken) -> Option<Target> {
        let mut all = self.targets.iter();
        all.find(|(t, _)| *t == token).map(|(_, to)| *to)
    }

    /// The `n` positions up to `end` have the bytes of a send from `done` on. `is_all`: they are its last.
    pub(super) fn add(
        &mut self,
        (token, to): (WorkToken, Target),
        end: u64,
        n: u32,
        done: u32,
        is_all: bool,
    ) {
        if is_all {
            self.drop_target(Some(token));
        }
        let start = end - u64::from(n);
        let is_whole = is_all && to.last;
        if let Some(r) = self.ranges.back_mut() {
            let reaches = u64::from(r.to.offset) + (r.end - r.start);
            let goes_on = reaches == u64::from(to.offset) + u64::from(done);
            if r.end == start && r.to.key == to.key && goes_on {
                (r.end, r.is_whole) = (end, is_whole);
                return;
            }
        }
        let to = Target {
            offset: to.offset + done,
            ..to
        };
        self.ranges.push_back(Range {
            start,
            end,
            to,
            is_whole,
        });
    }

    /// Where the next WRITE begins.
    pub(super) fn next_start(&self) -> Option<u64> {
        self.ranges.front().map(|r| r.start)
    }

    /// The WRITE of the bytes from a position on, if they are one's. `waits`: an acknowledgement will make room for more bytes.
    pub(super) fn next(&mut self, position: u64, mtu: u32, waits: bool) -> Option<Work> {
        let r = self.ranges.front().filter(|r| r.start <= position)?;
        let left = r.end - position;
        let len = left.min(mtu.into()) as u32;
        // The receiver expects full packets.
        let is_short = !r.is_whole && len < mtu;
        if len == 0 || (is_short && waits) {
            return None;
        }
        let at = Remote {
            address: u64::from(r.to.offset) + (position - r.start),
            key: r.to.key,
        };
        let ends = r.is_whole && u64::from(len) == left;
        let word = word(r.to.key);
        if ends {
            self.ranges.pop_front();
        }
        self.framed += u64::from(len);
        Some(Work {
            id: position,
            request: Request::Write(at, ends.then_some(word)),
            len,
        })
    }
}

/// A receive that the peer fills.
#[derive(Debug)]
struct Receive {
    key: u32,
    len: u32,
    done: u32,
    /// `None`: it was cancelled, or has failed.
    work: Option<RecvWork>,
    /// What lies in its memory may still be sent.
    in_use: bool,
}

/// The next bytes of a receive.
pub(super) struct Expected {
    /// What the peer names.
    pub(super) at: Remote,
    /// Their memory.
    pub(super) buffer: Buffer,
    /// The word that ends the receive.
    pub(super) word: u32,
}

/// The receiving side.
#[derive(Debug, Default)]
pub(super) struct Exposed {
    all: VecDeque<Receive>,
}

const NO_ACCESS: Refusal = Refusal::Nak(NakCode::RemoteAccess);

fn ended(conn: ConnId, r: &RecvWork, (status, detail): (Status, u64), done: u32) -> TransportEvent {
    TransportEvent::RecvDone {
        conn,
        token: r.token,
        status,
        bytes: done.into(),
        detail,
    }
}

impl Exposed {
    /// Adds a receive. Its key.
    pub(super) fn open(
        &mut self,
        work: RecvWork,
        in_use: bool,
        mut draw: impl FnMut() -> u32,
    ) -> u32 {
        if self.all.len() >= CANCELLED_MAX {
            if let Some(i) = self.all.iter().position(|r| r.work.is_none()) {
                self.all.remove(i);
            }
        }
        let key = loop {
            let key = draw();
            let is_taken = self.all.iter().any(|r| r.key & NAMED == key & NAMED);
            if key != 0 && !is_taken {
                break key;
            }
        };
        self.all.push_back(Receive {
            key,
            len: work.buffer.len,
            done: 0,
            work: Some(work),
            in_use,
        });
        key
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Cancels a receive: its memory is not touched again. The bytes that it has.
    pub(super) fn cancel(&mut self, token: WorkToken) -> Option<u64> {
        let mut all = self.all.iter_mut();
        let r = all.find(|r| r.work.is_some_and(|w| w.token == token))?;
        r.work = None;
        Some(r.done.into())
    }

    /// Ends all of them.
    pub(super) fn fail_all(
        &mut self,
        conn: ConnId,
        status: (Status, u64),
        events: &mut VecDeque<TransportEvent>,
    ) {
        for r in self.all.drain(..) {
            events.extend(r.work.map(|w| ended(conn, &w, status, r.done)));
        }
    }

    /// The receive of an access, which must continue where the last one has ended.
    fn find(&mut self, at: Remote, len: u32) -> Result<&mut Receive, Refusal> {
        let mut all = self.all.iter_mut();
        let r = all.find(|r| r.key == at.key).ok_or(NO_ACCESS)?;
        let fits = at.address == u64::from(r.done) && len <= r.len - r.done;
        fits.then_some(r).ok_or(NO_ACCESS)
    }

    /// # Errors
    /// [`Refusal`]: no receive has that key, or those are not its next bytes.
    pub(super) fn check(&mut self, at: Remote, len: u32) -> Result<(), Refusal> {
        self.find(at, len).map(|_| ())
    }

    /// Writes the next bytes of a receive.
    ///
    /// # Errors
    /// As [`Exposed::check`].
    pub(super) fn write(
        &mut self,
        conn: ConnId,
        at: Remote,
        bytes: &[u8],
        dma: &mut dyn DmaAccess,
        events: &mut VecDeque<TransportEvent>,
    ) -> Result<(), Refusal> {
        // A packet is no longer than 64 KiB.
        let r = self.find(at, bytes.len() as u32)?;
        if let Some(w) = &r.work {
            if let Err(fault) = dma.write(&w.buffer, r.done.into(), bytes) {
                events.push_back(ended(conn, w, fault.status(), r.done));
                r.work = None;
            }
        }
        r.done += bytes.len() as u32;
        Ok(())
    }

    /// The next bytes of a receive are in its memory.
    ///
    /// # Errors
    /// As [`Exposed::check`]; or it was cancelled meanwhile.
    pub(super) fn placed(&mut self, at: Remote, len: u32) -> Result<(), Refusal> {
        let r = self.find(at, len)?;
        r.work.ok_or(NO_ACCESS)?;
        r.done += len;
        Ok(())
    }

    /// The immediate data of a WRITE: the receive that they name has ended.
    ///
    /// # Errors
    /// [`Refusal`]: there is none, or it lacks bytes.
    pub(super) fn end(
        &mut self,
        conn: ConnId,
        word: u32,
        events: &mut VecDeque<TransportEvent>,
    ) -> Result<(), Refusal> {
        let is_it = |r: &Receive| self::word(r.key) == word && r.done == r.len;
        let i = self.all.iter().position(is_it);
        let r = i.and_then(|i| self.all.remove(i));
        let r = r.ok_or(Refusal::Nak(NakCode::InvalidRequest))?;
        events.extend(r.work.map(|w| ended(conn, &w, (Status::Ok, 0), r.len)));
        Ok(())
    }

    /// The bytes that come next, most likely: of the receive that has begun, or of the oldest.
    pub(super) fn expected(&self) -> Option<Expected> {
        let open = || self.all.iter().filter(|r| r.work.is_some());
        let begun = open().find(|r| r.done > 0);
        // The bytes may turn out to be others.
        let r = begun.or_else(|| open().next().filter(|r| !r.in_use))?;
        let buffer = r.work.as_ref()?.buffer;
        Some(Expected {
            at: Remote {
                address: r.done.into(),
                key: r.key,
            },
            buffer,
            word: word(r.key),
        })
    }
}
