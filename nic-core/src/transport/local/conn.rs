//! Connections: their phases and two halves, and the table by which ids find them.

use std::collections::VecDeque;
use std::net::SocketAddrV4;

use ringbell_nic_abi::Status;

use super::one_sided::OneSided;
use super::rx::Rx;
use super::tx::Tx;
use crate::datapath::{ReceivePath, SendPath};
use crate::engine::EngineFailed;
use crate::slab::Slab;
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

/// The connections, by their ids.
#[derive(Debug)]
pub(super) struct Table {
    all: Slab<Box<Conn>, 16, 0, 0xffff>,
    /// To be stepped, each listed once.
    pub(super) active: VecDeque<u32>,
    /// With bytes that have come before a receive, each listed once.
    pub(super) waiting: Vec<u32>,
}

impl Table {
    /// A table of at most `limit` connections.
    pub(super) fn new(limit: usize) -> Table {
        Table {
            all: Slab::spread(limit),
            active: VecDeque::new(),
            waiting: Vec::new(),
        }
    }

    /// A new connection; `None` at the limit.
    pub(super) fn open(
        &mut self,
        link: usize,
        phase: Phase,
        ends: (SocketAddrV4, SocketAddrV4),
    ) -> Option<ConnId> {
        let conn = |id| Box::new(Conn::new(ConnId(id), link, phase, ends));
        self.all.insert_with(conn).map(ConnId)
    }

    /// The connection with an id.
    #[inline]
    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut Conn> {
        self.all.get_mut(id).map(|c| &mut **c)
    }

    /// As [`get_mut`](Table::get_mut), to look at.
    #[inline]
    pub(super) fn get(&self, id: u32) -> Option<&Conn> {
        self.all.get(id).map(|c| &**c)
    }

    /// Takes a connection out for a call, so that it is borrowed apart from the others.
    #[inline]
    pub(super) fn take(&mut self, id: u32) -> Option<Box<Conn>> {
        self.all.lend(id)
    }

    /// Gives back what [`take`](Table::take) has taken.
    #[inline]
    pub(super) fn put(&mut self, conn: Box<Conn>) {
        self.all.give_back(conn.id.0, conn);
    }

    /// Ends a connection: its id is invalid from now on.
    pub(super) fn free(&mut self, id: u32) -> Option<Box<Conn>> {
        self.all.remove(id)
    }

    /// Lists a connection to be stepped.
    #[inline]
    pub(super) fn activate(&mut self, id: u32) {
        if let Some(c) = self.get_mut(id) {
            if !std::mem::replace(&mut c.active, true) {
                self.active.push_back(id);
            }
        }
    }

    /// Ids of the connections of a link.
    pub(super) fn of_link(&self, link: usize) -> Vec<u32> {
        self.all.ids(|c| c.link == link)
    }
}
