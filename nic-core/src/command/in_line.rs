//! Small receives of a GPU's kernels arrive in the completion line (`IN_LINE` of `nic-abi`).
//!
//! Where the memory is asynchronous every write is a copy of its own, several microseconds for a few bytes. So the
//! transport gets a place in the NIC's own memory instead of the buffer, and whoever waits for the completion stores
//! the bytes. Only in a ring that kernels alone post to: the host's waiters do not store into GPU memory.

use ringbell_nic_abi::completion::IN_LINE_MAX;
use ringbell_nic_abi::{Completion, GpuVa, Opcode, Status};

use super::Core;
use crate::permit::Permit;
use crate::queue::ScatterSlots;
use crate::types::Buffer;

impl Core {
    /// Places for a ring of so many slots; `None` when the NIC's memory or its regions are used up, and its receives
    /// go the long way. They stay for as long as the NIC.
    pub(crate) fn places(&mut self, slots: u32) -> Option<ScatterSlots> {
        let (_, lkey, block) = self.own_region(ScatterSlots::bytes(slots))?;
        Some(ScatterSlots::new(lkey, block, slots))
    }

    /// Where a receive arrives instead of in `buffer`, when that is better.
    pub(super) fn in_line(&self, queue: u32, ticket: u32, buffer: &Buffer) -> Option<Buffer> {
        let slots = self.queues[queue as usize].scatter.as_ref()?;
        let fits = buffer.len as usize <= IN_LINE_MAX;
        (fits && !self.dma.is_mapped() && !self.mmu.is_flat(buffer.region))
            .then(|| slots.buffer(ticket, buffer.len))
    }

    /// Retires a receive that arrived in NIC memory and belongs at `va`.
    pub(super) fn finish_in_line(
        &mut self,
        permit: Permit,
        va: GpuVa,
        status: Status,
        bytes: u64,
        detail: u64,
    ) {
        if status == Status::RegionFreed {
            // Its owner may have freed the memory: nobody stores there any more.
            return self.finish(permit, status, 0, detail);
        }
        let (queue, ticket) = (permit.queue as usize, permit.ticket);
        let Some(slots) = self.queues[queue].scatter.filter(|_| bytes != 0) else {
            return self.finish(permit, status, bytes, detail);
        };
        let mut payload = [0; IN_LINE_MAX];
        let n = (bytes as usize).min(IN_LINE_MAX);
        self.dma
            .nic_memory
            .read(slots.at(ticket), &mut payload[..n]);
        let words: [u64; IN_LINE_MAX / 8] = std::array::from_fn(|i| {
            let mut word = [0; 8];
            word.copy_from_slice(&payload[i * 8..][..8]);
            u64::from_le_bytes(word)
        });
        let completion: Completion = permit.retire(status, bytes, detail);
        let memory = self.dma.memory.clone();
        self.queues[queue].complete_in_line(ticket, &completion, (va, words), &*memory);
        self.counters.retired += 1;
        debug_assert_eq!(completion.opcode, Opcode::Recv.code());
    }
}
