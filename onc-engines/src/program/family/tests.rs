//! The checker finds for each family what the family says.

use super::*;
use crate::program::{algorithms, check, generate_all_in, hash_all, is_strict, InPlace, Limits};

/// Ranks up to which every family is checked.
const ALL: u32 = 64;

/// Orders, where there is something to reduce.
fn orders(kind: CollectiveKind, algo: Algorithm) -> impl Iterator<Item = Order> {
    let both = reduces(kind) && is_strict(kind, algo);
    [Order::Ring, Order::Rank]
        .into_iter()
        .take(if both { 2 } else { 1 })
}

/// Roots: all of few ranks; else those beside the ends, and one in the middle.
fn roots(kind: CollectiveKind, ranks: u32) -> Vec<u32> {
    let mut roots = match (kind.has_root(), ranks <= 16) {
        (false, _) => vec![0],
        (true, true) => (0..ranks).collect(),
        (true, false) => vec![0, 1, ranks / 2 + 1, ranks - 2, ranks - 1],
    };
    roots.dedup();
    roots
}

/// Ranks of a host that the programs know: each divisor.
fn hosts(algo: Algorithm, ranks: u32) -> Vec<u32> {
    let most = if algo == Algorithm::Hierarchical {
        ranks
    } else {
        1
    };
    (1..=most).filter(|m| ranks.is_multiple_of(*m)).collect()
}

/// Checks the families of a collective with so many ranks.
fn compare(kind: CollectiveKind, algo: Algorithm, ranks: u32) {
    for host_ranks in hosts(algo, ranks) {
        compare_on(host_ranks, kind, algo, ranks);
    }
}

/// The same with these hosts.
fn compare_on(host_ranks: impl Into<HostRanks>, kind: CollectiveKind, algo: Algorithm, ranks: u32) {
    let host_ranks = host_ranks.into();
    for order in orders(kind, algo) {
        compare_in(order, host_ranks.clone(), kind, algo, ranks);
    }
}

/// The same in this order.
fn compare_in(
    order: Order,
    host_ranks: impl Into<HostRanks>,
    kind: CollectiveKind,
    algo: Algorithm,
    ranks: u32,
) {
    let host_ranks = host_ranks.into();
    for root in roots(kind, ranks) {
        let what =
            format!("{kind:?} {algo:?} {order:?}, {ranks} ranks, root {root}, hosts {host_ranks}");
        let family = Family::new(order, kind, algo, ranks, root).unwrap();
        let family = family.on_hosts(host_ranks.clone()).unwrap();
        let programs: Vec<_> = match host_ranks.each() {
            Some(1) => generate_all_in(order, kind, algo, ranks, root).unwrap(),
            _ => (0..ranks).map(|r| family.program(r).unwrap()).collect(),
        };
        let proof = check(&programs, &Limits::default());
        let proof = proof.unwrap_or_else(|e| panic!("{what}: {e}"));
        match host_ranks.each() {
            Some(_) => assert_eq!(family.held(), proof.held, "{what}"),
            None => {
                let (held, least) = (family.held(), proof.held);
                assert!(
                    (least..=2 * ranks).contains(&held),
                    "{what}: {held}, not {least}"
                );
            }
        }
        let in_place = match family.has_in_place() {
            true => InPlace::Safe,
            false => InPlace::None,
        };
        assert_eq!(proof.in_place, in_place, "{what}");
        let own = |rank| family.program(rank).unwrap();
        let scratch = family.heaviest().into_iter().map(|r| own(r).scratch_chunks);
        let most = programs.iter().map(|p| p.scratch_chunks).max();
        assert_eq!(scratch.max(), most, "{what}");
        for (rank, program) in (0..).zip(&programs) {
            assert_eq!(own(rank), *program, "{what}");
        }
    }
}

/// Checks a collective up to [`ALL`] ranks, and with some numbers above.
fn compare_all(kind: CollectiveKind) {
    for algo in algorithms(kind).iter().copied() {
        (1..=ALL).for_each(|ranks| compare(kind, algo, ranks));
        [65, 100, 128, 129]
            .into_iter()
            .for_each(|ranks| compare(kind, algo, ranks));
    }
}

#[test]
fn families_of_all_reduce_are_as_the_checker_finds() {
    compare_all(CollectiveKind::AllReduce);
}

#[test]
fn families_of_reduce_are_as_the_checker_finds() {
    compare_all(CollectiveKind::Reduce);
}

#[test]
fn families_of_reduce_scatter_are_as_the_checker_finds() {
    compare_all(CollectiveKind::ReduceScatter);
}

#[test]
fn families_that_reduce_nothing_are_as_the_checker_finds() {
    for kind in CollectiveKind::ALL.iter().copied() {
        if !reduces(kind) {
            compare_all(kind);
        }
    }
}

#[test]
fn large_families_are_as_the_checker_finds() {
    use Algorithm as A;
    use CollectiveKind as K;
    for (kind, algo) in [
        (K::AllReduce, A::Tree),
        (K::AllReduce, A::RecursiveDoubling),
        (K::Broadcast, A::Chain),
        (K::Broadcast, A::RecursiveDoubling),
        (K::Gather, A::Tree),
        (K::Barrier, A::RecursiveDoubling),
    ] {
        for ranks in [511, 1000, 1024] {
            compare(kind, algo, ranks);
        }
    }
    for (kind, algo) in [
        (K::AllReduce, A::RecursiveDoubling),
        (K::Barrier, A::RecursiveDoubling),
    ] {
        compare(kind, algo, 3000);
        compare(kind, algo, 4096);
    }
}

#[test]
fn whole_sources_of_many_ranks_are_as_the_checker_finds_in_the_order_of_the_ranks() {
    for ranks in [257, 300] {
        for (kind, algo) in [
            (CollectiveKind::AllReduce, Algorithm::AllGatherReduce),
            (CollectiveKind::Reduce, Algorithm::Flat),
        ] {
            compare_in(Order::Rank, 1, kind, algo, ranks);
        }
    }
}

#[test]
fn large_families_on_hosts_are_as_the_checker_finds() {
    let shapes = [(2, 100), (100, 2), (16, 16), (64, 8), (128, 4)];
    let algo = Algorithm::Hierarchical;
    for kind in CollectiveKind::ALL.iter().copied() {
        // Five roots of each take as long as all shapes without one.
        let most = if kind.has_root() { 2 } else { shapes.len() };
        for (hosts, host_ranks) in shapes.into_iter().take(most) {
            if algorithms(kind).contains(&algo) {
                compare_on(host_ranks, kind, algo, hosts * host_ranks);
            }
        }
    }
}

/// All ways to put ranks on hosts one after the other: a bit for each rank that begins one.
fn compositions(ranks: u32) -> impl Iterator<Item = HostRanks> {
    let begins = move |bits: u32, rank: u32| rank > 0 && bits >> (rank - 1) & 1 == 1;
    (0..1 << (ranks - 1)).map(move |bits| {
        let host = |rank| (1..=rank).filter(|r| begins(bits, *r)).count();
        HostRanks::of_hosts((0..ranks).map(host))
    })
}

fn compare_by_hosts(host_ranks: &HostRanks, ranks: u32) {
    let algo = Algorithm::Hierarchical;
    for kind in CollectiveKind::ALL.iter().copied() {
        if algorithms(kind).contains(&algo) {
            compare_on(host_ranks.clone(), kind, algo, ranks);
        }
    }
}

#[test]
fn hosts_with_any_numbers_of_ranks_are_as_the_checker_finds() {
    let mut unequal = 0;
    for ranks in 1..=10 {
        for hosts in compositions(ranks).filter(|h| h.each().is_none()) {
            compare_by_hosts(&hosts, ranks);
            unequal += 1;
        }
    }
    // 2ⁿ⁻¹ each, without those of equal hosts: a divisor of n each.
    assert_eq!(unequal, 1023 - 27);
}

#[test]
fn ranks_that_are_mixed_among_hosts_are_as_the_checker_finds() {
    let mut seed = 94u64;
    let mut any = |below: u64| {
        seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(94);
        (seed >> 33) % below
    };
    for _ in 0..60 {
        let ranks = 2 + any(39) as u32;
        let hosts = 2 + any(7);
        let mixed = HostRanks::of_hosts((0..ranks).map(|_| any(hosts)));
        compare_by_hosts(&mixed, ranks);
    }
    // Dealt out, as `mpirun --map-by node` numbers them.
    compare_by_hosts(&HostRanks::of_hosts((0..24).map(|rank| rank % 3)), 24);
    for sizes in [&[60, 1, 3][..], &[1, 40, 1, 1], &[8, 8, 8, 7, 8], &[64, 1]] {
        compare_by_hosts(&HostRanks::of_sizes(sizes), sizes.iter().sum());
    }
}

#[test]
fn programs_of_unequal_hosts_stay_short() {
    let algo = Algorithm::Hierarchical;
    let large: Vec<u32> = std::iter::once(512).chain([1; 512]).collect();
    let varied: Vec<u32> = (0..128).map(|host| 4 + host % 9).collect();
    for sizes in [large, varied] {
        let ranks = sizes.iter().sum();
        for kind in CollectiveKind::ALL.iter().copied() {
            let Ok(family) = Family::new(Order::Ring, kind, algo, ranks, 0) else {
                continue;
            };
            let family = family.on_hosts(HostRanks::of_sizes(&sizes)).unwrap();
            let checked = family.check_heaviest(&Limits::default(), |p| {
                assert!(
                    p.steps.len() <= 4 * ranks as usize,
                    "{kind:?} {}",
                    p.steps.len()
                );
            });
            assert_eq!(checked, Ok(()), "{kind:?}");
        }
    }
}

#[test]
fn ranks_that_are_no_whole_number_of_hosts_are_refused_with_the_reason() {
    let (kind, algo) = (CollectiveKind::AllReduce, Algorithm::Hierarchical);
    let family = Family::new(Order::Ring, kind, algo, 6, 0).unwrap();
    for (host_ranks, words) in [
        (0, "hosts are not known"),
        (4, "6 ranks cannot be 4"),
        (7, "7 on"),
    ] {
        let error = family
            .clone()
            .on_hosts(host_ranks)
            .expect_err("refused")
            .to_string();
        assert!(error.contains(words), "{error}");
    }
    let error = family.clone().on_hosts(HostRanks::of_sizes(&[3, 2]));
    let error = error.expect_err("refused").to_string();
    assert!(
        error.contains("hosts of 3,2 ranks have 5 in all, and there are 6"),
        "{error}"
    );
    // Others do not care.
    let ring = Family::new(Order::Ring, kind, Algorithm::Ring, 6, 0).unwrap();
    assert_eq!(ring.clone().on_hosts(0), Ok(ring));
}

#[test]
fn families_differ_by_their_hash() {
    let mut seen = std::collections::HashMap::new();
    for kind in CollectiveKind::ALL.iter().copied() {
        for algo in algorithms(kind).iter().copied() {
            for order in orders(kind, algo) {
                for ranks in [2, 3, 4] {
                    for root in roots(kind, ranks) {
                        for host_ranks in hosts(algo, ranks) {
                            let f = Family::new(order, kind, algo, ranks, root).unwrap();
                            let f = f.on_hosts(host_ranks).unwrap();
                            assert_eq!(seen.insert(f.hash(), f.clone()), None, "{f:?}");
                        }
                        for hosts in compositions(ranks).filter(|h| h.each().is_none()) {
                            let f = Family::new(order, kind, algo, ranks, root).unwrap();
                            let f = f.on_hosts(hosts).unwrap();
                            if algo == Algorithm::Hierarchical {
                                assert_eq!(seen.insert(f.hash(), f.clone()), None, "{f:?}");
                            }
                        }
                    }
                }
            }
        }
    }
    // What the other order would be where nothing is reduced, and a root that does not
    // count.
    let of = |order, kind, algo, root| Family::new(order, kind, algo, 4, root).unwrap();
    use Algorithm as A;
    use CollectiveKind as K;
    assert_eq!(
        of(Order::Rank, K::AllGather, A::Ring, 0),
        of(Order::Ring, K::AllGather, A::Ring, 3)
    );
}

#[test]
fn a_change_of_the_programs_is_a_generation() {
    let mut all = Vec::new();
    for kind in CollectiveKind::ALL.iter().copied() {
        for algo in algorithms(kind).iter().copied() {
            for order in orders(kind, algo) {
                for ranks in (1..=9).chain([16, 33]) {
                    let root = ranks / 2;
                    let family = Family::new(order, kind, algo, ranks, root).unwrap();
                    for host_ranks in hosts(algo, ranks) {
                        let family = family.clone().on_hosts(host_ranks).unwrap();
                        all.extend((0..ranks).map(|r| family.program(r).unwrap()));
                    }
                }
            }
        }
    }
    assert_eq!(
        (GENERATION, hash_all(&all)),
        (3, 0x7ff9_f347_84f7_e65f),
        "generators make other programs: raise GENERATION, and record both here"
    );
}
