//! Result cells: where kernels write how an operation ended.
//!
//! All cells are in one allocation, because freeing memory of a real GPU waits for its kernels, and
//! one of them may be waiting for the freeing thread.

use std::sync::{Arc, Mutex, MutexGuard};

use ringbell_nic_abi::{GpuVa, SessionId, Status};

use crate::bytes::word;
use crate::locks::{exclusive, lock};
use crate::{Gpu, GpuBuffer, GpuError, KernelArg, Launch};

/// Bytes of `gpu_result`.
const CELL: u64 = 24;

/// How an operation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// Status.
    pub status: Status,
    /// Session of a new socket; 0 for other operations.
    pub session: SessionId,
    /// Bytes moved; for an accepted connection the peer as ip << 16 | port.
    pub bytes: u64,
    /// Detail word.
    pub detail: u64,
}

/// Cells of 24 bytes in GPU memory, handed out one by one.
#[derive(Debug)]
pub struct ResultCells {
    buffer: GpuBuffer,
    count: usize,
    state: Mutex<CellsState>,
}

#[derive(Debug)]
struct CellsState {
    free: Vec<u64>,
    /// Dropped while a kernel could still write them: free once it has ended.
    unfinished: Vec<(u64, Launch)>,
}

impl ResultCells {
    /// Memory for `count` results.
    ///
    /// # Errors
    /// [`GpuError`]: no room.
    pub fn new(gpu: &Gpu, count: usize) -> Result<Arc<ResultCells>, GpuError> {
        Ok(Arc::new(ResultCells {
            buffer: gpu.alloc(count as u64 * CELL)?,
            count,
            state: Mutex::new(CellsState {
                free: (0..count as u64).rev().collect(),
                unfinished: Vec::new(),
            }),
        }))
    }

    fn state(&self) -> MutexGuard<'_, CellsState> {
        lock(&self.state)
    }

    /// Number of cells.
    pub fn count(&self) -> usize {
        self.count
    }

    /// A free cell, if there is one.
    pub fn take(self: &Arc<ResultCells>) -> Option<ResultCell> {
        let mut s = self.state();
        if s.free.is_empty() {
            let unfinished = std::mem::take(&mut s.unfinished);
            for (index, launch) in unfinished {
                match launch.poll() {
                    Some(_) => s.free.push(index),
                    None => s.unfinished.push((index, launch)),
                }
            }
        }
        let index = s.free.pop()?;
        Some(ResultCell {
            cells: self.clone(),
            index,
            last: Mutex::new(None),
        })
    }
}

/// One cell; free again when it was dropped and its last kernel has ended.
#[derive(Debug)]
pub struct ResultCell {
    cells: Arc<ResultCells>,
    index: u64,
    /// The last kernel that writes it.
    last: Mutex<Option<Launch>>,
}

impl ResultCell {
    /// Its address.
    pub fn va(&self) -> GpuVa {
        GpuVa(self.cells.buffer.va().0 + self.index * CELL)
    }

    /// As an argument of a kernel.
    pub fn arg(&self) -> KernelArg {
        KernelArg::Ptr(self.va())
    }

    /// Names the last kernel that writes it.
    pub fn used_by(&self, launch: &Launch) {
        *lock(&self.last) = Some(launch.clone());
    }

    /// Resets it to success. No kernel may be writing it.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn clear(&self) -> Result<(), GpuError> {
        self.cells
            .buffer
            .write(self.index * CELL, &[0; CELL as usize])
    }

    /// The result that the kernel has written.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn read(&self) -> Result<Outcome, GpuError> {
        let mut b = [0u8; CELL as usize];
        self.cells.buffer.read(self.index * CELL, &mut b)?;
        let word = |at| word(&b, at);
        Ok(Outcome {
            // An unknown code cannot come from our own header; silent is the safe reading.
            status: Status::from_code(word(0) as u8).unwrap_or(Status::NicSilent),
            session: SessionId((word(0) >> 32) as u32),
            bytes: word(8),
            detail: word(16),
        })
    }
}

impl Drop for ResultCell {
    fn drop(&mut self) {
        let last = exclusive(&mut self.last).take();
        let mut s = self.cells.state();
        match last {
            Some(launch) if launch.poll().is_none() => s.unfinished.push((self.index, launch)),
            _ => s.free.push(self.index),
        }
    }
}
