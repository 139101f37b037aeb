//! Why a text is refused, and how large it may be.

/// Why a text was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {what}")]
pub struct ParseError {
    /// The file, as the caller calls it.
    pub file: String,
    /// Line of the text, from 1.
    pub line: u32,
    /// What is wrong.
    pub what: String,
}

/// Line and reason, before the file is known.
pub(super) type Refusal = (u32, String);

/// Most registers of a function, and most statements of a module: text beyond is refused, not
/// compiled for hours.
pub(super) const MOST: u32 = 1_000_000;
