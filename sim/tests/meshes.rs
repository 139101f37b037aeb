//! NICs that forward for each other: results, hops, what is lost, cut and killed, and what is
//! refused.

use ringbell_nic_abi::{Algorithm, CollectiveKind, Status};
use ringbell_routes::file;
use ringbell_routes::generate::generate;
use ringbell_routes::topology::Topology;
use ringbell_sim::goal::Schedule;
use ringbell_sim::{
    run, run_goal, Breaks, Cluster, Failure, Fault, GoalPlan, NetworkPlan, Plan, Profile, Report,
};

/// SMI's list of wires: two nodes of two boards each, in a ring.
const BOARDS: &str = r#"{"connections": {
    "node-0:acl0:ch0": "node-0:acl1:ch1", "node-0:acl1:ch0": "node-1:acl0:ch1",
    "node-1:acl0:ch0": "node-1:acl1:ch1", "node-1:acl1:ch0": "node-0:acl0:ch1"}}"#;

fn cluster(topology: Topology) -> Cluster {
    let profile = Profile::by_name("ideal").expect("it exists");
    Cluster {
        network: NetworkPlan {
            topology: Some(topology),
            ..NetworkPlan::default()
        },
        ..Cluster::new(0, profile)
    }
}

fn plan(kind: CollectiveKind, topology: Topology, bytes: u64) -> Plan {
    let mut plan = Plan::new(kind, cluster(topology.clone()), bytes);
    plan.cluster.ranks = topology.ends().count();
    plan
}

fn named(text: &str) -> Topology {
    generate(text).expect("a network")
}

/// The report, which several threads and another run repeat.
fn report(plan: &Plan) -> Report {
    let on = |threads| {
        let mut plan = plan.clone();
        plan.cluster.threads = threads;
        run(&plan).expect("it ends")
    };
    let one = on(1);
    assert_eq!(on(1), one, "another time");
    assert_eq!(on(2), one, "two threads");
    one
}

#[test]
fn collectives_over_nics_that_forward_give_what_the_model_has() {
    use CollectiveKind as K;
    let boards = file::parse("boards", BOARDS).expect("a network");
    let networks = [named("torus:2x4"), named("bus:5"), named("ring:4"), boards];
    for (topology, kind) in networks.iter().flat_map(|topology| {
        let kinds = [
            K::AllReduce,
            K::AllGather,
            K::ReduceScatter,
            K::Broadcast,
            K::Reduce,
            K::AllToAll,
        ];
        kinds.map(|kind| (topology, kind))
    }) {
        let mut plan = plan(kind, topology.clone(), 0);
        plan.sizes = vec![1 << 10, 100_000];
        let report = report(&plan);
        let name = topology.name();
        assert_eq!(report.sizes.len(), 2, "{name}, {kind:?}");
        assert!(
            report.sizes.iter().all(|s| s.wrong == 0),
            "{name}, {kind:?}"
        );
        assert_eq!(report.counts.lost, 0, "{name}, {kind:?}");
        let is_bound = |s: &ringbell_sim::Measured| s.busbw_gbs <= report.best_gbs;
        assert!(report.sizes.iter().all(is_bound), "{name}, {kind:?}");
    }
}

#[test]
fn each_hop_adds_its_link() {
    // A message of 8 bytes by so many hops of a bus.
    let time_ns = |hops: usize| {
        let topology = named("bus:8");
        let mut text = "num_ranks 8\n".to_owned();
        for rank in 0..8 {
            let body = match rank {
                0 => format!("l: send 8b to {hops} tag 1\n"),
                r if r == hops => "l: recv 8b from 0 tag 1\n".into(),
                _ => "l: calc 0\n".into(),
            };
            text += &format!("rank {rank} {{\n{body}}}\n");
        }
        let schedule = Schedule::parse("hops", &text).expect("a schedule");
        let cluster = Cluster {
            ranks: 8,
            ..cluster(topology)
        };
        let report = run_goal(&GoalPlan::new(schedule, cluster)).expect("it ends");
        assert_eq!(report.wrong, 0);
        report.time_ns
    };
    let times: Vec<u64> = (1..8).map(time_ns).collect();
    // A link's delay of 1 us, and the message's 8 bytes behind a head of 40, with 58 of RoCEv2, 30
    // of the mesh and 24 of the line, at 100 Gb/s. NICs count whole nanoseconds.
    let hop = 1_000 + (8 + 40 + 58 + 30 + 24_u64) * 8 / 100 + 1;
    let wanted: Vec<u64> = (1..8).map(|hops| hops * hop).collect();
    assert_eq!(times, wanted);
}

#[test]
fn lost_frames_of_a_wire_are_sent_again() {
    for name in ["torus:2x4", "bus:3"] {
        let mut plan = plan(CollectiveKind::AllReduce, named(name), 1 << 20);
        plan.cluster.loss = 0.01;
        plan.cluster.seed = 3;
        let report = report(&plan);
        assert_eq!((&report.ended, report.sizes[0].wrong), (&None, 0));
        assert!(report.counts.lost > 0, "{name}: {:?}", report.counts);
    }
}

#[test]
fn nics_go_around_a_wire_that_is_cut_and_name_whom_none_leads_to() {
    let mut plan = plan(CollectiveKind::AllReduce, named("ring:4"), 1 << 20);
    plan.algo = Algorithm::Ring;
    let wire = |end: &str| plan.cluster.network.wire_named(4, end).expect("a wire");
    let cut = |ends: &[&str]| {
        let mut plan = plan.clone();
        plan.cluster.faults = ends
            .iter()
            .map(|end| Fault {
                at_ns: 50_000,
                what: Breaks::Wire(wire(end)),
            })
            .collect();
        report(&plan)
    };
    let whole = report(&plan);
    let one = cut(&["n1-n2"]);
    assert_eq!((&one.ended, one.sizes[0].wrong), (&None, 0));
    // A neighbour that is silent for 0.8 s is gone; then the other way round the ring is taken.
    let lost_ns = one.sizes[0].time_ns - whole.sizes[0].time_ns;
    assert!((700_000_000..2_000_000_000).contains(&lost_ns), "{lost_ns}");

    let both = cut(&["n1-n2", "n2-n3"]);
    let ended = both.ended.expect("it did not end well");
    for (rank, end) in ended.ranks.iter().enumerate() {
        assert_eq!(end.status, Some(Status::PeerFailed), "{rank}");
        assert_eq!(
            end.names == Some(2),
            rank != 2,
            "{rank} names {:?}",
            end.names
        );
    }
}

#[test]
fn all_ranks_name_the_one_that_died_though_it_forwarded() {
    let mut plan = plan(CollectiveKind::AllReduce, named("torus:2x4"), 1 << 20);
    plan.algo = Algorithm::Ring;
    plan.cluster.faults = vec![Fault {
        at_ns: 50_000,
        what: Breaks::Rank(3),
    }];
    let ended = report(&plan).ended.expect("it did not end well");
    for (rank, end) in ended.ranks.iter().enumerate() {
        let wanted = match rank {
            3 => (None, None),
            _ => (Some(Status::PeerFailed), Some(3)),
        };
        assert_eq!((end.status, end.names), wanted, "{rank}");
    }
}

#[test]
fn what_a_mesh_has_not_is_refused() {
    let all = plan(CollectiveKind::AllReduce, named("torus:2x4"), 64);
    let mut few = all.clone();
    few.cluster.ranks = 4;
    let topology = "torus:2x4".to_owned();
    let refused = Failure::NotAllRanks {
        topology: topology.clone(),
        nodes: 8,
        ranks: 4,
    };
    assert_eq!(run(&few), Err(refused));
    let mut sprayed = all.clone();
    sprayed.cluster.network.spray = true;
    let what = "spraying";
    assert_eq!(run(&sprayed), Err(Failure::NoSwitches { topology, what }));
}
