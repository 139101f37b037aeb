//! Times of programs of MPI: each library alone and with Ringbell, in turn.

#![allow(clippy::disallowed_methods)] // Times programs.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Instant;

use anyhow::{ensure, Context, Result};

use super::bench::{compile, libraries, sources, Bench, Way, LIMIT};
use crate::steps::output_within;
use crate::workspace;

/// Times that each takes its turn in a measurement.
const TURNS: usize = 3;
/// What takes turns.
const WAYS: [&str; 3] = ["alone", "Ringbell", "MPI_Alloc_mem"];

/// mpi4py's Allreduce on two ranks: each library alone, with Ringbell, and with memory of
/// MPI_Alloc_mem.
pub(super) fn collectives() -> Result<()> {
    each(|bench| {
        let Some(python) = &bench.library.python else {
            return Ok(());
        };
        let program = sources().join("measure.py");
        let columns = [("us", true)];
        in_turn(&bench, 3, &columns, |way| {
            let mut c = fastest(&bench, way > 0, Way::COLLECTIVES);
            c.arg(python).arg(&program);
            c.args((way == 2).then_some("exported"));
            said(&mut c)
        })
    })
}

/// Messages between two ranks in C: time of one way, and rate of eight at once; then ranks that
/// wait inside the library below.
pub(super) fn messages() -> Result<()> {
    each(|bench| {
        let Some([cc, _]) = &bench.library.compilers else {
            return Ok(());
        };
        let compile =
            |name: &str| compile(cc, &["-O2"], &sources().join(format!("{name}.c")), name);
        let program = compile("pingpong")?;
        let columns = [("us one way", true), ("GB/s of 8 at once", false)];
        in_turn(&bench, 2, &columns, |way| {
            said(fastest(&bench, way > 0, Way::MESSAGES).arg(&program))
        })?;
        if !bench.library.open_mpi() {
            return Ok(());
        }
        let (within, rounds) = (compile("within")?, 1000_u32);
        println!("\na communicator and its broadcast, 4 ranks");
        in_turn(&bench, 2, &[("us", true)], |way| {
            let mut c = bench.library.launch(4);
            if way > 0 {
                c = bench.ringbell(c, Way::MESSAGES);
            }
            let start = Instant::now();
            said(c.arg(&within).arg(rounds.to_string()))?;
            let us = start.elapsed().as_secs_f64() * 1e6 / f64::from(rounds);
            Ok(format!("0 {us}"))
        })
    })
}

/// Builds the command for figures, and measures with every library.
fn each(measure: impl Fn(Bench<'_>) -> Result<()>) -> Result<()> {
    let built = workspace::dist(&["ringbell-cli", "ringbell-mpi"])?;
    let (libraries, missing) = libraries();
    for why in &missing {
        println!("SKIPPED: {why}");
    }
    libraries.iter().try_for_each(|library| {
        measure(Bench {
            built: &built,
            library,
        })
    })
}

/// Two ranks over the fastest path between two processes, as `cargo xtask peers` has it.
fn fastest(bench: &Bench<'_>, ours: bool, way: Way) -> Command {
    let mut c = Command::new(&bench.library.launcher);
    c.args(["-n", "2"]);
    if bench.library.open_mpi() {
        // Debian's version has the path's older name.
        let older = bench.library.compilers.is_some();
        c.env("OMPI_ALLOW_RUN_AS_ROOT", "1")
            .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
            .args(["--mca", "pml", "ob1", "--mca", "btl"])
            .arg(if older { "self,vader" } else { "self,sm" });
    }
    match ours {
        true => bench.ringbell(c, way),
        false => c,
    }
}

fn said(c: &mut Command) -> Result<String> {
    let ended = output_within(c, LIMIT)?;
    ensure!(ended.status.success(), "it failed: {ended:?}");
    Ok(String::from_utf8_lossy(&ended.stdout).into_owned())
}

/// Prints the medians of what `run` gives for each way: lines of bytes and a value for each column.
/// A column is a time, or a rate.
fn in_turn(
    bench: &Bench<'_>,
    ways: usize,
    columns: &[(&str, bool)],
    run: impl Fn(usize) -> Result<String>,
) -> Result<()> {
    let mut values: BTreeMap<(usize, u64, usize), Vec<f64>> = BTreeMap::new();
    for _ in 0..TURNS {
        for way in 0..ways {
            for line in run(way)?.lines() {
                let numbers: Result<Vec<f64>, _> = line.split(' ').map(str::parse).collect();
                let numbers = numbers.ok().filter(|n| n.len() == 1 + columns.len());
                let numbers = numbers.with_context(|| format!("no row: {line}"))?;
                for (column, value) in numbers[1..].iter().enumerate() {
                    let of = (column, numbers[0] as u64, way);
                    values.entry(of).or_default().push(*value);
                }
            }
        }
    }
    println!("\n{}, medians of {TURNS} turns", bench.library.name);
    for (column, (unit, is_time)) in columns.iter().enumerate() {
        print!("{:>10}", "bytes");
        for way in &WAYS[..ways] {
            print!(" {way:>14} {:>7}", "");
        }
        println!("  {unit}");
        let rows = values
            .keys()
            .filter(|(c, _, way)| (*c, *way) == (column, 0));
        for (_, bytes, _) in rows {
            print!("{bytes:>10}");
            let of = |way| {
                values
                    .get(&(column, *bytes, way))
                    .map_or(f64::NAN, |v| median(v))
            };
            for way in 0..ways {
                let ratio = if *is_time {
                    of(0) / of(way)
                } else {
                    of(way) / of(0)
                };
                print!(" {:>14.2} {ratio:>6.2}x", of(way));
            }
            println!();
        }
    }
    Ok(())
}

fn median(all: &[f64]) -> f64 {
    let mut all = all.to_owned();
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}
