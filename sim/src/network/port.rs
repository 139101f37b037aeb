//! A NIC's port to the modelled network.

use ringbell_nic_core::port::{Arrived, Capabilities, Checksums, Port, PortCounters};
use ringbell_nic_core::types::NicTime;
use ringbell_nic_core::wire::{MacAddr, ETHERNET_HEADER};

use super::address::mac;
use super::fabric::Shared;
use super::flow::Frame;

/// A NIC's port.
#[derive(Debug)]
pub(crate) struct SwitchPort {
    rank: usize,
    fabric: Shared,
    capabilities: Capabilities,
    room: Vec<u8>,
    arrived: Option<Box<Frame>>,
    /// A frame found no room; when there is some.
    full_until: Option<NicTime>,
    counters: PortCounters,
}

impl SwitchPort {
    /// A rank's port; frames have checksums where a capture reads them.
    pub(crate) fn new(rank: usize, fabric: &Shared, checksums: Checksums) -> SwitchPort {
        let mtu = fabric.lock().profile.mtu;
        SwitchPort {
            rank,
            fabric: fabric.clone(),
            capabilities: Capabilities::of_frames(mac(rank), mtu, checksums),
            room: vec![0; ETHERNET_HEADER + mtu],
            arrived: None,
            full_until: None,
            counters: PortCounters::default(),
        }
    }
}

impl Port for SwitchPort {
    fn describe(&self) -> String {
        format!("modelled network, rank {}", self.rank)
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn receive(&mut self, now: NicTime) -> Option<Arrived<'_>> {
        // Passed, whether or not another frame was tried.
        self.full_until = self.full_until.filter(|t| *t > now);
        let mut fabric = self.fabric.lock();
        let next = fabric.inboxes[self.rank].pop_front();
        let taken = std::mem::replace(&mut self.arrived, next);
        fabric.spare.extend(taken.map(|frame| *frame));
        drop(fabric);
        let frame = &self.arrived.as_ref()?.bytes;
        self.counters.rx_frames += 1;
        self.counters.rx_bytes += frame.len() as u64;
        Some(Arrived::Frame(frame))
    }

    fn is_quiet(&self) -> bool {
        self.full_until.is_none() && self.fabric.lock().inboxes[self.rank].is_empty()
    }

    fn tx_frame(&mut self, now: NicTime, _: MacAddr) -> Option<&mut [u8]> {
        let fabric = self.fabric.lock();
        if fabric.is_over {
            return None;
        }
        // While its link is paused there is no time to wait for: the link's going on is an event.
        let room_at = fabric.room_at(self.rank)?.div_ceil(1_000);
        self.full_until = (room_at > now.0).then_some(NicTime(room_at));
        if self.full_until.is_some() {
            return None;
        }
        drop(fabric);
        Some(&mut self.room)
    }

    fn tx_commit(&mut self, now: NicTime, len: usize) {
        let Some(frame) = self.room.get(..len).filter(|f| f.len() >= ETHERNET_HEADER) else {
            self.counters.tx_dropped += 1;
            return;
        };
        self.counters.tx_frames += 1;
        self.counters.tx_bytes += len as u64;
        self.fabric.lock().send(now.0 * 1_000, self.rank, frame);
    }

    fn next_timer(&self) -> Option<NicTime> {
        self.full_until
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }
}
