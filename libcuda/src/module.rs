//! Modules: PTX, alone or in a fat binary, whose kernels run on the emulated GPU; and names of
//! kernels that it knows.
#![allow(clippy::disallowed_methods)] // Measures how long loading takes, which callers may ask.

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_uint, c_void, CStr};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use ringbell_cuda_kernels::{KernelNeeds, LoadedKernel, LoadedModule};
use ringbell_fatbin::{Fatbin, FatbinError, MAGIC, WRAPPER_MAGIC};

use crate::gpu::{capability, SHARED_BYTES};
use crate::image::{self, LINKED};
use crate::jit::Options;
use crate::replaced::replaced;
use crate::{
    call, faults, gpu, lock, primary, put, ready, say, strict, Result, INVALID_HANDLE,
    INVALID_IMAGE, INVALID_PTX, INVALID_VALUE, NOT_FOUND, NO_BINARY_FOR_GPU,
    UNSUPPORTED_PTX_VERSION,
};

/// ELF: machine code of a GPU (cubin), or of the host.
const ELF: [u8; 4] = [0x7f, b'E', b'L', b'F'];

/// Most bytes of a text that has no length of its own.
pub(crate) const MOST_TEXT: usize = 256 << 20;

/// What a module's kernels are.
#[derive(Debug)]
enum Code {
    Ptx(LoadedModule),
    /// All kernels that the emulated GPU knows by name. A test's image has none of its own.
    Named,
}

/// A module that is loaded.
#[derive(Debug)]
pub struct Module {
    code: Code,
    /// Handles of its kernels that were asked for.
    functions: Mutex<HashMap<String, usize>>,
}

/// What runs a function.
#[derive(Debug)]
pub(crate) enum Body {
    Ptx(LoadedKernel),
    Named,
}

/// A kernel.
#[derive(Debug)]
pub struct Function {
    pub(crate) name: String,
    pub(crate) body: Body,
    /// Bytes and offset of each parameter.
    pub(crate) parameters: Vec<(usize, usize)>,
    /// Most bytes of dynamic shared memory that a launch may ask for (`cuFuncSetAttribute`).
    pub(crate) most_dynamic: AtomicU32,
    module: usize,
    /// Its code is on the GPU.
    loaded: AtomicBool,
}

#[derive(Debug, Default)]
struct Handles {
    modules: HashMap<usize, Arc<Module>>,
    functions: HashMap<usize, Arc<Function>>,
}

fn handles() -> &'static Mutex<Handles> {
    static HANDLES: OnceLock<Mutex<Handles>> = OnceLock::new();
    HANDLES.get_or_init(Mutex::default)
}

/// A handle that was not given before.
fn fresh() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0x30d0_0000);
    NEXT.fetch_add(16, Ordering::Relaxed)
}

impl Function {
    /// Loading needs that nothing runs.
    pub(crate) fn load(&self, call: &'static str) -> std::result::Result<(), Result> {
        if !self.loaded.swap(true, Ordering::Relaxed) {
            strict::wait_for_all(call);
        }
        self.needs().map(drop)
    }

    /// What a block needs. The code is compiled if it was not.
    pub(crate) fn needs(&self) -> std::result::Result<KernelNeeds, Result> {
        let told = faults().stack.as_ref().filter(|(k, _)| *k == self.name);
        let mut needs = match &self.body {
            Body::Ptx(kernel) => kernel.needs().map_err(|e| {
                say(&e.to_string());
                INVALID_PTX
            })?,
            Body::Named => KernelNeeds {
                shared_bytes: 0,
                local_bytes: 0,
            },
        };
        if let Some((_, bytes)) = told {
            needs.local_bytes = *bytes as u32;
        }
        Ok(needs)
    }

    /// Most threads of a block.
    pub(crate) fn max_threads(&self) -> u64 {
        match &self.body {
            Body::Ptx(kernel) => kernel.max_threads(),
            Body::Named => 1024,
        }
    }

    /// The architecture of its PTX: 80 for `sm_80`.
    pub(crate) fn target(&self) -> c_int {
        match &self.body {
            Body::Ptx(kernel) => kernel.target() as c_int,
            Body::Named => capability(),
        }
    }

    /// Before a launch: its code and its stack are there, or come now.
    pub(crate) fn prepare(&self) -> std::result::Result<(), Result> {
        self.load("the first launch of a kernel")?;
        let stack = self.needs()?.local_bytes as usize;
        if stack > primary::stack() {
            strict::wait_for_all("a launch that needs more stack than those before");
            primary::raise_stack(stack);
        }
        Ok(())
    }
}

impl Module {
    fn find(&self, own: usize, name: &str) -> std::result::Result<usize, Result> {
        let mut known = lock(&self.functions);
        if let Some(handle) = known.get(name) {
            return Ok(*handle);
        }
        let (body, parameters) = match &self.code {
            Code::Ptx(module) => {
                let kernel = module.kernel(name).ok_or(NOT_FOUND)?;
                let each = kernel.parameters().into_iter();
                let each = each.map(|p| (p.bytes as usize, p.offset as usize));
                let each = each.collect();
                (Body::Ptx(kernel), each)
            }
            Code::Named => {
                let sizes = gpu().argument_sizes(name).map_err(|_| NOT_FOUND)?;
                let mut at = 0;
                let each = sizes.into_iter().map(|bytes| {
                    let offset = at;
                    at = (offset + bytes as usize).next_multiple_of(16);
                    (bytes as usize, offset)
                });
                let each = each.collect();
                (Body::Named, each)
            }
        };
        let function = Function {
            name: name.to_owned(),
            body,
            parameters,
            most_dynamic: AtomicU32::new(SHARED_BYTES),
            module: own,
            loaded: AtomicBool::new(false),
        };
        let handle = fresh();
        lock(handles()).functions.insert(handle, Arc::new(function));
        known.insert(name.to_owned(), handle);
        Ok(handle)
    }

    fn names(&self) -> Vec<String> {
        match &self.code {
            Code::Ptx(module) => module.kernels().map(str::to_owned).collect(),
            Code::Named => gpu().kernels(),
        }
    }
}

/// The module behind a handle.
pub(crate) fn module(m: *mut c_void) -> std::result::Result<Arc<Module>, Result> {
    let found = lock(handles()).modules.get(&(m as usize)).cloned();
    found.ok_or(INVALID_HANDLE)
}

/// The function behind a handle.
pub(crate) fn function(f: *mut c_void) -> std::result::Result<Arc<Function>, Result> {
    let found = lock(handles()).functions.get(&(f as usize)).cloned();
    found.ok_or(INVALID_HANDLE)
}

/// The handle of a module's kernel.
pub(crate) fn function_of(m: *mut c_void, name: &str) -> std::result::Result<usize, Result> {
    let handle = module(m)?.find(m as usize, name)?;
    if !faults().lazy_launch {
        function(handle as *mut c_void)?.load("cuModuleGetFunction")?;
    }
    Ok(handle)
}

/// Names of a module's kernels.
pub(crate) fn names(m: *mut c_void) -> std::result::Result<Vec<String>, Result> {
    Ok(module(m)?.names())
}

/// Loads what an image holds. Why it is refused is said, and given back in words.
///
/// # Safety
/// `image` is a fat binary, the structure by which host code refers to one, a cubin, or a
/// terminated text.
pub(crate) unsafe fn load(image: *const c_void) -> std::result::Result<usize, (Result, String)> {
    // SAFETY: an image has at least its magic.
    let magic = unsafe { image.cast::<[u8; 4]>().read_unaligned() };
    strict::wait_for_all("cuModuleLoadData");
    let number = u32::from_le_bytes(magic);
    let code = match magic {
        _ if number == WRAPPER_MAGIC => {
            // SAFETY: two words of 32 bits, and a pointer to the fat binary.
            let inner = unsafe { image.cast::<*const c_void>().add(1).read_unaligned() };
            // SAFETY: as this function's.
            return unsafe { load(inner) };
        }
        _ if number == MAGIC => {
            if let Some(code) = faults().image {
                return Err((code, "it was asked to refuse it".to_owned()));
            }
            if faults().no_fatbin {
                let why = "it was asked to have nothing for this GPU";
                return Err((NO_BINARY_FOR_GPU, why.to_owned()));
            }
            // SAFETY: a fat binary has a header.
            let header = unsafe { std::slice::from_raw_parts(image.cast::<u8>(), 16) };
            let len = Fatbin::len_of(header).map_err(|e| (INVALID_IMAGE, e.to_string()))?;
            // SAFETY: its header says its length.
            let bytes = unsafe { std::slice::from_raw_parts(image.cast::<u8>(), len as usize) };
            let all = Fatbin::read(bytes).map_err(|e| (INVALID_IMAGE, e.to_string()))?;
            match all.ptx(capability() as u32) {
                Ok(text) => of_text(&text)?,
                // The SDK's own fat binaries may hold machine code alone; a test knows their
                // kernels by name.
                Err(FatbinError::NoPtx { .. }) if strict::is_on() => Code::Named,
                Err(e @ FatbinError::Packed { .. }) => return Err((INVALID_IMAGE, e.to_string())),
                Err(e) => return Err((NO_BINARY_FOR_GPU, e.to_string())),
            }
        }
        LINKED => {
            let damaged = (INVALID_IMAGE, "the linked image is damaged".to_owned());
            // SAFETY: an image of `cuLinkComplete`, which says its length.
            let texts = unsafe { image::texts(image) }.ok_or(damaged)?;
            let linked = gpu().link_ptx(&module_name(), &texts);
            let refused = linked.map_err(|e| (INVALID_PTX, e.to_string()));
            Code::Ptx(refused?)
        }
        ELF if strict::is_on() => Code::Named,
        ELF => {
            // SAFETY: an ELF image has at least its header of 64 bytes.
            let flags = unsafe { image.cast::<[u8; 64]>().read_unaligned() };
            let arch = u32::from_le_bytes([flags[48], flags[49], flags[50], flags[51]]) & 0xff;
            let why = format!("the cubin has only SASS for sm_{arch}: build with PTX");
            return Err((NO_BINARY_FOR_GPU, why));
        }
        _ => {
            // SAFETY: everything else that is loaded is a terminated text.
            let text = unsafe { CStr::from_ptr(image.cast()) };
            let text = text.to_str().ok().filter(|t| t.len() <= MOST_TEXT);
            let is_ptx = |t: &&str| t.contains(".version") && t.contains(".target");
            let why = "the image is no fat binary, cubin or PTX text";
            let text = text.filter(is_ptx).ok_or((INVALID_IMAGE, why.to_owned()))?;
            let asked = faults().no_ptx.then_some(UNSUPPORTED_PTX_VERSION);
            if let Some(code) = faults().image.or(asked) {
                return Err((code, "it was asked to refuse it".to_owned()));
            }
            of_text(text)?
        }
    };
    let module = Module {
        code,
        functions: Mutex::default(),
    };
    let handle = fresh();
    lock(handles()).modules.insert(handle, Arc::new(module));
    Ok(handle)
}

/// What errors call a module.
fn module_name() -> String {
    static COUNT: AtomicUsize = AtomicUsize::new(1);
    format!("module {}", COUNT.fetch_add(1, Ordering::Relaxed))
}

/// A module of PTX text.
fn of_text(text: &str) -> std::result::Result<Code, (Result, String)> {
    let loaded = gpu().load_ptx(&module_name(), &replaced(text));
    loaded
        .map(Code::Ptx)
        .map_err(|e| (INVALID_PTX, e.to_string()))
}

/// Takes a module away. Kernels of it that run go on, with its code and variables, until they end.
pub(crate) fn unload(m: *mut c_void) -> std::result::Result<(), Result> {
    module(m)?;
    strict::wait_for_all("cuModuleUnload");
    let mut all = lock(handles());
    all.modules.remove(&(m as usize)).ok_or(INVALID_HANDLE)?;
    all.functions.retain(|_, f| f.module != m as usize);
    Ok(())
}

/// Address and bytes of a variable.
pub(crate) fn variable(m: *mut c_void, name: &str) -> std::result::Result<(u64, usize), Result> {
    let module = module(m)?;
    let Code::Ptx(code) = &module.code else {
        return Err(NOT_FOUND);
    };
    let (va, bytes) = code.variable(name).ok_or(NOT_FOUND)?;
    Ok((va.0, bytes as usize))
}

/// Whether a range lies in a variable of a module.
pub(crate) fn holds(va: u64, len: usize) -> bool {
    let all: Vec<_> = lock(handles()).modules.values().cloned().collect();
    all.iter().any(|m| match &m.code {
        Code::Ptx(module) => module.holds(va, len as u64),
        Code::Named => false,
    })
}

/// # Safety
/// The caller's terminated string, or null.
pub(crate) unsafe fn text(name: *const c_char) -> std::result::Result<String, Result> {
    if name.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller's contract.
    let name = unsafe { CStr::from_ptr(name) };
    Ok(name.to_string_lossy().into_owned())
}

#[no_mangle]
pub unsafe extern "C" fn cuModuleLoadData(
    module: *mut *mut c_void,
    image: *const c_void,
) -> Result {
    let none = std::ptr::null_mut();
    // SAFETY: the caller's arguments, without options.
    unsafe { cuModuleLoadDataEx(module, image, 0, none, std::ptr::null_mut()) }
}

#[no_mangle]
pub unsafe extern "C" fn cuModuleLoadDataEx(
    module: *mut *mut c_void,
    image: *const c_void,
    count: c_uint,
    options: *mut c_int,
    values: *mut *mut c_void,
) -> Result {
    call(|| {
        ready()?;
        if image.is_null() || module.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: as many options and values as said.
        let options = unsafe { Options::read(count, options, values)? };
        let begun = Instant::now();
        // SAFETY: the caller's image.
        match unsafe { load(image) } {
            Ok(handle) => {
                options.tell("", "", begun.elapsed());
                // SAFETY: the caller's pointer.
                unsafe { put(module, handle as *mut c_void) }
            }
            Err((code, why)) => {
                say(&format!("cannot load a module: {why}"));
                options.tell("", &why, begun.elapsed());
                Err(code)
            }
        }
    })
}

/// A fat binary, as `cuModuleLoadData` takes it too.
#[no_mangle]
pub unsafe extern "C" fn cuModuleLoadFatBinary(
    module: *mut *mut c_void,
    image: *const c_void,
) -> Result {
    // SAFETY: the caller's arguments.
    unsafe { cuModuleLoadData(module, image) }
}

#[no_mangle]
pub unsafe extern "C" fn cuModuleLoad(module: *mut *mut c_void, file: *const c_char) -> Result {
    // SAFETY: the caller's string.
    let read =
        unsafe { text(file) }.and_then(|f| std::fs::read(f).map_err(|_| crate::FILE_NOT_FOUND));
    match read {
        Ok(mut image) => {
            // PTX is a terminated string.
            image.push(0);
            // SAFETY: a whole file, terminated.
            unsafe { cuModuleLoadData(module, image.as_ptr().cast()) }
        }
        Err(code) => code,
    }
}

#[no_mangle]
pub unsafe extern "C" fn cuModuleUnload(module: *mut c_void) -> Result {
    call(|| {
        ready()?;
        unload(module)
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
        // SAFETY: the caller's terminated string and pointer.
        unsafe { put(to, function_of(module, &text(name)?)? as *mut c_void) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuModuleGetGlobal_v2(
    va: *mut u64,
    bytes: *mut usize,
    module: *mut c_void,
    name: *const c_char,
) -> Result {
    call(|| {
        ready()?;
        // SAFETY: the caller's terminated string; pointers may be null.
        unsafe {
            let (at, len) = variable(module, &text(name)?)?;
            if !va.is_null() {
                put(va, at)?;
            }
            if !bytes.is_null() {
                put(bytes, len)?;
            }
        }
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuModuleGetFunctionCount(
    count: *mut c_uint,
    module: *mut c_void,
) -> Result {
    call(|| {
        ready()?;
        // SAFETY: the caller's pointer.
        unsafe { put(count, names(module)?.len() as c_uint) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuModuleEnumerateFunctions(
    functions: *mut *mut c_void,
    count: c_uint,
    module: *mut c_void,
) -> Result {
    call(|| {
        ready()?;
        for (i, name) in names(module)?.iter().take(count as usize).enumerate() {
            let found = self::module(module)?.find(module as usize, name)?;
            // SAFETY: the caller's array of `count` handles.
            unsafe { put(functions.add(i), found as *mut c_void)? };
        }
        Ok(())
    })
}
