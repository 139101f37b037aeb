//! Kernels for this GPU: from the embedded fat binaries, from the embedded PTX, or compiled at run
//! time.
#![allow(unsafe_code)] // Calls into libcuda.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{c_void, CString};
use std::path::Path;
use std::sync::{Arc, Mutex, Weak};

use cudarc::driver::sys::{self, CUfunction, CUfunction_attribute, CUlimit, CUmodule, CUresult};

use super::context::Context;
use super::copy_engine::PATIENCE;
use super::deferred_release::Resource;
use super::{driver, nvrtc};
use crate::builtin;
use crate::cuda_error::CudaError;
use crate::fatbin::fatbins;
use crate::gpu::ModuleError;
use crate::launch::{self, KernelArg, LaunchError, LaunchShape};
use crate::locks::{exclusive, lock};

/// Kernels whose blocks wait for each other: the driver launches them only if all fit on the GPU at
/// once.
const TOGETHER: [&str; 2] = ["rb_hll_receive", "rb_perf_streamed"];

/// Most bytes of a kernel's stack that are set aside for every lane that a GPU can hold (132 SMs of
/// 2,048 lanes: 270 MB for each KiB).
const MOST_STACK: usize = 16 << 10;

/// A function of a module that stays loaded as long as [`Kernels`] lives.
#[derive(Debug, Clone, Copy)]
pub(super) struct KernelFunction {
    pub(super) raw: CUfunction,
    /// Its blocks wait for each other.
    pub(super) together: bool,
}

// SAFETY: a handle; the driver's functions that take it are safe to call from any thread.
unsafe impl Send for KernelFunction {}

/// A loaded module.
#[derive(Debug)]
struct Module(CUmodule);

// SAFETY: as for `KernelFunction`.
unsafe impl Send for Module {}

/// Modules that users have loaded.
#[derive(Debug, Default)]
struct Loaded {
    /// The last one is searched first, so that a user's kernel replaces one of the same name.
    modules: Vec<Module>,
    functions: HashMap<String, KernelFunction>,
}

/// The SDK's kernels, loaded once for all NICs that a process has beside a GPU. Loading a module
/// may wait for running kernels, and one of them may be waiting for the NIC that is being made.
#[derive(Debug)]
pub(super) struct Builtin {
    modules: Vec<Module>,
    functions: HashMap<String, KernelFunction>,
    origin: Origin,
    context: Arc<Context>,
}

// SAFETY: handles; the driver's functions that take them are safe to call from any thread.
unsafe impl Sync for Builtin {}

/// Where the SDK's kernels came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    Fatbin,
    Ptx,
    Nvrtc,
}

impl Origin {
    pub(super) fn describe(self) -> &'static str {
        match self {
            Origin::Fatbin => "kernels from the embedded fat binaries",
            Origin::Ptx => "kernels from the embedded PTX, compiled by the driver",
            Origin::Nvrtc => "kernels compiled at run time by NVRTC",
        }
    }
}

/// All kernels of one context.
#[derive(Debug)]
pub(super) struct Kernels {
    context: Arc<Context>,
    builtin: Arc<Builtin>,
    loaded: Mutex<Loaded>,
    pub(super) origin: Origin,
}

impl Builtin {
    /// Those of a GPU, loaded if they are not.
    fn of(context: &Arc<Context>, names: &[&str]) -> Result<Arc<Builtin>, CudaError> {
        static BY_GPU: Mutex<BTreeMap<usize, Arc<Mutex<Weak<Builtin>>>>> =
            Mutex::new(BTreeMap::new());
        let gpu = context.device.ordinal;
        let known = lock(&BY_GPU).entry(gpu).or_default().clone();
        // One lock for each GPU: a load may wait for the kernels of its own.
        let mut known = lock(&known);
        if let Some(builtin) = known.upgrade() {
            return Ok(builtin);
        }
        let builtin = Arc::new(Builtin::load(context.clone(), names)?);
        *known = Arc::downgrade(&builtin);
        Ok(builtin)
    }

    fn load(context: Arc<Context>, names: &[&str]) -> Result<Builtin, CudaError> {
        let images = fatbins().iter().map(|f| (f.name, f.image));
        let (modules, origin) = match load_all(&context, images) {
            Ok(modules) => (modules, Origin::Fatbin),
            Err(fatbin) => match load_ptx(&context) {
                Ok(modules) => (modules, Origin::Ptx),
                Err(ptx) => {
                    let compiled = nvrtc::compile(context.device.capability).and_then(|cubins| {
                        load_all(&context, cubins.iter().map(|(n, image)| (*n, &image[..])))
                    });
                    let modules = compiled.map_err(|nvrtc| CudaError::NoImage {
                        name: context.device.name.clone(),
                        major: context.device.capability.0,
                        minor: context.device.capability.1,
                        fatbin: format!("{fatbin}; the built-in PTX modules {ptx}"),
                        nvrtc,
                    })?;
                    (modules, Origin::Nvrtc)
                }
            },
        };
        let mut builtin = Builtin {
            modules,
            functions: HashMap::new(),
            origin,
            context,
        };
        // All now: under lazy loading the first use of a kernel may wait for every kernel that
        // runs, and one of those may be waiting for it (CUDA C++ Programming Guide, "Lazy
        // Loading").
        let context = &builtin.context;
        for name in names {
            if let Some(raw) = find(context, &builtin.modules, name)? {
                load_function(context, raw)?;
                let together = TOGETHER.contains(name);
                let f = KernelFunction { raw, together };
                builtin.functions.insert((*name).to_owned(), f);
            }
        }
        Ok(builtin)
    }
}

impl Drop for Builtin {
    fn drop(&mut self) {
        // Streams hold them, so these kernels can no longer be launched, but one may still run.
        for module in &self.modules {
            let resource = Resource::Module(module.0 as usize);
            self.context.deferred.release(resource);
        }
    }
}

impl Kernels {
    /// Loads the SDK's kernels.
    ///
    /// # Errors
    /// [`CudaError::NoImage`] with what was wrong with each source of them.
    pub(super) fn load(context: Arc<Context>) -> Result<Kernels, CudaError> {
        context.bind()?;
        let builtin = Builtin::of(&context, &builtin::names())?;
        Ok(Kernels {
            context,
            origin: builtin.origin,
            builtin,
            loaded: Mutex::default(),
        })
    }

    /// Names of the SDK's kernels.
    pub(super) fn names(&self) -> Vec<String> {
        builtin::names().into_iter().map(str::to_owned).collect()
    }

    /// Loads a user's fat binary, cubin or PTX.
    pub(super) fn load_image(&self, name: &Path, image: &[u8]) -> Result<(), ModuleError> {
        // PTX is a terminated string.
        let image = [image, b"\0"].concat();
        let refuse = |source| ModuleError::Image {
            path: name.to_owned(),
            source,
        };
        self.context.bind().map_err(refuse)?;
        // The driver may wait for every kernel that runs, and hold up all other calls meanwhile.
        let what = "the kernels that run, before which no module is loaded";
        let idle = self.context.deferred.wait_until_idle(what, PATIENCE);
        let _idle = idle.map_err(refuse)?;
        let module = load(&self.context, &image).map_err(refuse)?;
        load_functions(&self.context, &module).map_err(refuse)?;
        let mut loaded = lock(&self.loaded);
        loaded.modules.push(module);
        loaded.functions.clear();
        Ok(())
    }

    /// The kernel of a name.
    pub(super) fn find(&self, name: &str) -> Result<KernelFunction, LaunchError> {
        let found = self.function(name).map_err(|source| LaunchError::Device {
            kernel: name.to_owned(),
            source,
        })?;
        found.ok_or_else(|| LaunchError::UnknownKernel {
            name: name.to_owned(),
            known: self.names().join(", "),
        })
    }

    /// As `find`; `Ok(None)` when no module has it.
    fn function(&self, name: &str) -> Result<Option<KernelFunction>, CudaError> {
        let mut loaded = lock(&self.loaded);
        if let Some(f) = loaded.functions.get(name) {
            return Ok(Some(*f));
        }
        let own = find(&self.context, &loaded.modules, name)?.map(|raw| KernelFunction {
            raw,
            together: false,
        });
        let found = own.or_else(|| self.builtin.functions.get(name).copied());
        if let Some(f) = found {
            loaded.functions.insert(name.to_owned(), f);
        }
        Ok(found)
    }

    /// The kernel of a name. Its shape is checked, and the arguments if it is one of the SDK's. A
    /// user's kernel gets its arguments unchecked, as with the CUDA API itself.
    pub(super) fn prepare(
        &self,
        name: &str,
        shape: &LaunchShape,
        args: &[KernelArg],
    ) -> Result<KernelFunction, LaunchError> {
        let found = self.find(name);
        match builtin::kernel(name) {
            Some(k) => launch::check(name, k.arg_bytes, k.max_threads, shape, args)?,
            None => launch::check_shape(name, 1024, shape)?,
        }
        found
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        let loaded = exclusive(&mut self.loaded);
        for module in &loaded.modules {
            // As for those of the SDK.
            let resource = Resource::Module(module.0 as usize);
            self.context.deferred.release(resource);
        }
    }
}

/// The kernel of a name in the last module that has it.
fn find(
    context: &Context,
    modules: &[Module],
    name: &str,
) -> Result<Option<CUfunction>, CudaError> {
    let Ok(c_name) = CString::new(name) else {
        return Ok(None);
    };
    for module in modules.iter().rev() {
        let mut f: CUfunction = std::ptr::null_mut();
        // SAFETY: a live module of the current context, a terminated name, a live pointer.
        let r = unsafe { sys::cuModuleGetFunction(&mut f, module.0, c_name.as_ptr()) };
        if r == CUresult::CUDA_ERROR_NOT_FOUND {
            continue;
        }
        context.check("cuModuleGetFunction", r)?;
        return Ok(Some(f));
    }
    Ok(None)
}

/// Loads a kernel as far as its first launch would, for any CUDA_MODULE_LOADING, and raises the
/// stack limit to its needs: a launch that needs more stack than was set aside waits for all
/// others.
fn load_function(context: &Context, f: CUfunction) -> Result<(), CudaError> {
    if driver::has("cuFuncLoad") {
        // SAFETY: a function of a live module of the current context.
        context.check("cuFuncLoad", unsafe { sys::cuFuncLoad(f) })?;
    }
    let which = CUfunction_attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES;
    let (mut needed, mut limit) = (0, 0);
    // Drivers without the other call load a function here.
    // SAFETY: a function as above, and a live integer.
    context.check("cuFuncGetAttribute", unsafe {
        sys::cuFuncGetAttribute(&mut needed, which, f)
    })?;
    // SAFETY: a live size.
    context.check("cuCtxGetLimit", unsafe {
        sys::cuCtxGetLimit(&mut limit, CUlimit::CU_LIMIT_STACK_SIZE)
    })?;
    let needed = usize::try_from(needed).unwrap_or(0).min(MOST_STACK);
    if needed > limit {
        // SAFETY: no pointers.
        context.check("cuCtxSetLimit", unsafe {
            sys::cuCtxSetLimit(CUlimit::CU_LIMIT_STACK_SIZE, needed)
        })?;
    }
    Ok(())
}

/// All kernels of a module, where the driver can name them (CUDA 12.4); others are loaded when they
/// are first used.
fn load_functions(context: &Context, module: &Module) -> Result<(), CudaError> {
    let known = ["cuModuleGetFunctionCount", "cuModuleEnumerateFunctions"];
    if !known.into_iter().all(driver::has) {
        return Ok(());
    }
    let mut count = 0;
    // SAFETY: a live module and a live integer.
    context.check(known[0], unsafe {
        sys::cuModuleGetFunctionCount(&mut count, module.0)
    })?;
    let mut all: Vec<CUfunction> = vec![std::ptr::null_mut(); count as usize];
    // SAFETY: as many live handles as said.
    context.check(known[1], unsafe {
        sys::cuModuleEnumerateFunctions(all.as_mut_ptr(), count, module.0)
    })?;
    let mut there = all.into_iter().filter(|f| !f.is_null());
    there.try_for_each(|f| load_function(context, f))
}

fn load(context: &Context, image: &[u8]) -> Result<Module, CudaError> {
    let mut module: CUmodule = std::ptr::null_mut();
    // SAFETY: the image is a whole fat binary, cubin or terminated PTX text, which the driver
    // checks by its header; it copies what it needs.
    let r = unsafe { sys::cuModuleLoadData(&mut module, image.as_ptr().cast::<c_void>()) };
    context.check("cuModuleLoadData", r)?;
    Ok(Module(module))
}

/// Loads the PTX of the SDK's kernels: text of clang's, which a driver compiles for its GPU.
fn load_ptx(context: &Context) -> Result<Vec<Module>, String> {
    let texts: Vec<(&str, Vec<u8>)> = crate::builtin::FILES
        .iter()
        // A terminated string.
        .map(|f| (f.name, [f.text.as_bytes(), b"\0"].concat()))
        .collect();
    load_all(context, texts.iter().map(|(name, text)| (*name, &text[..])))
}

/// Loads all images, or none.
fn load_all<'a>(
    context: &Context,
    images: impl Iterator<Item = (&'a str, &'a [u8])>,
) -> Result<Vec<Module>, String> {
    let mut modules = Vec::new();
    for (name, image) in images {
        match load(context, image) {
            Ok(m) => modules.push(m),
            Err(e) => {
                for m in modules {
                    // SAFETY: loaded just now, and nothing of it was used.
                    let _ = unsafe { sys::cuModuleUnload(m.0) };
                }
                return Err(format!("do not load ({name}: {e})"));
            }
        }
    }
    if modules.is_empty() {
        return Err("were not built (the build found no nvcc)".into());
    }
    Ok(modules)
}
