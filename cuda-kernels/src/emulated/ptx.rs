//! Kernels of PTX: a module's variables in GPU memory, and the code of its kernels.

use std::sync::Arc;

use ringbell_gpu::{Checker, Function, Kernel, Module, Parameter, Program};
use ringbell_nic_abi::GpuVa;

use super::code_store::Kept;
use super::debugging;
use super::memory::EmulatedMemory;
use crate::builtin::BuiltinFile;
use crate::gpu::{GpuError, ModuleError};
use crate::launch::{Failure, LaunchError};

/// Bytes between variables of checked kernels.
const GAP: u64 = 64;

/// Memory that goes back when it is dropped.
pub(super) type Freed = Box<dyn Send + Sync>;

/// A PTX module on an emulated GPU.
pub(super) struct PtxModule {
    program: Program,
    /// Address of each of the module's variables in GPU memory, by its index.
    addresses: Vec<u64>,
    /// Its kernels read the address of words for a whole launch.
    environment: bool,
    /// First address and bytes of the memory of all variables.
    extent: (u64, u64),
    /// Memory of its variables.
    _variables: Option<Freed>,
}

impl PtxModule {
    pub(super) fn kernels(&self) -> impl Iterator<Item = &Function> {
        self.program.module().into_iter().flat_map(|m| m.kernels())
    }

    /// The kernel of a name.
    pub(super) fn function(&self, name: &str) -> Option<&Function> {
        self.kernels().find(|f| f.name == name)
    }

    pub(super) fn program(&self) -> &Program {
        &self.program
    }

    /// The newest architecture that it asks for: 80 for `sm_80`.
    pub(super) fn target(&self) -> u32 {
        self.program.module().map_or(0, |m| m.target)
    }

    /// Whether its kernels read the address of words for a whole launch.
    pub(super) fn has_environment(&self) -> bool {
        self.environment
    }

    pub(super) fn extent(&self) -> (u64, u64) {
        self.extent
    }

    /// Address and bytes of a variable in GPU memory.
    pub(super) fn variable(&self, name: &str) -> Option<(GpuVa, u64)> {
        let all = &self.program.module().ok()?.variables;
        let i = all.iter().position(|v| v.is_global() && v.name == name)?;
        Some((GpuVa(self.addresses[i]), u64::from(all[i].bytes)))
    }
}

/// Reads text that errors call `name`, and gives its variables their places in memory that `alloc`
/// provides for so many bytes.
pub(super) fn load_text(
    memory: &EmulatedMemory,
    name: &str,
    text: &str,
    alloc: impl FnOnce(u64) -> Result<(GpuVa, Freed), GpuError>,
) -> Result<Arc<PtxModule>, ModuleError> {
    load_parsed(memory, name, ringbell_gpu::parse(name, text)?, alloc)
}

/// The same of a module that was read.
pub(super) fn load_parsed(
    memory: &EmulatedMemory,
    name: &str,
    module: Module,
    alloc: impl FnOnce(u64) -> Result<(GpuVa, Freed), GpuError>,
) -> Result<Arc<PtxModule>, ModuleError> {
    let refuse = |reason: String| ModuleError::Load {
        path: name.into(),
        reason,
    };
    let checks = memory.watched.checker().map(Checker::checks);
    let checks = checks.unwrap_or_default();
    let (mut at, mut offsets) = (0u64, Vec::new());
    for v in &module.variables {
        let align = if checks.any() {
            v.align.max(16)
        } else {
            v.align
        };
        at = at.next_multiple_of(u64::from(align.max(1)));
        offsets.push(at);
        let gap = if checks.any() { GAP } else { 0 };
        at += if v.is_global() {
            u64::from(v.bytes) + gap
        } else {
            0
        };
    }
    let variables = match at {
        0 => None,
        bytes => Some(alloc(bytes).map_err(|e| refuse(e.to_string()))?),
    };
    let base = variables.as_ref().map_or(0, |(va, _)| va.0);
    let addresses: Vec<u64> = offsets.iter().map(|o| base + o).collect();
    let placed = module.variables.iter().zip(&addresses);
    let placed = placed.filter(|(v, _)| v.is_global());
    let named = placed.map(|(v, at)| (*at, u64::from(v.bytes), v.name.as_str()));
    memory.watched.variables(base, named);
    for (v, offset) in module.variables.iter().zip(&offsets) {
        if v.is_global() && v.bytes > 0 {
            let first = base + offset - memory.base_va();
            memory.write_at(first as usize, &v.image(&addresses));
        }
    }
    let environment = module.environment;
    let program = Program::new(module, addresses.clone(), memory.base_va(), memory.len())
        .checked(checks)
        .debugged(debugging::asked().tools)
        .with_store(Kept::of_process());
    Ok(Arc::new(PtxModule {
        program,
        addresses,
        environment,
        extent: (base, at),
        _variables: variables.map(|(_, kept)| kept),
    }))
}

/// A file of the SDK, which has no variables, and is read when one of its kernels must be compiled.
pub(super) fn builtin(memory: &EmulatedMemory, file: &BuiltinFile) -> Arc<PtxModule> {
    let checks = memory.watched.checker().map(Checker::checks);
    let (base, bytes) = (memory.base_va(), memory.len());
    let program = Program::of_text(file.name, file.text, file.hash, base, bytes)
        .checked(checks.unwrap_or_default())
        .debugged(debugging::asked().tools)
        .with_store(Kept::of_process());
    Arc::new(PtxModule {
        program,
        addresses: Vec::new(),
        environment: false,
        extent: (0, 0),
        _variables: None,
    })
}

/// A kernel of a PTX module.
#[derive(Clone)]
pub(super) struct PtxKernel {
    module: Arc<PtxModule>,
    name: Arc<str>,
}

impl PtxKernel {
    pub(super) fn new(module: Arc<PtxModule>, name: Arc<str>) -> PtxKernel {
        PtxKernel { module, name }
    }

    /// The kernel's code, compiled at the first call.
    pub(super) fn code(&self) -> Result<Arc<Kernel>, LaunchError> {
        let code = self.module.program.kernel(&self.name);
        code.map_err(|e| LaunchError::Failed {
            kernel: self.name.to_string(),
            failure: Failure::Code,
            reason: e.to_string(),
        })
    }

    /// The parameters, in order.
    pub(super) fn formals(&self) -> Vec<Parameter> {
        let function = self.module.function(&self.name);
        function.map(Function::parameters).unwrap_or_default()
    }

    pub(super) fn module(&self) -> &Arc<PtxModule> {
        &self.module
    }
}
