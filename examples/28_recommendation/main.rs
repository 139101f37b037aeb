//! Recommendations by a model over ten ranks: ACCL+'s second use case (OSDI'24, §6, Table 3,
//! Figs. 16 and 18).
//!
//! A request names a row of each embedding table. The rows make a vector, which passes three
//! layers. Ranks 0 to 3 look up, and have half of the first layer with ranks 4 to 7, which reduce
//! it to rank 8. Ranks 8 and 9 have the other two layers (`roles.rs`). Each rank is one kernel for
//! all requests (`recommend.cu`); values go from kernel to kernel by streams, without batches,
//! while other requests are on their way. An eleventh rank is the client.
//!
//! Run: `cargo run -p ringbell --example 28_recommendation`
//!
//! Prints `320 answers of 33 values: 0 values differ from a serial model's`; ends with an error
//! otherwise. `ringbell run -n 11 --keep-going -- 28_recommendation` runs the ranks as processes,
//! and with `--die 2` one of them ends in the middle: the others name it, and end (`run.sh`).
//!
//! With `--paper --requests 320 --json FOLDER` it measures the paper's sizes beside batches in one
//! process, and draws the latencies (`measure.rs`).

#[path = "../support/kernels.rs"]
mod kernels;

mod client;
mod figure;
mod measure;
mod model;
mod roles;

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{anyhow, ensure, Error};
use clap::Parser as _;
use ringbell::{CommOptions, Communicator, Job, Nic};

use self::client::Answer;
use self::model::{Model, Serial, PAPER, SMALL};

#[derive(clap::Parser)]
struct Args {
    /// The paper's sizes (Table 3) in place of small ones
    #[arg(long)]
    paper: bool,
    /// Requests
    #[arg(long, default_value_t = 320, value_parser = clap::value_parser!(u32).range(1..))]
    requests: u32,
    /// Measures beside batches in one process; writes a report for each, and the figure, into this
    /// folder
    #[arg(long, value_name = "FOLDER")]
    json: Option<PathBuf>,
    /// A rank that ends in the middle; under `ringbell run`
    #[arg(long, value_parser = clap::value_parser!(u32).range(0..10))]
    die: Option<u32>,
}

fn options() -> CommOptions {
    CommOptions {
        // A stream's operation is as long as the run.
        timeout: roles::PATIENCE,
        // And on a queue of its own.
        block_queues: 1,
        ..CommOptions::default()
    }
}

/// All ranks as threads of this process: the answers.
fn in_threads(model: &Model, arrivals: &[Duration]) -> Result<Vec<Answer>, Error> {
    let open = |n| {
        let nic = Nic::builder().ip(&*format!("10.77.128.{n}/24"));
        nic.gpu_memory(64 << 20).open()
    };
    let nics: Vec<Nic> = (1..=roles::RANKS).map(open).collect::<Result<_, _>>()?;
    let comms = Communicator::init_all(&nics, &options())?;
    let (client, servers) = comms.split_last().ok_or_else(|| anyhow!("no ranks"))?;
    let requests = arrivals.len() as u32;
    thread::scope(|scope| {
        let serve = |comm| scope.spawn(move || roles::serve(comm, model, requests, || {}));
        let servers: Vec<_> = servers.iter().map(serve).collect();
        let answers = client::ask(client, model, arrivals);
        for server in servers {
            server.join().map_err(|_| anyhow!("a rank panicked"))??;
        }
        answers
    })
}

/// One rank, as a process of a job.
fn as_process(job: &Job, model: &Model, args: &Args) -> Result<(), Error> {
    ensure!(
        job.size() == roles::RANKS,
        "start it with {} ranks",
        roles::RANKS
    );
    let nic = Nic::builder().job(job).gpu_memory(64 << 20).open()?;
    let comm = Communicator::from_job(&nic, job, &options())?;
    if comm.rank() + 1 < comm.size() {
        return roles::serve(&comm, model, args.requests, || {
            if args.die == Some(comm.rank()) {
                thread::spawn(end_in_the_middle);
            }
        });
    }
    // So that a rank can end while requests are under way.
    let every = Duration::from_millis(5);
    let arrivals: Vec<Duration> = (0..args.requests).map(|n| every * n).collect();
    compare(model, &client::ask(&comm, model, &arrivals)?)
}

/// Ends this process as a crash would: no destructor runs.
#[allow(clippy::disallowed_methods)] // Waits until requests are under way.
fn end_in_the_middle() {
    thread::sleep(Duration::from_millis(300));
    std::process::abort();
}

fn compare(model: &Model, answers: &[Answer]) -> Result<(), Error> {
    let requests: Vec<u32> = (0..answers.len() as u32).collect();
    let serial = Serial::new(*model).answers(&requests);
    let both = answers.iter().zip(&serial);
    let values = both.flat_map(|(answer, serial)| answer.values.iter().zip(serial));
    let differ = values.filter(|(a, b)| a != b).count();
    println!(
        "{} answers of {} values: {differ} values differ from a serial model's",
        answers.len(),
        model.layers[2]
    );
    ensure!(differ == 0, "the answers are not those of a serial model");
    Ok(())
}

fn main() -> Result<(), Error> {
    let args = Args::parse();
    let model = if args.paper { PAPER } else { SMALL };
    roles::check(&model)?;
    if let Ok(job) = Job::from_env() {
        return as_process(&job, &model, &args);
    }
    if let Some(folder) = &args.json {
        return measure::run(&model, args.requests, folder);
    }
    let arrivals = vec![Duration::ZERO; args.requests as usize];
    let answers = in_threads(&model, &arrivals)?;
    compare(&model, &answers)
}
