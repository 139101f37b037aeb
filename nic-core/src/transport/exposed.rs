//! Receives that the peer of a connection fills by keys, for the protocols that can write to
//! memory.
//!
//! A key is drawn at random and serves one message, whose bytes come in order. A receive that was
//! cancelled is not written any more: what still comes for it is dropped, because the peer could
//! not know. Any other access is [`Wrong`], and ends the connection.

use std::collections::VecDeque;

use ringbell_nic_abi::Status;

use super::{RecvWork, TransportEvent};
use crate::dma::DmaAccess;
use crate::types::{Buffer, ConnId, WorkToken};

/// Receives that were cancelled, and that the peer may still write.
const CANCELLED_MAX: usize = 4096;

/// An access that a correct peer does not make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wrong {
    /// No receive has that key.
    Key,
    /// Those are not the next bytes of the receive, or it lacks some.
    Bytes,
}

/// A receive that the peer fills.
#[derive(Debug)]
pub(super) struct Receive {
    pub(super) key: u32,
    len: u32,
    /// Bytes that have come.
    pub(super) done: u32,
    /// `None`: it was cancelled, or has failed.
    work: Option<RecvWork>,
    /// What lies in its memory may still be sent.
    in_use: bool,
}

impl Receive {
    /// Its memory; `None` when it is not written any more.
    pub(super) fn buffer(&self) -> Option<Buffer> {
        self.work.map(|w| w.buffer)
    }

    /// Its next bytes are in its memory, or dropped.
    pub(super) fn came(&mut self, len: u32) {
        self.done += len;
    }

    /// Its end, with the bytes that it has; none where it was cancelled.
    fn ended(&self, conn: ConnId, (status, detail): (Status, u64)) -> Option<TransportEvent> {
        let token = self.work?.token;
        Some(TransportEvent::RecvDone {
            conn,
            token,
            status,
            bytes: self.done.into(),
            detail,
        })
    }
}

/// The receives of a connection, oldest first.
#[derive(Debug, Default)]
pub(super) struct Exposed {
    all: VecDeque<Receive>,
}

impl Exposed {
    /// Gives back memory for more receives than there are.
    pub(super) fn shrink(&mut self) {
        self.all.shrink_to_fit();
    }

    /// Adds a receive. Its key, which differs from those of others in the bits of `named`.
    pub(super) fn open(
        &mut self,
        work: RecvWork,
        in_use: bool,
        named: u32,
        mut draw: impl FnMut() -> u32,
    ) -> u32 {
        if self.all.len() >= CANCELLED_MAX {
            if let Some(i) = self.all.iter().position(|r| r.work.is_none()) {
                self.all.remove(i);
            }
        }
        let key = loop {
            let key = draw();
            let is_taken = self.all.iter().any(|r| r.key & named == key & named);
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

    /// Cancels a receive: its memory is not touched again. Its key, and the bytes that it has.
    pub(super) fn cancel(&mut self, token: WorkToken) -> Option<(u32, u64)> {
        let mut all = self.all.iter_mut();
        let r = all.find(|r| r.work.is_some_and(|w| w.token == token))?;
        r.work = None;
        Some((r.key, r.done.into()))
    }

    /// Ends all of them.
    pub(super) fn fail_all(
        &mut self,
        conn: ConnId,
        status: (Status, u64),
        events: &mut VecDeque<TransportEvent>,
    ) {
        events.extend(self.all.drain(..).filter_map(|r| r.ended(conn, status)));
    }

    /// The receive of an access, which must continue where the last one has ended.
    ///
    /// # Errors
    /// [`Wrong`].
    pub(super) fn find(&mut self, key: u32, at: u64, len: u32) -> Result<&mut Receive, Wrong> {
        let mut all = self.all.iter_mut();
        let r = all.find(|r| r.key == key).ok_or(Wrong::Key)?;
        let fits = at == u64::from(r.done) && len <= r.len - r.done;
        fits.then_some(r).ok_or(Wrong::Bytes)
    }

    /// Writes the next bytes of a receive, at most 64 KiB. Memory that is gone ends it.
    ///
    /// # Errors
    /// As [`Exposed::find`].
    pub(super) fn write(
        &mut self,
        conn: ConnId,
        (key, at): (u32, u64),
        bytes: &[u8],
        dma: &mut dyn DmaAccess,
        events: &mut VecDeque<TransportEvent>,
    ) -> Result<(), Wrong> {
        let r = self.find(key, at, bytes.len() as u32)?;
        if let Some(buffer) = r.buffer() {
            if let Err(fault) = dma.write(&buffer, at, bytes) {
                events.extend(r.ended(conn, fault.status()));
                r.work = None;
            }
        }
        r.came(bytes.len() as u32);
        Ok(())
    }

    /// The peer says that a receive has all its bytes: the one whose key `is_it`.
    ///
    /// # Errors
    /// There is none, or it lacks bytes.
    pub(super) fn end(
        &mut self,
        conn: ConnId,
        is_it: impl Fn(u32) -> bool,
        events: &mut VecDeque<TransportEvent>,
    ) -> Result<(), Wrong> {
        let i = self.all.iter().position(|r| is_it(r.key));
        let i = i.ok_or(Wrong::Key)?;
        if self.all[i].done < self.all[i].len {
            return Err(Wrong::Bytes);
        }
        let r = self.all.remove(i);
        events.extend(r.and_then(|r| r.ended(conn, (Status::Ok, 0))));
        Ok(())
    }

    /// The receive whose bytes come next, most likely: one that has begun, or the oldest.
    pub(super) fn expected(&self) -> Option<&Receive> {
        let open = || self.all.iter().filter(|r| r.work.is_some());
        let begun = open().find(|r| r.done > 0);
        // The bytes may turn out to be others.
        begun.or_else(|| open().next().filter(|r| !r.in_use))
    }
}
