//! One direction of a link: a single-producer single-consumer ring of self-validating lines.
//!
//! A line is one cache line of eight words. Word 0, the header, carries the lap bit and is written
//! last with Release. Credits live in a line of their own and move every quarter of the ring: a
//! credit per packet costs a quarter of the message rate.

use super::sync::{AtomicU32, AtomicU64, Ordering};

/// Words of a line.
pub(crate) const WORDS: usize = 8;
/// The first word of a payload in a line.
pub(crate) const PAYLOAD: usize = 3;
/// The lap bit of the header.
pub(crate) const LAP: u64 = 1 << 63;

fn lap(pos: u32, lines: u32) -> u64 {
    if (pos / lines) & 1 == 0 {
        LAP
    } else {
        0
    }
}

/// Producer's own state.
#[derive(Debug, Default)]
pub(crate) struct Producer {
    pos: u32,
    credit: u32,
}

impl Producer {
    /// Position of the next line, counted from the start.
    #[inline]
    pub(crate) fn position(&self) -> u32 {
        self.pos
    }

    /// Whether there is room for a line. `lines` is a power of two.
    #[inline]
    pub(crate) fn has_room(&mut self, lines: u32, credit: &AtomicU32) -> bool {
        if self.pos.wrapping_sub(self.credit) >= lines {
            // Acquire: pairs with the Release in `Consumer::advance`; the line was read.
            self.credit = credit.load(Ordering::Acquire);
        }
        self.pos.wrapping_sub(self.credit) < lines
    }

    /// Appends a line unless the ring is full. `memory` is a power of two of lines.
    #[inline]
    pub(crate) fn push(
        &mut self,
        memory: &[AtomicU64],
        credit: &AtomicU32,
        words: &[u64; WORDS],
    ) -> bool {
        let lines = (memory.len() / WORDS) as u32;
        if !self.has_room(lines, credit) {
            return false;
        }
        let at = (self.pos & (lines - 1)) as usize * WORDS;
        let line = &memory[at..at + WORDS];
        for i in 1..WORDS {
            line[i].store(words[i], Ordering::Relaxed);
        }
        // Release: pairs with the Acquire in `Consumer::peek`.
        line[0].store((words[0] & !LAP) | lap(self.pos, lines), Ordering::Release);
        self.pos = self.pos.wrapping_add(1);
        true
    }
}

/// Consumer's own state.
#[derive(Debug)]
pub(crate) struct Consumer {
    pos: u32,
    /// Index of the next line's first word.
    at: usize,
    /// The lap bit of its header.
    lap: u64,
}

impl Default for Consumer {
    fn default() -> Consumer {
        Consumer {
            pos: 0,
            at: 0,
            lap: LAP,
        }
    }
}

impl Consumer {
    /// Whether the next line is there. One load.
    #[inline]
    pub(crate) fn is_there(&self, memory: &[AtomicU64]) -> bool {
        // Relaxed: `peek` loads it again with Acquire before it reads the rest.
        (memory[self.at].load(Ordering::Relaxed) ^ self.lap) & LAP == 0
    }

    /// A copy of the next line, when it is there.
    #[inline(always)]
    pub(crate) fn peek(&self, memory: &[AtomicU64]) -> Option<[u64; WORDS]> {
        let line: &[AtomicU64; WORDS] = memory[self.at..].first_chunk()?;
        // Acquire: pairs with the Release in `Producer::push`; it also orders what the line
        // refers to.
        let head = line[0].load(Ordering::Acquire);
        if (head ^ self.lap) & LAP != 0 {
            return None;
        }
        let mut words = [head & !LAP; WORDS];
        for i in 1..WORDS {
            words[i] = line[i].load(Ordering::Relaxed);
        }
        Some(words)
    }

    /// The header of the next line, when it is there, and the words of its payload.
    #[inline(always)]
    pub(crate) fn peek_payload<'a>(
        &self,
        memory: &'a [AtomicU64],
    ) -> Option<(u64, &'a [AtomicU64])> {
        let line: &[AtomicU64; WORDS] = memory[self.at..].first_chunk()?;
        // Acquire: as in `peek`.
        let head = line[0].load(Ordering::Acquire);
        ((head ^ self.lap) & LAP == 0).then(|| (head & !LAP, &line[PAYLOAD..]))
    }

    /// Gives the line just read back to the producer, a quarter of the ring at a time.
    #[inline]
    pub(crate) fn advance(&mut self, memory: &[AtomicU64], credit: &AtomicU32) {
        let lines = (memory.len() / WORDS) as u32;
        self.pos = self.pos.wrapping_add(1);
        self.at += WORDS;
        if self.at == memory.len() {
            (self.at, self.lap) = (0, self.lap ^ LAP);
        }
        if self.pos & ((lines / 4).max(1) - 1) == 0 {
            // Release: pairs with the Acquire in `Producer::push`.
            credit.store(self.pos, Ordering::Release);
        }
    }
}
