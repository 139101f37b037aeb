//! The text by which other processes of a user see a node while it runs.
//!
//! A program writes it into memory of its own ([`NAME`]), which `ringbell regs` reads through
//! `/proc`. Writer and reader share no lock: the text has its number in front and behind, and one
//! that was read while it was written has two.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use ringbell_net::NicTime;

/// Name of the memory, a memfd.
pub const NAME: &str = "ringbell-mesh";
/// Shortest time between two texts: 200 ms.
const EVERY_NS: u64 = 200_000_000;

/// Writes a node's texts into memory of this [`NAME`]; for
/// [`MeshPort::show`](crate::MeshPort::show).
pub fn writer(memory: File) -> impl FnMut(&[String]) + Send {
    let mut number = 0;
    move |lines| {
        number += 1;
        // Nothing to be done where there is no memory for it.
        let _ = memory.write_all_at(&encode(number, lines), 0);
    }
}

/// The bytes of text number `number`.
fn encode(number: u64, lines: &[String]) -> Vec<u8> {
    let text = lines.join("\n");
    format!("{number} {}\n{text}\n{number}\n", text.len()).into_bytes()
}

/// The lines of a text; `None` while it is written, and for anything else.
pub fn decode(bytes: &[u8]) -> Option<Vec<String>> {
    let end = bytes.iter().position(|b| *b == b'\n')?;
    let (number, len) = std::str::from_utf8(&bytes[..end]).ok()?.split_once(' ')?;
    let rest = &bytes[end + 1..];
    let (text, behind) = rest.split_at_checked(len.parse().ok()?)?;
    let behind = behind
        .strip_prefix(b"\n")?
        .strip_prefix(number.as_bytes())?;
    behind.starts_with(b"\n").then_some(())?;
    let text = std::str::from_utf8(text).ok()?;
    Some(text.lines().map(str::to_owned).collect())
}

/// Takes a text, by its lines.
type Reader = Box<dyn FnMut(&[String]) + Send>;

/// Where a node's text goes.
#[derive(Default)]
pub(crate) struct Page {
    to: Option<Reader>,
    next: NicTime,
    /// The node was stepped after the last text.
    is_stale: bool,
}

impl std::fmt::Debug for Page {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Page").field("next", &self.next).finish()
    }
}

impl Page {
    /// Texts go there from now on.
    pub(crate) fn set(&mut self, to: impl FnMut(&[String]) + Send + 'static) {
        self.to = Some(Box::new(to));
    }

    /// Whether a text is due; the node is stepped now.
    #[inline]
    pub(crate) fn is_due(&mut self, now: NicTime) -> bool {
        self.is_stale = self.to.is_some();
        self.is_stale && now >= self.next
    }

    /// Shows a text.
    pub(crate) fn show(&mut self, now: NicTime, lines: &[String]) {
        if let Some(to) = &mut self.to {
            to(lines);
        }
        self.next = NicTime(now.0 + EVERY_NS);
        self.is_stale = false;
    }

    /// When the next text is due, if anything may have changed.
    pub(crate) fn next_timer(&self) -> Option<NicTime> {
        self.is_stale.then_some(self.next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_read_whole_or_not_at_all() {
        let lines = |word: &str| vec![format!("{word} one"), format!("{word} two")];
        let (old, new) = (encode(9, &lines("old")), encode(10, &lines("newer")));
        assert_eq!(decode(&old), Some(lines("old")));
        // Bytes of a longer one before may follow.
        let over: Vec<u8> = [&old[..], b"17\n"].concat();
        assert_eq!(decode(&over), Some(lines("old")));
        for n in 1..new.len() {
            let mut torn = new[..n].to_vec();
            torn.extend(old.get(n..).unwrap_or_default());
            assert_eq!(decode(&torn), None, "{n}");
        }
        assert_eq!(decode(b""), None);
        assert_eq!(decode(b"1 9999\nshort\n1\n"), None);
    }
}
