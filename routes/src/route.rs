//! Tables and their proof for a network, by one of the algorithms.

use std::fmt;

use crate::proof::{self, Circle, Proof};
use crate::tables::Tables;
use crate::topology::{Topology, MAX_ROUTED_NODES};
use crate::{bubble, layers, nue, paths};

/// Channels of a wire that a NIC has unless it says otherwise: as many as InfiniBand's data lanes
/// in common switches.
pub const DEFAULT_CHANNELS: usize = 8;
/// Most channels of a wire that tables can name.
pub const MAX_CHANNELS: usize = 128;

/// How paths and channels are chosen (ADR 71).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// Shortest balanced paths in layers: DFSSSP.
    Layered,
    /// Paths that avoid circles in the layers that there are: Nue. Some are longer.
    Nue,
    /// Order of dimensions and bubble flow control, for rings and tori.
    Bubble,
    /// Shortest balanced paths in one layer, as SMI's generator makes them: refused on most
    /// networks with a ring.
    Shortest,
}

impl Algorithm {
    /// All of them.
    pub const ALL: [Algorithm; 4] = [
        Algorithm::Layered,
        Algorithm::Nue,
        Algorithm::Bubble,
        Algorithm::Shortest,
    ];

    /// Its name for users.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Layered => "layered",
            Algorithm::Nue => "nue",
            Algorithm::Bubble => "bubble",
            Algorithm::Shortest => "shortest",
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why there are no routes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RouteError {
    /// The routes need more channels than a wire has.
    #[error(
        "{algorithm} needs {needed} channels a wire ({} layer(s) for each of 2 traffic classes), and \
         the NIC has {available}", needed / 2
    )]
    TooManyChannels {
        /// The algorithm.
        algorithm: Algorithm,
        /// Channels that it needs.
        needed: usize,
        /// Channels that there are.
        available: usize,
    },
    /// Channels depend on each other in a circle.
    #[error("channels depend on each other in a circle, so that packets could stop for ever")]
    Circle(Circle),
    /// The network is neither a ring nor a torus.
    #[error("bubble flow control needs a ring or a torus whose form is known")]
    NoTorus,
    /// Tables of the network would be too large.
    #[error("{nodes} nodes: routes are made for at most {MAX_ROUTED_NODES}")]
    TooManyNodes {
        /// Its nodes.
        nodes: usize,
    },
}

/// Tables with the argument that they cannot deadlock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Routes {
    /// What made them.
    pub algorithm: Algorithm,
    /// The tables.
    pub tables: Tables,
    /// The argument.
    pub proof: Proof,
}

impl Routes {
    /// Routes of tables that something else has made, such as a file.
    pub fn given((tables, proof): (Tables, Proof)) -> Routes {
        let algorithm = match proof {
            Proof::Acyclic { .. } => Algorithm::Layered,
            Proof::Bubble { .. } => Algorithm::Bubble,
        };
        Routes {
            algorithm,
            tables,
            proof,
        }
    }
}

/// Routes for NICs with so many channels a wire, by the first of these that can: layered, bubble
/// flow control, Nue.
///
/// # Errors
/// There are fewer than two channels, one for each class of traffic.
pub fn route(topology: &Topology, channels: usize) -> Result<Routes, RouteError> {
    first_that_fits(|algorithm| route_by(topology, channels, algorithm))
}

/// As [`route`], or [`route_by`] with an algorithm, for a network that had these tables before some
/// of its wires were cut. Where the result is layered, each pair whose path is whole keeps it.
///
/// # Errors
/// [`RouteError`]
pub fn reroute(
    topology: &Topology,
    channels: usize,
    algorithm: Option<Algorithm>,
    before: &Tables,
) -> Result<Routes, RouteError> {
    let by = |algorithm| by_keeping(topology, channels, algorithm, Some(before));
    algorithm.map_or_else(|| first_that_fits(by), by)
}

fn first_that_fits(
    by: impl Fn(Algorithm) -> Result<Routes, RouteError>,
) -> Result<Routes, RouteError> {
    by(Algorithm::Layered)
        .or_else(|_| by(Algorithm::Bubble))
        .or_else(|_| by(Algorithm::Nue))
}

/// Routes by one algorithm.
///
/// # Errors
/// [`RouteError`]
pub fn route_by(
    topology: &Topology,
    channels: usize,
    algorithm: Algorithm,
) -> Result<Routes, RouteError> {
    by_keeping(topology, channels, algorithm, None)
}

/// Routes by one algorithm, with the shortest paths of other tables where they are whole.
fn by_keeping(
    topology: &Topology,
    channels: usize,
    algorithm: Algorithm,
    keep: Option<&Tables>,
) -> Result<Routes, RouteError> {
    let nodes = topology.nodes().len();
    if nodes > MAX_ROUTED_NODES {
        return Err(RouteError::TooManyNodes { nodes });
    }
    let channels = channels.min(MAX_CHANNELS);
    let fits = |needed: usize| match needed <= channels {
        true => Ok(()),
        false => Err(RouteError::TooManyChannels {
            algorithm,
            needed,
            available: channels,
        }),
    };
    let (tables, proof) = match algorithm {
        Algorithm::Layered => {
            let mut tables = shortest(topology, keep);
            let layers = layers::assign(topology, &mut tables);
            fits(2 * layers)?;
            let tables = tables.with_layers(layers as u8);
            let proof = proof::order(topology, &tables).map_err(RouteError::Circle)?;
            (tables, proof)
        }
        Algorithm::Nue => {
            fits(2)?;
            let tables = nue::route(topology, channels / 2);
            let proof = proof::order(topology, &tables).map_err(RouteError::Circle)?;
            (tables, proof)
        }
        Algorithm::Bubble => {
            let (tables, rings) = bubble::route(topology).ok_or(RouteError::NoTorus)?;
            fits(2)?;
            (tables, Proof::Bubble { rings })
        }
        Algorithm::Shortest => {
            fits(2)?;
            let tables = shortest(topology, keep);
            let proof = proof::order(topology, &tables).map_err(RouteError::Circle)?;
            (tables, proof)
        }
    };
    Ok(Routes {
        algorithm,
        tables,
        proof,
    })
}

/// Shortest balanced paths in one layer.
fn shortest(topology: &Topology, keep: Option<&Tables>) -> Tables {
    let mut tables = Tables::layered(topology.nodes().len(), 1);
    for (destination, tree) in paths::trees(topology, keep) {
        for node in topology.ids() {
            let port = tree[node.index()].map(|l| topology.from(l).port);
            tables.set_next(node, destination, port);
        }
    }
    tables
}
