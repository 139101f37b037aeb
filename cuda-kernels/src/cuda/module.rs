//! Kernels for this very GPU: from the embedded fat binaries, else compiled at run time, else an error.
#![allow(unsafe_code)] // Calls into libcuda.

use std::collections::HashMap;
use std::ffi::{c_void, CString};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{self, CUfunction, CUmodule, CUresult};

use super::context::Context;
use super::error::CudaError;
use super::nvrtc;
use crate::emulated::Registry;
use crate::fatbin::fatbins;
use crate::gpu::ModuleError;
use crate::launch::{Dim3, KernelArg, LaunchError};

/// A function of a module that stays loaded as long as [`Kernels`] lives.
#[derive(Debug, Clone, Copy)]
pub(super) struct Function(pub(super) CUfunction);

// SAFETY: a handle; the driver's functions that take it are safe to call from any thread.
unsafe impl Send for Function {}

/// A loaded module.
#[derive(Debug)]
struct Module(CUmodule);

// SAFETY: as for `Function`.
unsafe impl Send for Module {}

#[derive(Debug, Default)]
struct Loaded {
    /// The last one is searched first, so that a user's kernel replaces one of the same name.
    modules: Vec<Module>,
    functions: HashMap<String, Function>,
}

/// Where the SDK's kernels came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    Fatbin,
    Nvrtc,
}

impl Origin {
    pub(super) fn describe(self) -> &'static str {
        match self {
            Origin::Fatbin => "kernels from the embedded fat binaries",
            Origin::Nvrtc => "kernels compiled at run time by NVRTC",
        }
    }
}

/// All kernels of one context.
#[derive(Debug)]
pub(super) struct Kernels {
    context: Arc<Context>,
    loaded: Mutex<Loaded>,
    /// The same sources, compiled for the emulated GPU, know every kernel's arguments.
    signatures: Registry,
    pub(super) origin: Origin,
}

impl Kernels {
    /// Loads the SDK's kernels.
    ///
    /// # Errors
    /// [`CudaError::NoImage`] with what was wrong with each source of them.
    pub(super) fn load(context: Arc<Context>) -> Result<Kernels, CudaError> {
        context.bind()?;
        let images = fatbins().iter().map(|f| (f.name, f.image));
        let (modules, origin) = match load_all(&context, images) {
            Ok(modules) => (modules, Origin::Fatbin),
            Err(fatbin) => {
                let compiled = nvrtc::compile(context.device.capability).and_then(|cubins| {
                    load_all(&context, cubins.iter().map(|(n, image)| (*n, &image[..])))
                });
                match compiled {
                    Ok(modules) => (modules, Origin::Nvrtc),
                    Err(nvrtc) => {
                        return Err(CudaError::NoImage {
                            name: context.device.name.clone(),
                            major: context.device.capability.0,
                            minor: context.device.capability.1,
                            fatbin,
                            nvrtc,
                        })
                    }
                }
            }
        };
        let kernels = Kernels {
            context,
            loaded: Mutex::new(Loaded {
                modules,
                functions: HashMap::new(),
            }),
            signatures: Registry::builtin(),
            origin,
        };
        // All now: under lazy loading the first use of a kernel may wait for every kernel that
        // runs, and one of those may be waiting for it (CUDA C++ Programming Guide, "Lazy Loading").
        for name in kernels.signatures.names() {
            kernels.find(name)?;
        }
        Ok(kernels)
    }

    /// Names of the SDK's kernels.
    pub(super) fn names(&self) -> Vec<String> {
        let names = self.signatures.names().into_iter();
        names.map(str::to_owned).collect()
    }

    /// Loads a user's fat binary, cubin or PTX.
    pub(super) fn load_file(&self, path: &Path) -> Result<(), ModuleError> {
        let mut image = std::fs::read(path).map_err(|e| ModuleError::Load {
            path: path.to_owned(),
            reason: e.to_string(),
        })?;
        image.push(0); // PTX is a terminated string.
        let refuse = |source| ModuleError::Image {
            path: path.to_owned(),
            source,
        };
        self.context.bind().map_err(refuse)?;
        let module = load(&self.context, &image).map_err(refuse)?;
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.modules.push(module);
        loaded.functions.clear();
        Ok(())
    }

    /// The kernel of a name; `Ok(None)` when no module has it.
    fn find(&self, name: &str) -> Result<Option<Function>, CudaError> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(f) = loaded.functions.get(name) {
            return Ok(Some(*f));
        }
        let Ok(c_name) = CString::new(name) else {
            return Ok(None);
        };
        for module in loaded.modules.iter().rev() {
            let mut f: CUfunction = std::ptr::null_mut();
            // SAFETY: a live module of the current context, a terminated name, a live pointer.
            let r = unsafe { sys::cuModuleGetFunction(&mut f, module.0, c_name.as_ptr()) };
            if r == CUresult::CUDA_ERROR_NOT_FOUND {
                continue;
            }
            self.context.check("cuModuleGetFunction", r)?;
            loaded.functions.insert(name.to_owned(), Function(f));
            return Ok(Some(Function(f)));
        }
        Ok(None)
    }

    /// The kernel of a name, its shape and, when it is one of the SDK's, its arguments checked. A
    /// user's kernel gets what it is given, as with the CUDA API itself.
    pub(super) fn prepare(
        &self,
        name: &str,
        grid: Dim3,
        block: Dim3,
        args: &[KernelArg],
    ) -> Result<Function, LaunchError> {
        let found = self.find(name).map_err(|source| LaunchError::Device {
            kernel: name.to_owned(),
            source,
        })?;
        match self.signatures.find(name) {
            Ok(known) => known.check(grid, block, args)?,
            Err(_) if grid.count() == 0 || !(1..=1024).contains(&block.count()) => {
                return Err(LaunchError::Shape {
                    kernel: name.to_owned(),
                    grid: grid.count(),
                    lanes: block.count(),
                })
            }
            Err(_) => {}
        }
        found.ok_or_else(|| LaunchError::UnknownKernel {
            name: name.to_owned(),
            known: self.names().join(", "),
        })
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        if self.context.bind().is_err() {
            return;
        }
        let loaded = self
            .loaded
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        for module in &loaded.modules {
            // SAFETY: loaded by us and unloaded once; streams hold `Kernels`, so none of its kernels
            // can be launched any more. An error leaves the module loaded.
            let _ = unsafe { sys::cuModuleUnload(module.0) };
        }
    }
}

fn load(context: &Context, image: &[u8]) -> Result<Module, CudaError> {
    let mut module: CUmodule = std::ptr::null_mut();
    // SAFETY: the image is a whole fat binary, cubin or terminated PTX text, which the driver checks by
    // its header; it copies what it needs.
    let r = unsafe { sys::cuModuleLoadData(&mut module, image.as_ptr().cast::<c_void>()) };
    context.check("cuModuleLoadData", r)?;
    Ok(Module(module))
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
