//! Why a mesh port cannot be opened, and why its tables are not replaced.

use ringbell_routes::route::RouteError;

/// Why a mesh port cannot be opened.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum MeshError {
    /// The tables' proof does not hold.
    #[error("the routes of {topology} are refused: {why}")]
    Refused {
        /// Name of the network.
        topology: String,
        /// The checker's reason.
        why: String,
    },
    /// There are no routes.
    #[error("{topology} has no routes: {why}")]
    NoRoutes {
        /// Name of the network.
        topology: String,
        /// The reason.
        why: RouteError,
    },
    /// The node is none of the network.
    #[error("{topology} has {nodes} nodes, and none of number {node}")]
    NoSuchNode {
        /// Name of the network.
        topology: String,
        /// Nodes that there are.
        nodes: usize,
        /// As given.
        node: u16,
    },
    /// The wires given are not those that the network has at this node.
    #[error("{node} has a wire at port {expected}, and none was given; give each port of the network once")]
    WireMissing {
        /// The node's name.
        node: String,
        /// The port.
        expected: u8,
    },
    /// A wire was given for a port that has none.
    #[error("the network has no wire at port {port} of {node}, or it was given twice")]
    NoSuchWire {
        /// The node's name.
        node: String,
        /// The port.
        port: u8,
    },
    /// A port that carries no frames.
    #[error("port {port} carries no Ethernet frames ({what}); wires are ports mem, udp or tap")]
    NoFrames {
        /// The port's number.
        port: u8,
        /// What it is.
        what: String,
    },
    /// There would be more queues than a node has.
    #[error("{wires} wires with {channels} channels each need more than {most} queues; give fewer channels", most = crate::buffers::QUEUES_MAX)]
    TooManyQueues {
        /// Wires of the node.
        wires: usize,
        /// Channels of a wire.
        channels: usize,
    },
    /// A number is out of range.
    #[error("{what} of a mesh is {least} to {most}, not {value}")]
    OutOfRange {
        /// Which number.
        what: &'static str,
        /// As given.
        value: usize,
        /// The smallest.
        least: usize,
        /// The greatest.
        most: usize,
    },
}

/// Why the tables of a mesh were not replaced: no node has changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplaceError {
    /// The proof does not hold, the tables do not fit, or a node has not answered.
    #[error("the routes are not replaced, at any node: {why}")]
    Refused {
        /// The reason; it begins with the name of the node that refuses, if it was another.
        why: String,
    },
    /// Another node replaces them.
    #[error("{node} replaces the routes already; try again when it is done")]
    UnderWay {
        /// The node's name.
        node: String,
    },
}
