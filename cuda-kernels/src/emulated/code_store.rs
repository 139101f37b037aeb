//! Compiled kernels, kept for other GPUs of this process and on disk for later ones.
//!
//! The folder is `RINGBELL_KERNEL_CACHE`, else `ringbell/kernels` in the user's cache; it is used
//! only if this user owns it and others cannot write it. A file that is damaged or of another
//! compiler is not used. `RINGBELL_KERNEL_CACHE=off` keeps nothing on disk.
#![allow(clippy::disallowed_methods)] // Notes when a file was used.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::SystemTime;

use ringbell_gpu::{Code, CodeKey, CodeStore};
use sha2::{Digest, Sha256};

use crate::locks::lock;

/// Bytes of the folder beyond which old files go.
const MOST_BYTES: u64 = 256 << 20;

/// Bytes of the largest file that is read.
const MOST_FILE: u64 = 64 << 20;

/// Kernels that this process has compiled or read.
pub(super) struct Kept {
    known: Mutex<HashMap<CodeKey, Arc<Code>>>,
    folder: Option<PathBuf>,
}

impl Kept {
    /// The store of this process.
    pub(super) fn of_process() -> Arc<Kept> {
        static KEPT: OnceLock<Arc<Kept>> = OnceLock::new();
        KEPT.get_or_init(|| Arc::new(Kept::new(folder()))).clone()
    }

    /// Keeps files in this folder, if it can be made and is this user's alone.
    fn new(folder: Option<PathBuf>) -> Kept {
        Kept {
            known: Mutex::default(),
            folder: folder.filter(|f| is_own(f)),
        }
    }
}

fn folder() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("RINGBELL_KERNEL_CACHE") {
        return (named != "off" && !named.is_empty()).then(|| named.into());
    }
    let home = std::env::var_os("HOME").map(|h| PathBuf::from(h).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME").filter(|c| !c.is_empty());
    Some(cache.map(PathBuf::from).or(home)?.join("ringbell/kernels"))
}

/// Whether the folder is there, or can be made, and only this user can write it.
fn is_own(folder: &Path) -> bool {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    let own = made.is_ok()
        && fs::metadata(folder).is_ok_and(|m| {
            m.is_dir() && m.uid() == rustix::process::geteuid().as_raw() && m.mode() & 0o022 == 0
        });
    own && folder.is_absolute()
}

fn name(key: &CodeKey) -> String {
    key.iter().map(|b| format!("{b:02x}")).collect()
}

impl CodeStore for Kept {
    fn find(&self, key: &CodeKey) -> Option<Arc<Code>> {
        if let Some(code) = lock(&self.known).get(key) {
            return Some(code.clone());
        }
        let code = Arc::new(read(&self.folder.as_ref()?.join(name(key)))?);
        lock(&self.known).insert(*key, code.clone());
        Some(code)
    }

    fn keep(&self, key: &CodeKey, code: &Arc<Code>) {
        lock(&self.known).insert(*key, code.clone());
        let Some(folder) = &self.folder else { return };
        // What cannot be kept is compiled again.
        let _ = write(folder, &name(key), &code.to_bytes()).and_then(|()| drop_old(folder));
    }
}

/// A file is a hash and the code whose hash it is.
fn read(file: &Path) -> Option<Code> {
    let mut file = File::open(file).ok()?;
    let meta = file.metadata().ok()?;
    if meta.len() > MOST_FILE || meta.uid() != rustix::process::geteuid().as_raw() {
        return None;
    }
    let mut bytes = Vec::with_capacity(meta.len() as usize);
    file.read_to_end(&mut bytes).ok()?;
    let (hash, code) = bytes.split_at_checked(32)?;
    if Sha256::digest(code)[..] != *hash {
        return None;
    }
    // Its time says when it was last of use.
    let _ = file.set_modified(SystemTime::now());
    Code::from_bytes(code)
}

/// Under another name first, so that no process reads half a file.
fn write(folder: &Path, name: &str, code: &[u8]) -> std::io::Result<()> {
    let new = folder.join(format!("{name}.{}", std::process::id()));
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&new)?;
    let written = file
        .write_all(&Sha256::digest(code))
        .and_then(|()| file.write_all(code))
        .and_then(|()| fs::rename(&new, folder.join(name)));
    written.inspect_err(|_| {
        let _ = fs::remove_file(&new);
    })
}

/// Removes the files that were not used for longest, if all are too many bytes.
fn drop_old(folder: &Path) -> std::io::Result<()> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let meta = entry.metadata()?;
        files.push((meta.modified()?, meta.len(), entry.path()));
    }
    let mut bytes: u64 = files.iter().map(|f| f.1).sum();
    files.sort();
    for (_, len, path) in files {
        if bytes <= MOST_BYTES {
            break;
        }
        fs::remove_file(path)?;
        bytes -= len;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k() { ret; }";

    fn compile(store: &Arc<Kept>, text: &str) {
        let module = ringbell_gpu::parse("kept.ptx", text).unwrap();
        let program = ringbell_gpu::Program::new(module, vec![], 0, 0).with_store(store.clone());
        program.kernel("k").unwrap();
    }

    fn files(folder: &Path) -> Vec<PathBuf> {
        let all = fs::read_dir(folder).unwrap();
        all.map(|f| f.unwrap().path()).collect()
    }

    #[test]
    fn a_damaged_file_is_not_used_and_old_ones_go() {
        let folder = std::env::temp_dir().join(format!("ringbell-kept-{}", std::process::id()));
        let store = || Arc::new(Kept::new(Some(folder.clone())));
        compile(&store(), TEXT);
        let file = files(&folder).pop().unwrap();
        assert!(read(&file).is_some());
        let good = fs::read(&file).unwrap();
        for at in [0, 40, good.len() - 1] {
            let mut bad = good.clone();
            bad[at] ^= 1;
            fs::write(&file, bad).unwrap();
            assert!(read(&file).is_none(), "byte {at}");
        }
        // Compiled again in its place.
        compile(&store(), TEXT);
        assert_eq!(fs::read(&file).unwrap(), good);
        let large = folder.join("large");
        let old = File::create(&large).unwrap();
        old.set_len(MOST_BYTES).unwrap();
        old.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        compile(&store(), &format!("{TEXT} "));
        assert!(!large.exists());
        assert_eq!(files(&folder).len(), 2);
        // Others could put code there.
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        fs::set_permissions(&folder, mode).unwrap();
        assert!(store().folder.is_none());
        fs::remove_dir_all(&folder).unwrap();
    }
}
