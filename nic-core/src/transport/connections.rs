//! Connections, listeners and ephemeral ports of a transport that sends packets.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, Hash};
use std::net::{Ipv4Addr, SocketAddrV4};

use ringbell_nic_abi::Status;

use super::life::Life;
use super::TransportEvent;
use crate::network::{Network, Protocol, Routes, Waiter};
use crate::slab::Slab;
use crate::types::{ConnId, ListenerId};

const INDEX_BITS: u32 = 20;
const LAST_GENERATION: u32 = u32::MAX >> INDEX_BITS;
/// Most connections of one transport, those that are ending included.
pub const CONNECTIONS_MAX: usize = 1 << INDEX_BITS;

/// The index part of an id.
pub(super) fn index_of(id: ConnId) -> usize {
    Slots::<()>::index_of(id.0)
}

/// A connection, by its packets and its life.
pub(super) trait Connection {
    /// What its packets carry.
    type Key: Copy + Eq + Hash;

    fn key(&self) -> Self::Key;
    fn life(&self) -> &Life;
    fn life_mut(&mut self) -> &mut Life;
}

/// Indices by keys. Where peers choose these, as for TCP, a seed keys the hasher.
#[allow(clippy::disallowed_types)]
type ByKey<K, S> = std::collections::HashMap<K, usize, S>;

type Slots<C> = Slab<Box<C>, INDEX_BITS, 0, LAST_GENERATION>;

/// All connections: each is found by index, by id, and by the key of its packets.
#[derive(Debug)]
pub(super) struct Connections<C: Connection, S> {
    slots: Slots<C>,
    by_key: ByKey<C::Key, S>,
    /// The last connection found: packets come in trains.
    last: Option<(C::Key, usize)>,
    /// Hops that connections have ended with, to be given back to the network.
    released: Vec<(usize, usize)>,
}

impl<C: Connection, S: BuildHasher> Connections<C, S> {
    pub(super) fn new(limit: usize, hasher: S) -> Connections<C, S> {
        Connections {
            slots: Slots::new(limit),
            by_key: ByKey::with_hasher(hasher),
            last: None,
            released: Vec::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn has_room(&self) -> bool {
        self.slots.next().is_some()
    }

    pub(super) fn find(&mut self, key: C::Key) -> Option<usize> {
        match self.last {
            Some((k, index)) if k == key => Some(index),
            _ => {
                let index = *self.by_key.get(&key)?;
                self.last = Some((key, index));
                Some(index)
            }
        }
    }

    /// Adds a connection made for its id, unless there are too many. Its key must be free.
    pub(super) fn insert(&mut self, make: impl FnOnce(ConnId) -> C) -> Option<ConnId> {
        let make = |id| Box::new(make(ConnId(id)));
        let id = self.slots.insert_with(make)?;
        let index = Slots::<C>::index_of(id);
        let key = self.slots.at(index)?.key();
        self.by_key.insert(key, index);
        Some(ConnId(id))
    }

    pub(super) fn remove(&mut self, index: usize) -> Option<Box<C>> {
        let conn = self.slots.remove_at(index)?;
        self.forget_key(conn.key(), index);
        self.released
            .extend(conn.life().hop.map(|hop| (hop, index)));
        Some(conn)
    }

    /// Frees the key of this connection, which has no peer any more, for another one.
    pub(super) fn detach(&mut self, index: usize) {
        if let Some(key) = self.at(index).map(|c| c.key()) {
            self.forget_key(key, index);
        }
    }

    fn forget_key(&mut self, key: C::Key, index: usize) {
        // After a `detach` it may be another's.
        if self.by_key.get(&key) == Some(&index) {
            self.by_key.remove(&key);
            self.last = None;
        }
    }

    /// Whether there is such a connection, without touching it.
    pub(super) fn has(&self, index: usize) -> bool {
        self.slots.at(index).is_some()
    }

    pub(super) fn at(&mut self, index: usize) -> Option<&mut C> {
        self.slots.at_mut(index).map(|c| &mut **c)
    }

    /// The connection with this id, unless its id was given back.
    pub(super) fn by_id(&mut self, id: ConnId) -> Option<&mut C> {
        let conn = self.slots.get_mut(id.0)?;
        (!conn.life().is_orphan()).then_some(conn)
    }

    pub(super) fn get_by_id(&self, id: ConnId) -> Option<&C> {
        let conn = self.slots.get(id.0)?;
        (!conn.life().is_orphan()).then_some(conn)
    }

    pub(super) fn iter(&mut self) -> impl Iterator<Item = (usize, &mut C)> {
        let slots = self.slots.iter_mut();
        slots.map(|(id, c)| (Slots::<C>::index_of(id), &mut **c))
    }

    /// Connections whose handshake with this listener is not over.
    pub(super) fn half_open(&mut self, listener: ListenerId) -> Vec<usize> {
        let of_it = |c: &C| c.life().listener() == Some(listener);
        let conns = self.iter().filter(|(_, c)| of_it(c));
        conns.map(|(i, _)| i).collect()
    }

    /// Has the network get a hop back that no connection uses.
    pub(super) fn give_back(&mut self, hop: usize) {
        self.released.push((hop, usize::MAX));
    }

    /// Whether connections have ended with a hop.
    pub(super) fn has_released(&self) -> bool {
        !self.released.is_empty()
    }

    /// Gives the network the hops back that connections have ended with.
    pub(super) fn release_hops(&mut self, net: &mut Network, protocol: Protocol) {
        for (hop, index) in self.released.drain(..) {
            net.release(hop, Waiter { protocol, index });
        }
    }
}

/// A port that takes connections.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) id: ListenerId,
    pub(super) backlog: usize,
    /// Handshakes under way.
    pub(super) half_open: usize,
    /// Connections whose `Incoming` was not polled.
    pub(super) ready: usize,
}

impl Listener {
    pub(super) fn has_room(&self) -> bool {
        self.half_open + self.ready < self.backlog
    }
}

/// The listeners of a transport.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    by_port: BTreeMap<u16, Listener>,
    next: u32,
}

impl Listeners {
    /// See [`Transport::listen`](super::Transport::listen).
    pub(super) fn listen(&mut self, port: u16, backlog: usize) -> Result<ListenerId, Status> {
        if port == 0 {
            return Err(Status::BadDescriptor);
        }
        if self.by_port.contains_key(&port) {
            return Err(Status::AddressInUse);
        }
        let id = ListenerId(self.next);
        self.next = self.next.wrapping_add(1);
        let listener = Listener {
            id,
            backlog: backlog.max(1),
            half_open: 0,
            ready: 0,
        };
        self.by_port.insert(port, listener);
        Ok(id)
    }

    pub(super) fn unlisten(&mut self, id: ListenerId) {
        self.by_port.retain(|_, l| l.id != id);
    }

    pub(super) fn at(&self, port: u16) -> Option<&Listener> {
        self.by_port.get(&port)
    }

    fn of(&mut self, id: ListenerId) -> Option<&mut Listener> {
        self.by_port.values_mut().find(|l| l.id == id)
    }

    pub(super) fn has(&self, id: ListenerId) -> bool {
        self.by_port.values().any(|l| l.id == id)
    }

    /// A handshake has begun.
    pub(super) fn handshake(&mut self, id: ListenerId) {
        if let Some(l) = self.of(id) {
            l.half_open += 1;
        }
    }

    /// A handshake is over; when it `succeeded`, one connection more is to be polled.
    pub(super) fn handshake_over(&mut self, id: ListenerId, succeeded: bool) {
        if let Some(l) = self.of(id) {
            l.half_open = l.half_open.saturating_sub(1);
            l.ready += usize::from(succeeded);
        }
    }

    /// Takes the next event. A connection that it reports leaves the backlog.
    pub(super) fn poll(&mut self, events: &mut VecDeque<TransportEvent>) -> Option<TransportEvent> {
        let event = events.pop_front()?;
        if let TransportEvent::Incoming { listener, .. } = event {
            if let Some(l) = self.of(listener) {
                l.ready = l.ready.saturating_sub(1);
            }
        }
        Some(event)
    }
}

/// Local ports of outgoing connections, each in its turn.
#[derive(Debug)]
pub(super) struct EphemeralPorts {
    next: u16,
}

impl EphemeralPorts {
    /// First one (RFC 6335 §6).
    const FIRST: u16 = 49_152;

    /// Starts at a place that the random number decides.
    pub(super) fn new(random: u64) -> EphemeralPorts {
        let spread = (random >> 50) as u16 % (u16::MAX - Self::FIRST);
        EphemeralPorts {
            next: Self::FIRST + spread,
        }
    }

    /// Every port once.
    pub(super) fn once(&mut self) -> impl Iterator<Item = u16> + '_ {
        (Self::FIRST..=u16::MAX).map(|_| {
            let port = self.next;
            self.next = port.checked_add(1).unwrap_or(Self::FIRST);
            port
        })
    }
}

/// Checks the address of an outgoing connection.
pub(super) fn check_remote(
    routes: &Routes,
    protocol: Protocol,
    own: Ipv4Addr,
    remote: SocketAddrV4,
) -> Result<(), Status> {
    let ip = *remote.ip();
    let is_valid = ringbell_net::is_host(ip) && ip != own && remote.port() != 0;
    match is_valid && routes.to(protocol, ip).is_some() {
        true => Ok(()),
        false => Err(Status::HostUnreachable),
    }
}

#[cfg(test)]
mod tests {
    use rustc_hash::FxBuildHasher;

    use super::*;
    use crate::transport::life::Phase;

    struct Conn {
        key: u16,
        life: Life,
    }

    impl Connection for Conn {
        type Key = u16;

        fn key(&self) -> u16 {
            self.key
        }

        fn life(&self) -> &Life {
            &self.life
        }

        fn life_mut(&mut self) -> &mut Life {
            &mut self.life
        }
    }

    type Table = Connections<Conn, FxBuildHasher>;

    fn add(table: &mut Table, key: u16) -> (usize, ConnId) {
        let none = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);
        let id = table.insert(|id| {
            let mut life = Life::new(id, (none, none), Phase::Open);
            life.hop = Some(key.into());
            Conn { key, life }
        });
        let id = id.expect("there is room");
        (index_of(id), id)
    }

    #[test]
    fn a_removed_connection_is_found_by_neither_key_nor_id() {
        let mut table = Table::new(4, FxBuildHasher);
        let (index, id) = add(&mut table, 4000);
        assert_eq!(table.find(4000), Some(index));
        assert!(table.remove(index).is_some() && table.remove(index).is_none());
        assert_eq!((table.find(4000), table.len()), (None, 0));
        assert!(table.by_id(id).is_none() && table.get_by_id(id).is_none());
        assert_eq!(table.released, [(4000, index)]);
        // Another one in its place.
        let (again, other) = add(&mut table, 4001);
        assert_eq!(again, index);
        assert_eq!((table.find(4000), table.find(4001)), (None, Some(index)));
        assert!(table.by_id(id).is_none() && table.by_id(other).is_some());
    }

    #[test]
    fn a_detached_key_is_the_next_ones() {
        let mut table = Table::new(4, FxBuildHasher);
        let (old, id) = add(&mut table, 4000);
        assert_eq!(table.find(4000), Some(old));
        table.detach(old);
        assert_eq!(table.find(4000), None);
        assert!(table.by_id(id).is_some());
        let (new, _) = add(&mut table, 4000);
        assert_eq!(table.find(4000), Some(new));
        table.detach(old);
        table.remove(old);
        assert_eq!((table.find(4000), table.len()), (Some(new), 1));
    }

    #[test]
    fn ephemeral_ports_come_once_each_and_go_round() {
        for random in [0, 1 << 50, u64::MAX] {
            let mut ports = EphemeralPorts::new(random);
            let all: std::collections::BTreeSet<u16> = ports.once().collect();
            assert_eq!(all.len(), 1 << 14);
            assert_eq!(all.first(), Some(&EphemeralPorts::FIRST));
        }
    }
}
