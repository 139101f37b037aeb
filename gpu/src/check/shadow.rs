//! What is remembered of the last accesses of each word of memory.
//!
//! A word has its last write, and the first and the last read since: a race with a read between
//! them is missed if the write is ordered behind both, and none is made up. Accesses of parts of a
//! word make two of it, or four.

use std::collections::HashMap;

use super::clock::{Actor, Clock, Known};
use crate::hooks::How;
use crate::module::Scope;

/// Bytes of a word.
pub(super) const WORD: u64 = 4;

/// Words of a page.
const PAGE: usize = 1024;

/// An access that was made. Small, because a large memory has many.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Mark {
    pub(crate) actor: Actor,
    pub(crate) stamp: u32,
    /// The site, and behind it how the access was made.
    place: u32,
}

/// Bits of a packed [`How`].
const HOW_BITS: u32 = 15;

/// Sites from this one on are not told apart.
const SITES: u32 = 1 << (32 - HOW_BITS);

impl Mark {
    #[inline(always)]
    pub(super) fn new(actor: Actor, stamp: u32, site: u32, how: How) -> Mark {
        let place = site.min(SITES - 1) << HOW_BITS | how.pack();
        Mark {
            actor,
            stamp,
            place,
        }
    }

    /// Index into the sites of the actor's kernel.
    pub(crate) fn site(self) -> u32 {
        self.place >> HOW_BITS
    }

    #[inline(always)]
    pub(super) fn how(self) -> How {
        How::unpack(self.place & ((1 << HOW_BITS) - 1))
    }

    #[inline(always)]
    fn is_none(self) -> bool {
        self.actor == Actor::NONE
    }

    /// What is found without a search: most. `block` is the stamp up to which its block's past is
    /// known.
    #[inline(always)]
    fn plainly_knows(self, block: u32, with: Mark) -> bool {
        let own = self.actor;
        with.actor == own || with.actor.block() == own.block() && with.stamp <= block
    }

    /// Whether another thread's access is strong too, with scopes that include the other, which
    /// needs no search either.
    #[inline(always)]
    fn plainly_agrees(self, with: Mark) -> bool {
        let (own, other) = (self.how(), with.how());
        let wide = |h: How| h.scope() != Scope::Block;
        let near = self.actor.block() == with.actor.block();
        other.is_strong() && (near || with.actor.is_thread() && wide(own) && wide(other))
    }
}

/// What is remembered of a word, or of a part of one.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cell {
    write: Mark,
    /// Reads since: the first of which it is not known that the last has happened after it, and the
    /// last.
    first: Mark,
    last: Mark,
    /// Number of the first of its parts, from 1, and [`BYTES`]; 0 if it is not divided, with a bit
    /// from [`COVERED`] on for each byte that was accessed, which are the same in each access. And
    /// [`SYNCHRONISES`].
    parts: u32,
}

/// The parts are four bytes; else they are two halves.
const BYTES: u32 = 1 << 31;
/// A strong store has left something for those who acquire it.
const SYNCHRONISES: u32 = 1 << 30;
const COVERED: u32 = 26;
const NUMBER: u32 = (1 << COVERED) - 1;

/// Bits of bytes `first..end` of a word.
#[inline(always)]
fn covered((first, end): (u64, u64)) -> u32 {
    ((1 << end) - (1 << first)) << COVERED
}

/// What a word is read and written with.
pub(super) struct Access<'a> {
    pub(super) mark: Mark,
    pub(super) clock: &'a Clock,
    /// What all threads of the launch know.
    pub(super) base: &'a Known,
    /// Whether an access was made before the own launch began, or may not race with the own for its
    /// order and scope.
    pub(super) excused: &'a dyn Fn(Mark) -> bool,
}

impl Access<'_> {
    fn races(&self, with: Mark) -> bool {
        // What the host and the NIC do among themselves is not looked at.
        (self.mark.actor.is_thread() || with.actor.is_thread())
            && !with.is_none()
            && !self.plainly_knows(with)
            && !self
                .clock
                .knows(self.mark.actor, with.actor, with.stamp, self.base)
            && !(self.excused)(with)
    }

    #[inline]
    fn plainly_knows(&self, with: Mark) -> bool {
        self.mark.plainly_knows(self.clock.block, with)
    }
}

impl Cell {
    /// The kernel's thread that has written the whole word last.
    pub(super) fn writer(&self) -> Option<Mark> {
        Some(self.write).filter(|m| m.actor.is_thread())
    }

    #[inline(always)]
    pub(super) fn synchronises(&self) -> bool {
        self.parts & SYNCHRONISES != 0
    }

    pub(super) fn set_synchronises(&mut self, on: bool) {
        self.parts = self.parts & !SYNCHRONISES | if on { SYNCHRONISES } else { 0 };
    }

    #[inline(always)]
    fn has_bytes(&self) -> bool {
        self.parts & BYTES != 0
    }

    /// Of the first part, if it is not whole.
    #[inline(always)]
    fn part(&self) -> Option<usize> {
        ((self.parts & NUMBER) as usize).checked_sub(1)
    }

    /// Whether it is not divided, and need not be for an access of these bytes alone.
    #[inline(always)]
    fn covers(&mut self, bytes: u32) -> bool {
        let own = self.parts & !SYNCHRONISES;
        if own == 0 {
            self.parts |= bytes;
        }
        own == 0 || own == bytes
    }

    /// Notes an access, of the whole word or part, of which it is plain that it races with none;
    /// else nothing, and false. What [`touch`](Cell::touch) does for most accesses.
    #[inline(always)]
    fn pass(&mut self, new: Mark, block: u32) -> bool {
        let strong = new.how().is_strong();
        let plain =
            |m: Mark| m.is_none() || new.plainly_knows(block, m) || strong && new.plainly_agrees(m);
        if !plain(self.write) {
            return false;
        }
        if !new.how().is_store() {
            // The same again says nothing new.
            let same = self.last.actor == new.actor
                && self.last.stamp == new.stamp
                && self.last.how() == new.how();
            if same {
                return true;
            }
            self.read(new, block);
            return true;
        }
        if !self.last.is_none() {
            if !(plain(self.last) && plain(self.first)) {
                return false;
            }
            (self.first, self.last) = (Mark::default(), Mark::default());
        }
        self.write = new;
        true
    }

    /// What an access of the whole word races with.
    #[inline]
    fn touch(&mut self, access: &Access<'_>) -> Option<Mark> {
        let new = access.mark;
        let mut raced = None;
        if !self.write.is_none() && access.races(self.write) {
            raced = Some(self.write);
        }
        if new.how().is_store() {
            if !self.last.is_none() {
                let reads = [self.first, self.last];
                raced = raced.or_else(|| reads.into_iter().find(|r| access.races(*r)));
                (self.first, self.last) = (Mark::default(), Mark::default());
            }
            self.write = new;
            return raced;
        }
        self.read(new, access.clock.block);
        raced
    }

    /// Remembers a read. A strong one takes no weak one's place, which races with more.
    #[inline(always)]
    fn read(&mut self, new: Mark, block: u32) {
        let weak = |m: Mark| !m.is_none() && !m.how().is_strong();
        let past = |m: Mark| m.is_none() || new.plainly_knows(block, m);
        if new.how().is_strong() && weak(self.last) {
            if weak(self.first) && !past(self.first) && self.first.actor != self.last.actor {
                return;
            }
            (self.first, self.last) = (self.last, new);
            return;
        }
        if past(self.first) && !(new.how().is_strong() && weak(self.first)) {
            self.first = new;
        }
        self.last = new;
    }
}

/// Cells of parts: two or four next to each other.
#[derive(Debug, Default)]
pub(super) struct Parts(Vec<Cell>);

impl Parts {
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// As [`pass`](Cell::pass), for bytes `first..end` of a word. Nothing synchronises with it.
    #[inline(always)]
    pub(super) fn pass(
        &mut self,
        cell: &mut Cell,
        (first, end): (u64, u64),
        mark: Mark,
        block: u32,
    ) -> bool {
        let how = mark.how();
        if cell.synchronises() && (how.is_strong() || how.is_store()) {
            return false;
        }
        if cell.covers(covered((first, end))) {
            return cell.pass(mark, block);
        }
        self.pass_parts(cell, (first, end), mark, block)
    }

    fn pass_parts(
        &mut self,
        cell: &Cell,
        (first, end): (u64, u64),
        mark: Mark,
        block: u32,
    ) -> bool {
        let Some(at) = cell.part() else {
            return false;
        };
        if !cell.has_bytes() && (first | end) & 1 != 0 {
            return false;
        }
        let parts = &mut self.0[range(cell, at, (first, end))];
        parts.iter_mut().all(|p| p.pass(mark, block))
    }

    /// An access of bytes `first..end` of a word; what it races with.
    pub(super) fn touch(
        &mut self,
        cell: &mut Cell,
        (first, end): (u64, u64),
        access: &Access<'_>,
    ) -> Option<Mark> {
        if cell.covers(covered((first, end))) {
            return cell.touch(access);
        }
        let odd = (first | end) & 1 != 0;
        let at = match cell.part() {
            Some(at) if cell.has_bytes() || !odd => at,
            // There is no number for more: races in such words are missed.
            _ if self.0.len() + 4 > NUMBER as usize => return None,
            _ => self.split(cell, odd),
        };
        let parts = &mut self.0[range(cell, at, (first, end))];
        let raced = parts.iter_mut().map(|p| p.touch(access));
        raced.fold(None, Option::or)
    }

    /// Makes two parts of a word, or four; where the first is.
    #[cold]
    fn split(&mut self, cell: &mut Cell, odd: bool) -> usize {
        let at = self.0.len();
        let part = |own: u32| match cell.parts & own {
            0 => Cell::default(),
            _ => Cell { parts: 0, ..*cell },
        };
        let bytes: [Cell; 4] = match cell.part() {
            Some(at) => [0, 0, 1, 1].map(|half| self.0[at + half]),
            None => [0, 1, 2, 3].map(|i| part(1 << (COVERED + i))),
        };
        let accessed = cell.parts >> COVERED;
        let halves =
            !odd && (accessed & 1 == accessed >> 1 & 1) && (accessed >> 2 & 1 == accessed >> 3 & 1);
        let number = at as u32 + 1;
        cell.parts = cell.parts & SYNCHRONISES | number;
        if halves {
            self.0.extend([bytes[0], bytes[2]]);
        } else {
            cell.parts |= BYTES;
            self.0.extend(bytes);
        }
        at
    }
}

/// The parts of a cell, of which the first is at `at`, that have bytes `first..end` of the word.
#[inline(always)]
fn range(cell: &Cell, at: usize, (first, end): (u64, u64)) -> std::ops::Range<usize> {
    let step = if cell.has_bytes() { 0 } else { 1 };
    at + (first as usize >> step)..at + (end as usize >> step)
}

/// Cells of global memory by page.
#[derive(Debug)]
pub(super) struct Pages {
    base: u64,
    /// Of GPU memory, each with the generation in which it was used.
    own: Vec<Option<Page>>,
    /// Of memory that the host has exposed.
    other: HashMap<u64, Box<[Cell; PAGE]>>,
    generation: u32,
}

type Page = (u32, Box<[Cell; PAGE]>);

fn page() -> Box<[Cell; PAGE]> {
    let cells = vec![Cell::default(); PAGE].into_boxed_slice();
    cells.try_into().expect("so many cells")
}

impl Pages {
    pub(super) fn new(base: u64, bytes: u64) -> Pages {
        let n = bytes.div_ceil(WORD * PAGE as u64) as usize;
        let mut own = Vec::new();
        own.resize_with(n, || None);
        Pages {
            base,
            own,
            other: HashMap::new(),
            generation: 0,
        }
    }

    /// Forgets all accesses.
    pub(super) fn forget(&mut self) {
        self.generation += 1;
        self.other.clear();
    }

    /// The cell of the word at an address.
    #[inline]
    pub(super) fn cell(&mut self, address: u64) -> &mut Cell {
        let bytes = WORD * PAGE as u64;
        let word = (address % bytes / WORD) as usize;
        let n = (address.wrapping_sub(self.base) / bytes) as usize;
        let cells = match self.own.get_mut(n) {
            Some(slot) => {
                let generation = self.generation;
                let (of, cells) = slot.get_or_insert_with(|| (generation, page()));
                if *of != generation {
                    *of = generation;
                    cells.fill(Cell::default());
                }
                cells
            }
            None => self.other.entry(address / bytes).or_insert_with(page),
        };
        &mut cells[word]
    }
}
