//! A mock `libnccl.so.2`: the part of NCCL that the comparison uses, over the loaded driver (in
//! tests the mock one).
//!
//! It computes real sums. Ranks meet at a TCP address in the unique id, as NCCL's do, and
//! operations run later, in the order of their stream, on the memory of the caller. Mistakes that
//! the real library refuses are refused here: a thread without a current context, two ranks of one
//! host on one GPU unless they are allowed (NCCL 2.30, `NCCL_MULTI_RANK_GPU_ENABLE=1`), and ranks
//! of other versions.
//!
//! `RINGBELL_MOCK_NCCL` is a list of faults, with commas: see [`faults::Faults`]. It says nothing
//! of NCCL's speed.
#![allow(unsafe_code)] // The C interface of a library.
#![allow(non_snake_case)] // Its names.
#![allow(missing_docs)] // Documented by NCCL.
#![allow(clippy::missing_safety_doc)] // As above.
#![allow(clippy::disallowed_methods)] // What hangs on purpose sleeps.

pub mod api;
pub mod faults;
mod meeting;
mod sum;
