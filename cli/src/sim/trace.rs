//! `ringbell sim trace`: a schedule on a cluster in virtual time.

use std::fmt::Write as _;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use ringbell_sim::goal::Schedule;
use ringbell_sim::{Delivery, GoalPlan, GoalReport, GoalTrouble, Operation};
use serde_json::{json, Value};

use super::cluster::ClusterArgs;
use super::fault::{self, us};
use super::refused::has_memory;
use super::watch::WatchArgs;
use super::words;
use crate::{files, stdio, Exit, Problem};

/// Operations of a list that are shown as text.
const SHOWN: usize = 20;

/// Arguments of `ringbell sim trace`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// A schedule in GOAL, the text that LogGOPSim's txt2bin and ATLAHS read; a connection matrix
    /// of htsim (.cm); or the execution traces of Chakra, by rank 0's file NAME.0.et. `num_ranks`,
    /// `Nodes` or the number of files is the number of ranks
    file: PathBuf,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    watch: WatchArgs,
    /// Write the report as one JSON object; `-` (the default) is standard output
    #[arg(long, value_name = "FILE|-", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
}

/// Runs it and prints the report.
pub(super) fn run(args: &Args) -> Result<Exit> {
    let plan = plan(args)?;
    let advice = "give a schedule with fewer ranks or smaller messages";
    has_memory(&plan.cluster, ringbell_sim::goal_memory(&plan), advice)?;
    let (report, wall_s) = args
        .watch
        .run(|watch| ringbell_sim::run_goal_watched(&plan, watch))?;
    match args.json.as_deref() {
        None => stdio::out(text(args, &plan, &report, wall_s))?,
        Some(path) => {
            let json = json(args, &plan, &report, wall_s);
            let text = serde_json::to_string(&json).context("cannot express the report as JSON")?;
            files::write_json(path, text)?;
        }
    }
    if let Some(trouble) = &report.trouble {
        return Err(trouble_of(trouble).into());
    }
    Ok(Exit::of_data(report.wrong))
}

fn plan(args: &Args) -> Result<GoalPlan> {
    let schedule = match files_of_chakra(&args.file) {
        Some(path_of) => chakra(path_of)?,
        None => goal(&args.file)?,
    };
    let cluster = args.cluster.cluster(Some(schedule.ranks().len()))?;
    Ok(GoalPlan::new(schedule, cluster))
}

/// Says that a trace cannot be taken.
fn refused(what: String) -> Problem {
    let advice = "docs/simulator.md, \"Traces\", has the forms of files and their limits";
    Problem::new(Exit::Usage, what, advice)
}

fn goal(path: &Path) -> Result<Schedule> {
    let name = path.display().to_string();
    let text = fs::read_to_string(path);
    let text = text.map_err(|e| refused(format!("cannot read {name}: {e}")))?;
    Ok(Schedule::parse(&name, &text).map_err(|e| refused(e.to_string()))?)
}

/// The file of each rank, if a path is that of rank 0's trace of Chakra.
fn files_of_chakra(path: &Path) -> Option<impl Fn(usize) -> PathBuf> {
    let name = path.to_str()?.strip_suffix(".0.et")?.to_owned();
    Some(move |rank| PathBuf::from(format!("{name}.{rank}.et")))
}

fn chakra(path_of: impl Fn(usize) -> PathBuf) -> Result<Schedule> {
    let mut files = Vec::new();
    loop {
        let path = path_of(files.len());
        match fs::read(&path) {
            Ok(bytes) => files.push((path.display().to_string(), bytes)),
            Err(e) if e.kind() == ErrorKind::NotFound && files.len() > 1 => break,
            Err(e) => return Err(refused(format!("cannot read {}: {e}", path.display())).into()),
        }
    }
    Ok(Schedule::from_chakra(&files).map_err(|e| refused(e.to_string()))?)
}

fn text(args: &Args, plan: &GoalPlan, report: &GoalReport, wall_s: f64) -> String {
    let mut out = words::head(&format!("trace {}", args.file.display()), &plan.cluster);
    let _ = writeln!(
        out,
        "#{:>5} {:>12} {:>14}",
        "rank", "operations", "end (us)"
    );
    let ranks = plan.schedule.ranks().iter().zip(&report.ends_ns);
    for (rank, (ops, end)) in ranks.enumerate() {
        let _ = writeln!(out, " {rank:>5} {:>12} {:>14.3}", ops.len(), us(*end));
    }
    let _ = writeln!(
        out,
        "# ended after {:.3} us; {} messages, {} bytes, {}{} wrong",
        us(report.time_ns),
        report.messages,
        report.bytes,
        match report.collectives {
            0 => String::new(),
            n => format!("{n} ends of collectives, "),
        },
        report.wrong
    );
    if let Some([least, median, late, most]) = took(report) {
        let _ = writeln!(
            out,
            "# a message took {:.3} us at least, {:.3} in the median, {:.3} of 99%, {:.3} at most",
            us(least),
            us(median),
            us(late),
            us(most)
        );
    }
    if report.waited > 0 {
        let _ = writeln!(
            out,
            "# {} receives waited for memory, of which a rank has 256 MiB for them",
            report.waited
        );
    }
    if let Some(GoalTrouble::Failed(ends)) = &report.trouble {
        out += &fault::text_of_rank_ends(ends);
    }
    out + &words::foot(&report.counts, wall_s)
}

/// What a message took, from the begin of its send until its receiver's host has seen its end: the
/// least, the median, of 99% and the most, in nanoseconds. None without messages.
fn took(report: &GoalReport) -> Option<[u64; 4]> {
    let mut all: Vec<u64> = report.deliveries.iter().map(|d| d.took_ns).collect();
    all.sort_unstable();
    let last = all.len().checked_sub(1)?;
    Some([0, last / 2, (all.len() * 99).div_ceil(100) - 1, last].map(|i| all[i]))
}

/// What went wrong.
fn trouble_of(trouble: &GoalTrouble) -> Problem {
    let (what, advice) = match trouble {
        GoalTrouble::Failed(ends) => {
            let failed = ends.iter().filter(|e| e.is_error()).count();
            let what = format!("the schedule failed on {failed} of {} ranks", ends.len());
            (
                what,
                "the report lists what each rank got and whom it names",
            )
        }
        GoalTrouble::Stuck {
            since_ns,
            waiting,
            behind,
        } => {
            let what = format!(
                "nothing goes on after {:.3} us: {} operations cannot end, and {behind} behind them have not begun{}",
                us(*since_ns),
                waiting.len(),
                list(waiting)
            );
            (what, "give each receive its send, and require nothing of an operation that waits for you")
        }
        GoalTrouble::TooLong(all) => {
            let what = format!(
                "{} receives have fewer bytes than their messages{}",
                all.len(),
                list(all)
            );
            (what, "give a receive as many bytes as its send")
        }
        GoalTrouble::Unreceived(all) => {
            let what = format!(
                "{} messages were received by no one{}",
                all.len(),
                list(all)
            );
            (what, "give each send its receive")
        }
    };
    Problem::new(Exit::Failed, what, advice)
}

/// Operations, a line each.
fn list(all: &[Operation]) -> String {
    let line = |o: &Operation| {
        let place = match o.line {
            0 => String::new(),
            line => format!(", line {line}"),
        };
        format!("\nrank {}{place}: {}: {}", o.rank, o.text, o.why)
    };
    let mut out: String = all.iter().take(SHOWN).map(line).collect();
    if all.len() > SHOWN {
        let _ = write!(out, "\nand {} more, which --json lists", all.len() - SHOWN);
    }
    out
}

fn json(args: &Args, plan: &GoalPlan, report: &GoalReport, wall_s: f64) -> Value {
    let own = json!({
        "file": args.file.display().to_string(),
        "time_us": us(report.time_ns),
        "ends_us": report.ends_ns.iter().map(|ns| us(*ns)).collect::<Vec<_>>(),
        "messages": report.messages,
        "bytes": report.bytes,
        "collectives": report.collectives,
        "wrong": report.wrong,
        "waited": report.waited,
        "deliveries": report.deliveries.iter().map(json_of_delivery).collect::<Vec<_>>(),
        "trouble": report.trouble.as_ref().map(json_of_trouble),
    });
    let own = words::json_of_counts(own, &report.counts, wall_s);
    words::json(&plan.cluster, own)
}

fn json_of_delivery(d: &Delivery) -> Value {
    let [from, to] = d.ends;
    json!({
        "from": from,
        "to": to,
        "line": d.line,
        "bytes": d.bytes,
        "begin_us": us(d.begin_ns),
        "took_us": us(d.took_ns),
    })
}

fn json_of_trouble(trouble: &GoalTrouble) -> Value {
    let list = |all: &[Operation]| -> Value {
        let of = |o: &Operation| json!({ "rank": o.rank, "line": o.line, "operation": o.text, "why": o.why });
        all.iter().map(of).collect()
    };
    match trouble {
        GoalTrouble::Failed(ends) => json!({ "failed": fault::json_of_rank_ends(ends) }),
        GoalTrouble::Stuck {
            since_ns,
            waiting,
            behind,
        } => json!({ "stuck": list(waiting), "since_us": us(*since_ns), "behind": behind }),
        GoalTrouble::TooLong(all) => json!({ "too_long": list(all) }),
        GoalTrouble::Unreceived(all) => json!({ "unreceived": list(all) }),
    }
}
