//! One connection: what is queued, what is on the way, what has arrived.

use std::collections::VecDeque;
use std::net::SocketAddrV4;

use ringbell_nic_abi::Status;

use super::land::{Fetching, InFlight};
use super::stage::Stage;
use crate::engine::EngineFailed;
use crate::transport::{RecvWork, SendWork, TransportEvent};
use crate::types::{ConnId, ListenerId};

/// Spans of one connection that may be on the way.
pub(super) const SPAN_WINDOW: u64 = 768;

/// How far a connection has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// `Connect` waits for room in the ring, or for the link to come up.
    Calling { listener_port: u16 },
    /// `Connect` was sent.
    Waiting,
    /// Asked for by a peer; `Accept` waits for room in the ring.
    Answering(ListenerId),
    /// Bytes flow.
    Open,
    /// Closed by us and reported so; the slot waits for the peer's end.
    Zombie,
}

/// A send being emitted, or waiting to be taken.
#[derive(Debug, Clone, Copy)]
pub(super) struct TxSend {
    pub(super) work: SendWork,
    /// Bytes emitted.
    pub(super) emitted: u32,
    /// Spans emitted up to its end; it retires when they are acknowledged.
    pub(super) spans_end: u64,
    /// Whether its bytes were announced by reference.
    pub(super) by_ref: bool,
    /// What must land before the peer's engine may read them out of lent memory.
    pub(super) behind: Option<u64>,
    /// Whether they go through NIC memory, and how many were read into it.
    pub(super) staged: bool,
    pub(super) started: u32,
}

/// A receive being filled.
#[derive(Debug, Clone, Copy)]
pub(super) struct RxRecv {
    pub(super) work: RecvWork,
    pub(super) done: u32,
    /// Bytes behind those that are on their way.
    pub(super) landing: u32,
}

/// Bytes that have arrived and were not taken.
#[derive(Debug)]
pub(super) enum Seg {
    /// The next bytes of the staging buffer.
    Staged { len: u32 },
    /// Bytes in the sender's memory.
    Ref { bus: u64, len: u32 },
    /// Bytes copied early out of the sender's memory.
    Early { bytes: Vec<u8>, at: usize },
}

/// A byte ring that grows up to the window and then stays: small payloads without a receive.
#[derive(Debug, Default)]
pub(super) struct Staging {
    bytes: VecDeque<u8>,
}

impl Staging {
    pub(super) fn push(&mut self, b: &[u8]) {
        self.bytes.extend(b);
    }
    /// The first contiguous run.
    pub(super) fn front(&self) -> &[u8] {
        self.bytes.as_slices().0
    }
    /// The first `n` bytes, in two runs.
    pub(super) fn runs(&self, n: usize) -> (&[u8], &[u8]) {
        let (a, b) = self.bytes.as_slices();
        let first = n.min(a.len());
        (&a[..first], &b[..n - first])
    }
    pub(super) fn consume(&mut self, n: usize) {
        self.bytes.drain(..n);
    }
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }
}

/// A connection.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) id: ConnId,
    pub(super) link: usize,
    pub(super) peer_id: u32,
    pub(super) phase: Phase,
    pub(super) local: SocketAddrV4,
    pub(super) peer: SocketAddrV4,
    /// Listed in the transport's active queue.
    pub(super) active: bool,
    /// Listed among those with bytes and no receive.
    pub(super) waiting: bool,
    // Sending.
    pub(super) sends: VecDeque<TxSend>,
    pub(super) next_send: usize,
    pub(super) spans_sent: u64,
    pub(super) spans_acked: u64,
    pub(super) inline_sent: u64,
    pub(super) inline_acked: u64,
    /// Room in NIC memory for payloads that the peer cannot reach where they are.
    pub(super) stage: Option<Stage>,
    pub(super) shut: bool,
    pub(super) fin_sent: bool,
    pub(super) closing: bool,
    // Receiving.
    pub(super) recvs: VecDeque<RxRecv>,
    pub(super) segs: VecDeque<Seg>,
    pub(super) staging: Staging,
    pub(super) refs_waiting: u32,
    pub(super) early_bytes: usize,
    /// Bytes of the first segments that are on their way into receives.
    pub(super) landing: InFlight,
    /// A read of some for what is no receive.
    pub(super) fetching: Option<Fetching>,
    /// An engine holds bytes for the next receive.
    pub(super) held: bool,
    /// Where bytes that leave lie while an engine sees them; empty without one.
    pub(super) piece: Vec<u8>,
    pub(super) spans_taken: u64,
    pub(super) inline_taken: u64,
    pub(super) spans_told: u64,
    pub(super) inline_told: u64,
    /// The peer waits for the acknowledgement, to recycle NIC memory.
    pub(super) tell_now: bool,
    pub(super) peer_fin: bool,
    pub(super) peer_closed: bool,
    pub(super) reset: bool,
    /// The engine that changed the stream, when its failure has ended it.
    pub(super) failed: Option<EngineFailed>,
}

impl Conn {
    pub(super) fn new(
        id: ConnId,
        link: usize,
        phase: Phase,
        local: SocketAddrV4,
        peer: SocketAddrV4,
    ) -> Conn {
        Conn {
            id,
            link,
            peer_id: 0,
            phase,
            local,
            peer,
            active: false,
            waiting: false,
            sends: VecDeque::new(),
            next_send: 0,
            spans_sent: 0,
            spans_acked: 0,
            inline_sent: 0,
            inline_acked: 0,
            stage: None,
            shut: false,
            fin_sent: false,
            closing: false,
            recvs: VecDeque::new(),
            segs: VecDeque::new(),
            staging: Staging::default(),
            refs_waiting: 0,
            early_bytes: 0,
            landing: InFlight::default(),
            fetching: None,
            held: false,
            piece: Vec::new(),
            spans_taken: 0,
            inline_taken: 0,
            spans_told: 0,
            inline_told: 0,
            tell_now: false,
            peer_fin: false,
            peer_closed: false,
            reset: false,
            failed: None,
        }
    }

    /// Keeps payload for which no receive is waiting.
    pub(super) fn stage(&mut self, bytes: &[u8]) {
        self.staging.push(bytes);
        match self.segs.back_mut() {
            Some(Seg::Staged { len }) => *len += bytes.len() as u32,
            _ => self.segs.push_back(Seg::Staged {
                len: bytes.len() as u32,
            }),
        }
    }

    /// Whether the peer knows our id, so that it can be told of an end.
    pub(super) fn peer_knows(&self) -> bool {
        matches!(self.phase, Phase::Open | Phase::Zombie)
    }

    /// Retires the sends whose bytes have been taken, in order.
    #[inline]
    pub(super) fn retire_sends(&mut self, events: &mut VecDeque<TransportEvent>) -> bool {
        let mut any = false;
        while self.next_send > 0 {
            let Some(s) = self.sends.front() else { break };
            if s.by_ref && s.spans_end > self.spans_acked {
                break;
            }
            events.push_back(TransportEvent::SendDone {
                conn: self.id,
                token: s.work.token,
                status: Status::Ok,
                bytes: s.work.payload.len().into(),
                detail: 0,
            });
            self.sends.pop_front();
            self.next_send -= 1;
            any = true;
        }
        any
    }

    /// Retires all works: the stream is broken, by the peer or by an engine of ours.
    pub(super) fn break_works(&mut self, events: &mut VecDeque<TransportEvent>) {
        let reset = (Status::ConnectionReset, 0);
        let end = self.failed.map_or(reset, EngineFailed::status);
        self.end_sends(end, events);
        self.end_recvs(end, events);
    }

    /// Retires all sends with a failure.
    pub(super) fn fail_sends(&mut self, status: Status, events: &mut VecDeque<TransportEvent>) {
        self.end_sends((status, 0), events);
    }

    /// Retires all receives with a failure, or the end of the stream.
    pub(super) fn fail_recvs(&mut self, status: Status, events: &mut VecDeque<TransportEvent>) {
        self.end_recvs((status, 0), events);
    }

    fn end_sends(
        &mut self,
        (status, detail): (Status, u64),
        events: &mut VecDeque<TransportEvent>,
    ) {
        self.retire_sends(events);
        for s in self.sends.drain(..) {
            events.push_back(TransportEvent::SendDone {
                conn: self.id,
                token: s.work.token,
                status,
                bytes: if s.by_ref { 0 } else { s.emitted.into() },
                detail,
            });
        }
        self.next_send = 0;
    }

    fn end_recvs(
        &mut self,
        (status, detail): (Status, u64),
        events: &mut VecDeque<TransportEvent>,
    ) {
        for r in self.recvs.drain(..) {
            events.push_back(TransportEvent::RecvDone {
                conn: self.id,
                token: r.work.token,
                status,
                bytes: r.done.into(),
                detail,
            });
        }
    }

    /// Forgets what has arrived.
    pub(super) fn drop_segs(&mut self) {
        self.forget_landing();
        self.fetching = None;
        self.segs.clear();
        let staged = self.staging.len();
        self.staging.consume(staged);
        self.refs_waiting = 0;
        self.early_bytes = 0;
    }

    /// Whether sends that were announced by reference are not acknowledged.
    pub(super) fn has_refs_out(&self) -> bool {
        self.spans_sent > self.spans_acked
    }
}
