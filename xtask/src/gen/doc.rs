//! Doc comments of `nic-abi` as text of generated files.

/// A doc comment as one line: rows carry the comment's lines with their leading spaces.
pub(super) fn one_line(doc: &str) -> String {
    doc.split_whitespace().collect::<Vec<_>>().join(" ")
}
