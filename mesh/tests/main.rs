//! Tests of the mesh in virtual time: whole networks of ports, wired by private switches.

mod delivery;
mod faults;
#[path = "../../routes/tests/common/generated.rs"]
mod generated;
mod life;
mod replace;
mod sums;
mod support;
mod trees;
