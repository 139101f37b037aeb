//! A run of a kernel of a user on all ranks: what is asked, how it is made, and the report.

use std::sync::{Arc, Mutex, PoisonError};

use ringbell_cuda_kernels::collective::CommHandle;
use ringbell_cuda_kernels::{
    EmulatedGpu, EmulatedGpuConfig, GpuBuffer, KernelArg, LaunchShape, LoadedKernel, LoadedModule,
    Output, SteppedKernel,
};
use ringbell_nic_abi::{Algorithm, GpuVa, WireType};
use ringbell_nic_core::port::Port;

use crate::network::Shared;
use crate::node::{made, Node};
use crate::random::mixed;
use crate::running::Outcome;
use crate::simulation::{check_cluster, started, watched, MEMORY_MOST, OF_AN_END, OF_A_RANK};
use crate::{Cluster, Counts, Failure, Fault, Watch};

/// Memory of a GPU beside the buffer: variables of the module. Pages come with their first use.
const SPARE: u64 = 32 << 20;
/// Mappings that the process has for the pages of all GPUs.
const MAPPINGS: usize = 32_000;
/// Kernels begin within so many nanoseconds of each other.
const SKEW_NS: u64 = 2_000;

/// A kernel on each rank of a cluster.
#[derive(Debug, Clone)]
pub struct KernelPlan {
    /// What errors call the text.
    pub file: String,
    /// PTX.
    pub text: String,
    /// The kernel's name; `None`: the only one of the text.
    pub kernel: Option<String>,
    /// Blocks and threads.
    pub shape: LaunchShape,
    /// Bytes of each rank's buffer.
    pub buffer_bytes: u64,
    /// Where. Its seed is also that of the buffers' contents, of the kernels' begin and of the
    /// threads' order: by 0 all kernels begin at once, and threads run in their order.
    pub cluster: Cluster,
    /// Virtual time that the kernels may take.
    pub within_ns: u64,
}

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
    /// Digest of each rank's buffer at the end.
    pub buffers: Vec<u64>,
    /// What has happened.
    pub counts: Counts,
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

impl KernelPlan {
    fn check(&self) -> Result<(), Failure> {
        check_cluster(&self.cluster)?;
        let bytes = self.buffer_bytes;
        if bytes.saturating_mul(self.cluster.ranks as u64) > MEMORY_MOST {
            return Err(Failure::Large { bytes });
        }
        if bytes == 0 {
            return Err(Failure::Small { bytes });
        }
        Ok(())
    }
}

/// Bytes of memory that a plan takes, about.
///
/// # Errors
/// [`Failure`]: the plan cannot be run.
pub fn kernel_memory(plan: &KernelPlan) -> Result<u64, Failure> {
    plan.check()?;
    let ranks = plan.cluster.ranks as u64;
    let of_a_rank = 2 * plan.buffer_bytes + 3 * OF_A_RANK + ranks * OF_AN_END;
    Ok(ranks.saturating_mul(of_a_rank))
}

fn refused(e: impl ToString) -> Failure {
    Failure::Kernel(e.to_string())
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

/// A rank's GPU.
struct RankGpu {
    gpu: EmulatedGpu,
    buffer: GpuBuffer,
    /// Memory of the kernel's variables.
    _module: LoadedModule,
    kernel: LoadedKernel,
}

impl RankGpu {
    fn new(plan: &KernelPlan, rank: usize) -> Result<RankGpu, Failure> {
        let made = made(rank);
        let gpu = EmulatedGpu::new(EmulatedGpuConfig {
            memory_bytes: plan.buffer_bytes + SPARE,
            seed: mixed(plan.cluster.seed, rank as u64),
            max_mappings: MAPPINGS / plan.cluster.ranks,
            ..EmulatedGpuConfig::default()
        });
        let gpu = gpu.map_err(|e| made(&e))?;
        let module = gpu.load_ptx(&plan.file, &plan.text).map_err(refused)?;
        let name = named(plan, &module)?;
        let kernel = module.kernel(&name).ok_or_else(|| {
            let known: Vec<&str> = module.kernels().collect();
            let known = known.join(", ");
            Failure::Kernel(format!(
                "{} has no kernel `{name}`; give one of: {known}",
                plan.file
            ))
        })?;
        let buffer = gpu.alloc(plan.buffer_bytes).map_err(|e| made(&e))?;
        let words =
            (0..plan.buffer_bytes.div_ceil(8)).map(|i| mixed(plan.cluster.seed ^ rank as u64, i));
        let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        let bytes = &bytes[..plan.buffer_bytes as usize];
        buffer.write(0, bytes).map_err(|e| made(&e))?;
        Ok(RankGpu {
            gpu,
            buffer,
            _module: module,
            kernel,
        })
    }

    fn node(&self, cluster: &Cluster, rank: usize, port: Box<dyn Port>) -> Result<Node, Failure> {
        let (va, bytes) = (self.buffer.va(), self.buffer.len());
        let table = self.gpu.page_table(va, bytes).map_err(|e| made(rank)(&e))?;
        let memory = self.gpu.memory();
        Node::new(rank, cluster, port, memory, &table, (va, bytes))
    }

    /// The kernel with the arguments of all kernels that are simulated.
    fn launch(
        &self,
        plan: &KernelPlan,
        rank: usize,
        node: &Node,
        printed: &Arc<Mutex<Printed>>,
    ) -> Result<SteppedKernel, Failure> {
        let comm = CommHandle {
            queue: node.queue.handle(),
            comm: node.comm.session().0,
            rank: rank as u32,
            size: plan.cluster.ranks as u32,
            algo: Algorithm::Auto,
            algo_kinds: 0,
            wire: WireType::Same,
            block_queues: GpuVa(0),
            block_queue_count: 0,
        };
        let args = [
            comm.into(),
            self.buffer.va().into(),
            KernelArg::U64(self.buffer.len()),
        ];
        let output = RankOutput {
            rank,
            all: printed.clone(),
        };
        let seed = match plan.cluster.seed {
            0 => 0,
            seed => mixed(seed, rank as u64) | 1,
        };
        let output = Arc::new(output);
        let launched = self
            .gpu
            .launch_stepped(&self.kernel, plan.shape, &args, seed, output);
        launched.map_err(|e| {
            Failure::Kernel(format!(
                "{e}; kernels that are simulated are `extern \"C\" __global__ void NAME(rb_comm \
                 comm, void *buffer, rb_u64 bytes)`"
            ))
        })
    }

    fn digest(&self) -> u64 {
        let mut bytes = vec![0; self.buffer.len() as usize];
        // Inside the buffer by its own length.
        let _ = self.buffer.read(0, &mut bytes);
        bytes.chunks(8).fold(0, |sum, c| {
            c.iter().fold(sum, |s, b| mixed(s, u64::from(*b)))
        })
    }
}

/// The name of the plan's kernel.
fn named(plan: &KernelPlan, module: &LoadedModule) -> Result<String, Failure> {
    if let Some(name) = &plan.kernel {
        return Ok(name.clone());
    }
    let all: Vec<&str> = module.kernels().collect();
    match all[..] {
        [one] => Ok(one.to_owned()),
        [] => Err(Failure::Kernel(format!(
            "{} has no kernel; write one as `extern \"C\" __global__ void NAME(rb_comm comm, void \
             *buffer, rb_u64 bytes)`",
            plan.file
        ))),
        _ => Err(Failure::Kernel(format!(
            "{} has several kernels; name one behind it: {}",
            plan.file,
            all.join(", ")
        ))),
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
        Ok((gpu.node(cluster, rank, port)?, gpu))
    };
    let (mut world, gpus) = started(cluster, &mut watch, &fabric, made)?;
    let printed = Arc::new(Mutex::new(Printed {
        open: vec![Vec::new(); cluster.ranks],
        ..Printed::default()
    }));
    let kernels = gpus.iter().zip(world.nodes()).enumerate();
    let kernels = kernels.map(|(rank, (gpu, node))| {
        let kernel = gpu.launch(plan, rank, node, &printed)?;
        let skew = match cluster.seed {
            0 => 0,
            seed => mixed(seed, !(rank as u64)) % SKEW_NS,
        };
        Ok((kernel, skew))
    });
    let kernels = kernels.collect::<Result<Vec<_>, Failure>>()?;
    world.launch(gpus[0].kernel.name(), kernels);
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
        kernel: gpus[0].kernel.name().to_owned(),
        printed: std::mem::take(lines),
        broken: world.broken().to_vec(),
        trouble,
        time_ns: world.since_begin(),
        buffers: gpus.iter().map(RankGpu::digest).collect(),
        counts: world.counts(),
    })
}
