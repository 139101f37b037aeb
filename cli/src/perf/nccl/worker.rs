//! Process that NCCL runs in: `ringbell perf nccl-worker`, which only this program starts.

use std::io::{BufRead as _, Write as _};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{set_parent_process_death_signal, Signal};

use super::binding::Nccl;
use super::device::Device;
use super::order::{Event, Order};
use super::rank;
use crate::Exit;

/// Writes a line on standard output. Its reader may be gone: then this process ends.
fn tell(lines: &Mutex<std::io::Stdout>, event: &Event) {
    let Ok(mut line) = serde_json::to_string(event) else {
        return;
    };
    line.push('\n');
    let mut out = lines.lock().unwrap_or_else(PoisonError::into_inner).lock();
    let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
}

/// The order, in the first line of standard input.
fn order() -> Result<Order> {
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line);
    read.context("cannot read standard input")?;
    serde_json::from_str(&line).context(
        "the first line is no order; `ringbell perf all-reduce --beside nccl` starts this itself",
    )
}

/// Executes the order in the first line of standard input.
pub(super) fn run() -> Result<Exit> {
    // It ends when the program that has started it is killed.
    set_parent_process_death_signal(Some(Signal::KILL)).context("cannot follow the parent")?;
    let order = order()?;
    let lines = Mutex::new(std::io::stdout());
    let fail = |rank: Option<u32>, why: String| {
        tell(&lines, &Event::Failed { rank, why });
        Ok(Exit::Failed)
    };
    // Before the library: without a GPU no library is of use.
    let timeout = Duration::from_secs(order.timeout_s);
    let sms = Device::open(order.device, timeout).and_then(|d| d.sms());
    let sms = match sms {
        Ok(sms) => sms,
        Err(e) => {
            let why = e.to_string();
            tell(&lines, &Event::NoGpu { why });
            return Ok(Exit::Environment);
        }
    };
    let loaded = Nccl::load(&order.library).and_then(|n| Ok((n.version()?, n)));
    let (version, nccl) = match loaded {
        Ok(loaded) => loaded,
        Err(e) => return fail(None, e.to_string()),
    };
    tell(&lines, &Event::Loaded { version, sms });
    if order.ranks == 0 {
        return Ok(Exit::Ok);
    }
    let id = match nccl.unique_id() {
        Ok(id) => id,
        Err(e) => return fail(Some(0), e.to_string()),
    };
    let failed = std::thread::scope(|scope| {
        let ranks = (0..order.ranks).map(|rank| {
            let (nccl, order, id, lines) = (&nccl, &order, &id, &lines);
            let run = move || {
                let done = rank::run(nccl, order, rank, id, &|event| tell(lines, &event));
                if let Err(e) = &done {
                    let why = e.to_string();
                    let rank = Some(rank);
                    tell(lines, &Event::Failed { rank, why });
                }
                done.is_err()
            };
            let started = std::thread::Builder::new().spawn_scoped(scope, run);
            started.inspect_err(|e| {
                let why = format!("cannot start a thread: {e}");
                let rank = Some(rank);
                tell(lines, &Event::Failed { rank, why });
            })
        });
        let ranks: Vec<_> = ranks.collect();
        // A rank that panics counts as one that failed.
        let ended = |r: std::thread::ScopedJoinHandle<'_, bool>| r.join().unwrap_or(true);
        ranks.into_iter().any(|r| r.map_or(true, ended))
    });
    Ok(if failed { Exit::Failed } else { Exit::Ok })
}
