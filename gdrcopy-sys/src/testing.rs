//! A mock `libgdrapi.so.2` for tests (feature `testing`), built from `mocks/gdrapi/gdrapi.c`.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::LIBRARY;

/// Compiles the mock into a folder, under the library's own name, with more arguments. Returns its
/// path.
///
/// # Errors
/// What the C compiler says. `CC` names the compiler, `cc` by default.
pub fn build_mock(dir: &Path, arguments: &[&str]) -> Result<PathBuf, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let to = dir.join(LIBRARY);
    let mut cc = compiler();
    cc.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-I"])
        .arg(root.join("abi"))
        .args(arguments)
        .arg(root.join("../mocks/gdrapi/gdrapi.c"))
        .arg("-o")
        .arg(&to);
    run(&mut cc).map(|()| to)
}

/// Checks the syntax and types of a C file.
///
/// # Errors
/// What the C compiler says.
pub fn check_c(file: &Path, include: &Path) -> Result<(), String> {
    let mut cc = compiler();
    cc.args(["-fsyntax-only", "-Wall", "-Werror", "-x", "c", "-I"]);
    run(cc.arg(include).arg(file))
}

fn compiler() -> Command {
    Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
}

fn run(command: &mut Command) -> Result<(), String> {
    let out = command
        .output()
        .map_err(|e| format!("cannot start {command:?}: {e}; install a C compiler, or set CC"))?;
    match out.status.success() {
        true => Ok(()),
        false => Err(format!(
            "{command:?} ended with {}:\n{}",
            out.status,
            String::from_utf8_lossy(&out.stderr)
        )),
    }
}
