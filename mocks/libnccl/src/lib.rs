//! A `libnccl.so.2` for tests: the part of NCCL that the measurement beside it uses, over whatever driver is
//! loaded (in tests the mock one). It really sums: ranks meet at a TCP address that is in the unique id, as
//! NCCL's do, and operations run later, in the order of their stream, on the memory that it was given.
//!
//! As strict as the real one where that finds mistakes: a thread without a current context fails, two ranks of
//! one host on one GPU are refused unless they are allowed (NCCL 2.30, `NCCL_MULTI_RANK_GPU_ENABLE=1`), ranks of
//! other versions too, and what the environment says decides which transport its log tells of.
//!
//! `RINGBELL_MOCK_NCCL` is a list of faults, with commas: see [`faults::Faults`]. It says nothing of NCCL's speed.
#![allow(unsafe_code)] // The C interface of a library.
#![allow(non_snake_case)] // Its names.
#![allow(missing_docs)] // Documented by NCCL.
#![allow(clippy::missing_safety_doc)] // As above.
#![allow(clippy::disallowed_methods)] // What hangs on purpose sleeps.

pub mod api;
pub mod faults;
mod log;
mod meeting;
mod sum;
