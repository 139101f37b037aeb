//! Progress of the NIC: the threads that step it, and the waiting policy of the others.
//!
//! A waiting thread steps the NIC; the lock is only ever tried, so a second waiter does not block.
//! A waiter spins, then yields, then parks. Parked waiters have one *leader*, which sleeps in
//! `poll` on the NIC's wake descriptor and the transports' own; the others sleep on a futex that
//! every retired operation bumps. When no other thread steps, the progress thread does.
//!
//! A sleep without end is announced before the last poll: `deep` for work that this process posts
//! or changes (`tell`), `parked` for peers. The poll reads the clock, and the work that it leaves
//! under way decides how long the sleep may be. The poll sees work that comes before the
//! announcement; work that comes after it wakes the sleeper.
//!
//! No message costs a system call: a peer writes the wake descriptor only when the NIC's `parked`
//! word says that a thread sleeps. The word is set before the last poll of the rings, with a
//! sequentially consistent fence between; the peer writes its ring, fences, then reads the word.
#![allow(clippy::disallowed_methods)] // This is the edge: the NIC's clock is read here and passed down.

use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::sync::atomic::{fence, AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::command::{Core, Found};
use crate::types::NicTime;
use crate::wait_policy::WaitPolicy;
use crate::wake::WakeCell;

/// Idle steps between two readings of the clock.
const CLOCK_EVERY: u32 = 64;
/// As many idle steps a step counts for in which something moved.
const CLOCK_BUSY: u32 = 4;
/// As many idle steps a look counts for that makes a system call.
const CLOCK_ASKED: u32 = 2;
/// Looks for something to do after an idle step of a waiter on a core of its own, before it gives
/// the NIC up for a moment: a look costs a tenth of a step, and what arrives is found that much
/// sooner.
const LOOKS: u32 = 32;
/// Idle steps of a thread that only steps, before it does something else.
const SPIN_SERVANT: u32 = 50;
/// Yields without progress before a waiter parks.
const YIELDS: u32 = 400;
/// Longest sleep of a waiter that is not the leader.
const FOLLOWER_NAP: Duration = Duration::from_millis(1);
/// "Forever": the progress thread's sleep while every possible event notifies it.
const DEEP_SLEEP: Duration = Duration::from_secs(3600);
/// Sleep of a thread that could not poll because another was stepping: the work left by that one is
/// polled soon.
const SECOND_LOOK: Duration = Duration::from_micros(100);
/// Nap of the progress thread while no queue exists: making one wakes it.
const NO_QUEUE_NAP: Duration = Duration::from_secs(1);
/// How often the progress thread looks whether others still step.
const LOOK_PERIOD: Duration = Duration::from_millis(1);

/// Steps, and how often the slow paths were taken.
#[derive(Debug, Default)]
struct Counts {
    parks: AtomicU64,
    wakes: AtomicU64,
    waiter_steps: AtomicU64,
    thread_steps: AtomicU64,
}

/// Counts of the waiting policy, for tests and `describe`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ProgressStats {
    /// Times a waiter or the progress thread slept.
    pub parks: u64,
    /// Times a sleeper was woken by a system call of this process.
    pub wakes: u64,
    /// Times a waiter gave its core away.
    pub yields: u64,
    /// Idle steps before a waiter yields, as learnt.
    pub spin: u32,
    /// Steps of the NIC, by any thread.
    pub steps: u64,
    /// Those that a thread of the NIC made, parked or polling; the others were waiters'.
    pub thread_steps: u64,
}

const NO_LEADER: u32 = 0;
const WAITER_LEADS: u32 = 1;
const PROGRESS_THREAD_LEADS: u32 = 2;

/// Result of a round of waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Round {
    /// Something moved.
    Moved,
    /// Nothing did.
    Idle,
    /// Nothing did, and the core was given away for a while: the caller's clock is behind.
    Slept,
}

/// The thread that makes a step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Who {
    /// A waiter, or a caller of the control path.
    Waiter,
    /// The NIC's own thread, parked or polling.
    Thread,
}

/// The NIC behind its lock, and everything that waiting needs.
pub(crate) struct Progress {
    core: Mutex<Core>,
    pub(crate) wake: Arc<WakeCell>,
    fds: Vec<OwnedFd>,
    clock: Clock,
    idle_nap: Duration,
    /// A thread of the NIC polls, so that waiters need not step.
    dedicated: bool,
    sleepers: Sleepers,
    pub(crate) policy: WaitPolicy,
    counts: Counts,
    pub(crate) stop: AtomicBool,
    pub(crate) has_queues: AtomicBool,
    /// A kernel has got a queue: its stores to the doorbell wake no thread, so a thread must poll.
    pub(crate) exposed: AtomicBool,
    /// Every transport has a descriptor that reports arrivals.
    transports_wake: bool,
}

/// The NIC's clock, and when it is read.
struct Clock {
    start: Instant,
    /// Steps since the last reading.
    since_read: AtomicU32,
    /// Whether the caller of `step_at` supplies the time.
    by_hand: AtomicBool,
}

/// The sleeping threads, and their wake words.
struct Sleepers {
    leader: AtomicU32,
    followers: AtomicU32,
    /// Counts retired operations; the followers' futex.
    retire_seq: AtomicU32,
    /// The progress thread sleeps until it is notified: a thread that adds work must notify it.
    deep: AtomicBool,
}

impl Progress {
    pub(crate) fn new(
        core: Core,
        wake: Arc<WakeCell>,
        fds: Vec<OwnedFd>,
        idle_nap: Duration,
        dedicated: bool,
        transports_wake: bool,
    ) -> Progress {
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Progress {
            core: Mutex::new(core),
            wake,
            fds,
            clock: Clock {
                start: Instant::now(),
                since_read: AtomicU32::new(0),
                by_hand: AtomicBool::new(false),
            },
            idle_nap,
            dedicated,
            sleepers: Sleepers {
                leader: AtomicU32::new(NO_LEADER),
                followers: AtomicU32::new(0),
                retire_seq: AtomicU32::new(0),
                deep: AtomicBool::new(false),
            },
            policy: WaitPolicy::new(cpus),
            counts: Counts::default(),
            stop: AtomicBool::new(false),
            has_queues: AtomicBool::new(false),
            exposed: AtomicBool::new(false),
            transports_wake,
        }
    }

    /// The NIC's clock.
    pub(crate) fn now(&self) -> NicTime {
        NicTime(u64::try_from(self.clock.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    pub(crate) fn stats(&self) -> ProgressStats {
        let thread_steps = self.counts.thread_steps.load(Ordering::Relaxed);
        ProgressStats {
            parks: self.counts.parks.load(Ordering::Relaxed),
            wakes: self.counts.wakes.load(Ordering::Relaxed),
            yields: self.policy.yields(),
            spin: self.policy.spin(),
            steps: thread_steps.wrapping_add(self.counts.waiter_steps.load(Ordering::Relaxed)),
            thread_steps,
        }
    }

    /// Works on the NIC exclusively, for the control path. Blocks for at most a step.
    pub(crate) fn with_core<R>(&self, f: impl FnOnce(&mut Core) -> R) -> R {
        let core = match self.core.lock() {
            Ok(core) => core,
            // A step has panicked; the state behind the lock is still the best answer for the
            // control path.
            Err(poisoned) => poisoned.into_inner(),
        };
        self.control(core, f)
    }

    /// The same unless another thread has the NIC: that one goes on.
    fn try_with_core<R>(&self, f: impl FnOnce(&mut Core) -> R) -> Option<R> {
        let core = match self.core.try_lock() {
            Ok(core) => core,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(self.control(core, f))
    }

    fn control<R>(&self, mut core: MutexGuard<'_, Core>, f: impl FnOnce(&mut Core) -> R) -> R {
        if !self.clock.by_hand.load(Ordering::Relaxed) {
            core.time.now = core.time.now.max(self.now());
        }
        core.is_due = true;
        let ended = core.ended();
        let r = f(&mut core);
        let notify = core.ended() != ended;
        drop(core);
        if notify {
            self.notify();
        }
        self.tell();
        r
    }

    /// Waits until `done` for the control path, and returns whether that came in time. It steps the
    /// NIC, and sleeps where nothing moves: a thread that yielded instead would see an answer of a
    /// peer only after many turns of others on its core.
    pub(crate) fn wait_for(
        &self,
        deadline: Instant,
        mut done: impl FnMut(&mut Core) -> bool,
    ) -> bool {
        if self.with_core(&mut done) {
            return true;
        }
        let by_hand = self.clock.by_hand.load(Ordering::Relaxed);
        let (done, ended, mut idle) = (RefCell::new(done), Cell::new(false), 0_u32);
        let look = |core: &mut Core| (done.borrow_mut())(core);
        // Only tried: a thread that steps goes on.
        let check = || {
            if !ended.get() {
                ended.set(self.try_with_core(look).unwrap_or(false));
            }
            ended.get()
        };
        while !check() {
            if Instant::now() >= deadline {
                // Not only tried any more: others may have had the NIC at each look.
                return self.with_core(look);
            }
            if by_hand {
                // The program steps, at times of its own.
                if self.try_step() != Some(true) {
                    std::thread::yield_now();
                }
                continue;
            }
            // With the clock: transports look at what peers answer now and then only.
            self.clock.since_read.store(CLOCK_EVERY, Ordering::Relaxed);
            idle = match self.wait_round(idle, &check) {
                Round::Moved => 0,
                Round::Idle | Round::Slept => idle.saturating_add(1),
            };
        }
        true
    }

    /// The NIC may have got work: wakes the progress thread from a sleep without end.
    #[inline]
    pub(crate) fn tell(&self) {
        // SeqCst: orders the doorbell, or what was changed under the lock, before the look at
        // `deep`; pairs with the fence in `lead`.
        fence(Ordering::SeqCst);
        if self.sleepers.deep.load(Ordering::Relaxed) {
            self.end_deep_sleep();
        }
    }

    #[cold]
    fn end_deep_sleep(&self) {
        if self.sleepers.deep.swap(false, Ordering::Relaxed) {
            self.counts.wakes.fetch_add(1, Ordering::Relaxed);
            self.wake.signal();
        }
    }

    /// Whether a thread of the NIC polls, so that waiters need not step.
    #[inline]
    pub(crate) fn is_dedicated(&self) -> bool {
        self.dedicated
    }

    /// Steps the NIC unless another thread does. `Some(true)`: something moved.
    #[inline]
    pub(crate) fn try_step(&self) -> Option<bool> {
        self.try_steps(0, Who::Waiter, false)
    }

    /// Steps once at a time of the caller's, which replaces the clock.
    pub(crate) fn step_at(&self, now: NicTime) -> bool {
        self.by_hand(now, |core| core.step(Some(now)))
    }

    /// Steps at a time of the caller's until nothing is left to do.
    pub(crate) fn run_at(&self, now: NicTime) -> bool {
        self.by_hand(now, |core| {
            let mut moved = false;
            // A look costs less than a step that finds nothing.
            while core.step(Some(now)) {
                moved = true;
                if core.look() == Found::Nothing {
                    break;
                }
            }
            moved
        })
    }

    /// Works on the NIC at a time of the caller's.
    fn by_hand(&self, now: NicTime, f: impl FnOnce(&mut Core) -> bool) -> bool {
        // From here on the clock does not count, so that the same times give the same steps however
        // busy the machine is; its earlier readings are dropped.
        let first = !self.clock.by_hand.swap(true, Ordering::Relaxed);
        self.with_core(|core| {
            if first {
                core.time.now = now;
            }
            f(core)
        })
    }

    /// As [`try_step`](Progress::try_step); after an idle step looks for news that often, and steps
    /// again when there are some. `fresh` reads the clock whenever it was read last.
    #[inline(always)]
    fn try_steps(&self, looks: u32, who: Who, fresh: bool) -> Option<bool> {
        let mut core = match self.core.try_lock() {
            Ok(core) => core,
            Err(TryLockError::WouldBlock | TryLockError::Poisoned(_)) => return None,
        };
        // These are only ever changed under the lock: plain loads and stores.
        let count = |n: &AtomicU64| {
            n.store(n.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        };
        count(match who {
            Who::Waiter => &self.counts.waiter_steps,
            Who::Thread => &self.counts.thread_steps,
        });
        let since = self.clock.since_read.load(Ordering::Relaxed);
        let fresh = fresh || since >= CLOCK_EVERY;
        let found = match fresh {
            true => Found::Anything,
            false => core.look(),
        };
        if found != Found::Nothing {
            return Some(self.step_locked(core, found, fresh));
        }
        core.count_step();
        let each = match core.streams.network.calls_kernel() {
            true => CLOCK_ASKED,
            false => 0,
        };
        let mut since = since + 1 + each;
        for _ in 0..looks {
            let found = core.look();
            if found != Found::Nothing {
                self.clock.since_read.store(since, Ordering::Relaxed);
                return Some(self.step_locked(core, found, false));
            }
            since += each;
        }
        self.clock.since_read.store(since, Ordering::Relaxed);
        Some(false)
    }

    /// A step that finds something, or reads the clock. Returns whether anything moved.
    #[inline(never)]
    fn step_locked(&self, mut core: MutexGuard<'_, Core>, found: Found, fresh: bool) -> bool {
        let (since, now) = if fresh || core.time.is_wanted {
            let by_hand = self.clock.by_hand.load(Ordering::Relaxed);
            let now = if by_hand { core.time.now } else { self.now() };
            (0, Some(now))
        } else {
            let since = self.clock.since_read.load(Ordering::Relaxed);
            (since + CLOCK_BUSY, None)
        };
        self.clock.since_read.store(since, Ordering::Relaxed);
        let ended = core.ended();
        let moved = match (now, found) {
            (None, Found::Collectives) => core.step_found_collectives(),
            (now, _) => core.step(now),
        };
        let notify = core.ended() != ended;
        drop(core);
        if notify {
            self.notify();
        }
        moved
    }

    /// Something retired: sleepers look at their words. The unlock just before is a full barrier
    /// on x86; elsewhere a sleeper that is missed wakes by itself after its nap.
    #[inline]
    fn notify(&self) {
        if self.sleepers.followers.load(Ordering::Relaxed) > 0 {
            self.wake_followers(u32::MAX);
        }
        if self.sleepers.leader.load(Ordering::Relaxed) == WAITER_LEADS && self.wake.poke() {
            self.counts.wakes.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[cold]
    fn wake_followers(&self, n: u32) {
        self.sleepers.retire_seq.fetch_add(1, Ordering::SeqCst);
        self.counts.wakes.fetch_add(1, Ordering::Relaxed);
        let flags = rustix::thread::futex::Flags::PRIVATE;
        let _ =
            rustix::thread::futex::wake(&self.sleepers.retire_seq, flags, n.min(i32::MAX as u32));
    }

    /// A thread of the application steps now: peers need not wake the progress thread. It looks
    /// again by itself after its nap, and sees then whether the NIC is still being stepped.
    #[inline]
    pub(crate) fn take_over(&self) {
        if self.sleepers.leader.load(Ordering::Relaxed) == PROGRESS_THREAD_LEADS {
            self.wake.stand_down();
            // SeqCst: pairs with the fence in `lead`. Either `deep` is seen here, or the sleeper
            // sees that its `parked` was taken back, and does not sleep for long.
            fence(Ordering::SeqCst);
            if self.sleepers.deep.load(Ordering::Relaxed) {
                self.end_deep_sleep();
            }
        }
    }

    /// Waits until `done`, stepping the NIC. `false`: that did not come in time.
    pub(crate) fn wait_until(&self, timeout: Duration, mut done: impl FnMut() -> bool) -> bool {
        if done() {
            return true;
        }
        let cell = RefCell::new(done);
        let check = || (cell.borrow_mut())();
        let mut deadline = None;
        let (mut idle, mut rounds) = (0u32, 0u32);
        loop {
            let round = self.wait_round(idle, &check);
            idle = match round {
                Round::Moved => 0,
                Round::Idle | Round::Slept => idle.saturating_add(1),
            };
            if check() {
                return true;
            }
            // Whether or not something moves: a busy NIC must not hide that the time is up.
            rounds = rounds.wrapping_add(1);
            if rounds % 64 == 63 || round == Round::Slept {
                let now = Instant::now();
                // The deadline starts at the first clock reading: short waits read no clock.
                let end = *deadline.get_or_insert(now + timeout);
                if now >= end {
                    return false;
                }
            }
        }
    }

    /// One round of waiting until `done`. `idle` counts the caller's rounds without progress.
    #[inline]
    pub(crate) fn wait_round(&self, idle: u32, done: &dyn Fn() -> bool) -> Round {
        if self.dedicated {
            return self.wait_for_thread(idle);
        }
        self.take_over();
        let spin = self.policy.spin();
        let looks = if WaitPolicy::is_alone(spin) { LOOKS } else { 0 };
        if self.try_steps(looks, Who::Waiter, false) == Some(true) {
            return Round::Moved;
        }
        if idle < spin {
            // A step is pause enough: a spin hint after each only delays what arrives meanwhile.
            return Round::Idle;
        }
        self.wait_slowly(idle - spin, done)
    }

    /// A thread of the NIC does all the work: the waiter only looks, and makes room for it.
    fn wait_for_thread(&self, idle: u32) -> Round {
        if idle < self.policy.spin() {
            std::hint::spin_loop();
            return Round::Idle;
        }
        std::thread::yield_now();
        Round::Slept
    }

    #[cold]
    fn wait_slowly(&self, rounds: u32, done: &dyn Fn() -> bool) -> Round {
        if self.policy.may_yield() && rounds < YIELDS {
            // After a long absence deadlines may have passed: the step reads the clock.
            let long = self.policy.yield_now();
            return match self.try_steps(0, Who::Waiter, long) {
                Some(true) => Round::Moved,
                _ if long => Round::Slept,
                _ => Round::Idle,
            };
        }
        match self.park(done) {
            true => Round::Moved,
            false => Round::Slept,
        }
    }

    fn park(&self, done: &dyn Fn() -> bool) -> bool {
        match self.sleepers.leader.compare_exchange(
            NO_LEADER,
            WAITER_LEADS,
            Ordering::Acquire,
            Ordering::Relaxed,
        ) {
            Ok(_) => {
                let moved = self.lead(done, Who::Waiter);
                // Release: pairs with the Acquire above, of the next leader.
                self.sleepers.leader.store(NO_LEADER, Ordering::Release);
                if self.sleepers.followers.load(Ordering::Relaxed) > 0 {
                    self.wake_followers(1);
                }
                moved
            }
            Err(who) => {
                if who == PROGRESS_THREAD_LEADS {
                    // The progress thread releases the lead, and then wakes us: a thread that waits
                    // for an answer wakes sooner by itself.
                    self.wake.signal();
                }
                self.follow(done);
                false
            }
        }
    }

    fn follow(&self, done: &dyn Fn() -> bool) {
        self.sleepers.followers.fetch_add(1, Ordering::SeqCst);
        let seq = self.sleepers.retire_seq.load(Ordering::SeqCst);
        if !done() {
            self.counts.parks.fetch_add(1, Ordering::Relaxed);
            let nap = timespec(FOLLOWER_NAP);
            let flags = rustix::thread::futex::Flags::PRIVATE;
            let _ = rustix::thread::futex::wait(&self.sleepers.retire_seq, flags, seq, Some(&nap));
        }
        self.sleepers.followers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Sleeps until a peer, a descriptor or a timer calls, for as long as [`nap`](Progress::nap)
    /// says.
    fn lead(&self, done: &dyn Fn() -> bool, who: Who) -> bool {
        self.sleepers
            .deep
            .store(who == Who::Thread, Ordering::Relaxed);
        self.wake.parked().store(1, Ordering::Relaxed);
        // SeqCst: pairs with the fences in `WakeCell::poke`, `tell` and `take_over`. Either they
        // see these words, or the look below sees what they have written.
        fence(Ordering::SeqCst);
        // With the clock: an operation that waits for a reading must not sleep on.
        let moved = self.try_steps(0, who, true);
        if done() || moved == Some(true) {
            self.rise();
            return true;
        }
        let nap = self.nap(moved, who);
        if nap < DEEP_SLEEP {
            self.sleepers.deep.store(false, Ordering::Relaxed);
        }
        if !nap.is_zero() {
            self.counts.parks.fetch_add(1, Ordering::Relaxed);
            self.poll(nap);
        }
        self.rise();
        // The event that woke us is due now, independent of the last clock reading.
        self.clock.since_read.store(CLOCK_EVERY, Ordering::Relaxed);
        false
    }

    fn rise(&self) {
        self.wake.parked().store(0, Ordering::Relaxed);
        self.sleepers.deep.store(false, Ordering::Relaxed);
    }

    /// How long a leader may sleep after a last look that found nothing (`None`: it could not
    /// look).
    fn nap(&self, looked: Option<bool>, who: Who) -> Duration {
        let soon = match who {
            Who::Waiter => SECOND_LOOK,
            // Among many waiters the stepping thread may have lost its core, and gets it back only
            // after their turns.
            Who::Thread => SECOND_LOOK.saturating_mul(self.policy.share()),
        };
        let soon = self.idle_nap.min(soon);
        let (timer, silent) = match (looked, self.core.try_lock()) {
            (Some(_), Ok(core)) => match core.time.is_wanted {
                true => return Duration::ZERO,
                false => (core.next_timer(), core.may_sleep()),
            },
            // Another thread steps, or has stepped before all work was visible.
            _ => return soon,
        };
        // Another thread has withdrawn the announcement: peers do not wake us any more.
        let announced = self.wake.parked().load(Ordering::Relaxed) != 0;
        // A kernel's doorbell wakes no thread, nor does a transport without a descriptor.
        let silent = silent && self.transports_wake && !self.exposed.load(Ordering::SeqCst);
        let nap = match (who, self.has_queues.load(Ordering::Relaxed)) {
            (Who::Thread, _) if silent && announced => DEEP_SLEEP,
            (Who::Thread, false) if announced => NO_QUEUE_NAP,
            _ => self.idle_nap,
        };
        match timer {
            Some(t) => nap.min(Duration::from_nanos(t.0.saturating_sub(self.now().0))),
            None => nap,
        }
    }

    fn poll(&self, nap: Duration) {
        const MOST: usize = 16;
        let fds = std::iter::once(self.wake.event()).chain(&self.fds);
        let mut set: [Option<PollFd<'_>>; MOST] = Default::default();
        let mut n = 0;
        for (slot, fd) in set.iter_mut().zip(fds) {
            *slot = Some(PollFd::new(fd, PollFlags::IN));
            n += 1;
        }
        let filler = PollFd::new(self.wake.event(), PollFlags::IN);
        let mut list: [PollFd<'_>; MOST] =
            std::array::from_fn(|i| set[i].take().unwrap_or_else(|| filler.clone()));
        let _ = rustix::event::poll(&mut list[..n], Some(&timespec(nap)));
        if !list[0].revents().is_empty() {
            self.wake.drain();
        }
        if list[1..n].iter().any(|fd| !fd.revents().is_empty()) {
            self.wake.set_called();
        }
    }

    /// Wakes the leader, so that it notices `stop`, a new queue or a new configuration.
    pub(crate) fn kick(&self) {
        self.wake.signal();
    }

    /// Body of the progress thread.
    pub(crate) fn run_parked(&self) {
        let mut seen = self.counts.waiter_steps.load(Ordering::Relaxed);
        let mut stepped = Instant::now();
        while !self.stop.load(Ordering::Acquire) {
            // Where many waiters share a core, one that has not stepped for a while may wait for
            // its turn.
            let patience = self.policy.patience();
            let period = LOOK_PERIOD.saturating_mul(patience);
            // A waiter that leads steps after each of its naps. One that has not for this long is
            // stopped.
            let stopped = 2 * self.idle_nap + period;
            // Steps of all other threads.
            let others = self.counts.waiter_steps.load(Ordering::Relaxed);
            if others != seen {
                (seen, stepped) = (others, Instant::now());
                std::thread::park_timeout(period);
                continue;
            }
            let led = self.sleepers.leader.load(Ordering::Relaxed) == WAITER_LEADS;
            if led && stepped.elapsed() < stopped {
                std::thread::park_timeout(period);
                continue;
            }
            let mut idle = 0;
            while idle < SPIN_SERVANT / patience {
                match self.try_steps(0, Who::Thread, false) {
                    Some(true) => idle = 0,
                    Some(false) => idle += 1,
                    None => break,
                }
            }
            if self.sleepers.leader.compare_exchange(
                NO_LEADER,
                PROGRESS_THREAD_LEADS,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) == Ok(NO_LEADER)
            {
                self.lead(&|| self.stop.load(Ordering::Acquire), Who::Thread);
                // Release: pairs with the Acquire of the next leader.
                self.sleepers.leader.store(NO_LEADER, Ordering::Release);
                if self.sleepers.followers.load(Ordering::Relaxed) > 0 {
                    self.wake_followers(1);
                }
            } else {
                std::thread::park_timeout(period);
            }
        }
    }

    /// Body of a dedicated thread: polls, and yields its core only when another thread wants it.
    pub(crate) fn dedicated(&self) {
        let mut idle = 0u32;
        while !self.stop.load(Ordering::Acquire) {
            if self.try_steps(LOOKS, Who::Thread, false) == Some(true) {
                idle = 0;
                continue;
            }
            idle = idle.saturating_add(1);
            if idle < SPIN_SERVANT {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
    }
}

impl ringbell_gtlb::WaitHook for Progress {
    fn turn(&self, idle: u32, done: &dyn Fn() -> bool) -> bool {
        // The lock of a NIC that has panicked stays poisoned, nothing steps it, and kernels' own
        // watchdogs report NIC_SILENT.
        let round = std::panic::AssertUnwindSafe(|| self.wait_round(idle, done));
        match std::panic::catch_unwind(round) {
            Ok(round) => round == Round::Moved,
            Err(_) => {
                tracing::error!("the NIC has failed while a kernel's thread stepped it");
                false
            }
        }
    }
}

fn timespec(d: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(d.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: d.subsec_nanos().into(),
    }
}

#[cfg(test)]
mod tests;
