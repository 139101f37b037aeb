//! What a wire tells its node and its users.

use crate::buffers::Stored;
use crate::head::Kind;

/// What went over a wire, counted since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WireCounters {
    /// Packets that left.
    pub tx_packets: u64,
    /// Packets that were sent once more.
    pub tx_again: u64,
    /// Packets that came, in order.
    pub rx_packets: u64,
    /// Packets that came twice, or behind a missing one.
    pub rx_out_of_order: u64,
    /// Frames of an older epoch, or before the wire was up.
    pub rx_stale: u64,
    /// Frames that are none of a wire's, or whose CRC is wrong.
    pub rx_malformed: u64,
    /// Times that the wire went down.
    pub resets: u64,
}

/// What a wire tells its node.
#[derive(Debug)]
pub(crate) enum Event {
    /// A frame without more meaning.
    None,
    /// A packet of a channel.
    Packet(usize, Stored),
    /// It is up.
    Up,
    /// The ends disagree, for this reason.
    Refused(String),
    /// It is down, and its state was begun anew.
    Down,
    /// States of the network's wires, from this number on.
    Network(usize, Vec<u32>),
    /// The other end knows this much of the network.
    Knows(u32),
    /// Of tables that replace others: the kind of frame, its number, and its body.
    Plan(Kind, u32, Vec<u8>),
}
