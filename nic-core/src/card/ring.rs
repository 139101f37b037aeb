//! The block of a card that executes programs of rings (FpgaNIC §A.2, Table 8), and who uses it. A
//! card has one.
//!
//! The card reads and writes the buffers of an operation through its GTLB. The NIC carries its
//! messages: from the previous rank to the card, and from the card to the next rank.

use std::collections::VecDeque;

use ringbell_nic_abi::{DataType, ReduceOp};

use super::shared::{hardware_type, RingUse};
use super::{Mapped, RingEnd, RingEvent, RingStep, Shared, SharedCard};

/// Whether the block reduces this type by this operation.
pub(crate) fn reduces(dtype: DataType, op: ReduceOp) -> bool {
    use DataType as D;
    match op {
        ReduceOp::Sum => matches!(dtype, D::F32 | D::F16 | D::Bf16 | D::I32 | D::U32),
        ReduceOp::Min | ReduceOp::Max => matches!(dtype, D::F32 | D::F16 | D::Bf16 | D::I32),
        _ => false,
    }
}

impl Shared {
    /// Whether the card has the block.
    pub(crate) fn has_ring(&mut self) -> bool {
        self.card.ring().is_some()
    }

    /// The communicator whose operation has the block.
    pub(crate) fn ring_owner(&self) -> Option<u32> {
        self.ring.owner
    }

    /// Takes what the block has given.
    pub(super) fn take_ring_events(&mut self) {
        if self.ring.owner.is_some() {
            if let Some(ring) = self.card.ring() {
                self.ring.events.extend(std::iter::from_fn(|| ring.event()));
            }
        }
    }
}

/// The block in the hands of one operation. Dropped, it is cleared, and its memory is the owner's
/// again.
#[derive(Debug)]
pub(crate) struct RingLease {
    card: SharedCard,
    /// Memory of the operation, in the card's GTLB: address of the NIC, bytes.
    mapped: Vec<(u64, u64, Mapped)>,
}

impl RingLease {
    /// The block for an operation of communicator `owner`. `None`: there is none, or it is in use.
    pub(crate) fn take(card: &SharedCard, owner: u32) -> Option<RingLease> {
        let mut shared = card.lock();
        if !shared.has_ring() || shared.ring.owner.is_some() {
            return None;
        }
        shared.ring = RingUse {
            owner: Some(owner),
            events: VecDeque::new(),
        };
        drop(shared);
        Some(RingLease {
            card: card.clone(),
            mapped: Vec::new(),
        })
    }

    /// Enters a buffer into the card's GTLB; returns its address there. `bus` gives the bus address
    /// of a byte of it.
    pub(crate) fn map(
        &mut self,
        va: u64,
        bytes: u64,
        bus: &mut dyn FnMut(u64) -> Option<u64>,
    ) -> Option<u64> {
        let len = u32::try_from(bytes).ok().filter(|n| *n > 0)?;
        let mapped = self.card.lock().map(va, len, bus)?;
        let at = mapped.va;
        self.mapped.push((va, bytes, mapped));
        Some(at)
    }

    /// The NIC's address of an address of the card.
    fn address(&self, at: u64) -> u64 {
        let meets = |m: &&(u64, u64, Mapped)| at.wrapping_sub(m.2.va) < m.1;
        let found = self.mapped.iter().find(meets);
        found.map_or(at, |(va, _, mapped)| va + (at - mapped.va))
    }

    pub(crate) fn most_steps(&self) -> usize {
        let mut card = self.card.lock();
        card.card.ring().map_or(0, |ring| ring.most_steps())
    }

    pub(crate) fn start(&mut self, steps: &[RingStep], dtype: DataType, op: ReduceOp) {
        let mut card = self.card.lock();
        if let Some(ring) = card.card.ring() {
            ring.start(steps, hardware_type(dtype, op), op);
        }
        card.sort();
    }

    pub(crate) fn give(&mut self, message: Vec<u8>) {
        if let Some(ring) = self.card.lock().card.ring() {
            ring.give(message);
        }
    }

    pub(crate) fn backlog(&self) -> usize {
        let mut card = self.card.lock();
        card.card.ring().map_or(0, |ring| ring.backlog())
    }

    pub(crate) fn grant(&mut self, messages: u32) {
        if let Some(ring) = self.card.lock().card.ring() {
            ring.grant(messages);
        }
    }

    pub(crate) fn has_events(&self) -> bool {
        self.card.lock().ring.has_events()
    }

    /// The oldest event. The address of a fault is the NIC's.
    pub(crate) fn event(&mut self) -> Option<RingEvent> {
        let mut card = self.card.lock();
        let event = card.ring.events.pop_front()?;
        let RingEvent::Ended(RingEnd::Fault(at)) = event else {
            return Some(event);
        };
        card.lost(at);
        Some(RingEvent::Ended(RingEnd::Fault(self.address(at))))
    }

    /// Counts the operation as one whose steps the card has executed.
    pub(crate) fn count(&self) {
        self.card.lock().counts.programs += 1;
    }
}

impl Drop for RingLease {
    fn drop(&mut self) {
        let mut card = self.card.lock();
        if let Some(ring) = card.card.ring() {
            ring.clear();
        }
        card.ring = RingUse::default();
        for (.., mapped) in &self.mapped {
            card.unmap(mapped);
        }
    }
}
