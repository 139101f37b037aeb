//! `ringbell perf all-reduce --beside nccl`: ours, then NCCL's, one after the other, each in a
//! process of its own with the ranks as its threads. Sizes, data and the way of timing are the
//! same.
#![allow(clippy::disallowed_methods)] // The program: waits for our own side, with a deadline.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ringbell::comm::{CollectiveKind, WireType};
use ringbell::gpu::GPU_VARIABLE;
use ringbell::job::JobError;
use ringbell::Job;

use super::super::collective::args::{name, spelled, Args};
use super::super::collective::beside::Which;
use super::super::collective::{steps_of, usage, Step};
use super::super::compare::{medians, plot, table, together, Column};
use super::binding::codes;
use super::gather::{self, Found};
use super::order::Order;
use super::{device, find, notes, peer};
use crate::report::{draw, emit_text, Meta, OutputArgs, Peer, Report};
use crate::scratch::Folder;
use crate::{Exit, Problem};

/// Flags that are ours alone, with a value behind them or without; our side is started with the
/// others.
const WITH_VALUE: [&str; 6] = ["--beside", "--nccl", "--limit", "--json", "--svg", "--gpu"];
const WITHOUT: [&str; 1] = ["--threads"];

/// The words that start our side: those of this command without the ones for both sides.
fn own_words(words: impl Iterator<Item = String>, json: &Path) -> Vec<String> {
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
    let json = json.display().to_string();
    own.extend(["--threads".into(), "--json".into(), json]);
    own
}

/// Refuses a measurement that cannot be compared.
fn check(kind: CollectiveKind, args: &Args) -> Result<()> {
    let usage = |what: String, advice: &str| Err(Problem::new(Exit::Usage, what, advice).into());
    if kind != CollectiveKind::AllReduce {
        let what = format!("--beside nccl measures all-reduce, not {}", name(kind));
        return usage(what, "leave --beside away, or measure all-reduce");
    }
    if args.streams || args.from_kernel || args.engine.is_some() || args.wire != WireType::Same {
        let what = "--streams, --from-kernel, --engine and --wire ask for what NCCL has not".into();
        return usage(what, "leave them away, or --beside");
    }
    if let Err(e) = codes(args.datatype, args.op) {
        let advice = "give other elements by -d or another --op, or leave --beside away";
        return usage(e.to_string(), advice);
    }
    if args.procs || args.queued {
        let what = "--beside measures ranks that are threads, one operation at a time".into();
        return usage(what, "leave --procs and --queued away, or --beside");
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
pub(crate) fn run(kind: CollectiveKind, args: &Args, which: Which) -> Result<Exit> {
    check(kind, args)?;
    let steps = steps_of(kind, &args.sweep, args.datatype, false, args.ranks())?;
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
    let limit = Duration::from_secs(args.beside.nccl.limit);
    let gpu = ready.as_ref().ok().map(|(n, _)| *n);
    let mut own = ours(gpu, limit)?;
    keep(&own, &args.output)?;
    let all = 2 * steps.len();
    own.meta.peers = vec![match ready {
        Ok((device, found)) => nccl(args, steps, device, &found, limit),
        Err(why) => Peer {
            name: "NCCL".into(),
            why: Some(why),
            ..Peer::default()
        },
    }];
    keep(&own, &args.output)?;
    show(&own, args)?;
    let theirs = own.meta.peers.iter().flat_map(|p| &p.rows);
    let done = theirs.clone().count();
    if own
        .rows
        .iter()
        .chain(theirs)
        .any(|r| r.wrong.unwrap_or(0) > 0)
    {
        return Ok(Exit::WrongData);
    }
    Ok(match which {
        Which::Nccl if done < all => Exit::Failed,
        _ => Exit::Ok,
    })
}

/// NCCL's part.
fn nccl(args: &Args, steps: Vec<Step>, device: usize, found: &Found, limit: Duration) -> Peer {
    let order = Order {
        library: found.library.clone(),
        device,
        ranks: args.ranks(),
        dtype: spelled(args.datatype.name()),
        op: spelled(args.op.name()),
        steps,
        check: args.sweep.checks(),
        timeout_s: args.timeout,
    };
    peer(found, gather::run(&order, found.sms, limit))
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
fn ours(gpu: Option<usize>, limit: Duration) -> Result<Report> {
    let folder = Folder::of_files("nccl")?;
    let json = folder.path().join("own.json");
    let exe = std::env::current_exe().context("cannot find this program's own file")?;
    let mut command = Command::new(exe);
    command
        .args(own_words(std::env::args().skip(1), &json))
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    if let Some(n) = gpu {
        // The same GPU, or an error: never the emulated one beside NCCL on a real one.
        command.env(GPU_VARIABLE, format!("cuda:{n}"));
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
    let mut meta = Meta::new(&own.meta.benchmark);
    let version = peer.version.as_deref().unwrap_or("");
    meta.nic = format!("{} {version}", peer.name);
    meta.transport = "shm".into();
    Report {
        meta,
        rows: peer.rows.clone(),
    }
}

fn show(own: &Report, args: &Args) -> Result<()> {
    let mut reports = vec![own.clone()];
    let mut columns = vec![Column {
        name: "ringbell".into(),
        rows: medians(&own.rows),
    }];
    for p in &own.meta.peers {
        reports.push(as_report(own, p));
        columns.push(Column {
            name: p.name.clone(),
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
        let words = "perf all-reduce --beside nccl --nccl=/x -R 2 --limit 5 -b 1K --threads --json - --dedicated";
        let own = own_words(
            words.split(' ').map(str::to_owned),
            Path::new("/t/own.json"),
        );
        assert_eq!(
            own.join(" "),
            "perf all-reduce -R 2 -b 1K --dedicated --threads --json /t/own.json"
        );
    }
}
