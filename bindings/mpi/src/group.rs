//! Groups: communicators of the program, each with one of Ringbell's.
#![allow(unsafe_code)] // Calls the library below.

use std::ffi::{c_int, c_void};
use std::sync::Mutex;

use ringbell::Communicator;

use crate::abi::{Handle, Tables};
use crate::below::below;
use crate::layer::{agreed, Layer};
use crate::memory::Scratch;
use crate::trace::say;

/// A communicator of the program.
#[derive(Debug)]
pub(crate) struct Group {
    /// Ringbell's, or why its calls are handed on.
    pub(crate) comm: Result<Communicator, &'static str>,
    rank: u32,
    world_ranks: Vec<u32>,
    pub(crate) scratch: Mutex<Scratch>,
}

impl Group {
    pub(crate) fn new(
        comm: Result<Communicator, &'static str>,
        rank: u32,
        world_ranks: Vec<u32>,
    ) -> Group {
        Group {
            comm,
            rank,
            world_ranks,
            scratch: Mutex::default(),
        }
    }

    /// Own rank.
    pub(crate) fn rank(&self) -> u32 {
        self.rank
    }

    /// Rank in `MPI_COMM_WORLD` of each rank.
    pub(crate) fn world_ranks(&self) -> &[u32] {
        &self.world_ranks
    }

    /// Ranks.
    pub(crate) fn size(&self) -> u32 {
        self.world_ranks.len() as u32
    }

    /// Learns the group of a communicator at the first collective on it. All its ranks do so
    /// together, and end alike.
    pub(crate) fn learn(layer: &Layer, comm: Handle) -> Group {
        let handed_on = |why| Group::new(Err(why), 0, Vec::new());
        let Some((size, rank)) = size_and_rank(comm) else {
            return handed_on("an intercommunicator");
        };
        if size < 2 {
            return handed_on("a communicator of one rank");
        }
        let Some(ranks) = world_ranks(&layer.tables, comm, size) else {
            return handed_on("its ranks are not all of one MPI_COMM_WORLD");
        };
        let mut tag: u64 = layer.next_tag();
        // SAFETY: the signatures of MPI's standard. The barrier waits without a limit for ranks
        // that are late, as MPI does; what follows has one.
        unsafe {
            below!(
                "PMPI_Bcast",
                fn(*mut u64, c_int, Handle, c_int, Handle) -> c_int
            )(&raw mut tag, 8, layer.tables.byte, 0, comm);
            below!("PMPI_Barrier", fn(Handle) -> c_int)(comm);
        }
        let made = layer.world().and_then(|w| {
            let made = w.create_group(&ranks, tag);
            made.map_err(|e| say(format_args!("a communicator of {size} ranks: {e}")))
                .ok()
        });
        let all = agreed(&layer.tables, comm, made.is_some());
        let made = made
            .filter(|_| all)
            .ok_or("Ringbell has no communicator for it");
        Group::new(made, rank as u32, ranks)
    }
}

/// Ranks of a communicator, and the own one; `None` between two groups.
pub(crate) fn size_and_rank(comm: Handle) -> Option<(c_int, c_int)> {
    let (mut inter, mut size, mut rank) = (0, 0, 0);
    // SAFETY: the signatures of MPI's standard.
    unsafe {
        below!("PMPI_Comm_test_inter", fn(Handle, *mut c_int) -> c_int)(comm, &raw mut inter);
        below!("PMPI_Comm_size", fn(Handle, *mut c_int) -> c_int)(comm, &raw mut size);
        below!("PMPI_Comm_rank", fn(Handle, *mut c_int) -> c_int)(comm, &raw mut rank);
    }
    (inter == 0).then_some((size, rank))
}

/// Ranks of a communicator in `MPI_COMM_WORLD`, where they all have one.
pub(crate) fn world_ranks(tables: &Tables, comm: Handle, size: c_int) -> Option<Vec<u32>> {
    let own: Vec<c_int> = (0..size).collect();
    let mut ranks = vec![0; own.len()];
    // Room for a handle of either size.
    let (mut group, mut world): (Handle, Handle) = (0, 0);
    // SAFETY: the signatures of MPI's standard; the arrays have `size` elements.
    unsafe {
        let of = below!("PMPI_Comm_group", fn(Handle, *mut Handle) -> c_int);
        of(comm, &raw mut group);
        of(tables.world, &raw mut world);
        type Translate =
            unsafe extern "C" fn(Handle, c_int, *const c_int, Handle, *mut c_int) -> c_int;
        let translate: Translate = below!(
            "PMPI_Group_translate_ranks",
            fn(Handle, c_int, *const c_int, Handle, *mut c_int) -> c_int
        );
        translate(group, size, own.as_ptr(), world, ranks.as_mut_ptr());
        let free = below!("PMPI_Group_free", fn(*mut Handle) -> c_int);
        free(&raw mut group);
        free(&raw mut world);
    }
    let known = |r: &c_int| (*r != Tables::UNDEFINED).then_some(*r as u32);
    ranks.iter().map(known).collect()
}

/// Lets go of a communicator that the program has freed: the callback of the attribute that it was
/// given.
pub(crate) extern "C" fn freed(comm: Handle, _: c_int, _: *mut c_void, _: *mut c_void) -> c_int {
    if let Some(layer) = Layer::get() {
        layer.forget(comm);
    }
    0
}

/// A duplicate of a communicator has a group of its own.
pub(crate) extern "C" fn not_copied(
    _: Handle,
    _: c_int,
    _: *mut c_void,
    _: *mut c_void,
    _: *mut c_void,
    flag: *mut c_int,
) -> c_int {
    // SAFETY: where MPI wants the answer.
    unsafe { *flag = 0 };
    0
}
