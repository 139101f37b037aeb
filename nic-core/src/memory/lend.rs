//! GPU memory that no CPU maps: each allocation is lent to local peers while a region of it is registered.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;

use ringbell_gtlb::{DeregisterError, MemoryRegion, NotReached};
use ringbell_nic_abi::Lkey;

use super::share::NEXT;
use crate::command::Core;
use crate::transport::PeerLoans;
use crate::Nic;

/// An allocation, by the number that its memory gave it.
#[derive(Debug)]
struct Lent {
    /// Its number towards peers.
    id: u64,
    /// Regions inside.
    regions: usize,
    /// Peers were asked for it back.
    withdrawn: bool,
}

/// What this NIC has lent.
#[derive(Debug, Default)]
pub(crate) struct Lending {
    by_key: BTreeMap<u64, Lent>,
    by_region: HashMap<u32, u64>,
    /// Regions that are not lent, and why.
    kept: HashMap<u32, NotReached>,
}

impl Nic {
    /// Lends the allocation around a region, if its memory is one that peers borrow.
    pub(crate) fn lend_region(&self, region: &MemoryRegion) {
        let asked = self.core(|c| {
            let far = !c.dma.is_mapped() && c.transports.iter().any(|t| t.name() == "local");
            let span = c.mmu.span(region.lkey.0, region.va, region.len);
            span.ok().filter(|_| far).map(|s| (s, c.dma.memory.clone()))
        });
        let Some((span, memory)) = asked else { return };
        // Without the NIC's lock: a driver takes its time.
        let loan = memory.lend(span);
        self.core(|c| {
            let loan = match loan {
                Ok(loan) if loan.covers(span.addr.value(), span.len) => loan,
                Ok(_) => return,
                Err(why) => {
                    tracing::info!(va = %region.va, %why, "memory is not lent to local peers; it is staged");
                    c.lending.kept.insert(region.lkey.0, why);
                    return;
                }
            };
            c.lending.by_region.insert(region.lkey.0, loan.key);
            let id = NEXT.fetch_add(1, Ordering::Relaxed);
            let lent = c.lending.by_key.entry(loan.key).or_insert(Lent {
                id,
                regions: 0,
                withdrawn: false,
            });
            lent.regions += 1;
            // One that was asked back for a region in quarantine stays staged.
            if lent.regions == 1 {
                c.transports.iter_mut().for_each(|t| t.lend(id, &loan));
            }
        });
    }
}

impl Nic {
    /// Which memory local peers copy from by their own engines, and which of theirs this NIC: nothing where
    /// memory is mapped.
    pub fn loans(&self) -> Vec<PeerLoans> {
        self.core(|c| c.transports.iter().flat_map(|t| t.loans()).collect())
    }
}

impl Core {
    /// A region without operations in flight is about to go: takes its allocation back from peers when it was
    /// the last one there.
    ///
    /// # Errors
    /// [`DeregisterError::Borrowed`] until they have given it back.
    pub(crate) fn end_loan(&mut self, lkey: Lkey) -> Result<(), DeregisterError> {
        let Some(&key) = self.lending.by_region.get(&lkey.0) else {
            self.lending.kept.remove(&lkey.0);
            return Ok(());
        };
        if self.mmu.pins_of(lkey) > 0 {
            // What is on its way still needs it.
            return Ok(());
        }
        if let Some(lent) = self.lending.by_key.get_mut(&key) {
            if lent.regions > 1 && !lent.withdrawn {
                lent.regions -= 1;
                self.lending.by_region.remove(&lkey.0);
                return Ok(());
            }
            let id = lent.id;
            if !std::mem::replace(&mut lent.withdrawn, true) {
                self.transports.iter_mut().for_each(|t| t.withdraw(id));
            }
            let peers = self.transports.iter().map(|t| t.holders(id)).sum();
            if peers > 0 {
                return Err(DeregisterError::Borrowed { lkey, peers });
            }
            lent.regions -= 1;
            if lent.regions == 0 {
                self.lending.by_key.remove(&key);
            }
        }
        self.lending.by_region.remove(&lkey.0);
        Ok(())
    }

    /// What of its memory peers copy by themselves, and why not the rest: for people.
    pub(crate) fn describe_loans(&self) -> Vec<String> {
        let loans = self.transports.iter().flat_map(|t| t.loans());
        let mut lines: Vec<String> = loans.map(|l| l.to_string()).collect();
        for why in NotReached::ALL {
            let n = self.lending.kept.values().filter(|w| **w == why).count();
            if n > 0 {
                lines.push(format!(
                    "{n} regions are staged for every peer, because {why}"
                ));
            }
        }
        lines
    }
}
