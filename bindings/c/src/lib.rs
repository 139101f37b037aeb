//! The C API of `ringbell.h`: the same NIC for programs in C and C++.
//!
//! A handle is a number in a pointer's clothes ([`handles`]), every entry catches panics and keeps
//! the error's text for its thread ([`failure`]), and nothing here has a behaviour of its own: it
//! translates to the Rust face and back.
//!
//! `nic`, `memory`, `host`: the NIC and its memory. `kernel`, `stream`, `graph`, `socket`: what runs on the GPU. `engine`: what runs on the
//! NIC beside the bytes.
//! `comm` with `comm_config`, `collective`, `request`, `group`, `kernel_stream`: communicators, by the names that NCCL
//! gives such calls.

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
mod memory;
mod nic;
mod pointer;
mod request;
mod shared;
mod socket;
mod stream;
