//! Connections: their phases and two halves, and the table by which ids find them.

use std::collections::VecDeque;
use std::net::SocketAddrV4;

use ringbell_nic_abi::Status;

use super::one_sided::OneSided;
use super::rx::Rx;
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

#[derive(Debug, Default)]
struct Slot {
    generation: u16,
    conn: Option<Box<Conn>>,
}

/// An id is a slot (low 16 bits) and the slot's generation (high 16), so that a stale id finds nothing.
#[derive(Debug, Default)]
pub(super) struct Table {
    slots: Vec<Slot>,
    free: VecDeque<u32>,
    /// To be stepped, each listed once.
    pub(super) active: VecDeque<u32>,
    /// With bytes that have come before a receive, each listed once.
    pub(super) waiting: Vec<u32>,
}

impl Table {
    /// A new connection; `None` when there are `limit` of them.
    pub(super) fn open(
        &mut self,
        limit: usize,
        link: usize,
        phase: Phase,
        ends: (SocketAddrV4, SocketAddrV4),
    ) -> Option<ConnId> {
        let slot = if self.slots.len() < limit {
            self.slots.push(Slot::default());
            (self.slots.len() - 1) as u32
        } else {
            self.free.pop_front()?
        };
        let s = &mut self.slots[slot as usize];
        let id = ConnId(slot | u32::from(s.generation) << 16);
        s.conn = Some(Box::new(Conn::new(id, link, phase, ends)));
        Some(id)
    }

    /// The connection with an id.
    #[inline]
    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut Conn> {
        let s = self.slots.get_mut((id & 0xffff) as usize)?;
        if u32::from(s.generation) != id >> 16 {
            return None;
        }
        s.conn.as_deref_mut()
    }

    /// As [`get_mut`](Table::get_mut), to look at.
    #[inline]
    pub(super) fn get(&self, id: u32) -> Option<&Conn> {
        let s = self.slots.get((id & 0xffff) as usize)?;
        s.conn.as_deref().filter(|c| c.id.0 == id)
    }

    /// Takes a connection out for a call, so that it is borrowed apart from the others.
    #[inline]
    pub(super) fn take(&mut self, id: u32) -> Option<Box<Conn>> {
        let s = self.slots.get_mut((id & 0xffff) as usize)?;
        if u32::from(s.generation) != id >> 16 {
            return None;
        }
        s.conn.take()
    }

    /// Gives back what [`take`](Table::take) has taken.
    #[inline]
    pub(super) fn put(&mut self, conn: Box<Conn>) {
        let slot = (conn.id.0 & 0xffff) as usize;
        self.slots[slot].conn = Some(conn);
    }

    /// Ends a connection: its id is invalid from now on.
    pub(super) fn free(&mut self, id: u32) -> Option<Box<Conn>> {
        let conn = self.take(id)?;
        let s = &mut self.slots[(id & 0xffff) as usize];
        s.generation = s.generation.wrapping_add(1);
        self.free.push_back(id & 0xffff);
        Some(conn)
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
        let all = self.slots.iter().filter_map(|s| s.conn.as_deref());
        all.filter(|c| c.link == link).map(|c| c.id.0).collect()
    }
}
