//! All integration tests of this package as one program, so that one program is linked.
//!
//! A file beside this one is a module. `cargo test -p PACKAGE --test all NAME` runs the tests whose
//! name contains NAME.

#[path = "../../../cli/tests/common/mod.rs"]
mod common;
mod compile;
#[path = "../../../cuda-kernels/tests/common/mock_driver.rs"]
mod mock_driver;

mod header;
mod programs;
