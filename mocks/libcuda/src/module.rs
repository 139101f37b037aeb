//! Modules. Each has every kernel of the emulated GPU, and its image is not read.
//!
//! One kind is read: a shared object made by `ringbell cc` is this GPU's machine code, so that kernels of users and
//! tests are loaded too.

use std::ffi::{c_char, c_int, c_uint, c_void, CStr};
use std::fs::File;
use std::io::Write as _;
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::{
    call, device, faults, gpu, put, ready, strict, Result, INVALID_HANDLE, INVALID_IMAGE,
    INVALID_VALUE, NOT_FOUND, NO_BINARY_FOR_GPU, OUT_OF_MEMORY,
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
    // SAFETY: a test's own kernels.
    unsafe { gpu().load_module(Path::new(&path)) }.map_err(invalid)
}

/// What cuModuleLoadData has given.
const MODULE: usize = 0x30d0_0000;

/// A kernel.
#[derive(Debug)]
pub struct Function {
    pub(crate) name: String,
    pub(crate) arg_bytes: Vec<u32>,
    /// Its code is on the GPU.
    loaded: AtomicBool,
}

impl Function {
    fn leak(name: &str) -> std::result::Result<*mut c_void, Result> {
        let arg_bytes = gpu().argument_sizes(name).map_err(|_| NOT_FOUND)?;
        // Never freed: the driver has no call that would.
        let f = Box::leak(Box::new(Function {
            name: name.to_owned(),
            arg_bytes,
            loaded: AtomicBool::new(false),
        }));
        Ok(std::ptr::from_mut(f).cast())
    }

    /// Loading needs that nothing runs.
    fn load(&self, call: &'static str) {
        if !self.loaded.swap(true, Ordering::Relaxed) {
            strict::wait_for_all(call);
        }
    }

    fn stack(&self) -> c_int {
        let told = faults().stack.as_ref().filter(|(k, _)| *k == self.name);
        told.map_or(0, |(_, bytes)| *bytes)
    }

    /// Before a launch: its code and its stack are there, or come now.
    pub(crate) fn prepare(&self) {
        self.load("the first launch of a kernel");
        let stack = self.stack() as usize;
        if stack > device::stack() {
            strict::wait_for_all("a launch that needs more stack than those before");
            device::raise_stack(stack);
        }
    }
}

/// The function behind a handle.
pub(crate) fn function(f: *mut c_void) -> std::result::Result<&'static Function, Result> {
    // SAFETY: a function of ours, which stays for ever, or null.
    unsafe { f.cast::<Function>().as_ref() }.ok_or(INVALID_HANDLE)
}

/// Modules that are loaded and not unloaded.
static LOADED: AtomicUsize = AtomicUsize::new(0);

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
        strict::wait_for_all("cuModuleLoadData");
        match (magic, faults().image) {
            (FATBIN, Some(code)) => return Err(code),
            (FATBIN, _) if faults().no_fatbin => return Err(NO_BINARY_FOR_GPU),
            (ELF, _) => {
                if let Some(len) = shared_object(image) {
                    load(image, len)?;
                }
            }
            (FATBIN, _) => {}
            _ => return Err(INVALID_IMAGE),
        }
        LOADED.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's pointer.
        unsafe { put(module, MODULE as *mut c_void) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuModuleUnload(module: *mut c_void) -> Result {
    call(|| {
        ready()?;
        if module as usize != MODULE || LOADED.load(Ordering::Relaxed) == 0 {
            return Err(INVALID_HANDLE);
        }
        strict::wait_for_all("cuModuleUnload");
        LOADED.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuModuleGetFunction(
    to: *mut *mut c_void,
    module: *mut c_void,
    name: *const c_char,
) -> Result {
    call(|| {
        ready()?;
        if module as usize != MODULE {
            return Err(INVALID_HANDLE);
        }
        // SAFETY: the caller's terminated string.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        let f = Function::leak(&name)?;
        if !faults().lazy_launch {
            function(f)?.load("cuModuleGetFunction");
        }
        // SAFETY: the caller's pointer.
        unsafe { put(to, f) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuModuleGetFunctionCount(
    count: *mut c_uint,
    _module: *mut c_void,
) -> Result {
    call(|| {
        ready()?;
        // SAFETY: the caller's pointer.
        unsafe { put(count, gpu().kernels().len() as c_uint) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuModuleEnumerateFunctions(
    functions: *mut *mut c_void,
    count: c_uint,
    _module: *mut c_void,
) -> Result {
    call(|| {
        ready()?;
        for (i, name) in gpu().kernels().iter().take(count as usize).enumerate() {
            // SAFETY: the caller's array of `count` handles.
            unsafe { put(functions.add(i), Function::leak(name)?)? };
        }
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuFuncLoad(f: *mut c_void) -> Result {
    call(|| {
        ready()?;
        function(f)?.load("cuFuncLoad");
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuFuncGetAttribute(
    value: *mut c_int,
    attribute: c_uint,
    f: *mut c_void,
) -> Result {
    call(|| {
        ready()?;
        let f = function(f)?;
        f.load("cuFuncGetAttribute");
        let v = match attribute {
            3 => f.stack(), // LOCAL_SIZE_BYTES
            _ => return Err(INVALID_VALUE),
        };
        // SAFETY: the caller's pointer.
        unsafe { put(value, v) }
    })
}
