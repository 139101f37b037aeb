//! Results that stay true while the sources do: proofs and simulations are not repeated for the
//! same bytes.
//!
//! A result is an empty file, named by a hash of everything that it depends on, in the user's
//! cache: a fresh clone finds it too.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use fs_err as fs;

use crate::workspace::{entries, root};

/// Most results that are kept; the oldest go first.
const MOST: usize = 64;

/// A result, named by what it depends on.
pub(super) struct Kept {
    file: PathBuf,
}

impl Kept {
    /// The result `name` for the files in these folders of the checkout, and these words.
    pub(super) fn of(name: &str, folders: &[&str], words: &[&str]) -> Result<Kept> {
        let mut hasher = DefaultHasher::new();
        words.hash(&mut hasher);
        for folder in folders {
            hash(&root(), &root().join(folder), &mut hasher)?;
        }
        let file = cache().join(format!("{name}-{:016x}", hasher.finish()));
        Ok(Kept { file })
    }

    /// Whether it is there; says so.
    pub(super) fn is_there(&self) -> bool {
        let there = self.file.is_file();
        if there {
            println!(
                "held before for the same sources: {} (remove it to repeat)",
                self.file.display()
            );
        }
        there
    }

    /// Keeps it.
    pub(super) fn keep(&self) -> Result<()> {
        let folder = self.file.parent().context("a folder")?;
        fs::create_dir_all(folder)?;
        fs::write(&self.file, "")?;
        let mut all = entries(folder)?;
        all.sort_by_key(|file| std::fs::metadata(file).and_then(|m| m.modified()).ok());
        for old in all.iter().rev().skip(MOST) {
            fs::remove_file(old)?;
        }
        Ok(())
    }
}

fn cache() -> PathBuf {
    let home = std::env::var_os("HOME").map(|h| PathBuf::from(h).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or(home);
    cache
        .unwrap_or_else(crate::workspace::target)
        .join("ringbell-xtask")
}

/// Names and bytes of all files below a folder, in order.
fn hash(root: &Path, at: &Path, hasher: &mut DefaultHasher) -> Result<()> {
    if at.is_dir() {
        return entries(at)?.iter().try_for_each(|e| hash(root, e, hasher));
    }
    at.strip_prefix(root).unwrap_or(at).hash(hasher);
    let bytes = fs::read(at)?;
    bytes.hash(hasher);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_a_name_or_a_word_makes_another_result() {
        let folder = crate::workspace::target()
            .join("tmp")
            .join(format!("kept-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let of = |word: &str| {
            let mut hasher = DefaultHasher::new();
            word.hash(&mut hasher);
            hash(&folder, &folder, &mut hasher).unwrap();
            hasher.finish()
        };
        fs::write(folder.join("a"), "x").unwrap();
        let first = of("1");
        assert_eq!(of("1"), first);
        assert_ne!(of("2"), first);
        fs::write(folder.join("a"), "y").unwrap();
        assert_ne!(of("1"), first);
        fs::write(folder.join("a"), "x").unwrap();
        assert_eq!(of("1"), first);
        fs::rename(folder.join("a"), folder.join("b")).unwrap();
        assert_ne!(of("1"), first);
        fs::remove_dir_all(folder).unwrap();
    }
}
