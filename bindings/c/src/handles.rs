//! Opaque C handles: numbers from a table, in the form of pointers.
//!
//! A pointer to an internal structure could not be checked. A number is looked up. Each is given
//! out once, so a handle that was closed, or is of another kind, is refused.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::failure::Failure;

/// The next handle of any kind. Relaxed: only uniqueness matters, the tables' locks order the rest.
static NEXT: AtomicUsize = AtomicUsize::new(1);

/// Live handles of one kind.
pub(super) struct Table<T> {
    /// For messages: "NIC".
    kind: &'static str,
    live: Mutex<BTreeMap<usize, Arc<T>>>,
}

impl<T> Table<T> {
    pub(super) const fn new(kind: &'static str) -> Table<T> {
        Table {
            kind,
            live: Mutex::new(BTreeMap::new()),
        }
    }

    fn live(&self) -> MutexGuard<'_, BTreeMap<usize, Arc<T>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unknown(&self, handle: usize) -> Failure {
        Failure::argument(if handle == 0 {
            format!("the {} is a null pointer", self.kind)
        } else {
            format!(
                "{handle:#x} is no open {}; was it closed before?",
                self.kind
            )
        })
    }

    /// A handle for `value`.
    pub(super) fn insert(&self, value: T) -> usize {
        // Multiples of 16, like any pointer from malloc; odd addresses would alarm tools.
        let handle = NEXT.fetch_add(1, Ordering::Relaxed) * 16;
        self.live().insert(handle, Arc::new(value));
        handle
    }

    /// The value of the handle.
    pub(super) fn get(&self, handle: usize) -> Result<Arc<T>, Failure> {
        let found = self.live().get(&handle).cloned();
        found.ok_or_else(|| self.unknown(handle))
    }

    /// Ends the handle. Its value is dropped with its last user.
    pub(super) fn remove(&self, handle: usize) -> Result<Arc<T>, Failure> {
        let found = self.live().remove(&handle);
        found.ok_or_else(|| self.unknown(handle))
    }

    /// Ends all handles whose value `goes`, and gives the values. To be dropped without a lock:
    /// that may take a while, or use this table.
    pub(super) fn remove_where(&self, goes: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let mut live = self.live();
        let gone: Vec<usize> = live
            .iter()
            .filter(|(_, v)| goes(v))
            .map(|(h, _)| *h)
            .collect();
        gone.iter().filter_map(|h| live.remove(h)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_or_foreign_handle_is_refused() {
        static A: Table<u32> = Table::new("thing");
        static B: Table<u32> = Table::new("other");
        let (a, b) = (A.insert(7), B.insert(8));
        assert_eq!(A.get(a).map(|v| *v).ok(), Some(7));
        for wrong in [0, b, a + 16 * 1000] {
            assert!(A.get(wrong).is_err(), "{wrong:#x}");
        }
        assert!(A.remove(a).is_ok());
        assert!(A.remove(a).is_err() && A.get(a).is_err());
        assert_ne!(A.insert(9), a, "a handle is never given twice");
        assert_eq!(A.remove_where(|v| *v == 9).len(), 1);
        assert!(A.live().is_empty());
    }
}
