//! Kernels to machine code.
//!
//! A kernel becomes one function, which runs a thread until it waits, ends or fails, and says which. Where a thread
//! waits, it stores its live registers and returns; entered again, it goes on there. Called functions are compiled
//! into their callers, so that no thread needs a stack.
//!
//! - `function`: control flow, calls, resume points; `liveness`: what is kept at them; `registers`: and where;
//! - `operand`: registers, constants, addresses;
//! - `arithmetic`, `float`, `bits`, `convert`, `access`, `wait`: the instructions;
//! - `system`: functions that the GPU provides.
#![allow(unsafe_code)] // Makes functions of compiled code.

mod access;
mod arithmetic;
mod bits;
mod convert;
mod float;
mod function;
mod liveness;
mod operand;
mod registers;
mod system;
mod wait;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use cranelift_codegen::isa::OwnedTargetIsa;
use cranelift_codegen::settings::{self, Configurable};
use cranelift_jit::{JITBuilder, JITModule};
use cranelift_module::Module as _;

use crate::module::{Module, Site};
use crate::schedule::Thread;

/// Why a kernel could not be compiled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}: kernel `{kernel}` cannot be compiled: {what}")]
pub struct CompileError {
    /// The module's file.
    pub file: String,
    /// Kernel.
    pub kernel: String,
    /// What the compiler says.
    pub what: String,
}

type Entry = unsafe extern "C" fn(*mut Thread) -> u32;

/// A compiled kernel.
pub struct Kernel {
    /// Its name.
    pub name: String,
    /// Bytes of its parameters.
    pub parameter_bytes: u32,
    /// Bytes of static shared memory.
    pub shared_bytes: u32,
    /// Whether it uses dynamic shared memory.
    pub dynamic_shared: bool,
    /// Bytes of local memory of each thread.
    pub local_bytes: u32,
    /// Bytes of its machine code.
    pub code_bytes: u32,
    pub(crate) frame_words: u32,
    pub(crate) entry: Entry,
    pub(crate) sites: Vec<Site>,
    /// Owns the code; an option, because freeing takes it.
    code: Option<JITModule>,
}

// SAFETY: the code is read-only once compiled, and the module is only touched again when it is freed.
unsafe impl Send for Kernel {}
// SAFETY: as for Send.
unsafe impl Sync for Kernel {}

impl std::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Kernel({})", self.name)
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        if let Some(code) = self.code.take() {
            // SAFETY: code runs only under a handle of the kernel, and this was the last one.
            unsafe { code.free_memory() };
        }
    }
}

/// A module at its place in GPU memory, whose kernels are compiled when they are first asked for.
#[derive(Debug)]
pub struct Program {
    module: Module,
    /// Address of each of the module's variables; 0 for those in shared memory.
    addresses: Vec<u64>,
    memory: (u64, u64),
    kernels: Mutex<HashMap<String, Arc<Kernel>>>,
}

impl Program {
    /// A module whose variables lie at `addresses`, one for each of [`Module::variables`], in a GPU memory of
    /// `bytes` bytes from `base`, which is aligned to 64 KiB.
    ///
    /// # Panics
    /// If the number of addresses is not that of the variables.
    pub fn new(module: Module, addresses: Vec<u64>, base: u64, bytes: u64) -> Program {
        assert_eq!(addresses.len(), module.variables.len());
        Program {
            module,
            addresses,
            memory: (base, bytes),
            kernels: Mutex::default(),
        }
    }

    /// The module.
    pub fn module(&self) -> &Module {
        &self.module
    }

    /// A kernel's code, compiled at the first call.
    ///
    /// # Errors
    /// [`CompileError`]: there is no such kernel, or Cranelift refuses it.
    pub fn kernel(&self, name: &str) -> Result<Arc<Kernel>, CompileError> {
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(k) = kernels.get(name) {
            return Ok(k.clone());
        }
        let kernel = self.compile(name).map_err(|what| CompileError {
            file: self.module.file.to_string(),
            kernel: name.to_owned(),
            what,
        })?;
        let kernel = Arc::new(kernel);
        kernels.insert(name.to_owned(), kernel.clone());
        Ok(kernel)
    }

    fn compile(&self, name: &str) -> Result<Kernel, String> {
        let mut functions = self.module.functions.iter();
        let index = functions.position(|f| f.entry && f.defined && f.name == name);
        let index = index.ok_or("there is no such kernel")?;
        let isa = host(self.module.functions[index].body.len())?;
        let mut code = JITModule::new(JITBuilder::with_isa(
            isa,
            cranelift_module::default_libcall_names(),
        ));
        let mut context = code.make_context();
        let lowered =
            function::lower(self, index, &mut context.func, code.isa().frontend_config())?;
        let id = code
            .declare_anonymous_function(&context.func.signature)
            .map_err(|e| e.to_string())?;
        code.define_function(id, &mut context)
            .map_err(|e| format!("{e:?}"))?;
        let compiled = context.compiled_code();
        let code_bytes = compiled.map_or(0, |c| c.code_buffer().len() as u32);
        code.finalize_definitions().map_err(|e| e.to_string())?;
        let at = code.get_finalized_function(id);
        // SAFETY: compiled with this signature just now; the kernel keeps the module that owns it.
        let entry = unsafe { std::mem::transmute::<*const u8, Entry>(at) };
        let parameters = self.module.functions[index].parameters();
        Ok(Kernel {
            name: name.to_owned(),
            parameter_bytes: parameters.last().map_or(0, |p| p.offset + p.bytes),
            shared_bytes: lowered.shared_bytes,
            dynamic_shared: lowered.dynamic_shared,
            local_bytes: lowered.local_bytes,
            code_bytes,
            frame_words: lowered.frame_words,
            entry,
            sites: lowered.sites,
            code: Some(code),
        })
    }
}

/// Statements beyond which registers are allocated in one pass: half the time to compile, and half as much code again.
const LARGE: usize = 12_000;

/// This machine as a target, for a kernel of so many statements.
fn host(statements: usize) -> Result<OwnedTargetIsa, String> {
    let mut flags = settings::builder();
    let registers = if statements > LARGE {
        "single_pass"
    } else {
        "backtracking"
    };
    for (name, value) in [
        ("opt_level", "speed"),
        ("enable_verifier", "false"),
        ("regalloc_algorithm", registers),
    ] {
        flags.set(name, value).map_err(|e| e.to_string())?;
    }
    let isa = cranelift_native::builder()?;
    isa.finish(settings::Flags::new(flags))
        .map_err(|e| e.to_string())
}
