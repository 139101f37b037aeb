//! Messages to several members that are under way ([`copies`](super::copies)).

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use crate::link::Pieces;
use crate::slab::Slab;
use crate::types::NicTime;

/// A member of a message to several.
#[derive(Debug)]
pub(super) struct To {
    pub(super) rank: u32,
    /// The message to it alone, among those under way.
    pub(super) send: u32,
    /// Its receive and the key of its memory, once they are announced.
    pub(super) announced: Option<(u32, u32)>,
}

/// A message to several.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) ctx: u64,
    pub(super) tag: u64,
    pub(super) pieces: Pieces,
    /// Those that do not have it yet.
    pub(super) members: Vec<To>,
    pub(super) sent: u64,
    pub(super) ask_at: Option<NicTime>,
}

/// A message to several that arrives.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) recv: u32,
    pub(super) next: u64,
    /// How much had come when the sender asked last.
    pub(super) asked: Option<u64>,
    /// It comes singly: frames that are late are dropped.
    pub(super) singly: bool,
}

/// All of a NIC.
#[derive(Debug, Default)]
pub(super) struct Copies {
    pub(super) outgoing: Slab<Outgoing>,
    /// Those whose frames leave, oldest first.
    pub(super) ready: VecDeque<u32>,
    /// By context, sender and the sender's number.
    pub(super) incoming: FxHashMap<(u64, u32, u32), Incoming>,
}

impl Copies {
    /// Whether frames wait to leave.
    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// A context has ended.
    pub(super) fn end(&mut self, ctx: u64) {
        for id in self.outgoing.ids(|o| o.ctx == ctx) {
            self.outgoing.remove(id);
        }
        let outgoing = &self.outgoing;
        self.ready.retain(|id| outgoing.get(*id).is_some());
        self.incoming.retain(|(c, _, _), _| *c != ctx);
    }

    /// When members are asked next.
    pub(super) fn next_timer(&self) -> Option<NicTime> {
        self.outgoing.iter().filter_map(|(_, o)| o.ask_at).min()
    }
}
