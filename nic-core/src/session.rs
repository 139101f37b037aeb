//! The session table, indexed by 24-bit session ids.
//!
//! An id is a slot (low 16 bits) and the slot's generation (high 8), so that the id of a closed
//! session is refused although its slot stays in use. Slots are reused oldest first, which makes a
//! stale id match again only after 256 uses of the whole free list.

use std::collections::VecDeque;
use std::net::SocketAddrV4;

use ringbell_nic_abi::{PdId, SessionId, Status};

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
    /// Failure of the first chained operation that failed (`CHAIN`): status and detail of those behind it.
    pub(crate) chain: Option<(Status, u64)>,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u8,
    session: Option<Session>,
}

/// All sessions of a NIC.
#[derive(Debug)]
pub(crate) struct Sessions {
    slots: Vec<Slot>,
    free: VecDeque<u32>,
    limit: usize,
}

impl Sessions {
    /// A table of at most `limit` sessions (at most 65,536).
    pub(crate) fn new(limit: usize) -> Sessions {
        Sessions {
            slots: Vec::new(),
            free: VecDeque::new(),
            limit,
        }
    }

    /// A new idle session, or `None` at the limit.
    pub(crate) fn open(&mut self, pd: PdId) -> Option<SessionId> {
        if self.slots.len() < self.limit {
            // Fresh slots first, so that an id stays unused for as long as possible.
            self.free.push_back(self.slots.len() as u32);
            self.slots.push(Slot::default());
            let last = self.free.pop_back();
            return last.map(|slot| self.fill(slot, pd));
        }
        let slot = self.free.pop_front()?;
        Some(self.fill(slot, pd))
    }

    fn fill(&mut self, slot: u32, pd: PdId) -> SessionId {
        let s = &mut self.slots[slot as usize];
        s.session = Some(Session {
            pd,
            state: State::Idle,
            local: None,
            peer: None,
            tx_bytes: 0,
            rx_bytes: 0,
            why: "",
            chain: None,
        });
        SessionId(slot | u32::from(s.generation) << 16)
    }

    /// The session of an id that a queue of domain `pd` has presented.
    pub(crate) fn get(&mut self, id: SessionId, pd: PdId) -> Option<&mut Session> {
        let slot = self.slots.get_mut(slot_of(id) as usize)?;
        if u32::from(slot.generation) != id.0 >> 16 {
            return None;
        }
        slot.session.as_mut().filter(|s| s.pd == pd)
    }

    /// The session in a slot, when it is open.
    pub(crate) fn at(&mut self, slot: u32) -> Option<&mut Session> {
        self.slots.get_mut(slot as usize)?.session.as_mut()
    }

    /// A chained operation has failed: those behind it fail with its status.
    #[cold]
    pub(crate) fn end_chain(&mut self, id: SessionId, status: Status, detail: u64) {
        let slot = slot_of(id);
        // Its session may be closed by now, and its slot another's.
        if self.id(slot) == id {
            if let Some(session) = self.at(slot) {
                session.chain.get_or_insert((status, detail));
            }
        }
    }

    /// The id of an open slot.
    pub(crate) fn id(&self, slot: u32) -> SessionId {
        let generation = self.slots.get(slot as usize).map_or(0, |s| s.generation);
        SessionId(slot | u32::from(generation) << 16)
    }

    /// Frees a slot: its id is refused from now on.
    pub(crate) fn close(&mut self, slot: u32) -> Option<Session> {
        let s = self.slots.get_mut(slot as usize)?;
        let session = s.session.take()?;
        s.generation = s.generation.wrapping_add(1);
        self.free.push_back(slot);
        Some(session)
    }

    /// Open slots.
    pub(crate) fn open_slots(&self) -> Vec<u32> {
        let all = self.slots.iter().enumerate();
        all.filter(|(_, s)| s.session.is_some())
            .map(|(i, _)| i as u32)
            .collect()
    }

    /// Most sessions that may be open.
    pub(crate) fn limit(&self) -> u64 {
        self.limit as u64
    }

    /// Number of open sessions.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Read access to every open session.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (SessionId, &Session)> {
        self.slots.iter().enumerate().filter_map(|(i, s)| {
            let id = SessionId(i as u32 | u32::from(s.generation) << 16);
            s.session.as_ref().map(|x| (id, x))
        })
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
