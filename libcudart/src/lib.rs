//! A `libcudart`: CUDA's public runtime API over the functions of the driver, for `<<<>>>` as clang
//! and nvcc compile it.
//!
//! - `registry`: fat binaries, kernels and variables that a program's constructors register, loaded
//!   when first used;
//! - `launch`: configurations, launches, attributes of kernels;
//! - `memory`, `boxes`, `pool`, `stream`, `graph`, `device`, `properties`, `error`: the API by its
//!   parts;
//! - `version`: of which CUDA version the library is in a process;
//! - `driver`: the driver's functions, found at run time.
//!
//! It imitates nothing of NVIDIA's library but public names and numbers, and asks the driver for
//! nothing but public functions. NVIDIA's own runtime refuses a driver that is not NVIDIA's, so
//! programs that carry it do not run on the emulated GPU.
#![allow(unsafe_code)] // A C interface, over another one.
#![allow(non_snake_case)] // Its names.
#![allow(missing_docs)] // Documented by the CUDA runtime API.
#![allow(clippy::missing_safety_doc)] // As above.
#![allow(clippy::not_unsafe_ptr_arg_deref)] // C functions, which check null and trust the rest.

pub mod boxes;
pub mod device;
mod driver;
pub mod error;
pub mod graph;
pub mod launch;
pub mod memory;
pub mod pool;
pub mod properties;
pub mod registry;
pub mod stream;
mod version;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Stores a result through a pointer of the caller, if it is one.
pub(crate) fn put<T>(to: *mut T, value: T) -> Result<(), driver::Code> {
    if to.is_null() {
        return Err(error::INVALID_VALUE);
    }
    // SAFETY: the caller of the API promises a pointer to such a value.
    unsafe { to.write(value) };
    Ok(())
}
