//! The session table, indexed by 24-bit session ids.
//!
//! An id is a slot (low 16 bits) and the slot's generation (high 8), so that the id of a closed
//! session is refused although its slot stays in use. Slots are reused oldest first, which makes a
//! stale id match again only after 256 uses of the whole free list.

use std::collections::VecDeque;
use std::net::SocketAddrV4;

use ringbell_nic_abi::{PdId, SessionId, Status};

use crate::slab::Slab;
use crate::types::{ConnId, ListenerId, NicTime, WorkToken};

/// The slot of a session's id.
#[inline]
pub(crate) fn slot_of(id: SessionId) -> u32 {
    id.0 & 0xffff
}

/// A connection that a transport has accepted and no `ACCEPT` has taken yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Incoming {
    pub(crate) transport: usize,
    pub(crate) conn: ConnId,
    pub(crate) peer: SocketAddrV4,
    pub(crate) peer_closed: bool,
    pub(crate) reset: bool,
}

/// A listening session.
#[derive(Debug, Default)]
pub(crate) struct Listening {
    pub(crate) listeners: Vec<(usize, ListenerId)>,
    pub(crate) backlog: usize,
    pub(crate) pending: VecDeque<Incoming>,
    pub(crate) accepts: VecDeque<WorkToken>,
}

/// An established stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stream {
    pub(crate) transport: usize,
    pub(crate) conn: ConnId,
    pub(crate) shut: bool,
    pub(crate) reset: bool,
    pub(crate) peer_closed: bool,
}

/// State of a session.
#[derive(Debug)]
pub(crate) enum State {
    /// Allocated, nothing else.
    Idle,
    /// Waiting for peers.
    Listening(Listening),
    /// A `CONNECT` is under way.
    Connecting {
        work: WorkToken,
        transport: usize,
        conn: ConnId,
        /// When the transports must have given up.
        deadline: NicTime,
    },
    /// Bytes flow.
    Stream(Stream),
    /// A time-out or a fault has ended the stream; only `CLOSE` is left.
    Broken,
}

/// One session.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) pd: PdId,
    pub(crate) state: State,
    pub(crate) local: Option<SocketAddrV4>,
    pub(crate) peer: Option<SocketAddrV4>,
    pub(crate) tx_bytes: u64,
    pub(crate) rx_bytes: u64,
    pub(crate) why: &'static str,
    /// Failure of the first chained operation that failed (`CHAIN`): status and detail of those
    /// behind it.
    pub(crate) chain: Option<(Status, u64)>,
}

/// All sessions of a NIC.
#[derive(Debug)]
pub(crate) struct Sessions {
    all: Slab<Session, 16, 0, 0xff>,
}

impl Sessions {
    /// A table of at most `limit` sessions (at most 65,536).
    pub(crate) fn new(limit: usize) -> Sessions {
        Sessions {
            all: Slab::spread(limit),
        }
    }

    /// A new idle session, or `None` at the limit.
    pub(crate) fn open(&mut self, pd: PdId) -> Option<SessionId> {
        let session = Session {
            pd,
            state: State::Idle,
            local: None,
            peer: None,
            tx_bytes: 0,
            rx_bytes: 0,
            why: "",
            chain: None,
        };
        self.all.insert(session).map(SessionId)
    }

    /// The session of an id that a queue of domain `pd` has presented.
    pub(crate) fn get(&mut self, id: SessionId, pd: PdId) -> Option<&mut Session> {
        self.all.get_mut(id.0).filter(|s| s.pd == pd)
    }

    /// The session in a slot, when it is open.
    pub(crate) fn at(&mut self, slot: u32) -> Option<&mut Session> {
        self.all.at_mut(slot as usize)
    }

    /// A chained operation has failed: those behind it fail with its status.
    #[cold]
    pub(crate) fn end_chain(&mut self, id: SessionId, status: Status, detail: u64) {
        // Its session may be closed by now, and its slot another's.
        if let Some(session) = self.all.get_mut(id.0) {
            session.chain.get_or_insert((status, detail));
        }
    }

    /// The id of an open slot.
    pub(crate) fn id(&self, slot: u32) -> SessionId {
        SessionId(self.all.number_at(slot as usize))
    }

    /// Frees a slot: its id is refused from now on.
    pub(crate) fn close(&mut self, slot: u32) -> Option<Session> {
        self.all.remove_at(slot as usize)
    }

    /// Open slots.
    pub(crate) fn open_slots(&self) -> Vec<u32> {
        self.iter().map(|(id, _)| slot_of(id)).collect()
    }

    /// Most sessions that may be open.
    pub(crate) fn limit(&self) -> u64 {
        self.all.limit() as u64
    }

    /// Number of open sessions.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Read access to every open session.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (SessionId, &Session)> {
        self.all.iter().map(|(id, s)| (SessionId(id), s))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_and_foreign_ids_are_refused() {
        let mut t = Sessions::new(2);
        let a = t.open(PdId(1)).expect("room");
        let b = t.open(PdId(1)).expect("room");
        assert!(t.open(PdId(1)).is_none());
        assert!(t.get(a, PdId(1)).is_some() && t.get(a, PdId(2)).is_none());
        assert!(t.close(a.0 & 0xffff).is_some() && t.close(a.0 & 0xffff).is_none());
        assert!(t.get(a, PdId(1)).is_none());
        let c = t.open(PdId(1)).expect("room again");
        assert_eq!(c.0 & 0xffff, a.0 & 0xffff);
        assert!(c != a && t.get(a, PdId(1)).is_none() && t.get(c, PdId(1)).is_some());
        assert!(t.get(b, PdId(1)).is_some());
        assert!(t.get(SessionId(0xff_ffff), PdId(1)).is_none());
    }

    /// As long as the slot has generations: no number of reuses below that brings a stale id back.
    #[test]
    fn a_stale_id_is_refused_through_255_reuses_of_its_slot() {
        let mut t = Sessions::new(1);
        let mut stale = Vec::new();
        let mut id = t.open(PdId(1)).expect("room");
        for n in 0..255 {
            stale.push(id);
            assert!(t.close(id.0 & 0xffff).is_some());
            id = t.open(PdId(1)).expect("room again");
            assert!(t.get(id, PdId(1)).is_some());
            assert_eq!(t.id(0), id);
            for (age, old) in stale.iter().enumerate() {
                assert!(t.get(*old, PdId(1)).is_none(), "use {age} after use {n}");
            }
        }
        assert!(t.close(id.0 & 0xffff).is_some());
        assert_eq!(t.open(PdId(1)), Some(stale[0]), "generations are 8 bits");
    }
}
