//! The C API of `ringbell.h`: the NIC for programs in C and C++.
//!
//! A handle is a number in the form of a pointer ([`handles`]). Every entry catches panics and
//! keeps the error's text for its thread ([`failure`]). No function has a behaviour of its own: all
//! translate to the Rust API and back.
//!
//! `nic`, `memory`, `one_sided`, `host`, `shared`, `foreign`: NICs and their memory. `kernel`,
//! `stream`, `graph`, `context`, `socket`: work on the GPU. `engine`, `own_engine`: computation on
//! the NIC's data path. `communicator`, `comm`, `comm_config`, `collective`, `request`, `group`,
//! `kernel_stream`: communicators, with NCCL's names for the calls. `open` makes a NIC and closes
//! it with all its users; `launches` are kernels that outlive it.

mod collective;
mod comm;
mod comm_config;
mod communicator;
mod context;
mod engine;
mod failure;
#[cfg(feature = "cuda")]
mod foreign;
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
mod open;
mod own_engine;
mod pointer;
mod request;
mod shared;
mod socket;
mod stream;
