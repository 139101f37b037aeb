//! Two layers of a model over three GPUs, each by one launch: a product whose sum over the ranks
//! overlaps with it, and experts to which tokens travel and from which they return.
//!
//! - `gemm_all_reduce`: each rank has a third of A's columns and B's rows. While the NICs sum a
//!   tile of rows over the ranks, the kernel multiplies the next one.
//! - `experts`: each rank has two of six experts. Every token goes to two of them by puts with
//!   signals, wherever they are, and the weighted sum of their answers comes back.
//!
//! Both are plain CUDA (`kernels.cu`). The numbers are whole, so the results are compared exactly.
//!
//! Run: `cargo run -p ringbell --example 22_tensor_and_experts`
//!
//! Prints `local: 0 of 1150 products and 0 of 912 tokens' values differ`, and the same of `rdma`;
//! ends with an error otherwise.
#![allow(unsafe_code)] // Runs kernels.

#[path = "../support/kernels.rs"]
mod kernels;
#[path = "../support/ranks.rs"]
mod ranks;

use std::time::Duration;

use anyhow::{anyhow, Error};
use ringbell::memory::Plain;
use ringbell::{Communicator, DeviceBuffer, GpuResult, Nic};

const RANKS: usize = 3;
const PATIENCE: Duration = Duration::from_secs(60);
const TIMEOUT_US: u32 = 20_000_000;

/// Rows and columns of C, columns of A of a rank, rows of a tile.
const ROWS: usize = 50;
const COLUMNS: usize = 23;
const PART: usize = 14;
const TILE: usize = 8;

/// Values of a token, tokens of a rank, experts of a rank; words of an item and before the items:
/// kernels.cu has the same.
const WIDTH: usize = 16;
const TOKENS: usize = 19;
const EXPERTS: usize = 2;
const ITEM: usize = 2 + WIDTH;
const SIGNALS: usize = 16;

/// Small whole numbers.
fn number(kind: usize, row: usize, column: usize) -> f32 {
    ((row * 31 + column * 17 + kind * 7) % 13) as f32 - 6.0
}

/// The expert to which the n-th question of a rank goes: two different ones for each token.
fn expert(rank: usize, question: usize) -> usize {
    let first = (rank * 5 + question / 2 * 7) % (RANKS * EXPERTS);
    (first + question % 2 * (1 + question / 2 % 4)) % (RANKS * EXPERTS)
}

fn gate(question: usize) -> f32 {
    [1.0, 2.0, -1.0, 3.0][question % 4]
}

fn filled<T: Plain>(nic: &Nic, values: &[T]) -> Result<DeviceBuffer<T>, Error> {
    let buffer = nic.alloc::<T>(values.len() as u64)?;
    buffer.write(0, values)?;
    Ok(buffer)
}

/// One rank of the product: all of C.
fn product(comm: &Communicator) -> Result<Vec<f32>, Error> {
    let (nic, me) = (comm.nic(), comm.rank() as usize);
    let own = |i: usize| me * PART + i;
    let left: Vec<f32> = (0..ROWS * PART)
        .map(|i| number(0, i / PART, own(i % PART)))
        .collect();
    let right: Vec<f32> = (0..PART * COLUMNS)
        .map(|i| number(1, own(i / COLUMNS), i % COLUMNS))
        .collect();
    let (left, right) = (filled(nic, &left)?, filled(nic, &right)?);
    let partial = filled(nic, &[0.0f32; ROWS * COLUMNS])?;
    let sum = filled(nic, &[0.0f32; ROWS * COLUMNS])?;
    let end = filled(nic, &[GpuResult::UNWRITTEN])?;
    let args = (
        comm,
        &left,
        &right,
        &partial,
        &sum,
        ROWS as u32,
        COLUMNS as u32,
        PART as u32,
        TILE as u32,
        TIMEOUT_US,
        &end,
    );
    // SAFETY: kernels.cu is ours, and the arguments have the types of its parameters.
    let launch = unsafe {
        let kernel = nic
            .module(kernels::of("22_tensor_and_experts/kernels.cu"))?
            .kernel("gemm_all_reduce")?;
        kernel.launch(1, 128, args)?
    };
    launch.wait(PATIENCE)?;
    end.to_vec()?[0].check("gemm_all_reduce")?;
    Ok(sum.to_vec()?)
}

/// One rank of the experts: the sums of its tokens.
fn answers(comm: &Communicator) -> Result<Vec<f32>, Error> {
    let (nic, me) = (comm.nic(), comm.rank() as usize);
    let room = RANKS * (1 + 2 * TOKENS * ITEM);
    let window = comm.alloc_symmetric::<f32>((SIGNALS + 2 * room) as u64)?;
    window.write(0, &[0.0; SIGNALS])?;
    let outbox = filled(nic, &vec![0.0f32; room])?;
    let tokens: Vec<f32> = (0..TOKENS * WIDTH)
        .map(|i| number(2 + me, i / WIDTH, i % WIDTH))
        .collect();
    let chosen: Vec<u32> = (0..2 * TOKENS).map(|q| expert(me, q) as u32).collect();
    let gates: Vec<f32> = (0..2 * TOKENS).map(gate).collect();
    let weights: Vec<f32> = (0..EXPERTS * WIDTH * WIDTH)
        .map(|i| {
            let (e, at) = (i / (WIDTH * WIDTH), i % (WIDTH * WIDTH));
            number(10 + me * EXPERTS + e, at / WIDTH, at % WIDTH)
        })
        .collect();
    let (tokens, chosen) = (filled(nic, &tokens)?, filled(nic, &chosen)?);
    let (gates, weights) = (filled(nic, &gates)?, filled(nic, &weights)?);
    let sums = filled(nic, &[0.0f32; TOKENS * WIDTH])?;
    let end = filled(nic, &[GpuResult::UNWRITTEN])?;
    // The signals of all ranks are 0 before a peer puts.
    comm.barrier()?;
    let args = (
        comm,
        window.window(),
        &window,
        &outbox,
        &tokens,
        &chosen,
        &gates,
        &weights,
        &sums,
        TOKENS as u32,
        EXPERTS as u32,
        TIMEOUT_US,
        &end,
    );
    // SAFETY: kernels.cu is ours, and the arguments have the types of its parameters.
    let launch = unsafe {
        let kernel = nic
            .module(kernels::of("22_tensor_and_experts/kernels.cu"))?
            .kernel("experts")?;
        kernel.launch(1, 128, args)?
    };
    launch.wait(PATIENCE)?;
    end.to_vec()?[0].check("experts")?;
    // No rank takes its memory away while another still puts.
    comm.barrier()?;
    Ok(sums.to_vec()?)
}

/// C by one thread.
fn serial_product() -> Vec<f32> {
    let value = |row, column| {
        (0..RANKS * PART)
            .map(|k| number(0, row, k) * number(1, k, column))
            .sum()
    };
    (0..ROWS * COLUMNS)
        .map(|i| value(i / COLUMNS, i % COLUMNS))
        .collect()
}

/// The sums of a rank's tokens by one thread.
fn serial_answers(rank: usize) -> Vec<f32> {
    let answer = |question: usize, row: usize| -> f32 {
        let terms = (0..WIDTH).map(|i| {
            let weight = number(10 + expert(rank, question), row, i);
            weight * number(2 + rank, question / 2, i)
        });
        gate(question) * terms.sum::<f32>()
    };
    (0..TOKENS * WIDTH)
        .map(|i| {
            let (token, row) = (i / WIDTH, i % WIDTH);
            answer(2 * token, row) + answer(2 * token + 1, row)
        })
        .collect()
}

fn differ(got: &[f32], expected: &[f32]) -> usize {
    let wrong = got.iter().zip(expected).filter(|(a, b)| a != b).count();
    wrong + got.len().abs_diff(expected.len())
}

fn run(transport: &str) -> Result<(), Error> {
    let work = |comm: &Communicator| Ok((product(comm)?, answers(comm)?));
    let all = ranks::run(transport, "10.77.122", RANKS, work)?;
    let expected = serial_product();
    let products: usize = all.iter().map(|(c, _)| differ(c, &expected)).sum();
    let tokens = all.iter().enumerate();
    let tokens: usize = tokens
        .map(|(rank, (_, sums))| differ(sums, &serial_answers(rank)))
        .sum();
    println!(
        "{transport}: {products} of {} products and {tokens} of {} tokens' values differ",
        expected.len(),
        RANKS * TOKENS * WIDTH
    );
    match products + tokens {
        0 => Ok(()),
        _ => Err(anyhow!("the results are not those of a serial program")),
    }
}

fn main() -> Result<(), Error> {
    ["local", "rdma"].into_iter().try_for_each(run)
}
