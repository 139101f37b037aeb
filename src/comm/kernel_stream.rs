//! [`KernelStream`]: a ring that a kernel pushes to or pops from, in place of a buffer.

use std::sync::Arc;

use ringbell_cuda_kernels::KernelArg;
use ringbell_gtlb::Exposed;
use ringbell_nic_abi::kernel_stream::{DATA_AT, MAX_LOG2, MIN_LOG2};
use ringbell_nic_abi::StreamRef;
use ringbell_nic_core::{HostBuffer, MemoryError};

use crate::kernel::{Kept, KernelParam};
use crate::span::Span;
use crate::Nic;

/// A small ring between one kernel and the NIC, as source or destination of an operation: the
/// kernel pushes values while it computes them, or pops them as they come, with no buffer between
/// (ACCL+ Listing 2).
///
/// Pass it to a kernel as an argument of type `rb_stream_handle` (`ringbell_stream.cuh`), and to
/// the constructors of [`Operation`](super::Operation) where they take a buffer. It lies in host
/// memory, which the NIC reads without crossing the GPU's bus, and goes in one direction. One
/// kernel at a time uses its end; operations use it one after the other, in the order in which they
/// were posted.
///
/// ```
/// # use ringbell::{Nic, Operation, ReduceOp};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let nic = Nic::builder().ip("10.9.9.11/24").open()?;
/// let (computed, sums) = (nic.kernel_stream(16 << 10)?, nic.kernel_stream(16 << 10)?);
/// let step = Operation::all_reduce::<f32>(&computed, &sums, 1 << 20, ReduceOp::Sum);
/// # let _ = step;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct KernelStream {
    ring: Arc<Ring>,
    stream: StreamRef,
}

/// The memory of a stream, which kernels keep until they have ended.
#[derive(Debug)]
pub(crate) struct Ring {
    /// The GPU's mapping. First, because the memory must outlive it.
    _exposed: Exposed,
    memory: HostBuffer,
}

impl Nic {
    /// Allocates an empty stream whose ring holds `bytes`, rounded up to a power of two. It must
    /// hold the bytes that a communicator moves at once (`CollectiveSettings::stream_bytes`, 4 KiB
    /// unless set). A ring a few times that long lets kernel and NIC work at the same time.
    ///
    /// # Errors
    /// [`MemoryError`]: the system has no memory, a limit of the NIC was reached, or the GPU cannot reach it.
    pub fn kernel_stream(&self, bytes: u32) -> Result<KernelStream, MemoryError> {
        let log2 = u64::from(bytes).max(1).next_power_of_two().trailing_zeros();
        let log2 = log2.clamp(MIN_LOG2, MAX_LOG2);
        let memory = self.alloc_host((DATA_AT + (1 << log2)) as usize)?;
        let stream = StreamRef {
            va: memory.va(),
            log2,
        };
        let len = memory.len();
        let system = |source| MemoryError::System { len, source };
        let exposed = memory.expose().map_err(system)?;
        if exposed.va() != stream.va {
            // A kernel names the stream by the address in its own address space.
            return Err(system(std::io::Error::other(format!(
                "the GPU sees pinned host memory at {} instead of {}: it cannot share a stream with the NIC",
                exposed.va(),
                stream.va
            ))));
        }
        let ring = Arc::new(Ring {
            _exposed: exposed,
            memory,
        });
        Ok(KernelStream { ring, stream })
    }
}

impl KernelStream {
    /// Bytes that the ring holds.
    pub fn capacity(&self) -> u64 {
        self.stream.capacity()
    }

    pub(crate) fn ring(&self) -> &Arc<Ring> {
        &self.ring
    }

    /// Its name in descriptors and kernels.
    pub fn handle(&self) -> StreamRef {
        self.stream
    }

    /// Empties it, and makes it usable again after an operation on it has failed. No operation and
    /// no kernel may be using it: their results would be undefined.
    pub fn reset(&self) {
        let fits = self.ring.memory.write(0, &[0; DATA_AT as usize]);
        debug_assert!(fits.is_ok(), "allocated with room for more than that");
    }
}

impl From<&KernelStream> for Span {
    fn from(s: &KernelStream) -> Span {
        Span::of_stream(s.stream)
    }
}

/// `rb_stream` of ringbell_stream.cuh.
impl KernelParam for &KernelStream {
    fn value(&self) -> KernelArg {
        self.handle().into()
    }

    fn kept(&self) -> Option<Kept> {
        Some(Box::new(self.ring().clone()))
    }
}
