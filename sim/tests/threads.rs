//! Runs on several threads: what they report, capture and draw is what one thread does.

use ringbell_nic_abi::{Algorithm, CollectiveKind};
use ringbell_nic_core::transport::rdma::{Congestion, DcqcnConfig};
use ringbell_routes::generate::generate;
use ringbell_sim::{
    run, run_watched, Breaks, Cluster, Failure, Fault, Marks, NetworkPlan, Pauses, Plan, Profile,
    Reaction, Report, Slow, Switches, Watch,
};

use crate::bytes::Bytes;

/// Numbers of a seed (SplitMix64).
pub(crate) struct Draws(pub(crate) u64);

impl Draws {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }

    fn of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize].clone()
    }
}

fn ideal() -> Profile {
    Profile::by_name("ideal").expect("it exists")
}

/// A cluster of any kind: networks, costs, losses, marks, pauses, slow ranks and faults.
fn cluster(draws: &mut Draws) -> Cluster {
    let name = draws.of(&["ideal", "ideal", "rtl", "fpganic", "acclplus"]);
    let mut profile = Profile::by_name(name).expect("it exists");
    profile.link_delay_ns = draws.of(&[profile.link_delay_ns, 0, 40, 3_000]);
    let room = draws.of(&[16 << 20, 100_000]);
    profile.switches = Switches {
        marks: draws.of(&[
            None,
            Some(Marks {
                min_bytes: 10_000,
                max_bytes: 60_000,
                share: 0.3,
            }),
        ]),
        pauses: draws.of(&[
            None,
            Some(Pauses {
                pause_bytes: 10_000,
                resume_bytes: 5_000,
            }),
        ]),
        ..Switches::of_outputs(room)
    };
    let topology = draws.of(&[None, None, Some("fat-tree:2x3"), Some("fat-tree:4x2")]);
    let mut network = NetworkPlan {
        topology: topology.map(|name| generate(name).expect("a network")),
        hash_seed: draws.below(9),
        spray: topology.is_some() && draws.below(3) == 0,
        ..NetworkPlan::default()
    };
    let ends = network.topology.as_ref().map(|t| t.ends().count() as u64);
    let mut ranks = 2 + draws.below(ends.unwrap_or(20) - 1);
    if draws.below(4) == 0 {
        let name = draws.of(&["torus:2x4", "ring:5", "bus:4"]);
        let topology = generate(name).expect("a network");
        ranks = topology.nodes().len() as u64;
        network = NetworkPlan {
            topology: Some(topology),
            wire_poll: draws.of(&[1, 8]),
            ..NetworkPlan::default()
        };
    }
    let any = |draws: &mut Draws| draws.below(ranks) as usize;
    let mut faults = Vec::new();
    if draws.below(3) == 0 {
        let what = match draws.below(2) {
            0 => Breaks::Rank(any(draws)),
            _ => Breaks::Wire(any(draws)),
        };
        let at_ns = draws.below(90_000);
        faults.push(Fault { at_ns, what });
    }
    let slow = (0..draws.below(2)).map(|_| Slow {
        rank: any(draws),
        factor: 2.5,
    });
    let is_mesh = network.is_mesh();
    Cluster {
        slow: slow.collect(),
        faults,
        network,
        reaction: Reaction {
            congestion: draws.of(&[
                Congestion::default(),
                Congestion::Dcqcn(DcqcnConfig::default()),
            ]),
            selective: draws.below(2) == 0,
            udp_ports: draws.of(if is_mesh { &[1, 1] } else { &[1, 5] }),
        },
        loss: draws.of(&[0.0, 0.0, 0.002, 0.02]),
        seed: draws.below(1 << 30),
        ..Cluster::new(ranks as usize, profile)
    }
}

pub(crate) fn plan(draws: &mut Draws) -> Plan {
    use CollectiveKind as K;
    let kind = draws.of(&[
        K::AllReduce,
        K::AllReduce,
        K::AllGather,
        K::ReduceScatter,
        K::Broadcast,
        K::Reduce,
        K::AllToAll,
    ]);
    let mut plan = Plan::new(kind, cluster(draws), 0);
    // Sizes after the first begin where the one before has ended.
    plan.sizes = (0..3).map(|_| 2_048 + draws.below(200_000)).collect();
    if kind == K::AllReduce {
        plan.algo = draws.of(&[Algorithm::Auto, Algorithm::Ring, Algorithm::Tree]);
    }
    plan
}

/// The report, the frames of two ranks, and the timeline.
type Seen = (Result<Report, Failure>, [Vec<u8>; 3]);

fn seen(plan: &Plan, threads: usize) -> Seen {
    let files = [(); 3].map(|()| Bytes::default());
    let [first, last, timeline] = &files;
    let mut plan = plan.clone();
    plan.cluster.threads = threads;
    let watch = Watch::default()
        .capture(0, first.clone())
        .capture(plan.cluster.ranks - 1, last.clone())
        .timeline(timeline.clone());
    let report = run_watched(&plan, watch);
    (report, files.map(|f| f.all()))
}

#[test]
fn threads_change_nothing_that_is_reported_captured_or_drawn() {
    let (mut ended, mut lost, mut pauses) = (0, 0, 0);
    for seed in 0..40 {
        let plan = plan(&mut Draws(seed));
        let one = seen(&plan, 1);
        for threads in [2, 3] {
            let more = seen(&plan, threads);
            // Captures are long: whether they differ says enough.
            assert_eq!(more.0, one.0, "seed {seed}, {threads} threads: {plan:?}");
            let same = (0..3).filter(|f| more.1[*f] == one.1[*f]).count();
            assert_eq!(same, 3, "seed {seed}, {threads} threads: {plan:?}");
        }
        if let Ok(report) = one.0 {
            ended += u64::from(report.ended.is_some());
            lost += report.counts.lost;
            pauses += report.counts.pauses;
        }
    }
    // The seeds have something of everything.
    assert!(
        ended > 4 && lost > 100 && pauses > 20,
        "{ended} {lost} {pauses}"
    );
}

#[test]
fn many_ranks_whose_links_are_dialled_late_run_on_threads_as_on_one() {
    let cluster = Cluster {
        loss: 0.001,
        ..Cluster::new(90, ideal())
    };
    let mut plan = Plan::new(CollectiveKind::AllReduce, cluster, 100_000);
    plan.algo = Algorithm::Ring;
    let reports = [1, 2, 3].map(|threads| {
        plan.cluster.threads = threads;
        run(&plan).expect("it ends")
    });
    assert_eq!(reports[0].sizes[0].wrong, 0);
    assert_eq!(reports[1], reports[0]);
    assert_eq!(reports[2], reports[0]);
}
