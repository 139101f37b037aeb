//! clang on this machine: which one compiles kernels.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::{Exit, Problem};

/// The oldest clang whose PTX has what the headers use.
const OLDEST: u32 = 19;
/// The newest that is looked for under a name with its version.
const NEWEST: u32 = 25;

/// clang for CUDA: the one that `CLANG` names, or the first of `clang-19`, `clang-20`, ..., `clang`
/// that is new enough.
///
/// # Errors
/// When there is none; the error has the line that installs it.
pub(crate) fn find() -> Result<PathBuf> {
    if let Some(named) = std::env::var_os("CLANG") {
        let named = PathBuf::from(named);
        return match version(&named) {
            Some(v) if v >= OLDEST => Ok(named),
            Some(v) => Err(missing(format!(
                "CLANG names {}, which is clang {v}",
                named.display()
            ))),
            None => Err(missing(format!(
                "CLANG names {}, which does not start",
                named.display()
            ))),
        };
    }
    (OLDEST..=NEWEST)
        .map(|v| format!("clang-{v}"))
        .chain(["clang".to_owned()])
        .map(PathBuf::from)
        .find(|name| version(name).is_some_and(|v| v >= OLDEST))
        .ok_or_else(|| missing(format!("there is no clang {OLDEST} or newer")))
}

fn missing(what: String) -> anyhow::Error {
    let advice = format!("apt-get install clang-{OLDEST}, or name another one in CLANG");
    Problem::new(Exit::Environment, what, &advice).into()
}

/// The major version that a compiler says it has.
fn version(clang: &Path) -> Option<u32> {
    let said = Command::new(clang).arg("--version").output().ok()?;
    let text = String::from_utf8(said.stdout).ok()?;
    let (_, rest) = text.split_once("clang version ")?;
    rest.split('.').next()?.parse().ok()
}
