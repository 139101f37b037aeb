//! A run of a kernel of a user on all ranks: how it is made, and the report.

use std::sync::{Arc, Mutex, PoisonError};

use ringbell_cuda_kernels::Output;

use crate::kernel_plan::KernelPlan;
use crate::network::Shared;
use crate::random::mixed;
use crate::rank_gpu::{make_window, RankGpu};
use crate::running::Outcome;
use crate::simulation::{started, watched, OF_AN_END, OF_A_RANK};
use crate::{Counts, Failure, Fault, Watch};

/// Kernels begin within so many nanoseconds of each other.
const SKEW_NS: u64 = 2_000;

/// The end of such a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelReport {
    /// The kernel that ran.
    pub kernel: String,
    /// Lines that kernels have printed, with their ranks, in order.
    pub printed: Vec<(usize, String)>,
    /// What broke while kernels ran, in order. A rank whose NIC stopped had its kernel ended.
    pub broken: Vec<Fault>,
    /// What went wrong.
    pub trouble: Option<Trouble>,
    /// Virtual time from the first kernel's begin to the last one's end.
    pub time_ns: u64,
    /// What each rank's kernel has left: the buffer, then memory that was zero at first, in the
    /// order of the arguments.
    pub memory: Vec<Vec<Vec<u8>>>,
    /// What has happened.
    pub counts: Counts,
}

impl KernelReport {
    /// Digest of what each rank's kernel has left.
    pub fn buffers(&self) -> Vec<u64> {
        let of_rank = |pieces: &Vec<Vec<u8>>| {
            let bytes = pieces.iter().flatten();
            bytes.fold(0, |sum, b| mixed(sum, u64::from(*b)))
        };
        self.memory.iter().map(of_rank).collect()
    }
}

/// What went wrong in a run of kernels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    /// A kernel was ended: a trap, an assertion, a wrong access.
    Failed {
        /// Its rank.
        rank: usize,
        /// Block, thread, line, and what happened.
        why: String,
    },
    /// Kernels wait for what does not come.
    Hung {
        /// Nothing happens any more; else the time is over.
        is_over: bool,
        /// What they wait for, by rank.
        waits: Vec<(usize, String)>,
    },
    /// Checks have found something, by rank.
    Found(Vec<(usize, String)>),
}

/// Bytes of memory that a plan takes, about.
///
/// # Errors
/// [`Failure`]: the plan cannot be run.
pub fn kernel_memory(plan: &KernelPlan) -> Result<u64, Failure> {
    plan.check()?;
    let ranks = plan.cluster.ranks as u64;
    let of_a_rank = 3 * plan.given_bytes() + 3 * OF_A_RANK + ranks * OF_AN_END;
    Ok(ranks.saturating_mul(of_a_rank))
}

/// What all ranks have printed: whole lines.
#[derive(Default)]
struct Printed {
    lines: Vec<(usize, String)>,
    /// By rank, what has no end yet.
    open: Vec<Vec<u8>>,
}

/// A rank's output.
struct RankOutput {
    rank: usize,
    all: Arc<Mutex<Printed>>,
}

impl Output for RankOutput {
    fn print(&self, text: &[u8]) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let Printed { lines, open } = &mut *all;
        let open = &mut open[self.rank];
        open.extend_from_slice(text);
        while let Some(end) = open.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = open.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line[..end]).into_owned();
            lines.push((self.rank, line));
        }
    }
}

/// Runs a kernel on all ranks.
///
/// # Errors
/// [`Failure`]: the plan cannot be run, or the ranks have not met. What the kernels do is in the
/// report.
pub fn run_kernel(plan: &KernelPlan) -> Result<KernelReport, Failure> {
    run_kernel_watched(plan, Watch::default())
}

/// Runs a kernel on all ranks and watches it.
///
/// # Errors
/// As [`run_kernel`]; or a rank that is watched is not there.
pub fn run_kernel_watched(plan: &KernelPlan, watch: Watch) -> Result<KernelReport, Failure> {
    plan.check()?;
    watched(&plan.cluster, watch, |watch, fabric| {
        simulate(plan, watch, fabric)
    })
}

/// Makes the cluster and runs the kernels.
fn simulate(plan: &KernelPlan, mut watch: Watch, fabric: Shared) -> Result<KernelReport, Failure> {
    let cluster = &plan.cluster;
    let made = |rank: usize, port| {
        let gpu = RankGpu::new(plan, rank)?;
        let (node, part) = gpu.node(plan, rank, port)?;
        Ok((node, (gpu, part)))
    };
    let (mut world, made) = started(cluster, &mut watch, &fabric, made)?;
    let (gpus, parts): (Vec<_>, Vec<_>) = made.into_iter().unzip();
    let nodes = world.nodes().to_vec();
    let window = make_window(&nodes, &parts, plan.buffer_bytes)?;
    let blocks = gpus.iter().zip(&nodes).enumerate();
    let blocks = blocks.map(|(rank, (gpu, node))| gpu.block_queues(plan, rank, node));
    let blocks = blocks.collect::<Result<Vec<_>, Failure>>()?;
    let printed = Arc::new(Mutex::new(Printed {
        open: vec![Vec::new(); cluster.ranks],
        ..Printed::default()
    }));
    let kernels = gpus.iter().zip(nodes.iter().zip(&blocks)).enumerate();
    let kernels = kernels.map(|(rank, (gpu, (node, blocks)))| {
        let output = Arc::new(RankOutput {
            rank,
            all: printed.clone(),
        });
        let kernel = gpu.launch(plan, (rank, window), (node, blocks), output)?;
        let skew = match cluster.seed {
            0 => 0,
            seed => mixed(seed, !(rank as u64)) % SKEW_NS,
        };
        Ok((kernel, skew))
    });
    let kernels = kernels.collect::<Result<Vec<_>, Failure>>()?;
    world.launch(gpus[0].kernel(), kernels);
    let trouble = match world.run_kernels(plan.within_ns) {
        Outcome::Ended(found) if found.is_empty() => None,
        Outcome::Ended(found) => Some(Trouble::Found(found)),
        Outcome::Failed { rank, end } => Some(Trouble::Failed {
            rank,
            why: end.reason,
        }),
        Outcome::Hung { is_over, waits } => Some(Trouble::Hung { is_over, waits }),
    };
    let mut printed = printed.lock().unwrap_or_else(PoisonError::into_inner);
    let Printed { lines, open } = &mut *printed;
    let rest = open.iter().enumerate().filter(|(_, text)| !text.is_empty());
    lines.extend(rest.map(|(rank, text)| (rank, String::from_utf8_lossy(text).into_owned())));
    Ok(KernelReport {
        kernel: gpus[0].kernel().to_owned(),
        printed: std::mem::take(lines),
        broken: world.broken().to_vec(),
        trouble,
        time_ns: world.since_begin(),
        memory: gpus.iter().map(|gpu| gpu.left(plan)).collect(),
        counts: world.counts(),
    })
}
