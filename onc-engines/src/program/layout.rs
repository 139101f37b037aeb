//! The mapping of chunks to elements.

use std::ops::Range;

/// How a buffer of blocks of `count` elements splits into chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Layout {
    /// Elements of one block.
    pub count: u64,
    /// Chunks of one block, at least 1.
    pub block_chunks: u32,
}

impl Layout {
    /// Elements of chunk `i` of the buffer. Chunks of a block differ by one element at most; with
    /// fewer elements than chunks, some are empty.
    #[inline]
    pub fn chunk(&self, i: u32) -> Range<u64> {
        let chunks = self.block_chunks.max(1);
        // Usually the first block: no division then, which costs more than the rest together.
        let (block, sub) = match i < chunks {
            true => (0, u64::from(i)),
            false => (u64::from(i / chunks), u64::from(i % chunks)),
        };
        let n = u64::from(chunks);
        let start = block * self.count;
        start + part(self.count, n, sub)..start + part(self.count, n, sub + 1)
    }

    /// Elements of segment `s` of `segments` of chunk `i`.
    #[inline]
    pub fn segment(&self, i: u32, s: u64, segments: u64) -> Range<u64> {
        let c = self.chunk(i);
        let len = c.end - c.start;
        c.start + part(len, segments, s)..c.start + part(len, segments, s + 1)
    }

    /// Elements of chunk `i` in window `w`, where each chunk of a block has `parts` windows and the
    /// windows of a block follow each other as its elements do, one chunk at a time: the order of a
    /// stream. All chunks of a window but one are empty, and which chunk an element belongs to
    /// stays as it is, so that a streamed reduction has the order, and the bits, of one from
    /// memory.
    pub fn window(&self, i: u32, w: u64, parts: u64) -> Range<u64> {
        let chunk = u64::from(i % self.block_chunks.max(1));
        if chunk != w / parts {
            let start = self.chunk(i).start;
            return start..start;
        }
        self.segment(i, w % parts, parts)
    }

    /// Elements of chunk `i` in window `w`, where a buffer has a block for each rank and the
    /// windows of its blocks follow each other as well: the order of a stream of all blocks.
    /// `block` is the block that the chunk belongs to, which in a buffer of one block is not
    /// the first. Blocks have one chunk.
    pub fn block_window(&self, i: u32, block: u32, w: u64, parts: u64) -> Range<u64> {
        if u64::from(block) != w / parts {
            let start = self.chunk(i).start;
            return start..start;
        }
        self.segment(i, w % parts, parts)
    }

    /// Elements of the longest chunk.
    pub fn longest(&self) -> u64 {
        self.count.div_ceil(u64::from(self.block_chunks.max(1)))
    }
}

/// Start of part `i` of `n` of `total`.
#[inline]
fn part(total: u64, n: u64, i: u64) -> u64 {
    if i == 0 || i == n {
        return if i == 0 { 0 } else { total };
    }
    match total.checked_mul(i) {
        // A division of 32 bits takes half the time.
        Some(product) => match (u32::try_from(product), u32::try_from(n)) {
            (Ok(product), Ok(n)) => u64::from(product / n),
            _ => product / n,
        },
        // In 128 bits, which costs ten times as much: counts go up to 2^64.
        None => (u128::from(total) * u128::from(i) / u128::from(n)) as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_of_blocks_tile_a_stream_of_all_of_them() {
        for (count, blocks, parts) in [(1, 1, 1), (7, 3, 2), (64, 5, 8), (65_537, 4, 9)] {
            let l = Layout {
                count,
                block_chunks: 1,
            };
            let mut at = 0;
            for w in 0..parts * u64::from(blocks) {
                let all = (0..blocks).map(|b| l.block_window(b, b, w, parts));
                let full: Vec<_> = all.filter(|r| !r.is_empty()).collect();
                assert!(full.len() <= 1, "one block at a time");
                for r in full {
                    assert_eq!(r.start, at);
                    at = r.end;
                    // A rank's own buffer has the same window of its one block.
                    let block = (w / parts) as u32;
                    let own = l.block_window(0, block, w, parts);
                    let first = u64::from(block) * count;
                    assert_eq!(own, r.start - first..r.end - first);
                }
            }
            assert_eq!(at, count * u64::from(blocks));
        }
    }

    #[test]
    fn chunks_and_segments_tile_the_buffer() {
        for count in [0, 1, 2, 7, 64, 1023, 65_537] {
            for block_chunks in [1, 2, 3, 8] {
                let l = Layout {
                    count,
                    block_chunks,
                };
                let mut at = 0;
                for i in 0..3 * block_chunks {
                    let c = l.chunk(i);
                    assert_eq!(c.start, at);
                    assert!(c.end - c.start <= l.longest());
                    for segments in [1, 2, 5] {
                        let mut inner = c.start;
                        for s in 0..segments {
                            let r = l.segment(i, s, segments);
                            assert_eq!(r.start, inner);
                            inner = r.end;
                        }
                        assert_eq!(inner, c.end);
                    }
                    at = c.end;
                }
                for parts in [1, 3] {
                    let mut at = 0;
                    for w in 0..u64::from(block_chunks) * parts {
                        for i in 0..block_chunks {
                            let r = l.window(i, w, parts);
                            if !r.is_empty() {
                                assert_eq!(r.start, at, "in the order of the elements");
                                at = r.end;
                            }
                            let second = l.window(i + block_chunks, w, parts);
                            assert_eq!(second.end - second.start, r.end - r.start);
                        }
                    }
                    assert_eq!(at, count);
                }
                assert_eq!(at, 3 * count);
            }
        }
    }
}
