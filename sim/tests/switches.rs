//! What switches do with frames that wait: marks, pauses, shared room, and spraying.

use ringbell_nic_abi::{Algorithm, CollectiveKind};
use ringbell_nic_core::transport::rdma::{Congestion, DcqcnConfig};
use ringbell_routes::file;
use ringbell_routes::topology::Topology;
use ringbell_sim::{run, Cluster, Marks, Pauses, Plan, Profile, Report, SharedRoom, Switches};

/// All ranks but one send to that at once.
fn incast(ranks: usize, bytes: u64, switches: Switches) -> Plan {
    let profile = Profile {
        switches,
        ..Profile::by_name("ideal").expect("it exists")
    };
    Plan {
        algo: Algorithm::Flat,
        ..Plan::new(CollectiveKind::Reduce, Cluster::new(ranks, profile), bytes)
    }
}

fn ended(plan: &Plan) -> Report {
    let report = run(plan).expect("it ends");
    assert_eq!(
        (&report.ended, report.sizes[0].wrong),
        (&None, 0),
        "{report:?}"
    );
    report
}

#[test]
fn pauses_lose_nothing_where_outputs_would() {
    const PAUSE: u64 = 40_000;
    let tight = Switches::of_outputs(700_000);
    let without = ended(&incast(8, 4 << 20, tight));
    assert!(without.counts.lost > 0 && without.counts.pauses == 0);
    let pauses = Some(Pauses {
        pause_bytes: PAUSE,
        resume_bytes: PAUSE / 2,
    });
    let paused = incast(8, 4 << 20, Switches { pauses, ..tight });
    let with = ended(&paused);
    assert!(with.counts.pauses > 0, "{with:?}");
    assert_eq!(with.counts.lost, 0);
    // Behind a pause come what two delays of the link carry, and a frame at each end.
    let frame = 9_014;
    let of_a_link = PAUSE + 2 * 12_500 + 3 * frame;
    assert!(with.counts.deepest <= 7 * of_a_link, "{with:?}");
    assert_eq!(run(&paused), Ok(with));
}

#[test]
fn frames_that_a_pause_has_stopped_lose_no_time_of_the_output() {
    let free = Switches::of_outputs(16 << 20);
    let pauses = Some(Pauses {
        pause_bytes: 60_000,
        resume_bytes: 50_000,
    });
    for ranks in [3, 6] {
        let [free, paused] = [free, Switches { pauses, ..free }]
            .map(|s| ended(&incast(ranks, 4 << 20, s)))
            .map(|r| (r.sizes[0].time_ns as f64, r.counts.pauses));
        assert!(free.1 == 0 && paused.1 > 0, "{free:?} {paused:?}");
        let ratio = paused.0 / free.0;
        assert!((0.98..1.03).contains(&ratio), "{ranks} ranks: {ratio}");
    }
}

#[test]
fn marks_shorten_the_queue_by_each_control_that_hears_them() {
    let marks = Some(Marks {
        min_bytes: 50_000,
        max_bytes: 200_000,
        share: 0.1,
    });
    let marking = Switches {
        marks,
        ..Switches::of_outputs(16 << 20)
    };
    let mut plan = incast(12, 2 << 20, marking);
    let mut deepest = Vec::new();
    let dcqcn = Congestion::Dcqcn(DcqcnConfig::default());
    for congestion in [Congestion::Fixed, Congestion::Window, dcqcn] {
        plan.cluster.reaction.congestion = congestion;
        let report = ended(&plan);
        assert!(report.counts.marked > 0 && report.counts.lost == 0);
        assert_eq!(run(&plan).as_ref(), Ok(&report));
        deepest.push(report.counts.deepest);
    }
    assert!(deepest[1] < deepest[0], "{deepest:?}");
    assert!(deepest[2] < deepest[0], "{deepest:?}");
    // Nothing is marked where queues stay short.
    plan.cluster.ranks = 2;
    assert_eq!(ended(&plan).counts.marked, 0);
}

#[test]
fn outputs_that_share_room_lose_what_it_does_not_hold() {
    let shared = |alpha| Switches {
        shared: Some(SharedRoom {
            bytes: 600_000,
            alpha,
        }),
        ..Switches::of_outputs(16 << 20)
    };
    let [small, large] = [0.5, 8.0].map(|alpha| ended(&incast(8, 2 << 20, shared(alpha))));
    assert!(large.counts.lost > 0, "{large:?}");
    // A share of 0.5 of what is free is a third of the room, of 8 eight ninths.
    assert!(small.counts.deepest < 220_000, "{small:?}");
    assert!(
        (500_000..543_000).contains(&large.counts.deepest),
        "{large:?}"
    );
}

/// Two hosts, whose switches have two wires between them.
const TWO_WAYS: &str = r#"{"nodes": ["a", "b", {"name": "s", "switch": true}, {"name": "t", "switch": true}],
    "wires": [{"ends": ["a:0", "s:0"]}, {"ends": ["b:0", "t:0"]},
              {"ends": ["s:1", "t:1"], "gbps": 50}, {"ends": ["s:2", "t:2"], "gbps": 50}]}"#;

#[test]
fn a_flow_takes_one_way_and_sprayed_frames_take_all() {
    let mut cluster = Cluster::new(2, Profile::by_name("ideal").expect("it exists"));
    cluster.network.topology = Some(file::parse("two", TWO_WAYS).expect("a network"));
    let mut plan = Plan::new(CollectiveKind::Broadcast, cluster, 8 << 20);
    let by_flow = ended(&plan);
    plan.cluster.network.spray = true;
    let sprayed = ended(&plan);
    assert_eq!(run(&plan).as_ref(), Ok(&sprayed));
    let [by_flow, sprayed] = [by_flow, sprayed].map(|r| r.sizes[0].busbw_gbs * 8.0);
    assert!((45.0..50.0).contains(&by_flow), "{by_flow}");
    assert!((52.0..100.0).contains(&sprayed), "{sprayed}");
}

/// Five switches in a ring, a host at each.
fn ring_of_switches() -> Topology {
    let (mut nodes, mut wires) = (Vec::new(), Vec::new());
    for i in 0..5 {
        nodes.push(format!(r#""h{i}", {{"name": "s{i}", "switch": true}}"#));
        wires.push(format!(r#"{{"ends": ["h{i}:0", "s{i}:0"]}}"#));
        wires.push(format!(r#"{{"ends": ["s{i}:1", "s{}:2"]}}"#, (i + 1) % 5));
    }
    let (nodes, wires) = (nodes.join(","), wires.join(","));
    let text = format!(r#"{{"nodes": [{nodes}], "wires": [{wires}]}}"#);
    file::parse("ring", &text).expect("a network")
}

/// Shortest ways of two links go round the ring in both directions, so pauses may wait for each
/// other in a circle. The NICs then give up, and name a rank.
#[test]
fn pauses_in_a_circle_end_by_name() {
    let mut cluster = Cluster::new(5, Profile::by_name("ideal").expect("it exists"));
    cluster.network.topology = Some(ring_of_switches());
    cluster.profile.link_gbps = 10.0;
    cluster.reaction.congestion = Congestion::Fixed;
    let mut plan = Plan::new(CollectiveKind::AllToAll, cluster, 8 << 20);
    assert_eq!(ended(&plan).counts.pauses, 0);
    plan.cluster.profile.switches.pauses = Some(Pauses {
        pause_bytes: 9_014,
        resume_bytes: 0,
    });
    let stuck = run(&plan).expect("it ends");
    let failed = stuck.ended.as_ref().expect("a circle");
    assert!(failed.ranks.iter().all(|r| r.is_error()), "{failed:?}");
    assert_eq!(run(&plan), Ok(stuck));
}
