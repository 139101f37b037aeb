//! An emulated GPU that runs PTX, the assembly text that CUDA compilers write.
//!
//! - [`mod@parse`]: PTX text to a typed [`Module`], or an error with file and line;
//! - `module`: what a module consists of: types, variables, functions, instructions;
//! - `lower`: a kernel to machine code, by Cranelift. A thread is a function that returns where it
//!   waits;
//! - `number`: half precision and directed rounding, computed exactly;
//! - `code`: what results, and its form on disk;
//! - `memory`: which addresses a kernel may access; `context`: what its code shares with this
//!   program;
//! - `hooks`: kernels compiled with checks; `check`: what these find wrong;
//! - `debug`: compiled kernels for gdb and perf;
//! - `schedule`: a block as a stepper of warps and threads. Time, order and budget are arguments.
//!
//! It has no thread and no clock of its own, and it does not know the NIC. What kernels print goes
//! to an [`Output`]. Sections ("§") in this crate are those of NVIDIA's "Parallel Thread Execution
//! ISA" 8.6.

mod check;
mod code;
mod context;
mod debug;
mod hooks;
mod lower;
mod memory;
mod module;
mod number;
mod parse;
mod schedule;

pub use check::{Allocations, Checker, Message, Operation, Watch};
pub use code::{Code, Kernel, Relation, Shape};
pub use debug::Debuggers;
pub use hooks::Checks;
#[cfg(feature = "arm64")]
pub use lower::assemble_for_aarch64;
pub use lower::{CodeKey, CodeStore, CompileError, Program};
pub use memory::{Clock, Memory, Output};
pub use module::{Function, Module, Parameter, Site, Type, Variable};
pub use parse::{parse, Linker, ParseError};
pub use schedule::{Block, Fault, FaultKind, Order, Step, Until, Wait, WaitFor};
