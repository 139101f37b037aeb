//! A product of matrices whose ranks gather one of them by a ring, while they multiply.
//!
//! Each of three ranks has a third of B's rows, in half precision. Its kernel (`gather.cu`, plain
//! CUDA with `cuda_fp16.h`) puts what it has to the next rank with a signal, multiplies with it
//! meanwhile, and goes on with what has come. One launch does it all; no receive is posted, and no
//! host takes part. The products are whole numbers, so the result is compared exactly.
//!
//! Run: `cargo run -p ringbell --example 21_ring_all_gather`
//!
//! Prints `local: 3 ranks, 0 of 1152 values differ`, and the same of `rdma`; ends with an error
//! otherwise.
#![allow(unsafe_code)] // Runs kernels.

#[path = "../support/ranks.rs"]
mod ranks;

use std::path::Path;
use std::time::Duration;

use anyhow::{anyhow, Error};
use ringbell::{Communicator, GpuResult};

const RANKS: usize = 3;
/// Rows of A and C that a rank has, columns of B and C, and rows of B of a rank.
const ROWS: usize = 16;
const COLUMNS: usize = 24;
const PART: usize = 20;
/// Words of 32 bits before B: `SIGNALS` of gather.cu.
const SIGNALS: usize = 16;

/// Small whole numbers.
fn entry(matrix: usize, row: usize, column: usize) -> i32 {
    ((row * 31 + column * 17 + matrix * 7) % 13) as i32 - 6
}

/// Of a whole number from -6 to 6 in half precision.
fn half(v: i32) -> u32 {
    let magnitude = [0x0000, 0x3c00, 0x4000, 0x4200, 0x4400, 0x4500, 0x4600];
    let sign = if v < 0 { 0x8000 } else { 0 };
    sign | magnitude[v.unsigned_abs() as usize]
}

/// One rank: its rows of C.
fn rank(comm: &Communicator, module: &Path) -> Result<Vec<f32>, Error> {
    let nic = comm.nic();
    let me = comm.rank() as usize;
    // Two rows of B are one word.
    let part: Vec<u32> = (0..PART / 2)
        .flat_map(|p| (0..COLUMNS).map(move |c| (me * PART + 2 * p, c)))
        .map(|(row, c)| half(entry(1, row, c)) | half(entry(1, row + 1, c)) << 16)
        .collect();
    let window = comm.alloc_symmetric::<u32>((SIGNALS + RANKS * part.len()) as u64)?;
    window.write((SIGNALS + me * part.len()) as u64, &part)?;
    let row = |r: usize| (0..RANKS * PART / 2).map(move |p| (me * ROWS + r, 2 * p));
    let a: Vec<u32> = (0..ROWS)
        .flat_map(row)
        .map(|(r, k)| half(entry(0, r, k)) | half(entry(0, r, k + 1)) << 16)
        .collect();
    let (left, product) = (
        nic.alloc::<u32>(a.len() as u64)?,
        nic.alloc::<f32>((ROWS * COLUMNS) as u64)?,
    );
    left.write(0, &a)?;
    product.write(0, &[0.0; ROWS * COLUMNS])?;
    let end = nic.alloc::<GpuResult>(1)?;
    end.write(0, &[GpuResult::UNWRITTEN])?;
    // Every part is there before a neighbour puts beside it.
    comm.barrier()?;
    let args = (
        comm,
        window.window(),
        &window,
        &left,
        &product,
        ROWS as u32,
        COLUMNS as u32,
        (PART / 2) as u32,
        20_000_000_u32,
        &end,
    );
    // SAFETY: gather.cu is ours, and the arguments have the types of its parameters.
    let launch = unsafe {
        let kernel = nic.module(module)?.kernel("ring_gemm")?;
        kernel.launch(1, 128, args)?
    };
    launch.wait(Duration::from_secs(60))?;
    end.to_vec()?[0].check("ring_gemm")?;
    // No rank takes its memory away while another still puts.
    comm.barrier()?;
    Ok(product.to_vec()?)
}

/// All of C by one thread.
fn serially() -> Vec<f32> {
    let value = |row: usize, column: usize| {
        let terms = (0..RANKS * PART).map(|k| entry(0, row, k) * entry(1, k, column));
        terms.sum::<i32>() as f32
    };
    (0..RANKS * ROWS)
        .flat_map(|row| (0..COLUMNS).map(move |column| value(row, column)))
        .collect()
}

fn run(transport: &str, module: &Path) -> Result<(), Error> {
    let rows = ranks::run(transport, "10.77.121", RANKS, |comm| rank(comm, module))?;
    let (got, expected) = (rows.concat(), serially());
    let differ = got.iter().zip(&expected).filter(|(a, b)| a != b).count();
    println!(
        "{transport}: {RANKS} ranks, {differ} of {} values differ",
        expected.len()
    );
    match differ {
        0 if got.len() == expected.len() => Ok(()),
        _ => Err(anyhow!("the product is not that of a serial program")),
    }
}

fn main() -> Result<(), Error> {
    // Made of gather.cu by `ringbell cc`, and kept, so that no compiler is needed.
    let module =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/21_ring_all_gather/gather.ptx");
    ["local", "rdma"]
        .into_iter()
        .try_for_each(|transport| run(transport, &module))
}
