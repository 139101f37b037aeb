//! GDRCopy: GPU memory mapped for the CPU (feature `cuda`).
//!
//! The library is loaded at run time. It needs its kernel driver `gdrdrv`, or, from 2.6 on, a
//! driver that maps GPU memory by dma-buf. Writes are posted over PCIe and cost about 0.1 µs, reads
//! wait for the GPU and cost about 1 µs (GDRCopy's README), so a mapping is for what the CPU
//! writes.
//!
//! Not measured, and not yet run on a real GPU: tests run this over a `libgdrapi.so.2` of their
//! own, which says nothing of ordering or speed.
#![allow(unsafe_code)] // Calls into libgdrapi, and stores into its mappings.

use std::ffi::{c_int, c_void, OsStr};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use gdrcopy_sys::{gdr_info_v1, gdr_info_v2, gdr_mh_t, gdr_t, Gdrapi, LoadError};
use ringbell_nic_abi::GpuVa;

use crate::cuda::posted::{drain, PostedWrites};
use crate::cuda::{GpuMapper, GpuMapping};
use crate::locks::lock;

/// Why GDRCopy cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GdrError {
    /// The library is not there, or no GDRCopy 2.
    #[error(transparent)]
    Library(#[from] LoadError),
    /// The library cannot reach its kernel driver.
    #[error("GDRCopy {major}.{minor} is installed, but gdr_open failed: load its kernel driver (modprobe gdrdrv) and make /dev/gdrdrv readable and writable for this user")]
    Driver {
        /// The library's version.
        major: i32,
        /// The library's version.
        minor: i32,
    },
}

/// An open library. Pinning and mapping share its lists: one call at a time.
struct Gdr {
    api: Gdrapi,
    handle: gdr_t,
    turn: Mutex<()>,
}

// SAFETY: the handle is used by one thread at a time (`turn`); the other calls take no handle.
unsafe impl Send for Gdr {}
// SAFETY: as for Send.
unsafe impl Sync for Gdr {}

impl Drop for Gdr {
    fn drop(&mut self) {
        // SAFETY: opened by `GdrMapper`, closed once; every mapping has kept it alive.
        let _ = unsafe { self.api.gdr_close(self.handle) };
    }
}

/// Maps GPU memory through GDRCopy. Clones share the library.
#[derive(Clone)]
pub struct GdrMapper(Arc<Gdr>);

impl std::fmt::Debug for GdrMapper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name())
    }
}

impl GdrMapper {
    /// Opens the installed library.
    ///
    /// # Errors
    /// [`GdrError`]; without the library or its kernel driver.
    pub fn open() -> Result<GdrMapper, GdrError> {
        GdrMapper::open_from(gdrcopy_sys::LIBRARY)
    }

    /// Opens the library at a path.
    ///
    /// # Errors
    /// As for [`GdrMapper::open`].
    pub fn open_from(library: impl AsRef<OsStr>) -> Result<GdrMapper, GdrError> {
        let api = gdrcopy_sys::load_from(library)?;
        // SAFETY: no arguments.
        let handle = unsafe { api.gdr_open() };
        if handle.is_null() {
            let (major, minor) = api.version();
            return Err(GdrError::Driver { major, minor });
        }
        Ok(GdrMapper(Arc::new(Gdr {
            api,
            handle,
            turn: Mutex::new(()),
        })))
    }

    /// Version of the kernel driver; `None` when it does not say (it is not there with dma-buf).
    pub fn driver_version(&self) -> Option<(i32, i32)> {
        let _turn = self.turn();
        let (mut major, mut minor) = (0, 0);
        // SAFETY: an open handle, and two integers.
        let r = unsafe {
            let api = &self.0.api;
            api.gdr_driver_get_version(self.0.handle, &mut major, &mut minor)
        };
        (r == 0).then_some((major, minor))
    }

    fn turn(&self) -> std::sync::MutexGuard<'_, ()> {
        lock(&self.0.turn)
    }

    /// First address of a pinned piece: that of a whole page of the GPU.
    fn first_va(&self, piece: gdr_mh_t) -> Result<u64, String> {
        let (api, handle) = (&self.0.api, self.0.handle);
        if api.gdr_get_info_v2.is_ok() {
            // SAFETY: plain numbers, for which zero is a value.
            let mut info: gdr_info_v2 = unsafe { std::mem::zeroed() };
            // SAFETY: an open handle, a piece of it, and room for what is stored.
            answer("gdr_get_info_v2", unsafe {
                api.gdr_get_info_v2(handle, piece, &mut info)
            })?;
            return Ok(info.va);
        }
        // SAFETY: as above.
        let mut info: gdr_info_v1 = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        answer("gdr_get_info", unsafe {
            api.gdr_get_info(handle, piece, &mut info)
        })?;
        Ok(info.va)
    }
}

/// The result of a call: 0, or an errno.
fn answer(call: &str, code: c_int) -> Result<(), String> {
    match code {
        0 => Ok(()),
        code => Err(format!(
            "{call}: {}",
            std::io::Error::from_raw_os_error(code)
        )),
    }
}

impl GpuMapper for GdrMapper {
    fn name(&self) -> String {
        let (major, minor) = self.0.api.version();
        format!("GDRCopy {major}.{minor}")
    }

    fn map(&self, va: GpuVa, len: u64) -> Result<Box<dyn GpuMapping>, String> {
        let size = usize::try_from(len).map_err(|_| format!("{len} bytes do not fit"))?;
        let _turn = self.turn();
        let (api, handle) = (&self.0.api, self.0.handle);
        let mut piece = gdr_mh_t { h: 0 };
        // SAFETY: an open handle, and room for the piece.
        answer("gdr_pin_buffer", unsafe {
            api.gdr_pin_buffer(handle, va.0, size, 0, 0, &mut piece)
        })?;
        let unpin = |why: String| {
            // SAFETY: pinned above, not mapped.
            let _ = unsafe { api.gdr_unpin_buffer(handle, piece) };
            why
        };
        let mut at: *mut c_void = std::ptr::null_mut();
        // SAFETY: an open handle, a piece of it, and room for the address.
        let mapped = answer("gdr_map", unsafe {
            api.gdr_map(handle, piece, &mut at, size)
        });
        mapped.map_err(unpin)?;
        let unmap = |why: String| {
            // SAFETY: mapped above.
            let _ = unsafe { api.gdr_unmap(handle, piece, at, size) };
            unpin(why)
        };
        let first = self.first_va(piece).map_err(unmap)?;
        let base = NonNull::new(at.cast::<u8>());
        match (va.0.checked_sub(first), base) {
            // The mapping has `size` bytes from the first whole page on.
            (Some(0), Some(base)) => Ok(Box::new(GdrMapping {
                gdr: self.0.clone(),
                piece,
                base,
                len: size,
                posted: PostedWrites::new(),
            })),
            _ => Err(unmap(format!(
                "GDRCopy has mapped {first:#x} at {at:p} for {va}, which begins a page"
            ))),
        }
    }
}

/// One allocation, mapped.
struct GdrMapping {
    gdr: Arc<Gdr>,
    piece: gdr_mh_t,
    base: NonNull<u8>,
    len: usize,
    posted: PostedWrites,
}

// SAFETY: the copying calls may be made by several threads at once: they touch the mapping alone,
// which the GPU writes too. Unmapping needs the only reference.
unsafe impl Send for GdrMapping {}
// SAFETY: as for Send.
unsafe impl Sync for GdrMapping {}

impl std::fmt::Debug for GdrMapping {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GdrMapping({:p}, {} bytes)", self.base, self.len)
    }
}

impl GdrMapping {
    /// Where the bytes at an offset are mapped.
    fn at(&self, offset: u64, len: usize) -> NonNull<u8> {
        let inside = usize::try_from(offset).ok().filter(|o| {
            let end = o.checked_add(len);
            end.is_some_and(|end| end <= self.len)
        });
        let offset = inside
            .unwrap_or_else(|| panic!("{len} bytes at {offset} leave a mapping of {}", self.len));
        // SAFETY: inside the mapping (checked).
        unsafe { self.base.add(offset) }
    }

    /// A copying call fails only for a piece that is not mapped, which this one is.
    fn copied(&self, call: &str, code: c_int) {
        if let Err(why) = answer(call, code) {
            panic!("{why}, of {self:?}");
        }
    }
}

impl GpuMapping for GdrMapping {
    fn write(&self, offset: u64, from: &[u8]) {
        let to = self.at(offset, from.len());
        if from.is_empty() {
            return;
        }
        match <[u8; 8]>::try_from(from) {
            // One store, so that a reader never sees half of a flag.
            Ok(word) if (to.as_ptr() as usize).is_multiple_of(8) => {
                // SAFETY: eight mapped bytes, aligned (checked).
                unsafe { to.cast::<u64>().write_volatile(u64::from_ne_bytes(word)) };
                // As the library does at the end of each copy: the flush may run on another core.
                drain();
            }
            _ => {
                let (to, from, len) = (to.as_ptr().cast(), from.as_ptr().cast(), from.len());
                // SAFETY: mapped bytes (checked), and a slice of as many.
                let r = unsafe { self.gdr.api.gdr_copy_to_mapping(self.piece, to, from, len) };
                self.copied("gdr_copy_to_mapping", r);
            }
        }
        self.posted.wrote(offset);
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        let from = self.at(offset, into.len());
        if into.is_empty() {
            return;
        }
        let (into, from, len) = (into.as_mut_ptr().cast(), from.as_ptr().cast(), into.len());
        // SAFETY: mapped bytes (checked), and a slice of as many.
        let r = unsafe {
            self.gdr
                .api
                .gdr_copy_from_mapping(self.piece, into, from, len)
        };
        self.copied("gdr_copy_from_mapping", r);
    }

    fn flush(&self) {
        self.posted.flush(|written| {
            // SAFETY: a mapped byte, because a write was noted there.
            unsafe { self.at(written, 1).read_volatile() }
        });
    }
}

impl Drop for GdrMapping {
    fn drop(&mut self) {
        let gdr = &self.gdr;
        let _turn = lock(&gdr.turn);
        // SAFETY: pinned and mapped by `map`, released once.
        unsafe {
            let at = self.base.as_ptr().cast();
            let _ = gdr.api.gdr_unmap(gdr.handle, self.piece, at, self.len);
            let _ = gdr.api.gdr_unpin_buffer(gdr.handle, self.piece);
        }
    }
}
