//! `ringbell routes`: paths, channels and loads of a network whose NICs forward, with the proof
//! that packets cannot stop for ever.

mod args;
mod draw;
mod input;
mod refused;
mod text;
mod tree;

use anyhow::{Context as _, Result};
use ringbell_routes::document::Document;
use ringbell_routes::route::Algorithm;
use serde::Serialize;

pub(crate) use self::args::Args;
pub(crate) use self::input::topology;
use self::input::Accepted;
use super::{files, stdio, Exit};

/// The JSON object.
#[derive(Serialize)]
struct Json {
    /// `layered`, `nue`, `bubble` or `shortest`; null for tables of a file.
    algorithm: Option<&'static str>,
    #[serde(flatten)]
    document: Document,
    /// By hops: how many pairs are that far apart.
    hops: Vec<usize>,
    mean_hops: f64,
    /// The greatest delay of a path; null where the file has no delays.
    slowest_ns: Option<f64>,
    dependencies: usize,
    wires: Vec<JsonWire>,
    /// That of `--tree`.
    #[serde(skip_serializing_if = "Option::is_none")]
    tree: Option<tree::Json>,
}

#[derive(Serialize)]
struct JsonWire {
    ends: [String; 2],
    gbps: Option<f64>,
    delay_ns: Option<f64>,
    /// Pairs whose requests it carries, from the first end to the second and back.
    pairs: [u32; 2],
}

/// Prints the routes.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    let accepted = input::accepted(args)?;
    if let Some(path) = &args.svg {
        files::write(path, draw::svg(&accepted)?, "--svg")?;
    }
    match args.json.as_deref() {
        None => stdio::out(text::text(&accepted, args.channels, args.check))?,
        Some(path) => {
            let json = serde_json::to_string(&json(&accepted))
                .context("cannot express the routes as JSON")?;
            files::write_json(path, json)?;
        }
    }
    Ok(Exit::Ok)
}

fn json(accepted: &Accepted) -> Json {
    let t = &accepted.topology;
    let wires = t.wires().iter().zip(accepted.load.pairs.chunks(2));
    let wires = wires.map(|(wire, pairs)| JsonWire {
        ends: wire.ends.map(|e| t.port_text(e)),
        gbps: wire.gbps,
        delay_ns: wire.delay_ns,
        pairs: [pairs[0], pairs[1]],
    });
    Json {
        algorithm: accepted.algorithm.map(Algorithm::name),
        document: Document::of(t, &accepted.tables, &accepted.proof),
        hops: accepted.load.hops.clone(),
        mean_hops: accepted.load.mean_hops(),
        slowest_ns: accepted.load.slowest_ns,
        dependencies: accepted.checked.dependencies,
        wires: wires.collect(),
        tree: accepted.tree.as_ref().map(|tree| tree.json(t)),
    }
}
