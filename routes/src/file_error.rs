//! What is wrong with a file, and where.

use std::fmt;

/// Why a file gives no network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {why}")]
pub struct FileError {
    /// Line of the text, from 1 on; 0 where the whole file is meant.
    pub line: usize,
    /// Column in it, in bytes from 1 on: the end of what is wrong.
    pub column: usize,
    /// What is wrong.
    pub why: String,
}

impl FileError {
    /// Of the file as a whole.
    pub(crate) fn whole(why: impl fmt::Display) -> FileError {
        let why = why.to_string();
        let (line, column) = (0, 0);
        FileError { line, column, why }
    }
}
