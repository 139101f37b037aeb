//! Forwarding tables: the port by which each node forwards to each end, and the channel of each
//! pair.
//!
//! A packet keeps its *layer* from its source to its destination, and a layer is one virtual
//! channel of each wire for requests and another for acknowledgements. The sender chooses the
//! layer; forwarding nodes look at the destination alone.

use std::hash::Hasher as _;

use siphasher::sip::SipHasher24;

use crate::topology::{Link, NodeId, Topology};

/// Traffic whose channels the proof keeps apart: an arrived request makes its receiver send an
/// acknowledgement, and acknowledgements are always taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Messages, credits and all else that is answered.
    Request,
    /// Answers.
    Acknowledgement,
}

impl Class {
    /// Both.
    pub const ALL: [Class; 2] = [Class::Request, Class::Acknowledgement];
}

/// A virtual channel of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Channel {
    /// The link.
    pub link: Link,
    /// Its number, among the channels of the wire.
    pub number: u8,
}

impl Channel {
    /// `NODE:PORT#NUMBER`, the port being the one that the link leaves.
    pub fn text(self, topology: &Topology) -> String {
        let (link, number) = (self.link, self.number);
        match link.wire() < topology.wires().len() {
            true => format!("{}#{number}", topology.port_text(topology.from(link))),
            // A proof from outside may name it.
            false => format!("link {}#{number}", link.0),
        }
    }
}

/// No port: the destination itself, or a destination without a rank.
const NONE: u8 = u8::MAX;

/// The tables of all nodes. Nodes are those of a topology; ends alone are destinations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tables {
    nodes: usize,
    /// By node and destination.
    next: Vec<u8>,
    /// By source and destination.
    layer: Vec<u8>,
    /// By class and layer: the channel.
    channels: [Vec<u8>; 2],
}

impl Tables {
    /// Tables without a route, for so many nodes; the channels of each layer, by class.
    pub fn new(nodes: usize, channels: [Vec<u8>; 2]) -> Tables {
        Tables {
            nodes,
            next: vec![NONE; nodes * nodes],
            layer: vec![0; nodes * nodes],
            channels,
        }
    }

    /// As [`Tables::new`], with so many layers: requests have the first channels, one a layer, and
    /// acknowledgements as many after them.
    pub(crate) fn layered(nodes: usize, layers: u8) -> Tables {
        Tables::new(
            nodes,
            [(0..layers).collect(), (layers..2 * layers).collect()],
        )
    }

    /// The same tables with the channels of so many layers.
    pub(crate) fn with_layers(mut self, layers: u8) -> Tables {
        self.channels = Tables::layered(0, layers).channels;
        self
    }

    /// How many nodes.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// The port by which a node forwards to a destination.
    #[inline]
    pub fn next(&self, node: NodeId, destination: NodeId) -> Option<u8> {
        let port = self.next[node.index() * self.nodes + destination.index()];
        (port != NONE).then_some(port)
    }

    /// Sets that port.
    pub fn set_next(&mut self, node: NodeId, destination: NodeId, port: Option<u8>) {
        self.next[node.index() * self.nodes + destination.index()] = port.unwrap_or(NONE);
    }

    /// The layer of what a source sends to a destination.
    #[inline]
    pub fn layer(&self, source: NodeId, destination: NodeId) -> u8 {
        self.layer[source.index() * self.nodes + destination.index()]
    }

    /// Sets that layer.
    pub fn set_layer(&mut self, source: NodeId, destination: NodeId, layer: u8) {
        self.layer[source.index() * self.nodes + destination.index()] = layer;
    }

    /// The channel of a class in a layer, if there is such a layer.
    #[inline]
    pub fn channel(&self, class: Class, layer: u8) -> Option<u8> {
        self.channels[class as usize]
            .get(usize::from(layer))
            .copied()
    }

    /// The channels of a class, by layer.
    pub fn channels(&self, class: Class) -> &[u8] {
        &self.channels[class as usize]
    }

    /// Channels that each wire needs: one more than the greatest number.
    pub fn channel_count(&self) -> usize {
        let numbers = self.channels.iter().flatten();
        numbers.map(|n| usize::from(*n) + 1).max().unwrap_or(0)
    }

    /// The links from a source to a destination, in order; they end early where the tables have no
    /// route, and never where they go round, which the checker refuses.
    pub fn path<'a>(
        &'a self,
        topology: &'a Topology,
        source: NodeId,
        destination: NodeId,
    ) -> impl Iterator<Item = Link> + 'a {
        let mut at = source;
        std::iter::from_fn(move || {
            let port = self.next(at, destination).filter(|_| at != destination)?;
            let link = topology.link(at, port)?;
            at = topology.to(link).node;
            Some(link)
        })
    }

    /// A number that two ends compare before they forward for each other: equal tables have equal
    /// ones, on every machine.
    pub fn digest(&self) -> u64 {
        let mut hasher = SipHasher24::new_with_keys(0x726f_7574, 0x6573);
        hasher.write_u64(self.nodes as u64);
        for part in [
            &self.next,
            &self.layer,
            &self.channels[0],
            &self.channels[1],
        ] {
            hasher.write_u64(part.len() as u64);
            hasher.write(part);
        }
        hasher.finish()
    }
}
