//! Routes that the checker has accepted, which nodes of one process may share.

use std::sync::Arc;

use ringbell_routes::check::{check, check_sums, check_trees};
use ringbell_routes::route::{route, route_by, Algorithm, Routes, MAX_CHANNELS};
use ringbell_routes::topology::Topology;
use ringbell_routes::trees::Trees;

use crate::config::{ranged, MeshConfig, DEPTH_MAX};
use crate::error::MeshError;
use crate::sums::PLACES;

/// Routes of a network that hold for wires of so many channels and slots, with the trees for which
/// they leave room. To check them takes far longer than to open a node with them.
#[derive(Debug, Clone)]
pub struct SoundRoutes {
    topology: Topology,
    channels: usize,
    pub(crate) routes: Arc<Routes>,
    pub(crate) trees: Option<Arc<Trees>>,
    /// Of the tables.
    pub(crate) digest: u64,
}

impl SoundRoutes {
    /// The routes of a node's configuration, or those that are computed for it.
    ///
    /// # Errors
    /// [`MeshError`]: a number is out of its range, there are no routes, or the proof does not hold.
    pub fn of(config: &MeshConfig) -> Result<SoundRoutes, MeshError> {
        let MeshConfig {
            topology,
            channels,
            depth,
            ..
        } = config;
        let (channels, depth) = (*channels, *depth);
        let name = || topology.name().to_owned();
        ranged("channels of a wire", channels, 2, MAX_CHANNELS)?;
        ranged("slots of a channel", depth, 1, DEPTH_MAX)?;
        let has_slots = |routes: &Routes| usize::from(routes.proof.slots()) <= depth;
        let routes = match &config.routes {
            Some(routes) => routes.clone(),
            None => route(topology, channels)
                .and_then(|routes| match has_slots(&routes) {
                    true => Ok(routes),
                    // A bubble is a free slot beside the one that a packet takes.
                    false => route_by(topology, channels, Algorithm::Nue),
                })
                .map_err(|why| MeshError::NoRoutes {
                    topology: name(),
                    why,
                })?,
        };
        // The checker shares no code with what makes routes (ADR 71).
        check(topology, &routes.tables, &routes.proof, channels).map_err(|why| {
            MeshError::Refused {
                topology: name(),
                why: why.text(topology),
            }
        })?;
        let sound = SoundRoutes {
            topology: topology.clone(),
            channels,
            trees: trees(topology, &routes, channels),
            digest: routes.tables.digest(),
            routes: Arc::new(routes),
        };
        sound.holds_for(config)?;
        Ok(sound)
    }

    /// Whether they hold for a node's configuration.
    ///
    /// # Errors
    /// It is of another network, or has fewer channels or slots.
    pub(crate) fn holds_for(&self, config: &MeshConfig) -> Result<(), MeshError> {
        if self.topology != config.topology || self.channels != config.channels {
            return Err(MeshError::Refused {
                topology: config.topology.name().to_owned(),
                why: format!(
                    "they were checked for {} with {} channels a wire",
                    self.topology.name(),
                    self.channels
                ),
            });
        }
        ranged(
            "slots of a channel (its routes have bubbles)",
            config.depth,
            self.routes.proof.slots().into(),
            DEPTH_MAX,
        )
    }
}

/// The trees of routes, if they have some that the checker accepts.
pub(crate) fn trees(topology: &Topology, routes: &Routes, channels: usize) -> Option<Arc<Trees>> {
    let (tables, proof) = (&routes.tables, &routes.proof);
    let trees = Trees::of(topology, tables, proof, channels).ok()?;
    check_trees(topology, tables, proof, &trees, channels).ok()?;
    check_sums(topology, tables, proof, &trees, channels, PLACES).ok()?;
    Some(Arc::new(trees))
}
