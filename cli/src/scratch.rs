//! Temporary directories of this program: with an unpredictable name, for this user alone.
//!
//! Each is removed by its owner, or, after the owner was killed, by the next run
//! ([`scratch::sweep`]).

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context, Result};
use ringbell::parts::nic_core::scratch::{self, Held};
use tempfile::TempDir;

use super::{Exit, Problem};

/// A directory that is removed when this is dropped.
pub(super) struct Folder {
    // In this order: the lock is held until the directory is gone.
    dir: TempDir,
    _held: Held,
}

impl Folder {
    /// One for sockets of NICs.
    pub(super) fn new(kind: &str) -> Result<Folder> {
        Folder::new_in(&scratch::base(), kind)
    }

    /// One for files.
    pub(super) fn of_files(kind: &str) -> Result<Folder> {
        Folder::new_in(&std::env::temp_dir(), kind)
    }

    fn new_in(base: &Path, kind: &str) -> Result<Folder> {
        debug_assert!(
            scratch::KINDS.contains(&kind),
            "other kinds are never swept"
        );
        scratch::sweep();
        make(base, kind).with_context(|| {
            Problem::new(
                Exit::Environment,
                format!("cannot make a directory in {}", base.display()),
                "set XDG_RUNTIME_DIR or TMPDIR to a directory that this user may write to",
            )
        })
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        self.dir.path()
    }
}

fn make(base: &Path, kind: &str) -> std::io::Result<Folder> {
    let prefix = format!("{}{kind}-", scratch::PREFIX);
    let mut last = std::io::ErrorKind::WouldBlock.into();
    // A sweeping run may take one for left behind before its lock is held.
    for _ in 0..8 {
        let dir = tempfile::Builder::new()
            .prefix(&prefix)
            .rand_bytes(scratch::RANDOM)
            .permissions(std::fs::Permissions::from_mode(0o700))
            .tempdir_in(base)?;
        match scratch::hold_existing(dir.path()) {
            Ok(held) => return Ok(Folder { dir, _held: held }),
            Err(e) => last = e,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt as _;

    #[test]
    fn a_folder_is_private_and_its_name_unpredictable() {
        let folders = [0, 1].map(|_| Folder::new("perf").expect("made"));
        let paths = folders.each_ref().map(|f| f.path().to_path_buf());
        assert_ne!(paths[0], paths[1]);
        let pid = std::process::id().to_string();
        for p in &paths {
            assert!(!p.to_string_lossy().ends_with(&pid), "{}", p.display());
            let meta = p.symlink_metadata().expect("there");
            assert_eq!(meta.mode() & 0o7777, 0o700);
            assert_eq!(meta.uid(), rustix::process::getuid().as_raw());
        }
        // Neither is removed while its owner lives.
        scratch::sweep();
        assert!(paths.iter().all(|p| p.is_dir()));
        drop(folders);
        assert!(!paths.iter().any(|p| p.exists()));
    }
}
