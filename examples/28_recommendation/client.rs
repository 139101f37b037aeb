//! The client: sends requests when they arrive, and takes the answers.
#![allow(clippy::disallowed_methods)] // Measures times, and waits for arrivals.

use std::collections::VecDeque;
use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{anyhow, Error};
use ringbell::{Communicator, DeviceBuffer, Operation, Request};

use crate::model::{Model, PARTS};

/// Tags of `recommend.cu`.
const REQUEST: u32 = 1;
const ANSWER: u32 = 4;
/// Requests whose sends may be under way.
const AHEAD: usize = 16;

/// An answer, and the time from the arrival of its request. That of the first one is the time until
/// all kernels run.
pub(crate) struct Answer {
    pub(crate) values: Vec<i32>,
    pub(crate) took: Duration,
}

/// Asks for as many answers as there are arrivals, which count from the first answer.
pub(crate) fn ask(
    comm: &Communicator,
    model: &Model,
    arrivals: &[Duration],
) -> Result<Vec<Answer>, Error> {
    let nic = comm.nic();
    let rows: Vec<u32> = (0..arrivals.len() as u32)
        .flat_map(|n| model.request(n))
        .collect();
    let rows_on_nic = nic.alloc::<u32>(rows.len() as u64)?;
    rows_on_nic.write(0, &rows)?;
    let width = u64::from(model.layers[2]);
    let values = nic.alloc::<i32>(width * arrivals.len() as u64)?;
    let receive = |n: usize| {
        let to = values.slice(n as u64 * width..);
        let answer = Operation::stream_recv::<i32>(to, width, comm.size() - 2, ANSWER);
        comm.run(&answer)
    };
    let started = Instant::now();
    send(comm, model, &rows_on_nic, started, 0..1, arrivals)?;
    receive(0)?;
    let begin = Instant::now();
    let times = thread::scope(|scope| {
        let rest = 1..arrivals.len();
        let sender = scope.spawn(|| send(comm, model, &rows_on_nic, begin, rest, arrivals));
        let took = |n: usize| receive(n).map(|_| (begin + arrivals[n]).elapsed());
        let times: Result<Vec<Duration>, _> = (1..arrivals.len()).map(took).collect();
        let sent = sender.join().map_err(|_| anyhow!("the sender panicked"))?;
        // What the receiver has seen comes first.
        let times = times?;
        sent.map(|()| times)
    })?;
    let all = values.to_vec()?;
    let answers = all
        .chunks_exact(width as usize)
        .zip([begin - started].into_iter().chain(times));
    let answer = |(values, took): (&[i32], Duration)| Answer {
        values: values.to_vec(),
        took,
    };
    Ok(answers.map(answer).collect())
}

/// Sends each request when it has arrived: to each rank with tables, the rows of its tables.
fn send(
    comm: &Communicator,
    model: &Model,
    rows: &DeviceBuffer<u32>,
    begin: Instant,
    requests: Range<usize>,
    arrivals: &[Duration],
) -> Result<(), Error> {
    let of_part = u64::from(model.tables / PARTS);
    let mut under_way: VecDeque<Request> = VecDeque::new();
    for n in requests {
        thread::sleep((begin + arrivals[n]).saturating_duration_since(Instant::now()));
        for part in 0..PARTS {
            let from = n as u64 * u64::from(model.tables) + u64::from(part) * of_part;
            let send = Operation::stream_send::<u32>(rows.slice(from..), of_part, part, REQUEST);
            under_way.push_back(comm.post(&send)?);
        }
        while under_way.len() > AHEAD * PARTS as usize {
            under_way.pop_front().map(Request::wait).transpose()?;
        }
    }
    under_way.into_iter().try_for_each(|r| r.wait().map(drop))?;
    Ok(())
}
