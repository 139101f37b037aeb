//! The MPI layer: collectives of an unmodified MPI program on Ringbell, everything else on the
//! program's own MPI library.
//!
//! Preloaded (`ringbell mpi -- PROGRAM`), it takes the place of some `MPI_` functions by the
//! profiling interface: the library's own are `PMPI_`. Whether a call is taken depends on what MPI
//! makes equal on all ranks (communicator, bytes, type and operation of a reduction), so that all
//! ranks decide alike. Ranks find each other over the library below.
//!
//! One library serves MPICH, Open MPI and MPI 5's standard ABI: which one is below is seen when the
//! program initialises it (`abi`).
//!
//! `abi`: handles and constants. `below`: functions of the library below. `elements`: the program's
//! elements of a call. `memory`: how buffers reach the NIC. `device`: memory of a GPU. `group`:
//! communicators. `layer`: the state of a process. `collective`: which calls are taken, and how.
//! `failure`, `trace`: what the program and its user learn. `p2p`: messages between two ranks.
//! `imports`: which functions the program calls. `calls` and `fortran`: the functions that are
//! exported.
// `trace::say` writes whole lines.
#![warn(clippy::print_stderr)]

mod abi;
mod arguments;
mod below;
mod calls;
mod collective;
mod device;
mod elements;
mod exported;
mod failure;
mod fortran;
mod group;
mod imports;
mod layer;
mod memory;
mod p2p;
mod trace;
