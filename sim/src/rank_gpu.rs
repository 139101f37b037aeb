//! A rank's emulated GPU: the memory of its kernel, and the kernel's arguments.

use std::sync::Arc;

use ringbell_cuda_kernels::collective::CommHandle;
use ringbell_cuda_kernels::{
    EmulatedGpu, EmulatedGpuConfig, GpuBuffer, KernelArg, LoadedKernel, LoadedModule, Output,
    SteppedKernel,
};
use ringbell_gtlb::Access;
use ringbell_nic_abi::{Algorithm, GpuVa, StreamRef, WireType};
use ringbell_nic_core::port::Port;
use ringbell_nic_core::{HostQueue, QueueConfig, RankMemory, Window};

use crate::kernel_argument::KernelArgument;
use crate::kernel_plan::{Contents, KernelPlan};
use crate::node::{made, Node};
use crate::random::mixed;
use crate::Failure;

/// Memory of a GPU beside what its kernel was given: variables of the module, queues of blocks.
/// Pages come with their first use.
const SPARE: u64 = 32 << 20;
/// Mappings that the process has for the pages of all GPUs.
const MAPPINGS: usize = 32_000;

/// A rank's GPU.
pub(crate) struct RankGpu {
    gpu: EmulatedGpu,
    buffer: GpuBuffer,
    /// Of streams and of zeros, in the order of the arguments.
    more: Vec<GpuBuffer>,
    /// Memory of the kernel's variables.
    _module: LoadedModule,
    kernel: LoadedKernel,
}

/// Queues for blocks, with their handles where kernels find them.
pub(crate) struct BlockQueues {
    /// Before the queues whose addresses it holds.
    handles: Option<GpuBuffer>,
    queues: Vec<HostQueue>,
}

pub(crate) fn refused(e: impl ToString) -> Failure {
    Failure::Kernel(e.to_string())
}

impl RankGpu {
    pub(crate) fn new(plan: &KernelPlan, rank: usize) -> Result<RankGpu, Failure> {
        let made = made(rank);
        let gpu = EmulatedGpu::new(EmulatedGpuConfig {
            memory_bytes: plan.given_bytes() + SPARE,
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
        buffer
            .write(0, &first_of(plan, rank))
            .map_err(|e| made(&e))?;
        let own = plan.arguments.iter().filter_map(KernelArgument::own_bytes);
        let more = own.map(|bytes| gpu.alloc(bytes)).collect::<Result<_, _>>();
        Ok(RankGpu {
            more: more.map_err(|e| made(&e))?,
            gpu,
            buffer,
            _module: module,
            kernel,
        })
    }

    /// The kernel's name.
    pub(crate) fn kernel(&self) -> &str {
        self.kernel.name()
    }

    /// A node whose NIC reaches what the kernel was given, and peers the buffer. Returns the
    /// buffer's address and key, too.
    pub(crate) fn node(
        &self,
        plan: &KernelPlan,
        rank: usize,
        port: Box<dyn Port>,
    ) -> Result<(Node, RankMemory), Failure> {
        let node = Node::new(rank, &plan.cluster, port, self.gpu.memory(), None)?;
        let own = self.more.iter().map(|b| (b, Access::LOCAL));
        let mut part = None;
        for (buffer, access) in own.chain([(&self.buffer, Access::REMOTE)]) {
            let (va, bytes) = (buffer.va(), buffer.len());
            let table = self.gpu.page_table(va, bytes).map_err(|e| made(rank)(&e))?;
            let region = node.register(rank, &table, (va, bytes), access)?;
            part = Some(RankMemory {
                va,
                rkey: region.rkey,
            });
        }
        let part = part.ok_or_else(|| made(rank)(&"it has no buffer"))?;
        Ok((node, part))
    }

    /// Queues of its NIC for blocks.
    pub(crate) fn block_queues(
        &self,
        plan: &KernelPlan,
        rank: usize,
        node: &Node,
    ) -> Result<BlockQueues, Failure> {
        let made = made(rank);
        let one = |_| node.nic.create_queue(node.pd, QueueConfig::default());
        let queues = (0..plan.block_queues)
            .map(one)
            .collect::<Result<Vec<_>, _>>();
        let queues = queues.map_err(|e| made(&e))?;
        let handle = |queue: &HostQueue| KernelArg::from(queue.handle()).to_bytes();
        let bytes: Vec<u8> = queues.iter().flat_map(handle).collect();
        let handles = match bytes.len() as u64 {
            0 => None,
            len => Some(self.gpu.alloc(len).map_err(|e| made(&e))?),
        };
        if let Some(handles) = &handles {
            handles.write(0, &bytes).map_err(|e| made(&e))?;
        }
        Ok(BlockQueues { handles, queues })
    }

    /// The kernel with its arguments. `window`: the number of the buffers' window.
    pub(crate) fn launch(
        &self,
        plan: &KernelPlan,
        (rank, window): (usize, u16),
        (node, blocks): (&Node, &BlockQueues),
        output: Arc<dyn Output>,
    ) -> Result<SteppedKernel, Failure> {
        let parameters = self.kernel.parameters();
        if parameters.len() != plan.arguments.len() {
            return Err(Failure::Kernel(format!(
                "kernel `{}` has {} parameters, and {} arguments are given; an argument for each \
                 stands behind the kernel's name, and without any they are `comm buffer bytes`, for \
                 `(rb_comm comm, void *buffer, rb_u64 bytes)`",
                self.kernel(),
                parameters.len(),
                plan.arguments.len(),
            )));
        }
        let comm = CommHandle {
            queue: node.queue.handle(),
            comm: node.comm.session().0,
            rank: rank as u32,
            size: plan.cluster.ranks as u32,
            algo: Algorithm::Auto,
            algo_kinds: 0,
            wire: WireType::Same,
            block_queues: blocks.handles.as_ref().map_or(GpuVa(0), GpuBuffer::va),
            block_queue_count: blocks.queues.len() as u32,
        };
        let ranks = plan.cluster.ranks;
        let mut own = self.more.iter();
        let mut args = Vec::with_capacity(parameters.len());
        for (i, (argument, parameter)) in plan.arguments.iter().zip(&parameters).enumerate() {
            let place = argument.own_bytes().and_then(|_| own.next());
            let place = place.map_or(GpuVa(0), GpuBuffer::va);
            let arg = match *argument {
                KernelArgument::Comm => comm.into(),
                KernelArgument::Buffer => self.buffer.va().into(),
                KernelArgument::Zeros(_) => place.into(),
                KernelArgument::Stream(ring) => {
                    let log2 = ring.trailing_zeros();
                    StreamRef { va: place, log2 }.into()
                }
                KernelArgument::Bytes => number(self.buffer.len().into(), parameter.bytes),
                KernelArgument::Window => number(window.into(), parameter.bytes),
                KernelArgument::Rank => number(rank as i128, parameter.bytes),
                KernelArgument::Ranks => number(ranks as i128, parameter.bytes),
                KernelArgument::Next => number(((rank + 1) % ranks) as i128, parameter.bytes),
                KernelArgument::Before => {
                    number(((rank + ranks - 1) % ranks) as i128, parameter.bytes)
                }
                KernelArgument::Integer(n) => number(n, parameter.bytes),
                KernelArgument::Real(x) => match parameter.bytes {
                    4 => KernelArg::F32(x as f32),
                    _ => KernelArg::F64(x),
                },
            };
            if arg.size() != parameter.bytes as usize {
                return Err(Failure::Kernel(format!(
                    "parameter {} of kernel `{}` has {} bytes, and {argument:?} does not fit it",
                    i + 1,
                    self.kernel(),
                    parameter.bytes,
                )));
            }
            args.push(arg);
        }
        let seed = match plan.cluster.seed {
            0 => 0,
            seed => mixed(seed, rank as u64) | 1,
        };
        let launched = self
            .gpu
            .launch_stepped(&self.kernel, plan.shape, &args, seed, output);
        launched.map_err(refused)
    }

    /// What the kernel has left: the buffer, then memory that was zero, in the order of the
    /// arguments.
    pub(crate) fn left(&self, plan: &KernelPlan) -> Vec<Vec<u8>> {
        let own = plan.arguments.iter().filter(|a| a.own_bytes().is_some());
        let zeros = own.zip(&self.more);
        let zeros = zeros.filter(|(a, _)| matches!(a, KernelArgument::Zeros(_)));
        let all = [&self.buffer].into_iter().chain(zeros.map(|(_, b)| b));
        let contents = all.map(|buffer| {
            let mut bytes = vec![0; buffer.len() as usize];
            // Inside the buffer by its own length.
            let _ = buffer.read(0, &mut bytes);
            bytes
        });
        contents.collect()
    }
}

/// What is in a rank's buffer at first.
fn first_of(plan: &KernelPlan, rank: usize) -> Vec<u8> {
    match &plan.contents {
        Contents::Zeros => Vec::new(),
        Contents::Given(all) => all[rank].clone(),
        Contents::Seed => {
            let words = 0..plan.buffer_bytes.div_ceil(8);
            let words = words.map(|i| mixed(plan.cluster.seed ^ rank as u64, i));
            let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
            bytes.truncate(plan.buffer_bytes as usize);
            bytes
        }
    }
}

/// An integer as a parameter of so many bytes takes it; as 16 bytes, which none has, where it does
/// not fit.
fn number(n: i128, bytes: u32) -> KernelArg {
    let bits = 8 * bytes;
    let fits = matches!(bytes, 1 | 2 | 4 | 8) && n >= -(1 << (bits - 1)) && n < 1 << bits;
    let len = if fits { bytes as usize } else { 16 };
    KernelArg::Bytes(n.to_le_bytes()[..len].to_vec())
}

/// Makes the buffers of all ranks a window of their communicator; its number.
pub(crate) fn make_window(
    nodes: &[Arc<Node>],
    parts: &[RankMemory],
    bytes: u64,
) -> Result<u16, Failure> {
    let mut number = 0;
    for (rank, node) in nodes.iter().enumerate() {
        let made = made(rank);
        let granted = node.nic.grant_window(node.comm, node.pd);
        granted.map_err(|e| made(&e))?;
        let window = Window {
            pd: node.pd,
            bytes,
            ranks: parts.to_vec(),
        };
        let window = node.nic.create_window(node.comm, window);
        number = window.map_err(|e| made(&e))?;
    }
    Ok(number)
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
