//! What a program's constructors register: fat binaries, their kernels and variables, by their
//! addresses on the host.
//!
//! Constructors run before `main` and may not fail, so nothing is loaded there. A fat binary is
//! loaded for a device when one of its kernels or variables is first used there.

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::sync::Mutex;

use crate::device::{current, ready};
use crate::driver::{self, Code, Handle};
use crate::error::{
    call, check, INVALID_DEVICE_FUNCTION, INVALID_SYMBOL, INVALID_VALUE, SYMBOL_NOT_FOUND,
};
use crate::{lock, put};

/// What a name on the host stands for.
struct Named {
    binary: usize,
    name: CString,
}

#[derive(Default)]
struct Registry {
    /// Images by the handles of their fat binaries.
    images: HashMap<usize, usize>,
    kernels: HashMap<usize, Named>,
    variables: HashMap<usize, Named>,
    /// Modules by fat binary and device, or why one was refused.
    modules: HashMap<(usize, c_int), Result<usize, Code>>,
    functions: HashMap<(usize, c_int), usize>,
}

static REGISTRY: Mutex<Option<Registry>> = Mutex::new(None);

fn with<R>(f: impl FnOnce(&mut Registry) -> R) -> R {
    f(lock(&REGISTRY).get_or_insert_with(Registry::default))
}

impl Registry {
    /// The module of a fat binary on the thread's device, whose context is current.
    fn module(&mut self, binary: usize) -> Result<Handle, Code> {
        let image = *self.images.get(&binary).ok_or(INVALID_VALUE)?;
        let key = (binary, current());
        let loaded = self.modules.entry(key).or_insert_with(|| {
            let mut module = std::ptr::null_mut();
            check(driver::module_load(&mut module, image as *const c_void))?;
            Ok(module as usize)
        });
        loaded.map(|m| m as Handle)
    }

    fn function(&mut self, host: usize) -> Result<Handle, Code> {
        let key = (host, current());
        if let Some(f) = self.functions.get(&key) {
            return Ok(*f as Handle);
        }
        let known = self.kernels.get(&host).ok_or(INVALID_DEVICE_FUNCTION)?;
        let (binary, name) = (known.binary, known.name.clone());
        let module = self.module(binary)?;
        let mut function = std::ptr::null_mut();
        match driver::module_function(&mut function, module, name.as_ptr()) {
            SYMBOL_NOT_FOUND => return Err(INVALID_DEVICE_FUNCTION),
            code => check(code)?,
        }
        self.functions.insert(key, function as usize);
        Ok(function)
    }

    fn variable(&mut self, host: usize) -> Result<(u64, usize), Code> {
        let known = self.variables.get(&host).ok_or(INVALID_SYMBOL)?;
        let (binary, name) = (known.binary, known.name.clone());
        let module = self.module(binary)?;
        let (mut va, mut bytes) = (0, 0);
        match driver::module_global(&mut va, &mut bytes, module, name.as_ptr()) {
            SYMBOL_NOT_FOUND => Err(INVALID_SYMBOL),
            code => check(code).map(|()| (va, bytes)),
        }
    }
}

/// The driver's function of the kernel with this address on the host.
pub(crate) fn function(host: *const c_void) -> Result<Handle, Code> {
    ready()?;
    with(|r| r.function(host as usize))
}

/// Address and bytes of the device's variable with this address on the host.
pub(crate) fn variable(host: *const c_void) -> Result<(u64, usize), Code> {
    ready()?;
    with(|r| r.variable(host as usize))
}

/// Why a text of the caller is none.
fn name(text: *const c_char) -> Option<CString> {
    // SAFETY: a terminated string of the compiled program, or null.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_owned())
}

/// The structure by which host code refers to its fat binary: magic, version, pointer.
#[no_mangle]
pub extern "C" fn __cudaRegisterFatBinary(wrapper: *const c_void) -> *mut *mut c_void {
    // A handle that can be dereferenced, as compiled code may expect. It stays for the life of the
    // process.
    let handle = Box::into_raw(Box::new(wrapper.cast_mut()));
    with(|r| r.images.insert(handle as usize, wrapper as usize));
    handle
}

/// All of a fat binary has been registered.
#[no_mangle]
pub extern "C" fn __cudaRegisterFatBinaryEnd(_handle: *mut *mut c_void) {}

/// The program ends, or a library of it goes. A driver may be gone by now at the end of a program,
/// so modules are left.
#[no_mangle]
pub extern "C" fn __cudaUnregisterFatBinary(handle: *mut *mut c_void) {
    let binary = handle as usize;
    with(|r| {
        r.images.remove(&binary);
        r.kernels.retain(|_, k| k.binary != binary);
        r.variables.retain(|_, v| v.binary != binary);
        r.modules.retain(|(of, _), _| *of != binary);
        let (functions, kernels) = (&mut r.functions, &r.kernels);
        functions.retain(|(host, _), _| kernels.contains_key(host));
    });
}

#[no_mangle]
pub extern "C" fn __cudaRegisterFunction(
    handle: *mut *mut c_void,
    host: *const c_void,
    _device_text: *mut c_char,
    device: *const c_char,
    _threads: c_int,
    _tid: *mut c_void,
    _bid: *mut c_void,
    _block: *mut c_void,
    _grid: *mut c_void,
    _warp: *mut c_int,
) {
    if let Some(name) = name(device) {
        let binary = handle as usize;
        with(|r| r.kernels.insert(host as usize, Named { binary, name }));
    }
}

#[no_mangle]
pub extern "C" fn __cudaRegisterVar(
    handle: *mut *mut c_void,
    host: *mut c_void,
    _device_text: *mut c_char,
    device: *const c_char,
    _external: c_int,
    _bytes: usize,
    _constant: c_int,
    _global: c_int,
) {
    if let Some(name) = name(device) {
        let binary = handle as usize;
        with(|r| r.variables.insert(host as usize, Named { binary, name }));
    }
}

/// A managed variable: the host has a pointer, which becomes the address of the device's variable.
/// That needs the module now.
#[no_mangle]
pub extern "C" fn __cudaRegisterManagedVar(
    handle: *mut *mut c_void,
    pointer: *mut *mut c_void,
    device_text: *mut c_char,
    device: *const c_char,
    external: c_int,
    bytes: usize,
    constant: c_int,
    global: c_int,
) {
    let host = pointer.cast();
    __cudaRegisterVar(
        handle,
        host,
        device_text,
        device,
        external,
        bytes,
        constant,
        global,
    );
    if let Ok((va, _)) = variable(host) {
        // SAFETY: the program's own pointer.
        unsafe { pointer.write(va as *mut c_void) };
        // Programs name the variable by its address too, which is what the host's code makes of it.
        let at = va as *mut c_void;
        __cudaRegisterVar(
            handle,
            at,
            device_text,
            device,
            external,
            bytes,
            constant,
            global,
        );
    }
}

/// Loads a fat binary now (CUDA 12 and 13): whether that was possible.
#[no_mangle]
pub extern "C" fn __cudaInitModule(handle: *mut *mut c_void) -> c_char {
    let loaded = ready().and_then(|()| with(|r| r.module(handle as usize)));
    c_char::from(loaded.is_ok())
}

/// The kernel with this address on the host, as `__cudaLaunchKernel` takes it (CUDA 13).
#[no_mangle]
pub extern "C" fn __cudaGetKernel(to: *mut Handle, host: *const c_void) -> Code {
    call(|| put(to, function(host)?))
}

/// As [`__cudaGetKernel`], and `cudaKernel_t` is a function of the driver here.
#[no_mangle]
pub extern "C" fn cudaGetKernel(to: *mut Handle, host: *const c_void) -> Code {
    __cudaGetKernel(to, host)
}

/// The driver's function of a kernel.
#[no_mangle]
pub extern "C" fn cudaGetFuncBySymbol(to: *mut Handle, host: *const c_void) -> Code {
    __cudaGetKernel(to, host)
}

#[no_mangle]
pub extern "C" fn cudaGetSymbolAddress(to: *mut *mut c_void, symbol: *const c_void) -> Code {
    call(|| put(to, variable(symbol)?.0 as *mut c_void))
}

#[no_mangle]
pub extern "C" fn cudaGetSymbolSize(to: *mut usize, symbol: *const c_void) -> Code {
    call(|| put(to, variable(symbol)?.1))
}
