//! What a program posts to a queue pair, and the queue pair's way to it: memory, receives and
//! completions.

use std::collections::VecDeque;
use std::net::SocketAddr;

use ringbell_gtlb::{Mmu, Need};
use ringbell_nic_abi::{NakCode, PdId, RoceOpcode};

use super::completions::Cq;
use super::memory::{self, Pieces};
use super::types::{
    Completion, Local, QpLimits, Rights, SendRequest, Sge, Status, WorkKind, GRH_BYTES,
};
use crate::qp::{
    Atomic, Client, Part, QueuePair, Refusal, Remote, Request, Right, Unavailable, Work, WorkStatus,
};
use ringbell_net::wire::roce::{AtomicEth, Extended, Packet, Qpn};

/// Where a request's bytes are.
#[derive(Debug)]
enum Bytes {
    Registered(Pieces),
    Inline(Vec<u8>),
}

/// A posted request that has not completed.
#[derive(Debug)]
struct Posted {
    id: u64,
    request: Request,
    bytes: Bytes,
    len: u32,
    signaled: bool,
    solicited: bool,
    fence: bool,
    /// Of a datagram.
    way: Option<Way>,
    ended: Option<Status>,
}

impl Posted {
    fn fetches(&self) -> bool {
        matches!(
            self.request,
            Request::Read(_) | Request::FetchAdd(..) | Request::CompareSwap(..)
        )
    }

    fn kind(&self) -> WorkKind {
        match self.request {
            Request::Send(_) | Request::SendInvalidate(_) => WorkKind::Send,
            Request::Write(..) => WorkKind::Write,
            Request::Read(_) => WorkKind::Read,
            Request::FetchAdd(..) => WorkKind::FetchAdd,
            Request::CompareSwap(..) => WorkKind::CompareSwap,
        }
    }

    /// Whether the receiver gets a completion for it.
    fn is_received(&self) -> bool {
        matches!(
            self.request,
            Request::Send(_) | Request::SendInvalidate(_) | Request::Write(_, Some(_))
        )
    }
}

/// A posted receive.
#[derive(Debug)]
struct PostedReceive {
    id: u64,
    pieces: Pieces,
}

/// Receives of one queue pair, or of several that share them.
#[derive(Debug)]
pub(super) struct ReceiveQueue {
    works: VecDeque<PostedReceive>,
    pub(super) pd: PdId,
    pub(super) limit: u32,
    pub(super) is_shared: bool,
}

impl ReceiveQueue {
    pub(super) fn new(pd: PdId, limit: u32, is_shared: bool) -> ReceiveQueue {
        ReceiveQueue {
            works: VecDeque::new(),
            pd,
            limit,
            is_shared,
        }
    }

    /// `false`: it is full.
    pub(super) fn post(&mut self, id: u64, pieces: &[Sge]) -> bool {
        let has_room = self.works.len() < self.limit as usize;
        if has_room {
            let pieces = Pieces::new(pieces);
            self.works.push_back(PostedReceive { id, pieces });
        }
        has_room
    }

    pub(super) fn clear(&mut self) {
        self.works.clear();
    }
}

/// Another context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Peer {
    pub(super) at: SocketAddr,
    /// Its packets come from that UDP port, as ours do; other NICs vary theirs.
    pub(super) is_ours: bool,
    pub(super) with_icrc: bool,
    /// Both keep packets that come early, and answer marks of switches.
    pub(super) selective: bool,
}

/// Where a datagram goes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Way {
    pub(super) peer: Peer,
    pub(super) number: Qpn,
    pub(super) key: u32,
}

/// A program's side of a queue pair.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) at: Places,
    pub(super) limits: QpLimits,
    pub(super) signal_all: bool,
    pub(super) rights: Rights,
    pub(super) peer: Option<Peer>,
    /// READs and atomic operations in flight, at most.
    pub(super) depth: u8,
    sends: VecDeque<Posted>,
    /// Requests that have completed: the number of the first one in `sends`.
    completed: u64,
    /// How many of `sends` the queue pair has.
    handed: usize,
    /// READs and atomic operations among them.
    fetching: usize,
    /// The receive of the message that is arriving, and its bytes so far.
    open: Option<(PostedReceive, u32)>,
    /// Bytes of the WRITE that is arriving.
    written: u32,
    /// The packet that was gathered last ends a message that the receiver is to be told of.
    pub(super) solicits: bool,
}

/// Identity and places of a new endpoint.
#[derive(Debug, Clone, Copy)]
pub(super) struct Places {
    pub(super) number: Qpn,
    pub(super) pd: PdId,
    pub(super) send_cq: usize,
    pub(super) receive_cq: usize,
    pub(super) receives: usize,
}

impl Endpoint {
    pub(super) fn new(at: Places, limits: QpLimits, signal_all: bool) -> Endpoint {
        Endpoint {
            at,
            limits,
            signal_all,
            rights: Rights::default(),
            peer: None,
            depth: 0,
            sends: VecDeque::new(),
            completed: 0,
            handed: 0,
            fetching: 0,
            open: None,
            written: 0,
            solicits: false,
        }
    }

    /// Requests that have not completed.
    pub(super) fn queued(&self) -> usize {
        self.sends.len()
    }

    /// Queues a request whose pieces were checked. `false`: the queue is full.
    pub(super) fn post(&mut self, r: &SendRequest<'_>, len: u32, way: Option<Way>) -> bool {
        if self.sends.len() >= self.limits.sends as usize {
            return false;
        }
        let bytes = match r.local {
            Local::Registered(pieces) => Bytes::Registered(Pieces::new(pieces)),
            Local::Inline(parts) => Bytes::Inline(parts.concat()),
        };
        self.sends.push_back(Posted {
            id: r.id,
            request: r.request,
            bytes,
            len,
            signaled: self.signal_all || r.flags.signaled,
            solicited: r.flags.solicited,
            fence: r.flags.fence,
            way,
            ended: None,
        });
        true
    }

    /// Gives requests to the queue pair, as many as it takes and fences allow.
    pub(super) fn hand(&mut self, qp: &mut QueuePair) {
        while let Some(p) = self.sends.get(self.handed) {
            let work = Work {
                id: self.completed + self.handed as u64,
                request: p.request,
                len: p.len,
            };
            if p.fence && self.fetching > 0 || !qp.post(work) {
                return;
            }
            self.fetching += usize::from(p.fetches());
            self.handed += 1;
        }
    }

    fn find(&mut self, id: u64) -> Option<&mut Posted> {
        // Of a queue pair that was reset meanwhile, older numbers are unknown.
        let at = usize::try_from(id.checked_sub(self.completed)?).ok()?;
        self.sends.get_mut(at)
    }

    /// Forgets everything that was posted, without completions.
    pub(super) fn reset(&mut self) {
        self.completed += self.sends.len() as u64;
        self.sends.clear();
        (self.handed, self.fetching) = (0, 0);
        (self.open, self.peer, self.written) = (None, None, 0);
    }
}

/// What is known of the packet that is executed.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Incoming {
    opcode: Option<RoceOpcode>,
    solicited: bool,
    invalidates: Option<u32>,
    /// The sending queue pair, of a datagram.
    source: Option<u32>,
    len: u32,
}

impl Incoming {
    pub(super) fn of(packet: &Packet<'_>) -> Incoming {
        Incoming {
            opcode: Some(packet.bth.opcode),
            solicited: packet.bth.solicited,
            invalidates: match packet.extended {
                Extended::Invalidate(key) => Some(key),
                _ => None,
            },
            source: match packet.extended {
                Extended::Datagram(d) | Extended::DatagramImmediate(d, _) => Some(d.source.value()),
                _ => None,
            },
            len: packet.payload.len() as u32,
        }
    }
}

/// An endpoint with all that its queue pair may touch.
pub(super) struct View<'a> {
    pub(super) end: &'a mut Endpoint,
    pub(super) memory: &'a mut Mmu,
    pub(super) cqs: &'a mut [Option<Cq>],
    pub(super) receives: &'a mut [Option<ReceiveQueue>],
    pub(super) packet: Incoming,
}

const ACCESS: Refusal = Refusal::Nak(NakCode::RemoteAccess);

impl View<'_> {
    fn complete(&mut self, cq: usize, c: Completion, solicited: bool) {
        if let Some(cq) = self.cqs.get_mut(cq).and_then(Option::as_mut) {
            cq.push(c, solicited);
        }
    }

    /// Completes requests in order, as far as they have ended.
    fn retire(&mut self) {
        while let Some(status) = self.end.sends.front().and_then(|p| p.ended) {
            let Some(p) = self.end.sends.pop_front() else {
                return;
            };
            self.end.completed += 1;
            self.end.handed = self.end.handed.saturating_sub(1);
            if p.signaled || status != Status::Success {
                let c = Completion {
                    id: p.id,
                    status,
                    kind: p.kind(),
                    len: p.len,
                    immediate: None,
                    invalidated: None,
                    source: None,
                    queue_pair: self.end.at.number.value(),
                };
                self.complete(self.end.at.send_cq, c, false);
            }
        }
    }

    fn received(&mut self, id: u64, status: Status, part: &Part<'_>, len: u32, by_write: bool) {
        let c = Completion {
            id,
            status,
            kind: match by_write {
                true => WorkKind::ReceiveWrite,
                false => WorkKind::Receive,
            },
            len,
            immediate: part.immediate,
            invalidated: self.packet.invalidates,
            source: self.packet.source,
            queue_pair: self.end.at.number.value(),
        };
        self.complete(self.end.at.receive_cq, c, self.packet.solicited);
    }

    /// Ends the requests that are left.
    pub(super) fn flush_sends(&mut self) {
        for p in &mut self.end.sends {
            p.ended.get_or_insert(Status::Flushed);
        }
        self.end.fetching = 0;
        self.retire();
    }

    /// Ends what is left when the queue pair is in ERR.
    pub(super) fn flush(&mut self) {
        self.flush_sends();
        let nothing = Part {
            first: true,
            last: true,
            bytes: &[],
            immediate: None,
        };
        self.packet = Incoming::default();
        let open = self.end.open.take().map(|(work, _)| work);
        let mut works: VecDeque<_> = open.into_iter().collect();
        // Receives that are shared serve the other queue pairs.
        if let Some(q) = self.receives[self.end.at.receives].as_mut() {
            if !q.is_shared {
                works.append(&mut q.works);
            }
        }
        for w in works {
            self.received(w.id, Status::Flushed, &nothing, 0, false);
        }
    }

    fn at(at: Remote) -> (u64, u32) {
        (at.address, at.key)
    }

    /// Whether a peer may invalidate a key: of a region of the domain that peers may use.
    fn region_of(&self, key: u32) -> Option<ringbell_nic_abi::Lkey> {
        let info = self.memory.find_remote(ringbell_nic_abi::Rkey(key))?;
        let remote = |a: ringbell_gtlb::Access| a.remote_read || a.remote_write || a.remote_atomic;
        (info.pd == self.end.at.pd && remote(info.access)).then_some(info.lkey)
    }
}

/// What became of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrived {
    /// It lies in its receive.
    Kept,
    /// There is no receive, or a shorter one.
    Dropped,
    /// The memory of its receive cannot be written.
    Failed,
}

/// Datagrams.
impl View<'_> {
    /// Way, immediate data and solicitation of the next one to send.
    pub(super) fn next_datagram(&self) -> Option<(Way, Option<u32>, bool)> {
        let p = self.end.sends.front()?;
        let immediate = match p.request {
            Request::Send(immediate) => immediate,
            _ => None,
        };
        p.way.map(|way| (way, immediate, p.solicited))
    }

    /// Copies the bytes of the next one to `room`, and completes it. `None`: its memory cannot be
    /// read.
    pub(super) fn take_datagram(&mut self, room: &mut [u8]) -> Option<usize> {
        let (pd, memory) = (self.end.at.pd, &mut *self.memory);
        let p = self.end.sends.front_mut()?;
        let len = p.len as usize;
        let to = &mut room[..len];
        let has_read = match &p.bytes {
            Bytes::Registered(pieces) => len == 0 || pieces.read(memory, pd, 0, to).is_ok(),
            Bytes::Inline(bytes) => {
                to.copy_from_slice(bytes);
                true
            }
        };
        p.ended = Some(match has_read {
            true => Status::Success,
            false => Status::LocalProtection,
        });
        self.retire();
        has_read.then_some(len)
    }

    /// Puts a datagram into the next receive, behind the network's header.
    pub(super) fn receive_datagram(
        &mut self,
        header: &[u8; GRH_BYTES],
        bytes: &[u8],
        immediate: Option<u32>,
    ) -> Arrived {
        let len = (GRH_BYTES + bytes.len()) as u32;
        let Some(q) = self.receives[self.end.at.receives].as_mut() else {
            return Arrived::Dropped;
        };
        let fits = |w: &PostedReceive| w.pieces.len() >= len.into();
        let fits = q.works.front().is_some_and(fits);
        let Some(work) = fits.then(|| q.works.pop_front()).flatten() else {
            return Arrived::Dropped;
        };
        let pieces = &work.pieces;
        let head = pieces.write(self.memory, q.pd, 0, header);
        let body = match bytes {
            [] => Ok(()),
            _ => pieces.write(self.memory, q.pd, GRH_BYTES as u32, bytes),
        };
        let part = Part {
            first: true,
            last: true,
            bytes: &[],
            immediate,
        };
        if head.and(body).is_err() {
            self.received(work.id, Status::LocalProtection, &part, 0, false);
            return Arrived::Failed;
        }
        self.received(work.id, Status::Success, &part, len, false);
        Arrived::Kept
    }
}

impl Client for View<'_> {
    fn begins(&mut self, packet: &Packet<'_>) {
        self.packet = Incoming::of(packet);
    }

    fn gather(&mut self, id: u64, offset: u32, to: &mut [u8]) -> Result<(), Unavailable> {
        let (pd, memory) = (self.end.at.pd, &mut *self.memory);
        self.end.solicits = false;
        let Some(p) = self.end.find(id) else {
            return Err(Unavailable::Fault);
        };
        let ends = p.is_received() && offset as usize + to.len() == p.len as usize;
        let solicits = p.solicited && ends;
        if !to.is_empty() {
            match &p.bytes {
                Bytes::Registered(pieces) => pieces
                    .read(memory, pd, offset, to)
                    .map_err(|_| Unavailable::Fault)?,
                Bytes::Inline(bytes) => {
                    let from = offset as usize;
                    to.copy_from_slice(&bytes[from..from + to.len()]);
                }
            }
        }
        self.end.solicits = solicits;
        Ok(())
    }

    fn scatter(&mut self, id: u64, offset: u32, bytes: &[u8]) -> Result<(), Unavailable> {
        let (pd, memory) = (self.end.at.pd, &mut *self.memory);
        match self.end.find(id).map(|p| &p.bytes) {
            Some(Bytes::Registered(pieces)) => pieces
                .write(memory, pd, offset, bytes)
                .map_err(|_| Unavailable::Fault),
            _ => Err(Unavailable::Fault),
        }
    }

    fn done(&mut self, id: u64, status: WorkStatus) {
        let (pd, memory) = (self.end.at.pd, &mut *self.memory);
        let Some(p) = self.end.find(id) else {
            return;
        };
        let fetches = p.fetches();
        let status = match status {
            WorkStatus::Success(None) => Status::Success,
            WorkStatus::Success(Some(old)) => match &p.bytes {
                Bytes::Registered(pieces)
                    if pieces.write(memory, pd, 0, &old.to_ne_bytes()).is_ok() =>
                {
                    Status::Success
                }
                _ => Status::LocalProtection,
            },
            WorkStatus::Flushed => Status::Flushed,
            WorkStatus::RetryExceeded => Status::RetryExceeded,
            WorkStatus::ReceiverNotReady => Status::ReceiverNotReady,
            WorkStatus::Refused(NakCode::RemoteAccess) => Status::RemoteAccess,
            WorkStatus::Refused(NakCode::RemoteOperation) => Status::RemoteOperation,
            WorkStatus::Refused(_) => Status::RemoteInvalidRequest,
            WorkStatus::LocalProtection => Status::LocalProtection,
            WorkStatus::BadResponse => Status::BadResponse,
        };
        p.ended = Some(status);
        self.end.fetching = self.end.fetching.saturating_sub(usize::from(fetches));
        self.retire();
    }

    fn receive(&mut self, part: Part<'_>) -> Result<(), Refusal> {
        let q = self.receives[self.end.at.receives].as_mut();
        let q = q.ok_or(Refusal::NotReady)?;
        let pd = q.pd;
        if part.first {
            let work = q.works.pop_front().ok_or(Refusal::NotReady)?;
            self.end.open = Some((work, 0));
        }
        let Some((work, filled)) = &mut self.end.open else {
            return Err(Refusal::Nak(NakCode::InvalidRequest));
        };
        let id = work.id;
        let total = u64::from(*filled) + part.bytes.len() as u64;
        let failed = if total > work.pieces.len() {
            Some((Status::LocalLength, NakCode::InvalidRequest))
        } else if part.bytes.is_empty() {
            None
        } else {
            let written = work.pieces.write(self.memory, pd, *filled, part.bytes);
            written
                .is_err()
                .then_some((Status::LocalProtection, NakCode::RemoteOperation))
        };
        *filled = total as u32;
        let total = total as u32;
        let (by_write, len) = match self.packet.opcode {
            Some(RoceOpcode::WriteOnlyImm) => (true, self.packet.len),
            Some(RoceOpcode::WriteLastImm) => (true, self.end.written),
            _ => (false, total),
        };
        let refused = self.packet.invalidates.filter(|_| part.last);
        let failed = match refused {
            Some(key) if failed.is_none() && self.region_of(key).is_none() => {
                Some((Status::Flushed, NakCode::RemoteAccess))
            }
            _ => failed,
        };
        if let Some((status, code)) = failed {
            self.end.open = None;
            self.received(id, status, &part, 0, by_write);
            return Err(Refusal::Nak(code));
        }
        if part.last {
            self.end.open = None;
            self.received(id, Status::Success, &part, len, by_write);
        }
        Ok(())
    }

    fn check(&mut self, at: Remote, len: u32, right: Right) -> Result<(), Refusal> {
        let (allowed, need) = match right {
            Right::Read => (self.end.rights.read, Need::RemoteRead),
            Right::Write => (self.end.rights.write, Need::RemoteWrite),
        };
        self.end.written = 0;
        let found = memory::remote(self.memory, self.end.at.pd, View::at(at), len.into(), need);
        if allowed && found.is_ok() {
            Ok(())
        } else {
            Err(ACCESS)
        }
    }

    fn write(&mut self, at: Remote, bytes: &[u8]) -> Result<(), Refusal> {
        self.end.written = self.end.written.saturating_add(bytes.len() as u32);
        memory::write_remote(self.memory, self.end.at.pd, View::at(at), bytes).map_err(|_| ACCESS)
    }

    fn read(&mut self, at: Remote, to: &mut [u8]) -> Result<(), Refusal> {
        // A duplicate was not checked, and the right may have gone.
        if !self.end.rights.read {
            return Err(ACCESS);
        }
        memory::read_remote(self.memory, self.end.at.pd, View::at(at), to).map_err(|_| ACCESS)
    }

    fn atomic(&mut self, operation: Atomic, operands: &AtomicEth) -> Result<u64, Refusal> {
        if !self.end.rights.atomic {
            return Err(ACCESS);
        }
        memory::atomic_remote(self.memory, self.end.at.pd, operation, operands).map_err(|_| ACCESS)
    }

    fn invalidate(&mut self, key: u32) -> Result<(), Refusal> {
        let lkey = self.region_of(key).ok_or(ACCESS)?;
        // Nothing is in flight on it: accesses are checked one by one.
        self.memory
            .begin_deregister(lkey)
            .and_then(|()| self.memory.finish_deregister(lkey).map(drop))
            .map_err(|_| ACCESS)
    }
}
