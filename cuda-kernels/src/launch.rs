//! Shape, arguments and errors of a kernel launch.

use ringbell_nic_abi::queue::QueueHandle;
use ringbell_nic_abi::{GpuVa, StreamRef};

/// Extent of a grid (in blocks) or of a block (in lanes).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dim3 {
    /// Along x, at least 1.
    pub x: u32,
    /// Along y, at least 1.
    pub y: u32,
    /// Along z, at least 1.
    pub z: u32,
}

impl Dim3 {
    /// One block, or one lane.
    pub const ONE: Dim3 = Dim3 { x: 1, y: 1, z: 1 };

    /// `x` along the first axis.
    pub const fn x(x: u32) -> Dim3 {
        Dim3 { x, y: 1, z: 1 }
    }

    /// Product of the extents.
    pub const fn count(self) -> u64 {
        self.x as u64 * self.y as u64 * self.z as u64
    }
}

impl From<u32> for Dim3 {
    fn from(x: u32) -> Dim3 {
        Dim3::x(x)
    }
}

impl From<(u32, u32, u32)> for Dim3 {
    fn from((x, y, z): (u32, u32, u32)) -> Dim3 {
        Dim3 { x, y, z }
    }
}

/// Extents of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchShape {
    /// Blocks.
    pub grid: Dim3,
    /// Lanes of a block.
    pub block: Dim3,
    /// Bytes of a block's dynamic shared memory (`extern __shared__`). `None`: on an emulated GPU
    /// what the kernel's own leaves of 48 KiB, on a real one none.
    pub dynamic_shared: Option<u32>,
}

impl LaunchShape {
    /// Without a wish for dynamic shared memory.
    pub fn new(grid: impl Into<Dim3>, block: impl Into<Dim3>) -> LaunchShape {
        LaunchShape {
            grid: grid.into(),
            block: block.into(),
            dynamic_shared: None,
        }
    }
}

/// Most bytes of dynamic shared memory, as an H100 has them (CUDA C++ Programming Guide, "Compute
/// Capability 9.0").
const MOST_SHARED: u32 = 227 << 10;

/// Checks shape and arguments of a launch against a kernel's signature.
pub(crate) fn check(
    name: &str,
    arg_bytes: &[u32],
    max_threads: u64,
    shape: &LaunchShape,
    args: &[KernelArg],
) -> Result<(), LaunchError> {
    check_shape(name, max_threads, shape)?;
    let kernel = || name.to_owned();
    if args.len() != arg_bytes.len() {
        return Err(LaunchError::ArgumentCount {
            kernel: kernel(),
            expected: arg_bytes.len(),
            given: args.len(),
        });
    }
    for (index, (a, want)) in args.iter().zip(arg_bytes).enumerate() {
        if a.size() != *want as usize {
            return Err(LaunchError::ArgumentSize {
                kernel: kernel(),
                index,
                expected: *want as usize,
                given: a.size(),
            });
        }
    }
    Ok(())
}

/// Checks what every kernel can have.
pub(crate) fn check_shape(
    name: &str,
    max_threads: u64,
    shape: &LaunchShape,
) -> Result<(), LaunchError> {
    let (blocks, lanes) = (shape.grid.count(), shape.block.count());
    if blocks == 0 || lanes == 0 || lanes > max_threads {
        return Err(LaunchError::Shape {
            kernel: name.to_owned(),
            grid: blocks,
            lanes,
        });
    }
    let asked = shape.dynamic_shared.unwrap_or(0);
    if asked > MOST_SHARED {
        return Err(LaunchError::SharedMemory {
            kernel: name.to_owned(),
            asked,
            most: MOST_SHARED,
        });
    }
    Ok(())
}

/// One kernel argument, passed by value.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum KernelArg {
    /// `uint32_t`, `unsigned`.
    U32(u32),
    /// `uint64_t`, `size_t`.
    U64(u64),
    /// `int`.
    I32(i32),
    /// `int64_t`.
    I64(i64),
    /// `float`.
    F32(f32),
    /// `double`.
    F64(f64),
    /// Any pointer into GPU memory.
    Ptr(GpuVa),
    /// `rb_queue`.
    Queue(QueueHandle),
    /// Any other trivially copyable structure, as its bytes.
    Bytes(Vec<u8>),
}

impl KernelArg {
    /// Size in bytes, as the kernel's signature must have it.
    pub fn size(&self) -> usize {
        match self {
            KernelArg::U32(_) | KernelArg::I32(_) | KernelArg::F32(_) => 4,
            KernelArg::U64(_) | KernelArg::I64(_) | KernelArg::F64(_) | KernelArg::Ptr(_) => 8,
            KernelArg::Queue(_) => size_of::<QueueHandle>(),
            KernelArg::Bytes(b) => b.len(),
        }
    }

    /// The bytes that a kernel sees: to put a structure, or an array of queues, into GPU memory.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.size());
        self.write_to(&mut out);
        out
    }

    /// Appends the argument's bytes.
    pub(crate) fn write_to(&self, out: &mut Vec<u8>) {
        match self {
            KernelArg::U32(v) => out.extend_from_slice(&v.to_ne_bytes()),
            KernelArg::I32(v) => out.extend_from_slice(&v.to_ne_bytes()),
            KernelArg::F32(v) => out.extend_from_slice(&v.to_ne_bytes()),
            KernelArg::U64(v) => out.extend_from_slice(&v.to_ne_bytes()),
            KernelArg::I64(v) => out.extend_from_slice(&v.to_ne_bytes()),
            KernelArg::F64(v) => out.extend_from_slice(&v.to_ne_bytes()),
            KernelArg::Ptr(v) => out.extend_from_slice(&v.0.to_ne_bytes()),
            KernelArg::Bytes(b) => out.extend_from_slice(b),
            KernelArg::Queue(q) => {
                // Field by field in the order of the structure, which has no padding.
                for v in [q.sq, q.cq, q.released, q.tail, q.doorbell, q.bar] {
                    out.extend_from_slice(&v.to_ne_bytes());
                }
                for v in [
                    q.depth_log2,
                    q.queue,
                    q.default_timeout_us,
                    q.silent_grace_us,
                ] {
                    out.extend_from_slice(&v.to_ne_bytes());
                }
                for v in [q.own, q.own_next, q.own_oldest, q.reserved] {
                    out.extend_from_slice(&v.to_ne_bytes());
                }
            }
        }
    }
}

macro_rules! from {
    ($($ty:ty => $Var:ident),+ $(,)?) => {
        $(impl From<$ty> for KernelArg { fn from(v: $ty) -> KernelArg { KernelArg::$Var(v) } })+
    };
}
/// `rb_stream_handle` of ringbell_stream.cuh.
impl From<StreamRef> for KernelArg {
    fn from(s: StreamRef) -> KernelArg {
        KernelArg::U64(s.word())
    }
}

from!(u32 => U32, u64 => U64, i32 => I32, i64 => I64, f32 => F32, f64 => F64, GpuVa => Ptr, QueueHandle => Queue);

/// Arguments laid out for a kernel's `void **args`: aligned storage and the offset of each.
#[derive(Debug)]
pub(crate) struct ArgBlock {
    /// 16-byte units, so that every argument is aligned.
    pub(crate) storage: Vec<u128>,
    /// Offset of each argument in bytes.
    pub(crate) offsets: Vec<usize>,
}

impl ArgBlock {
    pub(crate) fn new(args: &[KernelArg]) -> ArgBlock {
        let mut bytes = Vec::new();
        let mut offsets = Vec::with_capacity(args.len());
        for a in args {
            bytes.resize(bytes.len().next_multiple_of(16), 0);
            offsets.push(bytes.len());
            a.write_to(&mut bytes);
        }
        bytes.resize(bytes.len().next_multiple_of(16).max(16), 0);
        let storage = bytes
            .chunks_exact(16)
            .map(|c| u128::from_ne_bytes(c.try_into().expect("chunks of 16")))
            .collect();
        ArgBlock { storage, offsets }
    }
}

/// The kind of error that ended a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// An access outside of every memory that the kernel may use.
    Access,
    /// An access that is not aligned to its size.
    Misaligned,
    /// `assert` did not hold.
    Assertion,
    /// `__trap()`.
    Trap,
    /// The kernel's code could not be compiled.
    Code,
    /// Anything else: a divergent barrier, or an error of which the driver says no more.
    Other,
}

/// Why a kernel did not run to its end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// No loaded module has a kernel of that name.
    #[error("no kernel named `{name}`; is its module loaded, and the kernel `extern \"C\"`? known: {known}")]
    UnknownKernel {
        /// The name asked for.
        name: String,
        /// Names of all loaded kernels.
        known: String,
    },
    /// Wrong number of arguments.
    #[error("kernel `{kernel}` takes {expected} arguments, not {given}")]
    ArgumentCount {
        /// Kernel.
        kernel: String,
        /// Arguments in its signature.
        expected: usize,
        /// Arguments given.
        given: usize,
    },
    /// An argument has the wrong size.
    #[error("argument {index} of kernel `{kernel}` has {expected} bytes, not {given}")]
    ArgumentSize {
        /// Kernel.
        kernel: String,
        /// Index from 0.
        index: usize,
        /// Bytes in its signature.
        expected: usize,
        /// Bytes given.
        given: usize,
    },
    /// The shape is empty or the block too large.
    #[error("kernel `{kernel}` cannot run as {grid} blocks of {lanes} lanes; a block has 1 to 1,024 lanes and a grid at least one block")]
    Shape {
        /// Kernel.
        kernel: String,
        /// Blocks.
        grid: u64,
        /// Lanes per block.
        lanes: u64,
    },
    /// More dynamic shared memory than a block can have.
    #[error("kernel `{kernel}` cannot have {asked} bytes of dynamic shared memory; a block has {most} at most")]
    SharedMemory {
        /// Kernel.
        kernel: String,
        /// Bytes asked for.
        asked: u32,
        /// Most bytes.
        most: u32,
    },
    /// It still runs. The launch goes on; wait again, or let the kernel's own time-outs end it.
    #[error("kernel `{kernel}` still runs after {waited_ms} ms; it goes on running{threads}")]
    TimedOut {
        /// Kernel.
        kernel: String,
        /// How long was waited.
        waited_ms: u64,
        /// Where its threads stand and what they wait for, in lines that begin with a line break.
        /// Empty if the GPU cannot say.
        threads: String,
    },
    /// It ended with an error: a divergent barrier, a trap.
    #[error("kernel `{kernel}` failed: {reason}")]
    Failed {
        /// Kernel.
        kernel: String,
        /// What kind of error it was.
        failure: Failure,
        /// What happened, and in which block.
        reason: String,
    },
    /// An earlier operation of the same stream failed, so this one was not run.
    #[error("not run: an earlier operation of the stream failed: {cause}")]
    StreamFailed {
        /// The earlier failure.
        cause: Box<LaunchError>,
    },
    /// The GPU refused, or is lost.
    #[error("kernel `{kernel}`: {source}")]
    Device {
        /// Kernel, or `event`.
        kernel: String,
        /// What the driver said.
        #[source]
        source: crate::cuda_error::CudaError,
    },
    /// It was captured: a graph runs it, and tells how it ended.
    #[error("`{kernel}` was captured, not run; launch the graph and wait for that")]
    Captured {
        /// Kernel.
        kernel: String,
    },
    /// A capture went wrong, or something was asked that a stream which captures cannot do.
    #[error("the stream's capture: {why}")]
    Capture {
        /// What, and what to do.
        why: &'static str,
    },
    /// This GPU's streams cannot do it.
    #[error("this GPU has no {what}; ask before, and launch a kernel instead")]
    Unsupported {
        /// What it lacks.
        what: &'static str,
    },
    /// No thread could be started.
    #[error("cannot start a thread for the emulated GPU: {reason}; lower max_threads or raise the limit (ulimit -u)")]
    NoThread {
        /// The system's message.
        reason: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_argument_has_the_layout_of_the_structure() {
        let q = QueueHandle {
            sq: 1,
            cq: 2,
            released: 3,
            tail: 4,
            doorbell: 5,
            bar: 6,
            depth_log2: 7,
            queue: 8,
            default_timeout_us: 9,
            silent_grace_us: 10,
            own: 11,
            own_next: 12,
            own_oldest: 13,
            reserved: 14,
        };
        let mut bytes = Vec::new();
        KernelArg::Queue(q).write_to(&mut bytes);
        assert_eq!(bytes.len(), QueueHandle::LAYOUT.size);
        for (i, f) in QueueHandle::LAYOUT.fields.iter().enumerate() {
            assert_eq!(bytes[f.offset], i as u8 + 1, "{}", f.name);
        }
    }

    #[test]
    fn arguments_are_aligned() {
        let b = ArgBlock::new(&[
            1u32.into(),
            2u64.into(),
            KernelArg::Bytes(vec![7; 17]),
            3u32.into(),
        ]);
        assert_eq!(b.offsets, [0, 16, 32, 64]);
        assert_eq!(b.storage[1] as u64, 2);
        assert_eq!(b.storage[4] as u32, 3);
    }
}
