//! [`SharedMemory`]: a name for GPU memory that another process can open.

use std::fmt;

use crate::bytes::word;

/// Marks the text of a handle, and its version.
const MAGIC: u64 = 0x0131_6d65_6d2d_6272; // "rb-mem1\x01"

/// A part of an allocation of a real GPU, by a name that another process of the same machine opens
/// (`CudaGpu::open_shared`). Plain bytes, which the processes send by any means.
///
/// The driver's handle names a whole allocation, and what a process opens it may read and write
/// whole: share memory only with those that you trust with all of it. The driver may put
/// allocations that are no multiple of 2 MiB beside others in one block (CUDA driver API,
/// `cuMemAlloc`), which is then shared with them.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SharedMemory {
    /// What `cuIpcGetMemHandle` gave for the allocation.
    pub(crate) handle: [u8; 64],
    /// UUID of the GPU; zeros where the driver tells none.
    pub(crate) gpu: [u8; 16],
    /// Process number of the owner, for messages.
    pub(crate) pid: u32,
    /// A number that this process has chosen at random: process numbers are used again.
    pub(crate) process: u64,
    /// The driver's number of the allocation, which it never gives twice in one process.
    pub(crate) identity: u64,
    /// Where the part begins in the allocation, and its bytes.
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

impl fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "SharedMemory({} bytes from {} of allocation {} of process {})",
            self.len, self.offset, self.identity, self.pid
        )
    }
}

/// Not the bytes of a [`SharedMemory`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("these {got} bytes name no shared GPU memory; pass the {} bytes of SharedMemory::to_bytes of the same version of Ringbell", SharedMemory::BYTES)]
pub struct NotShared {
    /// Bytes that were given.
    pub got: usize,
}

impl SharedMemory {
    /// Bytes of [`SharedMemory::to_bytes`].
    pub const BYTES: usize = 128;

    /// Bytes of the part.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Never: an empty part is refused.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of the process that has the memory.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// As bytes, to be sent.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        let words = [
            MAGIC,
            self.pid.into(),
            self.process,
            self.identity,
            self.offset,
            self.len,
        ];
        for (at, word) in out.chunks_exact_mut(8).zip(words) {
            at.copy_from_slice(&word.to_le_bytes());
        }
        out[48..64].copy_from_slice(&self.gpu);
        out[64..].copy_from_slice(&self.handle);
        out
    }

    /// From the bytes that another process has sent. What they name is looked at when it is opened.
    ///
    /// # Errors
    /// [`NotShared`].
    pub fn from_bytes(bytes: &[u8]) -> Result<SharedMemory, NotShared> {
        let refuse = NotShared { got: bytes.len() };
        let b: &[u8; Self::BYTES] = bytes.try_into().map_err(|_| refuse)?;
        let word = |i: usize| word(b, i * 8);
        let (mut gpu, mut handle) = ([0; 16], [0; 64]);
        gpu.copy_from_slice(&b[48..64]);
        handle.copy_from_slice(&b[64..]);
        let pid = u32::try_from(word(1)).map_err(|_| refuse)?;
        let (offset, len) = (word(4), word(5));
        if word(0) != MAGIC || len == 0 || offset.checked_add(len).is_none() {
            return Err(refuse);
        }
        Ok(SharedMemory {
            handle,
            gpu,
            pid,
            process: word(2),
            identity: word(3),
            offset,
            len,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared() -> SharedMemory {
        SharedMemory {
            handle: std::array::from_fn(|i| i as u8 ^ 0x5a),
            gpu: std::array::from_fn(|i| 200 + i as u8),
            pid: u32::MAX - 3,
            process: 0x0102_0304_0506_0708,
            identity: 77,
            offset: 4097,
            len: 12_345,
        }
    }

    #[test]
    fn every_field_survives_its_bytes() {
        assert_eq!(SharedMemory::from_bytes(&shared().to_bytes()), Ok(shared()));
    }

    #[test]
    fn other_bytes_are_refused() {
        let good = shared().to_bytes();
        assert!(SharedMemory::from_bytes(&good[..127]).is_err());
        assert!(SharedMemory::from_bytes(&[0; 128]).is_err());
        for (at, value) in [(0, 0), (12, 1), (40, 0)] {
            // The magic, a process number of more than 32 bits, a length of 0.
            let mut bad = good;
            bad[at] = value;
            if at == 40 {
                bad[40..48].fill(0);
            }
            assert!(SharedMemory::from_bytes(&bad).is_err(), "byte {at}");
        }
        let mut wraps = good;
        wraps[32..48].fill(0xff);
        assert!(SharedMemory::from_bytes(&wraps).is_err());
    }
}
