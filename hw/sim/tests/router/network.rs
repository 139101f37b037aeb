//! Routers joined by wires with latency and loss, driven by the tables of `ringbell-routes`, and a
//! model of what their nodes send each other.

use std::collections::{BTreeMap, VecDeque};

use ringbell_gtlb::testing::Rng;
use ringbell_routes::proof::Proof;
use ringbell_routes::route::Routes;
use ringbell_routes::tables::Class;
use ringbell_routes::topology::{Link, NodeId, Topology};

/// A word of a wire: its head in two words, then the packet.
pub(crate) type Word = [u32; 10];
/// A packet.
pub(crate) type Packet = [u32; 8];

/// The way to nowhere.
pub(crate) const NOWHERE: u64 = 15;
/// What the ends of all wires must have in common.
pub(crate) const DIGEST: u32 = 0x5eed_0001;

/// The block as it was built with some number of wires and channels.
pub(crate) trait Router {
    const WIRES: usize;
    const CHANNELS: usize;
    const DEPTH: usize;
    fn new() -> Self;
    fn reset(&mut self);
    fn settings(&mut self, hops: u64, poll: u64, skip: bool, entering: u64);
    fn set_way(&mut self, destination: u64, way: u64);
    fn wires(&mut self, words: &[Option<Word>], ready: u64);
    fn word(&self, wire: usize) -> Word;
    fn offer(&mut self, packet: Option<(u8, Packet)>, out_ready: bool);
    fn takes(&self) -> bool;
    fn gives(&self) -> Option<(u8, Packet)>;
    fn tick(&mut self);
    fn eval(&mut self);
    fn up(&self) -> u64;
    fn refused(&self) -> u64;
    fn resets(&self) -> u64;
    fn again(&self) -> u64;
    fn dropped(&self) -> u64;
}

macro_rules! router {
    ($block:ident, $wires:literal, $channels:literal, $depth:literal) => {
        impl Router for ringbell_hw_sim::$block::Block {
            const WIRES: usize = $wires;
            const CHANNELS: usize = $channels;
            const DEPTH: usize = $depth;

            fn new() -> Self {
                Self::new()
            }

            fn reset(&mut self) {
                self.offer(None, false);
                self.wires(&[], 0);
                self.rst_ni(0);
                self.tick();
                self.rst_ni(1);
            }

            fn settings(&mut self, hops: u64, poll: u64, skip: bool, entering: u64) {
                self.digest_i(DIGEST.into());
                self.hops_i(hops);
                self.poll_i(poll);
                self.skip_i(skip.into());
                self.entering_i(entering);
            }

            fn set_way(&mut self, destination: u64, way: u64) {
                self.route_valid_i(1);
                self.route_destination_i(destination);
                self.route_way_i(way);
                self.eval();
                let mut cycles = 0;
                while self.route_ready_o() == 0 {
                    self.tick();
                    cycles += 1;
                    assert!(cycles <= 256, "the table is not cleared");
                }
                self.tick();
                self.route_valid_i(0);
            }

            fn wires(&mut self, words: &[Option<Word>], ready: u64) {
                let (mut all, mut valid) = ([0; 10 * $wires], 0);
                for (wire, word) in words.iter().enumerate() {
                    if let Some(word) = word {
                        all[10 * wire..][..10].copy_from_slice(word);
                        valid |= 1 << wire;
                    }
                }
                self.wire_i(&all);
                self.wire_valid_i(valid);
                self.wire_ready_i(ready);
            }

            fn word(&self, wire: usize) -> Word {
                let all = self.wire_o();
                std::array::from_fn(|i| all[10 * wire + i])
            }

            fn offer(&mut self, packet: Option<(u8, Packet)>, out_ready: bool) {
                let (channel, bits) = packet.unwrap_or_default();
                self.in_valid_i(packet.is_some().into());
                self.in_channel_i(channel.into());
                self.in_i(&bits);
                self.out_ready_i(out_ready.into());
            }

            fn takes(&self) -> bool {
                self.in_ready_o() == 1
            }

            fn gives(&self) -> Option<(u8, Packet)> {
                (self.out_valid_o() == 1).then(|| (self.out_channel_o() as u8, self.out_o()))
            }

            fn tick(&mut self) {
                self.tick();
            }

            fn eval(&mut self) {
                self.eval();
            }

            fn up(&self) -> u64 {
                self.up_o()
            }

            fn refused(&self) -> u64 {
                self.refused_o()
            }

            fn resets(&self) -> u64 {
                self.resets_o()
            }

            fn again(&self) -> u64 {
                self.again_o()
            }

            fn dropped(&self) -> u64 {
                self.dropped_o()
            }
        }
    };
}
router!(router, 4, 1, 32);
router!(router_ring, 2, 2, 8);

/// A way between two routers.
#[derive(Debug, Clone)]
struct Line {
    from: (usize, usize),
    latency: usize,
    words: VecDeque<Option<Word>>,
    cut: bool,
}

/// Routers and their wires.
pub(crate) struct Network<B> {
    pub(crate) nodes: Vec<B>,
    /// By node and wire.
    lines: Vec<Vec<Option<Line>>>,
    /// Words that come by wires to nowhere.
    pub(crate) forged: BTreeMap<(usize, usize), Word>,
    /// Words in 1,000 that wires lose.
    pub(crate) loss: u64,
    /// Cycles in eight in which a wire takes a word, and a node a packet.
    pub(crate) ready: u64,
    /// Nodes that take no packets.
    pub(crate) stopped: u64,
    /// By node: the packets that it sends, with their channels.
    pub(crate) to_send: Vec<VecDeque<(u8, Packet)>>,
    /// By node: the packets that came since they were last looked at.
    pub(crate) came: Vec<Vec<(u8, Packet)>>,
    pub(crate) rng: Rng,
    pub(crate) cycle: u64,
}

impl<B: Router> Network<B> {
    /// The routers of a topology, with random latencies of at most `latency` cycles. Port N of a
    /// node is the N-th of its wires.
    pub(crate) fn new(topology: &Topology, latency: u64, seed: u64) -> Network<B> {
        let mut rng = Rng::new(seed);
        let count = topology.nodes().len();
        let mut lines = vec![vec![None; B::WIRES]; count];
        for link in topology.links() {
            let (from, to) = (topology.from(link), topology.to(link));
            let from_wire = wire_of(topology, from.node, from.port);
            lines[to.node.index()][wire_of(topology, to.node, to.port)] = Some(Line {
                from: (from.node.index(), from_wire),
                latency: rng.below(latency + 1) as usize,
                words: VecDeque::new(),
                cut: false,
            });
        }
        Network {
            nodes: (0..count).map(|_| B::new()).collect(),
            lines,
            forged: BTreeMap::new(),
            loss: 0,
            ready: 8,
            stopped: 0,
            to_send: vec![VecDeque::new(); count],
            came: vec![Vec::new(); count],
            rng,
            cycle: 0,
        }
    }

    /// Resets a node and gives it its tables.
    pub(crate) fn start(&mut self, node: usize, topology: &Topology, routes: &Routes, poll: u64) {
        let id = NodeId(node as u16);
        let entering = entering::<B>(topology, routes, id);
        let router = &mut self.nodes[node];
        router.settings(topology.nodes().len() as u64, poll, true, entering);
        router.reset();
        for to in topology.ids() {
            let next = routes.tables.next(id, to);
            let way = next.map(|port| wire_of(topology, id, port) as u64);
            let here = (to == id).then_some(B::WIRES as u64);
            router.set_way(to.index() as u64, way.or(here).unwrap_or(NOWHERE));
        }
    }

    /// Starts all nodes, and waits until their wires are up.
    pub(crate) fn start_all(&mut self, topology: &Topology, routes: &Routes, poll: u64) {
        for node in 0..self.nodes.len() {
            self.start(node, topology, routes, poll);
        }
        self.wait_up();
    }

    /// Gives all wires this latency. None has carried a word yet.
    pub(crate) fn set_latency(&mut self, latency: usize) {
        for line in self.lines.iter_mut().flatten().flatten() {
            line.latency = latency;
        }
    }

    /// Cuts or heals the wire that comes in at a node, both ways.
    pub(crate) fn cut(&mut self, node: usize, wire: usize, cut: bool) {
        let line = self.lines[node][wire].as_mut().expect("a wire");
        line.cut = cut;
        let (other, other_wire) = line.from;
        let back = self.lines[other][other_wire].as_mut().expect("a wire");
        back.cut = cut;
    }

    /// One cycle of all routers.
    pub(crate) fn step(&mut self) {
        let Network { rng, ready, .. } = self;
        let mut flag =
            |bits: usize| (0..bits).fold(0, |f, b| f | u64::from(rng.below(8) < *ready) << b);
        let wires: Vec<u64> = self.nodes.iter().map(|_| flag(B::WIRES)).collect();
        let takes = flag(self.nodes.len()) & !self.stopped;
        for node in 0..self.nodes.len() {
            let mut words = vec![None; B::WIRES];
            for (wire, word) in words.iter_mut().enumerate() {
                let Some(line) = &mut self.lines[node][wire] else {
                    *word = self.forged.get(&(node, wire)).copied();
                    continue;
                };
                let (from, from_wire) = line.from;
                let sent = wires[from] >> from_wire & 1 == 1 && !line.cut;
                let lost = self.rng.below(1_000) < self.loss;
                let put = (sent && !lost).then(|| self.nodes[from].word(from_wire));
                line.words.push_back(put);
                if line.words.len() > line.latency {
                    *word = line.words.pop_front().flatten();
                }
            }
            let offer = self.to_send[node].front().copied();
            let router = &mut self.nodes[node];
            router.wires(&words, wires[node]);
            router.offer(offer, takes >> node & 1 == 1);
            router.eval();
        }
        for (node, router) in self.nodes.iter_mut().enumerate() {
            if router.takes() {
                self.to_send[node].pop_front();
            }
            if takes >> node & 1 == 1 {
                self.came[node].extend(router.gives());
            }
            router.tick();
        }
        self.cycle += 1;
    }

    /// Cycles until `done`, with at most so many.
    pub(crate) fn run(&mut self, most: u64, mut done: impl FnMut(&mut Network<B>) -> bool) {
        let end = self.cycle + most;
        while !done(self) {
            self.step();
            assert!(self.cycle < end, "not done in {most} cycles");
        }
    }

    /// Waits until all wires that lead somewhere are up at both ends.
    pub(crate) fn wait_up(&mut self) {
        self.run(3_000, |network| {
            let mut lines = network.lines.iter().zip(&network.nodes);
            lines.all(|(lines, node)| {
                let wires = lines.iter().enumerate().filter(|(_, line)| line.is_some());
                wires.into_iter().all(|(w, _)| node.up() >> w & 1 == 1)
            })
        });
    }
}

/// A whole network of a topology, up, by these routes.
pub(crate) fn started<B: Router>(
    topology: &Topology,
    routes: &Routes,
    latency: u64,
    poll: u64,
    seed: u64,
) -> Network<B> {
    let mut network = Network::new(topology, latency, seed);
    network.start_all(topology, routes, poll);
    network
}

/// A port's place among the ports of its node.
fn wire_of(topology: &Topology, node: NodeId, port: u8) -> usize {
    let mut ports: Vec<u8> = topology
        .leaving(node)
        .map(|l| topology.from(l).port)
        .collect();
    ports.sort_unstable();
    ports.binary_search(&port).expect("a port of the node")
}

/// By wire: the queues whose packets need two free slots there, since they enter a ring.
fn entering<B: Router>(topology: &Topology, routes: &Routes, node: NodeId) -> u64 {
    let Proof::Bubble { rings } = &routes.proof else {
        return 0;
    };
    let follows = |before: Link, after: Link| {
        rings.iter().any(|ring| {
            let next = ring.iter().cycle().skip(1);
            let mut pairs = ring.iter().zip(next);
            pairs.any(|(a, b)| a.number == 0 && (a.link, b.link) == (before, after))
        })
    };
    let queues = (B::WIRES + 1) * B::CHANNELS;
    let mut set = 0;
    for out in topology.leaving(node) {
        let to = wire_of(topology, node, topology.from(out).port);
        let inputs = topology.leaving(node).filter(|i| !follows(i.back(), out));
        let wires = inputs.map(|i| wire_of(topology, node, topology.from(i).port));
        for input in wires.chain([B::WIRES]) {
            set |= 1 << (to * queues + input * B::CHANNELS);
        }
    }
    set
}

/// What nodes have sent each other, and what has come of it.
#[derive(Debug, Default)]
pub(crate) struct Book {
    sent: BTreeMap<(usize, usize), u32>,
    came: BTreeMap<(usize, usize), u32>,
    /// Packets that were lost with a wire.
    pub(crate) lost: u64,
    /// Packets may be lost.
    pub(crate) lossy: bool,
    pub(crate) total: u64,
}

impl Book {
    /// Gives a node a packet for another one.
    pub(crate) fn send<B: Router>(
        &mut self,
        network: &mut Network<B>,
        routes: &Routes,
        from: usize,
        to: usize,
    ) {
        let number = self.sent.entry((from, to)).or_default();
        let layer = routes.tables.layer(NodeId(from as u16), NodeId(to as u16));
        let channel = routes.tables.channel(Class::Request, layer);
        let packet = packet(from, to, *number);
        network.to_send[from].push_back((channel.expect("a layer"), packet));
        *number += 1;
    }

    /// Looks at what has come: each packet once, in order, unchanged, at its destination.
    pub(crate) fn check<B: Router>(&mut self, network: &mut Network<B>, routes: &Routes) {
        for (node, came) in network.came.iter_mut().enumerate() {
            for (channel, got) in came.drain(..) {
                let (from, to, number) =
                    (got[0] as usize & 0xff, got[0] as usize >> 8 & 0xff, got[1]);
                assert_eq!(to, node, "packet {number} from {from} is at the wrong node");
                let next = self.came.entry((from, to)).or_default();
                let missing = number.wrapping_sub(*next);
                assert!(
                    missing == 0 || (self.lossy && missing < 1 << 31),
                    "packet {number} from {from} to {to} in place of {next}"
                );
                self.lost += u64::from(missing);
                *next = number + 1;
                assert_eq!(got, packet(from, to, number), "packet {number} from {from}");
                let layer = routes.tables.layer(NodeId(from as u16), NodeId(to as u16));
                assert_eq!(routes.tables.channel(Class::Request, layer), Some(channel));
                self.total += 1;
            }
        }
    }

    /// What has not come is lost; from now on nothing may be.
    pub(crate) fn settle(&mut self) {
        self.came.clone_from(&self.sent);
        self.lossy = false;
    }

    /// Whether all that was sent has come.
    pub(crate) fn is_done(&self) -> bool {
        self.sent == self.came
    }
}

/// The packet with a number among those from one node to another.
pub(crate) fn packet(from: usize, to: usize, number: u32) -> Packet {
    let mut rng = Rng::new((from as u64) << 40 | (to as u64) << 32 | u64::from(number));
    let mut packet = [0; 8].map(|_: u32| rng.bits() as u32);
    packet[0] = packet[0] << 16 | (to as u32) << 8 | from as u32;
    packet[1] = number;
    packet
}
