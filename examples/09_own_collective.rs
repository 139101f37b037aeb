//! A collective of your own: a program in text, proved before it runs, run by the NICs.
//!
//! Three ranks (threads here, a NIC each) sum their values over a hub: rank 1 and 2 send to rank 0,
//! which adds and answers. The text is what `ringbell explain --program FILE` explains. A program
//! with a mistake is refused with the rank and the step at fault, before any NIC runs it.
//!
//! Run: `cargo run -p ringbell --example 09_own_collective`
//!
//! Prints why the wrong program was refused, then `3 ranks have the sum of 1000 values, 0 wrong`.

use anyhow::{anyhow, Error};
use ringbell::{Algorithm, CommOptions, Communicator, Nic, Operation, ReduceOp};

const HUB: &str = "
ringbell program 1
collective all-reduce
ranks 3
order other                  # not the ring's: bits of floats may differ from the defaults'
rank 0 scratch 1
1: net 1 + input[0] -> scratch[0]
2: net 2 + scratch[0] -> output[0], net 1
3: output[0] -> net 2
rank 1
0: input[0] -> net 0
3: net 0 -> output[0]
rank 2
0: input[0] -> net 0
4: net 0 -> output[0]
";

const COUNT: usize = 1000;

fn main() -> Result<(), Error> {
    let open = |i: u8| Nic::builder().ip(format!("10.77.106.{}/24", i + 1)).open();
    let nics = (0..3).map(open).collect::<Result<Vec<_>, _>>()?;
    let comms = Communicator::init_all(&nics, &CommOptions::default())?;

    // Rank 2's contribution is left out.
    let wrong = HUB.replace("2: net 2 + scratch[0]", "2: scratch[0]");
    match comms[0].load_program(&wrong) {
        Err(why) => println!("refused: {why}"),
        Ok(()) => return Err(anyhow!("a wrong program was loaded")),
    }

    let wrong_values = std::thread::scope(|scope| {
        let ranks: Vec<_> = comms.iter().map(|c| scope.spawn(move || rank(c))).collect();
        let counts = ranks.into_iter().map(|r| match r.join() {
            Ok(counted) => counted,
            Err(_) => Err(anyhow!("a rank panicked")),
        });
        counts.sum::<Result<usize, Error>>()
    })?;
    println!("3 ranks have the sum of {COUNT} values, {wrong_values} wrong");
    if wrong_values > 0 {
        return Err(anyhow!("the sum is wrong"));
    }
    Ok(())
}

/// The work of every rank; returns the number of wrong values.
fn rank(comm: &Communicator) -> Result<usize, Error> {
    comm.load_program(HUB)?;
    let (values, sums) = (
        comm.nic().alloc::<i32>(COUNT as u64)?,
        comm.nic().alloc::<i32>(COUNT as u64)?,
    );
    let value = |rank: u32, i: usize| (rank as i32 + 1) * 1000 + i as i32;
    let mine: Vec<i32> = (0..COUNT).map(|i| value(comm.rank(), i)).collect();
    values.write(0, &mine)?;
    let sum = Operation::all_reduce::<i32>(&values, &sums, COUNT as u64, ReduceOp::Sum);
    comm.run(&sum.algo(Algorithm::User))?;
    let wanted = |i: usize| (0..3).map(|r| value(r, i)).sum::<i32>();
    let sums = sums.to_vec()?;
    Ok((0..COUNT).filter(|i| sums[*i] != wanted(*i)).count())
}
