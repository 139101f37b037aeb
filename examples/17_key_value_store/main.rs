//! A key-value store whose GETs are READs of kernels: it lies in symmetric memory of three ranks,
//! each a server and a client.
//!
//! A kernel's `gpu_get` takes a bucket of another rank, where only the NIC takes part. Buckets have
//! a version and a check, so that a read that has met a write is repeated (`store.cu`). PUTs lock a
//! bucket by compare and swap; on its own rank a kernel writes beside the NIC that reads. All
//! threads use the same few keys, over transport `local`, and over RDMA on UDP sockets.
//!
//! At the end every bucket is whole, every key has one bucket, and the versions have counted every
//! PUT.
//!
//! Run: `cargo run -p ringbell --example 17_key_value_store`
//!
//! Prints a line such as `local: 4595 GETs, 1405 PUTs, 31 reads repeated, 0 wrong` for each
//! transport; ends with an error otherwise.
#![allow(unsafe_code)] // Runs kernels.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{anyhow, Error};
use ringbell::{CommOptions, Communicator, GpuResult, Nic};
use zerocopy::{FromBytes, Immutable, IntoBytes};

#[path = "../support/kernels.rs"]
mod kernels;

const RANKS: usize = 3;
/// Buckets of a rank.
const BUCKETS: u32 = 64;
const KEYS: u32 = 100;
const BLOCKS: u32 = 2;
const THREADS: u32 = 10;
/// GETs and PUTs of each thread.
const STEPS: u32 = 100;

/// `bucket` of store.cu.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Bucket {
    version: u64,
    key: u64,
    value: [u64; 5],
    check: u64,
}

/// `report` of store.cu.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Report {
    end: GpuResult,
    gets: u64,
    puts: u64,
    repeated: u64,
    wrong: u64,
}

/// One rank: its part of the store after all steps, and what its threads report.
fn rank(comm: &Communicator, module: &Path) -> Result<(Vec<Bucket>, Vec<Report>), Error> {
    let nic = comm.nic();
    let threads = BLOCKS * THREADS;
    let store = comm.alloc_symmetric::<Bucket>(BUCKETS.into())?;
    let scratch = nic.alloc::<Bucket>(threads.into())?;
    let reports = nic.alloc::<Report>(threads.into())?;
    let unwritten = Report {
        end: GpuResult::UNWRITTEN,
        gets: 0,
        puts: 0,
        repeated: 0,
        wrong: 0,
    };
    reports.write(0, &vec![unwritten; threads as usize])?;
    let args = (
        comm,
        store.window(),
        &store,
        &scratch,
        BUCKETS,
        KEYS,
        STEPS,
        &reports,
    );
    // SAFETY: store.cu is ours, and the arguments have the types of its parameters.
    let launch = unsafe {
        let kernel = nic.module(module)?.kernel("use_store")?;
        kernel.launch(BLOCKS, THREADS, args)?
    };
    launch.wait(Duration::from_secs(100))?;
    // Until here others read and write this rank's part.
    comm.barrier()?;
    Ok((store.to_vec()?, reports.to_vec()?))
}

fn run(transport: &str, module: &Path) -> Result<(), Error> {
    let open = |n| {
        let nic = Nic::builder()
            .ip(&*format!("10.77.117.{n}/24"))
            .transport(transport);
        match transport {
            "rdma" => nic.port("roce:127.0.0.1:0").open(),
            _ => nic.open(),
        }
    };
    let nics: Vec<Nic> = (1..=RANKS).map(open).collect::<Result<_, _>>()?;
    let comms = Communicator::init_all(&nics, &CommOptions::default())?;
    let ends: Vec<_> = std::thread::scope(|scope| {
        let ranks: Vec<_> = comms
            .iter()
            .map(|comm| scope.spawn(move || rank(comm, module)))
            .collect();
        let ended = ranks.into_iter().map(|r| r.join());
        ended
            .map(|r| r.map_err(|_| anyhow!("a rank panicked"))?)
            .collect::<Result<_, Error>>()
    })?;
    let mut buckets = Vec::new();
    let (mut gets, mut puts, mut repeated, mut wrong) = (0, 0, 0, 0);
    for (part, reports) in ends {
        buckets.extend(part.into_iter().filter(|b| b.version > 0));
        for r in reports {
            r.end.check("store")?;
            gets += r.gets;
            puts += r.puts;
            repeated += r.repeated;
            wrong += r.wrong;
        }
    }
    println!("{transport}: {gets} GETs, {puts} PUTs, {repeated} reads repeated, {wrong} wrong");
    let keys: HashSet<u64> = buckets.iter().map(|b| b.key).collect();
    if keys.len() != buckets.len() {
        return Err(anyhow!("a key has two buckets"));
    }
    if buckets.iter().any(|b| b.version % 2 != 0) {
        return Err(anyhow!("a bucket is still locked"));
    }
    // A PUT adds 2.
    let counted: u64 = buckets.iter().map(|b| b.version / 2).sum();
    let all = u64::from(STEPS * BLOCKS * THREADS) * RANKS as u64;
    match (wrong, counted == puts, gets + puts == all) {
        (0, true, true) => Ok(()),
        _ => Err(anyhow!("{counted} PUTs were counted by the buckets")),
    }
}

fn main() -> Result<(), Error> {
    let module = kernels::of("17_key_value_store/store.cu");
    ["local", "rdma"]
        .into_iter()
        .try_for_each(|transport| run(transport, &module))
}
