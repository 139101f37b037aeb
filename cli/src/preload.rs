//! Libraries of ours that programs start with, in front of their own or by their own will.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::{Exit, Problem};

/// The program, with the library preloaded: the named one, or the one that came with this command.
pub(crate) fn command(
    program: &[OsString],
    library: &str,
    named: Option<&Path>,
) -> Result<Command> {
    let mut preloaded = find(&[library], named)?.into_os_string();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|o| !o.is_empty()) {
        preloaded.push(":");
        preloaded.push(others);
    }
    let mut command = Command::new(&program[0]);
    command.args(&program[1..]).env("LD_PRELOAD", preloaded);
    Ok(command)
}

/// A library by one of its names: the one that the user names, or the one that came with this command.
pub(crate) fn find(names: &[&str], named: Option<&Path>) -> Result<PathBuf> {
    let places = match named {
        Some(named) => vec![named.to_owned()],
        None => {
            let command = std::env::current_exe().context("cannot tell where this command lies")?;
            let folder = command.parent().unwrap_or(Path::new("."));
            // cargo puts it beside the command; an installation has bin/ and lib/.
            let places = names
                .iter()
                .flat_map(|n| [folder.join(n), folder.join("../lib").join(n)]);
            places.collect()
        }
    };
    let found = places.iter().find(|p| p.is_file()).ok_or_else(|| {
        Problem::new(
            Exit::Environment,
            format!("there is no file {}", places[0].display()),
            "run `cargo build` (with --release for a release build), which puts it beside the command, or name it in --library",
        )
    })?;
    found
        .canonicalize()
        .with_context(|| format!("cannot resolve {}", found.display()))
}
