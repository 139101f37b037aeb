//! Protection domains: the regions that a queue can reach, found by address.

use ringbell_nic_abi::{GpuVa, Lkey, PdId};

use crate::fault::Fault;
use crate::region::{Need, RegionState, RegionTable};

/// A region of a domain, in order of address.
#[derive(Debug, Clone, Copy)]
struct DomainRange {
    start: u64,
    end: u64,
    lkey: Lkey,
    /// Largest `end` of this range and those before it: where a search to the left may stop, also
    /// when regions overlap or lie inside one another.
    reach: u64,
}

/// One protection domain.
#[derive(Debug, Default)]
pub(crate) struct Domain {
    ranges: Vec<DomainRange>,
    /// Region that last answered a read and a write: most kernels use few buffers.
    last: [u32; 2],
}

impl Domain {
    /// Number of regions.
    pub(crate) fn len(&self) -> usize {
        self.ranges.len()
    }

    pub(crate) fn add(&mut self, start: u64, end: u64, lkey: Lkey) {
        let at = self.ranges.partition_point(|r| r.start <= start);
        let range = DomainRange {
            start,
            end,
            lkey,
            reach: end,
        };
        self.ranges.insert(at, range);
        self.update_reach(at);
    }

    pub(crate) fn remove(&mut self, lkey: Lkey) {
        for last in &mut self.last {
            // After many generations the key may name another domain's region.
            if *last == lkey.0 {
                *last = 0;
            }
        }
        if let Some(at) = self.ranges.iter().position(|r| r.lkey == lkey) {
            self.ranges.remove(at);
            self.update_reach(at);
        }
    }

    fn update_reach(&mut self, from: usize) {
        let mut reach = match from {
            0 => 0,
            _ => self.ranges[from - 1].reach,
        };
        for range in &mut self.ranges[from..] {
            reach = reach.max(range.end);
            range.reach = reach;
        }
    }

    /// A live region that covers `start..end` and grants the access; of several, any.
    ///
    /// # Errors
    /// What is wrong with the best candidate.
    #[inline]
    pub(crate) fn find(
        &mut self,
        regions: &RegionTable,
        start: u64,
        end: u64,
        need: Need,
    ) -> Result<Lkey, Fault> {
        if let Some(region) = regions.find(self.last[need as usize]) {
            if region.state == RegionState::Live
                && region.covers(start, end)
                && region.access.grants(need)
            {
                return Ok(region.lkey);
            }
        }
        let found = self.search(regions, start, end, need)?;
        self.last[need as usize] = found.0;
        Ok(found)
    }

    /// Keys of the domain's regions, in any state, that share a byte with `start..end`.
    pub(crate) fn overlapping(&self, start: u64, end: u64) -> impl Iterator<Item = Lkey> + '_ {
        let candidates = self.ranges.partition_point(|r| r.start < end);
        self.ranges[..candidates]
            .iter()
            .rev()
            .take_while(move |r| r.reach > start)
            .filter(move |r| r.end > start)
            .map(|r| r.lkey)
    }

    fn search(
        &self,
        regions: &RegionTable,
        start: u64,
        end: u64,
        need: Need,
    ) -> Result<Lkey, Fault> {
        let va = GpuVa(start);
        let (mut denied, mut freed, mut furthest) = (false, false, None);
        let candidates = self.ranges.partition_point(|r| r.start <= start);
        for range in self.ranges[..candidates].iter().rev() {
            if range.reach <= start && range.reach < end {
                break;
            }
            let Some(region) = regions.find(range.lkey.0) else {
                continue;
            };
            match region.state {
                RegionState::Live if range.end < end => {
                    if range.end > start {
                        furthest = furthest.max(Some(range.end));
                    }
                }
                RegionState::Live if region.access.grants(need) => return Ok(region.lkey),
                RegionState::Live => denied = true,
                RegionState::Freeing | RegionState::Quarantined => freed |= range.end >= end,
                RegionState::Free => {}
            }
        }
        Err(match furthest {
            _ if denied => Fault::AccessDenied { va },
            _ if freed => Fault::RegionFreed { va },
            Some(end) => Fault::OutOfBounds {
                va,
                end: GpuVa(end),
            },
            None => Fault::NotRegistered { va },
        })
    }
}

/// All protection domains of a NIC.
#[derive(Debug, Default)]
pub(crate) struct DomainTable {
    /// Index and generation make the id, so that a stale id is refused.
    slots: Vec<(u16, Option<Domain>)>,
}

/// A domain that cannot be made or freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PdError {
    /// No such domain.
    #[error("{pd} is no protection domain; it was never allocated or has been freed")]
    NoSuchPd {
        /// The id.
        pd: PdId,
    },
    /// All ids are taken.
    #[error("all {limit} protection domains are in use; free some")]
    TooMany {
        /// The limit.
        limit: usize,
    },
    /// The domain still has regions.
    #[error("{pd} still has {regions} memory regions; deregister them first")]
    InUse {
        /// The id.
        pd: PdId,
        /// Regions, quarantined ones included.
        regions: usize,
    },
}

/// Most protection domains of one NIC.
pub(crate) const MAX_DOMAINS: usize = 0xffff;

/// Slot in the low 16 bits, from 1 on; generation above.
fn id(slot: usize, generation: u16) -> PdId {
    PdId((generation as u32) << 16 | (slot as u32 + 1))
}

impl DomainTable {
    /// A new domain; `None` when all ids are taken.
    pub(crate) fn alloc(&mut self) -> Option<PdId> {
        let slot = match self.slots.iter().position(|(_, d)| d.is_none()) {
            Some(slot) => slot,
            None if self.slots.len() == MAX_DOMAINS => return None,
            None => {
                self.slots.push((0, None));
                self.slots.len() - 1
            }
        };
        self.slots[slot].1 = Some(Domain::default());
        Some(id(slot, self.slots[slot].0))
    }

    #[inline]
    pub(crate) fn find_mut(&mut self, pd: PdId) -> Option<&mut Domain> {
        let slot = ((pd.0 & 0xffff) as usize).checked_sub(1)?;
        let (generation, domain) = self.slots.get_mut(slot)?;
        domain.as_mut().filter(|_| *generation as u32 == pd.0 >> 16)
    }

    pub(crate) fn find(&self, pd: PdId) -> Option<&Domain> {
        let slot = ((pd.0 & 0xffff) as usize).checked_sub(1)?;
        let (generation, domain) = self.slots.get(slot)?;
        domain.as_ref().filter(|_| *generation as u32 == pd.0 >> 16)
    }

    pub(crate) fn free(&mut self, pd: PdId) -> Result<(), PdError> {
        let domain = self.find_mut(pd).ok_or(PdError::NoSuchPd { pd })?;
        if domain.len() > 0 {
            return Err(PdError::InUse {
                pd,
                regions: domain.len(),
            });
        }
        let slot = (pd.0 & 0xffff) as usize - 1; // `find_mut` has found it
        self.slots[slot].1 = None;
        self.slots[slot].0 = self.slots[slot].0.wrapping_add(1);
        Ok(())
    }
}
