//! Windows of a gather or a scatter: which operations of a communicator move the bytes of one.
//!
//! The blocks of all ranks lie one behind the other, and a call moves a window of them. Where the
//! window has as much of each block, one all-gather or reduce-scatter moves it. Elsewhere each
//! rank's part of the window is a broadcast from it, or a reduction to it: NCCL's windows are
//! shorter than a block, or a little longer, so they are one or two.

use ringbell::abi::CollectiveKind;

/// What a call moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) ranks: u32,
    /// Bytes of a rank's block.
    pub(crate) block: usize,
    /// First byte.
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
}

/// An operation that moves a part of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) kind: CollectiveKind,
    /// Whose block it belongs to.
    pub(crate) root: u32,
    /// Bytes of one block.
    pub(crate) bytes: usize,
    /// Its place in the window. In the root's own block there is only this part.
    pub(crate) at: usize,
}

impl Window {
    /// Whether it lies within the blocks.
    pub(crate) fn is_sound(&self) -> bool {
        let all = self.block.checked_mul(self.ranks as usize);
        let end = self.offset.checked_add(self.bytes);
        all.zip(end).is_some_and(|(all, end)| end <= all)
    }

    /// The bytes of a rank's block in it, and their place in it.
    fn of(&self, rank: u32) -> (usize, usize) {
        let start = (rank as usize * self.block).max(self.offset);
        let end = ((rank as usize + 1) * self.block).min(self.offset + self.bytes);
        (end.saturating_sub(start), start - self.offset)
    }

    /// Bytes of a rank's block in it.
    pub(crate) fn own(&self, rank: u32) -> usize {
        self.of(rank).0
    }

    /// The operations, the same ones on all ranks. `whole` moves as much of each block, `single`
    /// the part of one.
    pub(crate) fn parts(&self, whole: CollectiveKind, single: CollectiveKind) -> Vec<Part> {
        let first = self.own(0);
        if self.bytes > 0 && (0..self.ranks).all(|r| self.own(r) == first) {
            return vec![Part {
                kind: whole,
                root: 0,
                bytes: first,
                at: 0,
            }];
        }
        let part = |root| {
            let (bytes, at) = self.of(root);
            let part = Part {
                kind: single,
                root,
                bytes,
                at,
            };
            (bytes > 0).then_some(part)
        };
        (0..self.ranks).filter_map(part).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use CollectiveKind::{AllGather, Broadcast};

    fn parts(ranks: u32, block: usize, offset: usize, bytes: usize) -> Vec<(u32, usize, usize)> {
        let window = Window {
            ranks,
            block,
            offset,
            bytes,
        };
        assert!(window.is_sound());
        let parts = window.parts(AllGather, Broadcast);
        let single = |p: &Part| (p.kind == Broadcast).then_some((p.root, p.bytes, p.at));
        parts.iter().filter_map(single).collect()
    }

    #[test]
    fn a_window_is_cut_at_the_ends_of_blocks() {
        assert_eq!(parts(4, 100, 130, 50), [(1, 50, 0)]);
        assert_eq!(parts(4, 100, 130, 90), [(1, 70, 0), (2, 20, 70)]);
        assert_eq!(
            parts(4, 100, 99, 202),
            [(0, 1, 0), (1, 100, 1), (2, 100, 101), (3, 1, 201)]
        );
        assert_eq!(parts(4, 100, 300, 100), [(3, 100, 0)]);
        assert_eq!(parts(4, 100, 400, 0), []);
        assert_eq!(parts(4, 0, 0, 0), []);
        // As much of each block.
        let whole = |offset, bytes| {
            let window = Window {
                ranks: 2,
                block: 100,
                offset,
                bytes,
            };
            (
                window.parts(AllGather, Broadcast),
                window.own(0),
                window.own(1),
            )
        };
        let (all, first, second) = whole(0, 200);
        assert_eq!((all[0].kind, all[0].bytes, all.len()), (AllGather, 100, 1));
        assert_eq!((first, second), (100, 100));
        assert_eq!(whole(75, 50).0[0].bytes, 25);
        for (offset, bytes) in [(1, 400), (401, 0), (usize::MAX, 2)] {
            let window = Window {
                ranks: 4,
                block: 100,
                offset,
                bytes,
            };
            assert!(!window.is_sound());
        }
    }
}
