//! What is wrong with a file that a person wrote, and where.

/// What is wrong with a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name}:{line}:{column}: {what}")]
pub struct FileError {
    /// The file.
    pub name: String,
    /// From 1 on.
    pub line: usize,
    /// From 1 on, in characters.
    pub column: usize,
    /// What is wrong, and what was expected.
    pub what: String,
}

impl FileError {
    /// An error at a byte of a text.
    pub fn at(name: &str, text: &str, byte: usize, what: String) -> FileError {
        let before = text.get(..byte).unwrap_or(text);
        let line = before.rfind('\n').map_or(before, |end| &before[end + 1..]);
        FileError {
            name: name.into(),
            line: before.matches('\n').count() + 1,
            column: line.chars().count() + 1,
            what,
        }
    }
}
