//! Programs that start with a library of ours in front of their own.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::library::Library;

/// The program, with the library preloaded: the named one, or the one that comes with this command.
pub(crate) fn command(
    program: &[OsString],
    library: &Library,
    named: Option<&Path>,
) -> Result<Command> {
    let mut preloaded = library.find(named)?.into_os_string();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|o| !o.is_empty()) {
        preloaded.push(":");
        preloaded.push(others);
    }
    let mut command = Command::new(&program[0]);
    command.args(&program[1..]).env("LD_PRELOAD", preloaded);
    Ok(command)
}
