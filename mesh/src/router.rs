//! The router: which of the waiting packets leaves next by each output.
//!
//! An output takes packets from the queues in turn, up to R from one while it has more (the polling
//! parameter of SMI's communication kernels, SC'19 §4.2). A packet keeps its channel, and leaves
//! when the next node has as many free slots in it as the proof asks for. One that goes to all
//! waits for several outputs, and keeps its slot until the last of them has taken its copy.

use ringbell_net::NicTime;

use crate::buffers::{bit, members, Pool, Queues, Set, Stored};
use crate::head::{EVERYONE, UPWARD};

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
    /// By half of the channels and destination.
    ways: [Vec<Way>; 2],
    /// By half and root: the outputs of what goes by its tree.
    trees: [Vec<Set>; 2],
    /// By half and root: the output to the parent in its tree.
    ups: [Vec<Set>; 2],
    /// The first channel of the second half.
    split: usize,
    /// By queue: the outputs by which its head has still to leave.
    left: Vec<Set>,
    /// By queue: the outputs that have taken their copy of its head.
    served: Vec<Set>,
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
            ways: Default::default(),
            trees: Default::default(),
            ups: Default::default(),
            split: channels,
            left: vec![0; inputs * channels],
            served: vec![0; inputs * channels],
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

    /// Takes new routes: by half of the channels the way to each node, the ways from here in the
    /// tree of each, and the way to the parent there; the first channel of the second half; and by
    /// wire the queues that enter a ring there.
    pub(crate) fn set_ways(
        &mut self,
        ways: [Vec<Way>; 2],
        trees: [Vec<Vec<Way>>; 2],
        ups: [Vec<Vec<Way>>; 2],
        split: usize,
        entering: Vec<Set>,
    ) {
        debug_assert_eq!(entering.len(), self.wires());
        (self.ways, self.split) = (ways, split);
        let outputs = |ways: &Vec<Way>| ways.iter().fold(0, |set, w| set | bit(self.output(*w)));
        let all = [trees, ups].map(|of| of.map(|ways| ways.iter().map(outputs).collect()));
        [self.trees, self.ups] = all;
        self.entering = entering;
        self.waiting.fill(0);
        for queue in members(self.queues.filled()) {
            self.wait(queue);
        }
    }

    /// The outputs of the head of a queue, those that have taken a copy left out.
    #[inline]
    fn outputs(&self, queue: usize) -> Set {
        let Some(head) = self.queues.head(queue).map(Stored::head) else {
            return 0;
        };
        let nowhere = bit(self.output(Way::Nowhere));
        let destination = head.destination.get();
        let half = usize::from(queue % self.channels >= self.split);
        if destination == UPWARD {
            let up = self.ups[half].get(usize::from(head.source.get()));
            return up.copied().filter(|up| *up != 0).unwrap_or(nowhere);
        }
        if destination != EVERYONE {
            let way = self.ways[half].get(usize::from(destination));
            return way.map_or(nowhere, |w| bit(self.output(*w)));
        }
        let tree = self.trees[half].get(usize::from(head.source.get()));
        match tree.copied().unwrap_or(0) & !self.served[queue] {
            0 => nowhere,
            outputs => outputs,
        }
    }

    /// Whether the head of a queue waits for a wire.
    pub(crate) fn waits_for_wire(&self, queue: usize) -> bool {
        self.left[queue] & (bit(self.wires()) - 1) != 0
    }

    #[inline]
    fn output(&self, way: Way) -> usize {
        match way {
            Way::Wire(wire) => wire.into(),
            Way::Here => self.wires(),
            Way::Nowhere => self.wires() + 1,
        }
    }

    /// Enters the head of a queue at its outputs.
    #[inline]
    fn wait(&mut self, queue: usize) {
        self.left[queue] = self.outputs(queue);
        for output in members(self.left[queue]) {
            self.waiting[output] |= bit(queue);
        }
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
        for output in members(self.left[queue]) {
            self.waiting[output] &= !bit(queue);
        }
        self.served[queue] = 0;
        self.wait(queue);
        Some(packet)
    }

    /// A copy of the head of a queue for an output, if others have still to take theirs. Else the
    /// head itself is to be taken.
    #[inline]
    pub(crate) fn copy(&mut self, queue: usize, way: Way, pool: &mut Pool) -> Option<Stored> {
        let output = self.output(way);
        if self.left[queue] & !bit(output) == 0 {
            return None;
        }
        let copy = pool.copy(self.queues.head(queue)?.bytes());
        self.left[queue] &= !bit(output);
        self.served[queue] |= bit(output);
        self.waiting[output] &= !bit(queue);
        Some(copy)
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
