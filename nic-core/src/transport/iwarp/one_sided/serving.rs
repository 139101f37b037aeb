//! What the peer asks of this NIC: checked, executed in order, and answered.

use std::collections::VecDeque;

use ringbell_gtlb::{Fault, Need};
use ringbell_nic_abi::{GpuVa, PdId, Rkey, Status};

use super::limits::{OPEN_MAX, READS};
use crate::dma::{DmaAccess, WordUpdate};
use crate::transport::one_sided::{Access, Granted, Landing, Withheld};
use crate::types::Buffer;
use ringbell_net::wire::iwarp::rdmap::{Atomic, AtomicRequest, ReadRequest};
use ringbell_net::wire::iwarp::terminate::Reason;

/// A put that was announced, and lacks bytes.
#[derive(Debug)]
struct Put {
    access: Access,
    done: u32,
    /// Why its bytes are dropped.
    failed: Option<(Status, u64)>,
}

/// An answer that has not left.
#[derive(Debug)]
pub(in crate::transport::iwarp) enum Answer {
    /// Bytes of a Read; so many have left.
    Read { request: ReadRequest, done: u32 },
    /// The value before of an atomic operation.
    Word { identifier: u32, before: u64 },
    /// How a put has ended, or why another operation was refused.
    Ended(Status, u64),
    /// None yet: the operation updates a word, behind bytes that are not in place.
    Waits(Update),
}

/// An operation on a word.
#[derive(Debug, Clone, Copy)]
pub(in crate::transport::iwarp) enum Update {
    /// The signal of a put.
    Signal(Access),
    Atomic(AtomicRequest),
}

/// A message in the queue of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::transport::iwarp) enum Request {
    Read(ReadRequest),
    /// `None`: none that this NIC executes.
    Atomic(Option<AtomicRequest>),
}

/// See the module text.
#[derive(Debug, Default)]
pub(in crate::transport::iwarp) struct Serving {
    granted: Granted,
    put: Option<Put>,
    pub(in crate::transport::iwarp) answers: VecDeque<Answer>,
    /// Reads and atomic operations among them.
    reads: usize,
    /// The bytes of puts, and how many answers wait for them.
    landing: Landing,
    waiting: usize,
    /// Messages in the queue of requests, and in that of atomic responses.
    requests: u32,
    responses: u32,
    /// A request waits until the session is accepted.
    waits: bool,
}

impl Serving {
    /// Lets the peer name regions of a domain. Returns whether a request has waited for it.
    pub(in crate::transport::iwarp) fn grant(&mut self, pd: PdId) -> bool {
        self.granted.grant(pd);
        std::mem::take(&mut self.waits)
    }

    /// Nothing is done for the peer any more. Returns whether a request has waited.
    pub(in crate::transport::iwarp) fn revoke(&mut self) -> bool {
        self.granted.revoke();
        if self
            .answers
            .iter()
            .any(|a| matches!(a, Answer::Read { .. }))
        {
            // It gets no bytes.
            let _ = self.granted.ask();
            self.answers.retain(|a| !matches!(a, Answer::Read { .. }));
            self.reads = self.answers.iter().filter(|a| a.is_read()).count();
        }
        std::mem::take(&mut self.waits)
    }

    /// Whether the peer has asked for something since.
    pub(in crate::transport::iwarp) fn is_asked(&self) -> bool {
        self.granted.is_asked()
    }

    /// Whether a request must wait: the session was not accepted yet.
    pub(in crate::transport::iwarp) fn must_wait(&mut self) -> bool {
        self.waits = self.granted.ask() == Err(Withheld::NotYet);
        self.waits
    }

    /// Whether the next message of requests has this number, and may come.
    ///
    /// # Errors
    /// It has another, or the peer has more under way than the read limits allow.
    pub(in crate::transport::iwarp) fn expects(&self, message: u32) -> Result<(), Reason> {
        if message != self.requests.wrapping_add(1) {
            return Err(Reason::Message);
        }
        let has_room = self.reads < usize::from(READS) && self.answers.len() < OPEN_MAX;
        match self.put.is_none() && has_room {
            true => Ok(()),
            false => Err(Reason::NoBuffer),
        }
    }

    /// Executes a message of requests, but for the bytes of a Read.
    pub(in crate::transport::iwarp) fn request(
        &mut self,
        request: &Request,
        dma: &mut dyn DmaAccess,
    ) {
        self.requests = self.requests.wrapping_add(1);
        let Ok(domains) = self.granted.ask() else {
            return;
        };
        let answer = match request {
            Request::Read(request) => {
                let read = source(request, 0, request.len, domains, dma).map(|_| Answer::Read {
                    request: *request,
                    done: 0,
                });
                read.map_err(Fault::status)
            }
            Request::Atomic(None) => Err((Status::Unsupported, 0)),
            Request::Atomic(Some(request)) => {
                match self.waiting == 0 && self.landing.is_over(dma) {
                    true => update(request, domains, dma),
                    false => Ok(Answer::Waits(Update::Atomic(*request))),
                }
            }
        };
        let answer = answer.unwrap_or_else(|(status, detail)| Answer::Ended(status, detail));
        self.reads += usize::from(answer.is_read());
        self.push(answer);
    }

    /// The peer announces a put. One without bytes is executed at once.
    ///
    /// # Errors
    /// The one before lacks bytes, or too many operations are under way.
    pub(in crate::transport::iwarp) fn announce(
        &mut self,
        access: Access,
        dma: &mut dyn DmaAccess,
    ) -> Result<(), Reason> {
        if access.need != Need::RemoteWrite {
            return Err(Reason::TooLong);
        }
        if self.put.is_some() || self.answers.len() >= OPEN_MAX {
            return Err(Reason::NoBuffer);
        }
        if access.len == 0 && self.is_granted() {
            let answer = self.signal(access, dma);
            self.push(answer);
            return Ok(());
        }
        let checked = self.granted.ask();
        let checked = checked.map(|domains| access.check(domains, dma).map(|_| ()));
        let failed = match checked {
            Ok(checked) => checked.err(),
            // Its bytes are dropped, and it gets no answer.
            Err(_) if access.len == 0 => return Ok(()),
            Err(_) => Some((Status::NotConnected, 0)),
        };
        let done = 0;
        self.put = Some(Put {
            access,
            done,
            failed,
        });
        Ok(())
    }

    fn is_granted(&mut self) -> bool {
        self.granted.ask().is_ok()
    }

    fn push(&mut self, answer: Answer) {
        self.waiting += usize::from(matches!(answer, Answer::Waits(_)));
        self.answers.push_back(answer);
    }

    /// Sets a signal, or has it wait for the bytes before it.
    fn signal(&mut self, access: Access, dma: &mut dyn DmaAccess) -> Answer {
        let waits = access.signal.is_some() && (self.waiting > 0 || !self.landing.is_over(dma));
        match self.granted.ask() {
            Ok(_) if waits => Answer::Waits(Update::Signal(access)),
            Ok(domains) => {
                let (status, detail) = access
                    .set_signal(domains, dma)
                    .err()
                    .unwrap_or((Status::Ok, 0));
                Answer::Ended(status, detail)
            }
            Err(_) => Answer::Ended(Status::NotConnected, 0),
        }
    }

    /// Whether the oldest answer may leave: what it confirms is in place. An operation that has
    /// waited for that is executed.
    pub(in crate::transport::iwarp) fn may_answer(&mut self, dma: &mut dyn DmaAccess) -> bool {
        if !self.landing.is_over(dma) {
            return false;
        }
        if let Some(Answer::Waits(waits)) = self.answers.front() {
            let waits = *waits;
            self.answered();
            let done = match (waits, self.granted.ask()) {
                (_, Err(_)) => Err((Status::NotConnected, 0)),
                (Update::Signal(access), Ok(domains)) => access
                    .set_signal(domains, dma)
                    .map(|()| Answer::Ended(Status::Ok, 0)),
                (Update::Atomic(request), Ok(domains)) => update(&request, domains, dma),
            };
            let answer = done.unwrap_or_else(|(status, detail)| Answer::Ended(status, detail));
            self.reads += usize::from(answer.is_read());
            self.answers.push_front(answer);
        }
        true
    }

    /// Whether a Write has the next bytes of the put that was announced.
    ///
    /// # Errors
    /// They are more than it lacks, or their message ends elsewhere than the put.
    pub(in crate::transport::iwarp) fn is_put(
        &self,
        (stag, offset): (u32, u64),
        len: usize,
        last: bool,
    ) -> Result<bool, Reason> {
        let Some(put) = &self.put else {
            return Ok(false);
        };
        let at = put.access.va.0.wrapping_add(put.done.into());
        if (stag, offset) != (put.access.rkey.0, at) {
            return Ok(false);
        }
        let left = (put.access.len - put.done) as usize;
        match len <= left && last == (len == left) {
            true => Ok(true),
            false => Err(Reason::Bounds),
        }
    }

    /// Where its next bytes go. `None`: they are dropped.
    pub(in crate::transport::iwarp) fn place(
        &mut self,
        len: u32,
        dma: &mut dyn DmaAccess,
    ) -> Option<Buffer> {
        let put = self.put.as_mut()?;
        if put.failed.is_some() {
            return None;
        }
        let va = GpuVa(put.access.va.0.wrapping_add(put.done.into()));
        let Ok(domains) = self.granted.ask() else {
            put.failed = Some((Status::NotConnected, 0));
            return None;
        };
        // The region may have been freed since the note.
        let memory = dma.remote(domains, put.access.rkey, va, len, Need::RemoteWrite);
        let memory = memory.map_err(|fault| put.failed = Some(fault.status()));
        memory.ok()
    }

    /// They are in their memory, or dropped; `fault` says why they cannot be there. The last of
    /// them end the put.
    pub(in crate::transport::iwarp) fn wrote(
        &mut self,
        len: u32,
        fault: Option<Fault>,
        dma: &mut dyn DmaAccess,
    ) {
        let Some(put) = &mut self.put else {
            return;
        };
        self.landing.wrote();
        put.failed = put.failed.or(fault.map(Fault::status));
        put.done += len;
        if put.done < put.access.len {
            return;
        }
        let (access, failed) = (put.access, put.failed);
        self.put = None;
        if !self.is_granted() {
            return;
        }
        let answer = match failed {
            Some((status, detail)) => Answer::Ended(status, detail),
            None => self.signal(access, dma),
        };
        self.push(answer);
    }

    /// Where the next bytes of the oldest answer lie, a Read of which so many are there.
    ///
    /// # Errors
    /// They may not be read any more.
    pub(in crate::transport::iwarp) fn source(
        &mut self,
        request: &ReadRequest,
        done: u32,
        len: u32,
        dma: &mut dyn DmaAccess,
    ) -> Result<Buffer, (Status, u64)> {
        let domains = self.granted.ask().map_err(|_| (Status::NotConnected, 0))?;
        source(request, done, len, domains, dma).map_err(Fault::status)
    }

    /// Bytes of the oldest answer have left: a Read.
    pub(in crate::transport::iwarp) fn read(&mut self, len: u32) {
        if let Some(Answer::Read { request, done }) = self.answers.front_mut() {
            *done += len;
            if *done == request.len {
                self.answered();
            }
        }
    }

    /// The oldest answer, a Read, cannot go on.
    pub(in crate::transport::iwarp) fn refuse(&mut self, (status, detail): (Status, u64)) {
        self.answered();
        self.answers.push_front(Answer::Ended(status, detail));
    }

    /// The oldest answer has left.
    pub(in crate::transport::iwarp) fn answered(&mut self) {
        let Some(answer) = self.answers.pop_front() else {
            return;
        };
        self.reads -= usize::from(answer.is_read());
        self.waiting -= usize::from(matches!(answer, Answer::Waits(_)));
    }

    /// The number of the next atomic response.
    pub(in crate::transport::iwarp) fn next_response(&mut self) -> u32 {
        self.responses = self.responses.wrapping_add(1);
        self.responses
    }
}

impl Answer {
    /// Whether it is one of a Read or an atomic operation, of which the peer may have few open.
    fn is_read(&self) -> bool {
        !matches!(self, Answer::Ended(..) | Answer::Waits(Update::Signal(_)))
    }
}

/// Memory of a Read.
fn source(
    request: &ReadRequest,
    done: u32,
    len: u32,
    domains: &[PdId],
    dma: &mut dyn DmaAccess,
) -> Result<Buffer, Fault> {
    let va = GpuVa(request.source_offset.wrapping_add(done.into()));
    dma.remote(domains, Rkey(request.source), va, len, Need::RemoteRead)
}

/// Executes an atomic operation.
fn update(
    request: &AtomicRequest,
    domains: &[PdId],
    dma: &mut dyn DmaAccess,
) -> Result<Answer, (Status, u64)> {
    let (key, va) = (Rkey(request.stag), GpuVa(request.offset));
    let word = dma.remote(domains, key, va, 8, Need::RemoteAtomic);
    let word = word.map_err(Fault::status)?;
    let update = match request.operation {
        Atomic::FetchAdd(addend) => WordUpdate::Add(addend),
        Atomic::CompareSwap { compare, swap } => WordUpdate::CompareSwap { compare, swap },
    };
    let before = dma.update_word(&word, update)?;
    Ok(Answer::Word {
        identifier: request.identifier,
        before,
    })
}
