//! [`Contexts`]: the communicators on which messages are taken.
//!
//! Each has a number that its rank 0 gives when it is made, which is a collective call: a first
//! message is none. The NIC keeps messages of different numbers apart. A
//! communicator that is made otherwise (`MPI_Comm_idup`, between two groups, with ranks of another
//! job) has none on any of its ranks, so that its messages stay with the library below.
#![allow(unsafe_code)] // Calls the library below.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use ringbell::comm::MAX_CONTEXTS;

use super::ranks::Context;
use crate::abi::Handle;
use crate::below::below;
use crate::group::{size_and_rank, world_ranks};
use crate::layer::Layer;

/// The number of `MPI_COMM_WORLD`.
const WORLD: u32 = 0;

/// The number of `MPI_COMM_SELF`, whose messages do not leave their rank.
const OWN: u32 = 1;

/// The first that ranks give.
const FIRST: u32 = 2;

/// All of them, by the program's handle.
#[derive(Debug)]
pub(super) struct Contexts {
    all: RwLock<HashMap<Handle, Arc<Context>>>,
    /// The number that this rank gives next, and how far apart its numbers are: those of other
    /// ranks lie between.
    next: AtomicU32,
    step: u32,
}

impl Contexts {
    /// With those that MPI gives to every program.
    pub(super) fn new(world: Handle, own: Handle, rank: u32, size: u32) -> Contexts {
        let of_all = Context::new(WORLD, (0..size).collect());
        let of_own = Context::new(OWN, vec![rank]);
        let all = [(world, Arc::new(of_all)), (own, Arc::new(of_own))];
        Contexts {
            all: RwLock::new(HashMap::from(all)),
            next: AtomicU32::new(FIRST + rank),
            step: size,
        }
    }

    /// A number that no rank has given; `MAX_CONTEXTS` when there is none left.
    fn next(&self) -> u32 {
        let next = |n: u32| (n < MAX_CONTEXTS).then(|| n.saturating_add(self.step));
        // Relaxed: it only counts.
        let given = self
            .next
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        given.unwrap_or(MAX_CONTEXTS).min(MAX_CONTEXTS)
    }

    pub(super) fn get(&self, comm: Handle) -> Option<Arc<Context>> {
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        all.get(&comm).cloned()
    }

    fn insert(&self, comm: Handle, context: Context) {
        let mut all = self.all.write().unwrap_or_else(PoisonError::into_inner);
        all.insert(comm, Arc::new(context));
    }

    pub(super) fn remove(&self, comm: Handle) {
        let mut all = self.all.write().unwrap_or_else(PoisonError::into_inner);
        all.remove(&comm);
    }
}

impl Contexts {
    /// Takes messages on a communicator that the program has just made, where they can be taken.
    /// All its ranks call it.
    pub(super) fn adopt(&self, layer: &Layer, comm: Handle) {
        let Some((size, _)) = size_and_rank(comm) else {
            return;
        };
        let Some(world_ranks) = world_ranks(&layer.tables, comm, size) else {
            return;
        };
        let mut id = self.next();
        // SAFETY: the signature of MPI's standard.
        let code = unsafe {
            below!(
                "PMPI_Bcast",
                fn(*mut u32, c_int, Handle, c_int, Handle) -> c_int
            )(&raw mut id, 4, layer.tables.byte, 0, comm)
        };
        if code != 0 || id >= MAX_CONTEXTS {
            return;
        }
        self.insert(comm, Context::new(id, world_ranks));
        layer.tell_when_freed(comm);
    }
}
