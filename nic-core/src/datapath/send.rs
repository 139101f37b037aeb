//! The sending direction of a stream: [`SendPath`], which puts the bytes of posted sends into a transport's room.

use std::collections::VecDeque;

use ringbell_gtlb::Fault;
use ringbell_nic_abi::Status;

use super::{Datapath, Payload, SendWork, TransportEvent};
use crate::dma::{DmaAccess, ReadStatus};
use crate::engine::{Direction, EngineFailed, PIECE};
use crate::types::{ConnId, Owner, WorkToken};

/// How a call of [`SendPath::fill`] ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    /// So many bytes lie at the beginning of the room. 0: there is no send, or no room.
    Bytes(usize),
    /// Memory has not answered: the same call in a later step.
    Pending,
    /// The first send faulted and has retired. So many bytes of it had left: the stream lacks the rest.
    Fault(u32),
    /// The engine that changes the stream has failed: the stream ends.
    Failed(EngineFailed),
}

/// A send that has not retired.
#[derive(Debug, Clone, Copy)]
struct Sending {
    work: SendWork,
    /// Bytes that have left memory.
    done: u32,
    /// Length of the read that memory has not answered: it is repeated unchanged.
    pending: Option<usize>,
}

/// The posted sends of a stream.
#[derive(Debug)]
pub(crate) struct SendPath {
    conn: ConnId,
    sends: VecDeque<Sending>,
}

impl SendPath {
    pub(crate) fn new(conn: ConnId) -> SendPath {
        SendPath {
            conn,
            sends: VecDeque::new(),
        }
    }

    /// Whether all sends have retired.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.sends.is_empty()
    }

    /// Bytes of the read that memory has not answered; 0: there is none. The next room must not be smaller.
    #[inline]
    pub(crate) fn pending(&self) -> usize {
        self.sends.front().and_then(|s| s.pending).unwrap_or(0)
    }

    /// Queues a send.
    #[inline]
    pub(crate) fn post(&mut self, work: SendWork) {
        self.sends.push_back(Sending {
            work,
            done: 0,
            pending: None,
        });
    }

    /// Removes a send; gives the bytes of it that have left. Its buffer is not read again.
    pub(crate) fn cancel(&mut self, token: WorkToken) -> Option<u64> {
        let at = self.sends.iter().position(|s| s.work.token == token)?;
        self.sends.remove(at).map(|s| s.done.into())
    }

    /// Retires all sends with a status and its detail.
    pub(crate) fn fail_all(
        &mut self,
        (status, detail): (Status, u64),
        events: &mut VecDeque<TransportEvent>,
    ) {
        while !self.sends.is_empty() {
            self.retire((status, detail), events);
        }
    }

    /// Retires the first send.
    fn retire(&mut self, (status, detail): (Status, u64), events: &mut VecDeque<TransportEvent>) {
        if let Some(s) = self.sends.pop_front() {
            events.push_back(TransportEvent::SendDone {
                conn: self.conn,
                token: s.work.token,
                status,
                bytes: s.done.into(),
                detail,
            });
        }
    }

    /// Puts the next bytes into the room: of one send at most, or what an engine has made.
    pub(crate) fn fill(
        &mut self,
        room: &mut [u8],
        data: &mut Datapath<'_>,
        events: &mut VecDeque<TransportEvent>,
    ) -> Sent {
        loop {
            let by = self.sends.front().map_or(Owner::NIC, |s| s.work.by);
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
            let Some(s) = self.sends.front_mut() else {
                return Sent::Bytes(0);
            };
            let left = (s.work.payload.len() - s.done) as usize;
            if left == 0 {
                self.retire((Status::Ok, 0), events);
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
                Err(fault) => {
                    let done = s.done;
                    self.retire(fault.status(), events);
                    return Sent::Fault(done);
                }
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
                    self.retire((Status::Ok, 0), events);
                }
                return Sent::Bytes(n);
            }
        }
    }

    /// After the last send: what the engine has kept for the end still belongs to the stream, and leaves by
    /// [`fill`](SendPath::fill). Returns whether nothing is left to send.
    ///
    /// # Errors
    /// [`EngineFailed`]: the stream ends with an error instead.
    pub(crate) fn finish(&self, data: &mut Datapath<'_>) -> Result<bool, EngineFailed> {
        data.end(self.conn, Direction::Send)?;
        Ok(self.is_empty() && data.held(self.conn, Direction::Send) == 0)
    }
}

impl Sending {
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
