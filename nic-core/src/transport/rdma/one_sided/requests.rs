//! Operations that this NIC has asked of the peer: cut into requests of the queue pair, and put
//! together again.

use std::collections::VecDeque;

use ringbell_nic_abi::{NakCode, Status, INLINE_MAX};

use crate::datapath::Datapath;
use crate::dma::{DmaAccess, ReadStatus};
use crate::transport::one_sided::{Access, Note, NOTE_BYTES};
use crate::transport::rdma::outgoing;
use crate::transport::{Payload, RemoteOp, RemoteWork, TransportEvent};
use crate::types::{ConnId, WorkToken};
use ringbell_net::port::Batch;
use ringbell_roce::qp::{Remote, Request, Unavailable, Work, WorkStatus};

/// Most bytes of a WRITE, so that packets of the smallest MTU do not use up the packet numbers.
const WRITE_MAX: u32 = 1 << 29;
/// Questions that the peer has not answered.
const ASKED_MAX: usize = 8;

/// Low half of a request's id: where its bytes begin in the operation, or what else it is. The high
/// half is the operation's number.
const ANNOUNCE: u32 = u32::MAX;
const WHY: u32 = u32::MAX - 1;
const ANSWER: u32 = u32::MAX - 2;

fn id(number: u32, part: u32) -> u64 {
    u64::from(number) << 32 | u64::from(part)
}

fn parts(id: u64) -> (u32, u32) {
    ((id >> 32) as u32, id as u32)
}

/// An operation.
#[derive(Debug)]
struct Op {
    work: RemoteWork,
    /// `None` once it was cancelled.
    token: Option<WorkToken>,
    announced: bool,
    /// Bytes for which requests were posted, and whether those are all requests.
    posted: u32,
    is_whole: bool,
    /// Requests that have not ended.
    open: u32,
    /// The value before, of an atomic operation.
    before: u64,
    /// Why it fails; no further request is posted.
    failed: Option<(Status, u64)>,
    /// The peer is asked why.
    awaits_reason: bool,
    /// Nothing is left of it.
    is_over: bool,
}

impl Op {
    fn len(&self) -> u32 {
        Access::of(&self.work).len
    }

    /// Keeps all bytes of a short put: they may have to be sent again when it was cancelled,
    /// without an end of the session.
    fn keep(&mut self, all: &[u8]) {
        let mut bytes = [0; INLINE_MAX];
        let is_all = all.len() as u32 == self.len();
        let (RemoteOp::Put { payload, .. }, Some(room)) = (
            &mut self.work.op,
            bytes.get_mut(..all.len()).filter(|_| is_all),
        ) else {
            return;
        };
        room.copy_from_slice(all);
        let len = all.len() as u8;
        *payload = Payload::Inline { bytes, len };
    }

    /// Its next request: part, and what is to be done with how many bytes.
    fn next(&mut self, read_max: u32) -> Option<(u32, Request, u32)> {
        if self.is_whole || self.failed.is_some() {
            return None;
        }
        let len = self.len();
        let at = Remote {
            address: self.work.va.0.wrapping_add(self.posted.into()),
            key: self.work.rkey.0,
        };
        let signals = matches!(
            self.work.op,
            RemoteOp::Put {
                signal: Some(_),
                ..
            }
        );
        if (signals || len == 0) && !std::mem::replace(&mut self.announced, true) {
            self.is_whole = len == 0;
            return Some((ANNOUNCE, Request::Send(None), NOTE_BYTES as u32));
        }
        let part = self.posted;
        let left = len - part;
        let (request, n) = match self.work.op {
            RemoteOp::Put { .. } => {
                let n = left.min(WRITE_MAX);
                // It sets the signal that was announced.
                let immediate = (signals && n == left).then_some(0);
                (Request::Write(at, immediate), n)
            }
            RemoteOp::Get { .. } => (Request::Read(at), left.min(read_max)),
            RemoteOp::FetchAdd { addend } => (Request::FetchAdd(at, addend), left),
            RemoteOp::CompareSwap { compare, swap } => {
                (Request::CompareSwap(at, compare, swap), left)
            }
        };
        self.posted += n;
        self.is_whole = self.posted == len;
        Some((part, request, n))
    }
}

/// See the module text.
#[derive(Debug, Default)]
pub(super) struct Requests {
    ops: VecDeque<Op>,
    /// Number of the first of them.
    first: u32,
    /// Index of the first with requests that are not posted.
    next: usize,
    /// Operations whose refusal is to be explained, and those for which the peer was asked.
    refused: VecDeque<u32>,
    asked: VecDeque<u32>,
    /// Answers to questions of the peer, the number of the first, and how many were posted.
    answers: VecDeque<(Status, u64)>,
    first_answer: u32,
    answers_posted: usize,
    /// Most bytes of a READ.
    pub(super) read_max: u32,
    /// Memory here has not answered.
    pub(super) pending: bool,
    /// Why the queue pair has failed.
    pub(super) error: Option<WorkStatus>,
}

impl Requests {
    /// Gives back memory for more operations than there are.
    pub(super) fn shrink(&mut self) {
        self.ops.shrink_to_fit();
        self.refused.shrink_to_fit();
        self.asked.shrink_to_fit();
        self.answers.shrink_to_fit();
    }

    pub(super) fn is_idle(&self) -> bool {
        self.ops.is_empty()
    }

    pub(super) fn push(&mut self, work: RemoteWork) {
        self.ops.push_back(Op {
            work,
            token: Some(work.token),
            announced: false,
            posted: 0,
            is_whole: false,
            open: 0,
            before: 0,
            failed: None,
            awaits_reason: false,
            is_over: false,
        });
    }

    fn index(&self, number: u32) -> Option<usize> {
        let index = number.wrapping_sub(self.first) as usize;
        (index < self.ops.len()).then_some(index)
    }

    fn op(&mut self, number: u32) -> Option<&mut Op> {
        let index = self.index(number)?;
        self.ops.get_mut(index)
    }

    /// The next request for the queue pair.
    pub(super) fn next_work(&mut self) -> Option<Work> {
        let note = |id| Work {
            id,
            request: Request::Send(None),
            len: NOTE_BYTES as u32,
        };
        if self.answers_posted < self.answers.len() {
            let number = self.first_answer.wrapping_add(self.answers_posted as u32);
            self.answers_posted += 1;
            return Some(note(id(number, ANSWER)));
        }
        if self.asked.len() < ASKED_MAX {
            if let Some(number) = self.refused.pop_front() {
                self.asked.push_back(number);
                // It may have to be asked again although the answer has come.
                if let Some(op) = self.op(number) {
                    op.open += 1;
                }
                return Some(note(id(number, WHY)));
            }
        }
        loop {
            let number = self.first.wrapping_add(self.next as u32);
            let op = self.ops.get_mut(self.next)?;
            if let Some((part, request, len)) = op.next(self.read_max) {
                op.open += 1;
                let id = id(number, part);
                return Some(Work { id, request, len });
            }
            self.next += 1;
        }
    }

    /// Whether a request that was not executed is of no use any more.
    pub(super) fn is_void(&self, id: u64) -> bool {
        let (number, part) = parts(id);
        let op = self.index(number).map(|i| &self.ops[i]);
        !matches!(part, WHY | ANSWER) && op.is_none_or(|op| op.failed.is_some())
    }

    /// Copies bytes of a request into a packet.
    pub(super) fn gather(
        &mut self,
        id: u64,
        offset: u32,
        to: &mut [u8],
        data: Option<&mut Datapath<'_>>,
    ) -> Result<(), Unavailable> {
        let (number, part) = parts(id);
        let note = match part {
            ANSWER => {
                let index = number.wrapping_sub(self.first_answer) as usize;
                let answer = self.answers.get(index).ok_or(Unavailable::Fault)?;
                Note::Because(answer.0, answer.1)
            }
            _ => {
                let op = self.op(number).ok_or(Unavailable::Fault)?;
                match (part, op.work.op) {
                    (ANNOUNCE, _) => Note::Announce(Access::of(&op.work)),
                    (WHY, _) => Note::Why(Access::of(&op.work)),
                    (_, RemoteOp::Put { payload, .. }) => {
                        let from = u64::from(part) + u64::from(offset);
                        return match payload {
                            Payload::Inline { bytes, .. } => {
                                let from = from as usize;
                                to.copy_from_slice(&bytes[from..from + to.len()]);
                                Ok(())
                            }
                            Payload::Memory(buffer) => {
                                let data = data.ok_or(Unavailable::Fault)?;
                                match data.dma.read(&buffer, from, to) {
                                    Ok(ReadStatus::Done) => {
                                        op.keep(to);
                                        Ok(())
                                    }
                                    Ok(ReadStatus::Pending) => {
                                        self.pending = true;
                                        Err(Unavailable::Pending)
                                    }
                                    Err(_) => Err(Unavailable::Fault),
                                }
                            }
                        };
                    }
                    // Requests without bytes.
                    _ => return Ok(()),
                }
            }
        };
        to.copy_from_slice(&note.bytes()[offset as usize..][..to.len()]);
        Ok(())
    }

    /// Adds bytes of a request to a packet: long puts by spans of their memory.
    #[allow(unsafe_code)] // Memory goes to the port by address.
    pub(super) fn refer(
        &mut self,
        id: u64,
        offset: u32,
        len: usize,
        batch: &mut Batch,
        data: Option<&mut Datapath<'_>>,
    ) -> Result<(), Unavailable> {
        let (number, part) = parts(id);
        let put = self.op(number).and_then(|op| match op.work.op {
            RemoteOp::Put {
                payload: Payload::Memory(from),
                ..
            } if part < ANSWER && from.len as usize > INLINE_MAX => Some(from),
            _ => None,
        });
        let Some(from) = put else {
            return self.gather(id, offset, batch.room(len), data);
        };
        let data = data.ok_or(Unavailable::Fault)?;
        let at = u64::from(part) + u64::from(offset);
        // SAFETY: the region is pinned until the operation retires. `serve` sends the batch, or
        // makes its bytes own ones, before anything else is done with the connection.
        let done = unsafe { outgoing::refer(&from, at, len, batch, data.dma) };
        match len - done {
            0 => Ok(()),
            rest => self.gather(id, offset + done as u32, batch.room(rest), Some(data)),
        }
    }

    /// Takes bytes of a READ.
    pub(super) fn scatter(
        &mut self,
        id: u64,
        offset: u32,
        bytes: &[u8],
        dma: &mut dyn DmaAccess,
    ) -> Result<(), Unavailable> {
        let (number, part) = parts(id);
        let Some(op) = self.op(number) else {
            return Ok(());
        };
        // The buffer of a cancelled operation is not ours.
        let (RemoteOp::Get { into }, Some(_), None) = (op.work.op, op.token, op.failed) else {
            return Ok(());
        };
        let at = u64::from(part) + u64::from(offset);
        dma.write(&into, at, bytes).map_err(|_| Unavailable::Fault)
    }

    /// A request has ended.
    pub(super) fn done(
        &mut self,
        conn: ConnId,
        id: u64,
        status: WorkStatus,
        events: &mut VecDeque<TransportEvent>,
    ) {
        let (number, part) = parts(id);
        match status {
            WorkStatus::Success(_) | WorkStatus::Refused(_) => {}
            WorkStatus::Flushed if self.is_void(id) => {}
            status => {
                // The connection ends, and what is open with it.
                self.error.get_or_insert(status);
                return;
            }
        }
        match part {
            ANSWER => {
                if self.answers.pop_front().is_some() {
                    self.first_answer = self.first_answer.wrapping_add(1);
                    self.answers_posted = self.answers_posted.saturating_sub(1);
                }
                return;
            }
            WHY => {
                if let Some(op) = self.op(number) {
                    op.open = op.open.saturating_sub(1);
                }
                if let WorkStatus::Refused(_) = status {
                    self.asked.retain(|n| *n != number);
                    self.explained(number, None);
                }
            }
            _ => {
                let Some(op) = self.op(number) else { return };
                op.open = op.open.saturating_sub(1);
                match status {
                    WorkStatus::Success(before) => op.before = before.unwrap_or(0),
                    WorkStatus::Refused(code) if op.failed.is_none() => {
                        let status = match code {
                            NakCode::InvalidRequest => Status::InvalidArgument,
                            _ => Status::AccessDenied,
                        };
                        op.failed = Some((status, op.work.va.0));
                        op.awaits_reason = true;
                        self.refused.push_back(number);
                    }
                    _ => {}
                }
            }
        }
        self.settle(conn, number, events);
    }

    fn explained(&mut self, number: u32, why: Option<(Status, u64)>) {
        if let Some(op) = self.op(number) {
            op.awaits_reason = false;
            op.failed = why.filter(|w| w.0 != Status::Ok).or(op.failed);
        }
    }

    /// The peer has said why it refused the operation that it was asked about first.
    pub(super) fn because(
        &mut self,
        conn: ConnId,
        why: (Status, u64),
        events: &mut VecDeque<TransportEvent>,
    ) {
        if let Some(number) = self.asked.pop_front() {
            self.explained(number, Some(why));
            self.settle(conn, number, events);
        }
    }

    /// The peer asks: it gets this answer. `false`: it has asked too often.
    pub(super) fn answer(&mut self, why: (Status, u64)) -> bool {
        let has_room = self.answers.len() < 2 * ASKED_MAX;
        if has_room {
            self.answers.push_back(why);
        }
        has_room
    }

    /// Reports an operation when it has ended, and forgets those that are over.
    fn settle(&mut self, conn: ConnId, number: u32, events: &mut VecDeque<TransportEvent>) {
        let Some(op) = self.op(number) else { return };
        let has_all = op.is_whole || op.failed.is_some();
        if !has_all || op.open > 0 || op.awaits_reason {
            return;
        }
        op.is_over = true;
        if let Some(token) = op.token.take() {
            let (status, bytes, detail) = match op.failed {
                Some((status, detail)) => (status, 0, detail),
                None => (Status::Ok, u64::from(op.len()), op.before),
            };
            events.push_back(TransportEvent::RemoteDone {
                conn,
                token,
                status,
                bytes,
                detail,
            });
        }
        while self.ops.front().is_some_and(|op| op.is_over) {
            self.ops.pop_front();
            self.first = self.first.wrapping_add(1);
            self.next = self.next.saturating_sub(1);
        }
    }

    /// Gives an operation back to its owner. A number above 0: its source may be sent again.
    pub(super) fn cancel(
        &mut self,
        conn: ConnId,
        token: WorkToken,
        events: &mut VecDeque<TransportEvent>,
    ) -> Option<u64> {
        let index = self.ops.iter().position(|op| op.token == Some(token))?;
        let op = &mut self.ops[index];
        op.token = None;
        let source = match op.work.op {
            RemoteOp::Put {
                payload: Payload::Memory(from),
                ..
            } => from.len,
            _ => 0,
        };
        let may_read = source > 0 && op.posted > 0 && op.open > 0;
        op.failed.get_or_insert((Status::Aborted, 0));
        self.settle(conn, self.first.wrapping_add(index as u32), events);
        Some(may_read.into())
    }

    /// Retires all operations.
    pub(super) fn fail_all(
        &mut self,
        conn: ConnId,
        (status, detail): (Status, u64),
        events: &mut VecDeque<TransportEvent>,
    ) {
        // Requests of theirs may still be posted: their numbers mean nothing from here on.
        self.first = self.first.wrapping_add(self.ops.len() as u32);
        self.next = 0;
        for token in self.ops.drain(..).filter_map(|op| op.token) {
            events.push_back(TransportEvent::RemoteDone {
                conn,
                token,
                status,
                bytes: 0,
                detail,
            });
        }
        self.refused.clear();
        self.asked.clear();
    }
}
