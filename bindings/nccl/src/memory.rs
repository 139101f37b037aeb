//! Registered memory of the program.
//!
//! NCCL registers the same buffer for several communicators, and parts of it again. The NIC knows
//! each byte once, so registrations share parts: what is new of a range gets parts of its own, and
//! a message that crosses from one part to the next is given as several.
#![allow(unsafe_code)] // The program's memory, by its pointers.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use ringbell::abi::GpuVa;
use ringbell::memory::HostRegion;
use ringbell::Nic;

use crate::abi::Code;
use crate::failure::Failure;

/// Bytes that the NIC knows.
#[derive(Debug)]
struct Part {
    start: usize,
    end: usize,
    _region: HostRegion,
}

/// A registration.
#[derive(Debug)]
pub(crate) struct Registered {
    start: usize,
    end: usize,
    /// In order, without gaps.
    parts: Vec<Arc<Part>>,
    known: Arc<Known>,
}

/// Parts by start; they do not overlap.
type Known = Mutex<BTreeMap<usize, Weak<Part>>>;

/// Everything that is registered with a NIC.
#[derive(Debug)]
pub(crate) struct Registry {
    nic: Nic,
    known: Arc<Known>,
}

impl Registry {
    pub(crate) fn new(nic: &Nic) -> Registry {
        Registry {
            nic: nic.clone(),
            known: Arc::default(),
        }
    }

    /// Registers bytes.
    ///
    /// # Safety
    /// They stay mapped until the registration was dropped.
    pub(crate) unsafe fn register(&self, at: *mut u8, bytes: usize) -> Result<Registered, Failure> {
        let start = at.addr();
        let end = start.checked_add(bytes).filter(|_| start != 0);
        let end = end.ok_or_else(|| Failure::argument(format!("no memory: {at:p}, {bytes} B")))?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, part| part.strong_count() > 0);
        let mut parts = Vec::new();
        let mut next = start;
        // The parts that are there, from the one that covers the start.
        let first = known.range(..=start).next_back().map_or(start, |(s, _)| *s);
        let old = known.range(first..end).filter_map(|(_, p)| p.upgrade());
        let old: Vec<Arc<Part>> = old.filter(|p| p.end > start).collect();
        let ends = old.iter().map(Some).chain([None]);
        for part in ends {
            let gap_end = part.map_or(end, |p| p.start.min(end));
            if next < gap_end {
                let ptr = NonNull::new(at.with_addr(next));
                let ptr = ptr.ok_or_else(|| Failure::argument("a null pointer"))?;
                // SAFETY: the caller's contract.
                let region = unsafe { self.nic.register_host(ptr, gap_end - next) };
                let _region = region.map_err(|e| {
                    let bytes = gap_end - next;
                    Failure::system(&format!("cannot register {bytes} B at {next:#x}"), &e)
                })?;
                let new = Arc::new(Part {
                    start: next,
                    end: gap_end,
                    _region,
                });
                known.insert(next, Arc::downgrade(&new));
                parts.push(new);
            }
            if let Some(part) = part {
                next = part.end;
                parts.push(part.clone());
            }
        }
        drop(known);
        Ok(Registered {
            start,
            end,
            parts,
            known: self.known.clone(),
        })
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // Under the lock, so that a part which ends is not registered again meanwhile.
        let _known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        self.parts.clear();
    }
}

impl Registered {
    /// Cuts a message's bytes where parts end.
    pub(crate) fn cut(&self, at: usize, bytes: usize) -> Result<Vec<(GpuVa, u64)>, Failure> {
        let end = at.checked_add(bytes);
        let Some(end) = end.filter(|e| at >= self.start && *e <= self.end) else {
            let (start, end) = (self.start, self.end);
            let text =
                format!("{bytes} B at {at:#x} are not within the registered {start:#x}..{end:#x}");
            return Err(Failure::new(Code::InvalidArgument, text));
        };
        let mut cuts = Vec::with_capacity(1);
        let mut next = at;
        for part in &self.parts {
            if next < end && (part.start..part.end).contains(&next) {
                let len = part.end.min(end) - next;
                cuts.push((GpuVa(next as u64), len as u64));
                next += len;
            }
        }
        Ok(cuts)
    }
}
