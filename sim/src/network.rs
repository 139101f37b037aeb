//! The modelled network: one switch, a link to each NIC, and the queue of what happens.
//!
//! A frame waits for its NIC's link, crosses it, is stored at the switch's output until that link
//! is free, and crosses that one. An output that has no room for a frame drops it.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringbell_nic_core::port::{Arrived, Capabilities, Checksums, Port, PortCounters};
use ringbell_nic_core::types::NicTime;
use ringbell_nic_core::wire::{MacAddr, ETHERNET_HEADER};

use crate::Profile;

/// Frames that may wait for a NIC's own link: a short ring, so that the NIC decides late.
const OWN_QUEUE: u64 = 16;

/// What happens to a node.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum What {
    /// A whole frame is at the switch, on its way to this node.
    AtSwitch(Arc<Vec<u8>>),
    /// A frame has arrived.
    Arrives(Arc<Vec<u8>>),
    /// A timer is due.
    Due,
}

/// Something that happens, in the order of time, then of its making. Times are picoseconds.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Event {
    pub(crate) at: u64,
    seq: u64,
    pub(crate) node: usize,
    pub(crate) what: What,
}

/// One link's two directions.
#[derive(Debug, Default)]
struct Link {
    /// When the last frame to the switch has left the NIC.
    up_free: u64,
    /// When the last frame to the NIC has left the switch.
    down_free: u64,
    inbox: VecDeque<Arc<Vec<u8>>>,
}

/// Links and queue of events.
#[derive(Debug)]
pub(crate) struct Fabric {
    profile: Profile,
    links: Vec<Link>,
    events: BinaryHeap<Reverse<Event>>,
    seq: u64,
    loss: f64,
    random: u64,
    pub(crate) packets: u64,
    pub(crate) lost: u64,
    /// Longest frame that was sent.
    pub(crate) longest: usize,
    /// The run is over: what a NIC sends when it is dropped, at the host's time, is not sent.
    pub(crate) is_over: bool,
}

/// The network, shared by its ports.
#[derive(Debug, Clone)]
pub(crate) struct Shared(Arc<Mutex<Fabric>>);

impl Shared {
    pub(crate) fn new(nodes: usize, profile: Profile, loss: f64, seed: u64) -> Shared {
        Shared(Arc::new(Mutex::new(Fabric {
            profile,
            links: (0..nodes).map(|_| Link::default()).collect(),
            events: BinaryHeap::new(),
            seq: 0,
            loss,
            random: seed,
            packets: 0,
            lost: 0,
            longest: 0,
            is_over: false,
        })))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Fabric> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A node's port; frames have checksums where somebody reads them.
    pub(crate) fn port(&self, node: usize, checksums: Checksums) -> SwitchPort {
        let mtu = self.lock().profile.mtu;
        SwitchPort {
            node,
            fabric: self.clone(),
            capabilities: Capabilities::of_frames(mac(node), mtu, checksums),
            room: vec![0; ETHERNET_HEADER + mtu],
            arrived: None,
            full_until: None,
            counters: PortCounters::default(),
        }
    }
}

impl Fabric {
    pub(crate) fn add(&mut self, at: u64, node: usize, what: What) {
        self.seq += 1;
        let seq = self.seq;
        let event = Event {
            at,
            seq,
            node,
            what,
        };
        self.events.push(Reverse(event));
    }

    pub(crate) fn next(&mut self) -> Option<Event> {
        self.events.pop().map(|e| e.0)
    }

    /// The node of the next event.
    pub(crate) fn peek_node(&self) -> Option<usize> {
        self.events.peek().map(|e| e.0.node)
    }

    /// When a node's port has room for a frame of any length.
    pub(crate) fn room_at(&self, node: usize) -> u64 {
        let longest = ETHERNET_HEADER + self.profile.mtu;
        let full = OWN_QUEUE * self.profile.frame_ps(longest);
        self.links[node].up_free.saturating_sub(full)
    }

    /// Puts a frame that stands at the switch on the link of its destination.
    pub(crate) fn forward(&mut self, at: u64, node: usize, frame: Arc<Vec<u8>>) {
        let waits = self.links[node].down_free.saturating_sub(at);
        let bytes = waits as f64 * self.profile.link_gbps / 8_000.0;
        if self.is_lost() || bytes as u64 + frame.len() as u64 > self.profile.switch_queue {
            self.lost += 1;
            return;
        }
        let link = &mut self.links[node];
        link.down_free = link.down_free.max(at) + self.profile.frame_ps(frame.len());
        let there = link.down_free + self.profile.link_delay_ns * 1_000;
        self.add(there, node, What::Arrives(frame));
    }

    pub(crate) fn arrive(&mut self, node: usize, frame: Arc<Vec<u8>>) {
        self.links[node].inbox.push_back(frame);
    }

    /// A draw by SplitMix64.
    fn is_lost(&mut self) -> bool {
        if self.loss <= 0.0 {
            return false;
        }
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (((z ^ (z >> 31)) >> 11) as f64) < self.loss * (1u64 << 53) as f64
    }

    /// Sends a frame from a node's port.
    fn send(&mut self, now: u64, from: usize, frame: Vec<u8>) {
        self.packets += 1;
        self.longest = self.longest.max(frame.len());
        let took = self.profile.frame_ps(frame.len());
        let link = &mut self.links[from];
        link.up_free = link.up_free.max(now) + took;
        let at = link.up_free + self.profile.link_delay_ns * 1_000;
        let to = frame.get(..6).and_then(|d| node_of(d, self.links.len()));
        let all = frame.first().is_some_and(|b| b & 1 == 1);
        let frame = Arc::new(frame);
        for node in 0..self.links.len() {
            if node != from && (all || to == Some(node)) {
                self.add(at, node, What::AtSwitch(frame.clone()));
            }
        }
    }
}

/// Address of a node's port: locally administered.
pub(crate) fn mac(node: usize) -> MacAddr {
    let [high, low] = (node as u16).to_be_bytes();
    MacAddr([0x02, 0x53, 0x49, 0x4d, high, low])
}

fn node_of(address: &[u8], nodes: usize) -> Option<usize> {
    let node = usize::from(u16::from_be_bytes([address[4], address[5]]));
    (node < nodes && mac(node).0 == *address).then_some(node)
}

/// A NIC's port.
#[derive(Debug)]
pub(crate) struct SwitchPort {
    node: usize,
    fabric: Shared,
    capabilities: Capabilities,
    room: Vec<u8>,
    arrived: Option<Arc<Vec<u8>>>,
    /// A frame found no room; when there is some.
    full_until: Option<NicTime>,
    counters: PortCounters,
}

impl Port for SwitchPort {
    fn describe(&self) -> String {
        format!("modelled switch, port {}", self.node)
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn receive(&mut self, now: NicTime) -> Option<Arrived<'_>> {
        // Passed, whether or not another frame was tried.
        self.full_until = self.full_until.filter(|t| *t > now);
        self.arrived = self.fabric.lock().links[self.node].inbox.pop_front();
        let frame = self.arrived.as_ref()?;
        self.counters.rx_frames += 1;
        self.counters.rx_bytes += frame.len() as u64;
        Some(Arrived::Frame(frame))
    }

    fn is_quiet(&self) -> bool {
        self.full_until.is_none() && self.fabric.lock().links[self.node].inbox.is_empty()
    }

    fn tx_frame(&mut self, now: NicTime, _: MacAddr) -> Option<&mut [u8]> {
        let fabric = self.fabric.lock();
        if fabric.is_over {
            return None;
        }
        let room_at = fabric.room_at(self.node).div_ceil(1_000);
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
        let frame = frame.to_vec();
        self.fabric.lock().send(now.0 * 1_000, self.node, frame);
    }

    fn next_timer(&self) -> Option<NicTime> {
        self.full_until
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }
}
