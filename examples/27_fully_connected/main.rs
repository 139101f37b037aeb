//! A fully-connected layer over ranks: ACCL+'s first use case (OSDI'24, §6.2, Figs. 15 and 17).
//!
//! The matrix of weights is cut by columns. Each rank multiplies its columns by its part of the
//! input, and a reduce sums the partial products at rank 0. It takes them from the memory in which
//! they were computed: the paper copies them into buffers of its FPGA first, which makes up for
//! what the reduction gains there.
//!
//! Run: `cargo run -p ringbell --example 27_fully_connected`
//!
//! Prints `1, 2, 3, 4 and 8 ranks: 0 of 1210 outputs differ`; ends with an error otherwise.
//!
//! With `--json FOLDER` it measures: processes by `ringbell run`, and the same program over MPI, by
//! `mpirun` and by `ringbell mpi`, in turns (`measure.rs`). `--help` has the settings. The figure:
//! `ringbell perf compare FOLDER/ringbell.json FOLDER/open-mpi.json --latency --svg layer.svg`.

#[path = "../support/ranks.rs"]
mod ranks;

mod group;
mod layer;
mod measure;

use anyhow::{anyhow, Error};
use clap::Parser as _;

use self::group::{Group, OverRingbell};
use self::layer::Part;

/// Ranks, and inputs of the layer, of the run without arguments. Some parts have an odd width.
const RANKS: [usize; 5] = [1, 2, 3, 4, 8];
const SIDES: [usize; 3] = [8, 33, 201];

/// The layer once: how many of rank 0's outputs differ from a serial program's.
fn layer_once(group: &mut dyn Group, side: usize) -> Result<u64, Error> {
    let part = Part::new(side, group.rank(), group.ranks());
    group.resize(side)?;
    part.multiply(group.partial());
    group.reduce()?;
    match group.rank() {
        0 => Ok(layer::wrong(&group.sums()?)),
        _ => Ok(0),
    }
}

fn check() -> Result<(), Error> {
    let mut differ = 0;
    for ranks in RANKS {
        let found = ranks::run("local", "10.77.127", ranks, |comm| {
            let mut group = OverRingbell::new(comm)?;
            let each = SIDES.map(|side| layer_once(&mut group, side));
            each.into_iter().sum::<Result<u64, Error>>()
        })?;
        differ += found.iter().sum::<u64>();
    }
    let outputs = RANKS.len() * SIDES.iter().sum::<usize>();
    println!("1, 2, 3, 4 and 8 ranks: {differ} of {outputs} outputs differ");
    match differ {
        0 => Ok(()),
        _ => Err(anyhow!("the outputs are not those of a serial program")),
    }
}

fn main() -> Result<(), Error> {
    let args = measure::Args::parse();
    match (&args.library, &args.json) {
        (Some(library), _) => measure::rank(library, &args),
        (None, Some(folder)) => measure::all(folder, &args),
        (None, None) => check(),
    }
}
