//! `/tmp/perf-PID.map`, from which `perf report` takes the names of code that no file on disk has:
//! one line for each function, with address, bytes (both hexadecimal) and name.
#![allow(clippy::disallowed_methods)] // A file at the edge, whose place perf prescribes.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::code::Code;

/// Adds a kernel. Without a file of this user's own perf shows addresses.
pub(super) fn map(code: &Code) {
    static FILE: OnceLock<Option<Mutex<File>>> = OnceLock::new();
    let Some(file) = FILE.get_or_init(open) else {
        return;
    };
    let (address, bytes) = code.extent();
    let line = format!("{address:x} {bytes:x} {}\n", code.name);
    let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
    // As above.
    let _ = file.write_all(line.as_bytes());
}

/// The folder is everybody's: what another user has put there, and links, are not followed.
fn open() -> Option<Mutex<File>> {
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o600);
    options.custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32);
    let file = options.open(format!("/tmp/perf-{}.map", std::process::id()));
    let file = file.ok()?;
    let meta = file.metadata().ok()?;
    let own = meta.is_file() && meta.uid() == rustix::process::geteuid().as_raw();
    own.then(|| Mutex::new(file))
}
