//! All connections: a slab, found by the numbers of their queue pairs.

use rustc_hash::FxHashMap;

use super::conn::Conn;
use super::random::Numbers;
use crate::types::ConnId;
use crate::wire::roce::Qpn;

const INDEX_BITS: u32 = 20;
/// Most connections of one transport, those that are ending included.
pub const CONNECTIONS_MAX: usize = 1 << INDEX_BITS;

/// The index part of an id.
pub(super) fn index_of(id: ConnId) -> usize {
    (id.0 & ((1 << INDEX_BITS) - 1)) as usize
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    conn: Option<Box<Conn>>,
}

#[derive(Debug)]
pub(super) struct Table {
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// The numbers are ours, drawn at random: no peer chooses which collide.
    by_qpn: FxHashMap<Qpn, usize>,
    limit: usize,
}

impl Table {
    pub(super) fn new(limit: usize) -> Table {
        Table {
            slots: Vec::new(),
            free: Vec::new(),
            by_qpn: FxHashMap::default(),
            limit: limit.min(CONNECTIONS_MAX),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn has_room(&self) -> bool {
        self.len() < self.limit
    }

    /// A number for the communication management: its low 24 bits are the number of a queue pair that is free.
    pub(super) fn draw(&self, numbers: &mut Numbers) -> u32 {
        loop {
            let id = numbers.draw() as u32;
            let qpn = Qpn::new(id);
            // 0 and 1 are for management, all ones for multicast (IBTA vol. 1 §3.5.10).
            let is_reserved = qpn.value() < 2 || qpn == Qpn::new(u32::MAX);
            if !is_reserved && !self.by_qpn.contains_key(&qpn) {
                return id;
            }
        }
    }

    /// Adds a connection made for its id; its queue pair's number must be free.
    pub(super) fn insert(&mut self, qpn: Qpn, make: impl FnOnce(ConnId) -> Conn) -> Option<usize> {
        if !self.has_room() {
            return None;
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() - 1
        });
        let id = ConnId(self.slots[index].generation << INDEX_BITS | index as u32);
        self.slots[index].conn = Some(Box::new(make(id)));
        self.by_qpn.insert(qpn, index);
        Some(index)
    }

    pub(super) fn remove(&mut self, index: usize) -> Option<Box<Conn>> {
        let slot = self.slots.get_mut(index)?;
        let conn = slot.conn.take()?;
        slot.generation = slot.generation.wrapping_add(1) & (u32::MAX >> INDEX_BITS);
        self.by_qpn.remove(&conn.qpn());
        self.free.push(index);
        Some(conn)
    }

    pub(super) fn find(&self, qpn: Qpn) -> Option<usize> {
        self.by_qpn.get(&qpn).copied()
    }

    pub(super) fn at(&mut self, index: usize) -> Option<&mut Conn> {
        self.slots.get_mut(index)?.conn.as_deref_mut()
    }

    /// The connection of an id, unless it was given back.
    pub(super) fn by_id(&mut self, id: ConnId) -> Option<&mut Conn> {
        self.at(index_of(id))
            .filter(|c| c.id == id && !c.is_orphan())
    }

    pub(super) fn get_by_id(&self, id: ConnId) -> Option<&Conn> {
        let conn = self.slots.get(index_of(id))?.conn.as_deref()?;
        Some(conn).filter(|c| c.id == id && !c.is_orphan())
    }

    pub(super) fn iter(&mut self) -> impl Iterator<Item = (usize, &mut Conn)> {
        let slots = self.slots.iter_mut().enumerate();
        slots.filter_map(|(i, s)| Some((i, s.conn.as_deref_mut()?)))
    }
}
