//! K-means over four ranks by streaming collectives (SMI, SC'19, §3.2).
//!
//! Each rank has a part of the points, and one kernel for all rounds (`k_means.cu`). It pushes the
//! sums of the clusters' points into a reduce. The root pops them, and pushes each mean into a
//! broadcast when it has it, while other sums are on their way. Every rank pops the means, and
//! begins the next round. Coordinates are whole numbers, so the centers are compared with those of
//! a serial program exactly: over transport `local`, over RDMA on UDP sockets, over a line of NICs
//! that forward, for roots that differ, and with ranks that have no points.
//!
//! Run: `cargo run -p ringbell --example 26_smi_k_means`
//!
//! Prints `local: 0 of 192 coordinates differ`, and the same of `rdma` and `mesh:bus:4`; ends with
//! an error otherwise.
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
/// Points of each rank: one has a single point, and one has none.
const POINTS: [usize; RANKS] = [700, 1, 0, 999];
const DIMENSIONS: usize = 3;
const CLUSTERS: usize = 8;
const ROUNDS: u32 = 10;
/// Ranks that hold the sums, in two runs.
const ROOTS: [u32; 2] = [0, 2];
/// Bytes of a channel's ring.
const RING: u32 = 4 << 10;
/// Results of the kernel's three streams and two collectives.
const ENDS: [&str; 5] = ["sums", "means", "centers", "reduce", "broadcast"];

/// A coordinate of the n-th point of a rank: around one of eight places.
fn coordinate(rank: usize, n: usize, dimension: usize) -> i32 {
    let x = ((rank * 1_009 + n) as u32 + 1).wrapping_mul(2_654_435_761);
    let place = (x >> 29 >> dimension & 1) as i32 * 4_000;
    let around = (x.rotate_left(7 * dimension as u32 + 3) & 0xfff) as i32 - 2_048;
    place + around
}

fn points(rank: usize) -> Vec<i32> {
    let places = (0..POINTS[rank]).flat_map(|n| (0..DIMENSIONS).map(move |d| (n, d)));
    places.map(|(n, d)| coordinate(rank, n, d)).collect()
}

/// The centers at the beginning. No point is nearest to the last one.
fn begin() -> Vec<i64> {
    let mut centers: Vec<i64> = (0..CLUSTERS * DIMENSIONS)
        .map(|i| i64::from(coordinate(0, i / DIMENSIONS, i % DIMENSIONS)))
        .collect();
    centers[(CLUSTERS - 1) * DIMENSIONS..].fill(1 << 24);
    centers
}

/// The centers after all rounds, by one thread.
fn serially() -> Vec<i64> {
    let all: Vec<i32> = (0..RANKS).flat_map(points).collect();
    let mut centers = begin();
    for _ in 0..ROUNDS {
        let mut counts = [0_i64; CLUSTERS];
        let mut sums = [0_i64; CLUSTERS * DIMENSIONS];
        for point in all.chunks(DIMENSIONS) {
            let distance = |center: &[i64]| -> i64 {
                let by = point.iter().zip(center).map(|(p, c)| i64::from(*p) - c);
                by.map(|d| d * d).sum()
            };
            let of_all = centers.chunks(DIMENSIONS).map(distance).enumerate();
            let (nearest, _) = of_all.min_by_key(|(_, d)| *d).unwrap_or_default();
            counts[nearest] += 1;
            for (d, p) in point.iter().enumerate() {
                sums[nearest * DIMENSIONS + d] += i64::from(*p);
            }
        }
        for (i, center) in centers.iter_mut().enumerate() {
            *center = sums[i]
                .checked_div(counts[i / DIMENSIONS])
                .unwrap_or(*center);
        }
    }
    centers
}

fn filled<T: Plain>(nic: &Nic, values: &[T]) -> Result<DeviceBuffer<T>, Error> {
    let buffer = nic.alloc::<T>(values.len() as u64)?;
    buffer.write(0, values)?;
    Ok(buffer)
}

/// One rank: the centers after all rounds.
fn rank(comm: &Communicator, root: u32) -> Result<Vec<i64>, Error> {
    let (nic, me) = (comm.nic(), comm.rank() as usize);
    let channels = (0..4).map(|_| nic.kernel_stream(RING));
    let channels: Vec<KernelStream> = channels.collect::<Result<_, _>>()?;
    let words: Vec<u64> = channels.iter().map(|c| c.handle().word()).collect();
    let words = filled(nic, &words)?;
    let mut own = points(me);
    // A buffer has at least one element.
    own.resize(own.len().max(1), 0);
    let own = filled(nic, &own)?;
    let centers = filled(nic, &begin())?;
    let ends = filled(nic, &[GpuResult::UNWRITTEN; ENDS.len()])?;
    let args = (
        comm,
        &words,
        &own,
        POINTS[me] as u32,
        DIMENSIONS as u32,
        &centers,
        CLUSTERS as u32,
        ROUNDS,
        root,
        &ends,
    );
    // SAFETY: k_means.cu is ours, and the arguments have the types of its parameters. The channels
    // live until the kernel has ended.
    let launch = unsafe {
        let module = nic.module(kernels::of("26_smi_k_means/k_means.cu"))?;
        module.kernel("k_means")?.launch(1, 128, args)?
    };
    launch.wait(Duration::from_secs(60))?;
    for (end, what) in ends.to_vec()?.iter().zip(ENDS) {
        end.check(what)?;
    }
    Ok(centers.to_vec()?)
}

fn run(transport: &str) -> Result<(), Error> {
    let expected = serially();
    let (mut differ, mut coordinates) = (0, 0);
    for root in ROOTS {
        let all = ranks::run(transport, "10.77.126", RANKS, |comm| rank(comm, root))?;
        for centers in all {
            differ += centers
                .iter()
                .zip(&expected)
                .filter(|(a, b)| a != b)
                .count();
            coordinates += centers.len();
        }
    }
    println!("{transport}: {differ} of {coordinates} coordinates differ");
    match differ {
        0 => Ok(()),
        _ => Err(anyhow!("the centers are not those of a serial program")),
    }
}

fn main() -> Result<(), Error> {
    ["local", "rdma", "mesh:bus:4"]
        .into_iter()
        .try_for_each(run)
}
