//! Lines on stderr, and what was taken and what was handed on, for `ringbell mpi --explain`.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::Write;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Prints a line on stderr by one write, so that lines of several ranks do not mix: `eprintln!`
/// writes piece by piece. A failure to do so cannot be reported.
pub(crate) fn say(text: impl Display) {
    let _ = std::io::stderr().write_all(format!("ringbell: {text}\n").as_bytes());
}

/// Whether calls are explained on stderr.
pub(crate) fn traces() -> bool {
    static TRACES: OnceLock<bool> = OnceLock::new();
    *TRACES.get_or_init(|| std::env::var_os("RINGBELL_MPI_TRACE").is_some_and(|v| v != "0"))
}

/// Calls and their bytes, by name and why they were handed on (empty: taken).
type Calls = BTreeMap<(&'static str, &'static str), (u64, u64)>;

static CALLS: Mutex<Calls> = Mutex::new(BTreeMap::new());

/// Copies of GPU memory and their bytes, by direction.
static COPIES: Mutex<BTreeMap<&str, (u64, u64)>> = Mutex::new(BTreeMap::new());

/// Counts a call that was taken (`why` is `None`) or handed on.
pub(crate) fn note(call: &'static str, why: Option<&'static str>, bytes: u64) {
    if !traces() {
        return;
    }
    let mut calls = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
    let entry = calls.entry((call, why.unwrap_or(""))).or_default();
    *entry = (entry.0 + 1, entry.1 + bytes);
}

/// Counts a copy of GPU memory, which a call may need several of.
pub(crate) fn note_copy(direction: &'static str, bytes: u64) {
    if !traces() {
        return;
    }
    let mut copies = COPIES.lock().unwrap_or_else(PoisonError::into_inner);
    let entry = copies.entry(direction).or_default();
    *entry = (entry.0 + 1, entry.1 + bytes);
}

/// One line for each kind of call and of copies, when the program finalizes MPI.
pub(crate) fn summary() -> Vec<String> {
    let calls = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
    let line = |((call, why), (times, bytes)): (&(&str, &str), &(u64, u64))| match *why {
        "" => format!("{call}: {times} taken, {bytes} bytes"),
        why => format!("{call}: {times} handed on: {why}"),
    };
    let copies = COPIES.lock().unwrap_or_else(PoisonError::into_inner);
    let copied = |(direction, (times, bytes)): (&&str, &(u64, u64))| {
        format!("copies {direction} a GPU: {times}, {bytes} bytes")
    };
    let calls = calls.iter().map(line);
    calls.chain(copies.iter().map(copied)).collect()
}
