//! A halo exchange by `gpu_put_signal`: a stencil over three ranks, in one launch for all steps.
//!
//! Each rank has a strip of a grid in symmetric memory. After a step its kernel puts the rows at
//! the borders into its neighbours' memory, with a signal behind each, and waits for theirs
//! (`halo.cu`). No rank posts a receive, and no host takes part. The result is compared with a
//! serial program, bit for bit: over transport `local`, and over RDMA on UDP sockets.
//!
//! Run: `cargo run -p ringbell --example 16_halo_exchange`
//!
//! Prints `local: 3 ranks, 50 steps, 0 of 30600 values differ`, and the same of `rdma`; ends with
//! an error otherwise.
#![allow(unsafe_code)] // Runs kernels.

use std::path::Path;
use std::time::Duration;

use anyhow::{anyhow, Error};
use ringbell::{CommOptions, Communicator, GpuResult, Nic};

#[path = "../support/kernels.rs"]
mod kernels;

const RANKS: usize = 3;
/// Rows of a rank.
const ROWS: usize = 100;
const COLS: usize = 102;
const STEPS: u32 = 50;
/// Floats before the first grid: `SIGNALS` of halo.cu.
const SIGNALS: usize = 16;

/// Value of a place before the first step; rows 0 and `RANKS * ROWS + 1` stay as they are.
fn start(row: usize, col: usize) -> f32 {
    let x = (row * COLS + col) as u32;
    (x.wrapping_mul(2_654_435_761) >> 20) as f32 * 0.25
}

fn grid(rows: impl Iterator<Item = usize>) -> Vec<f32> {
    rows.flat_map(|row| (0..COLS).map(move |col| start(row, col)))
        .collect()
}

/// The same by one thread.
fn serially() -> Vec<f32> {
    let mut from = grid(0..RANKS * ROWS + 2);
    for _ in 0..STEPS {
        let mut to = from.clone();
        for row in 1..=RANKS * ROWS {
            for at in row * COLS + 1..(row + 1) * COLS - 1 {
                to[at] =
                    0.25 * ((from[at - COLS] + from[at + COLS]) + (from[at - 1] + from[at + 1]));
            }
        }
        from = to;
    }
    from[COLS..(RANKS * ROWS + 1) * COLS].to_vec()
}

/// One rank: its strip after all steps.
fn rank(comm: &Communicator, module: &Path) -> Result<Vec<f32>, Error> {
    let nic = comm.nic();
    let strip = (ROWS + 2) * COLS;
    let window = comm.alloc_symmetric::<f32>((SIGNALS + 2 * strip) as u64)?;
    let first = comm.rank() as usize * ROWS;
    let both = grid(first..first + ROWS + 2).repeat(2);
    window.write(SIGNALS as u64, &both)?;
    let end = nic.alloc::<GpuResult>(1)?;
    end.write(0, &[GpuResult::UNWRITTEN])?;
    // Every strip is there before a neighbour puts into it.
    comm.barrier()?;
    let args = (
        comm,
        window.window(),
        &window,
        ROWS as u32,
        COLS as u32,
        STEPS,
        20_000_000_u32,
        &end,
    );
    // SAFETY: halo.cu is ours, and the arguments have the types of its parameters.
    let launch = unsafe {
        let kernel = nic.module(module)?.kernel("halo")?;
        kernel.launch(1, 128, args)?
    };
    launch.wait(Duration::from_secs(60))?;
    end.to_vec()?[0].check("halo")?;
    let last = SIGNALS + if STEPS.is_multiple_of(2) { 0 } else { strip };
    let mut rows = vec![0.0; ROWS * COLS];
    window.read((last + COLS) as u64, &mut rows)?;
    // No rank takes its memory away while another still puts.
    comm.barrier()?;
    Ok(rows)
}

fn run(transport: &str, module: &Path) -> Result<(), Error> {
    let open = |n| {
        let nic = Nic::builder()
            .ip(&*format!("10.77.116.{n}/24"))
            .transport(transport);
        match transport {
            "rdma" => nic.port("roce:127.0.0.1:0").open(),
            _ => nic.open(),
        }
    };
    let nics: Vec<Nic> = (1..=RANKS).map(open).collect::<Result<_, _>>()?;
    let comms = Communicator::init_all(&nics, &CommOptions::default())?;
    let strips: Vec<Vec<f32>> = std::thread::scope(|scope| {
        let ranks: Vec<_> = comms
            .iter()
            .map(|comm| scope.spawn(move || rank(comm, module)))
            .collect();
        let ended = ranks.into_iter().map(|r| r.join());
        ended
            .map(|r| r.map_err(|_| anyhow!("a rank panicked"))?)
            .collect::<Result<_, Error>>()
    })?;
    let (got, expected) = (strips.concat(), serially());
    let differ = got.iter().zip(&expected);
    let differ = differ.filter(|(a, b)| a.to_bits() != b.to_bits()).count();
    println!(
        "{transport}: {RANKS} ranks, {STEPS} steps, {differ} of {} values differ",
        expected.len()
    );
    match differ {
        0 if got.len() == expected.len() => Ok(()),
        _ => Err(anyhow!("the strips are not those of a serial program")),
    }
}

fn main() -> Result<(), Error> {
    let module = kernels::of("16_halo_exchange/halo.cu");
    ["local", "rdma"]
        .into_iter()
        .try_for_each(|transport| run(transport, &module))
}
