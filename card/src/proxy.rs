//! The host proxy: a thread that rings a card's doorbells for kernels.
//!
//! For a GPU whose driver does not map a card's registers. Kernels see a page that looks like the BAR, in pinned
//! memory: they ring in it, and read status registers in it that are copied over every few milliseconds.
//!
//! A GPU's store wakes no thread, so this one polls. To save the core, it polls for [`ProxyPolicy::eager`] after a doorbell, then
//! naps, then naps longer, and sleeps without a limit while no kernel holds a handle. The cost is time: a doorbell waits for the
//! end of a nap. Polls that come later than [`ProxyPolicy::deadline`] after the one before are counted, because then the machine
//! is too busy for this way. No thread or kernel waits for the proxy without a deadline of its own: when it or the card is gone,
//! a kernel's call ends with `NIC_SILENT`.
#![allow(clippy::disallowed_methods)] // A thread of the host that naps.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ringbell_gtlb::{DmaMemory, Exposed};
use ringbell_nic_abi::bar::{doorbell_offset, Reg, BAR_BYTES, MAGIC, MAX_QUEUES};
use ringbell_nic_abi::GpuVa;

use crate::CardBar;
use ringbell_nic_core::shmem::Mapping;

/// Interval between two copies of the status registers: reading one of a card takes about a microsecond.
const MIRROR: Duration = Duration::from_millis(5);

/// How a proxy waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProxyPolicy {
    /// How long it polls without a pause after a doorbell.
    pub eager: Duration,
    /// Nap between two polls while kernels ring.
    pub nap: Duration,
    /// Time without a doorbell until it takes the long nap.
    pub rest_after: Duration,
    /// Nap between two polls while kernels are quiet: the longest delay of the first doorbell after that.
    pub long_nap: Duration,
    /// A poll later than this after the one before is counted as late.
    pub deadline: Duration,
}

impl Default for ProxyPolicy {
    /// 20 µs, 50 µs, 10 ms, 1 ms, 100 ms: about as the progress thread of a software NIC does.
    fn default() -> ProxyPolicy {
        ProxyPolicy {
            eager: Duration::from_micros(20),
            nap: Duration::from_micros(50),
            rest_after: Duration::from_millis(10),
            long_nap: Duration::from_millis(1),
            deadline: Duration::from_millis(100),
        }
    }
}

impl ProxyPolicy {
    /// The nap after a poll when the last doorbell was found `quiet` ago; `None` to poll again at once.
    fn nap_after(&self, quiet: Duration) -> Option<Duration> {
        match quiet {
            q if q < self.eager => None,
            q if q < self.rest_after => Some(self.nap),
            _ => Some(self.long_nap),
        }
    }
}

/// Counters of a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ProxyStats {
    /// Doorbells copied to the card.
    pub rings: u64,
    /// Polls of the doorbells of all queues that kernels hold.
    pub looks: u64,
    /// Naps.
    pub naps: u64,
    /// Polls that came later than the deadline.
    pub late: u64,
    /// The card no longer answers: no doorbell is copied any more.
    pub card_lost: bool,
}

#[derive(Debug, Default)]
struct Counts {
    rings: AtomicU64,
    looks: AtomicU64,
    naps: AtomicU64,
    late: AtomicU64,
}

#[derive(Debug)]
struct Shared {
    card: Arc<CardBar>,
    policy: ProxyPolicy,
    /// The page that kernels use as the BAR.
    page: Mapping,
    /// Per queue a bit: a kernel may ring.
    armed: [AtomicU64; MAX_QUEUES / 64],
    /// Per queue: the card's value.
    carried: Vec<AtomicU32>,
    stop: AtomicBool,
    lost: AtomicBool,
    counts: Counts,
}

impl Shared {
    fn word(&self, offset: usize) -> &AtomicU32 {
        &self.page.words32(offset, 1)[0]
    }

    /// Numbers of the queues that kernels hold.
    fn armed(&self) -> impl Iterator<Item = u32> + '_ {
        self.armed.iter().enumerate().flat_map(|(i, word)| {
            // Acquire: pairs with the Release in `arm`, behind which the queue's words are set.
            let mut bits = word.load(Ordering::Acquire);
            std::iter::from_fn(move || {
                let bit = bits.trailing_zeros();
                bits &= bits.wrapping_sub(1);
                (bit < 64).then_some(i as u32 * 64 + bit)
            })
        })
    }

    /// Copies changed doorbells to the card; returns their number.
    fn carry(&self) -> u64 {
        let mut rings = 0;
        for queue in self.armed() {
            // Acquire: pairs with the Release store of the doorbell by a kernel; entries come before it.
            let rung = self.word(doorbell_offset(queue)).load(Ordering::Acquire);
            let carried = &self.carried[queue as usize];
            if rung != carried.load(Ordering::Relaxed) && self.card.ring(queue, rung).is_ok() {
                carried.store(rung, Ordering::Relaxed);
                rings += 1;
            }
        }
        self.counts.rings.fetch_add(rings, Ordering::Relaxed);
        rings
    }

    /// Copies the status registers; false when the card does not answer.
    fn mirror(&self) -> bool {
        if self.card.read(Reg::Magic) != MAGIC {
            return false;
        }
        for (reg, ..) in Reg::ALL.iter().filter(|row| row.0.is_status()) {
            let value = self.card.read(*reg);
            // Release: pairs with nothing but a later read of the heartbeat; a kernel reads single words.
            self.word(reg.offset()).store(value, Ordering::Release);
        }
        true
    }

    fn run(&self) {
        let (mut rung_at, mut mirrored) = (Instant::now(), Instant::now());
        let mut last_look: Option<Instant> = None;
        // Acquire: pairs with the Release in `Proxy::drop`.
        while !self.stop.load(Ordering::Acquire) {
            if self.armed().next().is_none() {
                last_look = None;
                std::thread::park();
                continue;
            }
            let now = Instant::now();
            self.counts.looks.fetch_add(1, Ordering::Relaxed);
            if last_look.is_some_and(|last| now - last > self.policy.deadline) {
                self.counts.late.fetch_add(1, Ordering::Relaxed);
            }
            last_look = Some(now);
            if self.carry() > 0 {
                rung_at = now;
            }
            if now - mirrored >= MIRROR {
                mirrored = now;
                if !self.mirror() {
                    let card = self.card.path().display();
                    tracing::error!(%card, "the card does not answer any more; its doorbells are no longer rung for kernels");
                    self.lost.store(true, Ordering::Relaxed);
                    return;
                }
            }
            match self.policy.nap_after(now - rung_at) {
                None => std::hint::spin_loop(),
                Some(nap) => {
                    self.counts.naps.fetch_add(1, Ordering::Relaxed);
                    std::thread::park_timeout(nap);
                }
            }
        }
    }
}

/// The refused resource, and the system's error.
pub(super) type Refused = (&'static str, std::io::Error);

/// See the module's text.
#[derive(Debug)]
pub(super) struct Proxy {
    // Dropped before the page that it maps for the GPU.
    exposed: Exposed,
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Proxy {
    pub(super) fn start(
        card: Arc<CardBar>,
        memory: &dyn DmaMemory,
        policy: ProxyPolicy,
    ) -> Result<Proxy, Refused> {
        let system = |what| move |source| (what, source);
        let page =
            Mapping::anonymous(BAR_BYTES.next_multiple_of(4096)).map_err(system("memory"))?;
        let exposed = page.expose(memory).map_err(system("pinned memory"))?;
        let shared = Arc::new(Shared {
            card,
            policy,
            page,
            armed: Default::default(),
            carried: (0..MAX_QUEUES).map(|_| AtomicU32::new(0)).collect(),
            stop: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            counts: Counts::default(),
        });
        shared.mirror();
        let own = shared.clone();
        let thread = std::thread::Builder::new()
            .name("ringbell-proxy".into())
            .spawn(move || own.run())
            .map_err(system("a thread"))?;
        Ok(Proxy {
            exposed,
            shared,
            thread: Mutex::new(Some(thread)),
        })
    }

    pub(super) fn policy(&self) -> &ProxyPolicy {
        &self.shared.policy
    }

    pub(super) fn stats(&self) -> ProxyStats {
        let c = &self.shared.counts;
        ProxyStats {
            rings: c.rings.load(Ordering::Relaxed),
            looks: c.looks.load(Ordering::Relaxed),
            naps: c.naps.load(Ordering::Relaxed),
            late: c.late.load(Ordering::Relaxed),
            card_lost: self.shared.lost.load(Ordering::Relaxed),
        }
    }

    fn thread(&self) -> std::sync::MutexGuard<'_, Option<JoinHandle<()>>> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Polls the doorbell of a queue from now on; returns the address of the page for kernels.
    pub(super) fn arm(&self, queue: u32, tail: u32) -> GpuVa {
        let s = &self.shared;
        // The lock serialises two calls for one queue: the second must not undo a doorbell of a kernel.
        let thread = self.thread();
        let (word, bit) = (&s.armed[queue as usize / 64], 1 << (queue % 64));
        if word.load(Ordering::Relaxed) & bit == 0 {
            // No ticket from `tail` on rings this value.
            s.carried[queue as usize].store(tail, Ordering::Relaxed);
            s.word(doorbell_offset(queue))
                .store(tail, Ordering::Relaxed);
            // Release: pairs with the Acquire in `Shared::armed`.
            word.fetch_or(bit, Ordering::Release);
        }
        if let Some(t) = &*thread {
            t.thread().unpark();
        }
        self.exposed.va()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `Shared::run`.
        self.shared.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread().take() {
            thread.thread().unpark();
            // It ends after one nap at the latest.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn naps_grow_and_only_a_fresh_doorbell_prevents_them() {
        let p = ProxyPolicy::default();
        let nap = |us| p.nap_after(Duration::from_micros(us));
        assert_eq!(nap(0), None);
        assert_eq!(nap(19), None);
        assert_eq!(nap(20), Some(p.nap));
        assert_eq!(nap(9_999), Some(p.nap));
        assert_eq!(nap(10_000), Some(p.long_nap));
        assert_eq!(nap(10_000_000), Some(p.long_nap));
        // A policy that never spins, and one that never rests.
        let still = ProxyPolicy {
            eager: Duration::ZERO,
            ..p
        };
        assert_eq!(still.nap_after(Duration::ZERO), Some(p.nap));
        let keen = ProxyPolicy {
            rest_after: Duration::MAX,
            ..p
        };
        assert_eq!(keen.nap_after(Duration::from_secs(9)), Some(p.nap));
    }
}
