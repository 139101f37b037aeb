//! Link step: from an object file to a program or a shared object.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use object::{Object as _, ObjectSymbol as _};

use super::{succeed, COMPILER};
use crate::library::Library;
use crate::{Exit, Problem};

const LIBRARY: &str = "libringbell.so";

/// Whether the object defines `main`: then it is a program.
pub(super) fn has_main(object: &Path) -> Result<bool> {
    let bytes = std::fs::read(object)
        .with_context(|| format!("the compiler has not written {}", object.display()))?;
    let file = object::File::parse(&*bytes)
        .with_context(|| format!("{} is no object file of this machine", object.display()))?;
    let is_main = file
        .symbols()
        .any(|s| s.is_definition() && s.name() == Ok("main"));
    Ok(is_main)
}

/// The named library, or the one that came with this command.
pub(super) fn find_library(named: Option<&Path>) -> Result<PathBuf> {
    if let Some(named) = named {
        if named.is_file() && named.file_name().is_some_and(|n| n == LIBRARY) {
            return named
                .canonicalize()
                .with_context(|| format!("cannot resolve {}", named.display()));
        }
        return Err(Problem::new(
            Exit::Usage,
            format!("{} is not a file named {LIBRARY}", named.display()),
            "give the path of the library in --library or RINGBELL_LIBRARY",
        )
        .into());
    }
    let library = Library {
        package: "ringbell-c",
        names: &[LIBRARY],
    };
    library
        .find(None)
        .context("the source has a main, and needs a library to link it with")
}

/// Links a program that finds the library at its present place.
pub(super) fn program(
    cxx: &str,
    flags: &[String],
    object: &Path,
    library: &Path,
    output: &Path,
) -> Result<()> {
    let folder = library.parent().unwrap_or(Path::new("/"));
    let mut command = Command::new(cxx);
    command
        .arg("-pthread")
        .arg(object)
        .arg("-o")
        .arg(output)
        .args(flags)
        .arg("-L")
        .arg(folder)
        .arg("-lringbell")
        .arg(format!("-Wl,-rpath,{}", folder.display()));
    succeed(&mut command, COMPILER)
}

/// Links a shared object of kernels.
pub(super) fn module(cxx: &str, flags: &[String], object: &Path, output: &Path) -> Result<()> {
    let mut command = Command::new(cxx);
    command
        .args(["-shared", "-pthread"])
        .arg(object)
        .arg("-o")
        .arg(output)
        .args(flags);
    succeed(&mut command, COMPILER)
}
