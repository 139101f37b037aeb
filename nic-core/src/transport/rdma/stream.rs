//! A byte stream over a queue pair: SENDs with its bytes, a window, and its end.
//!
//! Each SEND is one packet with the next bytes of the stream. The receiver announces how many bytes
//! it has given to its program by a SEND without bytes whose immediate data count them; the sender
//! sends at most a window beyond that, so that a packet always finds room and RNR is for faults
//! alone. A SEND with the immediate data of the end is a FIN. Bytes that go to receives of their
//! own ([`Writes`]) have positions in the ring of what is not acknowledged, but need no window.
//!
//! ```text
//!  31    28 27                                                            0
//! |  kind  |  bytes taken so far, modulo 2^28; or the receive that was written  |
//! ```
//!
//! **Copies.** A short send is copied into the ring of what is not acknowledged, and retires there;
//! a long one stays in its memory, and retires with its acknowledgement ([`Outgoing`]). On the
//! other side the kernel puts long packets that are expected into the receive that has begun;
//! another byte goes from the packet to the posted receive, or to the ring of what waits for one.

use std::collections::VecDeque;

use ringbell_nic_abi::NakCode;

use super::outgoing::Outgoing;
use super::writes::{self, Writes, KIND_SHIFT, WRITTEN};
use crate::datapath::{Datapath, Filled, ReceivePath};
use crate::engine::EngineFailed;
use crate::memory::lender::Lender;
use crate::transport::exposed::{Exposed, Wrong};
use crate::transport::ring::Ring;
use crate::transport::TransportEvent;
use crate::types::ConnId;
use ringbell_net::port::Batch;
use ringbell_roce::qp::{
    Client, Part, Refusal, Remote, Request, Right, Unavailable, Work, WorkStatus,
};

const COUNT: u32 = (1 << KIND_SHIFT) - 1;
const TAKEN: u32 = 0;
const FIN: u32 = 1;
/// Packets of so many bytes and more are received in place. A place costs the kernel more than the
/// copy of fewer bytes costs us.
pub(super) const PLACED_MIN: u32 = 8 << 10;
/// Largest window: well below what a count can tell apart.
pub(super) const WINDOW_MAX: usize = 1 << 26;

/// How far the end of our direction is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fin {
    Open,
    /// It follows the bytes in the ring.
    Wanted,
    Posted,
    /// The peer has it.
    Done,
}

/// A SEND or a WRITE that is not acknowledged.
#[derive(Debug, Clone, Copy)]
struct Posted {
    /// Position behind its bytes.
    end: u64,
    fin: bool,
}

/// Both directions of a stream. See the module text.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) tx: Outgoing,
    pub(super) rx: Ring,
    pub(super) writes: Writes,
    /// Receives that the peer writes.
    pub(super) exposed: Exposed,
    /// Position behind the last byte of a SEND or WRITE.
    framed: u64,
    posted: VecDeque<Posted>,
    /// Positions that the peer has given to its program, and the bytes that it takes beyond.
    peer_taken: u64,
    peer_window: u64,
    /// The count that was announced last.
    announced: u64,
    pub(super) fin: Fin,
    /// The peer's FIN has arrived.
    pub(super) peer_fin: bool,
    /// A SEND without bytes is due: somebody wants to know whether the peer lives.
    pub(super) probe: bool,
    /// An engine on the path of arriving bytes has failed.
    pub(super) failed: Option<EngineFailed>,
    /// Why the queue pair has failed.
    pub(super) error: Option<WorkStatus>,
}

impl Stream {
    pub(super) fn new(tx: usize, rx: usize, lender: &Lender) -> Stream {
        Stream {
            tx: Outgoing::new(tx, lender),
            rx: Ring::new(rx, lender),
            writes: Writes::default(),
            exposed: Exposed::default(),
            framed: 0,
            posted: VecDeque::new(),
            peer_taken: 0,
            peer_window: 0,
            announced: 0,
            fin: Fin::Open,
            peer_fin: false,
            probe: false,
            failed: None,
            error: None,
        }
    }

    /// Gives back memory for more sends and receives than there are.
    pub(super) fn shrink(&mut self) {
        self.tx.shrink();
        self.writes.shrink();
        self.exposed.shrink();
        self.posted.shrink_to_fit();
    }

    /// The peer takes so many bytes.
    pub(super) fn open(&mut self, peer_window: u32) {
        self.peer_window = peer_window.min(WINDOW_MAX as u32).into();
    }

    /// Bytes that the peer has not acknowledged, and those that no SEND has taken yet.
    pub(super) fn unacknowledged(&self) -> u64 {
        self.tx.end() - self.tx.start()
    }

    /// Bytes for the next SEND, up to the next WRITE, as far as the window admits them.
    fn may_send(&self) -> u64 {
        let limit = self.peer_taken + self.peer_window + self.writes.framed;
        let end = self.writes.next_start().unwrap_or(u64::MAX);
        let end = self.tx.end().min(limit).min(end);
        end.saturating_sub(self.framed)
    }

    /// Whether so much was taken that the peer must hear of it.
    pub(super) fn must_announce(&self) -> bool {
        let window = self.rx.capacity() as u64;
        self.rx.start() - self.announced >= window / 4
    }

    fn announce(&mut self) -> u32 {
        self.announced = self.rx.start();
        TAKEN << KIND_SHIFT | self.announced as u32 & COUNT
    }

    /// The next SEND. `ends`: no byte follows those in the ring, and the end may be sent.
    pub(super) fn next_work(&mut self, mtu: u32, ends: bool) -> Option<Work> {
        let start = self.framed;
        let mut immediate = None;
        let mut len = self.may_send().min(mtu.into()) as u32;
        if self.must_announce() || (self.probe && len == 0) {
            // A long packet keeps the header that the peer expects, so that it can receive it in
            // place.
            len = if len < PLACED_MIN { len } else { 0 };
            immediate = Some(self.announce());
            self.probe = false;
        } else if let Some(work) = self.writes.next(start, mtu, !self.posted.is_empty()) {
            self.frame(work.len, false);
            return Some(work);
        } else if len == 0 {
            if !ends || self.fin != Fin::Wanted || self.framed != self.tx.end() {
                return None;
            }
            self.fin = Fin::Posted;
            immediate = Some(FIN << KIND_SHIFT);
        }
        self.frame(len, immediate == Some(FIN << KIND_SHIFT));
        Some(Work {
            id: start,
            request: Request::Send(immediate),
            len,
        })
    }

    /// The next bytes are those of a packet.
    fn frame(&mut self, len: u32, fin: bool) {
        self.framed += u64::from(len);
        let end = self.framed;
        self.posted.push_back(Posted { end, fin });
    }

    /// Whether bytes that arrive go to posted receives by no way around.
    pub(super) fn takes_directly(&self) -> bool {
        self.rx.is_empty() && !self.peer_fin && self.failed.is_none()
    }

    /// What immediate data say.
    fn told(&mut self, word: u32) -> Result<(), Refusal> {
        match word >> KIND_SHIFT {
            TAKEN => {
                let more = (word & COUNT).wrapping_sub(self.peer_taken as u32) & COUNT;
                // No more than was sent.
                if u64::from(more) > self.framed - self.writes.framed - self.peer_taken {
                    return Err(Refusal::Nak(NakCode::InvalidRequest));
                }
                self.peer_taken += u64::from(more);
                Ok(())
            }
            FIN if !self.peer_fin => {
                self.peer_fin = true;
                Ok(())
            }
            _ => Err(Refusal::Nak(NakCode::InvalidRequest)),
        }
    }
}

/// A stream as the client of its queue pair.
pub(super) struct Ends<'a, 'd> {
    pub(super) conn: ConnId,
    pub(super) stream: &'a mut Stream,
    /// Receives, and what they need; `None` where no bytes can arrive.
    pub(super) recvs: Option<(&'a mut ReceivePath, &'a mut Datapath<'d>)>,
    pub(super) events: &'a mut VecDeque<TransportEvent>,
}

impl Client for Ends<'_, '_> {
    fn gather(&mut self, id: u64, offset: u32, to: &mut [u8]) -> Result<(), Unavailable> {
        match &mut self.recvs {
            _ if to.is_empty() => Ok(()),
            None => Err(Unavailable::Fault),
            Some((_, data)) => self.stream.tx.copy(id + u64::from(offset), to, data.dma),
        }
    }

    #[allow(unsafe_code)] // As the ring.
    fn refer(
        &mut self,
        id: u64,
        offset: u32,
        len: usize,
        batch: &mut Batch,
    ) -> Result<(), Unavailable> {
        let (tx, at) = (&self.stream.tx, id + u64::from(offset));
        match &mut self.recvs {
            _ if len == 0 => Ok(()),
            None => Err(Unavailable::Fault),
            // SAFETY: `Sessions::send` sends the batch and clears it, or makes its bytes own ones,
            // before anything but `append` is called on the connection. `append` adds nothing to
            // the stream and takes nothing from it: a queue pair that makes a packet ends no
            // request with success, and `done` takes bytes for those alone.
            Some((_, data)) => unsafe { tx.append(at, len, batch, data.dma) },
        }
    }

    fn done(&mut self, _: u64, status: WorkStatus) {
        match status {
            WorkStatus::Success(_) => {
                if let Some(p) = self.stream.posted.pop_front() {
                    let acknowledged = p.end - self.stream.tx.start();
                    self.stream.tx.take(acknowledged as usize);
                    if p.fin {
                        self.stream.fin = Fin::Done;
                    }
                }
            }
            status => {
                self.stream.error.get_or_insert(status);
            }
        }
    }

    fn placed(&mut self, len: u32, write: Option<(Remote, Option<u32>)>) -> Result<(), Refusal> {
        if let Some((at, immediate)) = write {
            let r = self.stream.exposed.find(at.key, at.address, len)?;
            // It may have been cancelled meanwhile.
            r.buffer().ok_or(Wrong::Key)?;
            r.came(len);
            return immediate.map_or(Ok(()), |word| self.ended(word));
        }
        let (recvs, _) = self.recvs.as_mut().ok_or(Refusal::NotReady)?;
        recvs.placed(len, self.events);
        self.stream.rx.pass(len as usize);
        Ok(())
    }

    fn receive(&mut self, part: Part<'_>) -> Result<(), Refusal> {
        let stream = &mut *self.stream;
        // A stream's messages are of one packet, and nothing follows its end.
        let late = stream.peer_fin && !part.bytes.is_empty();
        if late || !(part.first && part.last) {
            return Err(Refusal::Nak(NakCode::InvalidRequest));
        }
        if part.bytes.len() > stream.rx.free() {
            return Err(Refusal::NotReady);
        }
        if let Some(word) = part.immediate {
            match word >> KIND_SHIFT {
                WRITTEN if part.bytes.is_empty() => return self.ended(word),
                _ => stream.told(word)?,
            }
        }
        let mut bytes = part.bytes;
        if let Some((recvs, data)) = &mut self.recvs {
            if stream.rx.is_empty() && !recvs.is_empty() && stream.failed.is_none() {
                let (_, end) = recvs.fill(&mut bytes, data, self.events);
                stream.rx.pass(part.bytes.len() - bytes.len());
                if let Filled::Failed(failed) = end {
                    stream.failed = Some(failed);
                }
            }
        }
        stream.rx.push(bytes);
        Ok(())
    }

    fn check(&mut self, at: Remote, len: u32, right: Right) -> Result<(), Refusal> {
        match right {
            Right::Write => {
                self.stream.exposed.find(at.key, at.address, len)?;
                Ok(())
            }
            Right::Read => Err(Refusal::Nak(NakCode::RemoteAccess)),
        }
    }

    fn write(&mut self, at: Remote, bytes: &[u8]) -> Result<(), Refusal> {
        let (_, data) = self.recvs.as_mut().ok_or(Refusal::NotReady)?;
        let exposed = &mut self.stream.exposed;
        let at = (at.key, at.address);
        exposed.write(self.conn, at, bytes, data.dma, self.events)?;
        Ok(())
    }
}

impl Ends<'_, '_> {
    /// Immediate data of a WRITE.
    fn ended(&mut self, word: u32) -> Result<(), Refusal> {
        let is_it = |key| writes::word(key) == word;
        let exposed = &mut self.stream.exposed;
        let ended = exposed.end(self.conn, is_it, self.events);
        ended.map_err(|_| Refusal::Nak(NakCode::InvalidRequest))
    }
}
