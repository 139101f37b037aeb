//! NCCL's all-reduce, measured as ours is: `ringbell perf all-reduce --beside nccl` (ADR 24).
//!
//! `library` finds NCCL and `binding` declares its functions; it is loaded when it is measured,
//! never linked. It runs in a process of its own (`worker`), with the ranks as threads and
//! variables of `environment`. The process gets its `order` in a line of JSON; `gather` reads its
//! output and ends it when its time is up. `rank` is the work of a rank, on a `device` without any
//! part of Ringbell. `beside` runs both sides in turn.

pub(super) mod beside;
mod binding;
mod device;
mod environment;
mod gather;
mod library;
mod order;
mod rank;
mod worker;

use anyhow::Result;
use ringbell::gpu::GpuChoice;

use self::environment::version_text;
use self::gather::{Found, Outcome, Unusable};
use self::library::{first, in_python, Candidate, NotFound, Passed};
use super::collective::beside::NcclArgs;
use crate::report::Peer;
use crate::{Exit, Problem};

/// The GPU that NCCL is to run on.
fn device() -> Result<usize> {
    match GpuChoice::Auto.resolve()? {
        GpuChoice::Cuda(n) => Ok(n),
        GpuChoice::Auto => Ok(0),
        GpuChoice::Emulated => Err(Problem::new(
            Exit::Environment,
            "NCCL needs a real GPU, and the emulated one was asked for",
            "give --gpu cuda, or leave NCCL away",
        )
        .into()),
    }
}

/// The first library that can be loaded, with its description and the GPU's. A named library is the
/// only candidate.
fn find(args: &NcclArgs, device: usize) -> Result<Found> {
    let asked = args.nccl.as_deref();
    let mut searched = Vec::new();
    if let Some(found) = try_one(&first(asked), device, &mut searched)? {
        return Ok(found);
    }
    let more = match asked {
        Some(_) => Vec::new(),
        None => in_python().unwrap_or_else(|none| {
            searched.push(none);
            Vec::new()
        }),
    };
    for place in more {
        if let Some(found) = try_one(&place, device, &mut searched)? {
            return Ok(found);
        }
    }
    Err(NotFound { searched }.problem().into())
}

/// Tries a place; the reason for passing it over is added to `searched`. Without a GPU the search
/// ends.
fn try_one(place: &Candidate, device: usize, searched: &mut Vec<Passed>) -> Result<Option<Found>> {
    match gather::look(&place.path, device) {
        Ok(found) => Ok(Some(found)),
        Err(Unusable::Gpu(why)) => {
            let advice = "`ringbell doctor` says what the GPU lacks; NCCL runs on real GPUs only";
            let what = format!("NCCL needs a GPU: {why}");
            Err(Problem::new(Exit::Environment, what, advice).into())
        }
        Err(Unusable::Library(why)) => {
            let name = format!("{} of {}", place.path.display(), place.said_by);
            searched.push(Passed::new(name, why));
            Ok(None)
        }
    }
}

/// Its part of a report.
fn peer(found: &Found, outcome: Outcome) -> Peer {
    Peer {
        name: "NCCL".into(),
        version: Some(version_text(found.version)),
        library: Some(found.library.display().to_string()),
        settings: outcome.settings,
        why: outcome.why,
        rows: outcome.rows,
    }
}

/// A peer's part in a few lines.
fn notes(peer: &Peer) -> Vec<String> {
    let version = peer.version.as_deref().unwrap_or("of no known version");
    let library = peer.library.as_deref().unwrap_or("not found");
    let mut lines = vec![format!("{} {version}: {library}", peer.name)];
    if !peer.settings.is_empty() {
        let set = peer.settings.iter().map(|(n, v)| format!("{n}={v}"));
        lines.push(format!("  with {}", set.collect::<Vec<_>>().join(" ")));
    }
    if let Some(why) = &peer.why {
        lines.push(format!("  not as asked: {why}"));
    }
    lines
}

/// The process that NCCL runs in.
pub(crate) fn work() -> Result<Exit> {
    worker::run()
}
