//! Symmetric memory: the same number of elements on every rank, for one-sided operations by rank
//! and offset.

use ringbell_cuda_kernels::KernelArg;
use ringbell_nic_abi::{GpuVa, Rkey};
use ringbell_nic_core::{RankMemory, Window};

use super::{CollectiveError, Communicator};
use crate::buffer::Plain;
use crate::kernel::{Kept, KernelParam};
use crate::DeviceBuffer;

/// Bit of the tag of the round in which ranks exchange their keys; no other round of a communicator
/// has it.
const TAG: u64 = 1 << 62;
/// Bytes that a rank tells the others: requested size, address and key; size 0 when it has no
/// memory.
const PART: usize = 20;

/// This rank's part of memory that every rank of a communicator has allocated together: a window. A
/// kernel puts to another rank's part by `gpu_put(queue, gpu_window(comm, window, rank, offset),
/// ...)`, without an address of it.
///
/// Dropping it takes the memory away at once: operations of other ranks on it fail then with
/// `BAD_KEY` or `REGION_FREED`. So let the ranks meet before, by [`Communicator::barrier`].
#[derive(Debug)]
pub struct SymmetricBuffer<T = u8> {
    buffer: DeviceBuffer<T>,
    window: u16,
    /// It lives as long as its window.
    comm: Communicator,
}

impl<T> SymmetricBuffer<T> {
    /// Number of the window: the same on every rank, for `gpu_window`.
    pub fn window(&self) -> u32 {
        self.window.into()
    }

    /// The part on this rank.
    pub fn buffer(&self) -> &DeviceBuffer<T> {
        &self.buffer
    }

    /// Its communicator.
    pub fn communicator(&self) -> &Communicator {
        &self.comm
    }
}

impl<T> std::ops::Deref for SymmetricBuffer<T> {
    type Target = DeviceBuffer<T>;

    fn deref(&self) -> &DeviceBuffer<T> {
        &self.buffer
    }
}

/// The address of its first element on this rank.
impl<T> KernelParam for &SymmetricBuffer<T> {
    fn value(&self) -> KernelArg {
        (&self.buffer).value()
    }

    fn kept(&self) -> Option<Kept> {
        (&self.buffer).kept()
    }
}

impl<T> Drop for SymmetricBuffer<T> {
    fn drop(&mut self) {
        let backend = self.comm.nic().backend();
        if let Err(error) = backend.free_window(self.comm.id(), self.window) {
            tracing::debug!(%error, "a window was gone before its memory");
        }
    }
}

impl Communicator {
    /// Allocates zeroed GPU memory for `len` elements on every rank, which kernels of all ranks may
    /// put to, get from and update by rank and offset. Every rank calls it with the same `len`, in
    /// the same order as its other windows.
    ///
    /// # Errors
    /// [`CollectiveError::Symmetric`] names a rank with another size or without memory; all ranks
    /// get an error then.
    pub fn alloc_symmetric<T: Plain>(
        &self,
        len: u64,
    ) -> Result<SymmetricBuffer<T>, CollectiveError> {
        let made = self.nic().alloc_remote::<T>(len);
        let bytes = len.saturating_mul(size_of::<T>() as u64);
        let mut part = [0; PART];
        if let Ok(buffer) = &made {
            // Before any rank can know the key.
            let backend = self.nic().backend();
            backend.grant_window(self.id(), buffer.region().pd)?;
            part[..8].copy_from_slice(&bytes.to_le_bytes());
            part[8..16].copy_from_slice(&buffer.va().0.to_le_bytes());
            part[16..].copy_from_slice(&buffer.region().rkey.0.to_le_bytes());
        }
        // Also without memory: the others must not wait for this rank.
        let parts = self.exchange(TAG, &part)?;
        let buffer = made?;
        let mut ranks = Vec::with_capacity(parts.len());
        for (rank, part) in parts.iter().enumerate() {
            let word = |at: usize| {
                let bytes = part.get(at..at + 8).and_then(|b| b.try_into().ok());
                u64::from_le_bytes(bytes.unwrap_or_default())
            };
            let key = part.get(16..PART).and_then(|b| b.try_into().ok());
            let key = u32::from_le_bytes(key.unwrap_or_default());
            if word(0) != bytes {
                return Err(CollectiveError::Symmetric {
                    rank: rank as u32,
                    has: word(0),
                    wanted: bytes,
                });
            }
            ranks.push(RankMemory {
                va: GpuVa(word(8)),
                rkey: Rkey(key),
            });
        }
        let window = Window {
            pd: buffer.region().pd,
            bytes,
            ranks,
        };
        let window = self.nic().backend().create_window(self.id(), window)?;
        Ok(SymmetricBuffer {
            buffer,
            window,
            comm: self.clone(),
        })
    }
}
