//! Modules hold nothing: every kernel of the emulated GPU is in each of them. But for one kind: this GPU's machine code
//! is a shared object that `ringbell cc` makes, so that users' kernels (and those of tests) are loaded too.

use std::ffi::{c_char, c_void, CStr};
use std::fs::File;
use std::io::Write as _;
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd as _;
use std::path::Path;

use crate::{
    call, faults, gpu, put, ready, Result, INVALID_IMAGE, INVALID_VALUE, NOT_FOUND,
    NO_BINARY_FOR_GPU, OUT_OF_MEMORY,
};

/// Magic of the fat binary format, and of ELF (cubin).
const FATBIN: [u8; 4] = [0x50, 0xed, 0x55, 0xba];
const ELF: [u8; 4] = [0x7f, b'E', b'L', b'F'];

/// Bytes of a shared object for this machine: a cubin says the same in its header, but is for another machine.
fn shared_object(image: *const c_void) -> Option<usize> {
    // SAFETY: an ELF image has at least its header of 64 bytes.
    let header = unsafe { image.cast::<[u8; 64]>().read_unaligned() };
    let half = |at: usize| usize::from(u16::from_le_bytes([header[at], header[at + 1]]));
    // ET_DYN, EM_X86_64 or EM_AARCH64.
    if half(16) != 3 || !matches!(half(18), 62 | 183) {
        return None;
    }
    // Linkers put the table of sections last: e_shoff, e_shentsize, e_shnum.
    let sections = header[40..48].try_into().map(u64::from_le_bytes).ok()?;
    Some(sections as usize + half(58) * half(60))
}

/// Makes the kernels of a shared object those of the GPU.
fn load(image: *const c_void, len: usize) -> std::result::Result<(), Result> {
    // SAFETY: the image's own header says how long it is.
    let bytes = unsafe { std::slice::from_raw_parts(image.cast::<u8>(), len) };
    let invalid = |_| INVALID_IMAGE;
    let name = c"mock-cubin";
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let file = rustix::fs::memfd_create(name, flags).map_err(|_| OUT_OF_MEMORY)?;
    // Open for good: the loader takes two objects of the same name for one, and numbers of descriptors come again.
    let mut file = ManuallyDrop::new(File::from(file));
    file.write_all(bytes).map_err(|_| OUT_OF_MEMORY)?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    gpu().load_module(Path::new(&path)).map_err(invalid)
}

/// A kernel.
#[derive(Debug)]
pub struct Function {
    pub(crate) name: String,
    pub(crate) arg_bytes: Vec<u32>,
}

#[no_mangle]
pub unsafe extern "C" fn cuModuleLoadData(
    module: *mut *mut c_void,
    image: *const c_void,
) -> Result {
    call(|| {
        ready()?;
        if image.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: an image has at least its magic.
        let magic = unsafe { image.cast::<[u8; 4]>().read_unaligned() };
        match magic {
            FATBIN if faults().no_fatbin => Err(NO_BINARY_FOR_GPU),
            ELF => {
                if let Some(len) = shared_object(image) {
                    load(image, len)?;
                }
                // SAFETY: the caller's pointer.
                unsafe { put(module, 0x30d0_0000 as *mut c_void) }
            }
            // SAFETY: the caller's pointer.
            FATBIN => unsafe { put(module, 0x30d0_0000 as *mut c_void) },
            _ => Err(INVALID_IMAGE),
        }
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuModuleUnload(_module: *mut c_void) -> Result {
    0
}

#[no_mangle]
pub unsafe extern "C" fn cuModuleGetFunction(
    function: *mut *mut c_void,
    _module: *mut c_void,
    name: *const c_char,
) -> Result {
    call(|| {
        ready()?;
        // SAFETY: the caller's terminated string.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        let arg_bytes = gpu().argument_sizes(&name).map_err(|_| NOT_FOUND)?;
        // Never freed: the driver has no call that would.
        let f = Box::leak(Box::new(Function {
            name: name.into_owned(),
            arg_bytes,
        }));
        // SAFETY: the caller's pointer.
        unsafe { put(function, std::ptr::from_mut(f).cast::<c_void>()) }
    })
}
