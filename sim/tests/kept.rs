//! Operands that are kept once where they repeat: runs report what they report with whole memory.

use ringbell_nic_abi::{Algorithm, CollectiveKind};
use ringbell_routes::generate::generate;
use ringbell_sim::{run, Cluster, Failure, Kept, Plan, Profile, Report};

use crate::threads::{plan, Draws};

fn of(plan: &Plan, kept: Kept) -> Result<Report, Failure> {
    run(&Plan {
        kept,
        ..plan.clone()
    })
}

fn ring(ranks: usize, bytes: u64) -> Plan {
    let profile = Profile::by_name("ideal").expect("it exists");
    Plan {
        algo: Algorithm::Ring,
        ..Plan::new(
            CollectiveKind::AllReduce,
            Cluster::new(ranks, profile),
            bytes,
        )
    }
}

#[test]
fn any_run_reports_what_it_reports_with_whole_memory() {
    let (mut ended, mut lost) = (0, 0);
    for seed in 100..140 {
        let plan = plan(&mut Draws(seed));
        let whole = of(&plan, Kept::Whole);
        assert_eq!(of(&plan, Kept::Once), whole, "seed {seed}: {plan:?}");
        if let Ok(report) = whole {
            assert!(report.sizes.iter().all(|s| s.wrong == 0), "seed {seed}");
            ended += u64::from(report.ended.is_some());
            lost += report.counts.lost;
        }
    }
    assert!(ended > 4 && lost > 100, "{ended} {lost}");
}

#[test]
fn every_algorithm_reports_the_same() {
    use Algorithm as A;
    let mut ran = 0;
    for algo in A::ALL {
        for kind in [
            CollectiveKind::AllReduce,
            CollectiveKind::Broadcast,
            CollectiveKind::AllGather,
        ] {
            for (ranks, host_ranks) in [(5, 1), (6, 3)] {
                let mut plan = Plan {
                    kind,
                    algo: *algo,
                    sizes: vec![4_000, 1 << 20],
                    ..ring(ranks, 0)
                };
                plan.cluster.settings.host_ranks = host_ranks.into();
                plan.cluster.loss = 0.001;
                let whole = of(&plan, Kept::Whole);
                assert_eq!(of(&plan, Kept::Once), whole, "{plan:?}");
                ran += usize::from(whole.is_ok_and(|r| r.ended.is_none()));
            }
        }
    }
    assert!(ran > 10, "{ran}");
}

#[test]
fn ranks_whose_nics_forward_report_the_same() {
    for kind in [CollectiveKind::AllReduce, CollectiveKind::Broadcast] {
        let mut plan = ring(6, 300_000);
        plan.kind = kind;
        plan.algo = Algorithm::Auto;
        plan.cluster.network.topology = Some(generate("torus:2x3").expect("a network"));
        plan.cluster.loss = 0.001;
        let whole = of(&plan, Kept::Whole);
        assert_eq!(of(&plan, Kept::Once), whole, "{kind:?}");
        assert_eq!(whole.expect("it ends").sizes[0].wrong, 0);
    }
}
