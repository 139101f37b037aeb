//! Operations that this NIC asks of the peer, and what arrives for them.

use std::collections::VecDeque;

use ringbell_nic_abi::{Status, INLINE_MAX};

use super::limits::OPEN_MAX;
use crate::datapath::Payload;
use crate::transport::one_sided::Access;
use crate::transport::{RemoteOp, RemoteWork, TransportEvent};
use crate::types::{Buffer, ConnId, WorkToken};
use ringbell_net::wire::iwarp::rdmap::{Atomic, AtomicRequest, ReadRequest};
use ringbell_net::wire::iwarp::terminate::Reason;

/// An operation that was not answered.
#[derive(Debug)]
struct Op {
    work: RemoteWork,
    /// `None` once it was cancelled.
    token: Option<WorkToken>,
    /// By what its answer names it; 0 before it has left.
    number: u32,
    /// Something of it has left.
    begun: bool,
    /// Bytes of a put that have left, or of a get that have come.
    moved: u32,
}

impl Op {
    fn len(&self) -> u32 {
        Access::of(&self.work).len
    }

    fn is_get(&self) -> bool {
        matches!(self.work.op, RemoteOp::Get { .. })
    }

    fn is_put(&self) -> bool {
        matches!(self.work.op, RemoteOp::Put { .. })
    }

    /// Its end, unless it was cancelled.
    fn ended(&self, conn: ConnId, (status, detail): (Status, u64)) -> Option<TransportEvent> {
        let bytes = match status {
            Status::Ok => self.len().into(),
            _ => 0,
        };
        Some(TransportEvent::RemoteDone {
            conn,
            token: self.token?,
            status,
            bytes,
            detail,
        })
    }
}

/// What leaves next.
#[derive(Debug, Clone, Copy)]
pub(in crate::transport::iwarp) enum Next {
    /// Bytes of a put from `done` on, behind a note about it where none has left.
    Put {
        access: Access,
        payload: Payload,
        done: u32,
        announce: bool,
    },
    Read(ReadRequest),
    Atomic(AtomicRequest),
}

/// See the module text.
#[derive(Debug, Default)]
pub(in crate::transport::iwarp) struct Asking {
    ops: VecDeque<Op>,
    /// How many of them have left as a whole.
    whole: usize,
    /// Reads and atomic operations among those.
    reads: usize,
    /// Most of the reads; 0: the peer serves none.
    pub(in crate::transport::iwarp) limit: u16,
    last_number: u32,
    /// Messages in the queue of requests, and in that of atomic responses.
    requests: u32,
    responses: u32,
    /// Memory here has not answered.
    pub(in crate::transport::iwarp) pending: bool,
}

impl Asking {
    /// Queues an operation.
    pub(in crate::transport::iwarp) fn post(&mut self, work: RemoteWork) {
        self.ops.push_back(Op {
            work,
            token: Some(work.token),
            number: 0,
            begun: false,
            moved: 0,
        });
    }

    /// Whether every operation has ended.
    pub(in crate::transport::iwarp) fn is_idle(&self) -> bool {
        self.ops.is_empty()
    }

    /// Whether what is next is asked of a peer that serves no reads.
    pub(in crate::transport::iwarp) fn is_unserved(&self) -> bool {
        let op = self.ops.get(self.whole);
        self.limit == 0 && op.is_some_and(|op| !op.is_put())
    }

    /// What leaves next, if anything may.
    pub(in crate::transport::iwarp) fn next(&self) -> Option<Next> {
        let op = self.ops.get(self.whole)?;
        let may_read = self.reads < usize::from(self.limit);
        if self.whole >= OPEN_MAX || !(op.is_put() || may_read) {
            return None;
        }
        let number = self.last_number.wrapping_add(1);
        let atomic = |operation| {
            Next::Atomic(AtomicRequest {
                identifier: number,
                stag: op.work.rkey.0,
                offset: op.work.va.0,
                operation,
            })
        };
        Some(match op.work.op {
            RemoteOp::Put { payload, .. } => Next::Put {
                access: Access::of(&op.work),
                payload,
                done: op.moved,
                announce: !op.begun,
            },
            RemoteOp::Get { into } => Next::Read(ReadRequest {
                sink: number,
                sink_offset: 0,
                len: into.len,
                source: op.work.rkey.0,
                source_offset: op.work.va.0,
            }),
            RemoteOp::FetchAdd { addend } => atomic(Atomic::FetchAdd(addend)),
            RemoteOp::CompareSwap { compare, swap } => {
                atomic(Atomic::CompareSwap { compare, swap })
            }
        })
    }

    /// What was next has left, with so many bytes of a put.
    pub(in crate::transport::iwarp) fn left(&mut self, bytes: u32) {
        let Some(op) = self.ops.get_mut(self.whole) else {
            return;
        };
        op.begun = true;
        match op.is_put() {
            true => op.moved += bytes,
            false => {
                self.last_number = self.last_number.wrapping_add(1);
                op.number = self.last_number;
                self.reads += 1;
            }
        }
        if !op.is_put() || op.moved == op.len() {
            self.whole += 1;
        }
    }

    /// The operation that was next cannot leave, because its memory is gone. `false`: a part of it
    /// has left, and the peer waits for the rest.
    pub(in crate::transport::iwarp) fn failed(
        &mut self,
        conn: ConnId,
        why: (Status, u64),
        events: &mut VecDeque<TransportEvent>,
    ) -> bool {
        let is_new = self.ops.get(self.whole).is_some_and(|op| !op.begun);
        if is_new {
            let op = self.ops.remove(self.whole);
            events.extend(op.and_then(|op| op.ended(conn, why)));
        }
        is_new
    }

    /// The number of the next message of requests.
    pub(in crate::transport::iwarp) fn next_request(&mut self) -> u32 {
        self.requests = self.requests.wrapping_add(1);
        self.requests
    }

    /// The oldest operation, if it waits for its answer.
    fn oldest(&mut self) -> Result<&mut Op, Reason> {
        let is_whole = self.whole > 0;
        let op = self.ops.front_mut().filter(|_| is_whole);
        op.ok_or(Reason::Stag)
    }

    /// The oldest operation has ended.
    fn retire(&mut self, conn: ConnId, how: (Status, u64), events: &mut VecDeque<TransportEvent>) {
        if let Some(op) = self.ops.pop_front() {
            self.whole -= 1;
            self.reads -= usize::from(!op.is_put());
            events.extend(op.ended(conn, how));
        }
    }

    /// The peer says by a note how the oldest operation has ended.
    ///
    /// # Errors
    /// There is none, or it has another answer.
    pub(in crate::transport::iwarp) fn because(
        &mut self,
        conn: ConnId,
        how: (Status, u64),
        events: &mut VecDeque<TransportEvent>,
    ) -> Result<(), Reason> {
        let is_put = self.oldest().map_err(|_| Reason::TooLong)?.is_put();
        if how.0 == Status::Ok && !is_put {
            return Err(Reason::TooLong);
        }
        self.retire(conn, how, events);
        Ok(())
    }

    /// The value before of an atomic operation has come.
    ///
    /// # Errors
    /// No such operation is the oldest, or the message is out of order.
    pub(in crate::transport::iwarp) fn word(
        &mut self,
        message: u32,
        (identifier, before): (u32, u64),
        conn: ConnId,
        events: &mut VecDeque<TransportEvent>,
    ) -> Result<(), Reason> {
        if message != self.responses.wrapping_add(1) {
            return Err(Reason::Message);
        }
        let op = self.oldest().map_err(|_| Reason::NoBuffer)?;
        if op.is_put() || op.is_get() || op.number != identifier {
            return Err(Reason::NoBuffer);
        }
        self.responses = message;
        self.retire(conn, (Status::Ok, before), events);
        Ok(())
    }

    /// Where bytes of a Read response go: buffer and offset, or nowhere when it was cancelled.
    ///
    /// # Errors
    /// They are not the next bytes of the oldest operation.
    pub(in crate::transport::iwarp) fn place(
        &mut self,
        sink: u32,
        offset: u64,
        len: u32,
        last: bool,
    ) -> Result<Option<(Buffer, u32)>, Reason> {
        let op = self.oldest()?;
        let RemoteOp::Get { into } = op.work.op else {
            return Err(Reason::Stag);
        };
        if op.number != sink {
            return Err(Reason::Stag);
        }
        let left = into.len - op.moved;
        let fits = offset == u64::from(op.moved) && len <= left && last == (len == left);
        match fits && (len > 0 || left == 0) {
            true => Ok(op.token.map(|_| (into, op.moved))),
            false => Err(Reason::Bounds),
        }
    }

    /// Where the next bytes of the oldest get go, unless it was cancelled.
    pub(in crate::transport::iwarp) fn next_place(&self) -> Option<(Buffer, u32)> {
        let op = self.ops.front().filter(|op| op.token.is_some())?;
        match op.work.op {
            RemoteOp::Get { into } => Some((into, op.moved)),
            _ => None,
        }
    }

    /// They are there, or cannot be for this reason. The last of them end the operation.
    pub(in crate::transport::iwarp) fn came(
        &mut self,
        len: u32,
        fault: Option<(Status, u64)>,
        conn: ConnId,
        events: &mut VecDeque<TransportEvent>,
    ) {
        let Ok(op) = self.oldest() else {
            return;
        };
        op.moved += len;
        if let Some(why) = fault {
            // Its other bytes are dropped.
            events.extend(op.ended(conn, why));
            op.token = None;
        }
        if op.moved == op.len() {
            self.retire(conn, (Status::Ok, 0), events);
        }
    }

    /// Gives an operation back to its owner. A number above 0: it is a put whose source may still
    /// be read, or of which the peer has a part.
    pub(in crate::transport::iwarp) fn cancel(&mut self, token: WorkToken) -> Option<u64> {
        let at = self.ops.iter().position(|op| op.token == Some(token))?;
        let op = &mut self.ops[at];
        if !op.begun {
            self.ops.remove(at);
            return Some(0);
        }
        op.token = None;
        let RemoteOp::Put { payload, .. } = op.work.op else {
            return Some(0);
        };
        // A short one was copied as a whole when it left.
        let is_kept = matches!(payload, Payload::Inline { .. }) || op.len() as usize <= INLINE_MAX;
        Some(u64::from(!is_kept))
    }

    /// Retires all operations.
    pub(in crate::transport::iwarp) fn fail_all(
        &mut self,
        conn: ConnId,
        status: (Status, u64),
        events: &mut VecDeque<TransportEvent>,
    ) {
        let all = self.ops.drain(..);
        events.extend(all.filter_map(|op| op.ended(conn, status)));
        (self.whole, self.reads) = (0, 0);
    }
}
