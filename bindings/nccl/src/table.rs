//! Opaque handles: numbers from a table, in the form of pointers.
//!
//! NCCL's proxy and initialising threads use them at once, and a program that confuses them gets an
//! error instead of a crash. Each number is given out once. The low bits of a communicator's handle
//! are free: its requests have them ([`REQUEST_BITS`]).

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::failure::Failure;

/// Bits of a handle that a request's number takes.
pub(crate) const REQUEST_BITS: u32 = 20;

/// The next handle of any kind. Relaxed: only uniqueness matters, the tables' locks order the rest.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Live handles of one kind.
pub(crate) struct Table<T> {
    /// For messages: `listening communicator`.
    kind: &'static str,
    live: RwLock<Option<HashMap<u64, Arc<T>>>>,
}

impl<T> Table<T> {
    pub(crate) const fn new(kind: &'static str) -> Table<T> {
        Table {
            kind,
            live: RwLock::new(None),
        }
    }

    fn unknown(&self, handle: u64) -> Failure {
        Failure::argument(match handle {
            0 => format!("the {} is a null pointer", self.kind),
            h => format!("{h:#x} is no open {}; was it closed before?", self.kind),
        })
    }

    /// A handle for a value.
    pub(crate) fn insert(&self, value: T) -> u64 {
        let handle = NEXT.fetch_add(1, Ordering::Relaxed) << REQUEST_BITS;
        let mut live = self.live.write().unwrap_or_else(PoisonError::into_inner);
        live.get_or_insert_default().insert(handle, Arc::new(value));
        handle
    }

    /// The value of the handle.
    pub(crate) fn get(&self, handle: u64) -> Result<Arc<T>, Failure> {
        let live = self.live.read().unwrap_or_else(PoisonError::into_inner);
        let found = live.as_ref().and_then(|l| l.get(&handle)).cloned();
        found.ok_or_else(|| self.unknown(handle))
    }

    /// Ends the handle. Its value is dropped with its last user.
    pub(crate) fn remove(&self, handle: u64) -> Result<Arc<T>, Failure> {
        let mut live = self.live.write().unwrap_or_else(PoisonError::into_inner);
        let found = live.as_mut().and_then(|l| l.remove(&handle));
        found.ok_or_else(|| self.unknown(handle))
    }
}
