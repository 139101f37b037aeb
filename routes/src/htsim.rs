//! Fat trees of htsim: its `.topo` files, as its `FatTreeTopology::load` reads them.
//!
//! A file names hosts, tiers and the hosts of a pod, then for each tier of switches, from the
//! lowest on, ports down and up, and rate and latency of the wires below. Names of keys have any
//! case, `#` begins a comment. Hosts are `n0`, `n1`, ..., switches `tor0`, `agg0`, `core0`.
//!
//! The latency of a switch is in the delays of its wires, half in each: every path crosses two of
//! them at each of its switches.

use std::fmt::Display;

use crate::file_error::FileError;
use crate::topology::{Builder, NodeId, PortOf, Role, Topology, Wire, MAX_PORTS};

/// Names of switches, by tier.
const SWITCHES: [&str; 3] = ["tor", "agg", "core"];
/// Keys that stand before the first tier, and those of a tier.
const HEAD: &str = "`Nodes`, `Tiers`, `Podsize` or `Tier`";
const OF_TIER: &str = "`Downlink_speed_Gbps`, `Radix_Down`, `Radix_Up`, `Downlink_Latency_ns`, \
    `Switch_Latency_ns`, `Oversubscribed`, `Bundle` or `Tier`";

/// Whether a text is such a file: it begins with a word, and not as JSON does.
pub(crate) fn is_htsim(text: &str) -> bool {
    let mut words = words(text);
    words.next().is_some_and(|w| {
        let first = w.text.chars().next();
        first.is_some_and(char::is_alphabetic)
    })
}

/// Reads a file.
///
/// # Errors
/// [`FileError`]: a key that is unknown, missing, given twice or has no such number; numbers that
/// give no fat tree; a rule of [`TopologyError`](crate::topology::TopologyError).
pub(crate) fn parse(name: &str, text: &str) -> Result<Topology, FileError> {
    File::read(text)?.tree(name)
}

/// A word, and where it stands.
#[derive(Debug, Clone, Copy)]
struct Word<'t> {
    text: &'t str,
    line: usize,
    column: usize,
}

/// All words of a text but those of comments.
fn words(text: &str) -> impl Iterator<Item = Word<'_>> {
    text.lines().zip(1..).flat_map(|(line, number)| {
        let is_comment = line.trim_start().starts_with('#');
        let parts = if is_comment { "" } else { line }.split_whitespace();
        parts.map(move |text| Word {
            text,
            line: number,
            column: text.as_ptr() as usize - line.as_ptr() as usize + 1,
        })
    })
}

impl Word<'_> {
    fn error(&self, why: impl Display) -> FileError {
        FileError {
            line: self.line,
            column: self.column,
            why: why.to_string(),
        }
    }
}

/// The numbers of a tier of switches.
#[derive(Debug, Clone, Copy, Default)]
struct Tier {
    /// Rate and delay of the wires below.
    gbps: Option<u64>,
    latency_ns: Option<u64>,
    /// Of its switches.
    switch_ns: Option<u64>,
    down: Option<u64>,
    up: Option<u64>,
    oversubscribed: Option<u64>,
    /// Wires that join two nodes.
    bundle: Option<u64>,
}

/// What a file has said.
#[derive(Debug, Default)]
struct File {
    nodes: Option<u64>,
    tiers: Option<u64>,
    pod: Option<u64>,
    by_tier: [Option<Tier>; 3],
}

impl File {
    fn read(text: &str) -> Result<File, FileError> {
        let mut file = File::default();
        let mut at = None;
        let mut words = words(text);
        while let Some(key) = words.next() {
            let value = words.next().filter(|w| w.line == key.line);
            let number = value.and_then(|w| w.text.parse::<u64>().ok());
            let Some(number) = number else {
                let at = value.unwrap_or(key);
                return Err(at.error(format!("`{}` takes a whole number", key.text)));
            };
            if key.text.eq_ignore_ascii_case("tier") {
                let tiers = file.tiers.unwrap_or(3);
                if number >= tiers {
                    let why = format!("tier {number}: tiers count from 0 to {}", tiers - 1);
                    return Err(key.error(why));
                }
                let tier = &mut file.by_tier[number as usize];
                if tier.replace(Tier::default()).is_some() {
                    return Err(key.error(format!("tier {number} is there twice")));
                }
                at = Some(number as usize);
                continue;
            }
            let field = match at {
                None => file.head(&key)?,
                Some(tier) => file.by_tier[tier].get_or_insert_default().field(&key)?,
            };
            if field.replace(number).is_some() {
                return Err(key.error(format!("`{}` is there twice", key.text)));
            }
            if file.tiers.is_some_and(|tiers| !(2..=3).contains(&tiers)) {
                let why = format!("`{}` is {number}: htsim's trees have 2 or 3", key.text);
                return Err(key.error(why));
            }
        }
        Ok(file)
    }

    /// A number before the first tier.
    fn head(&mut self, key: &Word<'_>) -> Result<&mut Option<u64>, FileError> {
        match key.text.to_ascii_lowercase().as_str() {
            "nodes" => Ok(&mut self.nodes),
            "tiers" => Ok(&mut self.tiers),
            "podsize" => Ok(&mut self.pod),
            _ => Err(key.error(format!("`{}`, expected {HEAD}", key.text))),
        }
    }

    /// The fat tree, by the rules of htsim's `set_custom_params`.
    fn tree(&self, name: &str) -> Result<Topology, FileError> {
        let needed = |what: &str, number: Option<u64>| {
            number.ok_or_else(|| FileError::whole(format!("`{what}` is missing")))
        };
        let nodes = needed("Nodes", self.nodes)?;
        let tiers = needed("Tiers", self.tiers)?;
        let pod = needed("Podsize", self.pod)?;
        let tiers = tiers as usize;
        let mut levels = Vec::new();
        for (number, tier) in self.by_tier.iter().take(tiers).enumerate() {
            let tier = tier.ok_or_else(|| FileError::whole(format!("tier {number} is missing")))?;
            levels.push(tier.level(number, number + 1 == tiers)?);
        }
        Plan::of(nodes, pod, &levels)?.build(name, &levels)
    }
}

impl Tier {
    /// A number of a tier.
    fn field(&mut self, key: &Word<'_>) -> Result<&mut Option<u64>, FileError> {
        match key.text.to_ascii_lowercase().as_str() {
            "downlink_speed_gbps" => Ok(&mut self.gbps),
            "downlink_latency_ns" => Ok(&mut self.latency_ns),
            "switch_latency_ns" => Ok(&mut self.switch_ns),
            "radix_down" => Ok(&mut self.down),
            "radix_up" => Ok(&mut self.up),
            "oversubscribed" => Ok(&mut self.oversubscribed),
            "bundle" => Ok(&mut self.bundle),
            "queue_up" | "queue_down" => Err(key.error(format!(
                "`{}`: outputs have one size, `switch.output_bytes` of a profile",
                key.text
            ))),
            _ => Err(key.error(format!("`{}`, expected {OF_TIER}", key.text))),
        }
    }

    /// The same with the numbers that may be missing.
    fn level(&self, number: usize, is_top: bool) -> Result<Level, FileError> {
        let positive =
            |what: &str, value: Option<u64>, default: Option<u64>| match value.or(default) {
                Some(0) => Err(FileError::whole(format!("`{what}` of tier {number} is 0"))),
                Some(value) => Ok(value),
                None => Err(FileError::whole(format!(
                    "`{what}` of tier {number} is missing"
                ))),
            };
        if is_top && self.up.is_some() {
            let why = format!("`Radix_Up` of tier {number}: nothing is above the top");
            return Err(FileError::whole(why));
        }
        Ok(Level {
            gbps: positive("Downlink_speed_Gbps", self.gbps, None)?,
            latency_ns: positive("Downlink_Latency_ns", self.latency_ns, None)?,
            switch_ns: self.switch_ns.unwrap_or(0),
            down: positive("Radix_Down", self.down, None)?,
            up: match is_top {
                true => 0,
                false => positive("Radix_Up", self.up, None)?,
            },
            oversubscribed: positive("Oversubscribed", self.oversubscribed, Some(1))?,
            bundle: positive("Bundle", self.bundle, Some(1))?,
        })
    }
}

/// A tier whose numbers are all there.
#[derive(Debug, Clone, Copy)]
struct Level {
    gbps: u64,
    latency_ns: u64,
    switch_ns: u64,
    down: u64,
    up: u64,
    oversubscribed: u64,
    bundle: u64,
}

/// How many there are of what.
#[derive(Debug, Clone, Copy)]
struct Plan {
    hosts: u64,
    tors: u64,
    /// Of a pod; with two tiers, all.
    pod_tors: u64,
    pod_aggs: u64,
    aggs: u64,
    cores: u64,
}

/// `a / b`, if that leaves nothing.
fn divided(a: u64, b: u64, what: impl FnOnce() -> String) -> Result<u64, FileError> {
    match a.is_multiple_of(b) {
        true => Ok(a / b),
        false => Err(FileError::whole(what())),
    }
}

/// Refuses a number that does not follow from the others.
fn same(what: &str, tier: usize, is: u64, follows: u64, from: &str) -> Result<(), FileError> {
    if is == follows {
        return Ok(());
    }
    Err(FileError::whole(format!(
        "`{what}` of tier {tier} is {is}: {from} give {follows}"
    )))
}

impl Plan {
    fn of(hosts: u64, pod: u64, levels: &[Level]) -> Result<Plan, FileError> {
        if hosts == 0 || pod == 0 {
            return Err(FileError::whole("`Nodes` and `Podsize` must not be 0"));
        }
        let pods = divided(hosts, pod, || {
            format!("`Nodes` is {hosts}, which is no multiple of `Podsize`, {pod}")
        })?;
        if levels[0].bundle != 1 {
            return Err(FileError::whole("`Bundle` of tier 0: a host has one wire"));
        }
        let pod_tors = divided(pod, levels[0].down, || {
            let down = levels[0].down;
            format!("`Podsize` is {pod}, which is no multiple of `Radix_Down` of tier 0, {down}")
        })?;
        if levels.len() == 2 && pods != 1 {
            let why = format!("`Podsize` is {pod}: two tiers are one pod of all {hosts} nodes");
            return Err(FileError::whole(why));
        }
        let bundles = |tier: usize| {
            let (up, bundle) = (levels[tier].up, levels[tier + 1].bundle);
            divided(up, bundle, || {
                let next = tier + 1;
                format!("`Radix_Up` of tier {tier} is {up}, which is no multiple of `Bundle` of tier {next}, {bundle}")
            })
        };
        let pod_aggs = bundles(0)?;
        same(
            "Radix_Down",
            1,
            levels[1].down,
            pod_tors.saturating_mul(levels[1].bundle),
            "`Podsize`, `Radix_Down` of tier 0 and `Bundle`",
        )?;
        let cores = match levels.len() {
            2 => 0,
            _ => {
                let above = bundles(1)?;
                same(
                    "Radix_Down",
                    2,
                    levels[2].down,
                    pods.saturating_mul(levels[2].bundle),
                    "`Nodes`, `Podsize` and `Bundle`",
                )?;
                pod_aggs.saturating_mul(above)
            }
        };
        for (tier, pair) in levels.windows(2).enumerate() {
            let [below, above] = pair else { continue };
            let (down, up) = (
                u128::from(below.down) * u128::from(below.gbps),
                u128::from(below.up) * u128::from(above.gbps),
            );
            if down != up * u128::from(below.oversubscribed) {
                return Err(FileError::whole(format!(
                    "`Oversubscribed` of tier {tier} is {}: its switches have {down} Gb/s down and {up} Gb/s up",
                    below.oversubscribed
                )));
            }
        }
        Ok(Plan {
            hosts,
            tors: pod_tors.saturating_mul(pods),
            pod_tors,
            pod_aggs,
            aggs: pod_aggs.saturating_mul(pods),
            cores,
        })
    }

    /// The nodes, and the wires tier by tier, in htsim's order.
    fn build(&self, name: &str, levels: &[Level]) -> Result<Topology, FileError> {
        let mut tree = Tree {
            builder: Builder::new(name, MAX_PORTS),
            used: Vec::new(),
        };
        let hosts = tree.nodes("n", self.hosts, Role::End)?;
        let tors = tree.nodes(SWITCHES[0], self.tors, Role::Switch)?;
        let aggs = tree.nodes(SWITCHES[1], self.aggs, Role::Switch)?;
        let cores = tree.nodes(SWITCHES[2], self.cores, Role::Switch)?;
        let of = |list: &[NodeId], i: u64| list[i as usize];
        for (host, i) in hosts.iter().zip(0..) {
            tree.join(levels, 0, [*host, of(&tors, i / levels[0].down)])?;
        }
        for (tor, i) in tors.iter().zip(0..) {
            let pod = i / self.pod_tors;
            for agg in 0..self.pod_aggs {
                tree.join(levels, 1, [*tor, of(&aggs, pod * self.pod_aggs + agg)])?;
            }
        }
        if !cores.is_empty() {
            for (agg, i) in aggs.iter().zip(0..) {
                // The aggregation switches of a place in their pods share cores.
                let place = i % self.pod_aggs;
                for core in (place..self.cores).step_by(self.pod_aggs as usize) {
                    tree.join(levels, 2, [*agg, of(&cores, core)])?;
                }
            }
        }
        tree.builder.build().map_err(FileError::whole)
    }
}

/// A tree in the making.
struct Tree {
    builder: Builder,
    /// By node: ports in use, which are the first.
    used: Vec<u64>,
}

impl Tree {
    fn nodes(&mut self, name: &str, count: u64, role: Role) -> Result<Vec<NodeId>, FileError> {
        let mut all = Vec::new();
        for i in 0..count {
            all.push(
                self.builder
                    .node(&format!("{name}{i}"), role)
                    .map_err(FileError::whole)?,
            );
            self.used.push(0);
        }
        Ok(all)
    }

    /// The wires of a tier between a node and one above it.
    fn join(&mut self, levels: &[Level], tier: usize, ends: [NodeId; 2]) -> Result<(), FileError> {
        let Level {
            gbps,
            latency_ns,
            switch_ns,
            bundle,
            ..
        } = levels[tier];
        let below = tier.checked_sub(1).map_or(0, |t| levels[t].switch_ns);
        for _ in 0..bundle {
            let [a, b] = ends.map(|node| self.port(node));
            let wire = Wire {
                ends: [a?, b?],
                gbps: Some(gbps as f64),
                delay_ns: Some(latency_ns as f64 + (switch_ns as f64 + below as f64) / 2.0),
            };
            self.builder.wire(wire).map_err(FileError::whole)?;
        }
        Ok(())
    }

    /// The next port of a node.
    fn port(&mut self, node: NodeId) -> Result<PortOf, FileError> {
        let used = &mut self.used[node.index()];
        *used += 1;
        self.builder.port(node, *used - 1).map_err(FileError::whole)
    }
}
