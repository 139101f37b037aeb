//! Links, what waits for them, and what happens to frames at their ends.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringbell_nic_core::wire::ETHERNET_HEADER;

use super::event::{Event, Queue, What};
use super::flow::{weight, Frame};
use super::graph::{Graph, Link, LinkId};
use crate::fault::Breaks;
use crate::host::Processors;
use crate::random::Random;
use crate::timeline::{Crossing, LinkTrack, Timeline};
use crate::{Cluster, Failure, Profile};

/// Frames that may wait for a NIC's own link: a short ring, so that the NIC decides late, and an
/// acknowledgement does not wait for the data of another connection.
const OWN_QUEUE: u64 = 2;

/// Links, what waits at their ends, and the queue of events.
#[derive(Debug)]
pub(crate) struct Fabric {
    pub(super) profile: Profile,
    graph: Graph,
    /// What has arrived, by rank.
    pub(super) inboxes: Vec<VecDeque<Arc<Frame>>>,
    /// By rank.
    is_dead: Vec<bool>,
    events: Queue,
    processors: Processors,
    loss: f64,
    random: Random,
    hash_seed: u64,
    pub(crate) packets: u64,
    /// Bytes of those frames.
    pub(crate) bytes: u64,
    pub(crate) lost: u64,
    /// Longest frame that was sent.
    pub(crate) longest: usize,
    /// What is seen, if the run has a timeline.
    pub(crate) timeline: Option<Timeline>,
    /// The run is over: what a NIC sends when it is dropped, at the host's time, is not sent.
    pub(crate) is_over: bool,
}

/// The network, shared by its ports.
#[derive(Debug, Clone)]
pub(crate) struct Shared(Arc<Mutex<Fabric>>);

impl Shared {
    /// The network of a cluster.
    ///
    /// # Errors
    /// Its topology is none of NICs at switches, or has too few ranks.
    pub(crate) fn new(cluster: &Cluster) -> Result<Shared, Failure> {
        let mut graph = match &cluster.network.topology {
            None => Graph::one_switch(cluster.ranks, &cluster.profile),
            Some(topology) => Graph::of(topology, cluster.ranks, &cluster.profile)?,
        };
        let mut processors = Processors::new(cluster.ranks, cluster.profile.host);
        for slow in &cluster.slow {
            graph.slow(slow.rank, slow.factor);
            processors.slow(slow.rank, slow.factor);
        }
        Ok(Shared(Arc::new(Mutex::new(Fabric {
            profile: cluster.profile.clone(),
            graph,
            inboxes: vec![VecDeque::new(); cluster.ranks],
            is_dead: vec![false; cluster.ranks],
            events: Queue::default(),
            processors,
            loss: cluster.loss,
            random: Random(cluster.seed),
            hash_seed: cluster.network.hash_seed,
            packets: 0,
            bytes: 0,
            lost: 0,
            longest: 0,
            timeline: None,
            is_over: false,
        }))))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Fabric> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Fabric {
    /// The nodes of each wire, ranks first, and its rate in Gb/s.
    pub(crate) fn wires(&self) -> Vec<([usize; 2], f64)> {
        self.graph.wires()
    }

    /// Links as a timeline shows them.
    pub(crate) fn tracks(&self) -> Vec<LinkTrack> {
        self.graph.tracks()
    }

    /// Steps a rank's NIC at this time.
    pub(crate) fn step_at(&mut self, at: u64, rank: usize) {
        self.events.add(at, rank, What::Due);
    }

    /// Lets a rank's kernel run at this time.
    pub(crate) fn kernel_at(&mut self, at: u64, rank: usize) {
        self.events.add(at, rank, What::Kernel);
    }

    /// Lets a rank's host look at its NIC at this time.
    pub(crate) fn look_at(&mut self, at: u64, rank: usize) {
        self.events.add(at, rank, What::Looks);
    }

    pub(crate) fn next(&mut self) -> Option<Event> {
        self.events.next()
    }

    /// The rank of the next event, if it is one of a NIC.
    pub(crate) fn peek_rank(&self) -> Option<usize> {
        let node = self.events.peek_node()?;
        (node < self.inboxes.len()).then_some(node)
    }

    /// When the next event is.
    pub(crate) fn peek_at(&self) -> Option<u64> {
        self.events.peek_at()
    }

    /// When a rank's port has room for a frame of any length. One that is fetched needs none.
    pub(crate) fn room_at(&self, rank: usize) -> u64 {
        let longest = ETHERNET_HEADER + self.profile.mtu;
        let link = self.graph.link(self.graph.of_rank(rank));
        let waits = OWN_QUEUE * link.frame_ps(longest);
        link.free
            .saturating_sub(waits + self.processors.send_delay())
    }

    /// Lets something break at this time.
    pub(crate) fn plan(&mut self, at: u64, what: Breaks) {
        let node = match what {
            Breaks::Rank(rank) => rank,
            Breaks::Wire(_) => usize::MAX,
        };
        self.events.add(at, node, What::Breaks(what));
    }

    /// Something breaks now.
    pub(crate) fn broken(&mut self, what: Breaks) {
        match what {
            Breaks::Rank(rank) => self.is_dead[rank] = true,
            Breaks::Wire(wire) => self.graph.cut(wire),
        }
    }

    /// Whether a rank's NIC has stopped.
    pub(crate) fn is_dead(&self, rank: usize) -> bool {
        self.is_dead[rank]
    }

    /// Gives a frame that has crossed a link to the NIC or the switch at its end. Returns the rank
    /// whose NIC it is.
    pub(crate) fn crossed(&mut self, at: u64, link: LinkId, frame: Arc<Frame>) -> Option<usize> {
        let Link {
            to: node, is_cut, ..
        } = *self.graph.link(link);
        if is_cut || self.is_dead.get(node) == Some(&true) {
            self.lose(at, link, &frame);
            return None;
        }
        if node < self.inboxes.len() {
            return self.receive(at, node, frame);
        }
        let to = frame.to?;
        // A flow keeps its link until that is cut; a cut of another link does not move it.
        let heavy = |l: &LinkId| weight(self.hash_seed, frame.flow, l.index());
        match self.graph.toward(node, to).max_by_key(heavy) {
            Some(output) => self.store(at, output, frame),
            // Cuts have left no way.
            None => self.lose(at, link, &frame),
        }
        None
    }

    /// Loses a frame on a link, or before it.
    fn lose(&mut self, at: u64, link: LinkId, frame: &Frame) {
        self.lost += 1;
        if let Some(timeline) = &mut self.timeline {
            timeline.lost(link.index(), at, frame.bytes.len());
        }
    }

    /// Lets a rank's NIC take a frame. Returns the rank if it has it at once.
    fn receive(&mut self, at: u64, rank: usize, frame: Arc<Frame>) -> Option<usize> {
        let done = self.processors.receives(at, rank, frame.bytes.len());
        if done > at {
            self.events.add(done, rank, What::Received(frame));
            return None;
        }
        self.received(rank, frame);
        Some(rank)
    }

    /// Gives a frame to a rank's port.
    pub(crate) fn received(&mut self, rank: usize, frame: Arc<Frame>) {
        self.inboxes[rank].push_back(frame);
    }

    /// Stores a frame at a switch's output.
    fn store(&mut self, at: u64, output: LinkId, frame: Arc<Frame>) {
        let link = self.graph.link(output);
        let room = self.profile.switch_queue;
        let is_full = link.waiting(at) + frame.bytes.len() as u64 > room;
        if self.random.happens(self.loss) || is_full {
            return self.lose(at, output, &frame);
        }
        self.put(at, output, frame);
    }

    /// Puts a frame behind the others that wait for a link.
    fn put(&mut self, at: u64, id: LinkId, frame: Arc<Frame>) {
        let link = self.graph.link_mut(id);
        let begin = link.free.max(at);
        link.free = begin + link.frame_ps(frame.bytes.len());
        let (there, to) = (link.free + link.delay_ps, link.to);
        if let Some(timeline) = &mut self.timeline {
            timeline.crossed(Crossing {
                link: id.index(),
                bytes: frame.bytes.len(),
                given: at,
                sent: (begin, link.free),
            });
        }
        self.events.add(there, to, What::Crossed(id, frame));
    }

    /// Sends a frame from a rank's port.
    pub(super) fn send(&mut self, now: u64, from: usize, bytes: Vec<u8>) {
        self.packets += 1;
        self.bytes += bytes.len() as u64;
        self.longest = self.longest.max(bytes.len());
        let at = self.processors.sends(now, from, bytes.len());
        let frame = Frame::new(bytes, self.inboxes.len());
        self.put(at, self.graph.of_rank(from), Arc::new(frame));
    }
}
