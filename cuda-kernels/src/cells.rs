//! Where kernels write how an operation ended: cells of one allocation, handed out and taken back without
//! asking the GPU for memory. (Freeing memory of a real GPU waits for its kernels, and one of those may be
//! waiting for what the thread that frees does next.)

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringbell_nic_abi::{GpuVa, SessionId, Status};

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
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    free: Vec<u64>,
    /// Dropped while a kernel still had them to write: free once it has ended.
    limbo: Vec<(u64, Launch)>,
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
            state: Mutex::new(State {
                free: (0..count as u64).rev().collect(),
                limbo: Vec::new(),
            }),
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// A free cell, if there is one.
    pub fn take(self: &Arc<ResultCells>) -> Option<ResultCell> {
        let mut s = self.state();
        if s.free.is_empty() {
            let limbo = std::mem::take(&mut s.limbo);
            for (index, launch) in limbo {
                match launch.poll() {
                    Some(_) => s.free.push(index),
                    None => s.limbo.push((index, launch)),
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

/// One cell; given back when dropped and no kernel has it any more.
#[derive(Debug)]
pub struct ResultCell {
    cells: Arc<ResultCells>,
    index: u64,
    /// The kernel that is the last to touch it.
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

    /// Says which kernel is the last to touch it.
    pub fn used_by(&self, launch: &Launch) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(launch.clone());
    }

    /// Makes it say that all is well; no kernel may have it to write.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn clear(&self) -> Result<(), GpuError> {
        self.cells
            .buffer
            .write(self.index * CELL, &[0; CELL as usize])
    }

    /// What the kernel has written.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn read(&self) -> Result<Outcome, GpuError> {
        let mut b = [0u8; CELL as usize];
        self.cells.buffer.read(self.index * CELL, &mut b)?;
        let word = |i: usize| {
            let mut w = [0; 8];
            w.copy_from_slice(&b[i..i + 8]);
            u64::from_le_bytes(w)
        };
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
        let last = self
            .last
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let mut s = self.cells.state();
        match last {
            Some(launch) if launch.poll().is_none() => s.limbo.push((self.index, launch)),
            _ => s.free.push(self.index),
        }
    }
}
