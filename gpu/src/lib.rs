//! An emulated GPU that runs PTX, the assembly text that CUDA compilers write.
//!
//! - [`mod@parse`]: PTX text to a typed [`Module`], or an error with file and line;
//! - `module`: what a module consists of: types, variables, functions, instructions;
//! - `lower`: a kernel to machine code, by Cranelift. A thread is a function that returns where it
//!   waits;
//! - `number`: half precision and directed rounding, computed exactly;
//! - `memory`: which addresses a kernel may access;
//! - `check`: kernels compiled with hooks, and what the hooks find wrong;
//! - `debug`: compiled kernels for gdb and perf;
//! - `schedule`: a block as a stepper of warps and threads. Time, order and budget are arguments.
//!
//! It has no thread and no clock of its own, and it does not know the NIC. What kernels print goes
//! to an [`Output`]. Sections ("§") in this crate are those of NVIDIA's "Parallel Thread Execution
//! ISA" 8.6.

mod check;
mod debug;
mod lower;
mod memory;
mod module;
mod number;
mod parse;
mod schedule;

pub use check::{Allocations, Checker, Checks, Message, Operation, Watch};
pub use debug::Debuggers;
#[cfg(feature = "arm64")]
pub use lower::assemble_for_aarch64;
pub use lower::{Code, CodeKey, CodeStore, CompileError, Kernel, Program, Relation};
pub use memory::{Clock, Memory};
pub use module::{Function, Module, Parameter, Site, Type, Variable};
pub use parse::{parse, Linker, ParseError};
pub use schedule::{Block, Fault, FaultKind, Order, Output, Shape, Step, Until, Wait, WaitFor};
