//! Every collective with every algorithm against a serial model.

use ringbell_nic_abi::{Algorithm, CollectiveKind as K};

use super::*;
use crate::program::{
    algorithms, check, generate_all, generate_all_in, is_strict, Family, Limits, Order,
};

/// Elements of rank r's source: distinct in every rank and element, and inexact when summed.
fn source(rank: u32, len: usize) -> Vec<f32> {
    let mut draw = Draw(u64::from(rank) + 1);
    (0..len)
        .map(|_| draw.below(1 << 24) as f32 / 7.0 - 1e5)
        .collect()
}

/// What every rank must end with: the reduction of chunk i of n starts at rank i, or at rank 0.
fn model(p: &Program, count: usize, sources: &[Vec<f32>]) -> Vec<f32> {
    let n = p.ranks as usize;
    let chunks = |start: usize| {
        let layout = Layout {
            count: count as u64,
            block_chunks: p.ranks,
        };
        // Rank with whose element the reduction of each element starts.
        (0..p.ranks).flat_map(move |c| {
            let len = layout.chunk(c).end - layout.chunk(c).start;
            (0..len).map(move |_| (c as usize + start) % n)
        })
    };
    let sum = |i: usize, first: usize| {
        let first = if p.order == Order::Rank { 0 } else { first };
        (1..n).fold(sources[first][i], |sum, k| {
            sum + sources[(first + k) % n][i]
        })
    };
    let me = p.rank as usize;
    let block = |rank: usize, b: usize| sources[rank][b * count..(b + 1) * count].to_vec();
    let at_root = |v: Vec<f32>| if p.rank == p.root { v } else { Vec::new() };
    let whole = || {
        chunks(0)
            .enumerate()
            .map(|(i, first)| sum(i, first))
            .collect()
    };
    match p.kind {
        K::Broadcast => sources[p.root as usize].clone(),
        K::Scatter => block(p.root as usize, me),
        K::Gather => at_root(sources.concat()),
        K::AllGather => sources.concat(),
        K::AllToAll => (0..n).flat_map(|r| block(r, me)).collect(),
        K::AllReduce => whole(),
        K::Reduce => at_root(whole()),
        K::ReduceScatter => (me * count..(me + 1) * count).map(|i| sum(i, me)).collect(),
        _ => Vec::new(),
    }
}

fn run(kind: K, algo: Algorithm, ranks: u32, root: u32, counts: &[usize]) {
    run_in(Order::Ring, kind, algo, ranks, root, counts);
    if is_strict(kind, algo) && matches!(kind, K::Reduce | K::AllReduce | K::ReduceScatter) {
        run_in(Order::Rank, kind, algo, ranks, root, counts);
    }
}

fn run_in(order: Order, kind: K, algo: Algorithm, ranks: u32, root: u32, counts: &[usize]) {
    let programs = generate_all_in(order, kind, algo, ranks, root).unwrap();
    check(&programs, &Limits::default()).unwrap();
    for &count in counts {
        let len = |p: &Program| (p.input_chunks / p.block_chunks) as usize * count;
        // Sums of small whole numbers are exact, so that another order has the same bits.
        let exact = programs[0].order == Order::Other;
        let sources: Vec<Vec<f32>> = programs
            .iter()
            .map(|p| {
                let values = source(p.rank, len(p));
                let round = |v: f32| if exact { v.round() % 1024.0 } else { v };
                values.into_iter().map(round).collect()
            })
            .collect();
        for in_place in [false, true] {
            let seed = u64::from(ranks) << 32 | count as u64;
            let out = simulate(
                &programs,
                count as u64,
                &sources,
                in_place,
                |a, b| a + b,
                seed,
            );
            let out = out.unwrap_or_else(|e| panic!("{kind:?} {algo:?} {ranks} {root}: {e}"));
            for p in &programs {
                let wanted = model(p, count, &sources);
                let has = &out.outputs[p.rank as usize];
                let same =
                    |(h, w): (&Option<f32>, &f32)| h.is_some_and(|h| h.to_bits() == w.to_bits());
                assert!(
                    has.len() == wanted.len() && has.iter().zip(&wanted).all(same),
                    "{kind:?} {algo:?}, {ranks} ranks, root {root}, {count} elements, in place {in_place}: rank {}",
                    p.rank
                );
            }
        }
    }
}

fn matrix(kinds: &[K]) {
    for kind in kinds {
        for algo in algorithms(*kind) {
            for ranks in [1u32, 2, 3, 5, 8] {
                let n = ranks as usize;
                for root in 0..if kind.has_root() { ranks } else { 1 } {
                    run(
                        *kind,
                        *algo,
                        ranks,
                        root,
                        &[0, 1, 7, n - 1, n, 1023, 65_537],
                    );
                }
            }
        }
    }
}

#[test]
fn rooted_collectives_equal_the_serial_model() {
    matrix(&[K::Broadcast, K::Reduce, K::Scatter, K::Gather]);
}

#[test]
fn collectives_of_all_equal_the_serial_model() {
    matrix(&[
        K::AllGather,
        K::ReduceScatter,
        K::AllReduce,
        K::AllToAll,
        K::Barrier,
    ]);
}

#[test]
fn the_order_of_the_ring_is_kept_by_every_algorithm_that_claims_it() {
    // Concatenation neither commutes nor forgets: it shows the order itself.
    for algo in algorithms(K::AllReduce) {
        let programs = generate_all(K::AllReduce, *algo, 5, 0).unwrap();
        if programs[0].order != Order::Ring {
            continue;
        }
        let sources: Vec<Vec<String>> = (0..5).map(|r| vec![r.to_string(); 5]).collect();
        let out = simulate(&programs, 5, &sources, false, |a, b| format!("{a}{b}"), 1).unwrap();
        for output in out.outputs {
            let output: Vec<_> = output.into_iter().flatten().collect();
            assert_eq!(output, ["01234", "12340", "23401", "34012", "40123"]);
        }
    }
}

/// What the ranks from `first` on reduce to, `len` of them, where halves are combined; a pair
/// stands for one of the first places.
fn halves(first: u32, len: u32, pairs: u32) -> String {
    let place = |v: u32| match v < pairs {
        true => format!("({}.{})", 2 * v, 2 * v + 1),
        false => (v + pairs).to_string(),
    };
    match len {
        1 => place(first),
        _ => {
            let half = len / 2;
            let [a, b] = [first, first + half].map(|at| halves(at, half, pairs));
            format!("({a}.{b})")
        }
    }
}

#[test]
fn recursive_doubling_combines_halves_in_the_order_of_the_ranks_the_same_at_each() {
    for ranks in (1..=33).chain([100, 128]) {
        let algo = Algorithm::RecursiveDoubling;
        let programs = generate_all(K::AllReduce, algo, ranks, 0).unwrap();
        let places = 1 << ranks.ilog2();
        let wanted = halves(0, places, ranks - places);
        let sources: Vec<_> = (0..ranks).map(|r| vec![r.to_string(); 3]).collect();
        for (in_place, seed) in [(false, 1), (true, 2), (true, 3)] {
            let join = |a: &String, b: &String| format!("({a}.{b})");
            let out = simulate(&programs, 3, &sources, in_place, join, seed).unwrap();
            let all = out.outputs.into_iter().flatten().flatten();
            assert!(all.into_iter().all(|v| v == wanted), "{ranks} ranks");
        }
    }
}

/// Values of which sums are rounded, of any size and sign.
fn floats(ranks: u32, len: usize, seed: u64) -> Vec<Vec<f32>> {
    let mut draw = Draw(seed);
    let mut value = || {
        let digits = draw.below(1 << 24) as f32 - (1 << 23) as f32;
        digits * 2f32.powi(draw.below(40) as i32 - 40)
    };
    let mut source = || (0..len).map(|_| value()).collect();
    (0..ranks).map(|_| source()).collect()
}

/// Runs an all-reduce of floats, in other orders of steps and messages, in place and not, and
/// compares all results bit for bit with the sum of each element's values by a model.
fn compare_sums(order: Order, algo: Algorithm, ranks: u32, sum: impl Fn(Vec<f32>) -> f32) {
    let programs = generate_all_in(order, K::AllReduce, algo, ranks, 0).unwrap();
    let sources = floats(ranks, 2, u64::from(ranks) + 1);
    let values = |i: usize| sources.iter().map(|s| s[i]).collect::<Vec<_>>();
    let wanted = [0, 1].map(|i| sum(values(i)).to_bits());
    for (in_place, seed) in [(false, 1), (true, 2), (true, 3)] {
        let out = simulate(&programs, 2, &sources, in_place, |a, b| a + b, seed).unwrap();
        for (rank, output) in out.outputs.into_iter().enumerate() {
            let got: Vec<_> = output.into_iter().flatten().map(f32::to_bits).collect();
            assert_eq!(got, wanted, "{algo:?}: rank {rank} of {ranks}, seed {seed}");
        }
    }
}

/// Few ranks, powers of two and their neighbours, and some drawn up to 1,100.
fn numbers_of_ranks() -> impl Iterator<Item = u32> {
    let mut draw = Draw(30);
    let drawn: Vec<u32> = (0..12).map(|_| 65 + draw.below(1035) as u32).collect();
    let around = (7..=10).flat_map(|k| [(1 << k) - 1, 1 << k, (1 << k) + 1]);
    (2..=64).chain(around).chain(drawn).chain([1100])
}

#[test]
fn recursive_doubling_of_floats_has_the_bits_of_its_halves_at_each_of_up_to_1100_ranks() {
    for ranks in numbers_of_ranks() {
        // Neighbours are added until one value is left, at first those that are too many.
        let halved = |values: Vec<f32>| {
            let places = 1 << ranks.ilog2();
            let (paired, alone) = values.split_at(2 * (ranks - places) as usize);
            let mut left: Vec<f32> = paired.chunks(2).map(|p| p[0] + p[1]).collect();
            left.extend(alone);
            while left.len() > 1 {
                left = left.chunks(2).map(|p| p[0] + p[1]).collect();
            }
            left[0]
        };
        compare_sums(Order::Ring, Algorithm::RecursiveDoubling, ranks, halved);
    }
}

#[test]
fn whole_sources_of_floats_have_the_bits_of_a_loop_over_the_ranks_at_each_of_up_to_300() {
    // Each rank adds as many values as there are ranks, and the simulation's time grows faster.
    for ranks in (2..=33).chain([257, 300]) {
        let in_order = |values: Vec<f32>| {
            let mut values = values.into_iter();
            let first = values.next().unwrap_or_default();
            values.fold(first, |sum, x| sum + x)
        };
        compare_sums(Order::Rank, Algorithm::AllGatherReduce, ranks, in_order);
    }
}

/// The terms of a ring that begins with the first of them.
fn ring(terms: impl IntoIterator<Item = String>) -> String {
    let joined = terms.into_iter().reduce(|a, b| format!("({a}.{b})"));
    joined.unwrap_or_default()
}

#[test]
fn hierarchical_rings_of_hosts_add_what_rings_of_ranks_have_the_same_at_each() {
    let shapes = (1..=6).flat_map(|hosts| (1..=6).map(move |each| (hosts, each)));
    for (hosts, each) in shapes.chain([(3, 11), (17, 2), (16, 8)]) {
        let (n, count) = (hosts * each, 2 * hosts * each + 1);
        let family = Family::new(Order::Ring, K::AllReduce, Algorithm::Hierarchical, n, 0);
        let family = family.unwrap().on_hosts(each).unwrap();
        let programs: Vec<_> = (0..n).map(|r| family.program(r).unwrap()).collect();
        // The ranks of a host begin with the one whose part it is, and hosts with the one whose
        // chunk it is.
        let of_chunk = |chunk: u32| {
            let (place, first) = (chunk / hosts, chunk % hosts);
            let host = |h: u32| {
                let rank = |k| h * each + (place + k) % each;
                ring((0..each).map(|k| rank(k).to_string()))
            };
            ring((0..hosts).map(|k| host((first + k) % hosts)))
        };
        let layout = Layout {
            count: count.into(),
            block_chunks: n,
        };
        let wanted = (0..n).flat_map(|c| layout.chunk(c).map(move |_| c));
        let wanted: Vec<_> = wanted.map(of_chunk).collect();
        let sources: Vec<_> = (0..n)
            .map(|r| vec![r.to_string(); count as usize])
            .collect();
        for (in_place, seed) in [(false, 1), (true, 2), (true, 3)] {
            let join = |a: &String, b: &String| format!("({a}.{b})");
            let out = simulate(&programs, count.into(), &sources, in_place, join, seed).unwrap();
            for output in out.outputs {
                let got: Vec<_> = output.into_iter().flatten().collect();
                assert_eq!(got, wanted, "{hosts} hosts of {each} ranks");
            }
        }
    }
}

#[test]
fn blocks_come_by_the_rings_of_their_places() {
    let shapes = (1..=5).flat_map(|hosts| (1..=5).map(move |each| (hosts, each)));
    for (hosts, each) in shapes.chain([(3, 9), (17, 2)]) {
        let n = hosts * each;
        let family = |kind| {
            let family = Family::new(Order::Ring, kind, Algorithm::Hierarchical, n, 0);
            family.unwrap().on_hosts(each).unwrap()
        };
        // The host after the owner begins, and in each the rank with the owner's place. A ring of
        // all ranks has the order of its own, and so has one host.
        let sum = |block: u32| {
            let (first, place) = (block / each + 1, block % each);
            let host = |h: u32| {
                let rank = |k| h * each + (place + k) % each;
                ring((0..each).map(|k| format!("{}:{block}", rank(k))))
            };
            match each {
                1 => ring((0..n).map(|k| format!("{}:{block}", (block + k) % n))),
                _ => ring((0..hosts).map(|k| host((first + k) % hosts))),
            }
        };
        for kind in [K::AllGather, K::ReduceScatter] {
            let family = family(kind);
            let programs: Vec<_> = (0..n).map(|r| family.program(r).unwrap()).collect();
            // Two elements a block.
            let source = |r: u32| -> Vec<String> {
                let blocks = if kind == K::AllGather { 1 } else { n };
                (0..2 * blocks).map(|i| format!("{r}:{}", i / 2)).collect()
            };
            let sources: Vec<_> = (0..n).map(source).collect();
            for (in_place, seed) in [(false, 1), (true, 2), (true, 3)] {
                let join = |a: &String, b: &String| format!("({a}.{b})");
                let out = simulate(&programs, 2, &sources, in_place, join, seed).unwrap();
                for (rank, output) in (0..n).zip(out.outputs) {
                    let got: Vec<_> = output.into_iter().flatten().collect();
                    let wanted: Vec<_> = match kind {
                        K::AllGather => (0..2 * n).map(|i| format!("{}:0", i / 2)).collect(),
                        _ => vec![sum(rank); 2],
                    };
                    assert_eq!(got, wanted, "{kind:?}, {hosts} hosts of {each} ranks");
                }
            }
        }
    }
}

#[test]
fn a_root_gives_and_gets_parts_by_the_places_of_its_host() {
    let shapes = (1..=4).flat_map(|hosts| (1..=4).map(move |each| (hosts, each)));
    for (hosts, each) in shapes.chain([(3, 7), (9, 2)]) {
        let (n, count) = (hosts * each, 2 * each + 1);
        let layout = Layout {
            count: count.into(),
            block_chunks: each,
        };
        for (kind, root) in [K::Broadcast, K::Reduce]
            .into_iter()
            .flat_map(|kind| (0..n).map(move |root| (kind, root)))
        {
            let family = Family::new(Order::Ring, kind, Algorithm::Hierarchical, n, root);
            let family = family.unwrap().on_hosts(each).unwrap();
            let programs: Vec<_> = (0..n).map(|r| family.program(r).unwrap()).collect();
            // The host after the root's begins, and in each the rank whose part it is. A ring of
            // all ranks and one host have the order of the ring.
            let sum = |place: u32, i: u32| {
                let host = |h: u32| {
                    let rank = |k| h * each + (place + k) % each;
                    ring((0..each).map(|k| format!("{}:{i}", rank(k))))
                };
                ring((1..=hosts).map(|k| host((root / each + k) % hosts)))
            };
            let whole = (0..each).flat_map(|c| layout.chunk(c).map(move |i| (c, i)));
            let whole: Vec<_> = match (kind, each) {
                (K::Broadcast, _) => (0..count).map(|i| format!("{root}:{i}")).collect(),
                (_, 1) => {
                    let all = Layout {
                        count: count.into(),
                        block_chunks: n,
                    };
                    let of_ring = |(c, i)| ring((0..n).map(|k| format!("{}:{i}", (c + k) % n)));
                    let chunks = (0..n).flat_map(|c| all.chunk(c).map(move |i| (c, i)));
                    chunks.map(of_ring).collect()
                }
                _ => whole.map(|(c, i)| sum(c, i as u32)).collect(),
            };
            let source = |r: u32| -> Vec<String> {
                let is_read = kind == K::Reduce || r == root;
                let elements = if is_read { count } else { 0 };
                (0..elements).map(|i| format!("{r}:{i}")).collect()
            };
            let sources: Vec<_> = (0..n).map(source).collect();
            for (in_place, seed) in [(false, 1), (true, 2), (true, 3)] {
                let join = |a: &String, b: &String| format!("({a}.{b})");
                let out =
                    simulate(&programs, count.into(), &sources, in_place, join, seed).unwrap();
                for (rank, output) in (0..n).zip(out.outputs) {
                    let got: Vec<_> = output.into_iter().flatten().collect();
                    let is_written = kind == K::Broadcast || rank == root;
                    let wanted = if is_written { &whole[..] } else { &[] };
                    assert_eq!(got, wanted, "{kind:?} {hosts} hosts of {each}, root {root}");
                }
            }
        }
    }
}

#[test]
fn in_strict_order_every_element_starts_with_rank_0_and_other_algorithms_are_refused() {
    for kind in [K::AllReduce, K::Reduce, K::ReduceScatter] {
        for algo in algorithms(kind) {
            let programs = generate_all_in(Order::Rank, kind, *algo, 5, 3);
            if !is_strict(kind, *algo) {
                let e = programs.expect_err("another order").to_string();
                assert!(e.contains("pairwise") && !e.contains("tree,"), "{e}");
                continue;
            }
            let programs = programs.unwrap();
            let blocks = programs[0].input_chunks / programs[0].block_chunks;
            let count = 5 * blocks as usize;
            let sources: Vec<_> = (0..5).map(|r| vec![r.to_string(); count]).collect();
            for in_place in [false, true] {
                let join = |a: &String, b: &String| format!("{a}{b}");
                let out = simulate(&programs, 5, &sources, in_place, join, 1).unwrap();
                let all = out.outputs.into_iter().flatten().flatten();
                assert!(all.into_iter().all(|v| v == "01234"), "{kind:?} {algo:?}");
            }
            // The checker refuses a program that claims the order and has not got it.
            let mut ring = generate_all(kind, *algo, 5, 3).unwrap();
            ring.iter_mut().for_each(|p| p.order = Order::Rank);
            assert!(
                check(&ring, &Limits::default()).is_err(),
                "{kind:?} {algo:?}"
            );
        }
    }
}

#[test]
fn the_simulator_reveals_a_program_that_depends_on_timing() {
    // The slot of a message is used again before it must have been taken (the checker refuses it).
    let mut programs = generate_all(K::ReduceScatter, Algorithm::Ring, 4, 0).unwrap();
    programs[1].steps[2].results[0] = Target::scratch(0);
    assert!(check(&programs, &Limits::default()).is_err());
    let sources: Vec<Vec<u64>> = (0..4u64).map(|r| vec![1 << r; 4]).collect();
    let outcomes: Vec<_> = (0..50)
        .map(|seed| simulate(&programs, 1, &sources, false, |a, b| a + b, seed))
        .collect();
    let right = |o: &Result<Outcome<u64>, SimulateError>| {
        o.as_ref()
            .is_ok_and(|o| o.outputs.iter().all(|v| v == &[Some(15)]))
    };
    assert!(outcomes.iter().any(right));
    assert!(!outcomes.iter().all(right));
}

#[test]
fn programs_that_cannot_run_are_refused_with_the_reason() {
    let mut programs = generate_all(K::AllReduce, Algorithm::Ring, 2, 0).unwrap();
    let sources = vec![vec![1u8; 3], vec![2; 2]];
    let add = |a: &u8, b: &u8| a.wrapping_add(*b);
    let error = simulate(&programs, 3, &sources, false, add, 0).unwrap_err();
    assert_eq!(
        error.to_string(),
        "rank 1's source has 2 elements, the program wants 3"
    );
    let sources = vec![vec![1u8; 3], vec![2; 3]];
    programs[0].steps.clear();
    let error = simulate(&programs, 3, &sources, false, add, 0).unwrap_err();
    assert!(matches!(error, SimulateError::Stuck { .. }), "{error}");
}
