//! Libraries of ours that programs start with: found beside this command or, in a checkout, built
//! when first used.
//!
//! `cargo run` builds the command alone, because each library takes as long again.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use super::{stdio, Exit, Problem};

/// A shared library of the workspace.
pub(crate) struct Library {
    /// The package that builds it.
    pub(crate) package: &'static str,
    /// Its file, as cargo names it first.
    pub(crate) names: &'static [&'static str],
}

impl Library {
    /// The one that the user names, or the one that comes with this command.
    ///
    /// # Errors
    /// When there is none and none can be built: what to do.
    pub(crate) fn find(&self, named: Option<&Path>) -> Result<PathBuf> {
        let found = match named {
            Some(named) if named.is_file() => named.to_owned(),
            Some(named) => {
                let advice = "give the path of the library in --library, or leave it out";
                return Err(self.missing(named, advice.into()).into());
            }
            None => self.beside_command()?,
        };
        found
            .canonicalize()
            .with_context(|| format!("cannot resolve {}", found.display()))
    }

    fn beside_command(&self) -> Result<PathBuf> {
        let command = std::env::current_exe().context("cannot tell where this command lies")?;
        let folder = command.parent().unwrap_or(Path::new("."));
        // cargo puts it beside the command; an installation has bin/ and lib/.
        let folders = [folder.to_owned(), folder.join("../lib")];
        let places = folders
            .iter()
            .flat_map(|f| self.names.iter().map(|n| f.join(n)));
        if let Some(found) = places.into_iter().find(|p| p.is_file()) {
            return Ok(found);
        }
        let file = folder.join(self.names[0]);
        match Build::of(folder) {
            Some(build) => self.build(&build, &file).map(|()| file),
            None => {
                let advice = format!(
                    "install it with the command by `cargo xtask install`, build it by `cargo build --release -p {}`, or name it in --library",
                    self.package
                );
                Err(self.missing(&file, advice).into())
            }
        }
    }

    /// Builds it where this command was built. The command is built with it, although it is there:
    /// both then share what they depend on, which would otherwise be compiled again with fewer
    /// features.
    fn build(&self, build: &Build, file: &Path) -> Result<()> {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.current_dir(&build.sources).stdout(Stdio::null());
        cargo.args(["build", "--profile", &build.profile]);
        cargo.args(["-p", "ringbell-cli", "-p", self.package]);
        if !cfg!(feature = "cuda") {
            cargo.arg("--no-default-features");
        }
        if cfg!(feature = "rtl") {
            cargo.args(["--features", "ringbell-cli/rtl"]);
        }
        cargo.arg("--target-dir").arg(&build.target);
        let shown = shown(&cargo);
        stdio::note(format_args!(
            "{} is not built yet: running `{shown}` once; run it again when the sources have changed",
            self.names[0]
        ));
        let advice = format!("run `{shown}` in {}", build.sources.display());
        match cargo.status() {
            Ok(status) if status.success() && file.is_file() => Ok(()),
            Ok(status) if status.success() => Err(self.missing(file, advice).into()),
            Ok(status) => {
                let what = format!("cargo has not built {} ({status})", self.names[0]);
                let advice = "its messages are above; or name a library in --library";
                Err(Problem::new(Exit::Environment, what, advice).into())
            }
            Err(error) => {
                let what = format!("cannot start cargo to build {}: {error}", self.names[0]);
                Err(Problem::new(Exit::Environment, what, advice).into())
            }
        }
    }

    fn missing(&self, file: &Path, advice: String) -> Problem {
        let what = format!("there is no file {}", file.display());
        Problem::new(Exit::Environment, what, advice)
    }
}

/// A command and its arguments, as a shell takes them.
fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|w| w.to_string_lossy()).collect();
    words.join(" ")
}

/// How cargo built this command.
struct Build {
    /// The workspace.
    sources: PathBuf,
    target: PathBuf,
    profile: String,
}

impl Build {
    /// Of a command in this folder; none when it was installed, or the sources are gone.
    fn of(folder: &Path) -> Option<Build> {
        // Cargo's own records, and the mark of its target folder.
        let target = folder.parent()?;
        if !folder.join(".fingerprint").is_dir() || !target.join("CACHEDIR.TAG").is_file() {
            return None;
        }
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).parent()?;
        sources.join("Cargo.toml").is_file().then_some(())?;
        let profile = match folder.file_name()?.to_str()? {
            "debug" => "dev",
            other => other,
        };
        Some(Build {
            sources: sources.to_owned(),
            target: target.to_owned(),
            profile: profile.to_owned(),
        })
    }
}
