//! Tests of the mesh in virtual time: whole networks of ports, wired by private switches.

mod delivery;
mod faults;
mod life;
mod replace;
mod sums;
mod support;
mod trees;
