//! `ringbell perf all-reduce --beside nccl`: ours, then NCCL over shared memory, then NCCL over sockets. Each runs in processes
//! of its own, one after the other, in the same placement, with the same sizes, data and way of timing.
#![allow(clippy::disallowed_methods)] // The program: waits for our own side, with a deadline.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ringbell::comm::{CollectiveKind, WireType};
use ringbell::gpu::GPU_VARIABLE;
use ringbell::job::JobError;
use ringbell::Job;

use super::super::collective::{self, name, steps_of, usage};
use super::super::compare::{medians, plot, table, together, Column};
use super::mps::Mps;
use super::placement::{is_impossible, Carrier, Placement, SEVERAL_RANKS};
use super::{device, find, measure, notes, peer, service, NcclArgs, Task};
use crate::report::{draw, emit_text, machine, OutputArgs, Peer, Report};
use crate::scratch::Folder;
use crate::{Exit, Problem};

/// What runs beside ours.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct BesideArgs {
    /// Run a peer too, in the same placement, and print ratios; `nccl-if-found` says in the report why there is none
    #[arg(long, value_name = "nccl|nccl-if-found")]
    beside: Option<Which>,
    #[command(flatten)]
    nccl: NcclArgs,
}

/// The peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Which {
    /// NCCL, or an error
    Nccl,
    /// NCCL where it is
    NcclIfFound,
}

impl BesideArgs {
    pub(crate) fn peer(&self) -> Option<Which> {
        self.beside
    }
}

/// Flags that are ours alone, with a value behind them or without; our side is started with the others.
const WITH_VALUE: [&str; 6] = ["--beside", "--nccl", "--limit", "--json", "--svg", "--gpu"];
const WITHOUT: [&str; 3] = ["--mps", "--threads", "--procs"];

/// The words that start our side: those of this command without the ones for both sides.
fn own_words(
    words: impl Iterator<Item = String>,
    placement: Placement,
    json: &Path,
) -> Vec<String> {
    let mut own = Vec::new();
    let mut skip = false;
    for word in words {
        if std::mem::take(&mut skip) {
            continue;
        }
        let (flag, value) = word
            .split_once('=')
            .map_or((&*word, None), |(f, v)| (f, Some(v)));
        if WITH_VALUE.contains(&flag) {
            skip = value.is_none();
        } else if !WITHOUT.contains(&flag) {
            own.push(word);
        }
    }
    own.push(placement.flag().into());
    own.extend(["--json".into(), json.display().to_string()]);
    own
}

/// Refuses a measurement that cannot be compared.
fn check(kind: CollectiveKind, args: &collective::Args) -> Result<()> {
    let usage = |what: String, advice: &str| Err(Problem::new(Exit::Usage, what, advice).into());
    if kind != CollectiveKind::AllReduce {
        let what = format!("--beside nccl measures all-reduce, not {}", name(kind));
        return usage(what, "leave --beside away, or measure all-reduce");
    }
    if args.streams || args.from_kernel || args.engine.is_some() || args.wire != WireType::Same {
        let what = "--streams, --from-kernel, --engine and --wire ask for what NCCL has not".into();
        return usage(what, "leave them away, or --beside");
    }
    match Job::from_env() {
        Err(JobError::None) => usage::check(kind, args, args.ranks()),
        _ => usage(
            "--beside starts its ranks itself, and a launcher has started this one".into(),
            "start the command without a launcher",
        ),
    }
}

/// Runs both sides, one after the other.
pub(crate) fn run(kind: CollectiveKind, args: &collective::Args, which: Which) -> Result<Exit> {
    check(kind, args)?;
    let task = Task {
        ranks: args.ranks(),
        datatype: args.datatype,
        op: args.op,
        steps: steps_of(kind, &args.sweep, args.datatype, false, args.ranks())?,
        check: args.sweep.checks(),
        queued: args.queued,
        timeout_s: args.timeout,
        limit: Duration::from_secs(args.beside.nccl.limit),
    };
    // Before anything takes time.
    let ready = device().and_then(|device| {
        let found = find(&args.beside.nccl, device)?;
        Ok((device, found))
    });
    let ready = match (ready, which) {
        (Err(e), Which::Nccl) => return Err(e),
        (Err(e), Which::NcclIfFound) => Err(format!("{e:#}")),
        (Ok(ready), _) => Ok(ready),
    };
    let placement = match &ready {
        Ok((_, found)) => Placement::choose(args.threads, args.procs, found.version),
        // As beside an NCCL that supports both.
        Err(_) => Placement::choose(args.threads, args.procs, SEVERAL_RANKS),
    };
    let (mps, no_mps) = match &ready {
        Ok(_) => service(placement, args.beside.nccl.mps),
        Err(_) => (None, None),
    };
    let place = placement.describe(mps.as_ref().map(|m| m.whose.as_str()));
    let gpu = ready.as_ref().ok().map(|(n, _)| *n);
    let mut own = ours(placement, gpu, mps.as_ref(), task.limit)?;
    own.meta.notes.extend(no_mps);
    own.meta.notes.push(format!("placement: {place}"));
    own.meta.placement = Some(place.clone());
    keep(&own, &args.output)?;
    match &ready {
        Ok((n, found)) => {
            // One that fails does not stop the other.
            for carrier in Carrier::ALL {
                let pipe = mps.as_ref().and_then(Mps::pipe);
                let outcome = measure(&task, found, *n, carrier, placement, pipe.as_deref())?;
                own.meta.peers.push(peer(found, carrier, &place, outcome));
                keep(&own, &args.output)?;
            }
        }
        Err(why) => own.meta.peers.push(Peer {
            name: "NCCL".into(),
            placement: place,
            why: Some(why.clone()),
            ..Peer::default()
        }),
    }
    show(&own, args)?;
    let peers = &own.meta.peers;
    let wrong = |rows: &[crate::report::Row]| rows.iter().any(|r| r.wrong.unwrap_or(0) > 0);
    if wrong(&own.rows) || peers.iter().any(|p| wrong(&p.rows)) {
        return Ok(Exit::WrongData);
    }
    // Rows that an old NCCL does not support are no failure, unless it supports none.
    let missing = |p: &&Peer| p.rows.len() < 2 * task.steps.len();
    let failed = |p: &&Peer| !is_impossible(p.why.as_deref());
    let failed =
        peers.iter().filter(missing).any(|p| failed(&p)) || peers.iter().all(|p| p.rows.is_empty());
    Ok(match which {
        Which::Nccl if failed => Exit::Failed,
        _ => Exit::Ok,
    })
}

/// Writes the report so far: a caller that ends this command has that.
fn keep(own: &Report, output: &OutputArgs) -> Result<()> {
    let Some(path) = output.json.as_deref().filter(|p| *p != Path::new("-")) else {
        return Ok(());
    };
    let text = serde_json::to_string_pretty(own).context("cannot express the report as JSON")?;
    // Never half a report.
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    let written = std::fs::write(&part, text + "\n").and_then(|()| std::fs::rename(&part, path));
    written.with_context(|| {
        let path = path.display();
        format!("cannot write {path}; check the path given to --json")
    })
}

/// Runs our side: this command without the options for both sides.
fn ours(
    placement: Placement,
    gpu: Option<usize>,
    mps: Option<&Mps>,
    limit: Duration,
) -> Result<Report> {
    let folder = Folder::of_files("nccl")?;
    let json = folder.path().join("own.json");
    let exe = std::env::current_exe().context("cannot find this program's own file")?;
    let mut command = Command::new(exe);
    command
        .args(own_words(std::env::args().skip(1), placement, &json))
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    if let Some(n) = gpu {
        // The same GPU, or an error: never the emulated one beside NCCL on a real one.
        command.env(GPU_VARIABLE, format!("cuda:{n}"));
    }
    if let Some(pipe) = mps.and_then(Mps::pipe) {
        command.env("CUDA_MPS_PIPE_DIRECTORY", pipe);
    }
    let mut child = command.spawn().context("cannot start our own side")?;
    let deadline = Instant::now() + limit;
    let status = loop {
        match child.try_wait().context("cannot wait for our own side")? {
            Some(status) => break status,
            None if Instant::now() > deadline => {
                // The ranks that it has started end with it.
                let _ = child.kill();
                let _ = child.wait();
                let what = format!("our own side has not ended after {} s", limit.as_secs());
                let advice = "give a longer --limit, or fewer sizes";
                return Err(Problem::new(Exit::Failed, what, advice).into());
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    // With wrong data there is a report all the same.
    let text = std::fs::read_to_string(&json).with_context(|| {
        Problem::new(
            Exit::Failed,
            format!("our own side has ended with {status} and without a report"),
            "what it said stands above",
        )
    })?;
    serde_json::from_str(&text).context("our own report cannot be read")
}

/// A peer as a report of its own, for the table and the picture.
fn as_report(own: &Report, peer: &Peer) -> Report {
    let mut meta = machine::meta(&own.meta.benchmark);
    let version = peer.version.as_deref().unwrap_or("");
    meta.nic = format!("{} {version}", peer.name);
    meta.transport = peer.transport.clone();
    Report {
        meta,
        rows: peer.rows.clone(),
    }
}

fn show(own: &Report, args: &collective::Args) -> Result<()> {
    let mut reports = vec![own.clone()];
    let mut columns = vec![Column {
        name: "ringbell".into(),
        rows: medians(&own.rows),
    }];
    for p in &own.meta.peers {
        reports.push(as_report(own, p));
        columns.push(Column {
            name: match p.transport.as_str() {
                "" => p.name.clone(),
                t => format!("{} {t}", p.name),
            },
            rows: medians(&p.rows),
        });
    }
    let mut text = String::new();
    let told = own.meta.peers.iter().flat_map(notes);
    for note in own.meta.notes.iter().cloned().chain(told) {
        text += &format!("# {note}\n");
    }
    text += &table(&reports, &columns, true);
    let both = together(own, &columns);
    let how = plot(own, false);
    let output = OutputArgs {
        svg: None,
        ..args.output.clone()
    };
    emit_text(own, &text, &output, &how)?;
    if let Some(path) = &args.output.svg {
        std::fs::write(path, draw(&both, &how)?)
            .with_context(|| format!("cannot write {}; check the path", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_side_is_started_without_the_options_of_the_comparison() {
        let words = "perf all-reduce --beside nccl --nccl=/x -R 2 --limit 5 -b 1K --mps --json - --dedicated --procs";
        let own = own_words(
            words.split(' ').map(str::to_owned),
            Placement::Threads,
            Path::new("/t/own.json"),
        );
        assert_eq!(
            own.join(" "),
            "perf all-reduce -R 2 -b 1K --dedicated --threads --json /t/own.json"
        );
    }
}
