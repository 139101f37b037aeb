//! Queues of a communicator for blocks of kernels: one each, so that a block whose operation waits
//! holds up no other.

use ringbell_cuda_kernels::KernelArg;
use ringbell_nic_abi::GpuVa;
use ringbell_nic_core::HostQueue;

use super::{CollectiveError, CommOptions};
use crate::{DeviceBuffer, Nic};

/// The queues, and their handles where kernels find them.
#[derive(Debug)]
pub(super) struct BlockQueues {
    // Before the queues whose addresses it holds.
    handles: DeviceBuffer<u8>,
    queues: Vec<HostQueue>,
}

impl BlockQueues {
    /// As many as the options say; `None` for 0.
    pub(super) fn new(
        nic: &Nic,
        options: &CommOptions,
    ) -> Result<Option<BlockQueues>, CollectiveError> {
        if options.block_queues == 0 {
            return Ok(None);
        }
        let queues = (0..options.block_queues).map(|_| nic.create_queue());
        let queues: Vec<HostQueue> = queues.collect::<Result<_, _>>()?;
        let one = |queue: &HostQueue| KernelArg::from(options.handle_of(queue)).to_bytes();
        let bytes: Vec<u8> = queues.iter().flat_map(one).collect();
        let handles = nic.alloc::<u8>(bytes.len() as u64)?;
        handles.write(0, &bytes)?;
        Ok(Some(BlockQueues { handles, queues }))
    }

    /// Where the handles lie, and how many there are.
    pub(super) fn place(&self) -> (GpuVa, u32) {
        (self.handles.va(), self.queues.len() as u32)
    }
}
