//! Operations that are fast-forwarded: the time that their steady phase gives is that of the whole
//! operation.

use ringbell_nic_abi::{Algorithm, CollectiveKind};
use ringbell_routes::generate::generate;
use ringbell_sim::{run, Breaks, Cluster, Fault, Forward, Plan, Profile, Report};

fn of(plan: &Plan, forward: Forward) -> Report {
    let plan = Plan {
        forward,
        ..plan.clone()
    };
    run(&plan).expect("it runs")
}

fn plan(kind: CollectiveKind, algo: Algorithm, ranks: usize, bytes: u64, profile: &str) -> Plan {
    let profile = Profile::by_name(profile).expect("it exists");
    Plan {
        algo,
        ..Plan::new(kind, Cluster::new(ranks, profile), bytes)
    }
}

/// The same in segments of 64 KiB.
fn segments(mut plan: Plan) -> Plan {
    plan.cluster.settings.segment_bytes = 64 << 10;
    plan
}

/// By how much the projected time is off, and which share of the steps was simulated.
fn off(plan: &Plan) -> (f64, f64) {
    let exact = of(plan, Forward::Never);
    let [m] = exact.sizes[..] else {
        panic!("{exact:?}")
    };
    assert_eq!((m.wrong, m.projection), (0, None));
    let forward = of(plan, Forward::Always);
    let f = forward.sizes[0];
    let projection = f.projection.expect("it has a steady phase");
    assert!(forward.counts.events < exact.counts.events, "{forward:?}");
    (f.time_ns as f64 / m.time_ns as f64 - 1.0, projection.share)
}

#[test]
fn the_time_of_a_steady_operation_is_that_of_the_whole() {
    use {Algorithm as A, CollectiveKind as K};
    let all = [
        plan(K::AllReduce, A::Ring, 64, 1 << 20, "ideal"),
        plan(K::AllReduce, A::Ring, 64, 4 << 20, "rtl"),
        plan(K::AllGather, A::Ring, 80, 2 << 20, "fpganic"),
        plan(K::ReduceScatter, A::Ring, 80, 2 << 20, "acclplus"),
        segments(plan(K::AllReduce, A::Ring, 4, 64 << 20, "ideal")),
        segments(plan(K::Broadcast, A::Chain, 6, 32 << 20, "ideal")),
        segments(plan(K::AllReduce, A::Tree, 6, 32 << 20, "ideal")),
        segments(plan(K::Reduce, A::Tree, 5, 32 << 20, "fpganic")),
    ];
    for plan in all {
        let (off, share) = off(&plan);
        println!(
            "{:?} {:?} of {}: off by {off:.6}, {share:.3} simulated",
            plan.kind, plan.algo, plan.cluster.ranks
        );
        assert!(off.abs() < 0.01, "{plan:?}: off by {off}");
        assert!(share < 0.9, "{plan:?}: {share}");
    }
}

#[test]
fn an_operation_over_switches_is_fast_forwarded_with_others_behind_it() {
    let mut plan = plan(CollectiveKind::AllReduce, Algorithm::Ring, 64, 0, "ideal");
    plan.cluster.network.topology = Some(generate("fat-tree:8x2").expect("a network"));
    plan.sizes = vec![1 << 20, 4096, 2 << 20];
    let exact = of(&plan, Forward::Never);
    let forward = of(&plan, Forward::Always);
    let times = exact.sizes.iter().zip(&forward.sizes);
    for (e, f) in times {
        let off = f.time_ns as f64 / e.time_ns as f64 - 1.0;
        assert!(off.abs() < 0.01, "{e:?}, {f:?}");
    }
    let [first, small, last] = forward.sizes[..] else {
        panic!("{forward:?}")
    };
    assert!(first.projection.is_some() && last.projection.is_some());
    assert_eq!((small.bytes, small.wrong), (4096, 0));
    // It is the same each time, on one thread and on two.
    for threads in [1, 2] {
        plan.cluster.threads = threads;
        assert_eq!(of(&plan, Forward::Always), forward);
    }
}

#[test]
fn what_has_no_steady_phase_or_may_break_runs_to_its_end() {
    use {Algorithm as A, CollectiveKind as K};
    let few = plan(K::AllReduce, A::RecursiveDoubling, 32, 1 << 20, "ideal");
    let uneven = plan(K::AllReduce, A::Pairwise, 80, 1 << 20, "ideal");
    let mut lossy = plan(K::AllReduce, A::Ring, 64, 1 << 20, "ideal");
    lossy.cluster.loss = 0.001;
    let mut breaks = plan(K::AllReduce, A::Ring, 64, 1 << 20, "ideal");
    breaks.cluster.faults.push(Fault {
        at_ns: 50_000,
        what: Breaks::Rank(3),
    });
    for plan in [few, uneven, lossy, breaks] {
        assert_eq!(of(&plan, Forward::Always), of(&plan, Forward::Never));
    }
    // One that takes seconds is simulated whole, if that is left to the run.
    let short = plan(K::AllReduce, A::Ring, 64, 1 << 20, "ideal");
    assert_eq!(of(&short, Forward::Long), of(&short, Forward::Never));
}
