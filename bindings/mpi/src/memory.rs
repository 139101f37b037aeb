//! How a program's buffers reach the NIC: as exported memory, registered in place, or through
//! scratch memory.
//!
//! Memory of `MPI_Alloc_mem` is exported: peers map it. Long buffers of ordinary memory are
//! registered, and stay so, because nothing is pinned and the NIC touches only memory of operations
//! under way: memory that was freed and is used again finds its registration, or replaces it. Short
//! buffers, derived types, memory of a GPU and memory that cannot be registered (read-only, for
//! example) are copied through exported memory of the group.
#![allow(unsafe_code)] // The program's memory, by its pointers.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use ringbell::abi::GpuVa;
use ringbell::memory::{HostRegion, MemoryError};
use ringbell::{HostBuffer, Nic, Span};

/// Ordinary memory up to this many bytes goes through scratch memory.
pub(crate) const SHORT: usize = 64 << 10;

/// Most registrations that are kept.
const MOST: usize = 1024;

/// Memory that the NIC knows.
#[derive(Debug, Clone)]
enum Known {
    /// Of `MPI_Alloc_mem`.
    Exported(#[allow(dead_code)] Arc<HostBuffer>),
    Registered(#[allow(dead_code)] Arc<HostRegion>),
}

/// Memory that the NIC knows, by start, with its bytes. Entries are disjoint.
#[derive(Debug, Default)]
pub(crate) struct Memories {
    known: Mutex<BTreeMap<usize, (usize, Known)>>,
}

/// A place that an operation may name, for as long as this lives.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) span: Span,
    _known: Option<Known>,
}

impl Place {
    /// Of no bytes.
    pub(crate) fn nowhere() -> Place {
        Place {
            span: Span::NONE,
            _known: None,
        }
    }
}

impl Memories {
    /// Exported memory for `MPI_Alloc_mem`.
    pub(crate) fn alloc(&self, nic: &Nic, bytes: usize) -> Option<*mut c_void> {
        let buffer = self.export(nic, bytes).ok()?;
        let at = buffer.as_ptr();
        let mut known = self.lock();
        known.insert(at.addr(), (bytes, Known::Exported(Arc::new(buffer))));
        Some(at.cast())
    }

    /// Exported memory. The system may put it where memory was that is still registered: those
    /// registrations end first.
    pub(crate) fn export(&self, nic: &Nic, bytes: usize) -> Result<HostBuffer, MemoryError> {
        let refused = match nic.alloc_host(bytes) {
            Ok(buffer) => return Ok(buffer),
            Err(error) => error,
        };
        let mut known = self.lock();
        let kept = known.len();
        known.retain(|_, (_, m)| matches!(m, Known::Exported(_)));
        if known.len() == kept {
            return Err(refused);
        }
        drop(known);
        nic.alloc_host(bytes)
    }

    /// Frees memory of [`Memories::alloc`]; whether it was.
    pub(crate) fn free(&self, at: *mut c_void) -> bool {
        let mut known = self.lock();
        if !matches!(known.get(&at.addr()), Some((_, Known::Exported(_)))) {
            return false;
        }
        let gone = known.remove(&at.addr());
        // Waits for peers.
        drop(known);
        drop(gone);
        true
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<usize, (usize, Known)>> {
        // Each change is one step.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place in memory that the NIC knows; short or unknown memory that cannot be registered has
    /// none.
    pub(crate) fn place(&self, nic: &Nic, at: *mut u8, bytes: usize) -> Option<Place> {
        let (start, end) = (at.addr(), at.addr().checked_add(bytes)?);
        let span = Span::of(GpuVa(at.expose_provenance() as u64), bytes as u64);
        let mut known = self.lock();
        let below = known.range(..=start).next_back();
        if let Some((s, (len, memory))) = below {
            if end <= s + len {
                let _known = Some(memory.clone());
                return Some(Place { span, _known });
            }
        }
        if bytes <= SHORT {
            return None;
        }
        let old = overlapping(&mut known, start, end);
        if old
            .iter()
            .any(|(_, (_, m))| matches!(m, Known::Exported(_)))
        {
            // It runs over an end of exported memory: the program's error, or a neighbour's.
            known.extend(old);
            return None;
        }
        if known.len() >= MOST {
            known.retain(|_, (_, m)| matches!(m, Known::Exported(_)));
        }
        // With what it overlaps, so that parts of one array do not take turns.
        let first = old.iter().map(|(s, _)| *s).chain([start]).min()?;
        let last = old.iter().map(|(s, (len, _))| s + len).chain([end]).max()?;
        drop(old);
        for (s, e) in [(first, last), (start, end)] {
            let ptr = NonNull::new(at.with_addr(s))?;
            // SAFETY: the bytes of the call are mapped during it, by MPI's rules; for the others
            // the NIC finds out. It touches none of them without an operation that names them.
            if let Ok(region) = unsafe { nic.register_host(ptr, e - s) } {
                let memory = Known::Registered(Arc::new(region));
                let _known = Some(memory.clone());
                known.insert(s, (e - s, memory));
                return Some(Place { span, _known });
            }
        }
        None
    }
}

/// Takes out what overlaps a range.
fn overlapping(
    known: &mut BTreeMap<usize, (usize, Known)>,
    start: usize,
    end: usize,
) -> Vec<(usize, (usize, Known))> {
    let mut found = Vec::new();
    while let Some((s, (len, _))) = known.range(..end).next_back() {
        let (s, len) = (*s, *len);
        if s + len <= start {
            break;
        }
        found.extend(known.remove_entry(&s));
    }
    found
}

/// Exported memory of a group, for what is copied.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    buffer: Option<HostBuffer>,
}

impl Scratch {
    /// At least this many bytes.
    pub(crate) fn of(
        &mut self,
        memories: &Memories,
        nic: &Nic,
        bytes: usize,
    ) -> Result<*mut u8, MemoryError> {
        if let Some(buffer) = self.buffer.as_ref().filter(|b| b.len() >= bytes as u64) {
            return Ok(buffer.as_ptr());
        }
        // First the old one, so that there is room.
        self.buffer = None;
        let bytes = bytes.next_power_of_two().max(2 * SHORT);
        let buffer = memories.export(nic, bytes)?;
        Ok(self.buffer.insert(buffer).as_ptr())
    }
}
