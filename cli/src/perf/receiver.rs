//! Process of the receiving side: started, watched, and named when it ends too early.
#![allow(clippy::disallowed_methods)] // The program: waits for its peer with a deadline.

use std::io::{BufRead as _, BufReader};
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{mpsc, Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail, Context, Result};
use ringbell::abi::{Descriptor, Opcode};

use crate::child::End;
use crate::scratch::Folder;
use crate::{stdio, Exit, Problem};
use ringbell_perf::side::Side;
use ringbell_perf::OperationFailed;

/// Longest wait for the other side to appear.
pub(super) const START: Duration = Duration::from_secs(20);
/// Interval between two checks of the process.
const LOOK: Duration = Duration::from_millis(20);
/// Longest time for it to end after the last plan, or after a loss that both sides report.
const END: Duration = Duration::from_secs(10);
/// Longest delay between an error and the detection of the process end that caused it.
const SEEN: Duration = Duration::from_millis(200);

/// The process, and the directory that both sides use. Dropping it ends the process.
pub(super) struct Receiver {
    child: Arc<Mutex<Child>>,
    /// From now on it may end.
    may_end: Arc<AtomicBool>,
    watch: Option<JoinHandle<()>>,
    /// Passes on what it says, to the last line.
    output: Option<JoinHandle<()>>,
    pub(super) folder: Folder,
}

impl Receiver {
    pub(super) fn new(child: Child, folder: Folder) -> Receiver {
        Receiver {
            child: Arc::new(Mutex::new(child)),
            may_end: Arc::new(AtomicBool::new(false)),
            watch: None,
            output: None,
            folder,
        }
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        lock(&self.child)
    }

    /// Its end, if it has ended.
    pub(super) fn ended(&self) -> Option<End> {
        self.child().try_wait().ok().flatten().map(End::from)
    }

    /// Waits until it listens; passes on its standard error.
    pub(super) fn ready(&mut self) -> Result<()> {
        let stderr = self.child().stderr.take();
        let stderr = stderr.ok_or_else(|| anyhow!("the child has no standard error"))?;
        let (send, receive) = mpsc::channel();
        let pass_on = move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                if line.starts_with("listening on ") {
                    let _ = send.send(());
                } else {
                    stdio::note(format_args!("receiver: {line}"));
                }
            }
        };
        let thread = std::thread::Builder::new().name("perf-output".into());
        let started = thread.spawn(pass_on);
        self.output =
            Some(started.context("cannot start a thread for the receiving process's output")?);
        let start = Instant::now();
        while start.elapsed() < START {
            match receive.recv_timeout(Duration::from_millis(50)) {
                Ok(()) => return Ok(()),
                // It has closed its standard error, so it ends.
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
            if let Some(end) = self.ended() {
                // It has printed the reason; this command exits with the same code.
                let what = format!("the receiving process {end} before it listened");
                let exit = match end.is_by_signal() {
                    true => Exit::Failed,
                    false => Exit::Program(end.code()),
                };
                return Err(Problem::new(exit, what, "read what it said, above").into());
            }
        }
        bail!("the receiving process did not start to listen within {START:?}")
    }

    /// From now on its end ends all sessions of our side: over TCP no other event would show it.
    pub(super) fn watch(&mut self, side: &Side) -> Result<()> {
        let (nic, queue) = (side.nic.clone(), side.nic.create_queue()?);
        let (child, may_end) = (self.child.clone(), self.may_end.clone());
        let watch = move || {
            // Relaxed: a flag, which orders nothing.
            while !may_end.load(Ordering::Relaxed) {
                if !matches!(lock(&child).try_wait(), Ok(None)) {
                    for session in nic.sessions() {
                        let mut d = Descriptor::new(Opcode::Abort);
                        d.session = session.id;
                        if let Err(error) = queue.call(&d) {
                            tracing::debug!(%error, "a session was gone before it was aborted");
                        }
                    }
                    return;
                }
                std::thread::sleep(LOOK);
            }
        };
        let thread = std::thread::Builder::new().name("perf-watch".into());
        let started = thread.spawn(watch);
        self.watch = Some(started.context("cannot start the thread that watches the receiver")?);
        Ok(())
    }

    /// Call before the last plan is sent: from then on it may end.
    pub(super) fn may_end(&self) {
        self.may_end.store(true, Ordering::Relaxed);
    }

    /// Waits for its end, after the last plan.
    pub(super) fn join(self) -> Result<()> {
        let start = Instant::now();
        while start.elapsed() < END {
            match self.ended() {
                Some(end) if end.is_success() => return Ok(()),
                Some(end) => bail!("the receiving process {end}"),
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        }
        bail!("the receiving process did not end; it was killed");
    }

    /// Ends it because of an error; returns the error, with its end in front when it had ended
    /// before.
    pub(super) fn blame(self, error: anyhow::Error) -> anyhow::Error {
        let failed = error.downcast_ref::<OperationFailed>();
        // Then it ends for the same reason, which it is to say as well.
        let is_loss = failed.is_some_and(OperationFailed::is_loss);
        let limit = if is_loss { END } else { SEEN };
        let pid = self.child().id();
        let start = Instant::now();
        loop {
            match self.ended() {
                Some(_) if is_loss => return error,
                Some(end) => {
                    return error.context(Problem::new(
                        Exit::Failed,
                        format!("the receiving process ({pid}) {end}"),
                        "see why it ended: its own words are above, signal 9 may be the system's for want of memory (`dmesg`)",
                    ))
                }
                None if start.elapsed() < limit => std::thread::sleep(Duration::from_millis(5)),
                None => return error,
            }
        }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.may_end();
        if let Some(watch) = self.watch.take() {
            let _ = watch.join();
        }
        let mut child = self.child();
        // A process that has ended already is only waited for.
        let _ = child.kill();
        let _ = child.wait();
        drop(child);
        // Its standard error is closed now.
        if let Some(output) = self.output.take() {
            let _ = output.join();
        }
    }
}

fn lock(child: &Mutex<Child>) -> MutexGuard<'_, Child> {
    // Nothing that holds the lock can panic half-way through a change.
    child.lock().unwrap_or_else(PoisonError::into_inner)
}
