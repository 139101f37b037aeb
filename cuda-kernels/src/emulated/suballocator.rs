//! First-fit allocation of 64 KiB pages inside the GPU's virtual range.

use std::collections::{BTreeMap, VecDeque};

/// Free and used ranges, in pages.
#[derive(Debug)]
pub(super) struct Suballocator {
    free: BTreeMap<usize, usize>,
    used: BTreeMap<usize, usize>,
    /// Freed, and only used again when nothing else is left.
    retired: VecDeque<(usize, usize)>,
}

impl Suballocator {
    pub(super) fn new(pages: usize) -> Suballocator {
        Suballocator {
            free: BTreeMap::from([(0, pages)]),
            used: BTreeMap::new(),
            retired: VecDeque::new(),
        }
    }

    /// First page of a free range of `pages` pages that starts at a multiple of `align` pages.
    pub(super) fn alloc(&mut self, pages: usize, align: usize) -> Option<usize> {
        let (start, len, at) = loop {
            let mut free = self.free.iter();
            let fits = free.find_map(|(&start, &len)| {
                let at = start.next_multiple_of(align);
                (at + pages <= start + len).then_some((start, len, at))
            });
            match fits {
                Some(fits) => break fits,
                None => {
                    let (page, pages) = self.retired.pop_front()?;
                    self.release(page, pages);
                }
            }
        };
        self.free.remove(&start);
        if at > start {
            self.free.insert(start, at - start);
        }
        if at + pages < start + len {
            self.free.insert(at + pages, start + len - at - pages);
        }
        self.used.insert(at, pages);
        Some(at)
    }

    /// Gives back the range that starts at `page`; false when none does.
    pub(super) fn free(&mut self, page: usize) -> bool {
        let pages = self.used.remove(&page);
        if let Some(pages) = pages {
            self.release(page, pages);
        }
        pages.is_some()
    }

    /// As `free`, but the range is used again only when nothing else is left.
    pub(super) fn retire(&mut self, page: usize) {
        if let Some(pages) = self.used.remove(&page) {
            self.retired.push_back((page, pages));
        }
    }

    fn release(&mut self, page: usize, mut pages: usize) {
        let mut start = page;
        if let Some((&before, &len)) = self.free.range(..page).next_back() {
            if before + len == page {
                self.free.remove(&before);
                start = before;
                pages += len;
            }
        }
        if let Some(len) = self.free.remove(&(start + pages)) {
            pages += len;
        }
        self.free.insert(start, pages);
    }

    /// Whether the pages `first..=last` lie in one allocation.
    pub(super) fn covers(&self, first: usize, last: usize) -> bool {
        self.used
            .range(..=first)
            .next_back()
            .is_some_and(|(start, len)| last < start + len)
    }

    /// Pages in the largest free range.
    pub(super) fn largest_free(&self) -> usize {
        self.free.values().copied().max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_do_not_overlap_and_merge_when_freed() {
        let mut a = Suballocator::new(256);
        let x = a.alloc(3, 1).unwrap();
        let y = a.alloc(32, 32).unwrap();
        let z = a.alloc(5, 1).unwrap();
        assert_eq!((x, y, z), (0, 32, 3));
        assert!(a.covers(32, 63) && !a.covers(31, 32) && !a.covers(63, 64));
        assert!(a.free(y) && !a.free(y));
        assert!(a.free(x) && a.free(z));
        assert_eq!(a.largest_free(), 256);
        assert_eq!(a.alloc(257, 1), None);
        assert_eq!(a.alloc(256, 32), Some(0));
    }

    #[test]
    fn retired_ranges_are_used_last() {
        let mut a = Suballocator::new(8);
        let x = a.alloc(3, 1).unwrap();
        a.retire(x);
        assert_eq!(a.alloc(4, 1), Some(3));
        assert_eq!(a.alloc(2, 1), Some(0));
        assert_eq!(a.alloc(3, 1), None);
    }
}
