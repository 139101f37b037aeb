//! The router: which of the waiting packets leaves next by each output.
//!
//! An output takes packets from the queues in turn, up to R from one while it has more (the polling
//! parameter of SMI's communication kernels, SC'19 §4.2). A packet keeps its channel, and leaves
//! when the next node has as many free slots in it as the proof asks for.

use ringbell_net::NicTime;

use crate::buffers::{bit, members, Queues, Set, Stored};

/// Where a packet goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// By a wire, by its place among the node's.
    Wire(u8),
    /// It is for this node.
    Here,
    /// There is no route.
    Nowhere,
}

/// The queue that an output takes from, and how often it has.
#[derive(Debug, Clone, Copy, Default)]
struct Turn {
    queue: usize,
    taken: u32,
}

/// The queues of a node and its outputs.
#[derive(Debug)]
pub(crate) struct Router {
    queues: Queues,
    channels: usize,
    /// By destination.
    ways: Vec<Way>,
    /// By output: the queues whose head goes there. Wires first, then this node, then nowhere.
    waiting: Vec<Set>,
    turns: Vec<Turn>,
    /// By wire: the queues from which a packet needs two free slots there.
    entering: Vec<Set>,
    /// By channel: its queues.
    of_channel: Vec<Set>,
    /// R.
    poll: u32,
}

impl Router {
    /// For a node with so many wires, of so many channels.
    pub(crate) fn new(wires: usize, channels: usize, poll: u32) -> Router {
        let inputs = wires + 1;
        let of_channel = |c| (0..inputs).fold(0, |set, i| set | bit(i * channels + c));
        Router {
            queues: Queues::new(inputs * channels),
            channels,
            ways: Vec::new(),
            waiting: vec![0; wires + 2],
            turns: vec![Turn::default(); wires + 1],
            entering: vec![0; wires],
            of_channel: (0..channels).map(of_channel).collect(),
            poll,
        }
    }

    fn wires(&self) -> usize {
        self.entering.len()
    }

    /// The queue of what comes by a wire, or is sent from here for `None`.
    #[inline]
    pub(crate) fn queue(&self, wire: Option<usize>, channel: usize) -> usize {
        wire.unwrap_or(self.wires()) * self.channels + channel
    }

    /// The wire by which the packets of a queue come, and its channel.
    #[inline]
    pub(crate) fn origin(&self, queue: usize) -> (Option<usize>, usize) {
        let wire = queue / self.channels;
        ((wire < self.wires()).then_some(wire), queue % self.channels)
    }

    /// Packets in a queue.
    #[inline]
    pub(crate) fn len(&self, queue: usize) -> usize {
        self.queues.len(queue)
    }

    /// Whether no packet stands here.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.queues.filled() == 0
    }

    /// The first packet of each queue that has one.
    pub(crate) fn heads(&self) -> impl Iterator<Item = (usize, &Stored)> + '_ {
        members(self.queues.filled()).filter_map(|q| Some((q, self.queues.head(q)?)))
    }

    /// Takes new routes: the way to each node, and by wire the queues that enter a ring there.
    pub(crate) fn set_ways(&mut self, ways: Vec<Way>, entering: Vec<Set>) {
        debug_assert_eq!(entering.len(), self.wires());
        self.ways = ways;
        self.entering = entering;
        self.waiting.fill(0);
        for queue in members(self.queues.filled()) {
            self.wait(queue);
        }
    }

    /// Where packets to a node go.
    #[inline]
    pub(crate) fn way(&self, destination: u16) -> Way {
        let way = self.ways.get(usize::from(destination));
        way.copied().unwrap_or(Way::Nowhere)
    }

    #[inline]
    fn output(&self, way: Way) -> usize {
        match way {
            Way::Wire(wire) => wire.into(),
            Way::Here => self.wires(),
            Way::Nowhere => self.wires() + 1,
        }
    }

    /// Enters the head of a queue at its output.
    #[inline]
    fn wait(&mut self, queue: usize) {
        let Some(head) = self.queues.head(queue) else {
            return;
        };
        let output = self.output(self.way(head.head().destination.get()));
        self.waiting[output] |= bit(queue);
    }

    /// Puts a packet at the end of a queue.
    #[inline]
    pub(crate) fn push(&mut self, queue: usize, packet: Stored, now: NicTime) {
        if self.queues.push(queue, packet, now) {
            self.wait(queue);
        }
    }

    /// Takes the head of a queue.
    #[inline]
    pub(crate) fn pop(&mut self, queue: usize, now: NicTime) -> Option<Stored> {
        let packet = self.queues.pop(queue, now)?;
        let output = self.output(self.way(packet.head().destination.get()));
        self.waiting[output] &= !bit(queue);
        self.wait(queue);
        Some(packet)
    }

    /// Whether a packet waits for an output.
    #[inline]
    pub(crate) fn waits(&self, way: Way) -> bool {
        self.waiting[self.output(way)] != 0
    }

    /// The queue whose head is the next to go somewhere; `free` says how many slots a channel has
    /// there.
    #[inline]
    pub(crate) fn next(&mut self, way: Way, free: impl Fn(usize) -> u32) -> Option<usize> {
        let output = self.output(way);
        let mut eligible = self.waiting[output];
        if eligible == 0 {
            return None;
        }
        if let Way::Wire(wire) = way {
            let entering = self.entering[usize::from(wire)];
            for (channel, queues) in self.of_channel.iter().enumerate() {
                match free(channel) {
                    0 => eligible &= !queues,
                    1 => eligible &= !(queues & entering),
                    _ => {}
                }
            }
        }
        let Some(turn) = self.turns.get_mut(output) else {
            return members(eligible).next();
        };
        if eligible & bit(turn.queue) != 0 && turn.taken < self.poll {
            turn.taken += 1;
            return Some(turn.queue);
        }
        let after = eligible & !(bit(turn.queue) | (bit(turn.queue) - 1));
        let queue = members(after).next().or_else(|| members(eligible).next())?;
        *turn = Turn { queue, taken: 1 };
        Some(queue)
    }
}
