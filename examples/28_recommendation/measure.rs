//! Measurement: the pipeline beside batches in one process (ACCL+, OSDI'24, Fig. 18).
//!
//! First both answer as fast as they can. Then requests arrive at random times, as many a second as
//! half of what the slower one can do, and the same for both. A batch begins when its last request
//! has come, on all cores. A latency counts from the arrival.
#![allow(clippy::disallowed_methods)] // Measures times, and waits for arrivals.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{ensure, Error};
use ringbell_perf::{Report, Row, Samples};

use crate::client::Answer;
use crate::model::{Model, Serial};
use crate::{figure, in_threads};

/// Requests of a batch; the first one is the baseline.
const BATCHES: [usize; 2] = [32, 1];
/// What the rows tell of the latencies.
const PERCENTILES: [f64; 9] = [1.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 100.0];

/// How one way of answering has done.
struct Way {
    name: String,
    /// Requests a second, as fast as it can.
    capacity: f64,
    /// Nanoseconds from arrival to answer, at half load.
    latencies: Samples,
}

/// Measures, prints, and writes a report for each way, and the figure.
pub(crate) fn run(model: &Model, requests: u32, folder: &Path) -> Result<(), Error> {
    fs::create_dir_all(folder)?;
    let serial = Serial::new(*model);
    let at_once = vec![Duration::ZERO; requests as usize];
    let expected = serial.answers(&(0..requests).collect::<Vec<_>>());
    let mut wrong = 0;
    let mut pipeline = |arrivals: &[Duration]| -> Result<Vec<Duration>, Error> {
        let answers = in_threads(model, arrivals)?;
        let right = |(answer, expected): &(&Answer, &Vec<i32>)| answer.values != **expected;
        wrong += answers.iter().zip(&expected).filter(right).count();
        // The first one waits for the kernels to start.
        let timed = answers.iter().skip(1);
        Ok(timed.map(|answer| answer.took).collect())
    };
    let mut ways = vec![Way {
        name: "pipeline".into(),
        capacity: capacity(&pipeline(&at_once)?),
        latencies: Samples::default(),
    }];
    for size in BATCHES {
        ways.push(Way {
            name: format!("batch-{size}"),
            capacity: capacity(&batches(&serial, size, &at_once)),
            latencies: Samples::default(),
        });
    }
    let least = f64::min(ways[0].capacity, ways[1].capacity);
    let arrivals = arrivals(requests, least / 2.0);
    for (n, way) in ways.iter_mut().enumerate() {
        let took = match n.checked_sub(1) {
            None => pipeline(&arrivals)?,
            Some(n) => batches(&serial, BATCHES[n], &arrivals),
        };
        for took in took {
            way.latencies.push(took.as_nanos() as f64);
        }
    }
    println!("{requests} requests, {:.0} a second", least / 2.0);
    println!("way         at most, 1/s   p50 ms   p99 ms");
    let mut reports = Vec::new();
    for way in &mut ways {
        let (name, most) = (&way.name, way.capacity);
        let [p50, p99] = [50.0, 99.0].map(|p| way.latencies.percentile(p) / 1e6);
        println!("{name:<10} {most:>13.0} {p50:>8.2} {p99:>8.2}");
        let report = report(way, model, least / 2.0);
        let text = serde_json::to_string_pretty(&report)?;
        fs::write(folder.join(format!("{}.json", way.name)), text + "\n")?;
        reports.push((way.name.clone(), report.rows));
    }
    fs::write(folder.join("latencies.svg"), figure::svg(&reports)?)?;
    ensure!(
        wrong == 0,
        "{wrong} answers are not those of a serial model"
    );
    Ok(())
}

/// Answers a second, when all requests have arrived at once.
fn capacity(took: &[Duration]) -> f64 {
    let last = took.iter().max().copied().unwrap_or_default();
    took.len() as f64 / last.as_secs_f64()
}

/// Random times with this many arrivals a second on average (a Poisson process).
fn arrivals(requests: u32, a_second: f64) -> Vec<Duration> {
    let (mut seed, mut at) = (28_u32, 0.0);
    let mut next = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let part = f64::from((seed >> 8) + 1) / f64::from(1 << 24);
        at -= part.ln() / a_second;
        Duration::from_secs_f64(at)
    };
    (0..requests).map(|_| next()).collect()
}

/// Answers in batches of this size: the time of each request from its arrival.
fn batches(serial: &Serial, size: usize, arrivals: &[Duration]) -> Vec<Duration> {
    let cores = thread::available_parallelism().map_or(1, |n| n.get());
    let numbers: Vec<u32> = (0..arrivals.len() as u32).collect();
    let begin = Instant::now();
    let mut took = Vec::with_capacity(arrivals.len());
    for (batch, arrivals) in numbers.chunks(size).zip(arrivals.chunks(size)) {
        let ready = arrivals.last().copied().unwrap_or_default();
        thread::sleep((begin + ready).saturating_duration_since(Instant::now()));
        thread::scope(|scope| {
            for part in batch.chunks(batch.len().div_ceil(cores)) {
                scope.spawn(|| std::hint::black_box(serial.answers(part)));
            }
        });
        took.extend(arrivals.iter().map(|arrival| (begin + *arrival).elapsed()));
    }
    took
}

/// The latencies by percentile, and the time of a request at the highest rate.
fn report(way: &mut Way, model: &Model, a_second: f64) -> Report {
    let mut report = Report::new("recommendation");
    let meta = &mut report.meta;
    meta.parameter = Some("percentile".into());
    meta.notes = vec![format!("{a_second:.0} requests a second")];
    if way.name == "pipeline" {
        let texts = ["soft", "emulated", "local", "waiter"].map(String::from);
        [meta.nic, meta.gpu, meta.transport, meta.progress] = texts;
        meta.ranks = Some(crate::roles::RANKS);
    }
    let row = |series: &str, parameter, nanoseconds: f64| Row {
        series: Some(series.into()),
        parameter,
        size_bytes: u64::from(model.tables) * size_of::<u32>() as u64,
        count: way.latencies.len() as u64,
        time_us: nanoseconds / 1e3,
        p50_us: nanoseconds / 1e3,
        p99_us: nanoseconds / 1e3,
        ..Row::default()
    };
    let mut rows = vec![row("at the highest rate", None, 1e9 / way.capacity)];
    for percent in PERCENTILES {
        let at = way.latencies.clone().percentile(percent);
        rows.push(row(&format!("p{percent}"), Some(percent), at));
    }
    report.rows = rows;
    report
}
