//! All integration tests of this package as one program, so that one program is linked.
//!
//! A file beside this one is a module. `cargo test -p PACKAGE --test all NAME` runs the tests whose
//! name contains NAME.

mod bytes;
mod captures;
mod chakra;
mod closed_form;
mod collectives;
mod connections;
mod device_api;
mod faults;
mod forward;
mod goal;
mod grammar;
mod hosts;
mod kept;
mod kernels;
mod meshes;
mod switches;
mod threads;
mod timelines;
mod topologies;
