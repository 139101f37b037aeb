//! Host and NIC memory for every call that takes GPU memory.
#![allow(unsafe_code)] // Registers memory that lives elsewhere.

use std::ptr::NonNull;

use ringbell_gtlb::Access;
use ringbell_nic_abi::GpuVa;
use ringbell_nic_core::{HostBuffer, HostRegion, MemoryError, NicBuffer, PointerInfo};

use crate::Nic;

impl Nic {
    /// Allocates zeroed host memory that kernels, host threads and the NIC may use, in any call
    /// that takes GPU memory. Any address inside it serves, not only the first.
    ///
    /// ```
    /// # use ringbell::memory::MemoryKind;
    /// # use ringbell::{Nic, abi::GpuVa};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let nic = Nic::builder().ip("10.9.9.2/24").open()?;
    /// let buffer = nic.alloc_host(1000)?;
    /// buffer.write(10, b"hello")?;
    /// let info = nic.pointer_info(GpuVa(buffer.va().0 + 10)).expect("registered");
    /// assert_eq!((info.kind, info.offset), (MemoryKind::Host, 10));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`MemoryError`]: the system has no memory, or a limit of the NIC was reached.
    pub fn alloc_host(&self, bytes: usize) -> Result<HostBuffer, MemoryError> {
        self.backend()
            .alloc_host(self.pd(), bytes, Access::COLLECTIVE)
    }

    /// Registers bytes that the program already has, in place, and owns them until
    /// [`HostBuffer::into_bytes`] gives them back.
    ///
    /// # Errors
    /// [`MemoryError`]: a limit of the NIC was reached; the bytes are dropped then.
    pub fn adopt_host(&self, bytes: impl Into<Box<[u8]>>) -> Result<HostBuffer, MemoryError> {
        self.backend()
            .adopt_host(self.pd(), bytes.into(), Access::LOCAL)
    }

    /// Registers memory that this process allocated by other means: malloc, mmap, a tensor. Nothing
    /// is pinned; see [`HostRegion`] for the end of a registration.
    ///
    /// # Errors
    /// [`MemoryError`]: a byte is registered already, or a page is not mapped or cannot be written.
    ///
    /// # Safety
    /// The bytes stay mapped until the region was dropped, and are shared with the NIC as with
    /// another thread.
    pub unsafe fn register_host(
        &self,
        ptr: NonNull<u8>,
        bytes: usize,
    ) -> Result<HostRegion, MemoryError> {
        // SAFETY: the caller's contract.
        unsafe {
            self.backend()
                .register_host(self.pd(), ptr, bytes, Access::LOCAL)
        }
    }

    /// Allocates zeroed memory on the NIC. Descriptors name its addresses as any others, but
    /// neither kernels nor the host can dereference them: bytes are copied in and out.
    ///
    /// # Errors
    /// [`MemoryError::NicMemoryFull`], or a limit of the NIC.
    pub fn alloc_on_nic(&self, bytes: u64) -> Result<NicBuffer, MemoryError> {
        self.backend()
            .alloc_on_nic(self.pd(), bytes, Access::COLLECTIVE)
    }

    /// Kind of the memory at an address, and the registration around it: GPU, host or NIC memory,
    /// interior addresses included. `None` when no registration covers it. (CUDA:
    /// `cudaPointerGetAttributes`.)
    pub fn pointer_info(&self, va: GpuVa) -> Option<PointerInfo> {
        self.backend().pointer_info(self.pd(), va)
    }
}
