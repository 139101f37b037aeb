//! The C API of `ringbell.h`: the NIC for programs in C and C++.
//!
//! A handle is a number in the form of a pointer ([`handles`]). Every entry catches panics and
//! keeps the error's text for its thread ([`failure`]). No function has a behaviour of its own: all
//! translate to the Rust API and back.
//!
//! `nic`, `memory`, `one_sided`, `host`: the NIC and its memory. `kernel`, `stream`, `graph`,
//! `socket`: work on the GPU. `launches`: kernels that outlive their NIC. `engine`, `own_engine`:
//! computation on the NIC's data path. `comm` with `comm_config`, `collective`, `request`, `group`,
//! `kernel_stream`: communicators, with NCCL's names for the calls.

mod collective;
mod comm;
mod comm_config;
mod engine;
mod failure;
mod graph;
mod group;
mod handles;
mod host;
mod kernel;
mod kernel_stream;
mod launches;
mod memory;
mod nic;
mod one_sided;
mod own_engine;
mod pointer;
mod request;
mod shared;
mod socket;
mod stream;
