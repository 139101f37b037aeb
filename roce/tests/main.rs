//! All integration tests of this package as one program, so that one program is linked.
//!
//! A file beside this one is a module. `cargo test -p PACKAGE --test all NAME` runs the tests whose
//! name contains NAME.
#![allow(clippy::duplicate_mod)] // The clock is `ends`' and the sequences', which a fuzz target includes alone.

#[path = "verbs_support/ends.rs"]
mod ends;

mod verbs;
mod verbs_datagrams;
mod verbs_ipv6;
mod verbs_loss;
mod verbs_sequences;
