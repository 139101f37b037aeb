//! One context: its members, their links, and the messages that wait.

use super::early::{Buffers, Credits};
use super::matching::Matching;
use super::protocol::{Protocol, Terms, Traffic};
use crate::memory::nic_memory::Block;
use crate::types::Owner;

/// How a context begins.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Opening {
    /// Owner of its payloads, for engines.
    pub(crate) by: Owner,
    /// This NIC's.
    pub(crate) rank: u32,
    pub(crate) members: usize,
    pub(crate) buffers: Buffers,
}

/// How the messages of a context went.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) eager: u64,
    pub(crate) rendezvous: u64,
    /// Written to receives that the peer has announced.
    pub(crate) written: u64,
    /// Those of them that went to several members at once.
    pub(crate) copied: u64,
    /// Small ones that went by rendezvous because the peer had no buffer free.
    pub(crate) without_credit: u64,
    /// Those that came before their receive, and receives that were announced before their message.
    pub(crate) unexpected: u64,
}

/// A member.
#[derive(Debug)]
pub(super) struct Member {
    /// The link, once there is one.
    pub(super) link: Option<usize>,
    /// What link and member offer, once the member has said so: its messages are taken.
    pub(super) terms: Option<Terms>,
    pub(super) credits: Credits,
    /// The receive buffers for it, on NIC memory.
    pub(super) block: Option<Block>,
    /// Messages of this member that wait for a receive.
    pub(super) early: usize,
    /// A message to it could not leave, and never will.
    pub(super) missed: bool,
}

/// See the module text.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) by: Owner,
    pub(super) rank: u32,
    pub(super) members: Vec<Member>,
    pub(super) buffers: Buffers,
    pub(super) matching: Matching,
    /// Only what is on the way is waited for.
    pub(super) ended: bool,
    pub(super) counts: Counts,
}

impl Context {
    pub(super) fn new(o: &Opening) -> Context {
        let member = |_| Member {
            link: None,
            terms: None,
            credits: Credits::new(),
            block: None,
            early: 0,
            missed: false,
        };
        Context {
            by: o.by,
            rank: o.rank,
            members: (0..o.members).map(member).collect(),
            buffers: o.buffers,
            matching: Matching::default(),
            ended: false,
            counts: Counts::default(),
        }
    }

    /// Whether another member has not said that it takes part, so that nothing can be sent to it.
    #[inline]
    pub(super) fn lacks(&self, rank: u32) -> bool {
        let member = self.members.get(rank as usize);
        member.is_some_and(|m| m.terms.is_none() && !m.missed) && rank != self.rank
    }

    /// Where a receive buffer for a member begins on NIC memory.
    pub(super) fn buffer_at(&self, from: u32, buffer: u32) -> Option<u64> {
        let block = self.members.get(from as usize)?.block?;
        Some(block.at + u64::from(buffer) * self.buffers.bytes)
    }

    /// Bytes of all receive buffers.
    pub(super) fn buffer_bytes(&self) -> u64 {
        let blocks = self.members.iter().filter_map(|m| m.block);
        blocks.map(|b| b.len).sum()
    }

    /// Chooses how a message to a member travels, and counts it. An eager one takes a credit.
    pub(super) fn choose(&mut self, to: u32, len: u64, traffic: Traffic) -> Protocol {
        let m = &mut self.members[to as usize];
        let Some(terms) = &m.terms else {
            // The context ends before it has begun.
            return Protocol::Rendezvous;
        };
        let protocol = terms.choose(len, traffic, m.credits.ours > 0);
        match protocol {
            Protocol::Inline => self.counts.eager += 1,
            Protocol::Eager => {
                self.counts.eager += 1;
                m.credits.ours -= 1;
            }
            Protocol::Rendezvous => {
                self.counts.rendezvous += 1;
                let lacks = m.credits.ours == 0 && terms.choose(len, traffic, true) != protocol;
                self.counts.without_credit += u64::from(lacks);
            }
            Protocol::Written => self.counts.written += 1,
        }
        protocol
    }

    /// Whether the receive of an agreed message from a member is announced to it, and on which
    /// link. The sender, to which this member has told its buffers, decides alike.
    #[inline]
    pub(super) fn announces(&self, from: u32, len: u64) -> Option<usize> {
        let m = self.members.get(from as usize)?;
        let terms = Terms {
            buffer: self.buffers.bytes,
            ..m.terms?
        };
        m.link.filter(|_| terms.announces(len))
    }
}
