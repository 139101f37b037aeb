//! Plans of many points: a TOML file with a list for each argument.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use ringbell_sim::{Cluster, FileError, NetworkPlan, Plan};
use serde::Deserialize;
use toml::Spanned;

use super::kinds::{kind, name};
use super::profile::profile;
use crate::perf::algo;
use crate::report::parse_size;
use crate::{routes, Exit, Problem};

/// Most points of a plan.
const MOST: usize = 10_000;
/// What a point is told by, beside its size.
pub(super) const LABELS: [&str; 7] = [
    "collective",
    "network",
    "profile",
    "ranks",
    "algorithm",
    "loss",
    "seed",
];

/// One simulation of one size.
pub(super) struct Point {
    pub(super) plan: Plan,
    /// As [`LABELS`].
    pub(super) labels: [String; LABELS.len()],
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    collectives: Vec<Spanned<String>>,
    sizes: Vec<Spanned<String>>,
    /// Networks; one switch where there is no list.
    topologies: Option<Vec<Spanned<String>>>,
    #[serde(default = "ideal")]
    profiles: Vec<Spanned<String>>,
    /// As many as a network has hosts, where there is no list; 2 at one switch.
    ranks: Option<Vec<usize>>,
    /// Consecutive ranks that share a host.
    #[serde(default = "one")]
    host_ranks: u32,
    #[serde(default = "auto")]
    algorithms: Vec<Spanned<String>>,
    #[serde(default = "lossless")]
    loss: Vec<f64>,
    #[serde(default = "zero")]
    seeds: Vec<u64>,
}

fn ideal() -> Vec<Spanned<String>> {
    vec![Spanned::new(0..0, "ideal".into())]
}

fn one() -> u32 {
    1
}

fn auto() -> Vec<Spanned<String>> {
    vec![Spanned::new(0..0, "auto".into())]
}

fn lossless() -> Vec<f64> {
    vec![0.0]
}

fn zero() -> Vec<u64> {
    vec![0]
}

/// The points of a file, the sizes of a line of lists behind each other.
///
/// # Errors
/// It cannot be read, or something in it is wrong.
pub(super) fn read(path: &Path) -> Result<Vec<Point>> {
    let name = path.display().to_string();
    let text = fs::read_to_string(path).with_context(|| {
        Problem::new(
            Exit::Usage,
            format!("cannot read {name}"),
            "check the path given to --plan; docs/simulator.md has the form of the file",
        )
    })?;
    let wrong = |e: FileError| {
        let advice = "docs/simulator.md has the keys of a plan";
        Problem::new(Exit::Usage, e.to_string(), advice)
    };
    Ok(points(&name, &text).map_err(wrong)?)
}

/// Values of a list of texts, each with its text.
fn all<T>(
    file: (&str, &str),
    list: &[Spanned<String>],
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Vec<(String, T)>, FileError> {
    let value = |text: &Spanned<String>| {
        let at = |what| FileError::at(file.0, file.1, text.span().start, what);
        let value = parse(text.get_ref()).map_err(at)?;
        Ok((text.get_ref().clone(), value))
    };
    list.iter().map(value).collect()
}

fn points(name_of_file: &str, text: &str) -> Result<Vec<Point>, FileError> {
    let source = (name_of_file, text);
    let file: File =
        toml::from_str(text).map_err(|e| FileError::of_toml(name_of_file, text, &e))?;
    let kinds = all(source, &file.collectives, kind)?;
    let sizes = all(source, &file.sizes, parse_size)?;
    let network = |text: &str| {
        let topology = routes::topology(text).map_err(|e| format!("{e:#}"))?;
        Ok(NetworkPlan {
            topology: Some(topology),
            hash_seed: 0,
        })
    };
    let networks = match &file.topologies {
        Some(list) => all(source, list, network)?,
        None => vec![("one switch".into(), NetworkPlan::default())],
    };
    let profiles = all(source, &file.profiles, profile)?;
    let algos = all(source, &file.algorithms, algo)?;

    let lengths = [
        kinds.len(),
        networks.len(),
        profiles.len(),
        file.ranks.as_ref().map_or(1, Vec::len),
        algos.len(),
        file.loss.len(),
        file.seeds.len(),
        sizes.len(),
    ];
    let count = lengths.into_iter().fold(1, usize::saturating_mul);
    if !(1..=MOST).contains(&count) {
        let what = format!("the lists make {count} points, expected 1 to {MOST}");
        return Err(FileError::at(name_of_file, text, 0, what));
    }
    let mut plans = Vec::new();
    for (_, kind) in &kinds {
        for (net, network) in &networks {
            let hosts = network.topology.as_ref().map_or(2, |t| t.ends().count());
            for (_, profile) in &profiles {
                for &ranks in file.ranks.as_deref().unwrap_or(&[hosts]) {
                    let cluster = Cluster {
                        network: network.clone(),
                        host_ranks: file.host_ranks,
                        ..Cluster::new(ranks, profile.clone())
                    };
                    plans.push((net, Plan::new(*kind, cluster, 0)));
                }
            }
        }
    }
    let mut points = Vec::new();
    for (net, plan) in &plans {
        for (name_of_algo, algo) in &algos {
            for &loss in &file.loss {
                for &seed in &file.seeds {
                    for (_, size) in &sizes {
                        let plan = Plan {
                            sizes: vec![*size],
                            algo: *algo,
                            cluster: Cluster {
                                loss,
                                seed,
                                ..plan.cluster.clone()
                            },
                            ..plan.clone()
                        };
                        points.push(Point {
                            labels: labels(&plan, net, name_of_algo),
                            plan,
                        });
                    }
                }
            }
        }
    }
    Ok(points)
}

fn labels(plan: &Plan, network: &str, algo: &str) -> [String; LABELS.len()] {
    [
        name(plan.kind).into(),
        network.into(),
        plan.cluster.profile.name.clone(),
        plan.cluster.ranks.to_string(),
        algo.into(),
        plan.cluster.loss.to_string(),
        plan.cluster.seed.to_string(),
    ]
}
