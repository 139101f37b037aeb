//! Collectives of kernels: the communicator's handle for kernels, and a kernel that runs one
//! operation on a stream.
#![allow(unsafe_code)] // Launches the SDK's kernels.

use ringbell_nic_abi::queue::QueueHandle;
use ringbell_nic_abi::{Algorithm, CollectiveSpec, GpuVa, WireType};

use crate::{KernelArg, Launch, LaunchError, Stream};

/// A communicator as a kernel sees it: `rb_comm` of `ringbell_comm_handle.h`.
#[derive(Debug, Clone, Copy)]
pub struct CommHandle {
    /// Queue on which the kernel's operations are posted.
    pub queue: QueueHandle,
    /// The NIC's number of the communicator.
    pub comm: u32,
    /// Own rank.
    pub rank: u32,
    /// Ranks.
    pub size: u32,
    /// Default algorithm, for the collectives of `algo_kinds`.
    pub algo: Algorithm,
    /// Collectives that have the default algorithm: bit k for the one with code k.
    pub algo_kinds: u16,
    /// Default wire type.
    pub wire: WireType,
    /// Queues for blocks: a `rb_queue` each, in memory of the GPU.
    pub block_queues: GpuVa,
    /// How many; 0 without any.
    pub block_queue_count: u32,
}

impl From<CommHandle> for KernelArg {
    fn from(c: CommHandle) -> KernelArg {
        let mut bytes = KernelArg::from(c.queue).to_bytes();
        let defaults = u32::from(c.algo.code())
            | u32::from(c.wire.code()) << 8
            | u32::from(c.algo_kinds) << 16;
        for v in [c.comm, c.rank, c.size, defaults] {
            bytes.extend_from_slice(&v.to_ne_bytes());
        }
        bytes.extend_from_slice(&c.block_queues.0.to_ne_bytes());
        for v in [c.block_queue_count, 0] {
            bytes.extend_from_slice(&v.to_ne_bytes());
        }
        KernelArg::Bytes(bytes)
    }
}

/// One operation as a kernel is to run it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CollectiveLaunch {
    /// The operation. Its `after` is not used: a stream is in order by itself.
    pub spec: CollectiveSpec,
    /// Source buffer.
    pub src: GpuVa,
    /// Destination buffer.
    pub dst: GpuVa,
    /// Elements (per rank where the operation has a block per rank).
    pub count: u64,
    /// Root, or the peer of a send or receive.
    pub root: u32,
    /// Tag of a send or receive.
    pub tag: u32,
    /// Time-out in microseconds; 0: the queue's default.
    pub timeout_us: u32,
}

impl CollectiveLaunch {
    /// Queues the operation behind the stream's present work; `out` gets the `gpu_result` (24
    /// bytes). A captured operation must find zeros there, and keeps the first failure of all
    /// replays.
    ///
    /// # Errors
    /// [`LaunchError`]: the kernel cannot be launched.
    ///
    /// # Safety
    /// `comm` is a communicator's handle, and it and the 24 bytes at `out` live until the kernel
    /// has ended, and while a graph that captured it can be replayed.
    pub unsafe fn on(
        &self,
        stream: &Stream,
        comm: CommHandle,
        out: GpuVa,
    ) -> Result<Launch, LaunchError> {
        let s = &self.spec;
        // For a kernel 0 means the communicator's default.
        let (algo, wire) = (
            match s.algo {
                Algorithm::Auto => 0,
                algo => u32::from(algo.code()),
            },
            match s.wire {
                WireType::Same => 0,
                wire => u32::from(wire.code()),
            },
        );
        // SAFETY: the kernel's own parameters; the caller's contract. The NIC checks the buffers.
        unsafe {
            stream.launch(
                match stream.is_capturing() {
                    true => "rb_collective_replayed",
                    false => "rb_collective",
                },
                1,
                1,
                &[
                    comm.into(),
                    u32::from(s.kind.code()).into(),
                    self.src.into(),
                    self.dst.into(),
                    self.count.into(),
                    u32::from(s.dtype.code()).into(),
                    u32::from(s.op.code()).into(),
                    self.root.into(),
                    self.tag.into(),
                    algo.into(),
                    wire.into(),
                    self.timeout_us.into(),
                    out.into(),
                ],
            )
        }
    }
}
