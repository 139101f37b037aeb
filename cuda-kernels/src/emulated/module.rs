//! Kernels by name: the SDK's own, and those of modules that were loaded.

use std::collections::HashMap;
use std::sync::Arc;

use super::memory::EmulatedMemory;
use super::ptx::{PtxKernel, PtxModule};
use crate::builtin;
use crate::launch::{self, KernelArg, LaunchError, LaunchShape};

/// One kernel, ready to run.
#[derive(Clone)]
pub(crate) struct EmulatedKernel {
    pub(crate) name: Arc<str>,
    arg_bytes: Arc<[u32]>,
    /// Most threads of a block.
    pub(super) max_threads: u64,
    pub(super) code: PtxKernel,
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
            code,
        }
    }

    /// Bytes of each argument.
    pub(super) fn argument_sizes(&self) -> &[u32] {
        &self.arg_bytes
    }

    /// Checks shape and arguments against the signature.
    pub(crate) fn check(&self, shape: &LaunchShape, args: &[KernelArg]) -> Result<(), LaunchError> {
        launch::check(&self.name, &self.arg_bytes, self.max_threads, shape, args)
    }
}

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
                    code: PtxKernel::new(module.clone(), name.clone()),
                };
                r.kernels.insert(name, kernel);
            }
        }
        r
    }

    /// Adds the kernels of a PTX module; a kernel of the same name is replaced.
    pub(super) fn add_ptx(&mut self, module: Arc<PtxModule>) {
        for f in module.kernels() {
            let name: Arc<str> = f.name.as_str().into();
            let code = PtxKernel::new(module.clone(), name.clone());
            self.kernels.insert(name, EmulatedKernel::of_ptx(f, code));
        }
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
