//! One kernel on the GPUs of a job, and in the simulator.
//!
//! `ring.cu` sends around a ring of ranks, adds up over all of them, and checks both. Its
//! parameters are those of `ringbell sim run`: a communicator, a buffer, its bytes. Here the SDK
//! runs it on three ranks.
//!
//! Run: `cargo run -p ringbell --example 30_simulated_kernel`, and in virtual time on 64 ranks
//! `ringbell sim run -R 64 --block 32 -- examples/30_simulated_kernel/ring.cu ring`
//!
//! Prints `local: 3 ranks`, and the same of `rdma`, beside what the kernel prints; ends with an
//! error if an assertion of the kernel does not hold.
#![allow(unsafe_code)] // Runs kernels.

#[path = "../support/ranks.rs"]
mod ranks;

use std::path::Path;
use std::time::Duration;

use anyhow::Error;
use ringbell::Communicator;

const RANKS: usize = 3;
const BYTES: u64 = 64 << 10;

fn rank(comm: &Communicator, module: &Path) -> Result<(), Error> {
    let nic = comm.nic();
    let buffer = nic.alloc::<u8>(BYTES)?;
    // SAFETY: ring.cu is ours, and the arguments have the types of its parameters.
    let launch = unsafe {
        let kernel = nic.module(module)?.kernel("ring")?;
        kernel.launch(1, 64, (comm, &buffer, BYTES))?
    };
    Ok(launch.wait(Duration::from_secs(60))?)
}

fn main() -> Result<(), Error> {
    // Made of ring.cu by `ringbell cc`, and kept, so that no compiler is needed.
    let module =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/30_simulated_kernel/ring.ptx");
    for transport in ["local", "rdma"] {
        let ends = ranks::run(transport, "10.77.130", RANKS, |comm| rank(comm, &module))?;
        println!("{transport}: {} ranks", ends.len());
    }
    Ok(())
}
