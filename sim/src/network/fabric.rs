//! Links, what waits for them, and what happens to frames at their ends.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringbell_nic_core::port::impair::mark_frame;

use super::event::{Queue, What};
use super::flow::{weight, Frame};
use super::graph::Graph;
use super::link::{LinkId, Waiting};
use super::port::{Sent, SharedAdapter};
use crate::fault::Breaks;
use crate::random::Random;
use crate::timeline::{Crossing, LinkTrack, Timeline};
use crate::{Cluster, Failure, Profile, Switches};

/// A pause on its link, without the FCS.
const PAUSE_FRAME: usize = 60;

/// Links, what waits at their ends, and the queue of events.
#[derive(Debug)]
pub(crate) struct Fabric {
    pub(super) profile: Profile,
    graph: Graph,
    /// By node: bytes that wait there, if it is a switch.
    held: Vec<u64>,
    /// By rank.
    is_dead: Vec<bool>,
    pub(crate) events: Queue,
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
        for slow in &cluster.slow {
            graph.slow(slow.rank, slow.factor);
        }
        Ok(Shared(Arc::new(Mutex::new(Fabric {
            profile: cluster.profile.clone(),
            held: vec![0; graph.nodes()],
            graph,
            is_dead: vec![false; cluster.ranks],
            events: Queue::default(),
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

    /// What is between a rank's NIC and each of its links, in the order of the topology's wires.
    pub(crate) fn adapters(&self, rank: usize, cluster: &Cluster) -> Vec<SharedAdapter> {
        let adapter = |id: &LinkId| {
            let link = self.graph.link(*id);
            SharedAdapter::new(rank, cluster, *id, link.gbps)
        };
        self.graph.of_rank(rank).iter().map(adapter).collect()
    }

    /// Whether the ranks' NICs forward for each other, as there is no switch.
    pub(crate) fn is_mesh(&self) -> bool {
        self.graph.nodes() == self.is_dead.len()
    }

    /// The rank of the next event, if it is one of a NIC.
    pub(crate) fn peek_rank(&self) -> Option<usize> {
        let node = self.events.peek_node()?;
        (node < self.is_dead.len()).then_some(node)
    }

    /// What a NIC does reaches no other NIC before so many picoseconds have passed: a frame's time
    /// on the link to the other one.
    pub(crate) fn lookahead(&self) -> u64 {
        let links = self.graph.to_ranks();
        links.map(|l| l.delay_ps + l.frame_ps(0)).min().unwrap_or(0)
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

    /// Whether a frame that has crossed a link reaches the NIC at its end.
    pub(crate) fn reaches_rank(&self, link: LinkId) -> bool {
        let l = self.graph.link(link);
        !l.is_cut && self.is_dead.get(l.to) == Some(&false)
    }

    /// Gives a frame that has crossed a link to the switch at its end, or returns it for the NIC
    /// there.
    pub(crate) fn crossed(
        &mut self,
        at: u64,
        link: LinkId,
        frame: Box<Frame>,
    ) -> Option<Box<Frame>> {
        let l = self.graph.link(link);
        let (node, is_cut) = (l.to, l.is_cut);
        if is_cut || self.is_dead.get(node) == Some(&true) {
            self.lose(at, link, &frame);
            return None;
        }
        if node < self.is_dead.len() {
            return Some(frame);
        }
        let Some(to) = frame.to else {
            // No rank has its address.
            self.under_way -= 1;
            return None;
        };
        // A flow keeps its link until that is cut; a cut of another link does not move it.
        let heavy = |l: &LinkId| weight(self.hash_seed, frame.flow, l.index());
        let ways = self.graph.toward(node, to).iter().copied();
        match ways.max_by_key(heavy) {
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

    /// A pause of a link has come to where it begins, or its end. Returns when what waits for the
    /// link will have left.
    pub(crate) fn paused(&mut self, at: u64, id: LinkId, is_paused: bool) -> u64 {
        self.graph.link_mut(id).is_paused = is_paused;
        if !is_paused {
            self.go_on(at, id);
        }
        let link = self.graph.link(id);
        link.busy.max(at) + link.waiting_ps()
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
        let joins_nics = from.is_none() && link.to < self.is_dead.len();
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
        // No switch is there to lose it.
        match joins_nics && self.random.happens(self.loss) {
            true => self.lose(there, id, &frame),
            false => self.events.add(there, to, What::Crossed(id, frame)),
        }
        if let Some(from) = from {
            self.leaves(at, from, bytes as u64);
        }
    }

    /// Takes a frame that a rank's NIC has sent.
    pub(crate) fn send(&mut self, from: usize, sent: Sent) {
        let Sent {
            link,
            mut frame,
            given,
            at,
        } = sent;
        self.packets += 1;
        self.under_way += 1;
        self.bytes += frame.bytes.len() as u64;
        self.longest = self.longest.max(frame.bytes.len());
        if self.spray {
            frame.spray(self.packets);
        }
        match at > given {
            true => self.events.add(at, from, What::Fetched(link, frame)),
            false => self.fetched(at, link, frame),
        }
    }

    /// Puts a frame that a rank's NIC has fetched to its link.
    pub(crate) fn fetched(&mut self, at: u64, link: LinkId, frame: Box<Frame>) {
        self.put(at, link, frame, None);
    }
}
