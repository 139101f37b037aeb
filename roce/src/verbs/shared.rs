//! The lock around a context's machinery, and the thread that drives it while no program polls.
//!
//! A program that polls drives the machinery itself, so that its latency is that of polling. The
//! thread sleeps on the socket. While a program polls, packets that wake the thread are already
//! taken: after some such wake-ups it naps instead. When a nap has delayed packets, because the
//! program waits by reading its memory, the thread is much slower to nap again.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};

use super::engine::Engine;
use super::types::{Completion, VerbsError};
use ringbell_net::NicTime;

/// How long ago a program that polls has polled last, at most.
const POLLING: Duration = Duration::from_micros(200);
/// A nap.
const NAP: Duration = Duration::from_millis(1);
/// How late a timer may be while no program polls.
const TICK: Duration = Duration::from_millis(10);
/// Without packets and polls for so long, the thread sleeps until something wakes it.
const DORMANT_AFTER: Duration = Duration::from_secs(1);
/// Polls for nothing before a program lets others have its core: its peer may wait for it.
const YIELDS_AFTER: u64 = 64;
/// Wake-ups for nothing before a nap: at first, and at most.
const PATIENCE: (u32, u32) = (8, 1 << 20);

/// What the time is.
pub(super) type Clock = Box<dyn Fn() -> NicTime + Send + Sync>;

/// What all handles of a context share.
pub(super) struct Shared {
    engine: Mutex<Engine>,
    clock: Clock,
    wake: OwnedFd,
    stop: AtomicBool,
    /// The thread naps, or sleeps without a limit: it must be woken where that matters.
    naps: AtomicBool,
    is_dormant: AtomicBool,
    /// When a program has polled last, in nanoseconds.
    polled: AtomicU64,
    /// Polls in a row that found nothing.
    empty: AtomicU64,
}

impl Shared {
    pub(super) fn new(engine: Engine, clock: Clock) -> std::io::Result<Shared> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Shared {
            engine: Mutex::new(engine),
            clock,
            wake: rustix::event::eventfd(0, flags)?,
            stop: AtomicBool::new(false),
            naps: AtomicBool::new(false),
            is_dormant: AtomicBool::new(false),
            polled: AtomicU64::new(0),
            empty: AtomicU64::new(0),
        })
    }

    pub(super) fn now(&self) -> NicTime {
        (self.clock)()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Engine> {
        // After a panic the machinery is as far as it came; a peer sees retries.
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        // It fails only with 2^64 - 2 wake-ups unread.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// Sends what was just posted.
    pub(super) fn kick(&self, engine: &mut Engine) {
        engine.transmit(self.now());
        // Pairs with the exchange in `sleep`: the thread either sees the new timer, or is seen
        // asleep.
        if self.is_dormant.swap(false, Ordering::SeqCst) {
            self.wake();
        }
    }

    /// The thread watches the socket from now on: a program is about to sleep.
    pub(super) fn watch(&self) {
        self.polled.store(0, Ordering::Relaxed);
        if self.naps.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    /// Takes completions; without any, after a step.
    pub(super) fn poll(&self, cq: usize, out: &mut [Completion]) -> Result<usize, VerbsError> {
        let mut engine = self.lock();
        for again in [true, false] {
            let Some(cq) = engine.tables.cq(cq) else {
                return Ok(0);
            };
            let entries = cq.limit;
            match cq.take(out) {
                Some(0) if again => {
                    let now = self.now();
                    self.polled.store(now.0, Ordering::Relaxed);
                    engine.step(now);
                }
                Some(0) => break,
                Some(n) => {
                    self.empty.store(0, Ordering::Relaxed);
                    return Ok(n);
                }
                None => return Err(VerbsError::Overrun { entries }),
            }
        }
        drop(engine);
        if self.empty.fetch_add(1, Ordering::Relaxed) >= YIELDS_AFTER {
            std::thread::yield_now();
        }
        Ok(0)
    }

    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.wake();
    }

    fn is_polled(&self, now: NicTime) -> bool {
        let last = self.polled.load(Ordering::Relaxed);
        last > 0 && now < NicTime(last).plus(POLLING)
    }

    /// The thread.
    pub(super) fn run(&self, sockets: &[OwnedFd]) {
        let (mut misses, mut patience) = (0, PATIENCE.0);
        let mut active = self.now();
        while !self.stop.load(Ordering::SeqCst) {
            let now = self.now();
            let (came, more, blocked, timer) = {
                let mut engine = self.lock();
                let came = engine.step(now);
                let (more, blocked) = (engine.has_more(), engine.is_blocked());
                (came, more, blocked, engine.next_timer())
            };
            let is_polled = self.is_polled(now);
            if came > 0 || is_polled {
                active = now;
            }
            // What comes while a program polls is the program's: the thread was woken for nothing,
            // also when it was faster.
            misses = if is_polled { misses + 1 } else { 0 };
            if misses > patience {
                self.naps.store(true, Ordering::SeqCst);
                self.sleep(&[], Some(NAP));
                self.naps.store(false, Ordering::SeqCst);
                let now = self.now();
                // No program has polled during the nap, and packets have waited.
                if !self.is_polled(now) && self.lock().step(now) > 0 {
                    patience = (patience * 64).min(PATIENCE.1);
                    misses = 0;
                }
                continue;
            }
            // What waits to be sent needs no packet to go on: a long answer to a READ is many
            // batches.
            if came > 0 || more {
                continue;
            }
            let until = timer.map(|t| Duration::from_nanos(t.0.saturating_sub(now.0)));
            let limit = match until {
                _ if blocked => Some(NAP),
                Some(t) => Some(t.min(TICK)),
                None if now < active.plus(DORMANT_AFTER) => Some(TICK),
                None => None,
            };
            self.sleep(sockets, limit);
        }
        // The last acknowledgements leave.
        self.lock().step(self.now());
    }

    fn sleep(&self, sockets: &[OwnedFd], limit: Option<Duration>) {
        let wait = match limit {
            Some(_) => limit,
            None => {
                self.is_dormant.store(true, Ordering::SeqCst);
                // Something was posted meanwhile.
                let timer = self.lock().next_timer();
                timer.map(|_| TICK)
            }
        };
        let wait = wait.map(|w| Timespec {
            tv_sec: w.as_secs() as i64,
            tv_nsec: i64::from(w.subsec_nanos()),
        });
        let mut fds: Vec<_> = std::iter::once(&self.wake)
            .chain(sockets)
            .map(|fd| PollFd::new(fd, PollFlags::IN))
            .collect();
        // A signal ends the sleep, as everything else does.
        let _ = rustix::event::poll(&mut fds, wait.as_ref());
        self.is_dormant.store(false, Ordering::SeqCst);
        if !fds[0].revents().is_empty() {
            let mut count = [0; 8];
            let _ = rustix::io::read(&self.wake, &mut count);
        }
    }
}
