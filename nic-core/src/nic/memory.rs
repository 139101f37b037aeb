//! The control path of memory: domains, pages, regions, and the bytes that a NIC allocates.
#![allow(unsafe_code)] // `register_host` is for its caller to keep.
#![allow(clippy::disallowed_methods)] // Deregistering waits, with a deadline on the host's clock.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::ptr::NonNull;
use std::time::Instant;

use ringbell_gtlb::populate::populate;
use ringbell_gtlb::{
    Access, DeregisterError, Export, MapError, MemoryRegion, PageTable, PdError, RegisterError,
    UnmapError,
};
use ringbell_nic_abi::{GpuVa, Lkey, PdId};

use super::host_buffer::{va_of, Store};
use super::{HostBuffer, HostRegion, Nic, NicBuffer};
use crate::collective::CommError;
use crate::command::Core;
use crate::memory::nic_memory::{HOST_BUS, NIC_BUS, NIC_VA};
use crate::memory::{kind_of, FreeError, MemoryError, PointerInfo};
use crate::shmem::Mapping;

impl Nic {
    /// A new protection domain.
    ///
    /// # Errors
    /// [`PdError`] when there are too many.
    pub fn alloc_pd(&self) -> Result<PdId, PdError> {
        self.core(|c| c.memory.mmu.alloc_pd())
    }

    /// Frees an empty protection domain; its engines end.
    ///
    /// # Errors
    /// [`PdError`] when it is unknown or regions are left.
    pub fn free_pd(&self, pd: PdId) -> Result<(), PdError> {
        self.core(|c| {
            c.memory.mmu.free_pd(pd)?;
            c.memory.engines.remove_all_of(pd);
            Ok(())
        })
    }

    /// Enters the pages of GPU memory into the GTLB.
    ///
    /// # Errors
    /// [`MapError`]; nothing was changed.
    pub fn map(&self, table: &PageTable) -> Result<(), MapError> {
        self.core(|c| {
            c.memory.mmu.map(table)?;
            if let Some(card) = &c.card {
                card.lock().place(table.base.0);
            }
            Ok(())
        })
    }

    /// Removes pages before the GPU frees them.
    ///
    /// # Errors
    /// [`UnmapError`] while a region covers a part of them.
    pub fn unmap(&self, va: GpuVa, len: u64) -> Result<(), UnmapError> {
        self.core(|c| {
            c.memory.mmu.unmap(va, len)?;
            if let Some(card) = &c.card {
                card.lock().forget(va.0, len);
            }
            Ok(())
        })
    }

    /// Registers memory that queues of `pd` may then use.
    ///
    /// # Errors
    /// [`RegisterError`]; nothing was changed.
    pub fn register(
        &self,
        pd: PdId,
        va: GpuVa,
        len: u64,
        access: Access,
    ) -> Result<MemoryRegion, RegisterError> {
        self.core(|c| c.memory.mmu.register(pd, va, len, access))
    }

    /// Frees a region. Operations that wait on it retire with `REGION_FREED`; the call steps the
    /// NIC until DMA in flight has ended, and after `deregister_timeout` quarantines the region.
    ///
    /// # Errors
    /// [`DeregisterError::Pinned`] when the region was quarantined: its memory must not be reused;
    /// call again later.
    pub fn deregister(&self, lkey: Lkey) -> Result<(), DeregisterError> {
        match self.core(|c| c.memory.mmu.begin_deregister(lkey)) {
            // Begun by an earlier call that ended in quarantine: try to finish.
            Ok(()) | Err(DeregisterError::AlreadyBegun { .. }) => {}
            Err(e) => return Err(e),
        }
        let deadline = Instant::now() + self.config().deregister_timeout;
        let mut ended = Ok(());
        self.inner.progress.wait_for(deadline, |c| {
            ended = end_region(c, lkey);
            !matches!(ended, Err(DeregisterError::Pinned { .. }))
        });
        if let Err(DeregisterError::Pinned { .. }) = ended {
            self.core(|c| c.memory.mmu.quarantine(lkey))?;
            tracing::error!(%lkey, "memory is still in use; the region is quarantined");
        }
        ended
    }

    /// What lies at an address, as queues of `pd` see it: start, interior or last byte of a region.
    /// `None` when no region in service covers it, also after the region was freed.
    pub fn pointer_info(&self, pd: PdId, va: GpuVa) -> Option<PointerInfo> {
        self.core(|c| {
            let info = c.memory.mmu.overlapping(pd, va, 1).find(|r| r.live)?;
            Some(PointerInfo {
                kind: kind_of(&info),
                region: info.region,
                offset: va.0 - info.region.va.0,
                operations: info.pins,
            })
        })
    }

    /// Registers host memory in its range of the bus, unless a byte of it is registered already.
    fn register_identity(
        &self,
        pd: PdId,
        va: GpuVa,
        len: u64,
        access: Access,
    ) -> Result<MemoryRegion, MemoryError> {
        self.core(|c| {
            let other = c.memory.mmu.overlapping(pd, va, len).next();
            match other {
                Some(o) if !o.live => Err(MemoryError::StillFreeing {
                    va,
                    len,
                    other: o.region.va,
                    operations: o.pins,
                }),
                Some(o) if (o.region.va, o.region.len) == (va, len) => {
                    Err(MemoryError::AlreadyRegistered {
                        va,
                        len,
                        lkey: o.region.lkey,
                    })
                }
                Some(o) => Err(MemoryError::Overlaps {
                    va,
                    len,
                    kind: kind_of(&o),
                    other: o.region.va,
                    other_len: o.region.len,
                }),
                None => Ok(c.memory.mmu.register_flat(
                    pd,
                    va,
                    len,
                    access,
                    HOST_BUS.saturating_add(va.0),
                )?),
            }
        })
    }

    /// Registers memory of this process that lives elsewhere, so that queues of `pd` can send from
    /// it and receive into it, at any interior address. Pages are populated, nothing is pinned.
    ///
    /// # Errors
    /// [`MemoryError`]: a byte is registered already, or a page is not mapped or forbids the access.
    ///
    /// # Safety
    /// Until the region was dropped (or [`HostRegion::end`] was called), the `len` bytes at `ptr`
    /// stay mapped, and the program accesses them while an operation uses them only as it would
    /// share them with another thread: no `&[u8]` over bytes being received, no `&mut [u8]` over
    /// any.
    pub unsafe fn register_host(
        &self,
        pd: PdId,
        ptr: NonNull<u8>,
        len: usize,
        access: Access,
    ) -> Result<HostRegion, MemoryError> {
        let va = va_of(ptr.as_ptr());
        if len > 0 {
            populate(ptr.as_ptr(), len, access.local_write)?;
        }
        let region = self.register_identity(pd, va, len as u64, access)?;
        Ok(HostRegion::new(self.clone(), region))
    }

    /// Allocates zeroed host memory for the NIC, on pages of its own: a sealed memfd, which local
    /// peers map at once, so that a message from or to it is copied once.
    ///
    /// # Errors
    /// [`MemoryError`]: the system has no memory, or a limit of the NIC was reached.
    pub fn alloc_host(
        &self,
        pd: PdId,
        len: usize,
        access: Access,
    ) -> Result<HostBuffer, MemoryError> {
        let system = |source| MemoryError::System {
            len: len as u64,
            source,
        };
        let map = Mapping::memfd("ringbell-host", len.max(1)).map_err(system)?;
        let fd = map.fd().map(|fd| fd.try_clone_to_owned());
        let fd = fd.transpose().map_err(system)?;
        let mut buffer = self.host_buffer(pd, Store::Shared(map), len, access)?;
        if let Some(fd) = fd {
            let id = self.share_host(fd.as_fd(), buffer.region());
            buffer.set_shared(id.map_err(system)?);
        }
        Ok(buffer)
    }

    /// Takes bytes that the program has, registers them where they are, and owns them from now on;
    /// [`HostBuffer::into_bytes`] gives them back.
    ///
    /// # Errors
    /// [`MemoryError`], as [`Nic::register_host`]; the bytes are lost then.
    pub fn adopt_host(
        &self,
        pd: PdId,
        bytes: impl Into<Box<[u8]>>,
        access: Access,
    ) -> Result<HostBuffer, MemoryError> {
        let bytes: Box<[u8]> = bytes.into();
        let len = bytes.len();
        let Some(slice) = NonNull::new(Box::into_raw(bytes)) else {
            unreachable!("a box is never null");
        };
        self.host_buffer(pd, Store::Heap(slice), len, access)
    }

    fn host_buffer(
        &self,
        pd: PdId,
        store: Store,
        len: usize,
        access: Access,
    ) -> Result<HostBuffer, MemoryError> {
        let made = match len {
            0 => Ok(()),
            _ => populate(store.ptr(), len, true).map_err(MemoryError::from),
        };
        let made =
            made.and_then(|()| self.register_identity(pd, va_of(store.ptr()), len as u64, access));
        match made {
            Ok(region) => Ok(HostBuffer::new(self.clone(), region, store)),
            Err(e) => {
                drop(store.into_heap());
                Err(e)
            }
        }
    }

    /// Bytes of NIC memory in use (buffers, engines, payloads on their way), and in all.
    pub fn nic_memory(&self) -> (u64, u64) {
        self.core(|c| {
            (
                c.memory.dma.nic_memory.used(),
                c.memory.dma.nic_memory.len(),
            )
        })
    }

    /// Lets communicators that are made from now on keep partial results in registered memory, as
    /// far as it has room for the `scratch_bytes` of each, and not in NIC memory. The region stays
    /// pinned until the NIC ends. Given on all ranks of a communicator or on none; a card executes
    /// none of its programs.
    ///
    /// # Errors
    /// [`CommError::Scratch`]: the range is not registered, must not be written, or was given
    /// before.
    pub fn give_scratch(
        &self,
        pd: PdId,
        lkey: Lkey,
        (va, len): (GpuVa, u64),
    ) -> Result<(), CommError> {
        let range = (va, len);
        self.core(|c| {
            c.collectives
                .give_scratch(&mut c.memory.mmu, (pd, lkey), range)
        })
    }

    /// Allocates NIC memory, which starts with zeros, and registers it.
    ///
    /// # Errors
    /// [`MemoryError::NicMemoryFull`], or a limit of the MMU.
    pub fn alloc_on_nic(
        &self,
        pd: PdId,
        len: u64,
        access: Access,
    ) -> Result<NicBuffer, MemoryError> {
        let (region, block) = self.core(|c| {
            let nic_memory = &mut c.memory.dma.nic_memory;
            let (used, total) = (nic_memory.used(), nic_memory.len());
            let full = MemoryError::NicMemoryFull { len, used, total };
            let block = nic_memory.alloc(len).ok_or(full)?;
            let va = GpuVa(NIC_VA + block.at);
            let made = c
                .memory
                .mmu
                .register_flat(pd, va, len, access, NIC_BUS + block.at);
            match made {
                Ok(region) => {
                    // The new owner must not see an earlier owner's bytes.
                    c.memory.dma.nic_memory.zero(block);
                    Ok((region, block))
                }
                Err(e) => {
                    c.memory.dma.nic_memory.free(block);
                    Err(MemoryError::from(e))
                }
            }
        })?;
        Ok(NicBuffer::new(self.clone(), region, block))
    }

    /// Lets local peers map host memory. Returns the number that names it from now on.
    fn share_host(&self, fd: BorrowedFd<'_>, region: &MemoryRegion) -> std::io::Result<u64> {
        let memory = Export {
            fd,
            file_offset: 0,
            bus: HOST_BUS + region.va.0,
            len: region.len,
        };
        self.core(|c| c.memory.exports.share(&memory, c.streams.sharers()))
    }

    /// Withdraws host memory from peers, and waits until each has unmapped it or is gone.
    ///
    /// # Errors
    /// [`FreeError::Mapped`] when one has not after `deregister_timeout`.
    pub(super) fn withdraw_host(&self, id: u64, va: GpuVa) -> Result<(), FreeError> {
        let waited = self.config().deregister_timeout;
        let deadline = Instant::now() + waited;
        self.core(|c| c.streams.sharers().for_each(|s| s.withdraw(id)));
        let mut peers = 0;
        let ended = self.inner.progress.wait_for(deadline, |c| {
            peers = c.streams.sharers().map(|s| s.holders(id)).sum();
            peers == 0
        });
        match ended {
            true => Ok(()),
            false => Err(FreeError::Mapped { va, peers, waited }),
        }
    }
}

/// Retires what waits on a region that is being freed, and frees it when nothing uses it.
fn end_region(c: &mut Core, lkey: Lkey) -> Result<(), DeregisterError> {
    c.retire_region(lkey.0);
    let pins = c.memory.mmu.pins_of(lkey);
    if c.memory.dma.is_busy(lkey.0) {
        return Err(DeregisterError::Pinned { lkey, pins });
    }
    c.memory.mmu.finish_deregister(lkey)
}
