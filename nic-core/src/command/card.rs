//! A card behind the command layer: its doorbells, its cycles, and its place before queues and
//! transports.

use ringbell_nic_abi::GpuVa;

use super::memory::Memory;
use super::streams::Streams;
use crate::card::{SharedCard, Stage};
use crate::memory::nic_memory::NIC_VA;
use crate::queue::{Queues, SendQueue};
use crate::transport::carded::{CardTransport, ROOM};
use crate::types::Buffer;

/// Most cycles in one step.
const CYCLES: u64 = 512;
/// Cycles in which the card looks once more for an entry whose doorbell came first.
const LOOK: u64 = 1_024;

/// Puts a card before the transports of a NIC without queues. `false`: NIC memory has no room for
/// its payloads.
pub(super) fn attach(streams: &mut Streams, memory: &mut Memory, card: &SharedCard) -> bool {
    let len = u32::from(card.lock().sizes().conns) * 2 * ROOM;
    for transport in std::mem::take(&mut streams.transports) {
        let Some((_, lkey, block)) = memory.own_region(len.into()) else {
            return false;
        };
        let place = Buffer {
            region: lkey.0,
            va: GpuVa(NIC_VA + block.at),
            len,
        };
        let mapping = memory.dma.nic_memory.mapping();
        let room = Stage::new(mapping, block.at, len.into());
        let carded = CardTransport::new(transport, card.clone(), room, place);
        streams.transports.push(Box::new(carded));
    }
    memory.dma.card = Some(card.clone());
    true
}

/// What a card has done in a step.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ran {
    pub(super) moved: bool,
    pub(super) is_busy: bool,
}

/// Passes doorbells to the card, and runs it for a while. `fresh`: the clock was read for this
/// step.
#[cold]
pub(super) fn step(queues: &mut Queues, card: &SharedCard, fresh: bool) -> Ran {
    queues.iter_mut().for_each(SendQueue::pass_doorbell);
    let mut card = card.lock();
    let moved = card.run(CYCLES);
    if !moved && fresh && queues.iter().any(SendQueue::is_pending) {
        card.look_again(LOOK);
    }
    let is_busy = card.is_busy();
    Ran { moved, is_busy }
}
