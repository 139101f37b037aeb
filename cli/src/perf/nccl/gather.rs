//! Parent of NCCL's process: starts it, reads its output, and ends it when its time is up. Rows
//! that were measured before a failure stay, and the reason for missing rows is reported.
#![allow(clippy::disallowed_methods)] // The program: waits for its worker, with deadlines.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use rustix::process::{kill_process_group, Pid, Signal};

use super::super::collective::table::{IN_PLACE, OUT_OF_PLACE};
use super::super::collective::{bus_factor, Step};
use super::environment::{reported, too_old, variables};
use super::order::{Event, Order, Timed};
use crate::report::Row;

/// Longest wait for the other ranks' messages after one has failed: they may name the cause.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Longest time for communicators to be destroyed at the end.
const TEARDOWN: Duration = Duration::from_secs(5);
/// Longest time for a process to end when it is killed.
const END: Duration = Duration::from_secs(10);
/// Longest time for a check of a library and a GPU.
const LOOK: Duration = Duration::from_secs(60);
/// Lines of a worker that are kept for the reason of its end.
const KEPT: usize = 5;

/// Result of a check of a library.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) library: PathBuf,
    pub(super) version: i32,
    pub(super) sms: i32,
}

/// Why a library cannot be used.
#[derive(Debug)]
pub(super) enum Unusable {
    /// No library can be used: there is no GPU.
    Gpu(String),
    /// Another one might.
    Library(String),
}

/// Opens the GPU and loads a library, in a process of its own.
///
/// # Errors
/// Why that does not work.
pub(super) fn look(library: &Path, device: usize) -> Result<Found, Unusable> {
    let order = Order::look(library.to_owned(), device);
    let mut worker = Worker::start(&order, &BTreeMap::new()).map_err(Unusable::Library)?;
    let mut found = None;
    let mut failed = None;
    let deadline = Instant::now() + LOOK;
    while !worker.silent {
        match worker.next(deadline) {
            Some(Said::Event(Event::Loaded { version, sms })) => {
                let library = library.to_owned();
                found = Some(Found {
                    library,
                    version,
                    sms,
                });
            }
            Some(Said::Event(Event::NoGpu { why })) => return Err(Unusable::Gpu(why)),
            Some(Said::Event(Event::Failed { why, .. })) => failed = Some(why),
            Some(_) => {}
            None => {
                let why = format!("it cannot be loaded within {} s", LOOK.as_secs());
                return Err(Unusable::Library(why));
            }
        }
    }
    match (failed, found) {
        (Some(why), _) => Err(Unusable::Library(why)),
        (None, Some(found)) => match too_old(found.version) {
            Some(why) => Err(Unusable::Library(why)),
            None => Ok(found),
        },
        (None, None) => Err(Unusable::Library(worker.end())),
    }
}

/// Result of a sweep.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) rows: Vec<Row>,
    pub(super) settings: BTreeMap<String, String>,
    /// Why rows are missing.
    pub(super) why: Option<String>,
}

/// Runs the order on a GPU with so many multiprocessors, for at most `limit`.
pub(super) fn run(order: &Order, sms: i32, limit: Duration) -> Outcome {
    let vars = variables(order.ranks, sms);
    let mut state = State::default();
    let why = match Worker::start(order, &vars) {
        Ok(mut worker) => listen(&mut worker, order, limit, &mut state).err(),
        Err(why) => Some(why),
    };
    Outcome {
        rows: state.rows(order),
        settings: reported(&vars),
        why,
    }
}

/// The ranks' messages so far.
#[derive(Debug, Default)]
struct State {
    up: BTreeSet<u32>,
    done: BTreeSet<u32>,
    ended: BTreeSet<u32>,
    times: BTreeMap<(u64, bool), BTreeMap<u32, Timed>>,
}

impl State {
    /// Sizes that all ranks have finished: the slowest one's times.
    fn rows(&self, order: &Order) -> Vec<Row> {
        let mut rows = Vec::new();
        for step in &order.steps {
            for in_place in [false, true] {
                let Some(times) = self.times.get(&(step.bytes, in_place)) else {
                    continue;
                };
                if times.len() == order.ranks as usize {
                    rows.push(row(step, in_place, order.ranks, times));
                }
            }
        }
        rows
    }

    /// The event that was missing when the time was up.
    fn waiting_for(&self, order: &Order) -> String {
        if self.up.len() < order.ranks as usize {
            let missing: Vec<String> = (0..order.ranks)
                .filter(|r| !self.up.contains(r))
                .map(|r| r.to_string())
                .collect();
            return format!(
                "the communicator has not come up (rank(s) {} are missing)",
                missing.join(", ")
            );
        }
        let full = |step: &Step, in_place: bool| {
            let times = self.times.get(&(step.bytes, in_place));
            times.is_some_and(|t| t.len() == order.ranks as usize)
        };
        for step in &order.steps {
            for (in_place, form) in [(false, OUT_OF_PLACE), (true, IN_PLACE)] {
                if !full(step, in_place) {
                    return format!("{} bytes, {form}, are not done", step.bytes);
                }
            }
        }
        "all sizes are done, but the communicator is not destroyed".into()
    }
}

fn row(step: &Step, in_place: bool, ranks: u32, times: &BTreeMap<u32, Timed>) -> Row {
    let most = |of: fn(&Timed) -> f64| times.values().map(of).fold(0.0, f64::max);
    let p50_us = most(|t| t.p50_us);
    let gbs = step.bytes as f64 / p50_us.max(1e-3) / 1e3;
    Row {
        series: Some(if in_place { IN_PLACE } else { OUT_OF_PLACE }.into()),
        size_bytes: step.bytes,
        elements: Some(step.count),
        count: step.iters,
        time_us: most(|t| t.mean_us),
        p50_us,
        p99_us: most(|t| t.p99_us),
        algbw_gbs: gbs,
        busbw_gbs: gbs * bus_factor(ringbell::comm::CollectiveKind::AllReduce, ranks),
        wrong: times.values().map(|t| t.wrong).sum(),
        ..Row::default()
    }
}

fn listen(
    worker: &mut Worker,
    order: &Order,
    limit: Duration,
    state: &mut State,
) -> Result<(), String> {
    let start = Instant::now();
    let (end, up) = (start + limit, start + Duration::from_secs(order.timeout_s));
    let mut failed: Option<String> = None;
    let mut deadline = end;
    while !worker.silent {
        let all_up = state.up.len() == order.ranks as usize;
        let all_ended = state.ended.len() == order.ranks as usize;
        let until = if all_up { deadline } else { deadline.min(up) };
        match worker.next(until) {
            None if failed.is_some() || all_ended => break,
            None => {
                let waited = start.elapsed().as_secs();
                let what = state.waiting_for(order);
                return Err(format!("ended after {waited} s: {what}"));
            }
            Some(Said::Event(event)) => match event {
                Event::Up { rank } => drop(state.up.insert(rank)),
                Event::Row {
                    rank,
                    bytes,
                    in_place,
                    timed,
                } => {
                    let times = state.times.entry((bytes, in_place)).or_default();
                    times.insert(rank, timed);
                }
                Event::Done { rank } => {
                    state.done.insert(rank);
                    if state.done.len() == order.ranks as usize {
                        deadline = end.min(Instant::now() + TEARDOWN);
                    }
                }
                Event::Ended { rank } => drop(state.ended.insert(rank)),
                Event::Failed { rank, why } => {
                    let who = rank.map_or_else(String::new, |r| format!("rank {r}: "));
                    let said = failed.get_or_insert_with(String::new);
                    if !said.is_empty() {
                        said.push_str("; ");
                    }
                    *said += &format!("{who}{why}");
                    deadline = deadline.min(Instant::now() + LAST_WORDS);
                }
                Event::NoGpu { why } => {
                    failed.get_or_insert(why);
                }
                Event::Loaded { .. } => {}
            },
            Some(Said::End) => {
                if !all_ended && failed.is_none() {
                    failed = Some(worker.end());
                }
            }
            Some(Said::Line(_)) => {}
        }
    }
    match failed {
        Some(why) => Err(why),
        None => Ok(()),
    }
}

/// The worker's output.
enum Said {
    Event(Event),
    /// A line that is no event, on either of its outputs.
    Line(String),
    /// Its standard output has ended.
    End,
}

/// The process of a run. Dropping it ends the process.
struct Worker {
    child: Child,
    said: Receiver<Said>,
    /// Whether its standard output has ended.
    silent: bool,
    /// Its last lines that are no events.
    lines: VecDeque<String>,
}

impl Worker {
    fn start(order: &Order, vars: &BTreeMap<String, String>) -> Result<Worker, String> {
        let exe = std::env::current_exe().map_err(|e| format!("this program has no path: {e}"))?;
        let line = serde_json::to_string(order).map_err(|e| e.to_string())? + "\n";
        let mut child = Command::new(&exe)
            .args(["perf", "nccl-worker"])
            .envs(vars)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Processes that NCCL starts itself are ended with it.
            .process_group(0)
            .spawn()
            .map_err(|e| format!("cannot start {}: {e}", exe.display()))?;
        if let Some(mut to) = child.stdin.take() {
            // A worker that is gone already is reported by its end.
            let _ = to.write_all(line.as_bytes());
        }
        let (tell, said) = channel();
        if let Some(out) = child.stdout.take() {
            read_lines(out, tell.clone(), true);
        }
        if let Some(err) = child.stderr.take() {
            read_lines(err, tell, false);
        }
        Ok(Worker {
            child,
            said,
            silent: false,
            lines: VecDeque::new(),
        })
    }

    /// The next output; `None` when none has come until the deadline.
    fn next(&mut self, deadline: Instant) -> Option<Said> {
        let wait = deadline.saturating_duration_since(Instant::now());
        match self.said.recv_timeout(wait) {
            Ok(said) => {
                match &said {
                    Said::End => self.silent = true,
                    Said::Line(text) => {
                        self.lines.push_back(text.clone());
                        if self.lines.len() > KEPT {
                            self.lines.pop_front();
                        }
                    }
                    Said::Event(_) => {}
                }
                Some(said)
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => None,
        }
    }

    /// The end of the process, whose output has ended, in words.
    fn end(&mut self) -> String {
        let deadline = Instant::now() + END;
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break Some(status),
                Ok(None) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                _ => break None,
            }
        };
        // Its last lines may come behind its end.
        let soon = Instant::now() + Duration::from_millis(100);
        while self.next(soon).is_some() {}
        let how = match status {
            None => "does not end".to_owned(),
            Some(s) => match (s.code(), s.signal()) {
                (Some(code), _) => format!("has ended with status {code}"),
                (None, Some(signal)) => format!("was ended by signal {signal}"),
                (None, None) => "has ended".to_owned(),
            },
        };
        let mut text = format!("its process {how}");
        for line in &self.lines {
            text += &format!("; it said `{line}`");
        }
        text
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            if let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
                let _ = kill_process_group(group, Signal::KILL);
            }
        }
        // The process may be in the driver for a while, which has to stop its kernels.
        let deadline = Instant::now() + END;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn read_lines(from: impl Read + Send + 'static, to: Sender<Said>, events: bool) {
    let (thread, failed) = (std::thread::Builder::new(), to.clone());
    let read = move || {
        let mut from = BufReader::new(from);
        let mut bytes = Vec::new();
        // Bytes, not text: NCCL may print bytes that are no UTF-8.
        while from.read_until(b'\n', &mut bytes).is_ok_and(|n| n > 0) {
            let text = String::from_utf8_lossy(&bytes).trim().to_owned();
            bytes.clear();
            let event = match events {
                true => serde_json::from_str(&text).ok(),
                false => None,
            };
            let said = match event {
                Some(event) => Said::Event(event),
                None if text.is_empty() => continue,
                None => Said::Line(text),
            };
            if to.send(said).is_err() {
                return;
            }
        }
        if events {
            let _ = to.send(Said::End);
        }
    };
    if let Err(error) = thread.name("nccl-output".into()).spawn(read) {
        let _ = failed.send(Said::Line(format!("no thread reads what it says: {error}")));
        let _ = failed.send(Said::End);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timed(p50_us: f64, wrong: Option<u64>) -> Timed {
        Timed {
            mean_us: p50_us,
            p50_us,
            p99_us: p50_us,
            wrong,
        }
    }

    #[test]
    fn a_row_combines_all_ranks_by_the_slowest() {
        let mut order = Order::look("x".into(), 0);
        order.ranks = 2;
        order.steps = vec![Step {
            bytes: 1000,
            count: 250,
            warmup: 1,
            iters: 3,
        }];
        let mut state = State::default();
        assert!(state
            .waiting_for(&order)
            .contains("rank(s) 0, 1 are missing"));
        state.up.extend([0, 1]);
        let times = state.times.entry((1000, false)).or_default();
        times.insert(0, timed(2.0, Some(0)));
        assert!(state.rows(&order).is_empty(), "one rank is no row");
        let missing = state.waiting_for(&order);
        assert!(missing.contains("1000 bytes, out of place"), "{missing}");
        let times = state.times.entry((1000, false)).or_default();
        times.insert(1, timed(4.0, Some(3)));
        let rows = state.rows(&order);
        assert_eq!((rows[0].p50_us, rows[0].wrong), (4.0, Some(3)));
        assert_eq!(rows[0].busbw_gbs, 0.25);
        assert!(state.waiting_for(&order).contains("in place"));
    }
}
