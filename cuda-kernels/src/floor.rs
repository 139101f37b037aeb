//! Lower bounds of the machine without a NIC, against which measurements are held.
//!
//! A round trip of a word between a kernel and a host thread, and copies between host and GPU
//! memory.
#![allow(unsafe_code)] // A slice of memory that was allocated here by hand, for its alignment.
#![allow(clippy::disallowed_methods)] // Measures, and waits with a deadline.

use std::alloc::{alloc_zeroed, dealloc, handle_alloc_error, Layout};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ringbell_gtlb::Exposed;
use ringbell_nic_abi::{GpuVa, Status};

use crate::perf::PerfResult;
use crate::{Gpu, GpuError, LaunchError};

/// Page size of the host, by which drivers register memory.
const PAGE: usize = 4096;
/// Distance of the flags in words: they share no cache line, nor a pair of lines that a prefetcher
/// fetches.
const APART: usize = 32;

/// Why a lower bound could not be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FloorError {
    /// The GPU's driver does not register the host's memory.
    #[error("the GPU cannot reach memory of the host: {0}; `ringbell doctor` tells what the driver offers")]
    Expose(std::io::Error),
    /// The kernel's wait timed out, or it saw a word that was never written.
    #[error(
        "the kernel's flags failed after {trips} round trips: {status}, {wrong} wrong words; is the machine overloaded?"
    )]
    Flags {
        /// How the kernel ended.
        status: Status,
        /// Round trips that were made.
        trips: u64,
        /// Words that were not what was written.
        wrong: u64,
    },
    /// The thread that answers the kernel.
    #[error("cannot start a thread: {0}; raise `ulimit -u`")]
    Thread(std::io::Error),
    /// A copy brought back other bytes.
    #[error("a copy of {bytes} bytes to GPU memory and back changed them")]
    Copy {
        /// Bytes of the copy.
        bytes: u64,
    },
    /// Memory.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// Kernel.
    #[error(transparent)]
    Launch(#[from] LaunchError),
}

/// Zeroed memory in whole pages, which the GPU reaches as well.
struct ExposedPages {
    // Dropped before the memory is freed.
    exposed: Option<Exposed>,
    base: NonNull<u8>,
    layout: Layout,
}

impl ExposedPages {
    fn new(gpu: &Gpu, bytes: usize) -> Result<ExposedPages, FloorError> {
        let layout = Layout::from_size_align(bytes.max(1).next_multiple_of(PAGE), PAGE)
            .map_err(|e| FloorError::Expose(std::io::Error::other(e)))?;
        // SAFETY: the size is not zero.
        let at = unsafe { alloc_zeroed(layout) };
        let Some(base) = NonNull::new(at) else {
            handle_alloc_error(layout)
        };
        let mut shared = ExposedPages {
            exposed: None,
            base,
            layout,
        };
        let exposed = gpu.memory().expose(base, layout.size());
        shared.exposed = Some(exposed.map_err(FloorError::Expose)?);
        Ok(shared)
    }

    /// The GPU's address of the byte.
    fn va(&self, offset: usize) -> GpuVa {
        let base = self.exposed.as_ref().map_or(0, |e| e.va().0);
        GpuVa(base + offset as u64)
    }

    /// The word at an index.
    fn word(&self, index: usize) -> &AtomicU64 {
        assert!((index + 1) * 8 <= self.layout.size());
        // SAFETY: inside the allocation and aligned; atomic, because a kernel writes it as well.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().cast::<u64>().add(index)) }
    }

    /// All bytes, while no kernel uses them.
    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the allocation, borrowed for as long as `self`; initialised, because it was
        // zeroed.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.layout.size()) }
    }
}

impl Drop for ExposedPages {
    fn drop(&mut self) {
        self.exposed = None;
        // SAFETY: allocated with this layout; the GPU's mapping has ended.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

/// Round trips of a word between a kernel and a host thread over host memory, in nanoseconds of the
/// GPU's clock. No NIC can answer a doorbell faster.
///
/// # Errors
/// Memory that the GPU does not get, or a kernel that saw no answer within `timeout`.
pub fn flag_round_trips(
    gpu: &Gpu,
    warmup: u32,
    iterations: u32,
    timeout: Duration,
) -> Result<Vec<u64>, FloorError> {
    let flags = ExposedPages::new(gpu, 2 * APART * 8)?;
    let times = gpu.alloc(u64::from(iterations.max(1)) * 8)?;
    let result = gpu.alloc(PerfResult::BYTES)?;
    let timeout_us = u32::try_from(timeout.as_micros()).unwrap_or(u32::MAX);
    let args = [
        flags.va(0).into(),
        flags.va(APART * 8).into(),
        warmup.into(),
        iterations.into(),
        timeout_us.into(),
        (&times).into(),
        (&result).into(),
    ];
    let total = u64::from(warmup) + u64::from(iterations);
    let ended = AtomicBool::new(false);
    let done = std::thread::scope(|threads| -> Result<_, FloorError> {
        let (to_gpu, from_gpu) = (flags.word(0), flags.word(APART));
        let answering = std::thread::Builder::new()
            .spawn_scoped(threads, || answer(to_gpu, from_gpu, total, timeout, &ended))
            .map_err(FloorError::Thread)?;
        // The kernel's own time-outs end it; `timeout` of each round trip bounds them all.
        let patience = timeout * 2 + Duration::from_secs(60);
        // SAFETY: the kernel's own parameters, in memory that outlives it: its time-outs end it
        // before `patience`.
        let done = unsafe { gpu.launch("rb_floor_flag", 1, 1, &args) }
            .and_then(|launch| launch.wait(patience));
        ended.store(true, Ordering::Relaxed);
        // It returns at the latest when `timeout` has passed without a word.
        let _ = answering.join();
        Ok(done)
    });
    done??;
    let end = PerfResult::read(&result, 0)?;
    if end.status != Status::Ok || end.wrong > 0 {
        return Err(FloorError::Flags {
            status: end.status,
            trips: end.messages,
            wrong: end.wrong,
        });
    }
    let mut bytes = vec![0; iterations as usize * 8];
    times.read(0, &mut bytes)?;
    Ok(bytes
        .chunks_exact(8)
        .map(|w| u64::from_le_bytes(w.try_into().expect("chunks of 8")))
        .collect())
}

/// The host's side: each word is answered with itself.
fn answer(
    to_gpu: &AtomicU64,
    from_gpu: &AtomicU64,
    total: u64,
    timeout: Duration,
    ended: &AtomicBool,
) {
    let mut last = 0;
    let mut since = Instant::now();
    let mut turns = 0_u32;
    while last < total && !ended.load(Ordering::Relaxed) {
        // Acquire: pairs with the kernel's release store.
        let seen = from_gpu.load(Ordering::Acquire);
        if seen != last {
            // Release: pairs with the kernel's acquire load.
            to_gpu.store(seen, Ordering::Release);
            last = seen;
            turns = 0;
            continue;
        }
        std::hint::spin_loop();
        turns += 1;
        if turns == 1 {
            since = Instant::now();
        }
        if turns.is_multiple_of(4096) {
            if since.elapsed() > timeout {
                return;
            }
            std::thread::yield_now();
        }
    }
}

/// Times of a copy of `bytes` bytes from pinned host memory to GPU memory, and back: the best of
/// `rounds`, in nanoseconds. Every byte is compared.
///
/// # Errors
/// Not enough memory, or bytes that changed.
pub fn pinned_copies(gpu: &Gpu, bytes: u64, rounds: u32) -> Result<(u64, u64), FloorError> {
    let len = bytes as usize;
    let mut host = ExposedPages::new(gpu, len)?;
    let mut back = ExposedPages::new(gpu, len)?;
    let memory = gpu.alloc(bytes.max(1))?;
    let (mut to, mut from) = (u64::MAX, u64::MAX);
    for round in 0..rounds.max(1) {
        let data = &mut host.bytes()[..len];
        // Other bytes in each round: words that differ by place and round.
        for (i, word) in data.chunks_mut(8).enumerate() {
            let v = (i as u64 + 1)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .wrapping_add(round.into());
            word.copy_from_slice(&v.to_le_bytes()[..word.len()]);
        }
        let start = Instant::now();
        memory.write(0, data)?;
        to = to.min(start.elapsed().as_nanos() as u64);
        let start = Instant::now();
        memory.read(0, &mut back.bytes()[..len])?;
        from = from.min(start.elapsed().as_nanos() as u64);
        if host.bytes()[..len] != back.bytes()[..len] {
            return Err(FloorError::Copy { bytes });
        }
    }
    Ok((to, from))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EmulatedGpu, EmulatedGpuConfig};

    fn gpu() -> EmulatedGpu {
        EmulatedGpu::new(EmulatedGpuConfig {
            memory_bytes: 8 << 20,
            ..EmulatedGpuConfig::default()
        })
        .expect("an emulated GPU")
    }

    #[test]
    fn every_round_trip_has_a_time() {
        let gpu = gpu();
        let times = flag_round_trips(&gpu, 10, 100, Duration::from_secs(60)).unwrap();
        assert_eq!(times.len(), 100);
        assert!(times.iter().all(|t| *t < 60_000_000_000));
    }

    #[test]
    fn a_kernel_without_an_answer_gives_up() {
        let gpu = gpu();
        let (flags, result) = (gpu.alloc(4096).unwrap(), gpu.alloc(64).unwrap());
        flags.write(0, &[0; 4096]).unwrap();
        let args = [
            flags.va().into(),
            GpuVa(flags.va().0 + 1024).into(),
            0_u32.into(),
            5_u32.into(),
            20_000_u32.into(),
            GpuVa(flags.va().0 + 2048).into(),
            (&result).into(),
        ];
        // SAFETY: the kernel's own parameters, and memory that outlives it.
        let launch = unsafe { gpu.launch("rb_floor_flag", 1, 1, &args) }.unwrap();
        launch.wait(Duration::from_secs(60)).unwrap();
        let end = PerfResult::read(&result, 0).unwrap();
        assert_eq!(end.status, Status::TimedOut);
    }

    #[test]
    fn copies_are_compared_and_timed() {
        let gpu = gpu();
        for bytes in [1, 1000, 100_003] {
            let (to, from) = pinned_copies(&gpu, bytes, 2).unwrap();
            assert!(to < u64::MAX && from < u64::MAX);
        }
    }
}
