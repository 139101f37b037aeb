//! Digests of a few small clusters, a line for each: what two builds of the simulator must agree on
//! (`cargo xtask step digests`).
//!
//! One cluster for each kind of run and network: a collective with losses, several threads and
//! ways, one with switches that mark and pause, a mesh, kernels, and a trace.

#![allow(clippy::print_stdout)] // Its output is what is compared.

use std::error::Error;

use ringbell_nic_abi::{Algorithm, CollectiveKind};
use ringbell_nic_core::transport::rdma::{Congestion, DcqcnConfig};
use ringbell_routes::generate::generate;
use ringbell_sim::goal::Schedule;
use ringbell_sim::{
    run, run_goal, run_kernel, Breaks, Cluster, Contents, Counts, Fault, GoalPlan, KernelPlan,
    LaunchShape, Marks, Pauses, Plan, Profile, Slow, DEFAULT_ARGUMENTS,
};

const KERNEL: &str = include_str!("../../examples/30_simulated_kernel/ring.ptx");
const TRACE: &str = include_str!("../tests/goal/dissemination_8.goal");

fn main() -> Result<(), Box<dyn Error>> {
    for (name, counts) in [
        ("loss", loss()?),
        ("switches", switches()?),
        ("mesh", mesh()?),
        ("kernels", kernels()?),
        ("trace", trace()?),
    ] {
        let Counts {
            events,
            packets,
            lost,
            virtual_ns,
            hash,
            ..
        } = counts;
        println!(
            "{name}: {events} events, {packets} frames, {lost} lost, {virtual_ns} ns, {hash:016x}"
        );
    }
    Ok(())
}

/// Ranks on a network, where one frame in a hundred is lost.
fn cluster(ranks: usize, network: Option<&str>) -> Result<Cluster, Box<dyn Error>> {
    let profile = Profile::by_name("ideal").ok_or("it is built in")?;
    let mut cluster = Cluster::new(ranks, profile);
    cluster.network.topology = network.map(generate).transpose()?;
    (cluster.loss, cluster.seed) = (0.01, 5);
    Ok(cluster)
}

fn loss() -> Result<Counts, Box<dyn Error>> {
    let mut cluster = cluster(8, Some("fat-tree:2x3"))?;
    cluster.threads = 2;
    cluster.slow = vec![Slow {
        rank: 3,
        factor: 1.7,
    }];
    let mut plan = Plan::new(CollectiveKind::AllReduce, cluster, 0);
    plan.sizes = vec![96, 200_000];
    Ok(run(&plan)?.counts)
}

fn switches() -> Result<Counts, Box<dyn Error>> {
    let mut cluster = cluster(8, None)?;
    cluster.reaction.congestion = Congestion::Dcqcn(DcqcnConfig::default());
    cluster.profile.switches.marks = Some(Marks {
        min_bytes: 20_000,
        max_bytes: 200_000,
        share: 0.3,
    });
    cluster.profile.switches.pauses = Some(Pauses {
        pause_bytes: 60_000,
        resume_bytes: 40_000,
    });
    let mut plan = Plan::new(CollectiveKind::Reduce, cluster, 400_000);
    plan.algo = Algorithm::Flat;
    Ok(run(&plan)?.counts)
}

fn mesh() -> Result<Counts, Box<dyn Error>> {
    let mut cluster = cluster(6, Some("torus:2x3"))?;
    cluster.faults = vec![Fault {
        at_ns: 20_000,
        what: Breaks::Wire(0),
    }];
    let plan = Plan::new(CollectiveKind::AllToAll, cluster, 60_000);
    Ok(run(&plan)?.counts)
}

fn kernels() -> Result<Counts, Box<dyn Error>> {
    let plan = KernelPlan {
        file: "ring.ptx".into(),
        text: KERNEL.into(),
        kernel: Some("ring".into()),
        shape: LaunchShape::new(1, 96),
        arguments: DEFAULT_ARGUMENTS.to_vec(),
        buffer_bytes: 12_012,
        contents: Contents::Seed,
        block_queues: 0,
        cluster: cluster(4, None)?,
        within_ns: 60_000_000_000,
    };
    Ok(run_kernel(&plan)?.counts)
}

fn trace() -> Result<Counts, Box<dyn Error>> {
    let schedule = Schedule::parse("dissemination_8.goal", TRACE)?;
    let cluster = cluster(schedule.ranks().len(), None)?;
    Ok(run_goal(&GoalPlan::new(schedule, cluster))?.counts)
}
