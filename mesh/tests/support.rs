//! A network of mesh ports in virtual time, and frames whose order at each receiver is checked.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ringbell_mesh::port::mac_of;
use ringbell_mesh::{MeshConfig, MeshPort};
use ringbell_net::port::impair::{Faults, Impair};
use ringbell_net::port::mem::MemSwitch;
use ringbell_net::port::{Checksums, Port};
use ringbell_net::wire::{MacAddr, ETHERNET_HEADER};
use ringbell_net::NicTime;
use ringbell_routes::generate::generate;
use ringbell_routes::topology::{NodeId, Topology};

/// Destination of a frame to all, in its body.
const ALL: u16 = u16::MAX;
/// In the numbers of pairs: the destination has the source's frames to all.
pub(crate) const OF_ALL: u16 = 1 << 15;
/// EtherType of the tests' frames.
const TYPE: [u8; 2] = [0x88, 0xb5];
/// Bytes of an IP packet on the wires.
pub(crate) const WIRE_MTU: usize = 1_500;

/// Numbers of one seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// The next one below `n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }
}

/// A network.
pub(crate) struct World {
    pub(crate) topology: Topology,
    switches: Vec<MemSwitch>,
    pub(crate) nodes: Vec<Option<MeshPort>>,
    pub(crate) now: NicTime,
    /// By source and destination: frames sent, and frames received.
    pub(crate) sent: BTreeMap<(u16, u16), u32>,
    pub(crate) received: BTreeMap<(u16, u16), u32>,
    /// Sources of the frames that have arrived, in order.
    pub(crate) order: Vec<u16>,
    /// Routes change: frames of a pair may be missing, or come after later ones.
    pub(crate) lossy: bool,
    /// Frames of a pair may come in another order; each comes once.
    pub(crate) seen: Option<BTreeSet<(u16, u16, u32)>>,
    faults: Faults,
}

impl World {
    /// Nodes of a generated network, all wires perfect.
    pub(crate) fn new(name: &str, change: impl Fn(&mut MeshConfig)) -> World {
        World::with(name, Faults::default(), change)
    }

    /// Nodes of a generated network, each wire with these faults both ways.
    pub(crate) fn with(name: &str, faults: Faults, change: impl Fn(&mut MeshConfig)) -> World {
        let topology = generate(name).unwrap(); // the tests' names are sound
        let checksums = match faults == Faults::default() {
            true => Checksums::Omitted,
            false => Checksums::Software,
        };
        let switch = |_| MemSwitch::private(2, WIRE_MTU, checksums).unwrap(); // numbers in range
        let mut world = World {
            switches: (0..topology.wires().len()).map(switch).collect(),
            nodes: Vec::new(),
            now: NicTime(1),
            sent: BTreeMap::new(),
            received: BTreeMap::new(),
            order: Vec::new(),
            lossy: false,
            seen: None,
            faults,
            topology,
        };
        for n in world.topology.clone().ids() {
            let mut config = MeshConfig::new(world.topology.clone(), n);
            change(&mut config);
            let port = MeshPort::open(config, world.wires(n)).unwrap(); // the test's network is sound
            world.nodes.push(Some(port));
        }
        world
    }

    /// The ports of a node's wires.
    pub(crate) fn wires(&self, node: NodeId) -> Vec<(u8, Box<dyn Port>)> {
        let links = self.topology.leaving(node);
        links
            .map(|link| {
                let side = link.index() % 2;
                let port = self.switches[link.wire()].port(side).unwrap(); // taken once
                let seed = self.faults.seed ^ (link.index() as u64) << 8;
                let port: Box<dyn Port> = match self.faults == Faults::default() {
                    true => Box::new(port),
                    false => Box::new(
                        Impair::new(
                            Box::new(port),
                            Faults {
                                seed,
                                ..self.faults
                            },
                        )
                        .unwrap(), // probabilities
                    ),
                };
                (self.topology.from(link).port, port)
            })
            .collect()
    }

    /// Opens a node again, under another epoch.
    pub(crate) fn open(&mut self, node: u16, epoch: u32) {
        self.nodes[usize::from(node)] = None;
        let mut config = MeshConfig::new(self.topology.clone(), NodeId(node));
        config.epoch = epoch;
        let wires = self.wires(NodeId(node));
        self.nodes[usize::from(node)] = Some(MeshPort::open(config, wires).unwrap());
        // as before
    }

    pub(crate) fn node(&mut self, node: u16) -> &mut MeshPort {
        self.nodes[usize::from(node)].as_mut().unwrap() // the test knows which are there
    }

    /// Sends the next frame of a pair, if there is room.
    pub(crate) fn send(&mut self, from: u16, to: u16, payload: usize) -> bool {
        let now = self.now;
        let number = self.sent.get(&(from, to)).copied().unwrap_or(0);
        let Some(port) = self.nodes[usize::from(from)].as_mut() else {
            return false;
        };
        let Some(room) = port.tx_frame(now, mac_of(NodeId(to))) else {
            return false;
        };
        let len = write(room, from, to, number, payload);
        port.tx_commit(now, len);
        *self.sent.entry((from, to)).or_default() += 1;
        true
    }

    /// Sends the next frame of a node to all, if there is room.
    pub(crate) fn send_to_all(&mut self, from: u16, payload: usize) -> bool {
        let now = self.now;
        let there = |n: u16| self.nodes[usize::from(n)].is_some();
        let others: Vec<u16> = (0..self.nodes.len() as u16)
            .filter(|n| *n != from && there(*n))
            .collect();
        let others = others.into_iter().map(|n| (from, n | OF_ALL));
        let others: Vec<(u16, u16)> = others.collect();
        let number = others.iter().filter_map(|pair| self.sent.get(pair)).max();
        let number = number.copied().unwrap_or(0);
        let Some(room) = self.node(from).tx_frame(now, MacAddr::BROADCAST) else {
            return false;
        };
        let len = write(room, from, ALL, number, payload);
        self.node(from).tx_commit(now, len);
        for pair in others {
            *self.sent.entry(pair).or_default() += 1;
        }
        true
    }

    /// Packets that all wires have carried, those that were sent again left out.
    pub(crate) fn carried(&self) -> u64 {
        let wires = self.nodes.iter().flatten().flat_map(MeshPort::wires);
        wires.map(|w| w.counters.tx_packets).sum()
    }

    /// Steps each node once; time goes on by `ns`.
    pub(crate) fn step(&mut self, ns: u64) {
        let now = self.now;
        for (n, node) in self.nodes.iter_mut().enumerate() {
            let Some(node) = node else { continue };
            while let Some(frame) = node.receive(now) {
                let (from, to, number) = read(frame.bytes());
                let to = match to {
                    ALL => n as u16 | OF_ALL,
                    _ => to,
                };
                assert_eq!(
                    usize::from(to & !OF_ALL),
                    n,
                    "a frame at a node for which it is not"
                );
                self.order.push(from);
                let next = self.received.entry((from, to)).or_default();
                if self.lossy {
                    continue;
                }
                if let Some(seen) = &mut self.seen {
                    assert!(seen.insert((from, to, number)), "a frame came twice");
                    *next += 1;
                    continue;
                }
                assert_eq!(number, *next, "{from} -> {to}: {:?}", node.wires());
                *next = number + 1;
            }
            node.flush(now);
        }
        self.now = NicTime(now.0 + ns);
    }

    /// As [`World::step`]; `take` gets each frame that comes to a node in place of the checks.
    pub(crate) fn step_with(&mut self, ns: u64, mut take: impl FnMut(&World, u16, &[u8])) {
        let now = self.now;
        for n in 0..self.nodes.len() {
            let Some(mut node) = self.nodes[n].take() else {
                continue;
            };
            while let Some(frame) = node.receive(now) {
                take(self, n as u16, frame.bytes());
            }
            node.flush(now);
            self.nodes[n] = Some(node);
        }
        self.now = NicTime(now.0 + ns);
    }

    /// Steps until all that was sent has arrived.
    ///
    /// # Panics
    /// It has not after so long.
    pub(crate) fn drain(&mut self, within: Duration) {
        let end = self.now.plus(within);
        while self.sent != self.received {
            assert!(self.now < end, "not all arrived: {:?}", self.missing());
            self.step(10_000);
        }
    }

    fn missing(&self) -> Vec<((u16, u16), u32, u32)> {
        let got = |pair| self.received.get(pair).copied().unwrap_or(0);
        let pairs = self.sent.iter().map(|(p, n)| (*p, *n, got(p)));
        pairs.filter(|(_, sent, got)| sent != got).take(8).collect()
    }

    /// Every node with a rank sends `count` frames of random lengths to every other one, as room
    /// allows.
    pub(crate) fn all_to_all(&mut self, count: u32, random: &mut Random, within: Duration) {
        let ends = || self.topology.ends().map(|n| n.0);
        let pairs = ends().flat_map(|a| ends().map(move |b| (a, b)));
        let mut left: Vec<(u16, u16, u32)> = pairs
            .filter(|(a, b)| a != b)
            .map(|(a, b)| (a, b, count))
            .collect();
        let end = self.now.plus(within);
        while !left.is_empty() {
            assert!(self.now < end, "{} pairs cannot send", left.len());
            for _ in 0..left.len() {
                let at = random.below(left.len());
                let (from, to, _) = left[at];
                if self.send(from, to, random.below(WIRE_MTU - 100)) {
                    left[at].2 -= 1;
                    if left[at].2 == 0 {
                        left.swap_remove(at);
                    }
                }
                if left.is_empty() {
                    break;
                }
            }
            self.step(5_000);
        }
        self.drain(within);
    }
}

/// Writes a frame; the payload is a pattern of the pair and the number.
fn write(room: &mut [u8], from: u16, to: u16, number: u32, payload: usize) -> usize {
    let dst = match to {
        ALL => MacAddr::BROADCAST,
        _ => mac_of(NodeId(to)),
    };
    room[..6].copy_from_slice(&dst.0);
    room[6..12].copy_from_slice(&mac_of(NodeId(from)).0);
    room[12..14].copy_from_slice(&TYPE);
    let len = ETHERNET_HEADER + 8 + payload;
    let body = &mut room[ETHERNET_HEADER..len];
    body[..2].copy_from_slice(&from.to_be_bytes());
    body[2..4].copy_from_slice(&to.to_be_bytes());
    body[4..8].copy_from_slice(&number.to_be_bytes());
    for (i, byte) in body[8..].iter_mut().enumerate() {
        *byte = pattern(from, to, number, i);
    }
    len
}

fn pattern(from: u16, to: u16, number: u32, i: usize) -> u8 {
    let seed = u32::from(from) * 31 + u32::from(to) * 17 + number;
    (seed as usize * 7 + i * 13) as u8
}

/// Reads a frame and checks its addresses and its payload: source, destination, number.
fn read(frame: &[u8]) -> (u16, u16, u32) {
    let body = &frame[ETHERNET_HEADER..];
    let from = u16::from_be_bytes([body[0], body[1]]);
    let to = u16::from_be_bytes([body[2], body[3]]);
    let number = u32::from_be_bytes([body[4], body[5], body[6], body[7]]);
    assert_eq!(frame[12..14], TYPE);
    let dst = MacAddr([frame[0], frame[1], frame[2], frame[3], frame[4], frame[5]]);
    let expected = match to {
        ALL => MacAddr::BROADCAST,
        _ => mac_of(NodeId(to)),
    };
    assert_eq!(dst, expected);
    assert_eq!(frame[6..12], mac_of(NodeId(from)).0);
    for (i, byte) in body[8..].iter().enumerate() {
        assert_eq!(*byte, pattern(from, to, number, i), "byte {i} of {number}");
    }
    (from, to, number)
}
