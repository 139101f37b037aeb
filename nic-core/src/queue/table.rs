//! The queues of a NIC: which numbers are in use, and which are free for the next one.
//!
//! A queue is one ring, or two where kernels have one for themselves; its number is the index of
//! its first ring. When its last handle is gone it *closes*: its rings show nothing more, and what
//! was taken from them retires. Then its number is free.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut, Range};
use std::sync::atomic::AtomicU32;
use std::sync::Arc;

use ringbell_gtlb::DmaMemory;
use ringbell_nic_abi::QueueId;

use super::{QueueMemory, ScatterSlots, SendQueue};
use crate::slots::Slots;

/// The doorbell of rings that are closed.
static SILENT: AtomicU32 = AtomicU32::new(0);

/// Rings that are gone and stay mapped: a kernel that still waits at one reads how its operation
/// has ended.
const KEPT: usize = 8;

/// The place of a queue: its rings, and its doorbell in the BAR.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// Index of its first ring: the queue's number.
    pub(crate) first: u32,
    rings: u32,
    /// Number of its doorbell.
    pub(crate) doorbell: u32,
}

/// Memory of a ring that is gone.
#[derive(Debug)]
struct Gone {
    /// When this has landed, no completion is on its way to the ring.
    mark: u64,
    memory: Arc<QueueMemory>,
}

/// What closed queues give back.
#[derive(Debug, Default)]
pub(crate) struct Returned {
    /// To be dropped without the NIC's lock: a driver may let the thread wait.
    pub(crate) memory: Vec<Arc<QueueMemory>>,
    /// NIC memory of small receives.
    pub(crate) scatter: Vec<ScatterSlots>,
}

/// See the module text.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    rings: Vec<SendQueue>,
    /// Every place that was ever made has a doorbell of its own.
    places: u32,
    /// Closed, and not all of their operations have retired.
    closing: Vec<Place>,
    /// Free for another queue; the first one longest.
    vacant: VecDeque<Place>,
    gone: VecDeque<Gone>,
}

impl Queues {
    /// How many there are, those that close included.
    pub(crate) fn count(&self) -> u32 {
        self.places - self.vacant.len() as u32
    }

    /// Whether closed queues have operations that did not retire.
    pub(crate) fn are_closing(&self) -> bool {
        !self.closing.is_empty()
    }

    /// A place for one more queue, `None` when `limit` are in use. [`Queues::occupy`] takes it.
    pub(crate) fn place(&self, limit: usize) -> Option<Place> {
        let next = Place {
            first: self.rings.len() as u32,
            rings: 0,
            doorbell: self.places,
        };
        let free = self.vacant.front().copied();
        free.or_else(|| ((self.places as usize) < limit).then_some(next))
    }

    /// Puts the rings of a queue into the place that [`Queues::place`] has given.
    pub(crate) fn occupy(&mut self, place: Place, rings: Vec<SendQueue>) {
        if place.doorbell == self.places {
            self.places += 1;
            self.rings.extend(rings);
            return;
        }
        self.vacant.retain(|p| *p != place);
        for (at, ring) in (place.first as usize..).zip(rings) {
            self.rings[at] = ring;
        }
    }

    /// The rings of a queue; none when there is no such queue.
    pub(crate) fn rings_of(&self, queue: QueueId) -> Range<usize> {
        let first = queue.0 as usize;
        let own = self.rings.iter().skip(first);
        first..first + own.take_while(|r| r.queue == queue).count()
    }

    /// Takes nothing more from a queue.
    pub(crate) fn close(&mut self, queue: QueueId) {
        let rings = self.rings_of(queue);
        let Some(doorbell) = self.rings[rings.clone()]
            .iter()
            .find_map(SendQueue::doorbell)
        else {
            return;
        };
        self.rings[rings.clone()]
            .iter_mut()
            .for_each(SendQueue::close);
        self.closing.push(Place {
            first: queue.0,
            rings: rings.len() as u32,
            doorbell,
        });
    }

    /// Frees the places of closed queues whose operations have all retired.
    pub(crate) fn settle(&mut self, memory: &dyn DmaMemory) -> Returned {
        let mut back = Returned::default();
        for place in std::mem::take(&mut self.closing) {
            let (first, n) = (place.first as usize, place.rings as usize);
            let rings = &mut self.rings[first..first + n];
            if rings.iter().any(SendQueue::is_busy) {
                self.closing.push(place);
                continue;
            }
            // Behind the last completion.
            let mark = memory.mark();
            for ring in rings {
                back.scatter.extend(ring.scatter.take());
                let gone = ring.vacate().map(|memory| Gone { mark, memory });
                self.gone.extend(gone);
            }
            self.vacant.push_back(place);
        }
        while self.gone.len() > KEPT {
            match self.gone.pop_front() {
                Some(gone) if memory.has_landed(gone.mark) => back.memory.push(gone.memory),
                Some(gone) => {
                    self.gone.push_front(gone);
                    break;
                }
                None => break,
            }
        }
        back
    }
}

impl Deref for Queues {
    type Target = [SendQueue];

    #[inline(always)]
    fn deref(&self) -> &[SendQueue] {
        &self.rings
    }
}

impl DerefMut for Queues {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [SendQueue] {
        &mut self.rings
    }
}

impl SendQueue {
    fn doorbell(&self) -> Option<u32> {
        self.mem.as_ref()?.doorbell()
    }

    /// Whether a permit is out.
    fn is_busy(&self) -> bool {
        self.busy.contains(&true)
    }

    /// Shows nothing more. Operations under way still complete, by a card's ring as well without
    /// the card.
    fn close(&mut self) {
        self.slots.doorbell = &SILENT;
        (self.seen_doorbell, self.may_have_more, self.pending) = (0, false, false);
        if let (Some(ring), Some(mem)) = (self.card.take(), &self.mem) {
            ring.card.lock().close_queue(ring.number, mem.on_bus());
        }
    }

    /// Gives its memory up. It stays in its place until another ring comes there.
    fn vacate(&mut self) -> Option<Arc<QueueMemory>> {
        self.slots = Slots {
            sq: &[],
            cq: &[],
            released: &[],
            tail: &SILENT,
            doorbell: &SILENT,
            depth_log2: 0,
        };
        self.busy = Vec::new();
        (self.next_slot, self.queue) = (0, QueueId(u32::MAX));
        self.mem.take()
    }
}
