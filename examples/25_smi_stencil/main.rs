//! A 4-point stencil whose ranks exchange halos by streaming messages, on 2×2 and 2×4 ranks (SMI,
//! SC'19, §5.4.2, Fig. 14).
//!
//! Each rank has a part of the domain. In each step its kernel opens a channel to and from each
//! neighbour, pushes the values at its borders, and computes with the neighbours' values while it
//! pops them (`stencil.cu`; Listing 3). There is one launch for all steps, and no host takes part.
//! The result is compared with a serial program, bit for bit, over transport `local`, over RDMA on
//! UDP sockets, and over NICs that forward for each other.
//!
//! Run: `cargo run -p ringbell --example 25_smi_stencil`
//!
//! Prints `local, 2 x 2 ranks: 0 of 11040 values differ`, and the same of 2 x 4 ranks, of `rdma`,
//! `mesh:bus:4` and `mesh:torus:2x4`; ends with an error otherwise.
#![allow(unsafe_code)] // Runs kernels.

use std::time::Duration;

use anyhow::{anyhow, Error};
use ringbell::memory::Plain;
use ringbell::{Communicator, DeviceBuffer, GpuResult, KernelStream, Nic};

#[path = "../support/kernels.rs"]
mod kernels;
#[path = "../support/ranks.rs"]
mod ranks;

/// Values of a rank.
const ROWS: usize = 46;
const COLUMNS: usize = 60;
const STEPS: u32 = 12;
const SIDES: usize = 4;
/// Bytes of a channel's ring.
const RING: u32 = 4 << 10;

/// Value of a place before the first step.
fn start(row: usize, column: usize) -> f32 {
    let x = (row * 1_000 + column) as u32;
    (x.wrapping_mul(2_654_435_761) >> 20) as f32 * 0.25
}

/// The whole domain after all steps, by one thread.
fn serially(height: usize, width: usize) -> Vec<f32> {
    let (rows, columns) = (height * ROWS, width * COLUMNS);
    let places = || (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
    let mut from: Vec<f32> = places().map(|(row, column)| start(row, column)).collect();
    for _ in 0..STEPS {
        // 0 beyond the domain: `wrapping_sub` takes the first row and column there, too.
        let at = |row: usize, column: usize| match row < rows && column < columns {
            true => from[row * columns + column],
            false => 0.0,
        };
        let mean = |(row, column): (usize, usize)| {
            let (north, south) = (at(row.wrapping_sub(1), column), at(row + 1, column));
            let (west, east) = (at(row, column.wrapping_sub(1)), at(row, column + 1));
            0.25 * ((north + south) + (west + east))
        };
        from = places().map(mean).collect();
    }
    from
}

fn filled<T: Plain>(nic: &Nic, values: &[T]) -> Result<DeviceBuffer<T>, Error> {
    let buffer = nic.alloc::<T>(values.len() as u64)?;
    buffer.write(0, values)?;
    Ok(buffer)
}

/// One rank: its part of the domain after all steps.
fn rank(comm: &Communicator, height: usize, width: usize) -> Result<Vec<f32>, Error> {
    let (nic, me) = (comm.nic(), comm.rank() as usize);
    let channels = (0..2 * SIDES).map(|_| nic.kernel_stream(RING));
    let channels: Vec<KernelStream> = channels.collect::<Result<_, _>>()?;
    let words: Vec<u64> = channels.iter().map(|c| c.handle().word()).collect();
    let (first_row, first_column) = (me / width * ROWS, me % width * COLUMNS);
    let own =
        (0..ROWS * COLUMNS).map(|i| start(first_row + i / COLUMNS, first_column + i % COLUMNS));
    let grids = filled(nic, &own.collect::<Vec<f32>>().repeat(2))?;
    let ends = filled(nic, &[GpuResult::UNWRITTEN; 2 * SIDES])?;
    let words = filled(nic, &words)?;
    let args = (
        comm,
        &words,
        &grids,
        ROWS as u32,
        COLUMNS as u32,
        height as u32,
        width as u32,
        STEPS,
        &ends,
    );
    // SAFETY: stencil.cu is ours, and the arguments have the types of its parameters. The channels
    // live until the kernel has ended.
    let launch = unsafe {
        let module = nic.module(kernels::of("25_smi_stencil/stencil.cu"))?;
        module.kernel("stencil")?.launch(1, 384, args)?
    };
    launch.wait(Duration::from_secs(60))?;
    for end in ends.to_vec()? {
        end.check("a channel")?;
    }
    let mut part = vec![0.0; ROWS * COLUMNS];
    let last = STEPS as usize % 2 * part.len();
    grids.read(last as u64, &mut part)?;
    Ok(part)
}

fn run(transport: &str, height: usize, width: usize) -> Result<(), Error> {
    let parts = ranks::run(transport, "10.77.125", height * width, |comm| {
        rank(comm, height, width)
    })?;
    let expected = serially(height, width);
    let mut differ = 0;
    for (me, part) in parts.iter().enumerate() {
        let (first_row, first_column) = (me / width * ROWS, me % width * COLUMNS);
        for (i, value) in part.iter().enumerate() {
            let row = first_row + i / COLUMNS;
            let place = row * width * COLUMNS + first_column + i % COLUMNS;
            differ += usize::from(value.to_bits() != expected[place].to_bits());
        }
    }
    println!(
        "{transport}, {height} x {width} ranks: {differ} of {} values differ",
        expected.len()
    );
    match differ {
        0 => Ok(()),
        _ => Err(anyhow!("the domain is not that of a serial program")),
    }
}

fn main() -> Result<(), Error> {
    for transport in ["local", "rdma"] {
        run(transport, 2, 2)?;
        run(transport, 2, 4)?;
    }
    // Neighbours of the grid are up to three hops apart on a line, and one on the torus.
    run("mesh:bus:4", 2, 2)?;
    run("mesh:torus:2x4", 2, 4)?;
    Ok(())
}
