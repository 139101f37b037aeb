//! The fabric's state of one communicator: its members, messages that wait for a
//! receive, receives that wait for a message, and the receive buffers.

use std::collections::VecDeque;
use std::net::SocketAddrV4;

use rustc_hash::FxHashMap;

use crate::memory::nic_memory::Block;
use crate::types::Owner;

/// Messages of one rank that may wait for a receive; more is no program but a fault.
pub(crate) const MAX_EARLY: usize = 1 << 16;
/// Bit of the tags of user messages; the rest is the user's tag.
pub(crate) const USER_TAG: u64 = 1 << 63;
/// Further bit of those that belong to streams: no receive of messages takes them.
pub(crate) const STREAM_TAG: u64 = 1 << 62;

/// A peer of a communicator.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    pub(crate) address: SocketAddrV4,
    /// The link, once there is one.
    pub(crate) link: Option<usize>,
    /// The communicator has been announced to the peer on this link.
    pub(crate) told: bool,
    /// The peer has announced the communicator.
    pub(crate) joined: bool,
    /// The peer has freed the communicator.
    pub(crate) left: bool,
    /// The peer cannot be reached any more.
    pub(crate) lost: bool,
    /// A message of an operation could not leave to it, and never will.
    pub(crate) missed: bool,
    /// Eager messages that we may send before the peer frees a buffer.
    pub(crate) credits: u32,
    /// Longest eager message that the peer takes.
    pub(crate) eager_max: u64,
    /// Its area of the direct path, from its `Join`.
    pub(crate) area: u32,
    /// Its card executes programs of rings, says its `Join`.
    pub(crate) card: bool,
    /// Buffers that are free again but not yet announced to the peer.
    pub(crate) pending_credits: u32,
    /// Our free receive buffers for this peer.
    pub(crate) free: Vec<u32>,
    /// Messages of this peer that wait for a receive.
    pub(crate) early: usize,
}

/// How a message that came before its receive waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EarlyKind {
    /// In a receive buffer; `ready` once it is there as a whole.
    Buffered { buffer: Option<u32>, ready: bool },
    /// At the sender.
    Requested,
    /// In this rank's own memory: the sender is this rank.
    Own,
    /// It is the receive of a message that this rank will send, under this key.
    Receive(u32),
}

/// A message without a receive.
#[derive(Debug)]
pub(crate) struct Early {
    pub(crate) ctx: u64,
    pub(crate) from: u32,
    pub(crate) tag: u64,
    pub(crate) len: u64,
    pub(crate) hash: u32,
    pub(crate) send: u32,
    pub(crate) kind: EarlyKind,
    /// The receive that has met it while it was arriving.
    pub(crate) claimed: Option<u32>,
}

/// A receive of user messages that waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UserRecv {
    pub(crate) id: u32,
    pub(crate) from: Option<u32>,
    pub(crate) tag: Option<u64>,
}

impl UserRecv {
    /// Whether a message may meet this receive.
    pub(crate) fn takes(&self, from: u32, tag: u64) -> bool {
        self.from.is_none_or(|f| f == from) && self.tag.map_or(tag & STREAM_TAG == 0, |t| t == tag)
    }
}

/// Messages that go straight to their receives, before both are known: by peer and tag.
#[derive(Debug, Default)]
pub(crate) struct Writes {
    /// Receives that peers have announced, as early messages.
    pub(crate) ready: FxHashMap<(u32, u64), u32>,
    /// Sends, and the hash of each.
    pub(crate) waiting: FxHashMap<(u32, u64), (u32, u32)>,
}

/// How the messages of a communicator went.
#[derive(Debug, Default)]
pub(crate) struct MessageCounts {
    pub(crate) eager: u64,
    pub(crate) rendezvous: u64,
    /// Written to receives that the peer has announced.
    pub(crate) written: u64,
    /// Small ones that went by rendezvous because the peer had no buffer free.
    pub(crate) without_credit: u64,
    /// Those that came before their receive, and receives that were announced before their message.
    pub(crate) unexpected: u64,
}

/// What a rank offers besides messages, as its `Join` has it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Offer {
    /// Its area of the direct path; 0: it has none.
    pub(crate) area: u32,
    /// Its card executes programs of rings.
    pub(crate) card: bool,
}

/// See the module text.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) ctx: u64,
    /// Owner of its payloads, for engines.
    pub(crate) by: Owner,
    pub(crate) rank: u32,
    /// Hash of what all ranks must be given alike.
    pub(crate) hash: u32,
    pub(crate) members: Vec<Member>,
    /// What this rank offers the others.
    pub(crate) offer: Offer,
    /// Longest eager message that we take.
    pub(crate) eager_max: u64,
    pub(crate) eager_buffers: u32,
    /// The receive buffers of all peers, in order of rank.
    pub(crate) buffers: Option<Block>,
    /// Receives of collective operations: by sender and tag.
    pub(crate) posted: FxHashMap<(u32, u64), u32>,
    /// Receives of user messages, oldest first.
    pub(crate) user_posted: VecDeque<UserRecv>,
    /// Collective messages without a receive: by sender and tag. (Tags are a peer's choice, but it can
    /// have no more of them here than [`Member::early`] allows.)
    pub(crate) early: FxHashMap<(u32, u64), u32>,
    pub(crate) writes: Writes,
    /// User messages without a receive, oldest first.
    pub(crate) user_early: VecDeque<u32>,
    /// Ended: only what is on the way is waited for.
    pub(crate) dead: bool,
    pub(crate) counts: MessageCounts,
}

impl Group {
    /// Where a receive buffer begins on NIC memory.
    pub(crate) fn buffer_at(&self, from: u32, buffer: u32) -> Option<u64> {
        let block = self.buffers?;
        let n = u64::from(from) * u64::from(self.eager_buffers) + u64::from(buffer);
        Some(block.at + n * self.eager_max)
    }

    /// Ranks that have not answered.
    pub(crate) fn missing(&self) -> Vec<u32> {
        let of = self.members.iter().enumerate();
        of.filter(|(r, m)| *r as u32 != self.rank && !(m.joined && m.told))
            .map(|(r, _)| r as u32)
            .collect()
    }

    /// Whether the cards of all ranks execute programs of rings.
    pub(crate) fn has_cards(&self) -> bool {
        let others = self.members.iter().enumerate();
        let mut others = others.filter(|(r, _)| *r as u32 != self.rank);
        self.offer.card && others.all(|(_, m)| m.card)
    }

    /// Whether every rank has answered.
    pub(crate) fn is_ready(&self) -> bool {
        let of = self.members.iter().enumerate();
        of.into_iter()
            .all(|(r, m)| r as u32 == self.rank || (m.joined && m.told))
    }
}
