//! Kernels to machine code.
//!
//! A kernel becomes one function, which runs a thread until it waits, ends or fails, and says
//! which. Where a thread waits, it stores its live registers and returns; entered again, it goes on
//! there. Called functions are compiled into their callers, so that only recursion and calls by
//! address need a stack.
//!
//! - `emit`: the code while it is written; `function`: control flow, calls, resume points;
//! - `liveness`: what is kept at waits; `registers`: and where; `polls`: loops that wait; `wanted`:
//!   for which value;
//! - `calls`: functions with code of their own, and the stack;
//! - `operand`: registers, constants, addresses;
//! - `arithmetic`, `extended`, `float`, `halves`, `bits`, `convert`, `access`, `asynchronous`,
//!   `matrix`, `wait`: the instructions;
//! - `system`: functions that the GPU provides; `helper`: those of the host;
//! - `lines`: which line the code is of, for debuggers.

mod access;
mod arithmetic;
mod asynchronous;
mod bits;
mod calls;
mod check;
mod convert;
mod emit;
mod extended;
mod float;
mod function;
mod halves;
mod helper;
mod lines;
mod liveness;
mod masked;
mod matrix;
mod operand;
mod polls;
mod registers;
mod system;
mod wait;
mod wanted;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cranelift_codegen::control::ControlPlane;
use cranelift_codegen::isa::OwnedTargetIsa;
use cranelift_codegen::settings::{self, Configurable};
use cranelift_codegen::Context;
use sha2::{Digest, Sha256};

use crate::code::{Code, Kernel, Lines, Placement};
use crate::debug::{self, Debuggers};
use crate::hooks::Checks;
use crate::module::{Module, Op, Site, Statement, Variable};
use crate::parse::{parse, ParseError};

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

/// What code depends on: text, kernel, compiler and processor, as a hash.
pub type CodeKey = [u8; 32];

/// Where compiled code is kept, for other programs of this process, or for later processes.
pub trait CodeStore: Send + Sync {
    /// Code that was kept under this key.
    fn find(&self, key: &CodeKey) -> Option<Arc<Code>>;
    /// Keeps code.
    fn keep(&self, key: &CodeKey, code: &Arc<Code>);
}

/// A module's text, and what was read of it.
struct Text {
    hash: [u8; 32],
    text: &'static str,
    module: OnceLock<Result<Module, ParseError>>,
}

/// A module at its place in GPU memory, whose kernels are compiled when they are first asked for.
pub struct Program {
    file: Arc<str>,
    text: Text,
    placement: Arc<Placement>,
    store: Option<Arc<dyn CodeStore>>,
    checks: Checks,
    debuggers: Debuggers,
    kernels: Mutex<HashMap<String, Arc<Kernel>>>,
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Program({})", self.file)
    }
}

impl Program {
    /// A module whose variables lie at `addresses`, one for each of [`Module::variables`], in a GPU
    /// memory of `bytes` bytes from `base`, which is aligned to 64 KiB.
    ///
    /// # Panics
    /// If the number of addresses is not that of the variables.
    pub fn new(module: Module, addresses: Vec<u64>, base: u64, bytes: u64) -> Program {
        assert_eq!(addresses.len(), module.variables.len());
        Program {
            file: module.file.clone(),
            text: Text {
                hash: module.text_hash,
                text: "",
                module: OnceLock::from(Ok(module)),
            },
            placement: Arc::new(Placement {
                variables: addresses,
                memory: (base, bytes),
            }),
            store: None,
            checks: Checks::default(),
            debuggers: Debuggers::default(),
            kernels: Mutex::default(),
        }
    }

    /// A text without variables, which is read when something of it must be compiled: not at all if
    /// all that is used of it is in the store. `hash` is its SHA-256.
    pub fn of_text(
        file: &str,
        text: &'static str,
        hash: [u8; 32],
        base: u64,
        bytes: u64,
    ) -> Program {
        Program {
            file: file.into(),
            text: Text {
                hash,
                text,
                module: OnceLock::new(),
            },
            placement: Arc::new(Placement {
                variables: Vec::new(),
                memory: (base, bytes),
            }),
            store: None,
            checks: Checks::default(),
            debuggers: Debuggers::default(),
            kernels: Mutex::default(),
        }
    }

    /// Takes code from this store, and keeps there what it compiles.
    #[must_use]
    pub fn with_store(self, store: Arc<dyn CodeStore>) -> Program {
        Program {
            store: Some(store),
            ..self
        }
    }

    /// The same, whose kernels are compiled with checks, and not kept. Their memory then has a
    /// [`Checker`](crate::Checker).
    #[must_use]
    pub fn checked(self, checks: Checks) -> Program {
        Program { checks, ..self }
    }

    /// The same, whose kernels these tools of the host know.
    #[must_use]
    pub fn debugged(self, debuggers: Debuggers) -> Program {
        Program { debuggers, ..self }
    }

    /// The module.
    ///
    /// # Errors
    /// [`ParseError`]: of a text that was not read before.
    pub fn module(&self) -> Result<&Module, ParseError> {
        let read = || {
            let module = parse(&self.file, self.text.text)?;
            let what = "its variables have no place: load it as a file".to_owned();
            match module.variables.iter().any(Variable::is_global) {
                true => Err(ParseError {
                    file: self.file.to_string(),
                    line: 1,
                    what,
                }),
                false => Ok(module),
            }
        };
        self.text
            .module
            .get_or_init(read)
            .as_ref()
            .map_err(Clone::clone)
    }

    /// A place of one of its kernels in words: line of the text, and of the source if the compiler
    /// has said it.
    pub fn describe(&self, site: Site) -> String {
        match self.module() {
            Ok(module) => module.describe(site),
            Err(_) => format!("{}:{}", self.file, site.line),
        }
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
        let code = self.code(name).map_err(|what| CompileError {
            file: self.file.to_string(),
            kernel: name.to_owned(),
            what,
        })?;
        self.tell(&code);
        let kernel = Arc::new(Kernel {
            code,
            placement: self.placement.clone(),
            helpers: helper::helpers(),
        });
        kernels.insert(name.to_owned(), kernel.clone());
        Ok(kernel)
    }

    /// From the store, or compiled.
    fn code(&self, name: &str) -> Result<Arc<Code>, String> {
        let store = self.store.as_ref().filter(|_| !self.checks.any());
        let key = match store {
            Some(store) => {
                let key = self.key(name)?;
                if let Some(code) = store.find(&key).filter(|c| c.name == name) {
                    return Ok(code);
                }
                Some((store, key))
            }
            None => None,
        };
        let module = self
            .module()
            .map_err(|e| format!("line {}: {}", e.line, e.what))?;
        let mut functions = module.functions.iter();
        let index = functions.position(|f| f.entry && f.defined && f.name == name);
        let index = index.ok_or("there is no such kernel")?;
        let code = Arc::new(compile(module, index, self.checks, self.debuggers.gdb)?);
        if let Some((store, key)) = key {
            store.keep(&key, &code);
        }
        Ok(code)
    }

    /// Lets the tools of the host know of code.
    fn tell(&self, code: &Code) {
        if self.debuggers.perf {
            debug::map_for_perf(code);
        }
        if self.debuggers.gdb {
            if let Ok(module) = self.module() {
                debug::register_with_gdb(code, module);
            }
        }
    }

    fn key(&self, kernel: &str) -> Result<CodeKey, String> {
        let isa = host(Registers::Good)?;
        let mut hash = Sha256::new();
        hash.update(COMPILER);
        // Code with lines is another.
        hash.update([u8::from(self.debuggers.gdb)]);
        hash.update(isa.triple().to_string());
        for flag in isa.isa_flags() {
            hash.update(flag.to_string());
        }
        hash.update(self.text.hash);
        hash.update(kernel);
        Ok(hash.finalize().into())
    }
}

fn compile(module: &Module, index: usize, checks: Checks, lines: bool) -> Result<Code, String> {
    let isa = host(match statements(module, index) > LARGE {
        true => Registers::Fast,
        false => Registers::Good,
    })?;
    let mut context = Context::new();
    let facts = function::lower((module, index), (checks, lines), &mut context.func, &*isa)?;
    let compiled = context
        .compile(&*isa, &mut ControlPlane::default())
        .map_err(|e| e.inner.to_string())?;
    let slot = facts.thread.map(|slot| Lines::of(compiled, slot, &*isa));
    Code::new(&module.functions[index], facts, compiled, slot.transpose()?)
}

/// Compiles all kernels of a text for aarch64, with all checks of the compiler's own, and returns
/// the bytes of code: of a host of another kind no code can run, but what the compiler refuses can
/// be known.
///
/// # Errors
/// The text cannot be read, or a kernel cannot be compiled.
#[cfg(feature = "arm64")]
pub fn assemble_for_aarch64(text: &str) -> Result<usize, String> {
    let module = parse("aarch64.ptx", text).map_err(|e| e.to_string())?;
    let triple = "aarch64-unknown-linux-gnu".parse();
    let triple = triple.map_err(|e| format!("{e:?}"))?;
    let mut flags = settings::builder();
    flags.set("opt_level", "speed").map_err(|e| e.to_string())?;
    let isa = cranelift_codegen::isa::lookup(triple).map_err(|e| e.to_string())?;
    let isa = isa
        .finish(settings::Flags::new(flags))
        .map_err(|e| e.to_string())?;
    let kernels = module.functions.iter().enumerate();
    let mut bytes = 0;
    for (index, f) in kernels.filter(|(_, f)| f.entry && f.defined) {
        let mut context = Context::new();
        function::lower(
            (&module, index),
            (Checks::default(), false),
            &mut context.func,
            &*isa,
        )?;
        let compiled = context.compile(&*isa, &mut ControlPlane::default());
        let compiled = compiled.map_err(|e| format!("kernel `{}`: {:?}", f.name, e.inner))?;
        bytes += compiled.code_buffer().len();
    }
    Ok(bytes)
}

/// Sources of this crate: code of another version of the compiler is not used.
const COMPILER: &str = env!("RINGBELL_GPU_SOURCES");

/// Statements of a function with those that are compiled into it, and of all that have code of
/// their own.
fn statements(module: &Module, index: usize) -> usize {
    let mut known = vec![None; module.functions.len()];
    fn count(module: &Module, index: usize, known: &mut [Option<usize>]) -> usize {
        if let Some(n) = known[index] {
            return n;
        }
        let body = &module.functions[index].body;
        let called = body.iter().map(|s| match s {
            Statement::Instruction(i) => match i.op {
                Op::Call { function, .. } if !module.outlined[function as usize] => {
                    count(module, function as usize, known)
                }
                _ => 0,
            },
            Statement::Label(_) => 0,
        });
        let called: usize = called.fold(0, usize::saturating_add);
        let n = called.saturating_add(body.len());
        known[index] = Some(n);
        n
    }
    let own = (0..module.functions.len()).filter(|f| module.outlined[*f]);
    let roots: Vec<usize> = own.chain([index]).collect();
    let counts = roots.into_iter().map(|f| count(module, f, &mut known));
    counts.fold(0, usize::saturating_add)
}

/// Statements beyond which registers are allocated in one pass.
const LARGE: usize = 12_000;

/// How registers are allocated.
enum Registers {
    Good,
    /// In one pass: half the time to compile, and half as much code again.
    Fast,
}

/// This machine as a target.
fn host(registers: Registers) -> Result<OwnedTargetIsa, String> {
    let mut flags = settings::builder();
    let registers = match registers {
        Registers::Good => "backtracking",
        Registers::Fast => "single_pass",
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
