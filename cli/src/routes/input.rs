//! The network and its tables, read or made, and accepted by the checker; else the reason.

use std::path::Path;

use anyhow::Result;
use ringbell_routes::check::{check, Checked};
use ringbell_routes::file::split_port;
use ringbell_routes::load::Load;
use ringbell_routes::named::{named, tables_of, NamedError};
use ringbell_routes::proof::Proof;
use ringbell_routes::route::{reroute, route, route_by, Algorithm, RouteError, Routes};
use ringbell_routes::tables::Tables;
use ringbell_routes::topology::{Topology, TopologyError};

use super::args::Args;
use super::refused::refused;
use super::tree;

/// Tables that the checker has accepted, and what it has seen.
pub(super) struct Accepted {
    pub(super) topology: Topology,
    /// What made the tables; none if a file has them.
    pub(super) algorithm: Option<Algorithm>,
    pub(super) tables: Tables,
    pub(super) proof: Proof,
    pub(super) checked: Checked,
    pub(super) load: Load,
    /// Pairs that keep their path without the wires that are left out, and all pairs.
    pub(super) kept: Option<(usize, usize)>,
    /// The tree that was asked for.
    pub(super) tree: Option<tree::Accepted>,
}

/// Reads or makes everything.
pub(super) fn accepted(args: &Args) -> Result<Accepted> {
    let whole = topology(&args.topology)?;
    let mut topology = whole.clone();
    for port in &args.without {
        topology = without(&topology, port)?;
    }
    // Routes with all wires, which those without some follow where they can.
    let before = match args.without.is_empty() {
        true => None,
        false => made(&whole, args, None).ok(),
    };
    let (algorithm, tables, proof) = match &args.table {
        Some(path) => {
            let (tables, proof) = document(path, &topology)?;
            (None, tables, proof)
        }
        None => {
            let made = made(&topology, args, before.as_ref())?;
            (Some(made.algorithm), made.tables, made.proof)
        }
    };
    let checked = check(&topology, &tables, &proof, args.channels).map_err(|why| {
        let from = match &args.table {
            Some(path) => path.display().to_string(),
            None => topology.name().to_owned(),
        };
        refused(
            format!("{from}: {}", why.text(&topology)),
            "do not load these tables; `ringbell routes` without --table makes others",
        )
    })?;
    let kept = before.map(|before| kept((&whole, &before.tables), (&topology, &tables)));
    let load = Load::of(&topology, &tables);
    let tree = tree::accepted(args, &topology, &tables, &proof)?;
    Ok(Accepted {
        topology,
        algorithm,
        tables,
        proof,
        checked,
        load,
        kept,
        tree,
    })
}

/// The network of a name or a file.
pub(crate) fn topology(text: &str) -> Result<Topology> {
    named(text).map_err(|why| {
        let advice = match &why {
            NamedError::File { .. } => "docs/routes.md has the forms of files",
            _ => "`ringbell routes --help` lists the networks by name",
        };
        refused(why.to_string(), advice)
    })
}

/// The network without the wire at a port.
fn without(topology: &Topology, text: &str) -> Result<Topology> {
    let port = split_port(text).map_err(|why| refused(why, "name one end of the wire"))?;
    let node = topology.node_named(port.0);
    let link = node.and_then(|n| topology.link(n, u8::try_from(port.1).ok()?));
    let link = link.ok_or_else(|| {
        refused(
            format!("no wire ends at {text} in {}", topology.name()),
            "`ringbell routes TOPOLOGY` lists the wires",
        )
    })?;
    topology.without(link.wire()).map_err(|why: TopologyError| {
        refused(
            format!("{} without {text}: {why}", topology.name()),
            "no routes join these parts; leave another wire out, or add one",
        )
    })
}

/// Tables and proof of a file.
fn document(path: &Path, topology: &Topology) -> Result<(Tables, Proof)> {
    let advice = "`ringbell routes TOPOLOGY --json FILE` writes such files";
    tables_of(path, topology).map_err(|why| refused(why.to_string(), advice))
}

/// Routes by the algorithm that was asked for, or the first that fits; after others, if wires are
/// left out.
fn made(topology: &Topology, args: &Args, before: Option<&Routes>) -> Result<Routes> {
    let routes = match (before, args.algorithm) {
        (Some(before), algorithm) => reroute(topology, args.channels, algorithm, &before.tables),
        (None, Some(algorithm)) => route_by(topology, args.channels, algorithm),
        (None, None) => route(topology, args.channels),
    };
    routes.map_err(|error| {
        let name = topology.name();
        let what = match &error {
            RouteError::Circle(circle) => format!("{name}: {error}: {}", circle.text(topology)),
            _ => format!("{name}: {error}"),
        };
        let others: Vec<&str> = Algorithm::ALL
            .iter()
            .filter(|a| Some(**a) != args.algorithm && **a != Algorithm::Shortest)
            .map(|a| a.name())
            .collect();
        let advice = match error {
            RouteError::TooManyChannels { .. } if args.algorithm.is_none() => {
                "requests and acknowledgements need a channel each: --channels 2".into()
            }
            _ => format!("take --algorithm {}", others.join(" or ")),
        };
        refused(what, advice)
    })
}

/// Pairs whose path is the same in two networks, of which the second has fewer wires; and all
/// pairs.
fn kept(before: (&Topology, &Tables), after: (&Topology, &Tables)) -> (usize, usize) {
    let (t, _) = after;
    let (mut kept, mut all) = (0, 0);
    for source in t.ends() {
        for destination in t.ends().filter(|d| *d != source) {
            let ports = |(t, tables): (&Topology, &Tables)| {
                let path = tables.path(t, source, destination);
                path.map(|l| t.from(l)).collect::<Vec<_>>()
            };
            kept += usize::from(ports(before) == ports(after));
            all += 1;
        }
    }
    (kept, all)
}
