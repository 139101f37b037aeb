//! All integration tests of this package as one program, so that one program is linked.
//!
//! A file beside this one is a module. `cargo test -p PACKAGE --test all NAME` runs the tests whose
//! name contains NAME.

mod common;
#[path = "../../cuda-kernels/tests/common/mock_driver.rs"]
mod mock_driver;
#[macro_use]
mod net;

mod cc;
mod cli;
mod command_line;
mod descriptors;
mod ends;
mod faults;
mod gpu;
mod hll;
mod hosts;
mod launchers;
mod nc;
mod nccl;
mod perf_collectives;
mod perf_sweeps;
mod regs_live;
mod routes;
mod run;
mod shmem;
mod sim;
mod sim_kernels;
mod topology;
mod traces;
mod tutorial;
mod udp;
