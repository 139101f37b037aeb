//! The ten ranks that serve (ACCL+, OSDI'24, Fig. 16): a kernel each, for all requests.
//!
//! Rank 0 is node 1 of the figure. Ranks 0 to 3 look up a quarter of the tables each, and have the
//! upper half of their columns of the first layer. Ranks 4 to 7 have the lower half. They and rank
//! 8 reduce the first layer; rank 8 has the second layer, and rank 9 the third.
#![allow(unsafe_code)] // Runs kernels.

use std::time::Duration;

use anyhow::{anyhow, ensure, Error};
use ringbell::abi::Status;
use ringbell::memory::Plain;
use ringbell::{Communicator, DeviceBuffer, GpuResult, Nic};

use crate::kernels;
use crate::model::{embedding, Model, PARTS};

/// Ranks: the ten of the paper, and the client that asks.
pub(crate) const RANKS: u32 = 11;
/// The ranks of the reduction; the last one gets the sums.
const GROUP: [u32; 5] = [4, 5, 6, 7, 8];
/// Bytes of a stream's ring.
const RING: u32 = 16 << 10;
const THREADS: u32 = 128;
/// Longest time of a run.
pub(crate) const PATIENCE: Duration = Duration::from_secs(600);

fn filled<T: Plain>(nic: &Nic, values: &[T]) -> Result<DeviceBuffer<T>, Error> {
    let buffer = nic.alloc::<T>(values.len() as u64)?;
    buffer.write(0, values)?;
    Ok(buffer)
}

/// The rows of a part's tables that memory holds.
fn held(model: &Model, part: u32) -> Vec<i32> {
    let tables = model.tables / PARTS;
    let rows = (part * tables..(part + 1) * tables)
        .flat_map(|table| (0..model.held_rows).map(move |row| (table, row)));
    rows.flat_map(|(table, row)| (0..model.width).map(move |i| embedding(table, row, i)))
        .collect()
}

/// Serves requests as one of the ten ranks. `begun` is called when its kernel runs.
pub(crate) fn serve(
    comm: &Communicator,
    model: &Model,
    requests: u32,
    begun: impl FnOnce(),
) -> Result<(), Error> {
    let (nic, me) = (comm.nic(), comm.rank());
    let group = match GROUP.contains(&me) {
        true => Some(comm.create_group(&GROUP, 28)?),
        false => None,
    };
    let (input, output) = (nic.kernel_stream(RING)?, nic.kernel_stream(RING)?);
    let ends = filled(nic, &[GpuResult::UNWRITTEN; 2])?;
    let [first, second, third] = model.layers;
    let (half, columns) = (first / 2, model.vector() / PARTS);
    let part = me % PARTS;
    let own = part * columns..(part + 1) * columns;
    let (rows, weights) = match me {
        0..=3 => (half, model.weights(0, 0..half, own)),
        4..=7 => (half, model.weights(0, half..first, own)),
        8 => (second, model.weights(1, 0..second, 0..first)),
        _ => (third, model.weights(2, 0..third, 0..second)),
    };
    let weights = filled(nic, &weights)?;
    // The input of the own layer; halves of the first one, or what rank 8 adds to them.
    let x = filled(nic, &vec![0; model.vector().max(first) as usize])?;
    let halves = filled(nic, &vec![0; first as usize])?;
    let tables = match me {
        0..=3 => held(model, part),
        _ => vec![0],
    };
    let tables = filled(nic, &tables)?;
    let (w, of_part) = (&weights, model.tables / PARTS);
    // SAFETY: recommend.cu is ours, and the arguments have the types of its parameters. Buffers and
    // streams live until the kernel has ended.
    let launch = unsafe {
        let module = nic.module(kernels::of("28_recommendation/recommend.cu"))?;
        let kernel = |name| module.kernel(name);
        match (me, &group) {
            (4..=7, Some(group)) => {
                let streams = (&input, &output);
                let args = (
                    comm, group, streams.0, streams.1, columns, w, rows, &x, &halves,
                );
                let (a, b, c, d, e, f, g, h, i) = args;
                let args = (a, b, c, d, e, f, g, h, i, requests, &ends);
                kernel("first_layer")?.launch(1, THREADS, args)?
            }
            (_, Some(group)) => {
                let zeros = &halves;
                let args = (
                    comm, group, &input, &output, zeros, first, w, rows, &x, requests, &ends,
                );
                kernel("second_layer")?.launch(1, THREADS, args)?
            }
            (9, None) => {
                let args = (comm, &input, &output, second, w, rows, &x, requests, &ends);
                kernel("third_layer")?.launch(1, THREADS, args)?
            }
            (_, None) => {
                let held = model.held_rows;
                let width = model.width;
                let args = (
                    comm, &input, &output, &tables, held, of_part, width, w, rows, &x, requests,
                    &ends,
                );
                kernel("embed")?.launch(1, THREADS, args)?
            }
        }
    };
    begun();
    launch.wait(PATIENCE)?;
    let ends = ends.to_vec()?;
    if ends.iter().any(|end| end.status() != Some(Status::Ok)) {
        // The reduction has communicators of its own, whose ranks may wait for this one.
        if let Some(group) = &group {
            group.abort();
        }
        return Err(failure(&ends));
    }
    Ok(())
}

/// How the streams of a rank have ended. The first end is that of a stream between ranks of the
/// job, and names the one that has died; the second may be the reduction's, whose ranks have other
/// numbers.
fn failure(ends: &[GpuResult]) -> Error {
    let [of_job, ..] = ends else {
        return anyhow!("no result");
    };
    if of_job.status() == Some(Status::PeerFailed) {
        return anyhow!("rank {} has failed; the pipeline ends", of_job.detail);
    }
    let bad = ends.iter().find(|end| end.status() != Some(Status::Ok));
    let checked = bad.map_or(Ok(0), |end| end.check("a stream"));
    checked.map_or_else(Error::from, |_| anyhow!("no result"))
}

/// Whether a model can be cut among the ranks, whose kernels multiply four elements at once.
pub(crate) fn check(model: &Model) -> Result<(), Error> {
    let [first, second, _] = model.layers;
    let columns = [model.vector() / PARTS, first, second];
    ensure!(
        model.tables.is_multiple_of(PARTS) && columns.iter().all(|n| n.is_multiple_of(4)),
        "{model:?} does not make {PARTS} parts, or a layer has inputs that are no multiple of 4"
    );
    Ok(())
}
