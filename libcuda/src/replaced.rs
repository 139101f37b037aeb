//! Texts of the same kernels by another compiler, which the setting `ptx=FOLDER` puts in place of
//! those that a program loads: so that a suite runs what a user's compiler makes of its sources.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::OnceLock;

use crate::{faults, say};

/// Names of the kernels of a text.
fn kernels(text: &str) -> BTreeSet<String> {
    let entries = text.lines().filter_map(|l| l.split_once(".entry "));
    let name = |(_, rest): (&str, &str)| {
        let end = rest.find(|c: char| c == '(' || c.is_whitespace());
        rest[..end.unwrap_or(rest.len())].to_owned()
    };
    entries.map(name).collect()
}

/// The texts of a folder by the names of their kernels.
fn read(folder: &Path) -> std::io::Result<BTreeMap<BTreeSet<String>, String>> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "ptx") {
            let text = std::fs::read_to_string(path)?;
            all.insert(kernels(&text), text);
        }
    }
    Ok(all)
}

/// A text, or the other one with the same kernels.
pub(crate) fn replaced(text: &str) -> Cow<'_, str> {
    static TEXTS: OnceLock<BTreeMap<BTreeSet<String>, String>> = OnceLock::new();
    let Some(folder) = &faults().ptx else {
        return Cow::Borrowed(text);
    };
    let texts = TEXTS.get_or_init(|| match read(Path::new(folder)) {
        Ok(texts) => texts,
        // A setting that does nothing would make a suite pass for nothing.
        Err(e) => panic!("RINGBELL_CUDA: `ptx={folder}` cannot be read: {e}"),
    });
    let own = kernels(text);
    match texts.get(&own) {
        Some(other) => {
            say(&format!("{} kernels from {folder}", own.len()));
            Cow::Borrowed(other)
        }
        None => Cow::Borrowed(text),
    }
}
