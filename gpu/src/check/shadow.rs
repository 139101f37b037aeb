//! What is remembered of the last accesses of each word of memory.
//!
//! A word has its last write, and the first and the last read since: a race with a read between them is missed if the
//! write is ordered behind both, and none is made up. Accesses of parts of a word make four of it.

use std::collections::HashMap;

use super::access::How;
use super::clock::{Actor, Clock};

/// Bytes of a word.
pub(super) const WORD: u64 = 4;

/// Words of a page.
const PAGE: usize = 1024;

/// An access that was made.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Mark {
    pub(crate) actor: Actor,
    pub(crate) stamp: u32,
    /// Index into the sites of the actor's kernel.
    pub(crate) site: u32,
    how: u32,
}

impl Mark {
    pub(super) fn new(actor: Actor, stamp: u32, site: u32, how: How) -> Mark {
        let how = how.pack();
        Mark {
            actor,
            stamp,
            site,
            how,
        }
    }

    pub(super) fn how(self) -> How {
        How::unpack(self.how)
    }

    fn is_none(self) -> bool {
        self.actor == Actor::NONE
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cell {
    write: Mark,
    /// Reads since: the first of which it is not known that the last has happened after it, and the last.
    first: Mark,
    last: Mark,
    /// Number of the word's four parts, from 1; 0 if it is whole.
    parts: u32,
    /// A strong store has left something for those who acquire it.
    pub(super) synchronises: bool,
}

/// What a word is read and written with.
pub(super) struct Access<'a> {
    pub(super) mark: Mark,
    pub(super) clock: &'a Clock,
    /// Whether an access was made before the own launch began, or may not race with the own for its order and scope.
    pub(super) excused: &'a dyn Fn(Mark) -> bool,
}

impl Access<'_> {
    fn races(&self, with: Mark) -> bool {
        // What the host and the NIC do among themselves is not looked at.
        (self.mark.actor.is_thread() || with.actor.is_thread())
            && !with.is_none()
            && !self.plainly_knows(with)
            && !self.clock.knows(self.mark.actor, with.actor, with.stamp)
            && !(self.excused)(with)
    }

    /// What is found without a search: most.
    #[inline]
    fn plainly_knows(&self, with: Mark) -> bool {
        let own = self.mark.actor;
        with.actor == own || with.actor.block() == own.block() && with.stamp <= self.clock.block
    }
}

impl Cell {
    /// The kernel's thread that has written the whole word last.
    pub(super) fn writer(&self) -> Option<Mark> {
        Some(self.write).filter(|m| m.actor.is_thread())
    }

    /// What an access of the whole word races with.
    #[inline]
    fn touch(&mut self, access: &Access<'_>) -> Option<Mark> {
        let new = access.mark;
        let mut raced = None;
        if !self.write.is_none() && !access.plainly_knows(self.write) && access.races(self.write) {
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
        // A strong read must not hide a weak one, which races with more.
        let hides = |old: Mark| {
            let weaker = !old.is_none() && new.how().is_strong() && !old.how().is_strong();
            let past = access.plainly_knows(old) && old.stamp != new.stamp;
            weaker && !past
        };
        if self.first.is_none() || access.plainly_knows(self.first) && !hides(self.first) {
            self.first = new;
        }
        if !hides(self.last) {
            self.last = new;
        }
        raced
    }
}

/// Cells of parts.
#[derive(Debug, Default)]
pub(super) struct Parts(Vec<[Cell; 4]>);

impl Parts {
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// An access of bytes `first..end` of a word; what it races with.
    #[inline]
    pub(super) fn touch(
        &mut self,
        cell: &mut Cell,
        (first, end): (u64, u64),
        access: &Access<'_>,
    ) -> Option<Mark> {
        if cell.parts == 0 && end - first == WORD {
            return cell.touch(access);
        }
        if cell.parts == 0 {
            self.0.push([*cell; 4]);
            cell.parts = self.0.len() as u32;
        }
        let parts = &mut self.0[cell.parts as usize - 1];
        let parts = &mut parts[first as usize..end as usize];
        let raced = parts.iter_mut().map(|p| p.touch(access));
        raced.fold(None, Option::or)
    }
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
