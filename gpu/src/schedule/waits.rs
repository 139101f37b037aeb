//! Where a block's threads stand.

use super::wait::{Until, Wait, WaitFor};
use super::Block;
use crate::code::{ones, Relation};
use crate::context::{why, Thread};
use crate::memory::Memory;
use crate::module::Site;

/// Bits of `Thread::looked_at` for the site; the bytes are above.
pub(crate) const SITE_BITS: u32 = 24;

impl Block {
    /// What each of its threads waits for that has not ended, alike ones together. Between steps.
    pub fn waits(&self, memory: &dyn Memory) -> Vec<Wait> {
        let mut waits: Vec<Wait> = Vec::new();
        for (i, t) in self.threads.iter().enumerate() {
            let Some((site, what)) = self.wait_of(i, t, memory) else {
                continue;
            };
            let alike = |w: &&mut Wait| w.site == site && w.what == what;
            match waits.iter_mut().find(alike) {
                Some(w) => w.threads.push(i as u32),
                None => waits.push(Wait {
                    threads: vec![i as u32],
                    site,
                    what,
                }),
            }
        }
        waits
    }

    fn wait_of(&self, i: usize, t: &Thread, memory: &dyn Memory) -> Option<(Site, WaitFor)> {
        let others = |range: std::ops::Range<usize>, here: &dyn Fn(usize, &Thread) -> bool| {
            let all = range.map(|j| (j, &self.threads[j]));
            let missing = all.filter(|(j, o)| o.why != why::DONE && !here(*j, o));
            missing.map(|(j, _)| j as u32).collect::<Vec<u32>>()
        };
        let n = self.threads.len();
        let mut site = t.site;
        let what = match t.why {
            why::DONE => return None,
            why::BARRIER => WaitFor::Barrier {
                id: Some(t.b & 15),
                count: t.c,
                missing: others(0..n, &|_, o| o.why == why::BARRIER && o.b & 15 == t.b & 15),
            },
            why::CLUSTER => WaitFor::Barrier {
                id: None,
                count: 0,
                missing: others(0..n, &|_, o| o.why == why::CLUSTER),
            },
            why::WARP => {
                let first = i / 32 * 32;
                let named = |j: usize| t.mask >> (j - first) & 1 == 1;
                let same = |o: &Thread| (o.why, o.kind, o.mask) == (why::WARP, t.kind, t.mask);
                let missing = others(first..n.min(first + 32), &|j, o| !named(j) || same(o));
                WaitFor::Warp {
                    mask: t.mask,
                    missing,
                }
            }
            why::SLEEP => WaitFor::Sleep,
            // It has given way in a loop, or has not begun.
            _ if t.looked == 0 || t.state == 0 => WaitFor::Nothing,
            _ => {
                site = t.looked_at & ((1 << SITE_BITS) - 1);
                let bytes = t.looked_at >> SITE_BITS;
                WaitFor::Word {
                    address: t.looked,
                    bytes,
                    value: self.word(t, bytes, memory),
                    place: self.place(t, memory),
                    until: self.until(t, site),
                }
            }
        };
        let site = self.kernel.sites.get(site as usize).copied();
        Some((site.unwrap_or(Site::NOWHERE), what))
    }

    /// What ends the loop in which a thread has looked at a word, at this site.
    fn until(&self, t: &Thread, site: u32) -> Option<Until> {
        let mut known = self.kernel.wanted.iter();
        let w = known.find(|w| w.state == t.state && w.site == site)?;
        let value = match w.is_word {
            0 => w.value,
            _ => {
                let begin = self._frames.as_ptr() as usize;
                let at = (t.frame as usize - begin) / 8 + w.value as usize;
                self._frames.get(at)? & ones(w.bits)
            }
        };
        Some(Until {
            bits: (w.first, w.bits),
            relation: Relation::numbered(w.relation),
            value,
            swaps: w.swaps != 0,
        })
    }

    /// Where a thread has looked last.
    fn place(&self, t: &Thread, memory: &dyn Memory) -> Option<String> {
        let inside = |base: u64, len: u64| t.looked.wrapping_sub(base) < len;
        if inside(self.state.shared as u64, self.state.shared_bytes) {
            return Some("in the block's shared memory".to_owned());
        }
        if inside(t.memory, t.items[0]) {
            return memory.nearest(t.looked);
        }
        Some("in memory of the host".to_owned())
    }

    /// What is where a thread has looked last.
    fn word(&self, t: &Thread, bytes: u32, memory: &dyn Memory) -> Option<u64> {
        let inside = |base: u64, len: u64| {
            let offset = t.looked.wrapping_sub(base);
            offset < len && len - offset >= u64::from(bytes)
        };
        let readable = inside(t.memory, t.items[0])
            || inside(self.state.shared as u64, self.state.shared_bytes)
            || inside(t.local as u64, u64::from(self.state.local_bytes))
            || memory.allows(t.looked, bytes);
        let at = t.looked as *const u8;
        // SAFETY: the block's memory, GPU memory, or what the surroundings allow at this moment;
        // aligned, because the thread was allowed this access.
        readable.then(|| unsafe {
            match bytes {
                1 => u64::from(at.read_volatile()),
                2 => u64::from(at.cast::<u16>().read_volatile()),
                4 => u64::from(at.cast::<u32>().read_volatile()),
                _ => at.cast::<u64>().read_volatile(),
            }
        })
    }
}
