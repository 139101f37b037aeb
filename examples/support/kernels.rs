//! Builds the kernels of an example, as a program's own build would.

use std::io::{Error, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// `ringbell cc`: the kernels of a source in `examples/` as a shared object for the emulated GPU.
pub(crate) fn build(source: &str) -> Result<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("examples")
        .join(source);
    let example = std::env::current_exe()?; // target/debug/examples/NAME
    let folder = example.ancestors().nth(2);
    let ringbell = folder
        .ok_or_else(|| Error::other("no target folder"))?
        .join("ringbell");
    let module = example.with_extension("so");
    let mut cc = Command::new(&ringbell);
    cc.args(["cc", "--emulate-only"]).arg(source);
    match cc.arg("-o").arg(&module).status() {
        Ok(end) if end.success() => Ok(module),
        Ok(end) => Err(Error::other(format!(
            "{} ended with {end}",
            ringbell.display()
        ))),
        Err(e) => Err(Error::other(format!(
            "cannot start {}: {e}; run `cargo build` first",
            ringbell.display()
        ))),
    }
}
