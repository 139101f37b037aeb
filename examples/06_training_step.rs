//! Data-parallel training: each rank has a part of the data, and the NICs sum the gradients.
//!
//! A linear model is fitted to 4,096 points by gradient descent, four ranks as threads of this
//! process, each with a NIC and a GPU of its own. A step is one all-reduce: the rank writes its
//! gradient into GPU memory, one descriptor goes to the NIC, and the NICs do the rest. The sums
//! have one order, fixed by type, count and rank count, so a serial program that adds in that order
//! gets the same loss, to the last bit.
//!
//! Run: `cargo run -p ringbell --example 06_training_step`
//!
//! Prints the loss of the first and the last step, and that it equals the serial run's; ends with
//! an error otherwise.

use anyhow::{anyhow, Error};
use ringbell::parts::onc_engines::program::Layout;
use ringbell::{CommOptions, Communicator, Nic, ReduceOp};

const RANKS: u32 = 4;
const POINTS: usize = 4096;
const WEIGHTS: usize = 37;
const STEPS: usize = 30;
const RATE: f32 = 0.4;

/// One point: its inputs, and the model's target for it.
fn point(i: usize) -> ([f32; WEIGHTS], f32) {
    let mut seed = i as u32 ^ 0x9e37_79b9;
    let mut next = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    let x: [f32; WEIGHTS] = std::array::from_fn(|_| next());
    let y = x
        .iter()
        .zip(0_u8..)
        .map(|(x, k)| x * f32::from(k % 5))
        .sum();
    (x, y)
}

/// Gradient of a rank's part of the data, and in the last place its share of the loss.
fn gradient(rank: u32, w: &[f32; WEIGHTS]) -> [f32; WEIGHTS + 1] {
    let mut g = [0.0; WEIGHTS + 1];
    for i in (rank as usize..POINTS).step_by(RANKS as usize) {
        let (x, y) = point(i);
        let error = w.iter().zip(&x).map(|(w, x)| w * x).sum::<f32>() - y;
        for (g, x) in g.iter_mut().zip(&x) {
            *g += error * x / POINTS as f32;
        }
        g[WEIGHTS] += error * error / POINTS as f32;
    }
    g
}

/// Goes one step down the slope; gives the loss before it.
fn descend(w: &mut [f32; WEIGHTS], g: &[f32; WEIGHTS + 1]) -> f32 {
    for (w, g) in w.iter_mut().zip(g) {
        *w -= RATE * g;
    }
    g[WEIGHTS]
}

/// The losses of all steps, with the NICs adding.
fn train(comm: &Communicator) -> Result<Vec<f32>, Error> {
    const COUNT: usize = WEIGHTS + 1;
    let buffer = comm.nic().alloc::<f32>(COUNT as u64)?;
    let mut w = [0.0; WEIGHTS];
    let mut losses = Vec::new();
    for _ in 0..STEPS {
        let own = gradient(comm.rank(), &w);
        buffer.write(0, &own)?;
        comm.all_reduce::<f32>(&buffer, &buffer, COUNT as u64, ReduceOp::Sum)?;
        let mut sum = [0.0; COUNT];
        buffer.read(0, &mut sum)?;
        losses.push(descend(&mut w, &sum));
    }
    Ok(losses)
}

/// The same by one thread: chunk c is added in the order rank c, c + 1, ... (FpgaNIC, Table 8).
fn train_serially() -> Vec<f32> {
    let layout = Layout {
        count: WEIGHTS as u64 + 1,
        block_chunks: RANKS,
    };
    let mut w = [0.0; WEIGHTS];
    let mut losses = Vec::new();
    for _ in 0..STEPS {
        let parts: Vec<_> = (0..RANKS).map(|r| gradient(r, &w)).collect();
        let mut sum = [0.0; WEIGHTS + 1];
        for chunk in 0..RANKS {
            for i in layout.chunk(chunk) {
                let i = i as usize;
                sum[i] = parts[chunk as usize][i];
                for next in 1..RANKS {
                    sum[i] += parts[((chunk + next) % RANKS) as usize][i];
                }
            }
        }
        losses.push(descend(&mut w, &sum));
    }
    losses
}

fn main() -> Result<(), Error> {
    let nics: Vec<Nic> = (0..RANKS)
        .map(|rank| {
            let ip = format!("10.77.106.{}/24", rank + 1);
            Ok(Nic::builder().ip(ip).gpu_memory(16 << 20).open()?)
        })
        .collect::<Result<_, Error>>()?;
    let comms = Communicator::init_all(&nics, &CommOptions::default())?;
    let losses: Vec<Vec<f32>> = std::thread::scope(|scope| {
        let ranks: Vec<_> = comms.iter().map(|c| scope.spawn(|| train(c))).collect();
        ranks
            .into_iter()
            .map(|r| r.join().map_err(|_| anyhow!("a rank panicked"))?)
            .collect::<Result<_, Error>>()
    })?;
    let serial = train_serially();
    for (rank, l) in losses.iter().enumerate() {
        if l.iter()
            .map(|x| x.to_bits())
            .ne(serial.iter().map(|x| x.to_bits()))
        {
            return Err(anyhow!("rank {rank} got other losses than the serial run"));
        }
    }
    let (first, last) = (serial[0], serial[STEPS - 1]);
    if last > first / 100.0 {
        return Err(anyhow!(
            "the model has learnt nothing: loss {first}, then {last}"
        ));
    }
    println!("{RANKS} ranks, {STEPS} steps: loss {first:.3} -> {last:.5}, to the bit that of a serial run");
    Ok(())
}
