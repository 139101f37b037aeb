//! Temporary directories, removed when no process uses them any more.
//!
//! A process that uses one holds a shared `flock` on the directory itself ([`Held`]); the system
//! lets go of it when the process ends, for any reason. So a directory that can be locked
//! exclusively is stale. The last process that leaves it removes it ([`Held::leave`]), with what
//! killed ones have left in it; where that one was killed as well, [`sweep`] does. Only names of
//! the forms below are considered, only directories of this user, and never through a link.
#![allow(clippy::disallowed_methods)] // The edge: waits shortly for a directory that is just being removed.

use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{flock, fstat, open, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

/// Start of each name.
pub const PREFIX: &str = "ringbell-";
/// Random letters and digits at the end of a program's directory; those of a job end with
/// [`JOB_DIGITS`] hexadecimal ones.
pub const RANDOM: usize = 12;
/// Hexadecimal digits at the end of a job's directory.
pub const JOB_DIGITS: usize = 32;
/// Kinds of directories: `ringbell-KIND-...`.
pub const KINDS: [&str; 6] = ["job", "perf", "hll", "cc", "nccl", "mps"];

/// Attempts to get hold of a directory that others remove meanwhile.
const ATTEMPTS: u32 = 200;
/// Pause between two of them.
const PAUSE: Duration = Duration::from_millis(5);

/// A directory that stays while this exists.
#[derive(Debug)]
pub struct Held {
    lock: OwnedFd,
}

impl Held {
    /// Removes the directory, whose path this is, unless others hold it or its name has none of
    /// this module's forms.
    pub fn leave(self, path: &Path) {
        if is_swept(path) {
            remove_if_free(&self.lock, path);
        }
    }
}

/// Where directories of this user's processes belong: `XDG_RUNTIME_DIR`, else among the temporary
/// files.
pub fn base() -> PathBuf {
    std::env::var_os("XDG_RUNTIME_DIR")
        .map(PathBuf::from)
        .filter(|p| p.is_absolute())
        .unwrap_or_else(std::env::temp_dir)
}

/// Makes a directory if need be, by `make` (which may find it there), and holds it.
///
/// # Errors
/// Those of `make`, or that the path leads to something that is no directory.
pub fn hold(path: &Path, mut make: impl FnMut() -> std::io::Result<()>) -> std::io::Result<Held> {
    for _ in 0..ATTEMPTS {
        make()?;
        match try_hold(path) {
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::WouldBlock) => {
                // Another process removes it; then it is made again.
                std::thread::sleep(PAUSE);
            }
            other => return other,
        }
    }
    Err(ErrorKind::WouldBlock.into())
}

/// Holds a directory that was just made.
///
/// # Errors
/// Another process has removed it, or is about to.
pub fn hold_existing(path: &Path) -> std::io::Result<Held> {
    try_hold(path)
}

fn try_hold(path: &Path) -> std::io::Result<Held> {
    let dir = open_dir(path)?;
    match flock(&dir, FlockOperation::NonBlockingLockShared) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Err(ErrorKind::WouldBlock.into()),
        // A file system without locks: then no process can lock it alone, and it is not removed
        // either.
        Err(error) => tracing::debug!(%error, path = %path.display(), "cannot be locked"),
    }
    match is_at(&dir, path)? {
        true => Ok(Held { lock: dir }),
        false => Err(ErrorKind::NotFound.into()),
    }
}

fn open_dir(path: &Path) -> std::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(open(path, flags, Mode::empty())?)
}

/// Whether the path still leads to what was opened there.
fn is_at(dir: &OwnedFd, path: &Path) -> std::io::Result<bool> {
    let (open, there) = (fstat(dir)?, std::fs::symlink_metadata(path)?);
    Ok((open.st_dev, open.st_ino) == (there.dev(), there.ino()))
}

/// Removes stale directories of processes that have ended.
pub fn sweep() {
    let bases = [base(), std::env::temp_dir()];
    let second = usize::from(bases[0] != bases[1]);
    for base in &bases[..=second] {
        sweep_in(base);
    }
}

/// The same below one directory.
pub fn sweep_in(base: &Path) {
    // What cannot be read or removed stays; the next run tries again.
    let Ok(entries) = std::fs::read_dir(base) else {
        return;
    };
    for entry in entries.flatten() {
        if is_swept(&entry.path()) {
            remove_if_left(&entry.path());
        }
    }
}

/// Whether a directory has a name of this module's forms, and so is removed when no process holds
/// it.
pub fn is_swept(path: &Path) -> bool {
    let name = path.file_name().and_then(|n| n.to_str()).unwrap_or("");
    let parts = name.strip_prefix(PREFIX).and_then(|n| n.split_once('-'));
    let Some((kind, end)) = parts.filter(|(kind, _)| KINDS.contains(kind)) else {
        return false;
    };
    match kind {
        "job" => end.len() == JOB_DIGITS && end.bytes().all(|b| b.is_ascii_hexdigit()),
        _ => end.len() == RANDOM && end.bytes().all(|b| b.is_ascii_alphanumeric()),
    }
}

fn remove_if_left(path: &Path) {
    let Ok(dir) = open_dir(path) else { return };
    if fstat(&dir).is_ok_and(|s| s.st_uid == rustix::process::getuid().as_raw()) {
        remove_if_free(&dir, path);
    }
}

/// Removes a directory of this user that no other open file has locked.
fn remove_if_free(dir: &OwnedFd, path: &Path) {
    // Held until it is gone: a process that makes it again meanwhile waits, and then finds another
    // one.
    if flock(dir, FlockOperation::NonBlockingLockExclusive).is_err() {
        return;
    }
    if is_at(dir, path).is_ok_and(|same| same) {
        match std::fs::remove_dir_all(path) {
            Ok(()) => tracing::info!(path = %path.display(), "removed what no process uses"),
            Err(error) => tracing::debug!(%error, path = %path.display(), "cannot be removed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::DirBuilderExt as _;

    fn fresh(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("rb-scratch-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).expect("a folder");
        path
    }

    fn make(path: &Path) -> std::io::Result<()> {
        match std::fs::DirBuilder::new().mode(0o700).create(path) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(()),
            other => other,
        }
    }

    #[test]
    fn only_folders_without_a_holder_are_removed() {
        let base = fresh("sweep");
        let job = |c: char| base.join(format!("ringbell-job-{}", c.to_string().repeat(32)));
        let (held, left) = (job('a'), job('b'));
        let held_lock = hold(&held, || make(&held)).expect("made");
        drop(hold(&left, || make(&left)).expect("made"));
        std::fs::write(left.join("10.0.0.1.sock"), b"x").expect("written");
        // Of another form, a file of that form, and a link of that form to another folder.
        let others = ["ringbell-job-0123", "ringbell-perf-4711", "ringbell", "x"];
        others
            .iter()
            .for_each(|n| make(&base.join(n)).expect("made"));
        std::fs::write(job('c'), b"x").expect("written");
        let target = base.join("target");
        make(&target).expect("made");
        std::fs::write(target.join("kept"), b"x").expect("written");
        std::os::unix::fs::symlink(&target, job('d')).expect("a link");
        sweep_in(&base);
        assert!(held.is_dir() && !left.exists());
        assert!(others.iter().all(|n| base.join(n).is_dir()));
        assert!(job('c').is_file() && target.join("kept").is_file());
        assert!(job('d').symlink_metadata().is_ok_and(|m| m.is_symlink()));
        drop(held_lock);
        sweep_in(&base);
        assert!(!held.exists());
        let _ = std::fs::remove_dir_all(&base);
    }

    #[test]
    fn the_last_to_leave_removes_a_directory_with_what_killed_processes_have_left() {
        let base = fresh("leave");
        let job = base.join(format!("ringbell-job-{}", "e".repeat(JOB_DIGITS)));
        let [a, b, killed] = [(); 3].map(|()| hold(&job, || make(&job)).expect("made"));
        std::fs::write(job.join("10.77.0.3.sock"), b"x").expect("written");
        drop(killed);
        a.leave(&job);
        assert!(job.is_dir(), "another process holds it");
        b.leave(&job);
        assert!(!job.exists());
        let own = base.join("mine");
        hold(&own, || make(&own)).expect("made").leave(&own);
        assert!(own.is_dir(), "a directory that the user has named");
        let _ = std::fs::remove_dir_all(&base);
    }

    #[test]
    fn a_directory_that_is_removed_beside_its_making_is_made_anew() {
        let base = fresh("race");
        let path = base.join(format!("ringbell-perf-{}", "Z".repeat(RANDOM)));
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|s| {
            let stop = &done;
            let sweeper = s.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    sweep_in(&base);
                }
            });
            for _ in 0..200 {
                let held = hold(&path, || make(&path)).expect("made and held");
                assert!(path.is_dir(), "what is held stays");
                drop(held);
            }
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            sweeper.join().expect("no panic");
        });
        let _ = std::fs::remove_dir_all(&base);
    }

    #[test]
    fn a_link_is_not_followed() {
        let base = fresh("link");
        let (target, link) = (base.join("target"), base.join("link"));
        make(&target).expect("made");
        std::os::unix::fs::symlink(&target, &link).expect("a link");
        assert!(hold(&link, || Ok(())).is_err());
        let _ = std::fs::remove_dir_all(&base);
    }
}
