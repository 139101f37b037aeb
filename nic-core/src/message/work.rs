//! Messages that are to be sent or received, and those under way.

use super::matching::{is_user, Tags, Wanted, USER_TAG};
use crate::link::{Dest, Pieces};

/// A message to be sent.
#[derive(Debug)]
pub(crate) struct SendRequest {
    pub(crate) ctx: u64,
    pub(crate) to: u32,
    pub(crate) tag: u64,
    pub(crate) hash: u32,
    pub(crate) pieces: Pieces,
    /// Of a user message: it ends when a receive has met it, not when the peer keeps it.
    pub(crate) when_met: bool,
    pub(crate) key: u64,
}

/// A message to be received.
#[derive(Debug)]
pub(crate) struct RecvRequest {
    pub(crate) ctx: u64,
    /// Any member, when none: user messages alone.
    pub(crate) from: Option<u32>,
    /// Any tag, when none: user messages alone.
    pub(crate) tag: Option<u64>,
    pub(crate) hash: u32,
    pub(crate) pieces: Pieces,
    /// Messages that have not left may lie in its memory.
    pub(crate) in_use: bool,
    pub(crate) key: u64,
}

/// A message to this member and the receive that it has met.
#[derive(Debug)]
pub(crate) struct Own {
    /// Keys of both.
    pub(crate) send: u64,
    pub(crate) recv: u64,
    pub(crate) from: Pieces,
    pub(crate) to: Pieces,
    pub(crate) rank: u32,
    pub(crate) tag: u64,
}

/// A message that has not ended.
#[derive(Debug)]
pub(super) struct Sending {
    pub(super) ctx: u64,
    pub(super) to: u32,
    pub(super) pieces: Pieces,
    pub(super) key: u64,
    /// User messages end when the peer has taken them.
    pub(super) user: bool,
    pub(super) cleared: bool,
    pub(super) left: bool,
    pub(super) taken: bool,
    /// The message to several members of which it is one's.
    pub(super) part_of: Option<u32>,
}

impl Sending {
    /// One that nothing has happened to.
    pub(super) fn new(r: SendRequest, user: bool) -> Sending {
        Sending {
            ctx: r.ctx,
            to: r.to,
            pieces: r.pieces,
            key: r.key,
            user,
            cleared: false,
            left: false,
            taken: false,
            part_of: None,
        }
    }
}

/// A receive that has not ended.
#[derive(Debug)]
pub(super) struct Receiving {
    pub(super) ctx: u64,
    pub(super) pieces: Pieces,
    pub(super) key: u64,
    pub(super) user: bool,
    pub(super) from: Option<u32>,
    pub(super) tags: Tags,
    pub(super) hash: u32,
    /// It has no memory before it has met a message ([`claim`](super::claim)).
    pub(super) claim: Option<Claim>,
    /// As of the request.
    pub(super) in_use: bool,
    /// The message it has met, or, of an exposed one, will.
    pub(super) met: Option<Met>,
    /// The peer may write its memory.
    pub(super) exposed: bool,
}

/// How far a claim is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Claim {
    Waits,
    /// For the memory, or for the rest of the early message with this number.
    Met(u32),
}

impl Receiving {
    /// One that nothing has happened to.
    pub(super) fn new(r: RecvRequest) -> Receiving {
        Receiving {
            ctx: r.ctx,
            pieces: r.pieces,
            key: r.key,
            user: r.tag.is_none_or(is_user),
            from: r.from,
            tags: r.tag.map_or(Tags::Like(USER_TAG), Tags::One),
            hash: r.hash,
            claim: None,
            in_use: r.in_use,
            met: None,
            exposed: false,
        }
    }

    /// What it takes.
    pub(super) fn wanted(&self) -> Wanted {
        let (from, tags) = (self.from, self.tags);
        Wanted { from, tags }
    }
}

/// The message that a receive has met.
#[derive(Debug, Clone, Copy)]
pub(super) struct Met {
    pub(super) from: u32,
    pub(super) tag: u64,
    pub(super) len: u64,
    pub(super) send: u32,
    pub(super) arriving: bool,
}

/// What is told when a payload has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Key {
    /// The layer above.
    Above(u64),
    /// The message with this number.
    Send(u32),
}

/// Whose an arriving payload is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    /// A receive's.
    Recv(u32),
    /// A message's that waits in a receive buffer.
    Early(u32),
}

/// Bit of the places of early messages; those of receives are their numbers.
const EARLY: u64 = 1 << 32;

impl Whose {
    pub(super) fn place(self) -> Dest {
        Dest::Place(match self {
            Whose::Recv(id) => id.into(),
            Whose::Early(id) => EARLY | u64::from(id),
        })
    }

    /// `None`: it goes nowhere.
    pub(super) fn of(dest: Dest) -> Option<Whose> {
        let Dest::Place(place) = dest else {
            return None;
        };
        Some(match place & EARLY {
            0 => Whose::Recv(place as u32),
            _ => Whose::Early(place as u32),
        })
    }
}
