//! Configuration and counters of a node of a mesh.

use std::time::Duration;

use ringbell_net::port::Port;
use ringbell_routes::route::{Routes, DEFAULT_CHANNELS};
use ringbell_routes::topology::{NodeId, Topology};

use crate::error::MeshError;

/// Most packets that an output takes from one queue in a row: what waits in others would else stand
/// too long.
pub const POLL_MAX: u32 = 4_096;
/// SMI's R of a node, unless it is set.
pub const POLL: u32 = 8;
/// Most slots of a channel.
pub(crate) const DEPTH_MAX: usize = 4_096;

/// How a node takes part in a mesh.
#[derive(Debug, Clone)]
pub struct MeshConfig {
    /// The network.
    pub topology: Topology,
    /// Its routes; `None`: computed.
    pub routes: Option<Routes>,
    /// Virtual channels of a wire, 2 to 128.
    pub channels: usize,
    /// This node.
    pub node: NodeId,
    /// Slots of a channel, 1 to 4,096; 2 at least where the routes have bubbles.
    pub depth: usize,
    /// Packets that an output takes from one queue before it looks at the next (SMI's R), 1 to
    /// [`POLL_MAX`].
    pub poll: u32,
    /// Another one each time that a node starts.
    pub epoch: u32,
    /// A neighbour from which nothing comes for so long while packets wait for it is gone.
    pub silence: Duration,
    /// A packet that stands for so long at the head of a queue is dropped.
    pub stuck: Duration,
    /// A node to which no wire leads for so long is given up: what is connected to it ends. A wire
    /// that is back before costs no connection.
    pub grace: Duration,
}

impl MeshConfig {
    /// The node of a network, with the defaults: 8 channels of 16 slots, R of 8, a silence of
    /// 800 ms, 2 s for packets that stand, and 1 s for wires to come back.
    pub fn new(topology: Topology, node: NodeId) -> MeshConfig {
        MeshConfig {
            topology,
            routes: None,
            channels: DEFAULT_CHANNELS,
            node,
            depth: 16,
            poll: POLL,
            epoch: 1,
            silence: Duration::from_millis(800),
            stuck: Duration::from_secs(2),
            grace: Duration::from_secs(1),
        }
    }
}

/// What a node forwarded and dropped, counted since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MeshCounters {
    /// Packets that came by a wire and left by one.
    pub forwarded: u64,
    /// Copies of packets that go to all, made for one output more.
    pub copied: u64,
    /// Packets of sums that were combined with others: one less left for each.
    pub combined: u64,
    /// Packets of sums dropped because another one was under way, or others were to come before.
    pub late: u64,
    /// Packets dropped because no wire that is up leads to their destination.
    pub unreachable: u64,
    /// Packets dropped because they stood too long.
    pub stuck: u64,
    /// Packets dropped because of their head: a node that does not exist, no hops left, a copy that
    /// comes by a wire or in a channel by which its tree does not lead.
    pub bad: u64,
    /// Packets dropped because their channels had other tables when they came.
    pub old: u64,
    /// Times that the routes were computed anew.
    pub reroutes: u64,
}

/// Whether a number is in its range.
pub(crate) fn ranged(
    what: &'static str,
    value: usize,
    least: usize,
    most: usize,
) -> Result<(), MeshError> {
    match (least..=most).contains(&value) {
        true => Ok(()),
        false => Err(MeshError::OutOfRange {
            what,
            value,
            least,
            most,
        }),
    }
}

/// Whether the wires given are those of a node.
pub(crate) fn are_given(
    topology: &Topology,
    node: NodeId,
    wires: &[(u8, Box<dyn Port>)],
) -> Result<(), MeshError> {
    let name = || topology.nodes()[node.index()].name.clone();
    for (n, (port, wire)) in wires.iter().enumerate() {
        let is_second = wires[..n].iter().any(|(other, _)| other == port);
        if is_second || topology.link(node, *port).is_none() {
            let (node, port) = (name(), *port);
            return Err(MeshError::NoSuchWire { node, port });
        }
        if !wire.capabilities().medium.has_frames() {
            let (port, what) = (*port, wire.describe());
            return Err(MeshError::NoFrames { port, what });
        }
    }
    for link in topology.leaving(node) {
        let expected = topology.from(link).port;
        if !wires.iter().any(|(port, _)| *port == expected) {
            let node = name();
            return Err(MeshError::WireMissing { node, expected });
        }
    }
    Ok(())
}
