//! Ranks that die and wires that are cut: who learns of it, and what goes on.

use ringbell_nic_abi::{Algorithm, CollectiveKind, Status};
use ringbell_routes::generate::generate;
use ringbell_sim::{
    run, Breaks, Cluster, Failure, Fault, NetworkPlan, Plan, Profile, Report, Slow,
};

fn plan(kind: CollectiveKind, ranks: usize, faults: &[(Breaks, u64)]) -> Plan {
    let profile = Profile::by_name("ideal").expect("it exists");
    let faults = faults.iter();
    let cluster = Cluster {
        faults: faults.map(|&(what, at_ns)| Fault { at_ns, what }).collect(),
        ..Cluster::new(ranks, profile)
    };
    Plan {
        algo: match kind {
            CollectiveKind::AllReduce => Algorithm::Ring,
            _ => Algorithm::Auto,
        },
        ..Plan::new(kind, cluster, 1 << 20)
    }
}

/// Eight ranks at leaves of two, with two uplinks each.
fn tree(faults: &[(Breaks, u64)]) -> Plan {
    let mut plan = plan(CollectiveKind::AllReduce, 8, faults);
    plan.cluster.network.topology = Some(generate("fat-tree:2x3").expect("a network"));
    plan
}

/// How the operation ended on each rank: its status, and the rank that it names.
fn ends(report: &Report) -> Vec<(Option<Status>, Option<usize>)> {
    let ended = report.ended.as_ref().expect("it did not end well");
    ended.ranks.iter().map(|r| (r.status, r.names)).collect()
}

#[test]
fn all_ranks_name_the_one_that_died_during_an_operation() {
    use CollectiveKind as K;
    // Before every rank has all that the dead one is to send.
    for (kind, dead, at_ns) in [
        (K::AllReduce, 3, 50_000),
        (K::AllToAll, 0, 50_000),
        (K::AllGather, 7, 10_000),
    ] {
        let plan = plan(kind, 8, &[(Breaks::Rank(dead), at_ns)]);
        let mut whole = plan.clone();
        whole.cluster.faults.clear();
        let whole = run(&whole).expect("it ends").sizes[0].time_ns;
        assert!(whole > at_ns, "{kind:?} ended before: {whole}");
        let report = run(&plan).expect("it ends");
        for (rank, end) in ends(&report).into_iter().enumerate() {
            let wanted = match rank == dead {
                true => (None, None),
                false => (Some(Status::PeerFailed), Some(dead)),
            };
            assert_eq!(end, wanted, "{kind:?}, rank {rank}");
        }
        let ended = report.ended.as_ref().expect("it did not end well");
        assert_eq!((ended.bytes, report.sizes.len()), (1 << 20, 0));
        assert_eq!(ended.ranks[dead].at_ns, at_ns);
        // Later than the fault, and before the operation's own deadline of 50 s.
        let others = ended.ranks.iter().enumerate().filter(|r| r.0 != dead);
        for (rank, end) in others {
            let known = at_ns + 1..50_000_000_000;
            assert!(known.contains(&end.at_ns), "{kind:?}, {rank}: {end:?}");
        }
        assert_eq!(run(&plan).expect("it ends"), report, "{kind:?}");
    }
}

#[test]
fn what_ended_before_a_fault_is_reported() {
    let mut plan = plan(CollectiveKind::AllReduce, 4, &[(Breaks::Rank(1), 60_000)]);
    plan.sizes = vec![1 << 10, 1 << 20];
    let report = run(&plan).expect("it ends");
    assert_eq!((report.sizes.len(), report.sizes[0].wrong), (1, 0));
    let ended = report.ended.expect("it did not end well");
    assert_eq!(ended.bytes, 1 << 20);
    assert_eq!(ended.posted_ns, report.sizes[0].time_ns);

    // One behind the end of the run changes nothing.
    plan.cluster.faults[0].at_ns = 50_000_000_000;
    let report = run(&plan).expect("it ends");
    plan.cluster.faults.clear();
    assert_eq!(run(&plan).expect("it ends"), report);
}

#[test]
fn switches_go_around_a_wire_that_is_cut() {
    let tree_plan = tree(&[]);
    let whole = run(&tree_plan).expect("it ends");
    let wire = |end| {
        tree_plan
            .cluster
            .network
            .wire_named(8, end)
            .expect("a wire")
    };
    // The leaf s8 has ports 2 and 3 up. At least one of them carries something then.
    let one = |end| run(&tree(&[(Breaks::Wire(wire(end)), 50_000)])).expect("it ends");
    let cut = [one("s8:2"), one("s8:3")];
    for report in &cut {
        assert_eq!((&report.ended, report.sizes[0].wrong), (&None, 0));
        assert_ne!(report.counts.hash, whole.counts.hash);
    }
    assert!(cut.iter().any(|r| r.counts.lost > 0), "{cut:?}");

    // Without both, its ranks 0 and 1 and the others lose each other.
    let both = ["s8:2", "s8:3"].map(|end| (Breaks::Wire(wire(end)), 50_000));
    let report = run(&tree(&both)).expect("it ends");
    for (rank, (status, names)) in ends(&report).into_iter().enumerate() {
        assert_eq!(status, Some(Status::PeerFailed), "{rank}");
        let named = names.expect("a rank");
        assert_eq!(named < 2, rank >= 2, "{rank} names {named}");
    }
}

#[test]
fn one_event_that_is_a_nanosecond_later_changes_the_digest_alone() {
    // Of a leaf without ranks, so that the cut itself is all that changes.
    let of = |at_ns| {
        let mut plan = tree(&[]);
        plan.cluster.ranks = 4;
        let wire = plan.cluster.network.wire_named(4, "s11:2");
        let what = Breaks::Wire(wire.expect("a wire"));
        plan.cluster.faults = vec![Fault { at_ns, what }];
        run(&plan).expect("it ends").counts
    };
    let (first, again, mut later) = (of(50_000), of(50_000), of(50_001));
    assert_eq!(first, again);
    assert_ne!(first.hash, later.hash);
    later.hash = first.hash;
    assert_eq!(first, later);
}

#[test]
fn a_rank_whose_wire_is_cut_is_named_and_names_another() {
    let one = plan(CollectiveKind::AllReduce, 4, &[]);
    let wire = one.cluster.network.wire_named(4, "s0-n2").expect("a wire");
    let cut = plan(
        CollectiveKind::AllReduce,
        4,
        &[(Breaks::Wire(wire), 50_000)],
    );
    for (rank, (status, names)) in ends(&run(&cut).expect("it ends")).into_iter().enumerate() {
        assert_eq!(status, Some(Status::PeerFailed), "{rank}");
        assert_eq!(names == Some(2), rank != 2, "{rank} names {names:?}");
    }
}

#[test]
fn wires_have_names_and_what_is_not_there_cannot_break() {
    let text = r#"{"nodes": ["a", "b", {"name": "x-y", "switch": true}, {"name": "z", "switch": true}],
                   "wires": [{"ends": ["a:0", "x-y:0"]}, {"ends": ["b:0", "z:0"]},
                             {"ends": ["x-y:1", "z:1"]}, {"ends": ["x-y:2", "z:2"]}]}"#;
    let network = NetworkPlan {
        topology: Some(ringbell_routes::file::parse("two", text).expect("a network")),
        ..NetworkPlan::default()
    };
    for (name, wire) in [("a-x-y", 0), ("x-y-a", 0), ("z:0", 1), ("x-y:2", 3)] {
        assert_eq!(network.wire_named(2, name), Ok(wire), "{name}");
    }
    let several = Failure::SeveralWires {
        text: "z-x-y".into(),
        first: "x-y:1".into(),
        second: "x-y:2".into(),
    };
    assert_eq!(network.wire_named(2, "z-x-y"), Err(several));
    let said = network.wire_named(2, "a-b").expect_err("there is none");
    assert!(
        said.to_string().contains("no wire of two is named a-b"),
        "{said}"
    );

    for what in [Breaks::Rank(8), Breaks::Wire(24)] {
        let refused = Failure::NothingToBreak {
            what,
            ranks: 8,
            wires: 24,
        };
        assert_eq!(run(&tree(&[(what, 0)])), Err(refused));
    }
}

#[test]
fn a_ring_is_as_fast_as_its_slowest_rank() {
    const SIZE: u64 = 16 << 20;
    let slow = |rank, factor| Slow { rank, factor };
    // Two of one rank multiply; the slowest of several decides.
    for (slow, factor) in [
        (vec![slow(5, 2.0)], 2.0),
        (vec![slow(5, 3.5), slow(0, 2.0)], 3.5),
        (vec![slow(1, 2.0), slow(1, 2.0)], 4.0),
    ] {
        let mut plan = plan(CollectiveKind::AllReduce, 8, &[]);
        plan.sizes = vec![SIZE];
        plan.cluster.slow = slow;
        let report = run(&plan).expect("it ends");
        let measured = report.sizes[0];
        // Each link carries all blocks but one, twice.
        let bytes = (SIZE / 8 * 7 * 2) as f64;
        let ratio = measured.time_ns as f64 / (bytes / report.payload_gbs * factor);
        // The window of the rank before it waits for its link, and acknowledgements behind that.
        assert!((1.0..1.08).contains(&ratio), "{factor}: {ratio}");
        assert_eq!(measured.wrong, 0);
        // The bound is that of the slowed network.
        let best = report.payload_gbs / factor;
        assert!(measured.busbw_gbs <= report.best_gbs && report.best_gbs <= 2.0 * best);
    }
}

#[test]
fn a_rank_that_is_not_there_or_faster_cannot_be_slow() {
    for (rank, factor) in [(8, 2.0), (0, 0.99), (0, f64::NAN), (0, f64::INFINITY)] {
        let mut plan = plan(CollectiveKind::AllReduce, 8, &[]);
        plan.cluster.slow = vec![Slow { rank, factor }];
        let factor = factor.to_string();
        let ranks = 8;
        assert_eq!(
            run(&plan),
            Err(Failure::NotSlow {
                rank,
                factor,
                ranks
            })
        );
    }
}
