//! Kernels that produce and consume on the fly: an all-reduce whose operands are kernels' streams.
//!
//! Three ranks, each with a GPU and a NIC of its own. One block of a rank's kernel computes values
//! and pushes them to the NIC, another pops the sums of all ranks; neither has an array
//! (`produce.cu`; ACCL+, Listing 2). Kernel and NIC share rings of 16 KiB for any number of values.
//!
//! Run: `cargo run -p ringbell --example 11_kernel_stream`
//!
//! Prints that the sums are, to the last bit, those of a serial program; ends with an error
//! otherwise.
#![allow(unsafe_code)] // Runs kernels.

use std::path::Path;
use std::time::Duration;

use anyhow::{anyhow, Error};
use ringbell::parts::onc_engines::program::Layout;
use ringbell::{CommOptions, Communicator, GpuResult, Nic};

#[path = "../support/kernels.rs"]
mod kernels;

const RANKS: u32 = 3;
const COUNT: u64 = 100_003;
const RING: u32 = 16 << 10;

/// What `produce.cu` computes.
fn value(rank: u32, i: u64) -> f32 {
    let x = (i as u32 + 1).wrapping_mul(2_654_435_761) ^ (rank + 1).wrapping_mul(0x9e37_79b9);
    (x >> 8) as f32 * 0.000_976_562_5 - 8192.0
}

/// The digest of the sums by one thread: chunk c is added in the order rank c, c + 1, ... (FpgaNIC,
/// Table 8).
fn serially() -> u64 {
    let layout = Layout {
        count: COUNT,
        block_chunks: RANKS,
    };
    let mut digest = 0_u64;
    for chunk in 0..RANKS {
        for i in layout.chunk(chunk) {
            let ranks = (0..RANKS).map(|next| (chunk + next) % RANKS);
            let sum = ranks.map(|r| value(r, i)).reduce(|a, b| a + b);
            let bits = sum.unwrap_or(0.0).to_bits();
            digest = digest.wrapping_add((i + 1).wrapping_mul(bits.into()));
        }
    }
    digest
}

/// One rank: starts its kernel, and reads its result.
fn rank(comm: &Communicator, module: &Path) -> Result<u64, Error> {
    let nic = comm.nic();
    let (computed, sums) = (nic.kernel_stream(RING)?, nic.kernel_stream(RING)?);
    let (digest, ends) = (nic.alloc::<u64>(1)?, nic.alloc::<GpuResult>(3)?);
    digest.write(0, &[0])?;
    ends.write(0, &[GpuResult::UNWRITTEN; 3])?;
    let args = (comm, &computed, &sums, COUNT, &digest, &ends);
    // SAFETY: produce.cu is ours, and the arguments have the types of its parameters.
    let launch = unsafe {
        let kernel = nic.module(module)?.kernel("produce_and_consume")?;
        kernel.launch(2, 64, args)?
    };
    launch.wait(Duration::from_secs(60))?;
    for (end, what) in ends.to_vec()?.iter().zip(["all-reduce", "push", "pop"]) {
        end.check(what)?;
    }
    Ok(digest.to_vec()?[0])
}

fn main() -> Result<(), Error> {
    let module = kernels::of("11_kernel_stream/produce.cu");
    let nics: Vec<Nic> = (0..RANKS)
        .map(|rank| {
            let ip = format!("10.77.111.{}/24", rank + 1);
            Ok(Nic::builder().ip(ip).gpu_memory(16 << 20).open()?)
        })
        .collect::<Result<_, Error>>()?;
    let comms = Communicator::init_all(&nics, &CommOptions::default())?;
    let digests: Vec<u64> = std::thread::scope(|scope| {
        let module = &module;
        let start = |comm| scope.spawn(move || rank(comm, module));
        let ranks: Vec<_> = comms.iter().map(start).collect();
        ranks
            .into_iter()
            .map(|r| r.join().map_err(|_| anyhow!("a rank panicked"))?)
            .collect::<Result<_, Error>>()
    })?;
    let serial = serially();
    if let Some(rank) = digests.iter().position(|d| *d != serial) {
        return Err(anyhow!(
            "rank {rank} popped other sums than a serial program has"
        ));
    }
    println!("{RANKS} ranks, {COUNT} values each, {RING} bytes of ring: the sums of a serial program, to the bit");
    Ok(())
}
