//! Bytes of registered memory of the host. Each access is checked anew, and none outlives the
//! context's lock: a region that was deregistered is never touched again.
#![allow(unsafe_code)] // Registered memory has owners outside: raw copies and atomics alone.

use std::sync::atomic::{AtomicU64, Ordering};

use ringbell_gtlb::{Mmu, Need};
use ringbell_nic_abi::{GpuVa, Lkey, PdId, Rkey};

use super::types::Sge;
use crate::qp::Atomic;
use ringbell_gtlb::copy::copy;
use ringbell_net::wire::roce::AtomicEth;

/// An access that memory does not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Denied;

/// The pieces of a request: most have one or two, which cost no allocation.
#[derive(Debug, Clone, Default)]
pub(super) struct Pieces {
    first: [Sge; 2],
    more: Vec<Sge>,
    count: usize,
}

impl Pieces {
    pub(super) fn new(all: &[Sge]) -> Pieces {
        let mut first = [Sge::default(); 2];
        for (to, from) in first.iter_mut().zip(all) {
            *to = *from;
        }
        Pieces {
            first,
            more: all.get(2..).unwrap_or_default().to_vec(),
            count: all.len(),
        }
    }

    fn iter(&self) -> impl Iterator<Item = &Sge> {
        self.first.iter().chain(&self.more).take(self.count)
    }

    /// Bytes of all pieces.
    pub(super) fn len(&self) -> u64 {
        self.iter().map(|s| u64::from(s.len)).sum()
    }

    /// Finds `len` bytes from `offset` on, and hands each run of them to `each`, with its place
    /// among them.
    fn visit(
        &self,
        memory: &mut Mmu,
        pd: PdId,
        offset: u32,
        len: usize,
        need: Need,
        mut each: impl FnMut(*mut u8, usize, usize),
    ) -> Result<(), Denied> {
        let (mut skip, mut done) = (u64::from(offset), 0);
        for s in self.iter() {
            let left = u64::from(s.len).saturating_sub(skip);
            if done == len {
                break;
            }
            if left == 0 {
                skip -= u64::from(s.len);
                continue;
            }
            let n = (len - done).min(left as usize);
            // Key 0 would find the region by its address.
            if s.lkey == 0 {
                return Err(Denied);
            }
            // A piece is right as a whole, or not at all.
            let span = memory
                .span_once(pd, Lkey(s.lkey), GpuVa(s.address), s.len.into(), need)
                .map_err(|_| Denied)?;
            each(pointer(span.addr.value() + skip), done, n);
            done += n;
            skip = 0;
        }
        if done == len {
            Ok(())
        } else {
            Err(Denied)
        }
    }

    /// Copies bytes from `offset` on out of the pieces.
    pub(super) fn read(
        &self,
        memory: &mut Mmu,
        pd: PdId,
        offset: u32,
        to: &mut [u8],
    ) -> Result<(), Denied> {
        let (room, len) = (to.as_mut_ptr(), to.len());
        self.visit(memory, pd, offset, len, Need::Read, |from, at, n| {
            // SAFETY: the region was registered as readable and is not deregistered while the lock
            // is held; `at + n` is within `to`.
            unsafe { copy(room.add(at), from, n) }
        })
    }

    /// Copies bytes into the pieces, from `offset` on.
    pub(super) fn write(
        &self,
        memory: &mut Mmu,
        pd: PdId,
        offset: u32,
        bytes: &[u8],
    ) -> Result<(), Denied> {
        let from = bytes.as_ptr();
        self.visit(memory, pd, offset, bytes.len(), Need::Write, |to, at, n| {
            // SAFETY: likewise, as writable.
            unsafe { copy(to, from.add(at), n) }
        })
    }
}

/// The host's address behind a bus address: regions are flat, and the bus is the process's memory.
fn pointer(bus: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(bus as usize)
}

/// Checks an access of a peer, and gives the host's address of its first byte.
pub(super) fn remote(
    memory: &mut Mmu,
    pd: PdId,
    (address, rkey): (u64, u32),
    len: u64,
    need: Need,
) -> Result<*mut u8, Denied> {
    let (region, _) = memory
        .check_remote(&[pd], Rkey(rkey), GpuVa(address), len, need)
        .map_err(|_| Denied)?;
    let span = memory
        .span(region, GpuVa(address), len)
        .map_err(|_| Denied)?;
    Ok(pointer(span.addr.value()))
}

/// Writes for a peer.
pub(super) fn write_remote(
    memory: &mut Mmu,
    pd: PdId,
    at: (u64, u32),
    bytes: &[u8],
) -> Result<(), Denied> {
    let to = remote(memory, pd, at, bytes.len() as u64, Need::RemoteWrite)?;
    // SAFETY: checked for all the bytes; the region is not deregistered while the lock is held.
    unsafe { copy(to, bytes.as_ptr(), bytes.len()) };
    Ok(())
}

/// Reads for a peer.
pub(super) fn read_remote(
    memory: &mut Mmu,
    pd: PdId,
    at: (u64, u32),
    to: &mut [u8],
) -> Result<(), Denied> {
    let from = remote(memory, pd, at, to.len() as u64, Need::RemoteRead)?;
    // SAFETY: as above.
    unsafe { copy(to.as_mut_ptr(), from, to.len()) };
    Ok(())
}

/// Executes an atomic operation of a peer; gives the old value. It is atomic with the host's
/// threads as well.
pub(super) fn atomic_remote(
    memory: &mut Mmu,
    pd: PdId,
    operation: Atomic,
    operands: &AtomicEth,
) -> Result<u64, Denied> {
    let at = (operands.address, operands.key);
    let word = remote(memory, pd, at, 8, Need::RemoteAtomic)?.cast::<u64>();
    // A region with addresses of its own may be shifted by bytes.
    if !word.is_aligned() {
        return Err(Denied);
    }
    // SAFETY: aligned, checked for 8 bytes, and not deregistered while the lock is held.
    let word = unsafe { AtomicU64::from_ptr(word) };
    Ok(match operation {
        Atomic::FetchAdd => word.fetch_add(operands.swap_or_add, Ordering::SeqCst),
        Atomic::CompareSwap => {
            let (compare, swap) = (operands.compare, operands.swap_or_add);
            word.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst)
                .unwrap_or_else(|old| old)
        }
    })
}
