//! GPU memory of other processes and of other allocators in the C API.
#![allow(unsafe_code)] // Exports functions under names of C.

use std::ffi::c_void;

use ringbell::parts::cuda_kernels::SharedMemory;

use crate::failure::{entry, Failure};
use crate::nic::NICS;
use crate::pointer::Out;

/// `rb_shared_mem`.
type Shared = [u8; SharedMemory::BYTES];

/// # Safety
/// `shared` is null or may be written to.
#[no_mangle]
unsafe extern "C" fn rb_mem_share(
    nic: *mut c_void,
    va: *const c_void,
    bytes: usize,
    shared: *mut Shared,
) -> i32 {
    entry("rb_mem_share", || {
        // SAFETY: by this function's contract.
        let out = unsafe { Out::new(shared, "`shared`")? };
        let nic = NICS.get(nic.addr())?;
        out.set(real::share(&nic, va.addr() as u64, bytes as u64)?.to_bytes());
        Ok(())
    })
}

/// # Safety
/// `shared` is null or may be read, `va` is null or may be written to; and as `ringbell.h` says of
/// the memory.
#[no_mangle]
unsafe extern "C" fn rb_mem_open(
    nic: *mut c_void,
    shared: *const Shared,
    va: *mut *mut c_void,
) -> i32 {
    entry("rb_mem_open", || {
        // SAFETY: by this function's contract.
        let out = unsafe { Out::new(va, "`va`")? };
        out.set(std::ptr::null_mut());
        if shared.is_null() {
            return Err(Failure::argument("`shared` is a null pointer"));
        }
        // SAFETY: by this function's contract; bytes need no alignment.
        let bytes = unsafe { shared.read() };
        let shared =
            SharedMemory::from_bytes(&bytes).map_err(|e| Failure::argument(e.to_string()))?;
        let nic = NICS.get(nic.addr())?;
        // SAFETY: by this function's contract.
        let at = unsafe { real::open(&nic, &shared)? };
        out.set(std::ptr::with_exposed_provenance_mut(at as usize));
        Ok(())
    })
}

#[no_mangle]
extern "C" fn rb_mem_close(nic: *mut c_void, va: *mut c_void) -> i32 {
    entry("rb_mem_close", || {
        let nic = NICS.get(nic.addr())?;
        match real::close(&nic, va.addr() as u64) {
            true => Ok(()),
            false => Err(Failure::argument(format!(
                "{va:p} is not what rb_mem_open gave on this NIC; was it closed before?"
            ))),
        }
    })
}

/// # Safety
/// `bytes` bytes of GPU memory at `va` stay allocated until they are unregistered, as `ringbell.h`
/// says.
#[no_mangle]
unsafe extern "C" fn rb_mem_register(nic: *mut c_void, va: *mut c_void, bytes: usize) -> i32 {
    entry("rb_mem_register", || {
        let nic = NICS.get(nic.addr())?;
        if va.is_null() || bytes == 0 {
            return Err(Failure::argument(format!(
                "{bytes} bytes at {va:p}; give the address and length of GPU memory"
            )));
        }
        // SAFETY: by this function's contract.
        unsafe { real::register(&nic, va.addr() as u64, bytes as u64) }
    })
}

#[no_mangle]
extern "C" fn rb_mem_unregister(nic: *mut c_void, va: *mut c_void) -> i32 {
    entry("rb_mem_unregister", || {
        let nic = NICS.get(nic.addr())?;
        match real::unregister(&nic, va.addr() as u64) {
            true => Ok(()),
            false => Err(Failure::argument(format!(
                "{va:p} is not what rb_mem_register took on this NIC; was it unregistered before, or is it an interior address?"
            ))),
        }
    })
}

#[cfg(feature = "cuda")]
mod real {
    //! Sharing by the CUDA driver.

    use ringbell::abi::GpuVa;
    use ringbell::parts::cuda_kernels::cuda::CudaGpu;
    use ringbell::parts::cuda_kernels::{GpuError, SharedMemory};

    use super::super::failure::Failure;
    use super::super::foreign::{insert, remove};
    use super::super::nic::OpenNic;

    fn gpu(nic: &OpenNic) -> Result<&CudaGpu, Failure> {
        let none = || Failure::argument(GpuError::NotShareable.to_string());
        nic.nic.cuda().ok_or_else(none)
    }

    pub(super) fn share(nic: &OpenNic, va: u64, len: u64) -> Result<SharedMemory, Failure> {
        let shared = gpu(nic)?.share(GpuVa(va), len);
        shared.map_err(|e| Failure::argument(e.to_string()))
    }

    /// # Safety
    /// As `CudaGpu::open_shared`.
    pub(super) unsafe fn open(nic: &OpenNic, shared: &SharedMemory) -> Result<u64, Failure> {
        // SAFETY: by this function's contract.
        let memory = unsafe { gpu(nic)?.open_shared(shared) };
        let memory = memory.map_err(|e| Failure::host(&e))?;
        let region = nic.nic.register_foreign(memory);
        let region = region.map_err(|e| Failure::host(&e))?;
        Ok(insert(&nic.opened.shared, region))
    }

    pub(super) fn close(nic: &OpenNic, va: u64) -> bool {
        remove(&nic.opened.shared, va)
    }

    /// # Safety
    /// As `CudaGpu::adopt`.
    pub(super) unsafe fn register(nic: &OpenNic, va: u64, len: u64) -> Result<(), Failure> {
        let Some(gpu) = nic.nic.cuda() else {
            return Err(Failure::argument(
                "the GPU is emulated, and its memory is registered when it is allocated; for host memory call rb_host_register",
            ));
        };
        // SAFETY: by this function's contract.
        let memory = unsafe { gpu.adopt(GpuVa(va), len) };
        let memory = memory.map_err(|e| Failure::argument(e.to_string()))?;
        let region = nic.nic.register_foreign(memory);
        insert(
            &nic.opened.registered,
            region.map_err(|e| Failure::host(&e))?,
        );
        Ok(())
    }

    pub(super) fn unregister(nic: &OpenNic, va: u64) -> bool {
        remove(&nic.opened.registered, va)
    }
}

#[cfg(not(feature = "cuda"))]
mod real {
    //! Without a driver, sharing is refused.

    use ringbell::parts::cuda_kernels::{GpuError, SharedMemory};

    use super::super::failure::Failure;
    use super::super::nic::OpenNic;

    fn none<T>() -> Result<T, Failure> {
        Err(Failure::argument(GpuError::NotShareable.to_string()))
    }

    pub(super) fn share(_nic: &OpenNic, _va: u64, _len: u64) -> Result<SharedMemory, Failure> {
        none()
    }

    /// # Safety
    /// None.
    pub(super) unsafe fn open(_nic: &OpenNic, _shared: &SharedMemory) -> Result<u64, Failure> {
        none()
    }

    pub(super) fn close(_nic: &OpenNic, _va: u64) -> bool {
        false
    }

    /// # Safety
    /// None.
    pub(super) unsafe fn register(_nic: &OpenNic, _va: u64, _len: u64) -> Result<(), Failure> {
        Err(Failure::argument(
            "this library was built without CUDA; for host memory call rb_host_register",
        ))
    }

    pub(super) fn unregister(_nic: &OpenNic, _va: u64) -> bool {
        false
    }
}
