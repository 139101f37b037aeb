//! Native module of the Python package `ringbell`: the face of the crate `ringbell` as classes.
//!
//! `python/ringbell` is the package: it adds names, types and texts, and has the tests' view of
//! this module in `_ringbell.pyi`.
//!
//! `nic`: the NIC, and a process's place in a job. `memory`, `element`: buffers and their element
//! types. `operand`, `kept`: Python objects whose memory the NIC uses in place, and tensors'
//! registrations. `comm`, `request`, `posted`: communicators and their operations. `socket`,
//! `engine`: connections, and engines on their bytes. `waiting`: waits without the interpreter's
//! lock that Ctrl-C ends. `process`: objects that a forked child must not touch. `failure`: errors
//! as exceptions.

mod comm;
mod cuda_array;
mod element;
mod engine;
mod failure;
mod kept;
mod memory;
mod nic;
mod operand;
mod posted;
mod process;
mod request;
mod socket;
mod waiting;

use pyo3::prelude::*;

/// The classes of the package; `ringbell` exports them under its own names.
#[pymodule(gil_used = true)]
fn _ringbell(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<nic::Nic>()?;
    module.add_class::<nic::Job>()?;
    module.add_class::<nic::Bootstrap>()?;
    module.add_class::<memory::HostBuffer>()?;
    module.add_class::<memory::DeviceBuffer>()?;
    module.add_class::<operand::Registration>()?;
    module.add_class::<comm::Comm>()?;
    module.add_class::<engine::Engine>()?;
    module.add_class::<socket::Listener>()?;
    module.add_class::<socket::Socket>()?;
    module.add_class::<request::Request>()
}
