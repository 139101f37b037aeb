//! The repository, and cargo in it: folders, builds and programs that several tasks use.

#![allow(clippy::disallowed_methods)] // Runs programs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{ensure, Context as _, Result};

use crate::steps::{command, succeeds, Outcome, Words as _};

/// The step that builds what the others start.
pub(crate) const BUILD: &str = "build";
/// The step that runs the test command on a bare machine.
pub(crate) const BARE: &str = "bare";
/// Set in a step's process: what of this run need not be done again. It is the build if that has
/// passed, and the bare machine's tests if there was one.
pub(crate) const DONE: &str = "RINGBELL_XTASK_DONE";

/// The repository's root, independent of cargo's working directory.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    // xtask/ lies in the root, so there is a parent; without one the package's own folder would do.
    here.parent().unwrap_or(here).to_path_buf()
}

/// What lies in a folder, in order.
pub(crate) fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs_err::read_dir(folder)?.map(|entry| Ok(entry?.path()));
    let mut paths: Vec<_> = entries.collect::<Result<_>>()?;
    paths.sort();
    Ok(paths)
}

/// The CUDA sources of a folder.
pub(crate) fn cu_files(folder: &Path) -> Result<impl Iterator<Item = PathBuf>> {
    let files = entries(folder)?.into_iter();
    Ok(files.filter(|p| p.extension().is_some_and(|e| e == "cu")))
}

/// The blocks of code in this language on a page of docs/.
///
/// # Errors
/// The page has none.
pub(crate) fn blocks(page: &str, language: &str) -> Result<Vec<String>> {
    let text = fs_err::read_to_string(root().join(page))?;
    let fence = format!("```{language}\n");
    let behind = text.split(&fence).skip(1);
    let blocks: Vec<_> = behind
        .filter_map(|rest| Some(rest.split_once("\n```")?.0.to_owned() + "\n"))
        .collect();
    ensure!(!blocks.is_empty(), "{page} has no program in {language}");
    Ok(blocks)
}

/// Cargo's target folder, which CARGO_TARGET_DIR or cargo's configuration may have moved out of the
/// root.
pub(crate) fn target() -> PathBuf {
    static TARGET: OnceLock<PathBuf> = OnceLock::new();
    let told = || target_of(&mut cargo()).unwrap_or_else(|| root().join("target"));
    TARGET.get_or_init(told).clone()
}

/// The target folder that this cargo would use.
fn target_of(cargo: &mut Command) -> Option<PathBuf> {
    let asked = cargo.args(["metadata", "--format-version=1", "--no-deps", "--offline"]);
    let out = asked.output().ok()?;
    let told: serde_json::Value = serde_json::from_slice(&out.stdout).ok()?;
    Some(told["target_directory"].as_str()?.into())
}

/// Cargo in the repository's root.
pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root());
    cargo
}

/// Whether cargo-nextest is installed: it ends a test that hangs, and runs each in its own process.
pub(crate) fn has_nextest() -> bool {
    succeeds(cargo().words("nextest --version"))
}

/// Folder of the whole workspace's build: the command, libringbell.so and the examples.
pub(crate) fn built() -> PathBuf {
    target().join("debug")
}

/// The program of a target, in the messages of a build with `--message-format=json`.
pub(crate) fn executable(messages: &str, name: &str) -> Result<PathBuf> {
    let mut programs = messages.lines().filter_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let program = message["executable"].as_str()?;
        (message["target"]["name"] == name).then(|| PathBuf::from(program))
    });
    let program = programs.next();
    program.with_context(|| format!("cargo built no program `{name}`"))
}

/// Builds packages by the profile `dist`, for users and for figures; the folder with what they are.
pub(crate) fn dist(packages: &[impl AsRef<str>]) -> Result<PathBuf> {
    let packages = packages.iter().map(|p| format!("--package={}", p.as_ref()));
    command(cargo().words("build --profile dist").args(packages))?;
    Ok(target().join("dist"))
}

/// Builds the libraries and programs that tests and examples start. One selection for all steps:
/// another would be other features, and another build.
pub(crate) fn build() -> Result<()> {
    if done(BUILD) {
        return Ok(());
    }
    command(cargo().words("build --workspace --lib --bins --tests --examples"))
}

/// Whether an earlier step of this run has done this.
pub(crate) fn done(step: &str) -> bool {
    std::env::var(DONE).is_ok_and(|names| names.split(',').any(|name| name == step))
}

/// cargo-nextest on the workspace's tests, with a report of what they print.
pub(crate) fn nextest() -> Command {
    let mut tests = cargo();
    tests.words("nextest run --workspace --no-fail-fast --profile counted");
    tests
}

/// Cargo with these words, which must end well.
pub(crate) fn passes(words: &str) -> Result<Outcome> {
    command(cargo().words(words)).map(|()| Outcome::Passed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_target_folder_is_the_one_that_cargo_uses() {
        let mut elsewhere = cargo();
        let moved = target_of(elsewhere.env("CARGO_TARGET_DIR", "/moved/target"));
        assert_eq!(moved.as_deref(), Some(Path::new("/moved/target")));
        let mut own = cargo();
        let unmoved = target_of(own.env_remove("CARGO_TARGET_DIR"));
        assert!(unmoved.is_some_and(|folder| folder.is_absolute()));
    }

    /// Files written beside cargo's own go through `target()`.
    #[test]
    fn no_path_below_the_root_is_taken_for_the_target_folder() {
        let wrong = ["root().join(", "\"target"].concat();
        let mut folders = vec![root().join("xtask/src")];
        while let Some(folder) = folders.pop() {
            for path in entries(&folder).expect("a folder") {
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let text = std::fs::read_to_string(&path).expect("source");
                // `target()` itself may fall back on it.
                let most = usize::from(path.ends_with("workspace.rs"));
                assert!(text.matches(&wrong).count() <= most, "{}", path.display());
            }
        }
    }
}
