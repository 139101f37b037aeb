//! Pages of GPU memory that several registrations of foreign memory share.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use ringbell_gtlb::{MapError, PageTable, PAGE_BYTES};
use ringbell_nic_abi::GpuVa;

use crate::backend::Backend;

/// Pages that several registrations share: the driver puts small allocations beside each other.
///
/// Only the first and the last page of a range can be shared; those between hold nothing else.
#[derive(Debug, Default)]
pub(crate) struct SharedPages {
    users: Mutex<HashMap<u64, u32>>,
}

/// Splits a table of pages into its two ends and the pages between.
fn parts(table: &PageTable) -> (Vec<u64>, Option<PageTable>) {
    let n = table.pages.len();
    let at = |i: usize| table.base.0 + i as u64 * PAGE_BYTES;
    let ends = if n == 1 {
        vec![at(0)]
    } else {
        vec![at(0), at(n - 1)]
    };
    let between = (n > 2).then(|| PageTable {
        base: GpuVa(at(1)),
        pages: table.pages[1..n - 1].to_vec(),
    });
    (ends, between)
}

fn forget(nic: &dyn Backend, va: u64, len: u64) {
    if let Err(error) = nic.unmap(GpuVa(va), len) {
        tracing::error!(va, %error, "cannot take back a mapping");
    }
}

impl SharedPages {
    pub(crate) fn map(&self, nic: &dyn Backend, table: &PageTable) -> Result<(), MapError> {
        let (ends, between) = parts(table);
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(between) = &between {
            nic.map(between)?;
        }
        for (i, page) in ends.iter().enumerate() {
            let count = users.entry(*page).or_default();
            // A bus address belongs to the GPU: every registration of the page has the same one.
            let single = PageTable {
                base: GpuVa(*page),
                pages: vec![*page],
            };
            if *count == 0 {
                if let Err(e) = nic.map(&single) {
                    users.remove(page);
                    drop(users);
                    self.release(nic, &ends[..i], between.as_ref());
                    return Err(e);
                }
            }
            *users.entry(*page).or_default() += 1;
        }
        Ok(())
    }

    pub(crate) fn unmap(&self, nic: &dyn Backend, table: &PageTable) {
        let (ends, between) = parts(table);
        self.release(nic, &ends, between.as_ref());
    }

    fn release(&self, nic: &dyn Backend, ends: &[u64], between: Option<&PageTable>) {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        for page in ends {
            let left = users.get(page).copied().unwrap_or(0).saturating_sub(1);
            if left > 0 {
                users.insert(*page, left);
            } else {
                users.remove(page);
                forget(nic, *page, PAGE_BYTES);
            }
        }
        if let Some(t) = between {
            forget(nic, t.base.0, t.pages.len() as u64 * PAGE_BYTES);
        }
    }
}
