//! All integration tests of this package as one program, so that one program is linked.
//!
//! A file beside this one is a module. `cargo test -p PACKAGE --test all NAME` runs the tests whose
//! name contains NAME.

mod common;

mod accepted;
mod drain;
mod files;
mod htsim;
mod mutated;
mod opensm;
mod trees;
