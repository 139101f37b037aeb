//! Groups: communicators of the program, each with one of Ringbell's.
#![allow(unsafe_code)] // Calls the library below.

use std::ffi::c_int;
use std::sync::Mutex;

use ringbell::Communicator;

use crate::abi::{Handle, Tables};
use crate::below::below;
use crate::memory::Scratch;

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
