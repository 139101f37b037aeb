//! The layout of the emulated GPU's memory: the file page of each 64 KiB page of virtual memory.
//!
//! Contiguous groups of 2 MiB keep their pages together and aligned, so that Algorithm 1 makes one
//! main TLB entry of them; scattered groups draw their pages from all over the scattered part, so
//! that each needs the complementary TLB. Every scattered page costs the kernel a mapping, of which
//! a process has 65,530 (`vm.max_map_count`): the caller bounds them.

use ringbell_gtlb::page_table::{LARGE_PAGE_BYTES, PAGES_PER_LARGE, PAGE_BYTES};

/// A run of pages that are contiguous in both spaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PageRun {
    /// First page of GPU virtual memory.
    pub(super) va_page: usize,
    /// First page of the file.
    pub(super) file_page: usize,
    /// Pages.
    pub(super) pages: usize,
}

/// The layout of a whole GPU memory.
#[derive(Debug)]
pub(super) struct PageLayout {
    /// File page of each page of virtual memory.
    file_page: Vec<u32>,
    scattered_groups: usize,
    /// The page of virtual memory of each page of the file, for checks.
    va_page: std::sync::OnceLock<Vec<u32>>,
}

/// SplitMix64 (Steele, Lea, Flood 2014): enough to shuffle, and seeded.
struct SplitMix(u64);

impl SplitMix {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

impl PageLayout {
    /// Lays out `groups` groups of 2 MiB, a `fraction` of them scattered, but no more than
    /// `max_mappings` allow.
    pub(super) fn new(groups: usize, fraction: f64, max_mappings: usize, seed: u64) -> PageLayout {
        let mut rng = SplitMix(seed);
        let want = (groups as f64 * fraction.clamp(0.0, 1.0)).round() as usize;
        // Each scattered group costs at most 32 mappings and splits the contiguous run around it.
        let affordable = max_mappings.saturating_sub(2) / (PAGES_PER_LARGE + 1);
        let scattered_groups = want.min(affordable).min(groups);

        let mut order: Vec<usize> = (0..groups).collect();
        rng.shuffle(&mut order);
        let mut chosen = order[..scattered_groups].to_vec();
        chosen.sort_unstable();

        let mut pool: Vec<u32> = chosen
            .iter()
            .flat_map(|g| g * PAGES_PER_LARGE..(g + 1) * PAGES_PER_LARGE)
            .map(|p| p as u32)
            .collect();
        rng.shuffle(&mut pool);

        let mut file_page: Vec<u32> = (0..(groups * PAGES_PER_LARGE) as u32).collect();
        for (i, g) in chosen.iter().enumerate() {
            let at = g * PAGES_PER_LARGE;
            file_page[at..at + PAGES_PER_LARGE]
                .copy_from_slice(&pool[i * PAGES_PER_LARGE..(i + 1) * PAGES_PER_LARGE]);
        }
        PageLayout {
            file_page,
            scattered_groups,
            va_page: Default::default(),
        }
    }

    /// Groups of 2 MiB whose pages are scattered.
    pub(super) fn scattered_groups(&self) -> usize {
        self.scattered_groups
    }

    /// The page of virtual memory that a page of the file is.
    pub(super) fn va_page(&self, file_page: usize) -> usize {
        let pages = self.va_page.get_or_init(|| {
            let mut pages = vec![0; self.file_page.len()];
            for (va, file) in self.file_page.iter().enumerate() {
                pages[*file as usize] = va as u32;
            }
            pages
        });
        pages[file_page] as usize
    }

    /// Byte offset in the file of a page of virtual memory.
    pub(super) fn file_offset(&self, va_page: usize) -> u64 {
        u64::from(self.file_page[va_page]) * PAGE_BYTES
    }

    /// The maximal runs among `pages` pages from `first`.
    pub(super) fn runs(&self, first: usize, pages: usize) -> Vec<PageRun> {
        let mut runs: Vec<PageRun> = Vec::new();
        for va_page in first..first + pages {
            let file_page = self.file_page[va_page] as usize;
            match runs.last_mut() {
                Some(r) if r.file_page + r.pages == file_page => r.pages += 1,
                _ => runs.push(PageRun {
                    va_page,
                    file_page,
                    pages: 1,
                }),
            }
        }
        runs
    }

    /// All runs.
    pub(super) fn all_runs(&self) -> Vec<PageRun> {
        self.runs(0, self.file_page.len())
    }
}

/// Whole groups in `bytes`.
pub(super) const fn groups_in(bytes: u64) -> usize {
    (bytes / LARGE_PAGE_BYTES) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_mapped_once_and_the_fraction_is_scattered() {
        for fraction in [0.0, 0.25, 1.0] {
            let l = PageLayout::new(64, fraction, 60_000, 7);
            let mut seen = vec![false; 64 * PAGES_PER_LARGE];
            for p in 0..seen.len() {
                let at = (l.file_offset(p) / PAGE_BYTES) as usize;
                assert!(!std::mem::replace(&mut seen[at], true));
            }
            assert!(seen.iter().all(|s| *s));
            assert_eq!(l.scattered_groups(), (64.0 * fraction) as usize);
            let broken = (0..64)
                .filter(|g| l.runs(g * PAGES_PER_LARGE, PAGES_PER_LARGE).len() > 1)
                .count();
            assert_eq!(broken, l.scattered_groups());
        }
    }

    #[test]
    fn mappings_stay_below_the_bound() {
        for max in [0, 2, 100, 1000] {
            let l = PageLayout::new(256, 1.0, max, 3);
            assert!(l.scattered_groups() == 0 || l.all_runs().len() <= max);
        }
        assert!(PageLayout::new(256, 1.0, 1000, 3).scattered_groups() >= 30);
    }

    #[test]
    fn same_seed_same_layout() {
        let runs = |seed| PageLayout::new(32, 0.5, 9_999, seed).all_runs();
        assert_eq!(runs(1), runs(1));
        assert_ne!(runs(1), runs(2));
    }
}
