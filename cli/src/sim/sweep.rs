//! Plans of many points: a TOML file with a list for each argument.

use std::fmt::Display;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use clap::ValueEnum as _;
use ringbell::comm::HostRanks;
use ringbell::nic::Congestion;
use ringbell_sim::{Cluster, FileError, Forward, NetworkPlan, Plan};
use serde::Deserialize;
use toml::Spanned;

use super::cluster::Repeat;
use super::kinds::{kind, name};
use super::profile::profile;
use crate::perf::algo;
use crate::report::parse_size;
use crate::{routes, Exit, Problem};

/// Most points of a plan.
const MOST: usize = 10_000;
/// What a point is told by, beside its size.
pub(super) const LABELS: [&str; 11] = [
    "collective",
    "network",
    "profile",
    "ranks",
    "algorithm",
    "spray",
    "congestion",
    "repeat",
    "udp ports",
    "loss",
    "seed",
];

/// One simulation of one size.
#[derive(Clone)]
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
    /// Ranks of each host.
    host_ranks: Option<OnHosts>,
    /// Long operations are simulated to their end.
    #[serde(default)]
    exact: bool,
    #[serde(default = "auto")]
    algorithms: Vec<Spanned<String>>,
    /// Whether switches choose anew for each frame.
    #[serde(default = "no")]
    spray: Vec<bool>,
    #[serde(default = "window")]
    congestions: Vec<Spanned<String>>,
    #[serde(default = "selective")]
    repeats: Vec<Spanned<String>>,
    /// UDP source ports of a connection.
    #[serde(default = "one_port")]
    udp_ports: Vec<u16>,
    #[serde(default = "lossless")]
    loss: Vec<f64>,
    #[serde(default = "zero")]
    seeds: Vec<u64>,
}

fn ideal() -> Vec<Spanned<String>> {
    vec![Spanned::new(0..0, "ideal".into())]
}

fn no() -> Vec<bool> {
    vec![false]
}

fn window() -> Vec<Spanned<String>> {
    vec![Spanned::new(0..0, Congestion::Window.to_string())]
}

fn selective() -> Vec<Spanned<String>> {
    vec![Spanned::new(0..0, "selective".into())]
}

fn one_port() -> Vec<u16> {
    vec![1]
}

/// Consecutive ranks that share a host, or those of each host.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "host_ranks is neither a number nor a list of numbers"
)]
enum OnHosts {
    Each(u32),
    Sizes(Vec<u32>),
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
            ..NetworkPlan::default()
        })
    };
    let networks = match &file.topologies {
        Some(list) => all(source, list, network)?,
        None => vec![("one switch".into(), NetworkPlan::default())],
    };
    let profiles = all(source, &file.profiles, profile)?;
    let algos = all(source, &file.algorithms, algo)?;
    let congestion = |text: &str| text.parse::<Congestion>().map_err(|e| e.to_string());
    let congestions = all(source, &file.congestions, congestion)?;
    let repeat = |text: &str| {
        let unknown = |_| format!("`{text}` is not; write selective or go-back-n");
        Repeat::from_str(text, false).map_err(unknown)
    };
    let repeats = all(source, &file.repeats, repeat)?;

    let lengths = [
        kinds.len(),
        networks.len(),
        profiles.len(),
        file.ranks.as_ref().map_or(1, Vec::len),
        algos.len(),
        file.spray.len(),
        congestions.len(),
        repeats.len(),
        file.udp_ports.len(),
        file.loss.len(),
        file.seeds.len(),
        sizes.len(),
    ];
    let count = lengths.into_iter().fold(1, usize::saturating_mul);
    if !(1..=MOST).contains(&count) {
        let what = format!("the lists make {count} points, expected 1 to {MOST}");
        return Err(FileError::at(name_of_file, text, 0, what));
    }
    let mut first = Plan::new(kinds[0].1, Cluster::new(2, profiles[0].1.clone()), 0);
    if file.exact {
        first.forward = Forward::Never;
    }
    let points = vec![Point::of(first)];
    let points = with_each(points, &kinds, |point, (_, kind)| {
        point.plan.kind = *kind;
        point.label("collective", name(*kind));
    });
    let host_ranks = match &file.host_ranks {
        None => HostRanks::from(1),
        Some(OnHosts::Each(each)) => HostRanks::from(*each),
        Some(OnHosts::Sizes(sizes)) => HostRanks::of_sizes(sizes),
    };
    let points = with_each(points, &networks, |point, (name, network)| {
        let hosts = network.topology.as_ref().map_or(2, |t| t.ends().count());
        let cluster = &mut point.plan.cluster;
        cluster.ranks = hosts;
        cluster.settings.host_ranks = host_ranks.clone();
        cluster.network = network.clone();
        point.label("network", name);
        point.label("ranks", hosts);
    });
    let points = with_each(points, &profiles, |point, (_, profile)| {
        point.plan.cluster.profile = profile.clone();
        point.label("profile", &profile.name);
    });
    let points = match &file.ranks {
        None => points,
        Some(ranks) => with_each(points, ranks, |point, ranks| {
            point.plan.cluster.ranks = *ranks;
            point.label("ranks", ranks);
        }),
    };
    let points = with_each(points, &algos, |point, (name, algo)| {
        point.plan.algo = *algo;
        point.label("algorithm", name);
    });
    let points = with_each(points, &file.spray, |point, spray| {
        point.plan.cluster.network.spray = *spray;
        point.label("spray", spray);
    });
    let points = with_each(points, &congestions, |point, (name, congestion)| {
        point.plan.cluster.reaction.congestion = *congestion;
        point.label("congestion", name);
    });
    let points = with_each(points, &repeats, |point, (name, repeat)| {
        point.plan.cluster.reaction.selective = repeat.is_selective();
        point.label("repeat", name);
    });
    let points = with_each(points, &file.udp_ports, |point, ports| {
        point.plan.cluster.reaction.udp_ports = *ports;
        point.label("udp ports", ports);
    });
    let points = with_each(points, &file.loss, |point, loss| {
        point.plan.cluster.loss = *loss;
        point.label("loss", loss);
    });
    let points = with_each(points, &file.seeds, |point, seed| {
        point.plan.cluster.seed = *seed;
        point.label("seed", seed);
    });
    let points = with_each(points, &sizes, |point, (_, size)| {
        point.plan.sizes = vec![*size]
    });
    Ok(points)
}

/// Each point once for each value.
fn with_each<T>(points: Vec<Point>, values: &[T], set: impl Fn(&mut Point, &T)) -> Vec<Point> {
    let mut all = Vec::new();
    for point in points {
        for value in values {
            let mut point = point.clone();
            set(&mut point, value);
            all.push(point);
        }
    }
    all
}

impl Point {
    fn of(plan: Plan) -> Point {
        let labels = Default::default();
        Point { plan, labels }
    }

    /// Sets one of the labels.
    fn label(&mut self, name: &str, text: impl Display) {
        let place = LABELS.iter().position(|l| *l == name);
        if let Some(label) = place.and_then(|p| self.labels.get_mut(p)) {
            *label = text.to_string();
        }
    }
}
