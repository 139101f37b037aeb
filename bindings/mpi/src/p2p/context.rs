//! [`Contexts`]: the communicators on which messages are taken.
//!
//! Each has a number that its rank 0 gives when it is made, which is a collective call: a first
//! message is none. The NIC keeps messages of different numbers apart. A
//! communicator that is made otherwise (`MPI_Comm_idup`, between two groups, with ranks of another
//! job) has none on any of its ranks, so that its messages stay with the library below.
#![allow(unsafe_code)] // Calls the library below.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use ringbell::comm::MAX_CONTEXTS;

use super::ranks::Context;
use super::Messages;
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

    fn remove(&self, comm: Handle) {
        let mut all = self.all.write().unwrap_or_else(PoisonError::into_inner);
        all.remove(&comm);
    }
}

impl Messages {
    /// Takes messages on a communicator that the program has just made, where they can be taken.
    /// All its ranks call it.
    fn adopt(&self, layer: &Layer, comm: Handle) {
        let Some((size, _)) = size_and_rank(comm) else {
            return;
        };
        let Some(world_ranks) = world_ranks(&layer.tables, comm, size) else {
            return;
        };
        let mut id = self.contexts.next();
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
        self.contexts.insert(comm, Context::new(id, world_ranks));
        layer.tell_when_freed(comm);
    }

    /// Whether messages on this communicator are taken.
    pub(crate) fn knows(&self, comm: Handle) -> bool {
        self.contexts.get(comm).is_some()
    }

    /// Lets go of a communicator that the program has freed. What is under way on it ends as
    /// before.
    pub(crate) fn forget(&self, comm: Handle) {
        self.contexts.remove(comm);
    }
}

/// The program has made a communicator.
pub(super) fn made(comm: Handle) {
    let Some(layer) = Layer::get() else {
        return;
    };
    let Some(messages) = &layer.messages else {
        return;
    };
    let comm = layer.tables.handle(comm);
    if comm != layer.tables.no_comm {
        messages.adopt(layer, comm);
    }
}

/// Exports a function that makes a communicator. Its handle is the last argument.
macro_rules! making {
    ($($name:ident($($arg:ident: $ty:ty),* $(,)?);)*) => {$(
        #[no_mangle]
        #[allow(non_snake_case)] // MPI's name.
        unsafe extern "C" fn $name($($arg: $ty,)* new: *mut c_void) -> c_int {
            let make = below!(concat!("P", stringify!($name)), fn($($ty,)* *mut c_void) -> c_int);
            // SAFETY: the program's own call.
            let code = unsafe { make($($arg,)* new) };
            if let Some(layer) = Layer::get().filter(|_| code == 0) {
                // SAFETY: where the library below has written a handle.
                made(unsafe { layer.tables.read(new, 0) });
            }
            code
        }
    )*};
}

type Ints = *const c_int;

making! {
    MPI_Comm_dup(comm: Handle);
    MPI_Comm_dup_with_info(comm: Handle, info: Handle);
    MPI_Comm_split(comm: Handle, color: c_int, key: c_int);
    MPI_Comm_split_type(comm: Handle, kind: c_int, key: c_int, info: Handle);
    MPI_Comm_create(comm: Handle, group: Handle);
    MPI_Comm_create_group(comm: Handle, group: Handle, tag: c_int);
    MPI_Cart_create(comm: Handle, dims: c_int, sizes: Ints, periods: Ints, reorder: c_int);
    MPI_Cart_sub(comm: Handle, remain: Ints);
    MPI_Graph_create(comm: Handle, nodes: c_int, index: Ints, edges: Ints, reorder: c_int);
    MPI_Dist_graph_create(comm: Handle, nodes: c_int, sources: Ints, degrees: Ints, ends: Ints, weights: Ints, info: Handle, reorder: c_int);
    MPI_Dist_graph_create_adjacent(comm: Handle, entering: c_int, sources: Ints, its: Ints, leaving: c_int, ends: Ints, weights: Ints, info: Handle,
        reorder: c_int);
    MPI_Intercomm_merge(inter: Handle, high: c_int);
}
