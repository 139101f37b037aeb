//! Collectives of whole NICs in virtual time: their results, their times, and that they repeat.

use ringbell_nic_abi::{Algorithm, CollectiveKind};
use ringbell_sim::{memory, run, Cluster, Failure, Kept, Plan, Profile};

fn plan(ranks: usize, bytes: u64) -> Plan {
    let profile = Profile::by_name("ideal").expect("it exists");
    let cluster = Cluster {
        seed: 1,
        ..Cluster::new(ranks, profile)
    };
    Plan {
        algo: Algorithm::Ring,
        ..Plan::new(CollectiveKind::AllReduce, cluster, bytes)
    }
}

#[test]
fn every_collective_gives_what_the_model_has() {
    use CollectiveKind as K;
    let kinds = [
        K::AllReduce,
        K::AllGather,
        K::ReduceScatter,
        K::Broadcast,
        K::Reduce,
        K::AllToAll,
    ];
    for kind in kinds {
        for ranks in [2, 3, 8] {
            let plan = Plan {
                kind,
                sizes: vec![96, 100_800],
                algo: Algorithm::Auto,
                ..plan(ranks, 0)
            };
            let done = run(&plan).expect("it ends");
            let wrong: Vec<_> = done.sizes.iter().map(|m| m.wrong).collect();
            assert_eq!(wrong, [0, 0], "{kind:?} of {ranks}");
            assert!(done.sizes[0].time_ns < done.sizes[1].time_ns, "{kind:?}");
        }
    }
}

#[test]
fn one_seed_gives_one_run_and_a_changed_number_another() {
    let mut lossy = plan(4, 1 << 20);
    lossy.cluster.loss = 0.01;
    let first = run(&lossy).expect("it ends");
    assert!(
        first.counts.lost > 0 && first.sizes[0].wrong == 0,
        "{first:?}"
    );
    assert_eq!(run(&lossy).expect("it ends"), first);
    let mut seed = lossy.clone();
    seed.cluster.seed = 2;
    assert_ne!(run(&seed).expect("it ends").counts.hash, first.counts.hash);
    let mut slower = lossy;
    slower.cluster.profile.link_gbps = 99.0;
    assert_ne!(
        run(&slower).expect("it ends").counts.hash,
        first.counts.hash
    );
}

#[test]
fn a_full_output_drops_frames_and_the_data_is_right() {
    // Seven ranks send to the root at once.
    let mut incast = Plan {
        kind: CollectiveKind::Reduce,
        algo: Algorithm::Flat,
        ..plan(8, 4 << 20)
    };
    let roomy = run(&incast).expect("it ends");
    assert_eq!((roomy.counts.lost, roomy.sizes[0].wrong), (0, 0));
    incast.cluster.profile.switches.output_bytes = 64 << 10;
    let tight = run(&incast).expect("it ends");
    assert!(tight.counts.lost > 0, "{tight:?}");
    assert_eq!((&tight.ended, tight.sizes[0].wrong), (&None, 0));
    assert!(tight.sizes[0].time_ns > roomy.sizes[0].time_ns);
}

#[test]
fn ranks_that_still_wait_are_named() {
    // A doorbell that takes longer than an operation may.
    let mut late = plan(3, 1 << 10);
    late.cluster.profile.host.doorbell_ns = 61_000_000_000;
    let hung = Failure::Hung {
        ranks: vec![0, 1, 2],
        what: "the end of an operation",
        virtual_ms: 60_000,
    };
    assert_eq!(run(&late), Err(hung));
    let mut apart = plan(3, 1 << 10);
    apart.cluster.loss = 0.99;
    let said = run(&apart).expect_err("nothing arrives").to_string();
    assert!(
        said.contains("the ranks have not met: PeerFailed names rank"),
        "{said}"
    );
}

#[test]
fn the_memory_of_a_plan_grows_with_pairs_of_ranks_and_with_sizes() {
    let of = |ranks, bytes| memory(&plan(ranks, bytes)).unwrap();
    let pairwise = |ranks| {
        let algo = Algorithm::Pairwise;
        let plan = Plan {
            algo,
            ..plan(ranks, 1 << 10)
        };
        memory(&plan).unwrap()
    };
    assert!(pairwise(256) > 3 * pairwise(128));
    // By a ring, ranks of large communicators have few links.
    assert!(of(1024, 1 << 10) < pairwise(1024) / 4);
    assert!(of(256, 1 << 10) < pairwise(256) / 2);
    let whole = |bytes| {
        let kept = Kept::Whole;
        let plan = Plan {
            kept,
            ..plan(8, bytes)
        };
        memory(&plan).unwrap()
    };
    assert!(whole(64 << 20) - whole(32 << 20) >= 8 * 2 * (32 << 20));
    // What repeats is kept once.
    assert!(of(8, 64 << 20) < whole(64 << 20) / 10);
    assert!(of(8, 64 << 20) > of(8, 32 << 20));
}

#[test]
fn what_cannot_be_simulated_is_named() {
    for ranks in [0, 1, 4097] {
        let most = 4096;
        assert_eq!(run(&plan(ranks, 64)), Err(Failure::Ranks { ranks, most }));
    }
    let small = run(&plan(2, 3));
    assert_eq!(small, Err(Failure::Small { bytes: 3 }));
    let bytes = 1 << 40;
    let gib = 1 << 10;
    let large = Failure::Large { bytes, gib };
    assert_eq!(run(&plan(2, bytes)), Err(large.clone()));
    assert_eq!(memory(&plan(2, bytes)), Err(large));
    let (bytes, gib) = (9 << 30, 16);
    let whole = Plan {
        kept: Kept::Whole,
        ..plan(2, bytes)
    };
    assert_eq!(run(&whole), Err(Failure::Large { bytes, gib }));
    let kind = CollectiveKind::Barrier;
    let barrier = Plan {
        kind,
        ..plan(2, 64)
    };
    assert_eq!(run(&barrier), Err(Failure::Kind(kind)));
    let mut all = plan(2, 64);
    all.cluster.loss = 1.0;
    assert_eq!(run(&all), Err(Failure::Loss("1".into())));
    assert_eq!(Profile::by_name("fast"), None);
}
