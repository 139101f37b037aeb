//! A card behind the command layer: its doorbells, its cycles, and its place before queues and
//! transports.

use ringbell_nic_abi::GpuVa;

use super::Core;
use crate::card::{SharedCard, Stage};
use crate::memory::nic_memory::NIC_VA;
use crate::queue::SendQueue;
use crate::transport::carded::{CardTransport, ROOM};
use crate::types::Buffer;

/// Most cycles in one step.
const CYCLES: u64 = 512;
/// Cycles in which the card looks once more for an entry whose doorbell came first.
const LOOK: u64 = 1_024;

/// Puts a card before the transports of a NIC without queues. `false`: NIC memory has no room for
/// its payloads.
pub(crate) fn attach(core: &mut Core, card: SharedCard) -> bool {
    let len = u32::from(card.lock().sizes().conns) * 2 * ROOM;
    for transport in std::mem::take(&mut core.streams.transports) {
        let Some((_, lkey, block)) = core.memory.own_region(len.into()) else {
            return false;
        };
        let place = Buffer {
            region: lkey.0,
            va: GpuVa(NIC_VA + block.at),
            len,
        };
        let mapping = core.memory.dma.nic_memory.mapping();
        let room = Stage::new(mapping, block.at, len.into());
        let carded = CardTransport::new(transport, card.clone(), room, place);
        core.streams.transports.push(Box::new(carded));
    }
    core.memory.dma.card = Some(card.clone());
    core.card = Some(card);
    true
}

/// Passes doorbells to the card, and runs it for a while. Returns whether it had something to do.
#[cold]
pub(super) fn step(core: &mut Core) -> bool {
    core.queues.iter_mut().for_each(SendQueue::pass_doorbell);
    let Some(card) = &core.card else { return false };
    let mut card = card.lock();
    let moved = card.run(CYCLES);
    if !moved && core.time.fresh && core.queues.iter().any(SendQueue::is_pending) {
        card.look_again(LOOK);
    }
    core.is_due |= card.is_busy();
    moved
}
