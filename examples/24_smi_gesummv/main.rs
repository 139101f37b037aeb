//! GESUMMV on two ranks with a program each: `y = αAx + βBx` by SMI's streaming messages (SC'19,
//! §5.4.1, Fig. 12).
//!
//! Rank 0 computes `αAx` and pushes each element into a channel. Rank 1 computes `βBx` and pops the
//! other term of each sum (`gesummv.cu`). The ring of the channel holds 4 KiB for any number of
//! rows. Square and rectangular matrices are compared with a serial program, bit for bit, over
//! transport `local`, over RDMA on UDP sockets, and over a wire between the NICs. Then both
//! programs run on one rank, whose channel has both ends there.
//!
//! Run: `cargo run -p ringbell --example 24_smi_gesummv`
//!
//! Prints `2 by local: 0 of 9005 elements differ`, and the same of `rdma`, `mesh:bus:2` and of one
//! rank; ends with an error otherwise.
#![allow(unsafe_code)] // Runs kernels.

use std::time::Duration;

use anyhow::{anyhow, Error};
use ringbell::memory::Plain;
use ringbell::{Communicator, DeviceBuffer, GpuResult, KernelStream, Launch, Nic};

#[path = "../support/kernels.rs"]
mod kernels;
#[path = "../support/ranks.rs"]
mod ranks;

const ALPHA: f32 = 1.5;
const BETA: f32 = -0.7;
/// Rows and columns: square, high and wide matrices, and those of one element and of one row.
const SHAPES: [(usize, usize); 5] = [(300, 300), (8_191, 16), (512, 129), (1, 1), (1, 700)];
const RING: u32 = 4 << 10;
const THREADS: u32 = 128;

/// An element of matrix or vector `kind`.
fn value(kind: u32, i: usize) -> f32 {
    let x = (i as u32 + 1).wrapping_mul(2_654_435_761) ^ (kind + 1).wrapping_mul(0x9e37_79b9);
    (x >> 8) as f32 * 1e-6 - 8.0
}

fn values(kind: u32, count: usize) -> Vec<f32> {
    (0..count).map(|i| value(kind, i)).collect()
}

/// The same by one thread.
fn serially((rows, columns): (usize, usize)) -> Vec<f32> {
    let x = values(2, columns);
    let product = |kind, row| -> f32 {
        let of_row = (0..columns).map(|i| value(kind, row * columns + i) * x[i]);
        of_row.fold(0.0, |sum, term| sum + term)
    };
    (0..rows)
        .map(|row| ALPHA * product(0, row) + BETA * product(1, row))
        .collect()
}

fn filled<T: Plain>(nic: &Nic, values: &[T]) -> Result<DeviceBuffer<T>, Error> {
    let buffer = nic.alloc::<T>(values.len() as u64)?;
    buffer.write(0, values)?;
    Ok(buffer)
}

/// What a program uses until it has ended.
struct Running {
    launch: Launch,
    _channel: KernelStream,
    _inputs: [DeviceBuffer<f32>; 2],
    y: DeviceBuffer<f32>,
    ends: DeviceBuffer<GpuResult>,
}

impl Running {
    fn wait(self) -> Result<Vec<f32>, Error> {
        self.launch.wait(Duration::from_secs(60))?;
        let ends = self.ends.to_vec()?;
        for (end, what) in ends.iter().zip(["the channel", "push or pop"]) {
            end.check(what)?;
        }
        Ok(self.y.to_vec()?)
    }
}

/// Starts one of the two programs, for one shape. The second one makes `y`.
fn start(
    comm: &Communicator,
    program: u32,
    (rows, columns): (usize, usize),
) -> Result<Running, Error> {
    let nic = comm.nic();
    let channel = nic.kernel_stream(RING)?;
    let matrix = filled(nic, &values(program, rows * columns))?;
    let x = filled(nic, &values(2, columns))?;
    let y = filled(nic, &vec![0.0_f32; rows])?;
    let ends = filled(nic, &[GpuResult::UNWRITTEN; 2])?;
    let (r, c) = (rows as u64, columns as u64);
    // SAFETY: gesummv.cu is ours, and the arguments have the types of its parameters. They live
    // until the kernel has ended.
    let launch = unsafe {
        let module = nic.module(kernels::of("24_smi_gesummv/gesummv.cu"))?;
        match program {
            0 => {
                let args = (comm, &channel, &matrix, &x, ALPHA, r, c, &ends);
                module.kernel("gemv")?.launch(1, THREADS, args)?
            }
            _ => {
                let args = (comm, &channel, &matrix, &x, BETA, r, c, &y, &ends);
                module.kernel("gemv_and_add")?.launch(1, THREADS, args)?
            }
        }
    };
    Ok(Running {
        launch,
        _channel: channel,
        _inputs: [matrix, x],
        y,
        ends,
    })
}

/// One rank, for one shape: its program, or both where it is alone. The last rank returns `y`.
fn rank(comm: &Communicator, shape: (usize, usize)) -> Result<Vec<f32>, Error> {
    if comm.size() > 1 {
        return start(comm, comm.rank(), shape)?.wait();
    }
    let both = [start(comm, 0, shape)?, start(comm, 1, shape)?];
    let [left, sum] = both.map(Running::wait);
    left.and(sum)
}

fn run((transport, count): (&str, usize)) -> Result<(), Error> {
    let work = |comm: &Communicator| SHAPES.iter().map(|shape| rank(comm, *shape)).collect();
    let got: Vec<Vec<Vec<f32>>> = ranks::run(transport, "10.77.124", count, work)?;
    let (mut differ, mut elements) = (0, 0);
    for (y, shape) in got[got.len() - 1].iter().zip(SHAPES) {
        let expected = serially(shape);
        let wrong = y.iter().zip(&expected);
        differ += wrong.filter(|(a, b)| a.to_bits() != b.to_bits()).count();
        elements += expected.len();
    }
    println!("{count} by {transport}: {differ} of {elements} elements differ");
    match differ {
        0 => Ok(()),
        _ => Err(anyhow!("y is not that of a serial program")),
    }
}

fn main() -> Result<(), Error> {
    [("local", 2), ("rdma", 2), ("mesh:bus:2", 2), ("local", 1)]
        .into_iter()
        .try_for_each(run)
}
