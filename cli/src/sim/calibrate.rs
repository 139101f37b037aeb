//! `ringbell sim calibrate`: a profile of the software NIC on this machine.
//!
//! Two ranks of this machine run an all-reduce by `ring` over `rdma`. A profile has two costs of a
//! NIC: its delay, found so that the shortest size takes as long, and its processor's time for a
//! byte, found from 1 MiB. The other sizes say how well both hold.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};
use ringbell::comm::CollectiveKind;
use ringbell::Algorithm;
use ringbell_sim::{Cluster, Plan, Profile};
use serde_json::Value;

use super::refused::problem;
use crate::child::{dies_with_us, End};
use crate::report::{size_text, Meta};
use crate::{files, stdio, Exit, Problem};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Sizes that the costs are found from: the delay, and a byte's.
const SHORT: u64 = 8;
const LONG: u64 = MIB;
/// From which size on a profile is to hold, and within what.
const HELD_FROM: u64 = 64 * KIB;
const HELD: f64 = 0.15;
/// How near a cost brings a time to what was measured.
const NEAR: f64 = 0.002;
/// Costs that are tried for it at most: times grow almost as their costs.
const TRIES: usize = 8;
/// The largest cost of a profile.
const MOST: f64 = 1e9;

/// Arguments of `ringbell sim calibrate`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// File of the profile, for --profile
    #[arg(short, long, value_name = "FILE", default_value = "soft.toml")]
    output: PathBuf,
    /// Timed iterations of each size [default: by size]
    #[arg(short = 'n', long, value_name = "N")]
    iters: Option<u64>,
}

/// A size, and how long it took: microseconds.
type Taken = (u64, f64);

/// Measures, finds the costs, writes the profile, and says how well it holds.
pub(super) fn run(args: &Args) -> Result<Exit> {
    let mut taken = measured(args, &["-b", "8", "-e", "8"])?;
    taken.extend(measured(args, &["-b", "64K", "-e", "4M", "-f", "4"])?);
    let costs = Costs::of(&taken)?;
    let machine = Meta::new("sim calibrate").machine;
    let text = costs.text(&machine);
    files::write(&args.output, &text, "--output")?;
    let mut worst = 0.0_f64;
    let mut out = format!(
        "# ringbell sim calibrate: all-reduce by ring of two ranks over rdma, medians\n# {machine}\n#{:>9} {:>14} {:>15} {:>7}\n",
        "size",
        "measured (us)",
        "simulated (us)",
        "ratio"
    );
    for &(bytes, us) in &taken {
        let simulated = costs.simulate(bytes)?;
        let ratio = simulated / us;
        if bytes >= HELD_FROM {
            worst = worst.max((ratio - 1.0).abs());
        }
        let size = size_text(bytes);
        let _ = writeln!(out, " {size:>9} {us:>14.2} {simulated:>15.2} {ratio:>7.2}");
    }
    let (worst, held) = (100.0 * worst, 100.0 * HELD);
    let _ = match worst <= held {
        true => writeln!(out, "# from 64K on it holds within {worst:.0}%"),
        false => writeln!(
            out,
            "# from 64K on it is off by up to {worst:.0}%, more than {held:.0}%; measure on an idle machine"
        ),
    };
    let _ = writeln!(out, "# written to {}", args.output.display());
    stdio::out(out)?;
    Ok(Exit::Ok)
}

/// Medians of an all-reduce of two processes.
fn measured(args: &Args, sizes: &[&str]) -> Result<Vec<Taken>> {
    let own = std::env::current_exe().context("cannot tell where this command lies")?;
    let mut command = Command::new(own);
    command.args(["perf", "all-reduce", "-R", "2", "--algo", "ring"]);
    command.args(["--transport", "rdma", "--mtu", "4144", "--json", "-"]);
    command.args(sizes);
    if let Some(iters) = args.iters {
        command.args(["-n", &iters.to_string()]);
    }
    command.stderr(Stdio::inherit());
    dies_with_us(&mut command);
    let done = command.output().context("cannot start the measurement")?;
    let end = End::from(done.status);
    if !end.is_success() {
        let advice = "see above; `ringbell doctor` looks at this machine";
        let what = format!("the measurement {end}");
        return Err(Problem::new(Exit::Failed, what, advice).into());
    }
    let report: Value = serde_json::from_slice(&done.stdout).context("perf wrote no report")?;
    let rows = report["rows"].as_array().into_iter().flatten();
    let rows = rows.filter(|r| r["series"] == "out of place");
    let taken = rows.filter_map(|r| Some((r["size_bytes"].as_u64()?, r["p50_us"].as_f64()?)));
    Ok(taken.collect())
}

/// What a NIC costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Costs {
    delay_ns: u64,
    byte_ps: u64,
}

impl Costs {
    /// Those by which the short and the long size take as long as they did.
    fn of(taken: &[Taken]) -> Result<Costs> {
        let us = |bytes| {
            let found = taken.iter().find(|t| t.0 == bytes);
            found.map(|t| t.1).with_context(|| {
                let size = size_text(bytes);
                format!("the measurement has no row of {size}")
            })
        };
        let (short, long) = (us(SHORT)?, us(LONG)?);
        let mut costs = Costs {
            delay_ns: 0,
            byte_ps: 0,
        };
        // Each changes the other's size a little.
        for _ in 0..2 {
            costs.delay_ns = cost(short, |delay_ns| {
                Costs { delay_ns, ..costs }.simulate(SHORT)
            })?;
            costs.byte_ps = cost(long, |byte_ps| Costs { byte_ps, ..costs }.simulate(LONG))?;
        }
        Ok(costs)
    }

    /// Microseconds of a simulated all-reduce.
    fn simulate(self, bytes: u64) -> Result<f64> {
        let text = self.text("");
        let profile = Profile::parse("soft", &text).context("the profile is wrong")?;
        let plan = Plan {
            algo: Algorithm::Ring,
            ..Plan::new(CollectiveKind::AllReduce, Cluster::new(2, profile), bytes)
        };
        let report = ringbell_sim::run(&plan).map_err(problem)?;
        let size = report.sizes.first().context("the operation has no time")?;
        Ok(size.time_ns as f64 / 1e3)
    }

    /// The file.
    fn text(self, machine: &str) -> String {
        let Costs { delay_ns, byte_ps } = self;
        let machine = machine.replace(['"', '\\'], " ");
        format!(
            "# The software NIC, as `ringbell sim calibrate` measured it.\n\n\
             # Where the numbers come from, in a line for the head of a report.\n\
             source = \"two ranks over rdma, measured: {machine}\"\n\n[link]\n\
             # Packets are copied in memory: what that takes is the NIC's time for a byte.\n\
             rate_gbps = 100000\n# Likewise.\ndelay_ns = 0\n\n[nic]\n\
             # As measured: payloads of 4,096 bytes.\nmtu_bytes = 4144\n\
             # The default of transport rdma.\nretry_us = 20000\n\
             # From an all-reduce of 8 bytes.\nsend_delay_ns = {delay_ns}\n\
             # From an all-reduce of 1 MiB.\nbyte_ps = {byte_ps}\n"
        )
    }
}

/// The cost by which a time becomes what was measured, or 0 where it is longer without any. By
/// secants.
fn cost(wanted: f64, time: impl Fn(u64) -> Result<f64>) -> Result<u64> {
    let free = time(0)?;
    if free >= wanted {
        return Ok(0);
    }
    let (mut last, mut next) = ((0, free), 100);
    for _ in 0..TRIES {
        let this = (next, time(next)?);
        if (this.1 / wanted - 1.0).abs() < NEAR {
            break;
        }
        let slope = (this.1 - last.1) / (this.0 as f64 - last.0 as f64);
        if slope.is_nan() || slope <= 0.0 {
            break;
        }
        let step = (wanted - this.1) / slope;
        let tried = (this.0 as f64 + step).round().clamp(0.0, MOST) as u64;
        // Whole numbers come no nearer.
        if tried == this.0 {
            break;
        }
        (last, next) = (this, tried);
    }
    Ok(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_found_again_from_what_they_take() {
        for (delay_ns, byte_ps) in [(700, 40), (35_000, 900), (0, 250)] {
            let costs = Costs { delay_ns, byte_ps };
            let sizes = [SHORT, HELD_FROM, LONG, 4 * MIB];
            let take = |bytes| Ok((bytes, costs.simulate(bytes)?));
            let taken: Result<Vec<_>> = sizes.into_iter().map(take).collect();
            let taken = taken.expect("it runs");
            let found = Costs::of(&taken).expect("it is found");
            for &(bytes, us) in &taken {
                let ratio = found.simulate(bytes).expect("it runs") / us;
                assert!(
                    (ratio - 1.0).abs() < 0.02,
                    "{costs:?} {found:?} {bytes}: {ratio}"
                );
            }
        }
    }

    #[test]
    fn a_cost_is_found_where_time_grows_almost_as_it() {
        let curved = |c: u64| Ok(5.0 + 0.25 * c as f64 + 3.0 * (c as f64).sqrt());
        for wanted in [0.0, 5.0, 300.0, 1e6] {
            let found = cost(wanted, curved).expect("it cannot fail");
            let time = curved(found).expect("it cannot fail");
            let is_near = (time / wanted - 1.0).abs() < 0.01;
            assert!(
                is_near || (found == 0 && time >= wanted),
                "{wanted}: {found}"
            );
        }
        // A time that no cost changes.
        assert_eq!(cost(9.0, |_| Ok(1.0)).expect("it cannot fail"), 100);
    }
}
