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

/// What to say to a caller who has named an algorithm of this collective by its former name.
pub fn renamed(kind: CollectiveKind, algo: Algorithm) -> Option<String> {
    let now = algo.of(kind);
    (now != algo).then(|| {
        let [kind, old, new] = [kind.name(), algo.name(), now.name()].map(spelled);
        format!("the {kind} by {old} is now called {new}; the former name is still accepted")
    })
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
    use crate::program::{algorithms, generate};

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

    #[test]
    fn former_names_are_found_and_lead_to_the_present_one() {
        for kind in CollectiveKind::ALL.iter().copied() {
            for algo in Algorithm::ALL.iter().copied() {
                let now = algo.of(kind);
                assert_eq!(now.of(kind), now, "{kind:?} {algo:?}");
                let is_listed = algorithms(kind).contains(&algo);
                assert!(now == algo || !is_listed, "{kind:?} {algo:?}");
                assert_eq!(renamed(kind, algo).is_some(), now != algo);
                let p = |algo| generate(kind, algo, 3, 0, 0);
                assert!(now == algo || p(algo) == p(now));
            }
        }
        let note = renamed(CollectiveKind::AllReduce, Algorithm::RecursiveDoubling);
        let note = note.expect("a former name");
        assert!(note.contains("now called all-gather-reduce"), "{note}");
        assert!(algorithms(CollectiveKind::Barrier).contains(&Algorithm::RecursiveDoubling));
    }
}
