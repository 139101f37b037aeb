//! Links, what waits for them, and what happens to frames at their ends.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringbell_nic_core::port::impair::mark_frame;
use ringbell_nic_core::wire::ETHERNET_HEADER;

use super::event::{Event, Queue, What};
use super::flow::{weight, Frame};
use super::graph::Graph;
use super::link::{LinkId, Waiting};
use crate::fault::Breaks;
use crate::host::Processors;
use crate::random::Random;
use crate::timeline::{Crossing, LinkTrack, Timeline};
use crate::{Cluster, Failure, Profile, Switches};

/// Frames that may wait for a NIC's own link: a short ring, so that the NIC decides late, and an
/// acknowledgement does not wait for the data of another connection.
const OWN_QUEUE: u64 = 2;
/// A pause on its link, without the FCS.
const PAUSE_FRAME: usize = 60;

/// Links, what waits at their ends, and the queue of events.
#[derive(Debug)]
pub(crate) struct Fabric {
    pub(super) profile: Profile,
    graph: Graph,
    /// What has arrived, by rank.
    pub(super) inboxes: Vec<VecDeque<Box<Frame>>>,
    /// Frames that NICs have taken, for the next ones: they have the memory.
    pub(super) spare: Vec<Frame>,
    /// By rank: when all that its NIC has given to its link will have left, without pauses.
    given: Vec<u64>,
    /// By node: bytes that wait there, if it is a switch.
    held: Vec<u64>,
    /// By rank.
    is_dead: Vec<bool>,
    events: Queue,
    processors: Processors,
    loss: f64,
    random: Random,
    hash_seed: u64,
    /// Switches spread the frames of a flow.
    spray: bool,
    /// Frames that have neither arrived nor been lost.
    pub(crate) under_way: u64,
    pub(crate) packets: u64,
    /// Bytes of those frames.
    pub(crate) bytes: u64,
    pub(crate) lost: u64,
    /// Frames that switches have marked.
    pub(crate) marked: u64,
    /// How often a link was paused.
    pub(crate) pauses: u64,
    /// Most bytes that waited at an output.
    pub(crate) deepest: u64,
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
            held: vec![0; graph.nodes()],
            graph,
            inboxes: (0..cluster.ranks).map(|_| VecDeque::new()).collect(),
            spare: Vec::new(),
            given: vec![0; cluster.ranks],
            is_dead: vec![false; cluster.ranks],
            events: Queue::default(),
            processors,
            loss: cluster.loss,
            random: Random(cluster.seed),
            hash_seed: cluster.network.hash_seed,
            spray: cluster.network.spray,
            under_way: 0,
            packets: 0,
            bytes: 0,
            lost: 0,
            marked: 0,
            pauses: 0,
            deepest: 0,
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

    /// When a rank's port has room for a frame of any length; none while its link is paused. One
    /// that is fetched needs none.
    pub(crate) fn room_at(&self, rank: usize) -> Option<u64> {
        let longest = ETHERNET_HEADER + self.profile.mtu;
        let link = self.graph.link(self.graph.of_rank(rank));
        let waits = OWN_QUEUE * link.frame_ps(longest) + self.processors.send_delay();
        (!link.is_paused).then(|| self.given[rank].saturating_sub(waits))
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
    pub(crate) fn crossed(&mut self, at: u64, link: LinkId, frame: Box<Frame>) -> Option<usize> {
        let l = self.graph.link(link);
        let (node, is_cut) = (l.to, l.is_cut);
        if is_cut || self.is_dead.get(node) == Some(&true) {
            self.lose(at, link, &frame);
            return None;
        }
        if node < self.inboxes.len() {
            return self.receive(at, node, frame);
        }
        let Some(to) = frame.to else {
            // No rank has its address.
            self.under_way -= 1;
            return None;
        };
        // A flow keeps its link until that is cut; a cut of another link does not move it.
        let heavy = |l: &LinkId| weight(self.hash_seed, frame.flow, l.index());
        match self.graph.toward(node, to).max_by_key(heavy) {
            Some(output) => self.store(at, [link, output], frame),
            // Cuts have left no way.
            None => self.lose(at, link, &frame),
        }
        None
    }

    /// Loses a frame on a link, or before it.
    fn lose(&mut self, at: u64, link: LinkId, frame: &Frame) {
        self.lost += 1;
        self.under_way -= 1;
        if let Some(timeline) = &mut self.timeline {
            timeline.lost(link.index(), at, frame.bytes.len());
        }
    }

    /// Lets a rank's NIC take a frame. Returns the rank if it has it at once.
    fn receive(&mut self, at: u64, rank: usize, frame: Box<Frame>) -> Option<usize> {
        let done = self.processors.receives(at, rank, frame.bytes.len());
        if done > at {
            self.events.add(done, rank, What::Received(frame));
            return None;
        }
        self.received(rank, frame);
        Some(rank)
    }

    /// Gives a frame to a rank's port.
    pub(crate) fn received(&mut self, rank: usize, frame: Box<Frame>) {
        self.under_way -= 1;
        self.inboxes[rank].push_back(frame);
    }

    /// Stores a frame that came by the first link at the output to the second.
    fn store(&mut self, at: u64, [from, output]: [LinkId; 2], mut frame: Box<Frame>) {
        let switches = self.profile.switches;
        let node = self.graph.link(from).to;
        let bytes = frame.bytes.len() as u64;
        let waiting = self.graph.link(output).waiting_bytes();
        let has_room = switches.has_room(bytes, waiting, self.held[node]);
        if self.random.happens(self.loss) || !has_room {
            return self.lose(at, output, &frame);
        }
        if switches.marks(waiting, &mut self.random) && mark_frame(&mut frame.bytes) {
            self.marked += 1;
        }
        self.held[node] += bytes;
        self.graph.link_mut(from).stored += bytes;
        self.put(at, output, frame, Some(from));
        let waiting = self.graph.link(output).waiting_bytes();
        self.deepest = self.deepest.max(waiting);
        self.ask(at, from, &switches);
    }

    /// Takes a frame that leaves a switch from what waits there.
    fn leaves(&mut self, at: u64, from: LinkId, bytes: u64) {
        let link = self.graph.link_mut(from);
        link.stored -= bytes;
        self.held[link.to] -= bytes;
        let switches = self.profile.switches;
        self.ask(at, from, &switches);
    }

    /// Lets a switch pause a link or let it go on, by what it stores of its frames.
    fn ask(&mut self, at: u64, id: LinkId, switches: &Switches) {
        let Some(pauses) = switches.pauses else {
            return;
        };
        let link = self.graph.link(id);
        let asks = match link.has_asked {
            false => link.stored > pauses.pause_bytes,
            true => link.stored > pauses.resume_bytes,
        };
        if asks == link.has_asked {
            return;
        }
        // Before all that waits, behind the frame that crosses.
        let back = self.graph.link(id.back());
        let there = back.busy.max(at) + back.frame_ps(PAUSE_FRAME) + back.delay_ps;
        let node = back.to;
        self.graph.link_mut(id).has_asked = asks;
        self.pauses += u64::from(asks);
        self.events.add(there, node, What::Paused(id, asks));
    }

    /// A pause of a link has come to where it begins, or its end. Returns the rank whose NIC may
    /// send again.
    pub(crate) fn paused(&mut self, at: u64, id: LinkId, is_paused: bool) -> Option<usize> {
        self.graph.link_mut(id).is_paused = is_paused;
        if is_paused {
            return None;
        }
        self.go_on(at, id);
        let link = self.graph.link(id);
        let free = link.busy.max(at) + link.waiting_ps();
        let rank = self.graph.link(id.back()).to;
        *self.given.get_mut(rank)? = free;
        Some(rank)
    }

    /// A link is free for what waits.
    pub(crate) fn free(&mut self, at: u64, id: LinkId) {
        self.graph.link_mut(id).is_awaited = false;
        self.go_on(at, id);
    }

    /// Puts a frame behind the others that wait for a link.
    fn put(&mut self, at: u64, id: LinkId, frame: Box<Frame>, from: Option<LinkId>) {
        let given = at;
        let waiting = Waiting { frame, given, from };
        self.graph.link_mut(id).push(waiting);
        self.go_on(at, id);
    }

    /// Sends the next frame that waits for a link, now or when the one before has left.
    fn go_on(&mut self, at: u64, id: LinkId) {
        let link = self.graph.link_mut(id);
        if link.is_awaited || link.is_paused || !link.has_waiting() {
            return;
        }
        if link.busy > at {
            link.is_awaited = true;
            self.events.add(link.busy, usize::MAX, What::Free(id));
            return;
        }
        let Some(Waiting { frame, given, from }) = link.pop() else {
            return;
        };
        let bytes = frame.bytes.len();
        link.busy = at + link.frame_ps(bytes);
        let (left, there, to) = (link.busy, link.busy + link.delay_ps, link.to);
        if link.has_waiting() {
            link.is_awaited = true;
            self.events.add(left, usize::MAX, What::Free(id));
        }
        if let Some(timeline) = &mut self.timeline {
            timeline.crossed(Crossing {
                link: id.index(),
                bytes,
                given,
                sent: (at, left),
            });
        }
        self.events.add(there, to, What::Crossed(id, frame));
        if let Some(from) = from {
            self.leaves(at, from, bytes as u64);
        }
    }

    /// Sends a frame from a rank's port.
    pub(super) fn send(&mut self, now: u64, from: usize, bytes: &[u8]) {
        self.packets += 1;
        self.under_way += 1;
        self.bytes += bytes.len() as u64;
        self.longest = self.longest.max(bytes.len());
        let at = self.processors.sends(now, from, bytes.len());
        let link = self.graph.link(self.graph.of_rank(from));
        self.given[from] = self.given[from].max(at) + link.frame_ps(bytes.len());
        let mut frame = Box::new(self.spare.pop().unwrap_or_default());
        frame.fill(bytes, self.inboxes.len());
        if self.spray {
            frame.spray(self.packets);
        }
        match at > now {
            true => self.events.add(at, from, What::Fetched(frame)),
            false => self.fetched(at, from, frame),
        }
    }

    /// Puts a frame that a rank's NIC has fetched to its link.
    pub(crate) fn fetched(&mut self, at: u64, rank: usize, frame: Box<Frame>) {
        self.put(at, self.graph.of_rank(rank), frame, None);
    }
}
