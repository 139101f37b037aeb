//! Kernels by name, as `RB_KERNEL` of `include/ringbell_emu.h` registers them.
#![allow(unsafe_code)] // Reads the C structures of a module and calls into it.

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void, CStr};
use std::path::Path;
use std::sync::Arc;

use super::memory::EmulatedMemory;
use super::ptx::{PtxKernel, PtxModule};
use crate::builtin;
use crate::gpu::ModuleError;
use crate::launch::{ArgBlock, Dim3, KernelArg, LaunchError};

type Body = unsafe extern "C" fn(*mut *mut c_void);
type RunBlock = unsafe extern "C" fn(
    body: Body,
    args: *mut *mut c_void,
    grid: *const CDim,
    shape: *const CDim,
    index: *const CDim,
    stack_bytes: usize,
    text: *mut c_char,
    len: usize,
) -> c_int;

/// `rb::emu::dim`.
#[repr(C)]
struct CDim {
    x: u32,
    y: u32,
    z: u32,
}

/// `rb_emu_kernel`.
#[repr(C)]
struct CKernel {
    name: *const c_char,
    body: Body,
    arg_bytes: *const u32,
    arg_count: u32,
    next: *const CKernel,
}

/// `rb_emu_module`.
#[repr(C)]
struct CModule {
    version: u32,
    abi_version: u32,
    kernels: *const CKernel,
    run_block: RunBlock,
}

/// `RB_EMU_MODULE_VERSION`.
const MODULE_VERSION: u32 = 1;

/// One kernel, ready to run.
#[derive(Clone)]
pub(crate) struct EmulatedKernel {
    pub(crate) name: Arc<str>,
    arg_bytes: Arc<[u32]>,
    /// Most threads of a block.
    pub(super) max_threads: u64,
    pub(super) code: Code,
}

/// What runs a kernel.
#[derive(Clone)]
pub(super) enum Code {
    /// A function of a compiled module, a block for each call.
    Native(NativeKernel),
    /// PTX.
    Ptx(PtxKernel),
}

/// A kernel that a C++ compiler has made.
#[derive(Clone)]
pub(super) struct NativeKernel {
    body: Body,
    run_block: RunBlock,
    /// Keeps a user's shared object loaded while one of its kernels runs.
    _library: Option<Arc<libloading::Library>>,
}

impl std::fmt::Debug for EmulatedKernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "EmulatedKernel({})", self.name)
    }
}

impl EmulatedKernel {
    /// A kernel of a PTX module.
    pub(super) fn of_ptx(function: &ringbell_gpu::Function, code: PtxKernel) -> EmulatedKernel {
        let bytes = function.parameters().into_iter().map(|p| p.bytes);
        EmulatedKernel {
            name: function.name.as_str().into(),
            arg_bytes: bytes.collect(),
            max_threads: u64::from(function.max_threads.unwrap_or(1024)),
            code: Code::Ptx(code),
        }
    }

    /// Bytes of each argument.
    pub(super) fn argument_sizes(&self) -> &[u32] {
        &self.arg_bytes
    }

    /// Checks shape and arguments against the signature.
    pub(crate) fn check(
        &self,
        grid: Dim3,
        block: Dim3,
        args: &[KernelArg],
    ) -> Result<(), LaunchError> {
        check_launch(
            &self.name,
            &self.arg_bytes,
            self.max_threads,
            (grid, block),
            args,
        )
    }
}

/// Checks shape and arguments of a launch against a kernel's signature.
pub(crate) fn check_launch(
    name: &str,
    arg_bytes: &[u32],
    max_threads: u64,
    (grid, block): (Dim3, Dim3),
    args: &[KernelArg],
) -> Result<(), LaunchError> {
    let kernel = || name.to_owned();
    if grid.count() == 0 || block.count() == 0 || block.count() > max_threads {
        return Err(LaunchError::Shape {
            kernel: kernel(),
            grid: grid.count(),
            lanes: block.count(),
        });
    }
    if args.len() != arg_bytes.len() {
        return Err(LaunchError::ArgumentCount {
            kernel: kernel(),
            expected: arg_bytes.len(),
            given: args.len(),
        });
    }
    for (index, (a, want)) in args.iter().zip(arg_bytes).enumerate() {
        if a.size() != *want as usize {
            return Err(LaunchError::ArgumentSize {
                kernel: kernel(),
                index,
                expected: *want as usize,
                given: a.size(),
            });
        }
    }
    Ok(())
}

impl NativeKernel {
    /// Runs block `index` (linear) of the grid to its end on this thread.
    ///
    /// # Errors
    /// Why the block ended early, in words.
    pub(super) fn run_block(
        &self,
        args: &ArgBlock,
        grid: Dim3,
        block: Dim3,
        index: u64,
        stack_bytes: usize,
    ) -> Result<(), String> {
        let base = args.storage.as_ptr().cast::<u8>();
        // A fixed array, because a launch must not allocate per block; no kernel has more parameters.
        let mut pointers = [std::ptr::null_mut::<c_void>(); MAX_ARGS];
        for (p, offset) in pointers.iter_mut().zip(&args.offsets) {
            *p = base.wrapping_add(*offset).cast_mut().cast();
        }
        let (gx, gy) = (u64::from(grid.x), u64::from(grid.y));
        let at = CDim {
            x: (index % gx) as u32,
            y: (index / gx % gy) as u32,
            z: (index / (gx * gy)) as u32,
        };
        let c = |d: Dim3| CDim {
            x: d.x,
            y: d.y,
            z: d.z,
        };
        let mut text = [0 as c_char; 256];
        // SAFETY: `check` has matched count and sizes of the arguments with the kernel's signature,
        // which reads but does not keep them; the module is loaded while `_library` lives. What the
        // kernel does with GPU addresses is the program's own responsibility, as on a GPU.
        let outcome = unsafe {
            (self.run_block)(
                self.body,
                pointers.as_mut_ptr(),
                &c(grid),
                &c(block),
                &at,
                stack_bytes,
                text.as_mut_ptr(),
                text.len(),
            )
        };
        if outcome == 0 {
            return Ok(());
        }
        // SAFETY: the module writes a terminated string (snprintf) or leaves the zeros.
        let reason = unsafe { CStr::from_ptr(text.as_ptr()) };
        Err(reason.to_string_lossy().into_owned())
    }
}

/// Most parameters of a kernel.
const MAX_ARGS: usize = 64;

/// All kernels that are loaded.
#[derive(Debug, Default)]
pub(crate) struct KernelRegistry {
    kernels: HashMap<Arc<str>, EmulatedKernel>,
}

impl KernelRegistry {
    /// The SDK's own kernels, in a GPU of this memory.
    pub(super) fn builtin(memory: &EmulatedMemory) -> KernelRegistry {
        let mut r = KernelRegistry::default();
        for file in builtin::FILES {
            let module = super::ptx::builtin(memory, file);
            for k in file.kernels {
                let name: Arc<str> = k.name.into();
                let kernel = EmulatedKernel {
                    name: name.clone(),
                    arg_bytes: k.arg_bytes.into(),
                    max_threads: k.max_threads,
                    code: Code::Ptx(PtxKernel::new(module.clone(), name.clone())),
                };
                r.kernels.insert(name, kernel);
            }
        }
        r
    }

    /// # Safety
    /// `module` points to a module that lives as long as `library`, or for ever without one.
    unsafe fn add(&mut self, module: *const CModule, library: Option<Arc<libloading::Library>>) {
        // SAFETY: the caller's contract.
        let module = unsafe { &*module };
        let mut next = module.kernels;
        // SAFETY: a list of static nodes, ended by null, inside the module.
        while let Some(k) = unsafe { next.as_ref() } {
            // SAFETY: names are string literals; the array has `arg_count` elements.
            let (name, arg_bytes) = unsafe {
                (
                    CStr::from_ptr(k.name).to_string_lossy(),
                    std::slice::from_raw_parts(k.arg_bytes, k.arg_count as usize),
                )
            };
            let name: Arc<str> = name.into();
            self.kernels.insert(
                name.clone(),
                EmulatedKernel {
                    name,
                    arg_bytes: arg_bytes.into(),
                    max_threads: 1024,
                    code: Code::Native(NativeKernel {
                        body: k.body,
                        run_block: module.run_block,
                        _library: library.clone(),
                    }),
                },
            );
            next = k.next;
        }
    }

    /// Adds the kernels of a PTX module; a kernel of the same name is replaced.
    pub(super) fn add_ptx(&mut self, module: Arc<PtxModule>) {
        for f in module.kernels() {
            let name: Arc<str> = f.name.as_str().into();
            let code = PtxKernel::new(module.clone(), name.clone());
            self.kernels.insert(name, EmulatedKernel::of_ptx(f, code));
        }
    }

    /// Adds the kernels of a shared object; a kernel of the same name is replaced.
    pub(super) fn load(&mut self, path: &Path) -> Result<(), ModuleError> {
        let refuse = |e: libloading::Error| ModuleError::Load {
            path: path.to_owned(),
            // "dlopen failed", and below it what the loader has said.
            reason: match std::error::Error::source(&e) {
                Some(cause) => format!("{e}: {cause}"),
                None => e.to_string(),
            },
        };
        // The loader looks for a bare name in the system's folders; a user means a file of the current folder.
        let bare = path.parent().is_some_and(|p| p.as_os_str().is_empty());
        let here = Path::new(".").join(path);
        let file = if bare { &here } else { path };
        // SAFETY: loading runs the object's static constructors, which only link list nodes; a user
        // who names a file asks for its code to run.
        let library = Arc::new(unsafe { libloading::Library::new(file) }.map_err(refuse)?);
        // SAFETY: the symbol has this type in every module (include/ringbell_emu.h).
        let module = unsafe {
            let door: libloading::Symbol<'_, unsafe extern "C" fn() -> *const CModule> =
                library.get(b"ringbell_module\0").map_err(refuse)?;
            door()
        };
        // SAFETY: static data of the library just loaded.
        let (version, abi) = unsafe { ((*module).version, (*module).abi_version) };
        if version != MODULE_VERSION || abi != ringbell_nic_abi::ABI_VERSION {
            return Err(ModuleError::Version {
                path: path.to_owned(),
                module: version,
                abi,
            });
        }
        // SAFETY: checked above; `library` is kept by every kernel.
        unsafe { self.add(module, Some(library)) };
        Ok(())
    }

    pub(super) fn find(&self, name: &str) -> Result<EmulatedKernel, LaunchError> {
        self.kernels
            .get(name)
            .cloned()
            .ok_or_else(|| LaunchError::UnknownKernel {
                name: name.to_owned(),
                known: self.names().join(", "),
            })
    }

    /// Names of all kernels, sorted.
    pub(super) fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.kernels.keys().map(|n| &**n).collect();
        names.sort_unstable();
        names
    }
}
