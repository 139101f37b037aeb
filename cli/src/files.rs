//! Files that options name.

use std::path::Path;

use anyhow::{Context as _, Result};

use crate::stdio;

/// Writes the file of an option, such as `--svg`.
///
/// # Errors
/// It cannot be written.
pub(crate) fn write(path: &Path, content: impl AsRef<[u8]>, option: &str) -> Result<()> {
    std::fs::write(path, content).with_context(|| {
        let path = path.display();
        format!("cannot write {path}; check the path given to {option}")
    })
}

/// Writes the JSON text of `--json`, with a line's end; to standard output for the path `-`.
///
/// # Errors
/// As [`write`].
pub(crate) fn write_json(path: &Path, text: String) -> Result<()> {
    match path == Path::new("-") {
        true => stdio::line(text),
        false => write(path, text + "\n", "--json"),
    }
}
