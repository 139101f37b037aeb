//! GPU memory of other processes and of other allocators that a NIC has.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use ringbell::gpu::ForeignRegion;
use ringbell::parts::cuda_kernels::cuda::ForeignMemory;

/// Regions by address. The same part may be there several times.
type Regions = Mutex<BTreeMap<u64, Vec<ForeignRegion<ForeignMemory>>>>;

/// Memory of other processes, and registered memory of other allocators.
#[derive(Default)]
pub(super) struct Opened {
    pub(super) shared: Regions,
    pub(super) registered: Regions,
}

pub(super) fn insert(regions: &Regions, region: ForeignRegion<ForeignMemory>) -> u64 {
    let va = region.va().0;
    let mut regions = regions.lock().unwrap_or_else(PoisonError::into_inner);
    regions.entry(va).or_default().push(region);
    va
}

/// Ends the last one of an address.
pub(super) fn remove(regions: &Regions, va: u64) -> bool {
    let mut regions = regions.lock().unwrap_or_else(PoisonError::into_inner);
    let last = regions.get_mut(&va).and_then(Vec::pop);
    regions.retain(|_, of| !of.is_empty());
    // Dropped without the lock: it waits for DMA in flight.
    drop(regions);
    last.is_some()
}
