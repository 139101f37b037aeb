//! One connection: its phase, and its two halves.

use std::collections::VecDeque;
use std::net::SocketAddrV4;

use ringbell_nic_abi::Status;

use super::one_sided::OneSided;
use super::rx::{PendingCopies, Rx};
use super::tx::Tx;
use crate::datapath::{ReceivePath, SendPath};
use crate::engine::EngineFailed;
use crate::transport::TransportEvent;
use crate::types::{ConnId, ListenerId};

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

/// A connection.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) id: ConnId,
    pub(super) link: usize,
    pub(super) peer_id: u32,
    pub(super) phase: Phase,
    /// Addresses of this end and of the peer's.
    pub(super) ends: (SocketAddrV4, SocketAddrV4),
    /// Listed in the transport's active queue.
    pub(super) active: bool,
    /// Listed among those with bytes and no receive.
    pub(super) waiting: bool,
    pub(super) sends: SendPath,
    pub(super) tx: Tx,
    pub(super) recvs: ReceivePath,
    pub(super) rx: Rx,
    pub(super) one_sided: OneSided,
    pub(super) closing: bool,
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
        ends: (SocketAddrV4, SocketAddrV4),
    ) -> Conn {
        Conn {
            id,
            link,
            peer_id: 0,
            phase,
            ends,
            active: false,
            waiting: false,
            sends: SendPath::new(id),
            tx: Tx::default(),
            recvs: ReceivePath::new(id),
            rx: Rx::default(),
            one_sided: OneSided::default(),
            closing: false,
            peer_closed: false,
            reset: false,
            failed: None,
        }
    }

    /// Whether a receive may take bytes before it is queued.
    #[inline]
    pub(super) fn may_receive_now(&self) -> bool {
        self.phase == Phase::Open && !self.reset && !self.closing && self.recvs.is_empty()
    }

    /// Whether the peer has our id, so that it can be notified of an end.
    pub(super) fn peer_knows(&self) -> bool {
        matches!(self.phase, Phase::Open | Phase::Zombie)
    }

    /// Forgets what has arrived, and what is on its way.
    pub(super) fn drop_arrived(&mut self) {
        self.forget_copies();
        self.rx.drop_segs();
    }

    /// Discards the copies in flight: they restart.
    pub(super) fn forget_copies(&mut self) {
        self.rx.copies = PendingCopies::default();
        self.recvs.forget_expected();
    }

    /// Retires all operations: the stream is broken, by the peer or by an engine of ours.
    pub(super) fn break_works(&mut self, events: &mut VecDeque<TransportEvent>) {
        let reset = (Status::ConnectionReset, 0);
        let end = self.failed.map_or(reset, EngineFailed::status);
        self.sends.fail_all(end, events);
        self.recvs.fail_all(end, events);
        self.one_sided.end(self.id, end, events);
    }

    /// Whether the peer may be reading memory of ours.
    pub(super) fn has_refs_out(&self) -> bool {
        self.tx.has_refs_out() || self.one_sided.has_refs_out()
    }

    /// Retires all sends with a failure.
    pub(super) fn fail_sends(&mut self, status: Status, events: &mut VecDeque<TransportEvent>) {
        self.sends.fail_all((status, 0), events);
        self.one_sided.fail(self.id, (status, 0), events);
    }

    /// Retires all receives with a failure.
    pub(super) fn fail_recvs(&mut self, status: Status, events: &mut VecDeque<TransportEvent>) {
        self.recvs.fail_all((status, 0), events);
    }
}
