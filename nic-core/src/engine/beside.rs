//! Taps beside the copy: a thread of the NIC runs them on the bytes of one run, while the thread
//! that steps copies the next.
//!
//! A *run* is what one step moves from a peer's memory to one receive. At its begin the taps move
//! to the worker, with their place in the stream. The copy stores each piece twice, as on one
//! thread: to the receive's buffer, and to one of [`RING`] pieces that go round between the two
//! threads. At its end the step waits for the worker, and the taps move back. So between steps
//! every engine is in its place: results, detaching and completions know nothing of the worker.
//!
//! A tap that panics has failed, as on the thread of the step. One that gives no sign for
//! [`PATIENCE`] stays with the worker and has failed; the NIC goes on without both.
#![allow(clippy::disallowed_methods)] // The edge: runs are timed, to choose their thread.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam::channel::{bounded, Receiver, RecvTimeoutError, Sender, TryRecvError};
use rustix::thread::{sched_getaffinity, sched_setaffinity, CpuSet};

use super::running::Running;
use super::PIECE;
use crate::config::EngineThread;

/// Bytes of a piece of the ring.
pub(super) const BESIDE: usize = 64 << 10;
/// Pieces of the ring.
const RING: usize = 4;
/// Shorter runs stay on one thread.
pub(super) const SHORTEST: usize = 256 << 10;
/// How long both threads look for each other's next message without a pause, and then with yields:
/// the gap between two runs of a busy stream. Then they sleep. On some virtual machines waking one
/// takes as long as half a run.
const LOOK: (Duration, Duration) = (Duration::from_micros(20), Duration::from_micros(200));
/// Looks between two readings of the clock.
const LOOKS: u32 = 64;
/// Without a sign of the worker for so many slices the engine hangs. Slices, because a stopped
/// process loses one at most.
const PATIENCE: (u32, Duration) = (50, Duration::from_millis(100));

/// A tap on its way, with its place in the stream.
pub(super) struct Seat {
    pub(super) running: Running,
    pub(super) begun: Vec<u8>,
    pub(super) item: usize,
}

impl Seat {
    /// Takes a tap from its place.
    pub(super) fn take(running: &mut Running, begun: &mut Vec<u8>, item: usize) -> Seat {
        Seat {
            running: running.take(),
            begun: std::mem::take(begun),
            item,
        }
    }
}

/// That of the operation's owner, and that of the path.
pub(super) type Seats = Box<[Option<Seat>; 2]>;

enum Job {
    /// The taps, and the core of the copy.
    Begin(Seats, usize),
    /// The first bytes of the piece.
    Piece(Vec<u8>, usize),
    End,
}

enum Done {
    Piece(Vec<u8>),
    Seats(Seats),
}

/// A long run of a peer's bytes under way, which taps see.
pub(super) struct Run {
    /// On the worker, until that hangs.
    pub(super) beside: bool,
    /// The piece that is copied to.
    pub(super) piece: Option<Vec<u8>>,
    /// Around the cache.
    pub(super) streaming: bool,
    pub(super) bytes: u64,
    pub(super) since: Instant,
}

impl Run {
    pub(super) fn new(beside: bool, streaming: bool) -> Run {
        Run {
            beside,
            piece: None,
            streaming,
            bytes: 0,
            since: Instant::now(),
        }
    }
}

/// The thread, its channels, and the pieces that are here.
struct Worker {
    jobs: Sender<Job>,
    done: Receiver<Done>,
    thread: JoinHandle<()>,
    pieces: Vec<Vec<u8>>,
}

/// The worker of a NIC, started by the first run that needs it.
pub(super) struct Beside {
    setting: EngineThread,
    worker: Option<Worker>,
    /// Whether there can be a worker: a core for it, a thread, and none that hangs. Unknown before
    /// the first long run.
    possible: Option<bool>,
    /// Where runs are, in the cache and around it.
    paces: [Pace; 2],
}

impl Beside {
    pub(super) fn new(setting: EngineThread) -> Beside {
        Beside {
            setting,
            worker: None,
            possible: None,
            paces: [Pace::new(), Pace::new()],
        }
    }

    /// Whether the next run is for the worker.
    pub(super) fn is_chosen(&mut self, streaming: bool) -> bool {
        let chosen = match self.setting {
            EngineThread::Off => false,
            EngineThread::Always => true,
            EngineThread::Auto => self.paces[usize::from(streaming)].is_beside_next(),
        };
        chosen && *self.possible.get_or_insert_with(|| self.setting.has_core())
    }

    /// Moves taps to the worker.
    ///
    /// # Errors
    /// The same taps: there is no worker.
    pub(super) fn begin(&mut self, seats: Seats) -> Result<(), Seats> {
        if self.worker.is_none() {
            self.worker = Worker::start();
        }
        let Some(w) = &self.worker else {
            self.possible = Some(false);
            return Err(seats);
        };
        let begin = Job::Begin(seats, rustix::thread::sched_getcpu());
        w.jobs.send(begin).map_err(|e| match e.0 {
            Job::Begin(seats, _) => seats,
            _ => Seats::default(),
        })
    }

    /// A piece to copy to.
    pub(super) fn piece(&mut self) -> Option<Vec<u8>> {
        let w = self.worker.as_mut()?;
        if let Some(piece) = w.pieces.pop() {
            return Some(piece);
        }
        match w.answer() {
            Some(Done::Piece(piece)) => Some(piece),
            _ => self.abandon(),
        }
    }

    /// The first bytes of a piece are for the taps.
    pub(super) fn give(&mut self, piece: Vec<u8>, len: usize) {
        if let Some(w) = &self.worker {
            // A worker that is gone gives no answer to what comes next.
            let _ = w.jobs.send(Job::Piece(piece, len));
        }
    }

    /// A piece that was not used.
    pub(super) fn put_back(&mut self, piece: Vec<u8>) {
        if let Some(w) = &mut self.worker {
            w.pieces.push(piece);
        }
    }

    /// Waits until the taps have seen all pieces.
    pub(super) fn end(&mut self) -> Option<Seats> {
        let w = self.worker.as_mut()?;
        let _ = w.jobs.send(Job::End);
        loop {
            match w.answer() {
                Some(Done::Piece(piece)) => w.pieces.push(piece),
                Some(Done::Seats(seats)) => return Some(seats),
                None => return self.abandon(),
            }
        }
    }

    /// Notes what a run took.
    pub(super) fn ran(&mut self, run: &Run) {
        // One that was cut short says nothing.
        if self.setting == EngineThread::Auto && run.bytes >= SHORTEST as u64 {
            let ps = run.since.elapsed().as_nanos() as u64 * 1000 / run.bytes;
            self.paces[usize::from(run.streaming)].ran(run.beside, ps.max(1));
        }
    }

    /// Goes on without the worker, and without what it has. There is no second one: each could hang
    /// as well.
    #[cold]
    fn abandon<T>(&mut self) -> Option<T> {
        tracing::error!("an engine hangs; its thread is abandoned, and engines share the thread of the copy from now on");
        self.worker = None;
        self.possible = Some(false);
        None
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        if let Some(w) = self.worker.take() {
            // It ends with its channel. Between two steps it has nothing to do.
            drop((w.jobs, w.done));
            let _ = w.thread.join();
        }
    }
}

impl EngineThread {
    /// Whether a second thread can have a core at all.
    fn has_core(self) -> bool {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        self == EngineThread::Always || cores > 1
    }
}

impl Worker {
    fn start() -> Option<Worker> {
        // Never full: one message for each piece, begin and end.
        let (jobs, to_do) = bounded(RING + 2);
        let (back, done) = bounded(RING + 2);
        let thread = std::thread::Builder::new()
            .name("ringbell-engine".into())
            .spawn(move || work(&to_do, &back))
            .inspect_err(|error| tracing::warn!(%error, "no thread for engines"))
            .ok()?;
        Some(Worker {
            jobs,
            done,
            thread,
            pieces: vec![vec![0; BESIDE]; RING],
        })
    }

    /// The worker's next message; `None`: it hangs, or is gone.
    fn answer(&self) -> Option<Done> {
        match look(&self.done) {
            Ok(done) => return Some(done),
            Err(TryRecvError::Disconnected) => return None,
            Err(TryRecvError::Empty) => {}
        }
        for _ in 0..PATIENCE.0 {
            match self.done.recv_timeout(PATIENCE.1) {
                Ok(done) => return Some(done),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
        None
    }
}

/// Looks for a message for a while.
fn look<T>(from: &Receiver<T>) -> Result<T, TryRecvError> {
    let start = Instant::now();
    loop {
        for _ in 0..LOOKS {
            match from.try_recv() {
                Err(TryRecvError::Empty) => std::hint::spin_loop(),
                other => return other,
            }
        }
        let waited = start.elapsed();
        if waited > LOOK.1 {
            return Err(TryRecvError::Empty);
        }
        if waited > LOOK.0 {
            std::thread::yield_now();
        }
    }
}

/// The cores of the worker. The system wakes a thread on the core of the one that wakes it when all
/// others are busy, also when those only wait for a message and give way. There, copy and engine
/// would take turns.
struct Cores {
    all: Option<CpuSet>,
    left: Option<usize>,
}

impl Cores {
    fn new() -> Cores {
        Cores {
            all: sched_getaffinity(None).ok(),
            left: None,
        }
    }

    /// Leaves the core of the copy alone, if there is another.
    fn leave(&mut self, copy: usize) {
        let Some(mut others) = self.all.filter(|_| self.left != Some(copy)) else {
            return;
        };
        self.left = Some(copy);
        if copy < CpuSet::MAX_CPU {
            others.unset(copy);
        }
        if others.count() > 0 {
            // A core that has gone meanwhile: the worker stays where it is.
            let _ = sched_setaffinity(None, &others);
        }
    }
}

/// The worker's body.
fn work(jobs: &Receiver<Job>, back: &Sender<Done>) {
    let mut seats = Seats::default();
    let mut cores = Cores::new();
    while let Ok(job) = look(jobs).or_else(|_| jobs.recv()) {
        let done = match job {
            Job::Begin(new, copy) => {
                seats = new;
                cores.leave(copy);
                continue;
            }
            Job::Piece(piece, len) => {
                for Seat {
                    running,
                    begun,
                    item,
                } in seats.iter_mut().flatten()
                {
                    for bytes in piece[..len].chunks(PIECE) {
                        running.tap(begun, *item, bytes);
                    }
                }
                Done::Piece(piece)
            }
            Job::End => Done::Seats(std::mem::take(&mut seats)),
        };
        if back.send(done).is_err() {
            return;
        }
    }
}

/// Runs between two trials of the other way: at first, and at most. A trial that has failed doubles
/// them.
const HOLD: (u32, u32) = (8, 1024);
/// Runs of a trial. The first wakes the worker, and is not counted.
const TRIAL: u32 = 4;

/// What runs took without the worker and with it, and so where the next one is.
///
/// Whether a core is free, and whether the engine is worth one, shows in the time of a run, and in
/// nothing else as exactly: counts of lost cores tell nothing of the time that bytes take from core
/// to core.
#[derive(Debug)]
struct Pace {
    /// Picoseconds for a byte, without the worker and with it; 0: unknown.
    took: [u64; 2],
    beside: bool,
    /// Runs since the last decision, and of the trial.
    runs: u32,
    trial: u32,
    /// Runs before the next trial.
    hold: u32,
}

impl Pace {
    fn new() -> Pace {
        Pace {
            took: [0; 2],
            beside: false,
            runs: 0,
            trial: 0,
            hold: HOLD.0,
        }
    }

    fn is_beside_next(&self) -> bool {
        self.beside != (self.runs >= self.hold)
    }

    fn ran(&mut self, beside: bool, ps: u64) {
        let took = &mut self.took[usize::from(beside)];
        if beside == self.beside {
            *took = match *took {
                0 => ps,
                // A thread that has lost its core once says little of the next runs.
                old => (old * 7 + ps.min(2 * old)) / 8,
            };
            self.runs += 1;
            if beside && self.took[1] > self.took[0] {
                // The core is no longer free.
                self.decide(false, HOLD.0);
            }
            return;
        }
        self.trial += 1;
        match self.trial {
            1 => return,
            2 => *took = ps,
            // Their mean.
            n => *took = (*took * u64::from(n - 2) + ps) / u64::from(n - 1),
        }
        if self.trial == TRIAL {
            // Less than a twentieth is noise, and not worth another core's time.
            match *took * 20 < self.took[usize::from(self.beside)] * 19 {
                true => self.decide(beside, HOLD.0),
                false => self.decide(self.beside, (self.hold * 2).min(HOLD.1)),
            }
        }
    }

    fn decide(&mut self, beside: bool, hold: u32) {
        (self.beside, self.hold, self.runs, self.trial) = (beside, hold, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs of these times for a byte, without the worker and with it: how many were with it.
    fn runs(pace: &mut Pace, n: u32, took: [u64; 2]) -> u32 {
        let mut with = 0;
        for _ in 0..n {
            let beside = pace.is_beside_next();
            pace.ran(beside, took[usize::from(beside)]);
            with += u32::from(beside);
        }
        with
    }

    #[test]
    fn a_faster_worker_gets_nearly_all_runs_and_loses_them_when_its_core_is_taken() {
        let mut pace = Pace::new();
        let with = runs(&mut pace, 2000, [250, 200]);
        assert!(with > 1950, "{with}");
        let with = runs(&mut pace, 2000, [250, 600]);
        assert!(with < 60, "{with}");
        // It is tried again.
        let with = runs(&mut pace, 4000, [250, 200]);
        assert!(with > 2500, "{with}");
    }

    #[test]
    fn a_worker_that_gains_nothing_is_tried_rarely() {
        let mut pace = Pace::new();
        let with = runs(&mut pace, 4000, [250, 245]);
        assert!(with < 50, "{with}");
    }

    #[test]
    fn one_long_run_changes_nothing() {
        let mut pace = Pace::new();
        runs(&mut pace, 100, [250, 200]);
        assert!(pace.beside);
        pace.ran(true, 100_000);
        assert!(pace.beside);
    }
}
