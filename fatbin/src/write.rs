//! Writing: a fat binary of PTX texts.

use crate::{ENTRY, FLAG_64_BIT, FLAG_LINUX, HEADER, KIND_PTX, MAGIC};

/// A fat binary with these PTX texts, each with its architecture (80 for `sm_80`). They are not
/// compressed, so that every driver can read them.
pub fn of_ptx(texts: &[(u32, &str)]) -> Vec<u8> {
    let mut entries = Vec::new();
    for (arch, text) in texts {
        // The text is a terminated string.
        let len = (text.len() + 1).next_multiple_of(8);
        let mut header = [0u8; ENTRY];
        let mut field = |at: usize, bytes: &[u8]| {
            header[at..at + bytes.len()].copy_from_slice(bytes);
        };
        field(0, &KIND_PTX.to_le_bytes());
        field(2, &0x0101_u16.to_le_bytes());
        field(4, &(ENTRY as u32).to_le_bytes());
        field(8, &(len as u64).to_le_bytes());
        field(28, &arch.to_le_bytes());
        field(40, &(FLAG_64_BIT | FLAG_LINUX).to_le_bytes());
        entries.extend_from_slice(&header);
        let end = entries.len() + len;
        entries.extend_from_slice(text.as_bytes());
        entries.resize(end, 0);
    }
    let mut all = Vec::with_capacity(HEADER + entries.len());
    all.extend_from_slice(&MAGIC.to_le_bytes());
    all.extend_from_slice(&1_u16.to_le_bytes());
    all.extend_from_slice(&(HEADER as u16).to_le_bytes());
    all.extend_from_slice(&(entries.len() as u64).to_le_bytes());
    all.extend_from_slice(&entries);
    all
}
