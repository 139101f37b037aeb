//! [`Contexts`]: the communicators on which messages are taken.
//!
//! Each has a number that its rank 0 gives when it is made, which is a collective call: a first
//! message is none. Messages carry the number, and meet receives of the same number only. A
//! communicator that is made otherwise (`MPI_Comm_idup`, between two groups, with ranks of another
//! job) has none on any of its ranks, so that its messages stay with the library below.
#![allow(unsafe_code)] // Calls the library below.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, PoisonError, RwLock};

use super::Messages;
use crate::abi::Handle;
use crate::below::below;
use crate::group::{size_and_rank, world_ranks};
use crate::layer::Layer;

/// The number of `MPI_COMM_WORLD`. Those that ranks give begin with 1.
const WORLD: u64 = 0;

/// The number of `MPI_COMM_SELF`, whose messages do not leave their rank.
const OWN: u64 = u64::MAX;

/// A communicator on which messages are taken.
#[derive(Debug)]
pub(super) struct Context {
    /// Its number, the same on all its ranks.
    pub(super) id: u64,
    /// Own rank.
    pub(super) rank: u32,
    /// Rank in `MPI_COMM_WORLD` of each rank.
    world_ranks: Vec<u32>,
}

impl Context {
    /// Rank in `MPI_COMM_WORLD`; `None` where it has no such rank.
    pub(super) fn world_rank(&self, rank: c_int) -> Option<u32> {
        let rank = usize::try_from(rank).ok()?;
        self.world_ranks.get(rank).copied()
    }
}

/// All of them, by the program's handle.
#[derive(Debug, Default)]
pub(super) struct Contexts(RwLock<HashMap<Handle, Arc<Context>>>);

impl Contexts {
    /// With those that MPI gives to every program.
    pub(super) fn new(world: Handle, own: Handle, rank: u32, size: u32) -> Contexts {
        let of_all = Context {
            id: WORLD,
            rank,
            world_ranks: (0..size).collect(),
        };
        let of_own = Context {
            id: OWN,
            rank: 0,
            world_ranks: vec![rank],
        };
        let all = [(world, Arc::new(of_all)), (own, Arc::new(of_own))];
        Contexts(RwLock::new(HashMap::from(all)))
    }

    pub(super) fn get(&self, comm: Handle) -> Option<Arc<Context>> {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        all.get(&comm).cloned()
    }

    fn insert(&self, comm: Handle, context: Context) {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        all.insert(comm, Arc::new(context));
    }

    fn remove(&self, comm: Handle) -> bool {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        all.remove(&comm).is_some()
    }

    fn has(&self, id: u64) -> bool {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        all.values().any(|c| c.id == id)
    }
}

impl Messages {
    /// Takes messages on a communicator that the program has just made, where they can be taken.
    /// All its ranks call it.
    fn adopt(&self, layer: &Layer, comm: Handle) {
        let Some((size, rank)) = size_and_rank(comm) else {
            return;
        };
        let Some(world_ranks) = world_ranks(&layer.tables, comm, size) else {
            return;
        };
        let mut id = layer.next_tag();
        // SAFETY: the signature of MPI's standard.
        let code = unsafe {
            below!(
                "PMPI_Bcast",
                fn(*mut u64, c_int, Handle, c_int, Handle) -> c_int
            )(&raw mut id, 8, layer.tables.byte, 0, comm)
        };
        if code != 0 {
            return;
        }
        let rank = rank as u32;
        let context = Context {
            id,
            rank,
            world_ranks,
        };
        self.contexts.insert(comm, context);
        layer.tell_when_freed(comm);
    }

    /// Whether messages on this communicator are taken.
    pub(crate) fn knows(&self, comm: Handle) -> bool {
        self.contexts.get(comm).is_some()
    }

    /// Lets go of a communicator that the program has freed. What is under way on it ends as
    /// before.
    pub(crate) fn forget(&self, comm: Handle) {
        if self.contexts.remove(comm) {
            self.lock().prune(|id| self.contexts.has(id));
        }
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
