//! All integration tests of this package as one program, so that one program is linked.
//!
//! A file beside this one is a module. `cargo test -p PACKAGE --test kernels NAME` runs the tests
//! whose name contains NAME.

mod common;
#[path = "common/mock_driver.rs"]
mod mock_driver;
#[path = "common/second_process.rs"]
mod second_process;

mod bus_traffic;
mod cccl;
mod collectives;
mod cuda;
mod cuda_errors;
mod cuda_functions;
mod cuda_ipc;
mod cuda_math;
mod cuda_patterns;
mod cuda_single;
mod cuda_strict;
mod cuda_threads;
mod debuggers;
mod device_api;
mod dmabuf;
mod emulator;
mod first_path;
mod gdrcopy;
mod graphs;
mod hll;
mod memory;
mod misuse;
mod perf_kernels;
mod ptx;
mod ptx_files;
mod queue_races;
mod reduce;
mod slots;
mod sockets;
mod streams;
