//! A run of a plan: what it may not ask, the operations one after the other, and the report.

use std::sync::atomic::{AtomicU64, Ordering};

use ringbell_mesh::GROWTH;
use ringbell_nic_abi::{Algorithm, CollectiveKind};
use ringbell_nic_core::port::{Checksums, Port};

use crate::bound::{best_bus_gbps, bus_factor};
use crate::data::{pattern, Data};
use crate::goal::ELEMENT;
use crate::mesh::Mesh;
use crate::network::{LinkPort, Shared};
use crate::node::{destination, Node, Operands};
use crate::profile::{payload_share, HEADERS};
use crate::threads::each;
use crate::timeline::Timeline;
use crate::world::{Operated, World};
use crate::{
    Breaks, Cluster, Counts, Ended, Failure, Forward, Kept, Measured, Plan, RankEnd, Report, Slow,
    Watch,
};

/// Ranks from which on threads pay; measured.
const PAYS: usize = 64;
/// Most ranks; measured.
const MOST: usize = 4096;
/// Bytes that a rank takes by itself, and an end of a link; measured with 64 to 512 ranks.
pub(crate) const OF_A_RANK: u64 = 1 << 20;
pub(crate) const OF_AN_END: u64 = 13 << 10;
/// Links of a rank among up to 4,096 whose algorithm needs few: 24 neighbours, and its own, 14 by
/// recursive doubling.
const FEW_LINKS: u64 = 40;
/// Operands, buffers of the programs and frames under way, in sizes of the operation.
const COPIES: u64 = 5;
/// Share of an operand that is taken where it is kept once: its pages, and the runs in them while
/// an operation is under way.
const KEPT: u64 = 32;
/// Bytes of a result that are compared at once.
const COMPARED: usize = 64 << 10;
/// Frames from which on an operation is fast-forwarded if that is left to the run, half a minute of
/// one core; and the payload of one.
const LONG: f64 = (4 << 20) as f64;
const OF_A_FRAME: f64 = 4096.0;
/// Most memory of all ranks together, of which every byte is real.
pub(crate) const MEMORY_MOST: u64 = 16 << 30;
/// The same where what repeats is kept once.
const ONCE_MOST: u64 = 1 << 40;

/// Links of a rank, at most. Among many ranks a ring, a tree or recursive doubling needs few beside
/// those to neighbours (ADR 88), and the hierarchical algorithm those to its host; others may need
/// all.
fn links(plan: &Plan) -> u64 {
    let Cluster {
        ranks, settings, ..
    } = &plan.cluster;
    let is_lazy = !settings.links_all(*ranks);
    match plan.algo {
        Algorithm::Ring | Algorithm::Tree | Algorithm::RecursiveDoubling if is_lazy => FEW_LINKS,
        Algorithm::Hierarchical if is_lazy => {
            FEW_LINKS + u64::from(settings.host_ranks.most(*ranks as u32))
        }
        _ => *ranks as u64,
    }
}

/// Bytes of memory that a plan takes, about.
///
/// # Errors
/// [`Failure`]: the plan cannot be run.
pub fn memory(plan: &Plan) -> Result<u64, Failure> {
    let most = check(plan)?;
    let ranks = plan.cluster.ranks as u64;
    let kept = match plan.kept {
        Kept::Whole => most.saturating_mul(COPIES),
        Kept::Once => most / KEPT,
    };
    let of_a_rank = kept.saturating_add(OF_A_RANK + links(plan).saturating_mul(OF_AN_END));
    Ok(ranks.saturating_mul(of_a_rank))
}

/// Runs a plan.
///
/// # Errors
/// [`Failure`]: the plan cannot be run, or a rank failed or hung.
pub fn run(plan: &Plan) -> Result<Report, Failure> {
    run_watched(plan, Watch::default())
}

/// Runs a plan and watches it.
///
/// # Errors
/// [`Failure`], as [`run`]; or a rank that is watched is not there. What was written until then is
/// whole.
pub fn run_watched(plan: &Plan, watch: Watch) -> Result<Report, Failure> {
    let most = check(plan)?;
    watched(&plan.cluster, watch, |watch, fabric| {
        simulate(plan, watch, most, fabric)
    })
}

/// Runs something on a cluster's network, and writes the timeline, if one is wanted.
pub(crate) fn watched<R>(
    cluster: &Cluster,
    mut watch: Watch,
    run: impl FnOnce(Watch, Shared) -> Result<R, Failure>,
) -> Result<R, Failure> {
    watch.check(cluster.ranks)?;
    let fabric = Shared::new(cluster)?;
    let Some(file) = watch.take_timeline() else {
        return run(watch, fabric);
    };
    fabric.lock().timeline = Some(Timeline::default());
    let done = run(watch, fabric.clone());
    let fabric = fabric.lock();
    if let Some(timeline) = &fabric.timeline {
        let written = timeline.write(cluster.ranks, &fabric.tracks(), file);
        written.map_err(|e| Failure::Timeline(e.to_string()))?;
    }
    done
}

/// A cluster whose ranks have met, of nodes that are made for each rank's port, and what is made
/// with each.
pub(crate) fn started<T>(
    cluster: &Cluster,
    watch: &mut Watch,
    fabric: &Shared,
    make: impl Fn(usize, Box<dyn Port>) -> Result<(Node, T), Failure>,
) -> Result<(World, Vec<T>), Failure> {
    let checksums = match watch.reads_frames() {
        true => Checksums::Software,
        false => Checksums::Omitted,
    };
    let mesh = Mesh::of(cluster)?;
    let adapters = (0..cluster.ranks).map(|rank| fabric.lock().adapters(rank, cluster));
    let adapters: Vec<_> = adapters.collect();
    let nodes = adapters.iter().enumerate().map(|(rank, adapters)| {
        let port: Box<dyn Port> = match &mesh {
            Some(mesh) => mesh.port(rank, adapters, checksums)?,
            // A host has one wire.
            None => Box::new(LinkPort::new(&adapters[0], checksums)),
        };
        let port = watch.around(rank, port)?;
        make(rank, port)
    });
    let nodes = nodes.collect::<Result<Vec<_>, _>>()?;
    let (nodes, made): (Vec<_>, Vec<_>) = nodes.into_iter().unzip();
    let threads = threads(cluster);
    let mut world = World::new(fabric.clone(), nodes, adapters, threads);
    world.meet()?;
    world.begin(&cluster.faults);
    Ok((world, made))
}

/// How many threads step NICs.
fn threads(cluster: &Cluster) -> usize {
    match cluster.threads {
        0 if cluster.ranks < PAYS => 1,
        0 => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        n => n,
    }
}

/// Whether operations may be fast-forwarded: nothing happens by chance, or later, or is watched.
fn may_forward(plan: &Plan, watch: &Watch, fabric: &Shared) -> bool {
    let Cluster { loss, faults, .. } = &plan.cluster;
    let is_watched = watch.reads_frames() || fabric.lock().timeline.is_some();
    *loss == 0.0 && faults.is_empty() && !is_watched
}

/// Whether an operation of so many bytes is.
fn forwards(plan: &Plan, bytes: u64) -> bool {
    let ranks = plan.cluster.ranks;
    let frames = ranks as f64 * bytes as f64 * bus_factor(plan.kind, ranks) / OF_A_FRAME;
    match plan.forward {
        Forward::Never => false,
        Forward::Long => frames >= LONG,
        Forward::Always => true,
    }
}

/// Makes the cluster and runs the operations.
fn simulate(
    plan: &Plan,
    mut watch: Watch,
    most: u64,
    mut fabric: Shared,
) -> Result<Report, Failure> {
    let cluster = &plan.cluster;
    let threads = threads(cluster);
    let all: Vec<usize> = (0..cluster.ranks).collect();
    let made = |rank, port| Operands::new(rank, cluster, port, plan.kept, most);
    let may_forward = may_forward(plan, &watch, &fabric);
    let (mut world, mut operands) = started(cluster, &mut watch, &fabric, made)?;
    let mut before: Option<Counts> = None;
    let mut is_over = false;
    let mut longest = 0;
    let mut sizes = Vec::new();
    let mut ended = None;
    for &bytes in &plan.sizes {
        if std::mem::take(&mut is_over) {
            // What was fast-forwarded is under way there for ever.
            before = Some(counted(before, &world));
            longest = longest.max(fabric.lock().longest);
            drop(world);
            fabric = Shared::new(cluster)?;
            (world, operands) = started(cluster, &mut watch, &fabric, made)?;
        }
        let data = data_of(plan, bytes);
        // Whole elements.
        let bytes = data.bytes();
        each(threads, &all, |rank| {
            operands[rank].fill(&pattern(rank as u64), data.operands(rank as u64));
        });
        let posted_ns = world.since_begin();
        let forward = may_forward && forwards(plan, bytes);
        let (time_ns, projection, wrong) =
            match world.operation(plan, &data, destination(most), forward)? {
                Operated::Projected {
                    time_ns,
                    projection,
                } => {
                    is_over = true;
                    (time_ns, Some(projection), 0)
                }
                Operated::Ended(ranks) if ranks.iter().any(RankEnd::is_error) => {
                    ended = Some(Ended {
                        bytes,
                        posted_ns,
                        ranks,
                    });
                    break;
                }
                Operated::Ended(ends) => {
                    let time_ns = world.since_begin() - posted_ns;
                    let lives = |rank: &usize| ends[*rank].status.is_some();
                    let living: Vec<usize> = all.iter().copied().filter(lives).collect();
                    (time_ns, None, wrong(threads, &living, &operands, &data))
                }
            };
        let algbw_gbs = bytes as f64 / time_ns.max(1) as f64;
        sizes.push(Measured {
            bytes,
            count: data.count,
            time_ns,
            algbw_gbs,
            busbw_gbs: algbw_gbs * bus_factor(plan.kind, cluster.ranks),
            wrong,
            projection,
        });
    }
    let counts = counted(before, &world);
    let fabric = fabric.lock();
    let longest = longest.max(fabric.longest);
    let headers = match fabric.is_mesh() {
        true => HEADERS + GROWTH,
        false => HEADERS,
    };
    let share = payload_share(longest, headers);
    let best = best_bus_gbps(plan.kind, cluster.ranks, &fabric.wires());
    Ok(Report {
        sizes,
        payload_gbs: cluster.profile.link_gbps / 8.0 * share,
        best_gbs: best / 8.0 * share,
        ended,
        counts,
    })
}

/// What has happened in this world and those before it.
fn counted(before: Option<Counts>, world: &World) -> Counts {
    let counts = world.counts();
    before.map_or(counts, |before| before.and(counts))
}

/// Elements that are wrong in the results of ranks.
fn wrong(threads: usize, ranks: &[usize], operands: &[Operands], data: &Data) -> u64 {
    let (wanted, wrong) = (data.wanted(), AtomicU64::new(0));
    each(threads, ranks, |rank| {
        let [_, bytes] = data.operands(rank as u64);
        for at in (0..bytes).step_by(COMPARED) {
            let part = operands[rank].result(at..bytes.min(at + COMPARED as u64));
            let differ = wanted.wrong(rank as u64, at / ELEMENT, &part);
            wrong.fetch_add(differ, Ordering::Relaxed);
        }
    });
    wrong.into_inner()
}

fn data_of(plan: &Plan, bytes: u64) -> Data {
    Data::of(plan.kind, plan.cluster.ranks as u64, bytes)
}

/// Whether there can be such a cluster.
pub(crate) fn check_cluster(cluster: &Cluster) -> Result<(), Failure> {
    let ranks = cluster.ranks;
    if !(2..=MOST).contains(&ranks) {
        return Err(Failure::Ranks { ranks, most: MOST });
    }
    let host_ranks = &cluster.settings.host_ranks;
    if !host_ranks.fits(ranks as u32) {
        let host_ranks = host_ranks.clone();
        return Err(Failure::Hosts { ranks, host_ranks });
    }
    cluster.settings.validate().map_err(Failure::Settings)?;
    if !(0.0..1.0).contains(&cluster.loss) {
        return Err(Failure::Loss(cluster.loss.to_string()));
    }
    // A factor that is no number is refused too.
    let fits = |s: &Slow| s.rank < ranks && s.factor >= 1.0 && s.factor.is_finite();
    if let Some(&Slow { rank, factor }) = cluster.slow.iter().find(|s| !fits(s)) {
        let factor = factor.to_string();
        return Err(Failure::NotSlow {
            rank,
            factor,
            ranks,
        });
    }
    let network = &cluster.network;
    let ports = cluster.reaction.udp_ports;
    let of_switches = match (network.spray, network.hash_seed, ports) {
        (true, ..) => Some("spraying"),
        (false, 1.., _) => Some("a seed of their hash"),
        (false, 0, 2..) => Some("spreading packets over several UDP ports"),
        (false, 0, _) => None,
    };
    let meshed = network.topology.as_ref().filter(|_| network.is_mesh());
    if let (Some(topology), Some(what)) = (meshed, of_switches) {
        let topology = topology.name().to_owned();
        return Err(Failure::NoSwitches { topology, what });
    }
    let wires = network.wires(ranks);
    let is_there = |what: &Breaks| match *what {
        Breaks::Rank(rank) => rank < ranks,
        Breaks::Wire(wire) => wire < wires,
    };
    let beyond = cluster.faults.iter().map(|f| f.what).find(|w| !is_there(w));
    if let Some(what) = beyond {
        return Err(Failure::NothingToBreak { what, ranks, wires });
    }
    Ok(())
}

/// Returns the largest size.
fn check(plan: &Plan) -> Result<u64, Failure> {
    use CollectiveKind as K;
    check_cluster(&plan.cluster)?;
    let ranks = plan.cluster.ranks;
    match plan.kind {
        K::AllReduce | K::AllGather | K::ReduceScatter | K::Broadcast | K::Reduce | K::AllToAll => {
            Ok(())
        }
        kind => Err(Failure::Kind(kind)),
    }?;
    let most = plan.sizes.iter().copied().max().unwrap_or(0);
    if let Some(&bytes) = plan.sizes.iter().find(|b| data_of(plan, **b).count == 0) {
        return Err(Failure::Small { bytes });
    }
    let all = match plan.kept {
        Kept::Whole => MEMORY_MOST,
        Kept::Once => ONCE_MOST,
    };
    if most.saturating_mul(2 * ranks as u64) > all {
        return Err(Failure::large(most, all));
    }
    Ok(most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Profile;

    #[test]
    fn an_element_that_is_wrong_on_one_rank_is_counted_on_all_however_bytes_are_kept() {
        let profile = Profile::by_name("ideal").expect("it exists");
        let cluster = Cluster::new(3, profile);
        let bytes = 1 << 20;
        for kept in [Kept::Once, Kept::Whole] {
            let plan = Plan {
                kept,
                ..Plan::new(CollectiveKind::AllReduce, cluster.clone(), bytes)
            };
            let fabric = Shared::new(&cluster).expect("a network");
            let made = |rank, port| Operands::new(rank, &cluster, port, kept, bytes);
            let started = started(&cluster, &mut Watch::default(), &fabric, made);
            let (mut world, operands) = started.expect("they meet");
            let data = data_of(&plan, bytes);
            let mut differ = |change: f32| {
                for (operands, rank) in operands.iter().zip(0..) {
                    operands.fill(&pattern(rank), data.operands(rank));
                }
                operands[1].spoil(777_776, change);
                let ends = world.operation(&plan, &data, destination(bytes), false);
                let Ok(Operated::Ended(ends)) = ends else {
                    panic!("it has not ended")
                };
                assert!(!ends.iter().any(RankEnd::is_error));
                wrong(1, &[0, 1, 2], &operands, &data)
            };
            assert_eq!([differ(0.0), differ(1.0)], [0, 3], "{kept:?}");
        }
    }
}
