//! Bindings to GDRCopy, NVIDIA's library that maps GPU memory for the CPU.
//!
//! The build needs no part of it: [`load`] opens `libgdrapi.so.2` at run time and looks for every
//! function. Those of version 2.0 are required; later ones may be missing (see [`Gdrapi`]'s
//! fields), and calling a missing one through its method panics, so check the field first.
//!
//! `src/bindings.rs` is generated from `abi/gdrapi.h`, our own description of the interface, by
//! `generate` (feature `bindgen`, off by default). The test `abi` compares sizes, offsets and
//! values of the bindings with that header, and with the installed `gdrapi.h` if there is one.
//!
//! ```no_run
//! let api = gdrcopy_sys::load()?;
//! // SAFETY: no arguments.
//! let handle = unsafe { api.gdr_open() };
//! println!("{}", if handle.is_null() { "no gdrdrv" } else { "ready" });
//! # Ok::<(), gdrcopy_sys::LoadError>(())
//! ```
#![allow(unsafe_code)] // Loads a library of C.

#[allow(missing_docs, unreachable_pub)]
#[allow(non_camel_case_types, unsafe_op_in_unsafe_fn)]
#[allow(clippy::all, clippy::undocumented_unsafe_blocks)]
mod bindings;
#[cfg(feature = "bindgen")]
mod generate;
#[cfg(feature = "testing")]
pub mod testing;

use std::ffi::OsStr;
use std::fmt;

pub use bindings::*;
#[cfg(feature = "bindgen")]
pub use generate::{generate, GenerateError};

/// The library's name: its major version is its ABI's.
pub const LIBRARY: &str = "libgdrapi.so.2";

/// The library cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// It is not installed, or the loader refuses it.
    #[error(
        "cannot load {LIBRARY}: {0}; install GDRCopy's library (package libgdrapi), or do without"
    )]
    Library(#[source] libloading::Error),
    /// It lacks a function that version 2.0 has.
    #[error("{LIBRARY} has no function {function}; it is no GDRCopy 2, or a broken one: install it anew")]
    Function {
        /// Which.
        function: &'static str,
    },
}

/// Loads [`LIBRARY`] as the system's loader finds it.
///
/// # Errors
/// [`LoadError`]; without the library, or when it is not GDRCopy 2.
pub fn load() -> Result<Gdrapi, LoadError> {
    load_from(LIBRARY)
}

/// As [`load`], from a path.
///
/// # Errors
/// As for [`load`].
pub fn load_from(path: impl AsRef<OsStr>) -> Result<Gdrapi, LoadError> {
    // SAFETY: loading runs the library's initialisers, which is what its users expect of it; the
    // functions have the types of the header (test `abi`).
    let api = unsafe { Gdrapi::new(path.as_ref()) }.map_err(LoadError::Library)?;
    let there = [
        ("gdr_open", api.gdr_open.is_ok()),
        ("gdr_close", api.gdr_close.is_ok()),
        ("gdr_pin_buffer", api.gdr_pin_buffer.is_ok()),
        ("gdr_unpin_buffer", api.gdr_unpin_buffer.is_ok()),
        ("gdr_get_callback_flag", api.gdr_get_callback_flag.is_ok()),
        (
            "gdr_get_info",
            api.gdr_get_info.is_ok() || api.gdr_get_info_v2.is_ok(),
        ),
        ("gdr_map", api.gdr_map.is_ok()),
        ("gdr_unmap", api.gdr_unmap.is_ok()),
        ("gdr_copy_to_mapping", api.gdr_copy_to_mapping.is_ok()),
        ("gdr_copy_from_mapping", api.gdr_copy_from_mapping.is_ok()),
        (
            "gdr_runtime_get_version",
            api.gdr_runtime_get_version.is_ok(),
        ),
        ("gdr_driver_get_version", api.gdr_driver_get_version.is_ok()),
    ];
    match there.iter().find(|(_, there)| !there) {
        Some(&(function, _)) => Err(LoadError::Function { function }),
        None => Ok(api),
    }
}

impl Gdrapi {
    /// The library's version, major and minor.
    pub fn version(&self) -> (i32, i32) {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: stores two integers.
        unsafe { self.gdr_runtime_get_version(&mut major, &mut minor) };
        (major, minor)
    }
}

impl fmt::Debug for Gdrapi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.version();
        write!(f, "Gdrapi({major}.{minor})")
    }
}
