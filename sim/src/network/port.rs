//! A NIC's ports to the modelled network.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringbell_nic_core::port::{Arrived, Capabilities, Checksums, Port, PortCounters};
use ringbell_nic_core::types::NicTime;
use ringbell_nic_core::wire::{MacAddr, ETHERNET_HEADER};

use super::address::mac;
use super::flow::Frame;
use super::link::{frame_ps, LinkId};
use crate::host::Processor;
use crate::Cluster;

/// Frames that may wait for a NIC's own link: a short ring, so that the NIC decides late, and an
/// acknowledgement does not wait for the data of another connection.
const OWN_QUEUE: u64 = 2;
/// Frames that a NIC has taken whose memory is kept for the next ones.
const SPARE: usize = 16;

/// A frame that a NIC has sent. Times are picoseconds.
#[derive(Debug)]
pub(crate) struct Sent {
    /// By which link.
    pub(super) link: LinkId,
    pub(super) frame: Box<Frame>,
    /// When the NIC has given it.
    pub(super) given: u64,
    /// When its processor has given it to the link.
    pub(super) at: u64,
}

/// What is between a NIC and one of its links, and known to no other NIC.
#[derive(Debug)]
pub(crate) struct Adapter {
    link: LinkId,
    rank: usize,
    ranks: usize,
    mtu: usize,
    /// Of the NIC's link.
    gbps: f64,
    processor: Processor,
    inbox: VecDeque<Box<Frame>>,
    spare: VecDeque<Box<Frame>>,
    /// When all that the NIC has given to its link will have left, without pauses.
    given: u64,
    /// Its link is paused.
    is_paused: bool,
    /// The run is over: what a NIC sends when it is dropped, at the host's time, is not sent.
    is_over: bool,
    sent: Vec<Sent>,
}

/// The same, shared by a port and the loop that steps its NIC.
#[derive(Debug, Clone)]
pub(crate) struct SharedAdapter {
    /// The link that leaves the NIC.
    pub(crate) link: LinkId,
    adapter: Arc<Mutex<Adapter>>,
}

impl SharedAdapter {
    /// That of a rank's link, which has this rate.
    pub(super) fn new(rank: usize, cluster: &Cluster, link: LinkId, gbps: f64) -> SharedAdapter {
        let slow = cluster.slow.iter().filter(|s| s.rank == rank);
        let factor = slow.fold(1.0, |all, s| all * s.factor);
        let adapter = Adapter {
            link,
            rank,
            ranks: cluster.ranks,
            mtu: cluster.profile.mtu,
            gbps,
            processor: Processor::new(cluster.profile.host, factor),
            inbox: VecDeque::new(),
            spare: VecDeque::new(),
            given: 0,
            is_paused: false,
            is_over: false,
            sent: Vec::new(),
        };
        SharedAdapter {
            link,
            adapter: Arc::new(Mutex::new(adapter)),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Adapter> {
        let adapter = self.adapter.lock();
        adapter.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Adapter {
    /// When the link has room for a frame of any length; none while it is paused. A frame that is
    /// fetched needs none.
    pub(crate) fn room_at(&self) -> Option<u64> {
        let longest = ETHERNET_HEADER + self.mtu;
        let waits = OWN_QUEUE * frame_ps(self.gbps, longest) + self.processor.send_delay();
        (!self.is_paused).then(|| self.given.saturating_sub(waits))
    }

    /// When the NIC has a frame that has crossed its link.
    pub(crate) fn receives(&mut self, at: u64, frame: &Frame) -> u64 {
        self.processor.receives(at, frame.bytes.len())
    }

    /// Gives a frame to the NIC.
    pub(crate) fn received(&mut self, frame: Box<Frame>) {
        self.inbox.push_back(frame);
    }

    /// What the NIC has sent since the last time.
    pub(crate) fn take_sent(&mut self) -> Vec<Sent> {
        std::mem::take(&mut self.sent)
    }

    /// The link is paused.
    pub(crate) fn pauses(&mut self) {
        self.is_paused = true;
    }

    /// The link goes on; what waits will have left by a time.
    pub(crate) fn goes_on(&mut self, given: u64) {
        (self.is_paused, self.given) = (false, given);
    }

    /// Nothing is sent any more.
    pub(crate) fn end(&mut self) {
        self.is_over = true;
    }

    fn send(&mut self, now: u64, bytes: &[u8]) {
        let at = self.processor.sends(now, bytes.len());
        self.given = self.given.max(at) + frame_ps(self.gbps, bytes.len());
        let mut frame = self.spare.pop_back().unwrap_or_default();
        frame.fill(bytes, self.ranks);
        let (link, given) = (self.link, now);
        self.sent.push(Sent {
            link,
            frame,
            given,
            at,
        });
    }
}

/// A NIC's port to one of its links.
#[derive(Debug)]
pub(crate) struct LinkPort {
    adapter: SharedAdapter,
    capabilities: Capabilities,
    room: Vec<u8>,
    arrived: Option<Box<Frame>>,
    /// A frame found no room; when there is some.
    full_until: Option<NicTime>,
    counters: PortCounters,
}

impl LinkPort {
    /// The port; frames have checksums where a capture reads them.
    pub(crate) fn new(adapter: &SharedAdapter, checksums: Checksums) -> LinkPort {
        let Adapter { rank, mtu, .. } = *adapter.lock();
        LinkPort {
            adapter: adapter.clone(),
            capabilities: Capabilities::of_frames(mac(rank), mtu, checksums),
            room: vec![0; ETHERNET_HEADER + mtu],
            arrived: None,
            full_until: None,
            counters: PortCounters::default(),
        }
    }
}

impl Port for LinkPort {
    fn describe(&self) -> String {
        format!("modelled network, rank {}", self.adapter.lock().rank)
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn receive(&mut self, now: NicTime) -> Option<Arrived<'_>> {
        // Passed, whether or not another frame was tried.
        self.full_until = self.full_until.filter(|t| *t > now);
        let mut adapter = self.adapter.lock();
        let next = adapter.inbox.pop_front();
        let taken = std::mem::replace(&mut self.arrived, next);
        if adapter.spare.len() < SPARE {
            adapter.spare.extend(taken);
        }
        drop(adapter);
        let frame = &self.arrived.as_ref()?.bytes;
        self.counters.rx_frames += 1;
        self.counters.rx_bytes += frame.len() as u64;
        Some(Arrived::Frame(frame))
    }

    fn is_quiet(&self) -> bool {
        self.full_until.is_none() && self.adapter.lock().inbox.is_empty()
    }

    fn tx_frame(&mut self, now: NicTime, _: MacAddr) -> Option<&mut [u8]> {
        let adapter = self.adapter.lock();
        if adapter.is_over {
            return None;
        }
        // While its link is paused there is no time to wait for: the link's going on is an event.
        let room_at = adapter.room_at()?.div_ceil(1_000);
        self.full_until = (room_at > now.0).then_some(NicTime(room_at));
        if self.full_until.is_some() {
            return None;
        }
        drop(adapter);
        Some(&mut self.room)
    }

    fn tx_commit(&mut self, now: NicTime, len: usize) {
        let Some(frame) = self.room.get(..len).filter(|f| f.len() >= ETHERNET_HEADER) else {
            self.counters.tx_dropped += 1;
            return;
        };
        self.counters.tx_frames += 1;
        self.counters.tx_bytes += len as u64;
        self.adapter.lock().send(now.0 * 1_000, frame);
    }

    fn next_timer(&self) -> Option<NicTime> {
        self.full_until
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }
}
