//! Recovery from a killed rank: the other ranks go on without it.
//!
//! Four processes add numbers, again and again. After a while one of them is killed as by an
//! out-of-memory killer: the operation of the others ends with an error that names it, they agree
//! on who is left, and go on with three ranks on the same NICs. Nothing is restarted, and no rank
//! waits for ever.
//!
//! Run: `cargo run -p ringbell --example 08_recovery`. As a job of your own:
//! `ringbell run -R 4 --keep-going -- PROGRAM`.
//!
//! Prints what each survivor saw; ends with an error when one of them did not come through.
#![allow(clippy::disallowed_methods)] // Waits for processes, with a deadline.

use std::net::Ipv4Addr;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{anyhow, Error};
use ringbell::job::{variables, BootstrapServer, JobError};
use ringbell::{CommOptions, Communicator, DeviceBuffer, Job, Nic, ReduceOp};

const RANKS: u32 = 4;
/// The rank that is killed.
const VICTIM: u32 = 2;
const ROUNDS: u32 = 200;
const KILLED_IN: u32 = 77;
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> Result<(), Error> {
    match Job::from_env() {
        Ok(job) => rank(&job),
        Err(JobError::None) => launch(),
        Err(e) => Err(e.into()),
    }
}

/// Adds one number of each rank; the sum shows which ranks took part.
fn add(comm: &Communicator, x: &DeviceBuffer<u32>, number: u32) -> Result<u32, Error> {
    x.write(0, &[number])?;
    comm.all_reduce::<u32>(x, x, 1, ReduceOp::Sum)?;
    Ok(x.to_vec()?[0])
}

fn rank(job: &Job) -> Result<(), Error> {
    let nic = Nic::builder().job(job).gpu_memory(16 << 20).open()?;
    let mut comm = Communicator::from_job(&nic, job, &CommOptions::default())?;
    let x = nic.alloc(1)?;
    // Each rank's number is a decimal place of its own.
    let number = 10_u32.pow(job.rank());
    let (mut round, mut recovered) = (0, false);
    while round < ROUNDS {
        if job.rank() == VICTIM && round == KILLED_IN {
            // No shutdown: sockets and memory stay as they are.
            std::process::abort();
        }
        match add(&comm, &x, number) {
            Ok(sum) => {
                let want = if recovered { 1011 } else { 1111 };
                if sum != want {
                    return Err(anyhow!("round {round}: the sum is {sum}, not {want}"));
                }
                round += 1;
            }
            Err(e) if !recovered => {
                println!("rank {}: round {round}: {e}", job.rank());
                comm = comm.shrink(PATIENCE)?;
                recovered = true;
                // One may have ended its round just before: continue from the last one's round.
                x.write(0, &[round])?;
                comm.all_reduce::<u32>(&x, &x, 1, ReduceOp::Min)?;
                round = x.to_vec()?[0];
            }
            Err(e) => return Err(e),
        }
    }
    if !recovered {
        return Err(anyhow!("no rank is missing"));
    }
    println!(
        "rank {}: {ROUNDS} rounds done, the last ones as rank {} of {}",
        job.rank(),
        comm.rank(),
        comm.size()
    );
    // A rank that ends at once could look dead to one that is still at the last sum.
    comm.finish(PATIENCE)?;
    Ok(())
}

/// A short form of `ringbell run --keep-going`.
fn launch() -> Result<(), Error> {
    let server = BootstrapServer::start((Ipv4Addr::LOCALHOST, 0).into(), Some(RANKS))?;
    let mut ranks: Vec<Child> = (0..RANKS)
        .map(|rank| {
            Command::new(std::env::current_exe()?)
                .env(variables::RANK, rank.to_string())
                .env(variables::SIZE, RANKS.to_string())
                .env(variables::ID, server.id().to_string())
                .spawn()
        })
        .collect::<Result<_, _>>()?;
    let deadline = Instant::now() + PATIENCE * 2;
    let mut failed = Vec::new();
    for (rank, child) in (0..).zip(&mut ranks) {
        let status = loop {
            match child.try_wait()? {
                Some(status) => break status,
                None if Instant::now() > deadline => {
                    child.kill()?;
                    break child.wait()?;
                }
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        if status.success() != (rank != VICTIM) {
            failed.push(format!("rank {rank}: {status}"));
        }
    }
    match failed.is_empty() {
        true => {
            println!("rank {VICTIM} was killed in round {KILLED_IN}; the others finished");
            Ok(())
        }
        false => Err(anyhow!(failed.join("; "))),
    }
}
