//! Host memory for the NIC: [`HostBuffer`] owns its bytes, [`HostRegion`] borrows another owner's.
#![allow(unsafe_code)] // Raw copies: the NIC may write the memory at any time.

use std::ptr::NonNull;

use ringbell_gtlb::{Exposed, MemoryRegion};
use ringbell_nic_abi::GpuVa;

use super::Nic;
use crate::memory::{FreeError, RangeError};
use crate::shmem::Mapping;
use ringbell_gtlb::copy;

/// The address of host memory as descriptors name it: the pointer itself.
pub(super) fn va_of(ptr: *mut u8) -> GpuVa {
    // Exposed, because the NIC makes pointers from addresses again.
    GpuVa(ptr.expose_provenance() as u64)
}

/// What lets kernels reach a region of host memory while it is registered.
fn seen(nic: &Nic, region: &MemoryRegion) -> Option<Exposed> {
    let memory = nic.core(|c| c.memory.dma.memory.clone());
    let base = NonNull::new(std::ptr::with_exposed_provenance_mut::<u8>(
        region.va.0 as usize,
    ))?;
    memory.registered(base, region.len as usize)
}

/// Host memory with another owner (malloc, mmap, a tensor) that is registered with the NIC.
///
/// Dropping it ends the registration: operations still waiting on it retire with `REGION_FREED`,
/// those that move bytes right now are waited for, and afterwards no address of it translates any
/// more, so that the NIC cannot touch it, even for a peer or a stale descriptor that asks for it.
#[derive(Debug)]
pub struct HostRegion {
    nic: Nic,
    region: MemoryRegion,
    /// Kernels of an emulated GPU reach it too.
    seen: Option<Exposed>,
    /// Whether `end` has succeeded.
    ended: bool,
}

impl HostRegion {
    pub(super) fn new(nic: Nic, region: MemoryRegion) -> HostRegion {
        HostRegion {
            seen: seen(&nic, &region),
            nic,
            region,
            ended: false,
        }
    }

    /// Keys and range.
    pub fn region(&self) -> &MemoryRegion {
        &self.region
    }

    /// Address as descriptors name it: the pointer.
    pub fn va(&self) -> GpuVa {
        self.region.va
    }

    /// Ends the registration.
    ///
    /// # Errors
    /// [`FreeError::Region`] when DMA did not end before `deregister_timeout`. The NIC does not
    /// touch the memory any more even then; call again to give the region's number back.
    pub fn end(&mut self) -> Result<(), FreeError> {
        if !self.ended {
            self.seen = None;
            self.nic.deregister(self.region.lkey)?;
            self.ended = true;
        }
        Ok(())
    }
}

impl Drop for HostRegion {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::error!(va = %self.region.va, %error, "a registration stays in quarantine");
        }
    }
}

/// What holds the bytes of a [`HostBuffer`].
#[derive(Debug)]
pub(super) enum Store {
    /// Pages of their own.
    Shared(Mapping),
    /// A slice on the heap that was given to us.
    Heap(NonNull<[u8]>),
}

// SAFETY: the heap slice is owned and reached through raw copies only.
unsafe impl Send for Store {}
// SAFETY: as for Send.
unsafe impl Sync for Store {}

impl Store {
    pub(super) fn ptr(&self) -> *mut u8 {
        match self {
            Store::Shared(m) => m.base(),
            Store::Heap(p) => p.as_ptr().cast(),
        }
    }

    pub(super) fn into_heap(self) -> Option<Box<[u8]>> {
        match self {
            Store::Shared(_) => None,
            // SAFETY: made by `Box::into_raw`, and given back once.
            Store::Heap(p) => Some(unsafe { Box::from_raw(p.as_ptr()) }),
        }
    }
}

/// Host memory that the NIC reads and writes, and that lives as long as it may do so.
///
/// From [`Nic::alloc_host`] it is shared: local peers map it (and unmap it when it is freed, which
/// waits for them), and one copy moves a message. From [`Nic::adopt_host`] it is the program's own
/// memory, and what it sends to a local peer goes through NIC memory.
///
/// Reached by copies alone: a peer may write at any time, which no `&[u8]` allows. Dropping it
/// unregisters first, as [`HostRegion`] does; memory that is still in use after the deadline is
/// kept from reuse for the life of the process.
#[derive(Debug)]
pub struct HostBuffer {
    nic: Nic,
    region: MemoryRegion,
    /// Kernels of an emulated GPU reach it too.
    seen: Option<Exposed>,
    /// `None` only after the end.
    store: Option<Store>,
    /// Number under which local peers may map it.
    shared: Option<u64>,
}

impl HostBuffer {
    pub(super) fn new(nic: Nic, region: MemoryRegion, store: Store) -> HostBuffer {
        HostBuffer {
            seen: seen(&nic, &region),
            nic,
            region,
            store: Some(store),
            shared: None,
        }
    }

    /// Local peers may map it under a number.
    pub(super) fn set_shared(&mut self, id: u64) {
        self.shared = Some(id);
    }

    /// Keys and range.
    pub fn region(&self) -> &MemoryRegion {
        &self.region
    }

    /// Address as descriptors and kernels name it: the pointer.
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

    /// First byte. The NIC, and through it a peer, may read and write the bytes at any time.
    pub fn as_ptr(&self) -> *mut u8 {
        self.store.as_ref().expect("taken only at the end").ptr()
    }

    /// Copies bytes in, at `offset`.
    ///
    /// # Errors
    /// [`RangeError`] when the range leaves the buffer.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), RangeError> {
        RangeError::check(offset, from.len(), self.len())?;
        // SAFETY: inside the buffer (checked), which is only reached through raw copies.
        unsafe {
            copy::copy(
                self.as_ptr().add(offset as usize),
                from.as_ptr(),
                from.len(),
            )
        };
        Ok(())
    }

    /// Copies bytes out, from `offset`.
    ///
    /// # Errors
    /// [`RangeError`] when the range leaves the buffer.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), RangeError> {
        RangeError::check(offset, into.len(), self.len())?;
        // SAFETY: as for `write`.
        unsafe {
            copy::copy(
                into.as_mut_ptr(),
                self.as_ptr().add(offset as usize),
                into.len(),
            )
        };
        Ok(())
    }

    /// Lets the GPU reach the bytes too: a real one pins them. The buffer must outlive the answer.
    ///
    /// # Errors
    /// The GPU's driver refused, in its own words.
    pub fn expose(&self) -> std::io::Result<Exposed> {
        let base = NonNull::new(self.as_ptr()).ok_or(std::io::ErrorKind::InvalidInput)?;
        let memory = self.nic.core(|c| c.memory.dma.memory.clone());
        memory.expose(base, self.len() as usize)
    }

    /// Unregisters the memory and frees it.
    ///
    /// # Errors
    /// [`FreeError`] when it was still in use at the deadline: it is kept from reuse then.
    pub fn free(mut self) -> Result<(), FreeError> {
        self.end().map(drop)
    }

    /// Unregisters the memory and gives the bytes back that [`Nic::adopt_host`] took; `None` for a
    /// buffer that was allocated.
    ///
    /// # Errors
    /// As [`HostBuffer::free`].
    pub fn into_bytes(mut self) -> Result<Option<Box<[u8]>>, FreeError> {
        Ok(self.end()?.and_then(Store::into_heap))
    }

    fn end(&mut self) -> Result<Option<Store>, FreeError> {
        let Some(store) = self.store.take() else {
            return Ok(None);
        };
        self.seen = None;
        // First our own operations, whose references peers may be copying, then the peers'
        // mappings.
        let ended = self.nic.deregister(self.region.lkey);
        let ended = ended.map_err(FreeError::from).and_then(|()| {
            let shared = self.shared.take();
            shared.map_or(Ok(()), |id| self.nic.withdraw_host(id, self.region.va))
        });
        match ended {
            Ok(()) => Ok(Some(store)),
            Err(e) => {
                // Giving the pages back would let a late DMA write into another buffer.
                std::mem::forget(store);
                Err(e)
            }
        }
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        match self.end() {
            Ok(store) => drop(store.and_then(Store::into_heap)),
            Err(error) => {
                tracing::error!(va = %self.region.va, %error, "host memory is kept from reuse");
            }
        }
    }
}
