//! The sending direction of a stream: [`SendPath`], which puts the bytes of posted sends into a
//! transport's room.

use std::collections::VecDeque;

use ringbell_gtlb::Fault;
use ringbell_nic_abi::Status;

use super::{Datapath, Payload, SendWork, TransportEvent};
use crate::dma::{DmaAccess, ReadStatus};
use crate::engine::{Direction, EngineFailed, PIECE};
use crate::types::{ConnId, Owner, WorkToken};

/// How a call that moves bytes of sends ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    /// So many bytes are in the room, or have left by reference. 0: there is no send, or no room.
    Bytes(usize),
    /// Memory has not answered: the same call in a later step.
    Pending,
    /// The first unsent send faulted and has retired. So many bytes of it had left: the stream
    /// lacks the rest.
    Fault(u32),
    /// The engine that changes the stream has failed: the stream ends.
    Failed(EngineFailed),
}

/// A send that was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cancelled {
    /// Bytes that the peer may have taken.
    pub(crate) bytes: u64,
    /// References to its buffer have left.
    pub(crate) referred: bool,
    /// It was the first unsent one.
    pub(crate) was_next: bool,
}

/// A send that has not retired.
#[derive(Debug, Clone, Copy)]
struct Sending {
    work: SendWork,
    /// Bytes that have left memory, or were announced.
    done: u32,
    /// Length of the read that memory has not answered: it is repeated unchanged.
    pending: Option<usize>,
    /// The acknowledgement without which it does not retire: the peer reads its buffer until then.
    until: Option<u64>,
}

/// The posted sends of a stream.
#[derive(Debug)]
pub(crate) struct SendPath {
    conn: ConnId,
    /// Those that have left as a whole, and those that have not.
    sends: VecDeque<Sending>,
    /// How many have.
    left: usize,
    /// The last acknowledgement.
    acknowledged: u64,
}

impl SendPath {
    pub(crate) fn new(conn: ConnId) -> SendPath {
        SendPath {
            conn,
            sends: VecDeque::new(),
            left: 0,
            acknowledged: 0,
        }
    }

    /// Gives back memory for more sends than there are.
    pub(crate) fn shrink(&mut self) {
        self.sends.shrink_to_fit();
    }

    /// Whether all sends have retired.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.sends.is_empty()
    }

    /// The first send that has not left as a whole, and its bytes that have.
    #[inline]
    pub(crate) fn unsent(&self) -> Option<(&SendWork, u32)> {
        let s = self.sends.get(self.left)?;
        Some((&s.work, s.done))
    }

    /// Bytes of the read that memory has not answered; 0: there is none. The next room must not be
    /// smaller.
    #[inline]
    pub(crate) fn pending(&self) -> usize {
        let s = self.sends.get(self.left);
        s.and_then(|s| s.pending).unwrap_or(0)
    }

    /// Queues a send.
    #[inline]
    pub(crate) fn post(&mut self, work: SendWork) {
        self.sends.push_back(Sending {
            work,
            done: 0,
            pending: None,
            until: None,
        });
    }

    /// Removes a send. Its buffer is not read again, but by a peer that has a reference.
    pub(crate) fn cancel(&mut self, token: WorkToken) -> Option<Cancelled> {
        let at = self.sends.iter().position(|s| s.work.token == token)?;
        let s = self.sends.remove(at)?;
        let was_next = at == self.left;
        self.left -= usize::from(at < self.left);
        Some(Cancelled {
            bytes: s.bytes(),
            referred: s.until.is_some(),
            was_next,
        })
    }

    /// Retires all sends with a status and its detail, but those that are acknowledged.
    pub(crate) fn fail_all(
        &mut self,
        (status, detail): (Status, u64),
        events: &mut VecDeque<TransportEvent>,
    ) {
        while !self.sends.is_empty() {
            self.retire(0, (status, detail), events);
        }
    }

    /// The peer has everything that left by reference up to this mark. Returns whether a send has
    /// retired.
    #[inline]
    pub(crate) fn acknowledge(&mut self, mark: u64, events: &mut VecDeque<TransportEvent>) -> bool {
        self.acknowledged = mark;
        let mut any = false;
        while let Some(s) = self.sends.front().filter(|_| self.left > 0) {
            if s.until.is_some_and(|until| until > mark) {
                break;
            }
            self.retire(0, (Status::Ok, 0), events);
            any = true;
        }
        any
    }

    /// Retires a send.
    fn retire(
        &mut self,
        at: usize,
        (status, detail): (Status, u64),
        events: &mut VecDeque<TransportEvent>,
    ) {
        let Some(s) = self.sends.remove(at) else {
            return;
        };
        self.left -= usize::from(at < self.left);
        events.push_back(TransportEvent::SendDone {
            conn: self.conn,
            token: s.work.token,
            status,
            bytes: match status {
                Status::Ok => s.done.into(),
                _ => s.bytes(),
            },
            detail,
        });
    }

    /// The first unsent send cannot be read.
    pub(crate) fn fault(&mut self, fault: Fault, events: &mut VecDeque<TransportEvent>) -> Sent {
        let done = self.unsent().map_or(0, |(_, done)| done);
        self.retire(self.left, fault.status(), events);
        Sent::Fault(done)
    }

    /// The first unsent send has left as a whole.
    #[inline]
    fn leave(&mut self, events: &mut VecDeque<TransportEvent>) {
        self.left += 1;
        self.acknowledge(self.acknowledged, events);
    }

    /// Puts the next bytes into the room: of one send at most, or what an engine has made. An
    /// engine that changes the stream gets its next bytes even if there is no room.
    pub(crate) fn fill(
        &mut self,
        room: &mut [u8],
        data: &mut Datapath<'_>,
        events: &mut VecDeque<TransportEvent>,
    ) -> Sent {
        loop {
            let s = self.sends.get_mut(self.left);
            let by = s.as_ref().map_or(Owner::NIC, |s| s.work.by);
            let (dma, mut stage) = data.stage(self.conn, Direction::Send, by);
            if let Some(stage) = &mut stage {
                // All that an engine has made leaves before anything else does.
                let held = stage.held();
                if !held.is_empty() {
                    let n = held.len().min(room.len());
                    room[..n].copy_from_slice(&held[..n]);
                    stage.release(n);
                    dma.count_copied(n as u64);
                    return Sent::Bytes(n);
                }
                if let Some(failed) = stage.failed() {
                    return Sent::Failed(failed);
                }
            }
            let Some(s) = s else {
                return Sent::Bytes(0);
            };
            let left = (s.work.payload.len() - s.done) as usize;
            if left == 0 {
                self.leave(events);
                continue;
            }
            let changed = stage.as_ref().is_some_and(|s| s.transforms());
            let most = if changed { PIECE } else { room.len() }.min(left);
            // Meanwhile room can only have grown.
            let n = s.pending.map_or(most, |p| p.min(most));
            if n == 0 {
                return Sent::Bytes(0);
            }
            let to = match &mut stage {
                Some(stage) if changed => stage.piece(n),
                _ => &mut room[..n],
            };
            match s.read(to, dma) {
                Ok(ReadStatus::Done) => {}
                Ok(ReadStatus::Pending) => {
                    s.pending = Some(n);
                    return Sent::Pending;
                }
                Err(fault) => return self.fault(fault, events),
            }
            // n <= left <= u32::MAX
            s.done += n as u32;
            s.pending = None;
            match &mut stage {
                Some(stage) if changed => stage.send_piece(n),
                Some(stage) => stage.send(&room[..n]),
                None => {}
            }
            if !changed {
                if n == left {
                    self.leave(events);
                }
                return Sent::Bytes(n);
            }
        }
    }

    /// The next `n` bytes of the first unsent send have left by reference; it retires with the
    /// acknowledgement `until`. `read` reads bytes of the payload for engines, which may only be
    /// taps.
    pub(crate) fn refer(
        &mut self,
        n: u32,
        until: u64,
        data: &mut Datapath<'_>,
        events: &mut VecDeque<TransportEvent>,
        read: impl Fn(&mut dyn DmaAccess, u32, &mut [u8]) -> Result<(), Fault>,
    ) -> Sent {
        let Some(s) = self.sends.get_mut(self.left) else {
            return Sent::Bytes(0);
        };
        let first = s.done;
        s.done += n;
        s.until = Some(until);
        if let (dma, Some(mut stage)) = data.stage(self.conn, Direction::Send, s.work.by) {
            // Copied piece by piece: a kernel that writes the buffer meanwhile cannot change bytes
            // under an engine.
            let mut at = first;
            while at < first + n {
                let len = (first + n - at).min(PIECE as u32);
                if let Err(fault) = read(dma, at, stage.piece(len as usize)) {
                    return self.fault(fault, events);
                }
                stage.send_piece(len as usize);
                at += len;
            }
        }
        if self.sends[self.left].is_whole() {
            self.leave(events);
        }
        Sent::Bytes(n as usize)
    }

    /// After the last send: what the engine has kept for the end still belongs to the stream, and
    /// leaves by [`fill`](SendPath::fill). Returns whether nothing is left to send.
    ///
    /// # Errors
    /// [`EngineFailed`]: the stream ends with an error instead.
    pub(crate) fn finish(&self, data: &mut Datapath<'_>) -> Result<bool, EngineFailed> {
        data.end(self.conn, Direction::Send)?;
        Ok(self.unsent().is_none() && data.held(self.conn, Direction::Send) == 0)
    }
}

impl Sending {
    fn is_whole(&self) -> bool {
        self.done == self.work.payload.len()
    }

    /// Bytes that the peer may have, before an acknowledgement.
    fn bytes(&self) -> u64 {
        self.until.map_or(self.done.into(), |_| 0)
    }

    /// Reads the next bytes.
    fn read(&self, to: &mut [u8], dma: &mut dyn DmaAccess) -> Result<ReadStatus, Fault> {
        match &self.work.payload {
            Payload::Inline { bytes, .. } => {
                let from = self.done as usize;
                to.copy_from_slice(&bytes[from..from + to.len()]);
                Ok(ReadStatus::Done)
            }
            Payload::Memory(buffer) => dma.read(buffer, self.done.into(), to),
        }
    }
}
