//! PTX modules that a driver's interface loads: each is a value, and its kernels are launched by
//! handle, not by name.
#![allow(unsafe_code)] // Declares the function that launches native code.

use std::sync::Arc;

use ringbell_gpu::Parameter;
use ringbell_nic_abi::GpuVa;

use super::module::EmulatedKernel;
use super::ptx::{PtxKernel, PtxModule};
use crate::gpu::{KernelHandle, Launch, Stream};
use crate::launch::{KernelArg, LaunchError, LaunchShape};

/// A PTX module with its variables in GPU memory. A handle: the memory goes with the last one, and
/// each kernel that is queued or runs has one.
#[derive(Clone)]
pub struct LoadedModule(Arc<PtxModule>);

impl std::fmt::Debug for LoadedModule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LoadedModule({:?})", self.0.program())
    }
}

impl LoadedModule {
    pub(super) fn of(module: Arc<PtxModule>) -> LoadedModule {
        LoadedModule(module)
    }

    /// Names of its kernels, in the order of the text.
    pub fn kernels(&self) -> impl Iterator<Item = &str> {
        self.0.kernels().map(|f| f.name.as_str())
    }

    /// The kernel of a name.
    pub fn kernel(&self, name: &str) -> Option<LoadedKernel> {
        let function = self.0.function(name)?;
        let code = PtxKernel::new(self.0.clone(), name.into());
        let kernel = EmulatedKernel::of_ptx(function, code.clone());
        Some(LoadedKernel { kernel, code })
    }

    /// Whether a range lies in the memory of its variables.
    pub fn holds(&self, va: u64, len: u64) -> bool {
        let (base, bytes) = self.0.extent();
        va.checked_sub(base)
            .is_some_and(|at| at <= bytes && len <= bytes - at)
    }

    /// Address and bytes of a variable in GPU memory, constants included.
    pub fn variable(&self, name: &str) -> Option<(GpuVa, u64)> {
        self.0.variable(name)
    }
}

/// A kernel of a [`LoadedModule`].
#[derive(Clone)]
pub struct LoadedKernel {
    pub(super) kernel: EmulatedKernel,
    code: PtxKernel,
}

/// What a block of a kernel needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelNeeds {
    /// Bytes of static shared memory.
    pub shared_bytes: u32,
    /// Bytes of local memory of each thread.
    pub local_bytes: u32,
}

impl std::fmt::Debug for LoadedKernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LoadedKernel({})", self.kernel.name)
    }
}

impl KernelHandle for LoadedKernel {
    fn name(&self) -> &str {
        &self.kernel.name
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

impl LoadedKernel {
    /// Launches it behind the present work of a stream of its GPU, or captures it.
    ///
    /// # Errors
    /// As [`Stream::launch`]; [`LaunchError::Unsupported`] on a stream of a real GPU.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn launch(
        &self,
        stream: &Stream,
        shape: LaunchShape,
        args: &[KernelArg],
    ) -> Result<Launch, LaunchError> {
        stream.launch_loaded(self, shape, args)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.kernel.name
    }

    /// Its parameters, in order.
    pub fn parameters(&self) -> Vec<Parameter> {
        self.code.formals()
    }

    /// Most threads of a block.
    pub fn max_threads(&self) -> u64 {
        self.kernel.max_threads
    }

    /// The newest architecture that its module asks for: 80 for `sm_80`.
    pub fn target(&self) -> u32 {
        self.code.module().target()
    }

    /// What its blocks need; compiles it if that has not been done.
    ///
    /// # Errors
    /// [`LaunchError::Failed`]: the compiler refuses it.
    pub fn needs(&self) -> Result<KernelNeeds, LaunchError> {
        let code = self.code.code()?;
        Ok(KernelNeeds {
            shared_bytes: code.shared_bytes,
            local_bytes: code.local_bytes,
        })
    }
}
