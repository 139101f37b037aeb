//! Networks by name: `ring:8`, `torus:2x4`, `fat-tree:2x3`.
//!
//! Nodes are named `n0`, `n1`, ... in the order of their ranks; switches `s0`, `s1`, ...

use std::hash::Hasher as _;

use siphasher::sip::SipHasher24;

use crate::topology::{
    Builder, NodeId, Role, Shape, Topology, TopologyError, Wire, MAX_NODES, MAX_PORTS,
    MAX_ROUTED_NODES,
};

/// The generators, with their arguments, for messages and help.
pub const GENERATORS: [(&str, &str); 10] = [
    ("bus", "N"),
    ("ring", "N"),
    ("mesh", "AxB[xC...]"),
    ("torus", "AxB[xC...]"),
    ("hypercube", "DIMENSIONS"),
    ("fat-tree", "KxLEVELS"),
    ("dragonfly", "AxH"),
    ("rail", "HxGxS[@GBPS]"),
    ("rack", "HxGxS[@GBPS]"),
    ("random", "NxDEGREE[@SEED]"),
];

/// Restarts of the search for a random network.
const ATTEMPTS: u64 = 10_000;
/// Delay of a wire inside a host.
const INSIDE_NS: f64 = 100.0;

/// Why a name gives no network.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GenerateError {
    /// No generator has this name.
    #[error("no generator is named `{0}`; there are {all}", all = forms().join(", "))]
    Unknown(String),
    /// Its arguments have another form.
    #[error("`{name}:{arguments}`: write `{name}:{form}`")]
    Form {
        /// The generator.
        name: &'static str,
        /// What it was given.
        arguments: String,
        /// What it takes.
        form: &'static str,
    },
    /// A number that it does not take.
    #[error("`{name}`: {why}")]
    Number {
        /// The generator with its arguments.
        name: String,
        /// Which one, and what it may be.
        why: String,
    },
    /// The network would break a rule.
    #[error("`{name}`: {why}")]
    Topology {
        /// The generator with its arguments.
        name: String,
        /// The rule.
        why: TopologyError,
    },
}

/// Each generator as it is written.
fn forms() -> Vec<String> {
    let form = |(name, arguments): &(&str, &str)| format!("{name}:{arguments}");
    GENERATORS.iter().map(form).collect()
}

/// Whether a text begins with the name of a generator and a colon.
pub fn names_generator(text: &str) -> bool {
    let name = text.split_once(':').map(|(name, _)| name);
    name.is_some_and(|name| GENERATORS.iter().any(|(known, _)| *known == name))
}

/// The network of this name.
///
/// - `bus:N`, `ring:N`; `mesh:AxB`, `torus:AxB` and more dimensions. A ring of two has two wires,
///   as in SMI's 2×4 torus (SC'19 §5.1).
/// - `hypercube:D`: 2^D nodes.
/// - `fat-tree:KxN`: the k-ary n-tree (Petrini and Vanneschi, IPPS'97): K^N ends below N·K^(N−1)
///   switches.
/// - `dragonfly:AxH` (Kim et al., ISCA'08): groups of A nodes that are wired to each other; each
///   node has H wires to other groups, and there are A·H + 1 groups.
/// - `rail:HxGxS`: H hosts with G NICs each. NIC g of every host is at switch g, its rail, and each
///   of the G rails has a wire to each of S spines. Ranks of a host follow each other.
///   `rack:HxGxS` is the same network with H consecutive ranks at each of the G switches. With
///   `@GBPS` the ranks of a host reach each other without the network: each rank has a wire of this
///   rate to a switch of its own, which joins the rank's NIC and, by such a wire, a switch of the
///   host.
/// - `random:NxD@SEED`: N nodes with D wires each, at most one between two; seed 1 by default.
///
/// # Errors
/// [`GenerateError`].
pub fn generate(text: &str) -> Result<Topology, GenerateError> {
    let (name, arguments) = text.split_once(':').unwrap_or((text, ""));
    let known = GENERATORS.iter().find(|(known, _)| *known == name);
    let Some(&(name, form)) = known else {
        return Err(GenerateError::Unknown(name.into()));
    };
    let asked = Asked {
        text,
        name,
        form,
        arguments,
    };
    match name {
        "bus" => asked.grid(vec![asked.one(2)?], false),
        "ring" => asked.grid(vec![asked.one(2)?], true),
        "mesh" => asked.grid(asked.sizes()?, false),
        "torus" => asked.grid(asked.sizes()?, true),
        "hypercube" => asked.hypercube(),
        "fat-tree" => asked.fat_tree(),
        "dragonfly" => asked.dragonfly(),
        "rail" => asked.hosts(|rank, _, nics| rank % nics),
        "rack" => asked.hosts(|rank, hosts, _| rank / hosts),
        _ => asked.random(),
    }
}

/// A generator and its arguments.
struct Asked<'a> {
    text: &'a str,
    name: &'static str,
    form: &'static str,
    arguments: &'a str,
}

impl Asked<'_> {
    fn form(&self) -> GenerateError {
        GenerateError::Form {
            name: self.name,
            arguments: self.arguments.into(),
            form: self.form,
        }
    }

    fn refused(&self, why: impl Into<String>) -> GenerateError {
        let (name, why) = (self.text.into(), why.into());
        GenerateError::Number { name, why }
    }

    /// An error of the network, under the name that was asked for.
    fn broken(&self, why: TopologyError) -> GenerateError {
        let name = self.text.into();
        GenerateError::Topology { name, why }
    }

    fn number(&self, text: &str) -> Result<usize, GenerateError> {
        let is_number = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let number = is_number.then(|| text.parse().ok()).flatten();
        number.ok_or_else(|| self.form())
    }

    /// The only argument, of at least so many.
    fn one(&self, least: usize) -> Result<usize, GenerateError> {
        let n = self.number(self.arguments)?;
        match n >= least {
            true => Ok(n),
            false => Err(self.refused(format!("at least {least}"))),
        }
    }

    /// Arguments with `x` between them.
    fn list(&self) -> Result<Vec<usize>, GenerateError> {
        self.arguments.split('x').map(|n| self.number(n)).collect()
    }

    /// Two arguments, neither of them 0.
    fn two(&self) -> Result<(usize, usize), GenerateError> {
        match self.list()?[..] {
            [a, b] if a > 0 && b > 0 => Ok((a, b)),
            [_, _] => Err(self.refused("neither number may be 0")),
            _ => Err(self.form()),
        }
    }

    /// Nodes in each of two or more dimensions.
    fn sizes(&self) -> Result<Vec<usize>, GenerateError> {
        let sizes = self.list()?;
        if sizes.len() < 2 {
            return Err(self.form());
        }
        if sizes.contains(&0) {
            return Err(self.refused("each dimension has a node at least"));
        }
        if 2 * sizes.len() > MAX_PORTS {
            return Err(self.refused(format!("at most {} dimensions", MAX_PORTS / 2)));
        }
        Ok(sizes)
    }

    /// A builder with so many ends that forward; `None`: their number is beyond all numbers.
    fn ends(&self, count: Option<usize>) -> Result<(Builder, Vec<NodeId>), GenerateError> {
        self.at_most(MAX_ROUTED_NODES, count)
    }

    /// A builder with so many ends, which are at most `limit`.
    fn at_most(
        &self,
        limit: usize,
        count: Option<usize>,
    ) -> Result<(Builder, Vec<NodeId>), GenerateError> {
        let too_many = || self.broken(TopologyError::TooManyNodes { limit });
        let count = count.filter(|n| *n <= limit).ok_or_else(too_many)?;
        let mut builder = Builder::new(self.text, MAX_PORTS);
        let nodes = (0..count).map(|n| builder.node(&format!("n{n}"), Role::End));
        let nodes = nodes.collect::<Result<_, _>>();
        let nodes = nodes.map_err(|why| self.broken(why))?;
        Ok((builder, nodes))
    }

    fn build(&self, builder: Builder) -> Result<Topology, GenerateError> {
        builder.build().map_err(|why| self.broken(why))
    }

    fn grid(&self, sizes: Vec<usize>, wrapped: bool) -> Result<Topology, GenerateError> {
        let (mut builder, nodes) = self.ends(product(sizes.iter().copied()))?;
        let mut stride = nodes.len();
        for (d, size) in sizes.iter().copied().enumerate() {
            stride /= size;
            for n in 0..nodes.len() {
                let at = n / stride % size;
                let next = match at + 1 == size {
                    false => n + stride,
                    true if wrapped && size > 1 => n - at * stride,
                    true => continue,
                };
                let joined = builder.join((nodes[n], 2 * d + 1), (nodes[next], 2 * d));
                joined.map_err(|why| self.broken(why))?;
            }
        }
        builder.set_shape(Shape::Grid { sizes, wrapped });
        self.build(builder)
    }

    fn hypercube(&self) -> Result<Topology, GenerateError> {
        let dimensions = self.one(1)?;
        let count = u32::try_from(dimensions).ok();
        let count = count.and_then(|d| 1usize.checked_shl(d)).filter(|n| *n > 0);
        let (mut builder, nodes) = self.ends(count)?;
        for n in 0..nodes.len() {
            for d in (0..dimensions).filter(|d| n & (1 << d) == 0) {
                let joined = builder.join((nodes[n], d), (nodes[n | 1 << d], d));
                joined.map_err(|why| self.broken(why))?;
            }
        }
        self.build(builder)
    }

    fn fat_tree(&self) -> Result<Topology, GenerateError> {
        let (k, levels) = self.two()?;
        let power = |n: usize| product(std::iter::repeat_n(k, n.min(MAX_NODES)));
        let (mut builder, ends) = self.at_most(MAX_NODES, power(levels))?;
        let width = ends.len() / k;
        let mut switches = Vec::with_capacity(levels * width);
        for s in 0..levels * width {
            let switch = builder.node(&format!("s{s}"), Role::Switch);
            switches.push(switch.map_err(|why| self.broken(why))?);
        }
        let mut joins = Vec::new();
        // Level 0 is the top. Ports 0 to k-1 go down, k to 2k-1 up.
        for (p, end) in ends.iter().enumerate() {
            let leaf = switches[(levels - 1) * width + p / k];
            joins.push(((leaf, p % k), (*end, 0)));
        }
        for level in 1..levels {
            let weight = width / k.pow(level as u32);
            for lower in 0..width {
                let digit = lower / weight % k;
                for other in 0..k {
                    let upper = lower - digit * weight + other * weight;
                    let above = switches[(level - 1) * width + upper];
                    let below = switches[level * width + lower];
                    joins.push(((above, digit), (below, k + other)));
                }
            }
        }
        for (a, b) in joins {
            builder.join(a, b).map_err(|why| self.broken(why))?;
        }
        self.build(builder)
    }

    fn dragonfly(&self) -> Result<Topology, GenerateError> {
        let (a, h) = self.two()?;
        let wires = a.checked_mul(h);
        let groups = wires.and_then(|w| w.checked_add(1));
        let (mut builder, nodes) = self.ends(groups.and_then(|g| g.checked_mul(a)))?;
        let (wires, groups) = (a * h, a * h + 1);
        for g in 0..groups {
            for r in 0..a {
                for other in r + 1..a {
                    // Ports 0 to a-2 go to the others of the group, each node left out of its own.
                    let ends = ((nodes[g * a + r], other - 1), (nodes[g * a + other], r));
                    let joined = builder.join(ends.0, ends.1);
                    joined.map_err(|why| self.broken(why))?;
                }
            }
            for j in 0..wires {
                let to = g + j + 1;
                if to >= groups {
                    break;
                }
                let back = wires - 1 - j;
                let end = |group: usize, j: usize| (nodes[group * a + j / h], a - 1 + j % h);
                let joined = builder.join(end(g, j), end(to, back));
                joined.map_err(|why| self.broken(why))?;
            }
        }
        self.build(builder)
    }

    /// Hosts with several NICs; `leaf_of` says at which switch a rank's NIC is, by the numbers of
    /// hosts and of NICs of each.
    fn hosts(
        &self,
        leaf_of: impl Fn(usize, usize, usize) -> usize,
    ) -> Result<Topology, GenerateError> {
        let (sizes, inside) = match self.arguments.split_once('@') {
            Some((sizes, gbps)) => (sizes, Some(self.number(gbps)? as f64)),
            None => (self.arguments, None),
        };
        let numbers = sizes.split('x').map(|n| self.number(n));
        let [hosts, nics, spines] = numbers.collect::<Result<Vec<_>, _>>()?[..] else {
            return Err(self.form());
        };
        if hosts == 0 || nics == 0 {
            return Err(self.refused("at least one host, and one NIC of each"));
        }
        let (mut builder, ends) = self.at_most(MAX_NODES, hosts.checked_mul(nics))?;
        let mut count = 0;
        let mut switch = |builder: &mut Builder| {
            let name = format!("s{count}");
            count += 1;
            builder.node(&name, Role::Switch)
        };
        let mut made = || -> Result<(), TopologyError> {
            let leaves: Vec<_> = (0..nics)
                .map(|_| switch(&mut builder))
                .collect::<Result<_, _>>()?;
            for spine in 0..spines {
                let top = switch(&mut builder)?;
                for (n, leaf) in leaves.iter().enumerate() {
                    builder.join((*leaf, hosts + spine), (top, n))?;
                }
            }
            let mut down = vec![0; nics];
            let mut host = None;
            for (rank, end) in ends.iter().enumerate() {
                let leaf = leaf_of(rank, hosts, nics);
                let at_leaf = (leaves[leaf], down[leaf]);
                down[leaf] += 1;
                let Some(gbps) = inside else {
                    builder.join(at_leaf, (*end, 0))?;
                    continue;
                };
                if rank % nics == 0 {
                    host = Some(switch(&mut builder)?);
                }
                let own = switch(&mut builder)?;
                builder.join(at_leaf, (own, 1))?;
                let inner = |from: (NodeId, usize), to: (NodeId, usize), b: &mut Builder| {
                    let ends = [b.port(from.0, from.1 as u64)?, b.port(to.0, to.1 as u64)?];
                    let (gbps, delay_ns) = (Some(gbps), Some(INSIDE_NS));
                    b.wire(Wire {
                        ends,
                        gbps,
                        delay_ns,
                    })
                };
                inner((own, 0), (*end, 0), &mut builder)?;
                if let Some(host) = host {
                    inner((host, rank % nics), (own, 2), &mut builder)?;
                }
            }
            Ok(())
        };
        made().map_err(|why| self.broken(why))?;
        self.build(builder)
    }

    fn random(&self) -> Result<Topology, GenerateError> {
        let (sizes, seed) = match self.arguments.split_once('@') {
            Some((sizes, seed)) => (sizes, self.number(seed)? as u64),
            None => (self.arguments, 1),
        };
        let asked = Asked {
            arguments: sizes,
            ..*self
        };
        let (n, degree) = asked.two().map_err(|error| match error {
            GenerateError::Form { .. } => self.form(),
            other => other,
        })?;
        let is_odd = n % 2 == 1 && degree % 2 == 1;
        if degree >= n || degree > MAX_PORTS || is_odd {
            return Err(self.refused(format!(
                "no network of {n} nodes has {degree} wires at each; fewer wires than nodes, at \
                 most {MAX_PORTS}, and an even number of ends of wires"
            )));
        }
        let mut random = Random::new(seed);
        for _ in 0..ATTEMPTS {
            let (mut builder, nodes) = self.ends(Some(n))?;
            let Some(pairs) = regular(n, degree, &mut random) else {
                continue;
            };
            let mut used = vec![0; n];
            for (a, b) in pairs {
                let joined = builder.join((nodes[a], used[a]), (nodes[b], used[b]));
                joined.map_err(|why| self.broken(why))?;
                used[a] += 1;
                used[b] += 1;
            }
            if let Ok(topology) = builder.build() {
                return Ok(topology);
            }
        }
        Err(self.refused(format!(
            "none of {ATTEMPTS} random networks was connected; give another degree or seed"
        )))
    }
}

/// Pairs of nodes by which each is in `degree` of them, or none where the choice led nowhere
/// (Steger and Wormald, 1999).
fn regular(n: usize, degree: usize, random: &mut Random) -> Option<Vec<(usize, usize)>> {
    let mut free: Vec<usize> = (0..n * degree).map(|i| i / degree).collect();
    let mut joined = vec![false; n * n];
    let mut pairs = Vec::with_capacity(free.len() / 2);
    let mut failed = 0;
    while !free.is_empty() {
        let (i, j) = (random.below(free.len()), random.below(free.len()));
        let (a, b) = (free[i], free[j]);
        if a == b || joined[a * n + b] {
            failed += 1;
            if failed > 50 + 2 * free.len() {
                return None;
            }
            continue;
        }
        failed = 0;
        joined[a * n + b] = true;
        joined[b * n + a] = true;
        pairs.push((a, b));
        free.swap_remove(i.max(j));
        free.swap_remove(i.min(j));
    }
    Some(pairs)
}

/// The product, unless it is larger than any network.
fn product(numbers: impl Iterator<Item = usize>) -> Option<usize> {
    let mut product = 1usize;
    for n in numbers {
        product = product.checked_mul(n).filter(|p| *p <= MAX_NODES)?;
    }
    Some(product)
}

/// Numbers that a seed determines, alike on every machine.
pub(crate) struct Random {
    seed: u64,
    drawn: u64,
}

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random { seed, drawn: 0 }
    }

    /// A number below `limit`, which is not 0.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        let mut hasher = SipHasher24::new_with_keys(self.seed, 0);
        hasher.write_u64(self.drawn);
        self.drawn += 1;
        (hasher.finish() % limit as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(text: &str) -> (usize, usize, usize) {
        let t = generate(text).unwrap_or_else(|e| panic!("{e}"));
        (t.ends().count(), t.nodes().len(), t.wires().len())
    }

    #[test]
    fn each_network_has_the_nodes_and_wires_of_its_definition() {
        assert_eq!(sizes("bus:5"), (5, 5, 4));
        assert_eq!(sizes("ring:5"), (5, 5, 5));
        assert_eq!(sizes("torus:2x4"), (8, 8, 16));
        assert_eq!(sizes("torus:3x3x3"), (27, 27, 81));
        assert_eq!(sizes("mesh:3x4"), (12, 12, 17));
        assert_eq!(sizes("hypercube:6"), (64, 64, 192));
        // 3 levels of 4 switches; 8 wires to the ends, and 2 stages of 8.
        assert_eq!(sizes("fat-tree:2x3"), (8, 20, 24));
        // 9 groups of 4: 6 wires in each, and one between any two.
        assert_eq!(sizes("dragonfly:4x2"), (36, 36, 9 * 6 + 36));
        // 4 rails and 2 spines; 8 wires to the NICs of each rail, and 8 to spines.
        assert_eq!(sizes("rail:8x4x2"), (32, 38, 32 + 8));
        assert_eq!(sizes("rack:8x4x2"), (32, 38, 32 + 8));
        // A switch for each host and each rank, with a wire each to the rank and to the host.
        assert_eq!(sizes("rail:8x4x2@900"), (32, 38 + 8 + 32, 32 + 8 + 64));
        assert_eq!(sizes("rail:4x4x0@900"), (16, 16 + 4 + 4 + 16, 16 + 32));
        assert_eq!(sizes("random:16x5@3"), (16, 16, 40));
        assert_ne!(generate("random:16x5@3"), generate("random:16x5@4"));
    }

    #[test]
    fn smis_torus_has_two_wires_between_neighbours_in_the_short_dimension() {
        let t = generate("torus:2x4").expect("a torus");
        assert!(t.ids().all(|n| t.leaving(n).count() == 4));
        let twins = t.leaving(NodeId(0)).filter(|l| t.to(*l).node == NodeId(4));
        assert_eq!(twins.count(), 2);
    }

    #[test]
    fn every_pair_of_groups_of_a_dragonfly_has_a_wire() {
        let t = generate("dragonfly:3x2").expect("a dragonfly");
        let mut pairs: Vec<_> = t
            .wires()
            .iter()
            .map(|w| w.ends.map(|e| e.node.index() / 3))
            .filter(|[a, b]| a != b)
            .map(|[a, b]| (a.min(b), a.max(b)))
            .collect();
        pairs.sort_unstable();
        pairs.dedup();
        assert_eq!(pairs.len(), 7 * 6 / 2);
    }

    #[test]
    fn a_rail_has_one_nic_of_each_host_and_a_rack_has_hosts_side_by_side() {
        let leaves = |text| {
            let t = generate(text).expect(text);
            let to = |n| t.to(t.leaving(n).next().expect("a wire")).node.index() - 12;
            t.ends().map(to).collect::<Vec<_>>()
        };
        assert_eq!(leaves("rail:4x3x2"), [0, 1, 2].repeat(4));
        assert_eq!(
            leaves("rack:4x3x2"),
            [[0; 4], [1; 4], [2; 4]].concat().to_vec()
        );
    }

    #[test]
    fn ranks_of_a_host_reach_each_other_by_fast_wires_alone() {
        let t = generate("rail:3x2x1@900").expect("a network");
        // The rank's wire, and behind it those to the NIC and to the host.
        for end in t.ends() {
            let mut wires = t.leaving(end);
            let (first, none) = (wires.next().expect("a wire"), wires.next());
            assert_eq!((t.wires()[first.wire()].gbps, none), (Some(900.0), None));
            let own = t.to(first).node;
            let rates = t.leaving(own).map(|l| t.wires()[l.wire()].gbps);
            assert_eq!(rates.collect::<Vec<_>>(), [Some(900.0), None, Some(900.0)]);
            let host = t.to(t.link(own, 2).expect("a wire")).node;
            assert_eq!(t.leaving(host).count(), 2);
        }
    }

    #[test]
    fn what_is_no_network_is_refused_in_words() {
        for (text, part) in [
            ("tree:4", "no generator is named `tree`"),
            ("ring", "write `ring:N`"),
            ("ring:+4", "write `ring:N`"),
            ("ring:1", "at least 2"),
            ("torus:4", "write `torus:AxB[xC...]`"),
            ("torus:4x0", "each dimension"),
            ("torus:1x1", "1 node(s) with a rank"),
            ("torus:99999999999x99999999999", "more than 1024 nodes"),
            ("bus:18446744073709551616", "write `bus:N`"),
            ("hypercube:64", "more than 1024 nodes"),
            ("hypercube:4294967296", "more than 1024 nodes"),
            ("fat-tree:1x900", "with a rank"),
            ("fat-tree:65x1", "has no port"),
            ("fat-tree:26x3", "more than 16384 nodes"),
            ("fat-tree:9x99999999999999", "more than 16384 nodes"),
            ("dragonfly:18446744073709551615x9", "more than 1024 nodes"),
            ("dragonfly:0x3", "neither number may be 0"),
            ("rail:4x4", "write `rail:HxGxS[@GBPS]`"),
            ("rail:4x4x2@", "write `rail:HxGxS[@GBPS]`"),
            ("rail:4x4x2@0", "greater than 0"),
            ("rack:0x4x2", "at least one host"),
            ("rail:4x4x0", "not connected"),
            ("rail:40x2x30", "has no port"),
            ("rail:18446744073709551615x9x1", "more than 16384 nodes"),
            ("random:5x3", "an even number"),
            ("random:18446744073709551615x3", "an even number"),
            ("random:18446744073709551614x3", "more than 1024 nodes"),
            ("random:4x4", "fewer wires than nodes"),
            ("random:6x1", "was connected"),
            ("random:6x3@", "write `random:NxDEGREE[@SEED]`"),
        ] {
            let refused = generate(text).expect_err(text).to_string();
            assert!(refused.contains(part), "{text}: {refused}");
        }
    }
}
