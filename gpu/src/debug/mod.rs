//! Compiled kernels for tools of the host: names, lines and frames for gdb, names for perf.
//!
//! - `object`: the object file in memory that gdb is given; `dwarf`: the debugging information
//!   inside;
//! - `perf`: the file from which perf takes names.
//!
//! A thread of a kernel is a call of one function, which returns where the thread waits and is
//! called again later. So a breakpoint stops each thread of the GPU that passes it, one at the
//! kernel's name also those that go on, and the caller's frames are those of the scheduler.

mod dwarf;
mod object;
mod perf;

use crate::code::{register, Code};
use crate::module::Module;

/// Tools of the host that are told of compiled kernels.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Debuggers {
    /// gdb, by its JIT interface. Kernels are compiled with lines, which takes longer.
    pub gdb: bool,
    /// perf, by `/tmp/perf-PID.map`.
    pub perf: bool,
}

/// Lets gdb know of a kernel of this module, once. Without lines it has none to know.
pub(crate) fn register_with_gdb(code: &Code, module: &Module) {
    code.registered.get_or_init(|| {
        let image = object::image(code, module)?;
        Some(register(image))
    });
}

/// Lets perf know of a kernel, once.
pub(crate) fn map_for_perf(code: &Code) {
    code.mapped.get_or_init(|| perf::map(code));
}
