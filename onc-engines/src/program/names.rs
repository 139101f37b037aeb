//! Names of collectives and algorithms on command lines and in texts: `all-reduce`,
//! `recursive-doubling`.

use ringbell_nic_abi::{Algorithm, CollectiveKind};

/// The lower-case spelling of a name of the contract: `ALL_REDUCE` is `all-reduce`.
pub fn spelled(name: &str) -> String {
    name.to_ascii_lowercase().replace('_', "-")
}

/// The collective with this name, in any case, with `-`, `_` or nothing between its words.
pub fn collective_named(name: &str) -> Option<CollectiveKind> {
    let all = CollectiveKind::ALL.iter().copied();
    all.into_iter().find(|k| same(k.name(), name))
}

/// The algorithm with this name, in any case, with `-`, `_` or nothing between its words.
pub fn algorithm_named(name: &str) -> Option<Algorithm> {
    let all = Algorithm::ALL.iter().copied();
    all.into_iter().find(|a| same(a.name(), name))
}

fn same(a: &str, b: &str) -> bool {
    let letters = |s: &str| {
        let kept = s.chars().filter(|c| !matches!(c, '-' | '_'));
        kept.map(|c| c.to_ascii_lowercase()).collect::<String>()
    };
    letters(a) == letters(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_every_spelling() {
        for name in ["all-reduce", "ALL_REDUCE", "allreduce", "AllReduce"] {
            assert_eq!(collective_named(name), Some(CollectiveKind::AllReduce));
        }
        for algo in Algorithm::ALL {
            assert_eq!(algorithm_named(&spelled(algo.name())), Some(*algo));
        }
        assert_eq!(collective_named("all"), None);
    }
}
