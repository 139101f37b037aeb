//! A training step that is captured once and replayed: a CUDA graph, or the same on the emulated
//! GPU.
//!
//! A graph saves the work of queueing: the host launches one thing instead of many. It captures
//! kernels with their arguments. The kernels take the queues' tickets when they run, so each replay
//! posts operations of its own. Memory that the kernels use must live as long as the graph.
//!
//! Run: `cargo run -p ringbell --example 13_graph_replays`
//!
//! Prints `100 replays on 3 ranks, 0 wrong sums`; ends with an error otherwise.

use std::time::Duration;

use anyhow::{anyhow, Error};
use ringbell::{CommOptions, Communicator, Nic, Operation, ReduceOp};

const COUNT: u64 = 1000;
const REPLAYS: u32 = 100;
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> Result<(), Error> {
    let open = |i: u8| Nic::builder().ip(format!("10.77.113.{}/24", i + 1)).open();
    let nics = (0..3).map(open).collect::<Result<Vec<_>, _>>()?;
    let comms = Communicator::init_all(&nics, &CommOptions::default())?;
    let wrong = std::thread::scope(|scope| {
        let ranks: Vec<_> = comms.iter().map(|c| scope.spawn(move || rank(c))).collect();
        let counts = ranks.into_iter().map(|r| match r.join() {
            Ok(counted) => counted,
            Err(_) => Err(anyhow!("a rank panicked")),
        });
        counts.sum::<Result<usize, Error>>()
    })?;
    println!("{REPLAYS} replays on 3 ranks, {wrong} wrong sums");
    match wrong {
        0 => Ok(()),
        _ => Err(anyhow!("a replay has reduced other data than its own")),
    }
}

fn rank(comm: &Communicator) -> Result<usize, Error> {
    let gradients = comm.nic().alloc::<u32>(COUNT)?;
    let sums = comm.nic().alloc::<u32>(COUNT)?;
    let stream = comm.nic().gpu().stream();

    // Captured, not run: a program's own kernels would come before and behind it.
    stream.begin_capture()?;
    let sum = Operation::all_reduce::<u32>(&gradients, &sums, COUNT, ReduceOp::Sum);
    let queued = comm.enqueue(&sum, &stream)?;
    let step = stream.end_capture()?;

    let value = |rank: u32, replay: u32, i: u32| (rank + 1) * 100_003 + replay * 31 + i;
    let mut wrong = 0;
    for replay in 0..REPLAYS {
        let mine: Vec<u32> = (0..COUNT as u32)
            .map(|i| value(comm.rank(), replay, i))
            .collect();
        gradients.write(0, &mine)?;
        step.launch(&stream)?.wait(PATIENCE)?;
        queued.replayed()?;
        let want = |i| -> u32 { (0..comm.size()).map(|r| value(r, replay, i)).sum() };
        let got = sums.to_vec()?;
        wrong += got.iter().zip(0..).filter(|(x, i)| **x != want(*i)).count();
    }
    Ok(wrong)
}
