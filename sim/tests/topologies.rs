//! Networks of more than one switch: results, ways, rates and delays, and what is refused.

use ringbell_nic_abi::{Algorithm, CollectiveKind};
use ringbell_nic_core::collective::HostRanks;
use ringbell_routes::file;
use ringbell_routes::generate::generate;
use ringbell_routes::topology::Topology;
use ringbell_sim::{run, Cluster, Failure, NetworkPlan, Plan, Profile, Report};

fn plan(kind: CollectiveKind, topology: Topology, bytes: u64) -> Plan {
    let profile = Profile::by_name("ideal").expect("it exists");
    let ranks = topology.ends().count();
    let cluster = Cluster {
        network: NetworkPlan {
            topology: Some(topology),
            ..NetworkPlan::default()
        },
        ..Cluster::new(ranks, profile)
    };
    Plan::new(kind, cluster, bytes)
}

fn named(text: &str) -> Topology {
    generate(text).expect("a network")
}

fn time_ns(plan: &Plan) -> f64 {
    let done = run(plan).expect("it ends");
    assert_eq!((done.counts.lost, done.sizes[0].wrong), (0, 0));
    done.sizes[0].time_ns as f64
}

#[test]
fn collectives_over_a_fat_tree_give_what_the_model_has() {
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
        for ranks in [5, 8] {
            let mut plan = plan(kind, named("fat-tree:2x3"), 0);
            plan.cluster.ranks = ranks;
            plan.sizes = vec![120, 100_800];
            let done = run(&plan).expect("it ends");
            let wrong: Vec<_> = done.sizes.iter().map(|m| m.wrong).collect();
            assert_eq!(
                (wrong, done.counts.lost),
                (vec![0, 0], 0),
                "{kind:?} of {ranks}"
            );
        }
    }
}

#[test]
fn one_seed_of_the_hash_gives_one_run_and_another_seed_another() {
    let run = |hash_seed| -> Report {
        let mut plan = plan(CollectiveKind::AllToAll, named("fat-tree:4x2"), 1 << 20);
        plan.cluster.network.hash_seed = hash_seed;
        run(&plan).expect("it ends")
    };
    let first = run(1);
    assert_eq!(run(1), first);
    let other = run(2);
    assert_ne!(other.counts.hash, first.counts.hash);
    assert_eq!(other.sizes[0].wrong, 0);
}

#[test]
fn packets_over_several_udp_ports_use_the_ways_that_a_flow_leaves_idle() {
    let mut one = plan(CollectiveKind::AllToAll, named("fat-tree:4x2"), 4 << 20);
    let mut several = one.clone();
    several.cluster.reaction.udp_ports = 17;
    // What is late is not taken for lost, so the window does not halve.
    let (alone, spread) = (time_ns(&one), time_ns(&several));
    assert!(spread < 0.9 * alone, "{spread} {alone}");

    // Under loss every byte is right.
    (several.cluster.loss, several.sizes) = (0.01, vec![96, 1 << 20]);
    let done = run(&several).expect("it ends");
    assert!(done.counts.lost > 0);
    let wrong: Vec<_> = done.sizes.iter().map(|m| m.wrong).collect();
    assert_eq!((wrong, done.ended), (vec![0, 0], None));

    // What repeats all behind a late packet keeps one port.
    one.cluster.reaction.selective = false;
    several = one.clone();
    several.cluster.reaction.udp_ports = 17;
    assert_eq!(run(&several), run(&one));

    // NICs that forward have no ports to choose by.
    several.cluster.network.topology = Some(named("torus:4x4"));
    let said = run(&several).expect_err("no switches").to_string();
    assert!(said.contains("several UDP ports is for switches"), "{said}");
}

/// Two pairs of hosts, whose switches have so many wires of this rate and delay between them.
fn two_pairs(wires: usize, gbps: f64, delay_ns: f64) -> Topology {
    let between = (0..wires).map(|w| {
        let port = w + 2;
        format!(
            r#"{{"ends": ["left:{port}", "right:{port}"], "gbps": {gbps}, "delay_ns": {delay_ns}}},"#
        )
    });
    let text = format!(
        r#"{{"nodes": ["a", {{"name": "left", "switch": true}}, "b", "c", "d",
                       {{"name": "right", "switch": true}}],
            "wires": [{} {{"ends": ["a:0", "left:0"]}}, {{"ends": ["b:0", "left:1"]}},
                      {{"ends": ["c:0", "right:0"]}}, {{"ends": ["d:0", "right:1"]}}]}}"#,
        between.collect::<String>()
    );
    file::parse("pairs", &text).expect("a network")
}

/// Hosts of so many ranks: a switch with a fast wire to each rank's NIC, and as many slower ones to
/// the network.
fn hosts(count: usize, ranks: usize) -> Topology {
    let (mut nodes, mut wires) = (
        vec![r#"{"name": "network", "switch": true}"#.into()],
        vec![],
    );
    for host in 0..count {
        nodes.push(format!(r#"{{"name": "h{host}", "switch": true}}"#));
        for rank in 0..ranks {
            let (place, out) = (host * ranks + rank, ranks + rank);
            nodes.push(format!(r#""r{host}x{rank}""#));
            wires.push(format!(
                r#"{{"ends": ["r{host}x{rank}:0", "h{host}:{rank}"], "gbps": 400, "delay_ns": 300}},
                   {{"ends": ["h{host}:{out}", "network:{place}"], "gbps": 100, "delay_ns": 1000}}"#
            ));
        }
    }
    let (nodes, wires) = (nodes.join(","), wires.join(","));
    let text = format!(r#"{{"nodes": [{nodes}], "wires": [{wires}]}}"#);
    file::parse("hosts", &text).expect("a network")
}

#[test]
fn ranks_of_a_host_share_the_wires_to_the_network_by_hierarchical_algorithms() {
    use CollectiveKind as K;
    let on_hosts = |kind, algo, host_ranks: u32| {
        let mut plan = plan(kind, hosts(4, 4), 4 << 20);
        plan.algo = algo;
        plan.cluster.settings.host_ranks = host_ranks.into();
        plan
    };
    for (kind, algo) in [
        (K::AllReduce, Algorithm::Ring),
        (K::AllGather, Algorithm::Ring),
        (K::ReduceScatter, Algorithm::Ring),
        (K::Broadcast, Algorithm::Chain),
        (K::Reduce, Algorithm::Ring),
    ] {
        let ring = time_ns(&on_hosts(kind, algo, 1));
        // Of four wires of a host a ring uses one.
        let by_hosts = time_ns(&on_hosts(kind, Algorithm::Hierarchical, 4));
        assert!(by_hosts < 0.95 * ring, "{kind:?}: {by_hosts} beside {ring}");
        // With a host for each rank it is the ring.
        let alone = time_ns(&on_hosts(kind, Algorithm::Hierarchical, 1));
        assert_eq!(alone, ring, "{kind:?}");
    }
    for (host_ranks, algo) in [(1, Algorithm::Ring), (4, Algorithm::Hierarchical)] {
        let chosen = time_ns(&on_hosts(K::AllGather, Algorithm::Auto, host_ranks));
        let named = time_ns(&on_hosts(K::AllGather, algo, host_ranks));
        assert_eq!(chosen, named, "{algo:?}");
    }
    let refused = run(&on_hosts(K::AllReduce, Algorithm::Hierarchical, 3));
    let (ranks, host_ranks) = (16, 3.into());
    assert_eq!(refused, Err(Failure::Hosts { ranks, host_ranks }));
    // Of different sizes: every element is compared.
    let on_sizes = |kind, sizes: &[u32]| {
        let mut plan = on_hosts(kind, Algorithm::Hierarchical, 1);
        plan.sizes = vec![64 << 10];
        plan.cluster.settings.host_ranks = HostRanks::of_sizes(sizes);
        run(&plan)
    };
    for kind in [K::AllReduce, K::AllGather, K::ReduceScatter, K::Broadcast] {
        let report = on_sizes(kind, &[5, 1, 7, 3]).expect("16 ranks");
        assert_eq!(report.sizes[0].wrong, 0, "{kind:?}");
    }
    let refused = on_sizes(K::AllReduce, &[5, 1, 7]).expect_err("13 ranks");
    let said = refused.to_string();
    assert!(said.contains("hosts of 5,1,7 ranks have 13"), "{said}");
}

#[test]
fn a_wire_has_the_rate_and_the_delay_of_its_file() {
    // Rank 0 reaches ranks 2 and 3 by the wire between the switches alone.
    let bytes = 4 << 20;
    let time = |gbps, delay_ns| {
        let plan = plan(
            CollectiveKind::Broadcast,
            two_pairs(1, gbps, delay_ns),
            bytes,
        );
        time_ns(&plan)
    };
    let slow = time(10.0, 1_000.0);
    // A broadcast sends the bytes over that wire once at least, and thrice at most.
    let once = bytes as f64 * 8.0 / 10.0;
    assert!((once..3.2 * once).contains(&slow), "{slow} beside {once}");
    let far = time(10.0, 501_000.0) - slow;
    assert!(far >= 500_000.0, "{far}");
}

#[test]
fn flows_share_wires_between_two_switches() {
    let time = |wires, hash_seed| {
        let topology = two_pairs(wires, 10.0, 1_000.0);
        let mut plan = plan(CollectiveKind::AllToAll, topology, 4 << 20);
        plan.cluster.network.hash_seed = hash_seed;
        time_ns(&plan)
    };
    // Four flows each way: some seeds give most of them one wire, others do not.
    let one = time(1, 0);
    let four: Vec<f64> = (0..6).map(|seed| time(4, seed)).collect();
    let best = four.iter().copied().fold(f64::MAX, f64::min);
    assert!(best < 0.6 * one, "{four:?} beside {one}");
    assert!(four.iter().any(|t| *t > 1.2 * best), "{four:?}");
}

#[test]
fn a_narrow_wire_takes_as_long_as_what_must_cross_it() {
    use CollectiveKind as K;
    // Bus bandwidth that the wire of 10 Gb/s between the pairs allows, by the payload of such a
    // wire: what must cross is all bytes, half of them, or a quarter of each rank's. A ring sends
    // half as much again as must cross. Measured: 0.96 to 0.99 of these shares.
    for (kind, algo, best, share) in [
        (K::AllToAll, Algorithm::Auto, 0.75, 1.0),
        (K::Broadcast, Algorithm::Auto, 1.0, 1.0),
        (K::AllReduce, Algorithm::Ring, 1.5, 2.0 / 3.0),
        (K::AllGather, Algorithm::Ring, 1.5, 2.0 / 3.0),
    ] {
        let plan = Plan {
            algo,
            ..plan(kind, two_pairs(1, 10.0, 1_000.0), 8 << 20)
        };
        let done = run(&plan).expect("it ends");
        let best = best * done.payload_gbs / 10.0;
        let ratio = done.best_gbs / best;
        assert!((ratio - 1.0).abs() < 1e-9, "{kind:?}: {ratio}");
        let reached = done.sizes[0].busbw_gbs / done.best_gbs / share;
        assert!((0.93..1.0).contains(&reached), "{kind:?}: {reached}");
    }
}

#[test]
fn a_host_may_have_no_rank_and_must_not_forward_beside_switches() {
    let text = r#"{"nodes": ["a", "b", {"name": "s", "switch": true}],
                   "wires": [{"ends": ["a:0", "s:0"]}, {"ends": ["b:0", "s:1"]}, {"ends": ["a:1", "b:1"]}]}"#;
    let mixed = ringbell_routes::file::parse("mixed", text).expect("a network");
    let forwards = Failure::Forwards {
        topology: "mixed".into(),
        node: "a".into(),
        wires: 2,
    };
    assert_eq!(
        run(&plan(CollectiveKind::AllReduce, mixed, 64)),
        Err(forwards)
    );
    let mut tree = plan(CollectiveKind::AllReduce, named("fat-tree:2x3"), 64);
    tree.cluster.ranks = 9;
    let few = Failure::TooFewHosts {
        topology: "fat-tree:2x3".into(),
        ends: 8,
        ranks: 9,
    };
    assert_eq!(run(&tree), Err(few));
}
