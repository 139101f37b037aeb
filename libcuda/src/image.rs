//! Images of linked modules: the texts, with their names.

use std::ffi::c_void;

/// Most bytes of an image.
const MOST: usize = 1 << 30;

/// First bytes of an image: not those of a fat binary, an ELF file or a text.
pub(crate) const LINKED: [u8; 4] = *b"\x7fRBL";

/// Magic, bytes of the whole, and each name and text behind its length: words, so that the image is
/// aligned.
pub(crate) fn image(texts: &[(String, String)]) -> Vec<u64> {
    let mut bytes = vec![0; 16];
    for part in texts.iter().flat_map(|(name, text)| [name, text]) {
        bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
        bytes.extend_from_slice(part.as_bytes());
    }
    let len = bytes.len() as u64;
    bytes[..4].copy_from_slice(&LINKED);
    bytes[8..16].copy_from_slice(&len.to_le_bytes());
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    let words = bytes.chunks_exact(8).map(|w| w.try_into().expect("eight"));
    words.map(u64::from_ne_bytes).collect()
}

/// The texts of an image.
///
/// # Safety
/// The image begins with [`LINKED`] and is whole.
pub(crate) unsafe fn texts(image: *const c_void) -> Option<Vec<(String, String)>> {
    // SAFETY: the caller's contract: a header of 16 bytes, which says its length.
    let bytes = unsafe {
        let header = image.cast::<[u8; 16]>().read_unaligned();
        let len = u64::from_le_bytes(header[8..].try_into().expect("eight"));
        let len = usize::try_from(len).ok().filter(|n| *n <= MOST)?;
        std::slice::from_raw_parts(image.cast::<u8>(), len)
    };
    let (mut rest, mut parts) = (bytes.get(16..)?, Vec::new());
    while !rest.is_empty() {
        let (len, after) = rest.split_at_checked(8)?;
        let len = u64::from_le_bytes(len.try_into().expect("eight"));
        let (part, after) = after.split_at_checked(usize::try_from(len).ok()?)?;
        parts.push(String::from_utf8(part.to_vec()).ok()?);
        rest = after;
    }
    if parts.is_empty() || parts.len() % 2 == 1 {
        return None;
    }
    let pairs = parts.chunks_exact(2);
    Some(pairs.map(|p| (p[0].clone(), p[1].clone())).collect())
}
