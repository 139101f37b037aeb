//! What a queue pair needs to receive and to send, and what both halves of it count and tell.

use std::time::Duration;

use super::pace::PaceConfig;
use ringbell_net::wire::roce::{Psn, Qpn};

/// What a queue pair needs to receive.
#[derive(Debug, Clone, Copy)]
pub struct RtrAttributes {
    /// The peer's queue pair.
    pub peer: Qpn,
    /// The first number of the peer's requests.
    pub expected: Psn,
    /// Bytes of a full packet.
    pub mtu: u32,
    /// READs and atomic operations of the peer that are kept for duplicates.
    pub resources: usize,
    /// Code of the time that the peer waits when nothing is ready (table 45).
    pub rnr_timer: u8,
    /// Packets of the peer that are kept when others before them are missing: as many as its window
    /// has. 0: none, as the standard has it, for a peer that does not select.
    pub early: u32,
}

/// What a queue pair needs to send.
#[derive(Debug, Clone, Copy)]
pub struct RtsAttributes {
    /// The first number of our requests.
    pub first: Psn,
    /// READs and atomic operations in flight.
    pub depth: usize,
    /// Retries after a loss, at least.
    pub retries: u32,
    /// Retries of a message for which the peer was not ready; `None`: no limit.
    pub rnr_retries: Option<u32>,
    /// How long a peer that acknowledges nothing is tried, at least.
    pub give_up: Duration,
    /// Window and time-outs.
    pub pace: PaceConfig,
    /// The peer keeps packets that come early and reports them: those that are missing are sent
    /// again alone.
    pub selective: bool,
}

/// What was counted of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QpCounters {
    /// Requests and answers that had to be sent again.
    pub repeated: u64,
    /// Packets behind a gap, dropped.
    pub out_of_order: u64,
    /// Packets that had been executed before.
    pub duplicates: u64,
    /// Packets of no use: acknowledgements of nothing, answers to nothing.
    pub ignored: u64,
    /// Times that a receiver was not ready, at either end.
    pub not_ready: u64,
    /// Times that nothing came back in time.
    pub timeouts: u64,
}

/// What [`QueuePair::transmit`](super::QueuePair::transmit) has made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transmit {
    /// A packet of so many bytes, from its base header to its padding.
    Packet(usize),
    /// There is nothing to send now.
    Nothing,
    /// Memory has not answered: the same call in a later step.
    Pending,
}

/// Packets of a message.
pub(super) fn packets_of(len: u32, mtu: u32) -> u32 {
    len.div_ceil(mtu).max(1)
}
