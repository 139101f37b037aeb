//! Demultiplexing of segments: a slab of connections and a hash table over 4-tuples.
//!
//! smoltcp asks every socket of its set whether a packet is for it; with 1,000 connections most of
//! the time goes there. Here each connection has a socket set of its own, found in one look-up.

use std::collections::HashMap;

use super::conn::Conn;
use super::key::{Key, KeyHash};
use crate::types::ConnId;

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

/// All connections.
#[derive(Debug)]
pub(super) struct Table {
    slots: Vec<Slot>,
    free: Vec<usize>,
    by_key: HashMap<Key, usize, KeyHash>,
    /// The last connection found: segments come in trains.
    last: Option<(Key, usize)>,
    limit: usize,
}

impl Table {
    pub(super) fn new(limit: usize, secret: u64) -> Table {
        Table {
            slots: Vec::new(),
            free: Vec::new(),
            by_key: HashMap::with_hasher(KeyHash(secret)),
            last: None,
            limit: limit.min(CONNECTIONS_MAX),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn has_room(&self) -> bool {
        self.len() < self.limit
    }

    pub(super) fn find(&mut self, key: Key) -> Option<usize> {
        match self.last {
            Some((k, index)) if k == key => Some(index),
            _ => {
                let index = *self.by_key.get(&key)?;
                self.last = Some((key, index));
                Some(index)
            }
        }
    }

    /// Adds a connection made for the id and index that it is given. The key must be free.
    pub(super) fn insert(&mut self, key: Key, make: impl FnOnce(ConnId) -> Conn) -> Option<usize> {
        if !self.has_room() {
            return None;
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() - 1
        });
        let id = ConnId(self.slots[index].generation << INDEX_BITS | index as u32);
        self.slots[index].conn = Some(Box::new(make(id)));
        self.by_key.insert(key, index);
        Some(index)
    }

    pub(super) fn remove(&mut self, index: usize) -> Option<Box<Conn>> {
        let slot = self.slots.get_mut(index)?;
        let conn = slot.conn.take()?;
        slot.generation = slot.generation.wrapping_add(1) & (u32::MAX >> INDEX_BITS);
        self.forget_key(conn.key, index);
        self.free.push(index);
        Some(conn)
    }

    /// Frees the addresses of this connection, which has no peer any more, for another one.
    pub(super) fn detach(&mut self, index: usize) {
        if let Some(key) = self.at(index).map(|c| c.key) {
            self.forget_key(key, index);
        }
    }

    fn forget_key(&mut self, key: Key, index: usize) {
        // After a `detach` they may be another's.
        if self.by_key.get(&key) == Some(&index) {
            self.by_key.remove(&key);
            self.last = None;
        }
    }

    /// Whether there is such a connection, without touching it.
    pub(super) fn has(&self, index: usize) -> bool {
        self.slots.get(index).is_some_and(|s| s.conn.is_some())
    }

    /// Slots, with a connection or without.
    pub(super) fn slots(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn at(&mut self, index: usize) -> Option<&mut Conn> {
        self.slots.get_mut(index)?.conn.as_deref_mut()
    }

    /// The connection with this id, unless its id was given back.
    pub(super) fn by_id(&mut self, id: ConnId) -> Option<&mut Conn> {
        self.at(index_of(id))
            .filter(|c| c.id == id && !c.is_orphan())
    }

    pub(super) fn get_by_id(&self, id: ConnId) -> Option<&Conn> {
        let conn = self.slots.get(index_of(id))?.conn.as_deref()?;
        (conn.id == id && !conn.is_orphan()).then_some(conn)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &Conn)> {
        self.slots
            .iter()
            .enumerate()
            .filter_map(|(i, s)| Some((i, s.conn.as_deref()?)))
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddrV4};

    use super::*;
    use crate::transport::tcp::conn::Phase;
    use crate::transport::tcp::TcpConfig;

    fn add(table: &mut Table, remote_port: u16) -> (Key, usize, ConnId) {
        let config = TcpConfig::default();
        let local = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 80);
        let peer = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 2), remote_port);
        let key = Key::of(peer, 80);
        let made = |id| Conn::new(id, local, peer, Phase::Open, &config);
        let index = table.insert(key, made).expect("there is room");
        let id = table.at(index).expect("just made").id;
        (key, index, id)
    }

    #[test]
    fn a_removed_connection_is_found_by_neither_addresses_nor_id() {
        let mut table = Table::new(4, 7);
        let (first, index, id) = add(&mut table, 4000);
        assert_eq!(table.find(first), Some(index));
        assert!(table.remove(index).is_some() && table.remove(index).is_none());
        assert_eq!((table.find(first), table.len()), (None, 0));
        assert!(table.by_id(id).is_none() && table.get_by_id(id).is_none());
        // Another one in its place.
        let (second, again, other) = add(&mut table, 4001);
        assert_eq!(again, index);
        assert_eq!((table.find(first), table.find(second)), (None, Some(index)));
        assert!(table.by_id(id).is_none() && table.by_id(other).is_some());
    }

    #[test]
    fn detached_addresses_are_the_next_ones() {
        let mut table = Table::new(4, 7);
        let (key, old, id) = add(&mut table, 4000);
        assert_eq!(table.find(key), Some(old));
        table.detach(old);
        assert_eq!(table.find(key), None);
        assert!(table.by_id(id).is_some());
        let (same, new, _) = add(&mut table, 4000);
        assert_eq!((same, table.find(key)), (key, Some(new)));
        table.detach(old);
        table.remove(old);
        assert_eq!((table.find(key), table.len()), (Some(new), 1));
    }
}
