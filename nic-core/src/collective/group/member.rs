//! One group: the members of a communicator and what they have announced.

use std::net::SocketAddrV4;

use ringbell_nic_abi::PdId;

use super::joint::Joint;
use crate::types::NicTime;

/// What a rank offers besides messages, as it announces it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Offer {
    /// Its area of the direct path, in lines of 128 bytes of its NIC memory from 1 on; 0: it has
    /// none.
    pub(crate) area: u32,
    /// Its card executes programs of rings.
    pub(crate) card: bool,
}

/// A peer of a communicator.
#[derive(Debug, Clone)]
pub(super) struct Member {
    pub(super) address: SocketAddrV4,
    /// A link to it is wanted.
    pub(super) wanted: bool,
    /// The communicator has been announced to the peer on its link.
    pub(super) told: bool,
    /// The peer has announced the communicator.
    pub(super) joined: bool,
    /// The peer has freed the communicator.
    pub(super) left: bool,
    /// The peer cannot be reached any more.
    pub(super) lost: bool,
    /// As announced.
    pub(super) offer: Offer,
}

impl Member {
    pub(super) fn new(address: SocketAddrV4) -> Member {
        Member {
            address,
            wanted: false,
            told: false,
            joined: false,
            left: false,
            lost: false,
            offer: Offer::default(),
        }
    }
}

/// See the module text.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) rank: u32,
    /// Hash of what all ranks must be given alike.
    pub(super) hash: u32,
    pub(super) members: Vec<Member>,
    /// What this rank offers the others.
    pub(super) offer: Offer,
    /// Bytes of the receive buffers that it keeps for each.
    pub(super) eager_max: u64,
    /// How the ranks agree that do not all have links.
    pub(super) joint: Option<Joint>,
    /// A neighbour that was given something else than this rank.
    pub(super) unlike: Option<u32>,
    /// Ranks whose link something waits for, until then.
    pub(super) dialled: Vec<(u32, NicTime)>,
    /// Domains with regions that the others' one-sided operations reach.
    pub(super) granted: Vec<PdId>,
}

impl Group {
    /// All but this rank, with their ranks.
    pub(super) fn others(&self) -> impl Iterator<Item = (u32, &Member)> {
        let own = self.rank;
        (0..).zip(&self.members).filter(move |(r, _)| *r != own)
    }

    /// Whether a link to a rank is to be made.
    pub(super) fn wants(&self, address: SocketAddrV4) -> bool {
        let mut members = self.members.iter();
        members.any(|m| m.address == address && m.wanted && !m.lost && !m.left)
    }

    /// Ranks that have not answered.
    pub(super) fn missing(&self) -> impl Iterator<Item = u32> + '_ {
        let first = |m: &Member| self.joint.is_none() || m.wanted;
        let missing = self
            .others()
            .filter(move |(_, m)| first(m) && !(m.joined && m.told));
        missing.map(|(r, _)| r)
    }

    /// The rank whose word is waited for, when all neighbours have answered.
    pub(super) fn awaited(&self) -> Option<u32> {
        let joint = self.joint.as_ref().filter(|j| j.result().is_none())?;
        let ranks = self.members.len() as u32;
        Some((self.rank + ranks - joint.awaits() % ranks) % ranks)
    }

    /// Whether the cards of all ranks execute programs of rings.
    pub(super) fn has_cards(&self) -> bool {
        match &self.joint {
            Some(joint) => joint.result().is_some_and(|k| k.cards),
            None => self.offer.card && self.others().all(|(_, m)| m.offer.card),
        }
    }
}
