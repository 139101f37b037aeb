//! Networks that tests share, and numbers from a seed.

use std::fmt::Write as _;
use std::hash::Hasher as _;

use ringbell_routes::file;
use ringbell_routes::generate::generate;
use ringbell_routes::topology::Topology;
use siphasher::sip::SipHasher24;

mod generated;

pub(crate) use generated::GENERATED;

pub(crate) fn network(name: &str) -> Topology {
    generate(name).unwrap_or_else(|e| panic!("{e}"))
}

/// Numbers that a seed determines.
pub(crate) struct Random(u64, u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed, 0)
    }

    /// A number below `limit`.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        let mut hasher = SipHasher24::new_with_keys(self.0, 1);
        hasher.write_u64(self.1);
        self.1 += 1;
        (hasher.finish() % limit as u64) as usize
    }
}

/// A random connected network: a random tree, more wires between random nodes, parallel ones and
/// free ports among them, and now and then switches.
pub(crate) fn random_network(random: &mut Random, most: usize) -> Topology {
    let n = 4 + random.below(most - 3);
    let mut used = vec![0; n];
    let mut text = String::from("{\"nodes\": [");
    for i in 0..n {
        let switch = i > 1 && random.below(8) == 0;
        let comma = if i > 0 { "," } else { "" };
        let _ = write!(text, "{comma}{{\"name\": \"a{i}\", \"switch\": {switch}}}");
    }
    text += "], \"wires\": [";
    let more = random.below(n + 1);
    for w in 0..n - 1 + more {
        let (a, b) = match w < n - 1 {
            true => (w + 1, random.below(w + 1)),
            false => (random.below(n), random.below(n)),
        };
        if a == b || used[a] > 60 || used[b] > 60 {
            continue;
        }
        let ports = [a, b].map(|node| {
            used[node] += 1 + usize::from(random.below(10) == 0);
            used[node] - 1
        });
        let comma = if w > 0 { "," } else { "" };
        let _ = write!(
            text,
            "{comma}{{\"ends\": [\"a{a}:{}\", \"a{b}:{}\"]}}",
            ports[0], ports[1]
        );
    }
    text += "]}";
    file::parse("random", &text).unwrap_or_else(|e| panic!("{e}: {text}"))
}
