//! Search for a `libnccl.so.2`. NCCL is never linked: a user who wants to measure beside it has it
//! already, with PyTorch or from PyPI, and names its place or has it found.
#![allow(clippy::disallowed_methods)] // The program: waits for python3, with a deadline.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::{Exit, Problem};

/// Its name everywhere.
const NAME: &str = "libnccl.so.2";
/// Longest time for python3 to print its packages' places.
const PYTHON: Duration = Duration::from_secs(10);
/// Prints the folders that python3 imports from.
const ASK: &str = "import sys; print('\\n'.join(p for p in sys.path if p))";

/// A place where NCCL may be, and the source of that place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) path: PathBuf,
    pub(super) said_by: String,
}

/// The named library, else the dynamic loader's.
pub(super) fn first(asked: Option<&Path>) -> Candidate {
    match asked {
        Some(path) => Candidate {
            // A folder stands for the file in it.
            path: match path.is_dir() {
                true => path.join(NAME),
                false => path.to_owned(),
            },
            said_by: "--nccl (or RINGBELL_NCCL)".into(),
        },
        None => Candidate {
            path: NAME.into(),
            said_by: "the dynamic loader".into(),
        },
    }
}

/// Those among the packages of the python3 on PATH.
///
/// # Errors
/// Why there is none.
pub(super) fn in_python() -> Result<Vec<Candidate>, Passed> {
    let place = "packages of python3";
    let folders = python_folders().map_err(|why| Passed::new(place, why))?;
    match in_packages(&folders) {
        none if none.is_empty() => {
            let why = format!("none of its {} folders has nvidia/nccl/lib", folders.len());
            Err(Passed::new(place, why))
        }
        found => Ok(found),
    }
}

/// Where the wheels nvidia-nccl-cu12 and nvidia-nccl-cu13 put it.
fn in_packages(folders: &[PathBuf]) -> Vec<Candidate> {
    let files = folders.iter().map(|f| f.join("nvidia/nccl/lib").join(NAME));
    files
        .filter(|f| f.is_file())
        .map(|path| Candidate {
            path,
            said_by: "packages of python3".into(),
        })
        .collect()
}

fn python_folders() -> Result<Vec<PathBuf>, String> {
    let mut child = Command::new("python3")
        .args(["-c", ASK])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|e| format!("python3 does not start: {e}"))?;
    let deadline = Instant::now() + PYTHON;
    let ended = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Ok(status),
            Ok(None) if Instant::now() > deadline => {
                break Err("python3 does not answer".to_owned())
            }
            Ok(None) => std::thread::sleep(Duration::from_millis(5)),
            Err(e) => break Err(e.to_string()),
        }
    };
    match ended {
        Ok(status) if status.success() => {}
        other => {
            let _ = child.kill();
            let _ = child.wait();
            return Err(match other {
                Ok(status) => format!("python3 ended with {status}"),
                Err(why) => why,
            });
        }
    }
    // It has ended, and its few lines fit into the pipe.
    let out = child.wait_with_output().map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&out.stdout);
    Ok(text.lines().map(PathBuf::from).collect())
}

/// A place without a usable NCCL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Passed {
    place: String,
    why: String,
}

impl Passed {
    pub(super) fn new(place: impl Into<String>, why: impl Into<String>) -> Passed {
        Passed {
            place: place.into(),
            why: why.into(),
        }
    }
}

/// There is no NCCL that can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NotFound {
    pub(super) searched: Vec<Passed>,
}

impl fmt::Display for NotFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no usable NCCL was found; looked at")?;
        for (i, p) in self.searched.iter().enumerate() {
            let sep = if i == 0 { ' ' } else { ';' };
            let space = if i == 0 { "" } else { " " };
            write!(f, "{sep}{space}{} ({})", p.place, p.why)?;
        }
        Ok(())
    }
}

impl NotFound {
    pub(super) fn problem(&self) -> Problem {
        Problem::new(
            Exit::Environment,
            self.to_string(),
            "install it (`pip install nvidia-nccl-cu13`, or -cu12 for a driver below 580), or name a libnccl.so.2 with --nccl PATH or RINGBELL_NCCL",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_means_the_file_in_it() {
        let named = first(Some(Path::new("/nowhere/libnccl.so.2")));
        assert_eq!(named.path, Path::new("/nowhere/libnccl.so.2"));
        let folder = first(Some(Path::new("/tmp")));
        assert_eq!(folder.path, Path::new("/tmp/libnccl.so.2"));
        assert_eq!(first(None).path, Path::new("libnccl.so.2"));
    }

    #[test]
    fn a_wheel_is_found_below_the_folders_of_python() {
        let dir = std::env::temp_dir().join(format!("rb-nccl-wheel-{}", std::process::id()));
        let lib = dir.join("site-packages/nvidia/nccl/lib");
        std::fs::create_dir_all(&lib).expect("a fresh folder");
        std::fs::write(lib.join(NAME), b"").expect("a fresh file");
        let found = in_packages(&[dir.join("nothing"), dir.join("site-packages")]);
        let _ = std::fs::remove_dir_all(&dir);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].path, lib.join(NAME));
    }

    #[test]
    fn the_error_lists_the_searched_places() {
        let e = NotFound {
            searched: vec![Passed::new("a", "is not there"), Passed::new("b", "is old")],
        };
        let text = e.to_string();
        assert!(
            text.ends_with("looked at a (is not there); b (is old)"),
            "{text}"
        );
    }
}
