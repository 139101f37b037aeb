//! The connections of the transport: by id, and which of them have something to do.

use std::collections::VecDeque;
use std::net::SocketAddrV4;

use super::conn::{Conn, Phase};
use crate::types::ConnId;

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

    /// Lists a connection whose bytes wait without a receive.
    pub(super) fn wait(&mut self, id: u32) {
        if let Some(c) = self.get_mut(id) {
            if !std::mem::replace(&mut c.waiting, true) {
                self.waiting.push(id);
            }
        }
    }

    /// Ids of the connections of a link.
    pub(super) fn of_link(&self, link: usize) -> Vec<u32> {
        let all = self.slots.iter().filter_map(|s| s.conn.as_deref());
        all.filter(|c| c.link == link).map(|c| c.id.0).collect()
    }
}
