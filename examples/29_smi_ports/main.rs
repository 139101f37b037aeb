//! Four streaming collectives of one communicator side by side, each on a port of its own (SMI,
//! SC'19, §2.2, §3.2).
//!
//! The root's kernel (`polynomial.cu`) makes the places at which a polynomial is wanted, and
//! scatters them while it makes them; the coefficients come by a broadcast. Every rank pops a
//! place, computes a value and pushes it into a gather, and at the end its sum into a reduce. The
//! warps open their channels when they come to them, so each rank has another order. Values and
//! sum are compared with those of a serial program: over transport `local`, over RDMA on UDP
//! sockets, over a line of NICs that forward, for roots that differ, and with one rank alone.
//!
//! Run: `cargo run -p ringbell --example 29_smi_ports`
//!
//! Prints `local: 0 of 9012 values differ`, and the like of `rdma` and `mesh:bus:4`, which have no
//! run of one rank; ends with an error otherwise.
#![allow(unsafe_code)] // Runs kernels.

use std::time::Duration;

use anyhow::{anyhow, Error};
use ringbell::memory::Plain;
use ringbell::{Communicator, DeviceBuffer, GpuResult, KernelStream, Nic};

#[path = "../support/kernels.rs"]
mod kernels;
#[path = "../support/ranks.rs"]
mod ranks;

const RANKS: usize = 4;
/// Values of each rank.
const COUNT: usize = 1_001;
/// Of the polynomial, the lowest power first.
const COEFFICIENTS: [i64; 5] = [7, -3, 0, 11, 2];
/// Ranks of a run, and which is the root.
const RUNS: [(usize, u32); 3] = [(RANKS, 0), (RANKS, 2), (1, 0)];
/// Bytes of a channel's ring.
const RING: u32 = 8 << 10;
/// The kernel's roles: how their elements went, and how their collectives ended.
const ROLES: [&str; 5] = ["places", "polynomial", "values", "sums", "work"];

fn place(i: u64) -> i64 {
    let mut x = i + 1;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    x as i64
}

/// All values, and their sum, by one thread.
fn serially(ranks: usize) -> (Vec<i64>, i64) {
    let value = |i: usize| {
        let x = place(i as u64);
        let terms = COEFFICIENTS.iter().rev();
        terms.fold(0_i64, |y, t| y.wrapping_mul(x).wrapping_add(*t))
    };
    let values: Vec<i64> = (0..ranks * COUNT).map(value).collect();
    let sum = values.iter().fold(0_i64, |s, v| s.wrapping_add(*v));
    (values, sum)
}

fn filled<T: Plain>(nic: &Nic, values: &[T]) -> Result<DeviceBuffer<T>, Error> {
    let buffer = nic.alloc::<T>(values.len() as u64)?;
    buffer.write(0, values)?;
    Ok(buffer)
}

/// One rank: at the root the values of all and their sum.
fn rank(comm: &Communicator, root: u32) -> Result<(Vec<i64>, i64), Error> {
    let nic = comm.nic();
    let channels = (0..8).map(|_| nic.kernel_stream(RING));
    let channels: Vec<KernelStream> = channels.collect::<Result<_, _>>()?;
    let words: Vec<u64> = channels.iter().map(|c| c.handle().word()).collect();
    let words = filled(nic, &words)?;
    let coefficients = filled(nic, &COEFFICIENTS)?;
    let values = filled(nic, &vec![0_i64; COUNT * comm.size() as usize])?;
    let sum = filled(nic, &[0_i64])?;
    let ends = filled(nic, &[GpuResult::UNWRITTEN; 2 * ROLES.len()])?;
    let args = (
        comm,
        &words,
        &coefficients,
        COEFFICIENTS.len() as u32,
        COUNT as u64,
        root,
        &values,
        &sum,
        &ends,
    );
    // SAFETY: polynomial.cu is ours, and the arguments have the types of its parameters. The
    // channels live until the kernel has ended.
    let launch = unsafe {
        let module = nic.module(kernels::of("29_smi_ports/polynomial.cu"))?;
        let threads = 32 * ROLES.len() as u32;
        module.kernel("polynomial")?.launch(1, threads, args)?
    };
    launch.wait(Duration::from_secs(60))?;
    for (end, what) in ends.to_vec()?.iter().zip(ROLES.iter().cycle()) {
        end.check(what)?;
    }
    Ok((values.to_vec()?, sum.to_vec()?[0]))
}

fn run(transport: &str) -> Result<(), Error> {
    let (mut differ, mut values) = (0, 0);
    for (size, root) in RUNS {
        if size == 1 && transport != "local" {
            continue;
        }
        let expected = serially(size);
        let all = ranks::run(transport, "10.77.129", size, |comm| rank(comm, root))?;
        let (got, sum) = &all[root as usize];
        let pairs = got.iter().zip(&expected.0);
        differ += pairs.filter(|(a, b)| a != b).count() + usize::from(*sum != expected.1);
        values += got.len() + 1;
    }
    println!("{transport}: {differ} of {values} values differ");
    match differ {
        0 => Ok(()),
        _ => Err(anyhow!("the values are not those of a serial program")),
    }
}

fn main() -> Result<(), Error> {
    ["local", "rdma", "mesh:bus:4"]
        .into_iter()
        .try_for_each(run)
}
