//! Modules hold nothing: every kernel of the emulated GPU is in each of them.

use std::ffi::{c_char, c_void, CStr};

use crate::{
    call, faults, gpu, put, ready, Result, INVALID_IMAGE, INVALID_VALUE, NOT_FOUND,
    NO_BINARY_FOR_GPU,
};

/// Magic of the fat binary format, and of ELF (cubin).
const FATBIN: [u8; 4] = [0x50, 0xed, 0x55, 0xba];
const ELF: [u8; 4] = [0x7f, b'E', b'L', b'F'];

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
            // SAFETY: the caller's pointer.
            FATBIN | ELF => unsafe { put(module, 0x30d0_0000 as *mut c_void) },
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
