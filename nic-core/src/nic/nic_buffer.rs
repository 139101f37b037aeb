//! [`NicBuffer`]: a piece of the NIC's own memory.

use ringbell_gtlb::MemoryRegion;
use ringbell_nic_abi::GpuVa;

use super::Nic;
use crate::memory::nic_memory::{Block, NIC_VA};
use crate::memory::{FreeError, RangeError};

/// Bytes that one copy moves before it lets the NIC work again.
const COPY_STEP: usize = 1 << 20;

/// A registered piece of NIC memory, for what should stay near the network: a kernel rings a
/// doorbell and the bytes move without crossing to host or GPU.
///
/// Its address is valid in descriptors, interior ones too, but cannot be dereferenced; the host
/// copies in and out. Dropping it unregisters first; what is still in use after the deadline is
/// kept from reuse until the NIC goes.
#[derive(Debug)]
pub struct NicBuffer {
    nic: Nic,
    region: MemoryRegion,
    /// `None` only after the end.
    block: Option<Block>,
}

impl NicBuffer {
    pub(super) fn new(nic: Nic, region: MemoryRegion, block: Block) -> NicBuffer {
        NicBuffer {
            nic,
            region,
            block: Some(block),
        }
    }

    /// Keys and range.
    pub fn region(&self) -> &MemoryRegion {
        &self.region
    }

    /// Address as descriptors name it.
    pub fn va(&self) -> GpuVa {
        self.region.va
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.region.len
    }

    /// Never: an empty buffer is refused.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn at(&self, offset: u64) -> u64 {
        self.region.va.0 - NIC_VA + offset
    }

    /// Copies bytes in, at `offset`.
    ///
    /// # Errors
    /// [`RangeError`] when the range leaves the buffer.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), RangeError> {
        RangeError::check(offset, from.len(), self.len())?;
        for (i, piece) in from.chunks(COPY_STEP).enumerate() {
            let at = self.at(offset + (i * COPY_STEP) as u64);
            self.nic.core(|c| c.memory.dma.nic_memory.write(at, piece));
        }
        Ok(())
    }

    /// Copies bytes out, from `offset`.
    ///
    /// # Errors
    /// [`RangeError`] when the range leaves the buffer.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), RangeError> {
        RangeError::check(offset, into.len(), self.len())?;
        for (i, piece) in into.chunks_mut(COPY_STEP).enumerate() {
            let at = self.at(offset + (i * COPY_STEP) as u64);
            self.nic.core(|c| c.memory.dma.nic_memory.read(at, piece));
        }
        Ok(())
    }

    /// Unregisters the piece and gives it back.
    ///
    /// # Errors
    /// [`FreeError`] when it was still in use at the deadline: it is kept from reuse then.
    pub fn free(mut self) -> Result<(), FreeError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), FreeError> {
        let Some(block) = self.block.take() else {
            return Ok(());
        };
        self.nic.deregister(self.region.lkey)?;
        self.nic.core(|c| c.memory.dma.nic_memory.free(block));
        Ok(())
    }
}

impl Drop for NicBuffer {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::error!(va = %self.region.va, %error, "NIC memory is kept from reuse");
        }
    }
}
