//! Memory as a card sees it: by bus address, and only where it may.
#![allow(unsafe_code)] // Lines of memory that the CPU has mapped.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Acquire;
use std::sync::{Arc, Mutex, PoisonError};

use ringbell_gtlb::{CompletionWrite, DmaMemory, Window};

use super::{Bus, LINE};
use crate::memory::nic_memory::{host_at_bus, HOST_BUS, NIC_BUS};
use crate::shmem::Mapping;
use ringbell_gtlb::copy;

/// Host memory that the card may reach now, by bus address: rings, and buffers of operations. An
/// access to any other address of the host is refused; GPU and NIC memory have their bounds.
pub(crate) type Grants = Arc<Mutex<Vec<(u64, u64)>>>;

/// See the module text.
pub(crate) struct MemoryBus {
    memory: Arc<dyn DmaMemory>,
    window: Window,
    nic_memory: Arc<Mapping>,
    grants: Grants,
}

impl MemoryBus {
    /// The bus of a NIC; `None` where the CPU does not map the GPU's memory.
    pub(crate) fn new(
        memory: Arc<dyn DmaMemory>,
        nic_memory: Arc<Mapping>,
        grants: Grants,
    ) -> Option<MemoryBus> {
        Some(MemoryBus {
            window: memory.window()?,
            memory,
            nic_memory,
            grants,
        })
    }

    /// Where a line lies.
    fn at(&self, addr: u64) -> Option<*mut u8> {
        let within = |at: Option<u64>, len: u64| {
            let at = at.filter(|at| at.checked_add(LINE as u64).is_some_and(|end| end <= len))?;
            usize::try_from(at).ok()
        };
        let found = if addr < NIC_BUS {
            let at = within(addr.checked_sub(self.window.bus), self.window.len);
            at.map(|at| self.window.base.wrapping_add(at))
        } else if addr < HOST_BUS {
            let at = within(Some(addr - NIC_BUS), self.nic_memory.bytes() as u64);
            at.map(|at| self.nic_memory.base().wrapping_add(at))
        } else {
            let grants = self.grants.lock().unwrap_or_else(PoisonError::into_inner);
            let meets =
                |&(from, end): &(u64, u64)| from < addr.saturating_add(LINE as u64) && addr < end;
            let granted = grants.iter().any(meets);
            host_at_bus(addr, LINE as u64).filter(|_| granted)
        };
        if found.is_none() {
            tracing::error!("the card asks for bus address {addr:#x}, which was not given to it");
        }
        found
    }
}

impl Bus for MemoryBus {
    fn read(&mut self, addr: u64, line: &mut [u8; LINE]) {
        *line = [0; LINE];
        if let Some(from) = self.at(addr) {
            let from = from.cast::<u64>();
            for (i, word) in line.chunks_exact_mut(8).enumerate() {
                // SAFETY: the line is mapped, aligned and granted (`at`); kernels write entries by
                // atomic stores.
                let value = unsafe { AtomicU64::from_ptr(from.add(i)) };
                // Acquire: pairs with the Release store of an entry's word by its producer, so its
                // payload is there.
                word.copy_from_slice(&value.load(Acquire).to_ne_bytes());
            }
        }
    }

    fn write(&mut self, addr: u64, line: &[u8; LINE], strobe: u64) {
        let Some(to) = self.at(addr) else { return };
        let mut i = 0;
        while i < LINE {
            let n = (strobe >> i).trailing_ones() as usize;
            // SAFETY: the line is mapped and granted (`at`), and the run ends inside.
            unsafe { copy::copy(to.add(i), line.as_ptr().add(i), n) };
            i += n.max(1);
        }
    }

    fn complete(&mut self, addr: u64, words: [u64; 4]) {
        if let Some(line) = self.at(addr) {
            // SAFETY: a line of a queue, whose memory the NIC keeps until it has dropped its
            // `DmaMemory`.
            let completion = unsafe { CompletionWrite::new(line.cast(), words) };
            self.memory.publish(completion);
        }
    }
}

/// Room in NIC memory where bytes wait between the card and a transport.
#[derive(Debug)]
pub(crate) struct Stage {
    nic_memory: Arc<Mapping>,
    /// Of NIC memory's first byte.
    at: u64,
    len: u64,
}

impl Stage {
    /// A range of NIC memory that its owner has allocated.
    pub(crate) fn new(nic_memory: Arc<Mapping>, at: u64, len: u64) -> Stage {
        assert!(at + len <= nic_memory.bytes() as u64, "inside NIC memory");
        Stage {
            nic_memory,
            at,
            len,
        }
    }

    fn place(&self, offset: u64, len: usize) -> *mut u8 {
        assert!(offset + len as u64 <= self.len, "inside the room");
        self.nic_memory
            .base()
            .wrapping_add((self.at + offset) as usize)
    }

    /// Copies bytes in.
    pub(crate) fn write(&self, offset: u64, from: &[u8]) {
        // SAFETY: inside the mapping (checked by `place`), which no slice covers.
        unsafe { copy::copy(self.place(offset, from.len()), from.as_ptr(), from.len()) };
    }

    /// Copies bytes out.
    pub(crate) fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        // SAFETY: inside the mapping (checked by `place`); the vector is ours alone.
        unsafe { copy::copy(bytes.as_mut_ptr(), self.place(offset, len), len) };
        bytes
    }
}
