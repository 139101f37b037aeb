//! Networks as users name them: by a generator's name, or by a file.

use std::io;
use std::path::{Path, PathBuf};

use crate::document::Document;
use crate::file::{self, FileError};
use crate::generate::{generate, names_generator, GenerateError, GENERATORS};
use crate::proof::Proof;
use crate::tables::Tables;
use crate::topology::Topology;

/// Why a name gives no network.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NamedError {
    /// A generator refuses its numbers.
    #[error("{0}")]
    Generate(#[from] GenerateError),
    /// It is neither a generator's name nor a file that can be read.
    #[error("cannot read {}: {source}; give a file, or a network by name: {}", path.display(), names())]
    Read {
        /// As given.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The file is none of a network.
    #[error("{}", in_file(path, why))]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        why: FileError,
    },
}

fn names() -> String {
    let names: Vec<&str> = GENERATORS.iter().map(|(name, _)| *name).collect();
    names.join(", ")
}

/// `FILE:LINE:COLUMN: why`.
pub fn in_file(path: &Path, error: &FileError) -> String {
    let FileError { line, column, why } = error;
    match line {
        0 => format!("{}: {why}", path.display()),
        _ => format!("{}:{line}:{column}: {why}", path.display()),
    }
}

/// The network of a generator's name, or of a file.
///
/// # Errors
/// [`NamedError`]
pub fn named(text: &str) -> Result<Topology, NamedError> {
    let path = Path::new(text);
    if names_generator(text) && !path.exists() {
        return Ok(generate(text)?);
    }
    let content = std::fs::read_to_string(path).map_err(|source| NamedError::Read {
        path: path.to_owned(),
        source,
    })?;
    let name = path.file_stem().and_then(|n| n.to_str()).unwrap_or(text);
    file::parse(name, &content).map_err(|why| NamedError::File {
        path: path.to_owned(),
        why,
    })
}

/// Why a file gives no tables.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TablesError {
    /// It cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// As given.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// It is none of tables.
    #[error("{}", in_file(path, why))]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        why: FileError,
    },
    /// Its tables are not the network's.
    #[error("{}: {why}", path.display())]
    Other {
        /// The file.
        path: PathBuf,
        /// What differs.
        why: String,
    },
}

/// Tables and proof of a file that `ringbell routes --json` has written. They are still to be
/// checked.
///
/// # Errors
/// [`TablesError`]
pub fn tables_of(path: &Path, topology: &Topology) -> Result<(Tables, Proof), TablesError> {
    let at = || path.to_owned();
    let content =
        std::fs::read_to_string(path).map_err(|source| TablesError::Read { path: at(), source })?;
    let document =
        Document::parse(&content).map_err(|why| TablesError::File { path: at(), why })?;
    let read = document.read(topology);
    read.map_err(|why| TablesError::Other { path: at(), why })
}
