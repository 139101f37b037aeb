//! Failures of calls that were taken: a text on stderr that names the rank, then the communicator's
//! error handler.
#![allow(unsafe_code)] // Calls the library below.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, CString};
use std::sync::{Mutex, PoisonError};

use ringbell::abi::Status;
use ringbell::CollectiveError;

use crate::abi::Handle;
use crate::below::below;
use crate::group::Group;
use crate::trace::say;

/// Longest text of an error in either library, with its zero.
const LONGEST: usize = 250;

/// Reports a failure, and gives the code that the call returns where the error handler lets it.
pub(crate) fn report(call: &str, comm: Handle, group: &Group, error: &CollectiveError) -> c_int {
    let mut text = format!("{call}: {error}");
    if let CollectiveError::Failed {
        status: Status::PeerFailed,
        detail,
        ..
    } = error
    {
        let world = group.world_ranks().get(*detail as usize);
        let world = world.map_or_else(String::new, |w| format!(" (rank {w} of MPI_COMM_WORLD)"));
        text = format!("MPI_ERR_PROC_FAILED: {call}: rank {detail}{world} has ended");
    }
    let me = group.world_ranks().get(group.rank() as usize);
    say(format_args!("rank {}: {text}", me.copied().unwrap_or(0)));
    raise(comm, code(&text))
}

/// The code of the library below for a text. It has room for some thousand, so that each text gets
/// one.
pub(crate) fn code(text: &str) -> c_int {
    static KNOWN: Mutex<BTreeMap<CString, c_int>> = Mutex::new(BTreeMap::new());
    let text = &text[..text.floor_char_boundary(LONGEST)];
    let text = CString::new(text).unwrap_or_default();
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(code) = known.get(&text) {
        return *code;
    }
    let (mut class, mut code) = (0, 0);
    // SAFETY: the signatures of MPI's standard.
    unsafe {
        below!("PMPI_Add_error_class", fn(*mut c_int) -> c_int)(&raw mut class);
        below!("PMPI_Add_error_code", fn(c_int, *mut c_int) -> c_int)(class, &raw mut code);
        below!("PMPI_Add_error_string", fn(c_int, *const c_char) -> c_int)(code, text.as_ptr());
    }
    known.insert(text, code);
    code
}

/// Calls the communicator's error handler, and gives the code that the call returns where the
/// handler lets it.
pub(crate) fn raise(comm: Handle, code: c_int) -> c_int {
    // SAFETY: the signature of MPI's standard.
    unsafe { below!("PMPI_Comm_call_errhandler", fn(Handle, c_int) -> c_int)(comm, code) };
    code
}
