//! Messages that go straight to receives whose keys the peer has been given, by Writes.
//!
//! A key is drawn at random and serves one message, whose bytes come in order. A Send with the key
//! follows them and ends the receive. A receive that was cancelled is not written any more: what
//! still comes for it is dropped, because the peer could not know. Any other access ends the
//! connection.

use std::collections::VecDeque;

use ringbell_nic_abi::Status;

use crate::transport::{RecvWork, Target, TransportEvent};
use crate::types::{Buffer, ConnId, WorkToken};
use crate::wire::iwarp::terminate::Reason;

/// Receives that were cancelled, and that the peer may still write.
const CANCELLED_MAX: usize = 4096;

/// Posted sends whose bytes go to receives of the peer, in order.
#[derive(Debug, Default)]
pub(super) struct Targets {
    all: VecDeque<(WorkToken, Target)>,
}

impl Targets {
    pub(super) fn post(&mut self, token: WorkToken, to: Target) {
        self.all.push_back((token, to));
    }

    /// A send has left as a whole, or was taken back.
    pub(super) fn forget(&mut self, token: WorkToken) {
        self.all.retain(|(t, _)| *t != token);
    }

    pub(super) fn clear(&mut self) {
        self.all.clear();
    }

    /// Where a send goes, when it goes to a receive. Sends leave in order.
    pub(super) fn of(&self, token: WorkToken) -> Option<Target> {
        let (first, to) = self.all.front()?;
        (*first == token).then_some(*to)
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
}

/// Receives that the peer fills.
#[derive(Debug, Default)]
pub(super) struct Exposed {
    all: VecDeque<Receive>,
}

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
    pub(super) fn open(&mut self, work: RecvWork, mut draw: impl FnMut() -> u32) -> u32 {
        if self.all.len() >= CANCELLED_MAX {
            if let Some(i) = self.all.iter().position(|r| r.work.is_none()) {
                self.all.remove(i);
            }
        }
        let key = loop {
            let key = draw();
            if key != 0 && self.all.iter().all(|r| r.key != key) {
                break key;
            }
        };
        self.all.push_back(Receive {
            key,
            len: work.buffer.len,
            done: 0,
            work: Some(work),
        });
        key
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
        for r in self.all.drain(..) {
            events.extend(r.work.map(|w| ended(conn, &w, status, r.done)));
        }
    }

    /// Where the next bytes of a receive go; `None` when it was cancelled.
    ///
    /// # Errors
    /// No receive has that key, or those are not its next bytes.
    pub(super) fn place(
        &self,
        key: u32,
        offset: u64,
        len: usize,
    ) -> Result<Option<Buffer>, Reason> {
        let mut all = self.all.iter();
        let r = all.find(|r| r.key == key).ok_or(Reason::Stag)?;
        let fits = offset == u64::from(r.done) && len <= (r.len - r.done) as usize;
        fits.then_some(r.work.map(|w| w.buffer))
            .ok_or(Reason::Bounds)
    }

    /// The next bytes of a receive have come; with a status they are not in its memory.
    pub(super) fn came(
        &mut self,
        conn: ConnId,
        key: u32,
        len: u32,
        failed: Option<(Status, u64)>,
        events: &mut VecDeque<TransportEvent>,
    ) {
        let Some(r) = self.all.iter_mut().find(|r| r.key == key) else {
            return;
        };
        if let Some(status) = failed {
            events.extend(r.work.take().map(|w| ended(conn, &w, status, r.done)));
        }
        r.done += len;
    }

    /// A receive has all its bytes, by the peer's word.
    ///
    /// # Errors
    /// It lacks some, or there is none.
    pub(super) fn end(
        &mut self,
        conn: ConnId,
        key: u32,
        events: &mut VecDeque<TransportEvent>,
    ) -> Result<(), Reason> {
        let i = self.all.iter().position(|r| r.key == key);
        let r = i.and_then(|i| self.all.remove(i)).ok_or(Reason::Stag)?;
        if r.done < r.len {
            self.all.push_back(r);
            return Err(Reason::Bounds);
        }
        events.extend(r.work.map(|w| ended(conn, &w, (Status::Ok, 0), r.len)));
        Ok(())
    }
}
