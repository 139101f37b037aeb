//! How functions of C are exported: each is taken, or else answered by the library below.
#![allow(unsafe_code)] // Calls the library below.

use std::ffi::c_int;

use crate::abi::Handle;
use crate::below::below;

/// Exports a function that is taken, or else answered by the library below.
macro_rules! exported {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $ty:ty),* $(,)?) => $taken:expr;)*) => {$(
        $(#[$doc])*
        #[no_mangle]
        #[allow(non_snake_case)] // MPI's name.
        pub(crate) unsafe extern "C" fn $name($($arg: $ty),*) -> c_int {
            if let Some(code) = $taken {
                return code;
            }
            // SAFETY: the program's own call.
            unsafe { below!(concat!("P", stringify!($name)), fn($($ty),*) -> c_int)($($arg),*) }
        }
    )*};
}

/// The same with a count of `int` and with `MPI_Count`. A library from before MPI 4 has only the
/// first, and mpi4py takes the second wherever it finds one: ours.
macro_rules! counted {
    ($($name:ident, $long:ident($($arg:ident: $ty:tt),* $(,)?) => $taken:expr;)*) => {$(
        exported! {
            $name($($arg: counted!(@int $ty)),*) => $taken;
        }

        #[doc = concat!("`", stringify!($name), "` of long counts.")]
        #[no_mangle]
        #[allow(non_snake_case)] // MPI's name.
        unsafe extern "C" fn $long($($arg: counted!(@long $ty)),*) -> c_int {
            if let Some(code) = $taken {
                return code;
            }
            static LONG: Symbol = Symbol::new(concat!("P", stringify!($long), "\0"));
            if !LONG.find().is_null() {
                // SAFETY: the program's own call.
                return unsafe { below!(concat!("P", stringify!($long)), fn($(counted!(@long $ty)),*) -> c_int)($($arg),*) };
            }
            #[allow(unused_variables)] // Arrays have one count for each rank.
            let ranks = [$(counted!(@comm $ty $arg)),*].into_iter().flatten().next_back().map_or(0, size_of_comm);
            $(
                let Some($arg) = (counted!(@narrow $ty $arg ranks)) else {
                    return ERR_COUNT;
                };
            )*
            // SAFETY: as before.
            unsafe { below!(concat!("P", stringify!($name)), fn($(counted!(@int $ty)),*) -> c_int)($(counted!(@give $ty $arg)),*) }
        }
    )*};
    (@int Count) => { c_int };
    (@int Counts) => { *const c_int };
    (@int Places) => { *const c_int };
    (@int $ty:tt) => { $ty };
    (@long Count) => { i64 };
    (@long Counts) => { *const i64 };
    (@long Places) => { *const i64 };
    (@long $ty:tt) => { $ty };
    (@comm Comm $arg:ident) => { Some($arg) };
    (@comm $ty:tt $arg:ident) => { None };
    (@narrow Count $arg:ident $ranks:ident) => { c_int::try_from($arg).ok() };
    (@narrow Counts $arg:ident $ranks:ident) => { narrow($arg, $ranks) };
    (@narrow Places $arg:ident $ranks:ident) => { narrow($arg, $ranks) };
    (@narrow $ty:tt $arg:ident $ranks:ident) => { Some($arg) };
    (@give Counts $arg:ident) => { $arg.as_ptr() };
    (@give Places $arg:ident) => { $arg.as_ptr() };
    (@give $ty:tt $arg:ident) => { $arg };
}

pub(crate) use {counted, exported};

/// `MPI_ERR_COUNT`, which the three ABIs have in common.
pub(crate) const ERR_COUNT: c_int = 2;

/// Ranks of a communicator.
pub(crate) fn size_of_comm(comm: Handle) -> usize {
    let mut size: c_int = 0;
    // SAFETY: the signature of MPI's standard.
    unsafe { below!("PMPI_Comm_size", fn(Handle, *mut c_int) -> c_int)(comm, &raw mut size) };
    usize::try_from(size).unwrap_or(0)
}

/// An array of counts as `int`, where they fit.
pub(crate) fn narrow(counts: *const i64, ranks: usize) -> Option<Vec<c_int>> {
    // SAFETY: the program's array, which has one for each rank.
    let counts = (0..ranks).map(|i| unsafe { *counts.add(i) });
    counts.map(|c| c_int::try_from(c).ok()).collect()
}
