//! The port that a NIC has at a mesh.
//!
//! A NIC's address there is that of its node, [`mac_of`]. What it sends to another node's address
//! enters the queue of its channel; a frame to all goes to each node by itself. The thread that
//! steps the NIC forwards for the others too: each [`receive`](Port::receive) and
//! [`flush`](Port::flush) moves what can be moved.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use ringbell_net::port::{
    Arrived, Capabilities, Checksums, MacAddr, Port, PortCounters, RefusedBy, MTU_MAX, MTU_MIN,
};
use ringbell_net::wire::{ETHERNET_HEADER, ETHERTYPE_IPV4};
use ringbell_net::NicTime;
use ringbell_routes::check::check;
use ringbell_routes::proof::{Proof, BUBBLE_INJECTION};
use ringbell_routes::route::{route, Routes, DEFAULT_CHANNELS, MAX_CHANNELS};
use ringbell_routes::tables::Class;
use ringbell_routes::topology::{NodeId, Topology};
use zerocopy::big_endian::{U16, U32, U64};

use crate::buffers::{bit, Pool, Set, Stored, QUEUES_MAX};
use crate::error::MeshError;
use crate::gone::Gone;
use crate::head::{Head, Hello, Kind, FLAG_BROADCAST, FRAME_AT, GROWTH, HEAD, VERSION};
use crate::network::Network;
use crate::router::{Router, Way};
use crate::wire::{Event, Wire, WireCounters, WireState};

/// Frames taken from each wire in one turn.
const BUDGET: usize = 64;
/// Interval at which a full queue is looked at again: 20 µs.
const ROOM_NS: u64 = 20_000;
/// Shortest time between two reports of the network to a neighbour that knows less: 5 ms.
const REPORT_NS: u64 = 5_000_000;

/// How a node takes part in a mesh.
#[derive(Debug, Clone)]
pub struct MeshConfig {
    /// The network.
    pub topology: Topology,
    /// Its routes; `None`: computed.
    pub routes: Option<Routes>,
    /// Virtual channels of a wire, 2 to 128.
    pub channels: usize,
    /// This node.
    pub node: NodeId,
    /// Slots of a channel, 2 to 4,096.
    pub depth: usize,
    /// Packets that an output takes from one queue before it looks at the next (SMI's R).
    pub poll: u32,
    /// Another one each time that a node starts.
    pub epoch: u32,
    /// A neighbour from which nothing comes for so long while packets wait for it is gone.
    pub silence: Duration,
    /// A packet that stands for so long at the head of a queue is dropped.
    pub stuck: Duration,
    /// A node to which no wire leads for so long is given up: what is connected to it ends. A wire
    /// that is back before costs no connection.
    pub grace: Duration,
}

impl MeshConfig {
    /// The node of a network, with the defaults: 8 channels of 16 slots, R of 8, a silence of
    /// 800 ms, 2 s for packets that stand, and 1 s for wires to come back.
    pub fn new(topology: Topology, node: NodeId) -> MeshConfig {
        MeshConfig {
            topology,
            routes: None,
            channels: DEFAULT_CHANNELS,
            node,
            depth: 16,
            poll: 8,
            epoch: 1,
            silence: Duration::from_millis(800),
            stuck: Duration::from_secs(2),
            grace: Duration::from_secs(1),
        }
    }
}

/// What a node forwarded and dropped, counted since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MeshCounters {
    /// Packets that came by a wire and left by one.
    pub forwarded: u64,
    /// Packets dropped because no wire that is up leads to their destination.
    pub unreachable: u64,
    /// Packets dropped because they stood too long.
    pub stuck: u64,
    /// Packets dropped because of their head: a node that does not exist, no hops left.
    pub bad: u64,
    /// Times that the routes were computed anew.
    pub reroutes: u64,
}

/// A wire of a node, for users.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WireReport {
    /// The node's port.
    pub port: u8,
    /// Node and port at the other end.
    pub to: String,
    /// What it is doing.
    pub state: WireState,
    /// Why it went down last.
    pub reason: Option<String>,
    /// What went over it.
    pub counters: WireCounters,
}

impl std::fmt::Display for WireReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "port {} -> {}: ", self.port, self.to)?;
        match &self.state {
            WireState::Up => f.write_str("up")?,
            WireState::Greeting => f.write_str("no answer")?,
            WireState::Refused(why) => write!(f, "refused: {why}")?,
        }
        let c = &self.counters;
        write!(
            f,
            "; {} packets out ({} again), {} in",
            c.tx_packets, c.tx_again, c.rx_packets
        )?;
        match &self.reason {
            Some(why) => write!(f, "; went down {} times, last because {why}", c.resets),
            None => Ok(()),
        }
    }
}

/// The address of a node's NIC.
pub fn mac_of(node: NodeId) -> MacAddr {
    MacAddr::local(u32::from(node.0) + 1)
}

/// The node of an address.
fn node_of(mac: MacAddr, nodes: usize) -> Option<NodeId> {
    let [.., hi, lo] = mac.0;
    let node = NodeId(u16::from_be_bytes([hi, lo]).checked_sub(1)?);
    (node.index() < nodes && mac_of(node) == mac).then_some(node)
}

/// A frame to all nodes, of which each gets a packet.
#[derive(Debug)]
struct Broadcast {
    packet: Stored,
    /// The next one.
    to: u16,
}

/// A node's port at a mesh.
#[derive(Debug)]
pub struct MeshPort {
    config: MeshConfig,
    capabilities: Capabilities,
    network: Network,
    router: Router,
    wires: Vec<Wire>,
    pool: Pool,
    /// The packet that the NIC reads.
    read: Option<Stored>,
    /// The one that it writes.
    written: Stored,
    chosen: Option<MacAddr>,
    broadcast: Option<Broadcast>,
    gone: Gone,
    /// Time of the last turn.
    turned: Option<NicTime>,
    reported: NicTime,
    /// Neighbours are to be told what is known of the network.
    news: bool,
    counters: MeshCounters,
    traffic: PortCounters,
}

/// Whether a number is in its range.
fn ranged(what: &'static str, value: usize, least: usize, most: usize) -> Result<(), MeshError> {
    match (least..=most).contains(&value) {
        true => Ok(()),
        false => Err(MeshError::OutOfRange {
            what,
            value,
            least,
            most,
        }),
    }
}

impl MeshPort {
    /// Opens a node's port, over the ports of its wires, by their numbers.
    ///
    /// # Errors
    /// [`MeshError`]
    pub fn open(
        config: MeshConfig,
        wires: Vec<(u8, Box<dyn Port>)>,
    ) -> Result<MeshPort, MeshError> {
        let MeshConfig {
            topology,
            channels,
            node,
            depth,
            ..
        } = &config;
        let (node, channels, depth) = (*node, *channels, *depth);
        ranged("channels of a wire", channels, 2, MAX_CHANNELS)?;
        ranged("slots of a channel", depth, 2, 4_096)?;
        let nodes = topology.nodes().len();
        if node.index() >= nodes {
            return Err(MeshError::NoSuchNode {
                topology: topology.name().into(),
                nodes,
                node: node.0,
            });
        }
        if (wires.len() + 1) * channels > QUEUES_MAX {
            let wires = wires.len();
            return Err(MeshError::TooManyQueues { wires, channels });
        }
        let routes = match &config.routes {
            Some(routes) => routes.clone(),
            None => route(topology, channels).map_err(|why| MeshError::NoRoutes {
                topology: topology.name().into(),
                why,
            })?,
        };
        // The checker shares no code with what makes routes (ADR 71).
        check(topology, &routes.tables, &routes.proof, channels).map_err(|why| {
            MeshError::Refused {
                topology: topology.name().into(),
                why: why.text(topology),
            }
        })?;
        are_given(topology, node, &wires)?;
        let capabilities = |p: &dyn Port| (p.capabilities().mtu, p.capabilities().checksums);
        let each = wires.iter().map(|(_, p)| capabilities(&**p));
        let mtu = each.clone().map(|(mtu, _)| mtu).min().unwrap_or(MTU_MAX);
        let room = ETHERNET_HEADER + mtu;
        let mtu = mtu.saturating_sub(GROWTH);
        ranged("the MTU", mtu, MTU_MIN, MTU_MAX)?;
        let omitted = each.clone().all(|(_, c)| c == Checksums::Omitted);
        let checksums = match omitted {
            true => Checksums::Omitted,
            false => Checksums::Software,
        };
        let bubble = match routes.proof {
            Proof::Acyclic { .. } => 1,
            Proof::Bubble { .. } => BUBBLE_INJECTION,
        };
        let hello = |port| Hello {
            version: VERSION,
            port,
            node: U16::new(node.0),
            channels: channels as u8,
            bubble,
            depth: U16::new(depth as u16),
            mtu: U16::new(mtu as u16),
            nodes: U16::new(nodes as u16),
            digest: U64::new(routes.tables.digest()),
            heard: U32::ZERO,
            up: 0,
        };
        let silence_ns = u64::try_from(config.silence.as_nanos()).unwrap_or(u64::MAX);
        let wires: Vec<Wire> = wires
            .into_iter()
            .filter_map(|(port, wire)| {
                let other = topology.to(topology.link(node, port)?);
                let other = (other.node.0, other.port);
                Some(Wire::new(
                    wire,
                    hello(port),
                    other,
                    config.epoch,
                    silence_ns,
                ))
            })
            .collect();
        let mut pool = Pool::new(room);
        let mut port = MeshPort {
            capabilities: Capabilities::of_frames(mac_of(node), mtu, checksums),
            network: Network::new(topology.clone(), routes, channels, node),
            router: Router::new(wires.len(), channels, config.poll.max(1)),
            wires,
            read: None,
            written: pool.take(),
            pool,
            chosen: None,
            broadcast: None,
            gone: Gone::new(nodes, config.grace),
            turned: None,
            reported: NicTime(0),
            news: false,
            counters: MeshCounters::default(),
            traffic: PortCounters::default(),
            config,
        };
        port.set_ways();
        Ok(port)
    }

    /// What it forwarded and dropped.
    pub fn forwarding(&self) -> MeshCounters {
        self.counters
    }

    /// Its wires.
    pub fn wires(&self) -> Vec<WireReport> {
        let topology = self.network.topology();
        let report = |wire: &Wire| {
            let link = topology.link(self.config.node, wire.number())?;
            Some(WireReport {
                port: wire.number(),
                to: topology.port_text(topology.to(link)),
                state: wire.state().clone(),
                reason: wire.reason().map(str::to_owned),
                counters: wire.counters(),
            })
        };
        self.wires.iter().filter_map(report).collect()
    }

    /// Names of the network's wires that are known to be down.
    pub fn down(&self) -> Vec<String> {
        self.network.down().collect()
    }

    /// Takes the network's routes into use.
    fn set_ways(&mut self) {
        let place = |port: u8| self.wires.iter().position(|w| w.number() == port);
        let nodes = self.network.topology().nodes().len();
        let way = |node: usize| {
            let node = NodeId(node as u16);
            if node == self.config.node {
                return Way::Here;
            }
            let wire = self.network.next(node).and_then(place);
            wire.map_or(Way::Nowhere, |w| Way::Wire(w as u8))
        };
        let ways = (0..nodes).map(way).collect();
        let inputs = || (0..self.wires.len()).map(Some).chain([None]);
        let entering = self.wires.iter().map(|to| {
            let mut set: Set = 0;
            for (from, channel) in
                inputs().flat_map(|f| (0..self.config.channels).map(move |c| (f, c)))
            {
                let port = from.map(|w| self.wires[w].number());
                if self.network.slots(port, to.number(), channel as u8) > 1 {
                    set |= bit(self.router.queue(from, channel));
                }
            }
            set
        });
        let entering = entering.collect();
        self.router.set_ways(ways, entering);
    }

    /// The network has changed: routes around what is down, and word to the neighbours.
    fn changed(&mut self, now: NicTime) {
        self.counters.reroutes += 1;
        self.network.reroute();
        self.set_ways();
        let (network, me) = (&self.network, self.config.node);
        let has_way = |node| node == me || network.next(node).is_some();
        self.gone.update(now, has_way);
        self.news = true;
    }

    fn handle(&mut self, now: NicTime, wire: usize, event: Event) {
        match event {
            Event::None => {}
            Event::Packet(channel, packet) => self.forward(now, wire, channel, packet),
            Event::Up => {
                let port = self.wires[wire].number();
                tracing::info!(node = self.config.node.0, port, "a wire is up");
                if self.network.set(port, false) {
                    self.changed(now);
                }
                self.news |= self.network.knows() != 0;
            }
            Event::Refused(why) => {
                let port = self.wires[wire].number();
                tracing::warn!(node = self.config.node.0, port, %why, "a wire is refused");
            }
            Event::Down => self.lost(now, wire),
            Event::Network(first, changes) => {
                let mut is_new = self.network.merge(first, &changes);
                // This node sees its own wires; the others were told of them.
                for wire in self.wires.iter().filter(|w| w.is_up()) {
                    is_new |= self.network.set(wire.number(), false);
                }
                if is_new {
                    self.changed(now);
                }
            }
            Event::Knows(sum) => {
                let more = self.network.knows().wrapping_sub(sum);
                let is_time = now.0.saturating_sub(self.reported.0) >= REPORT_NS;
                if (1..u32::MAX / 2).contains(&more) && is_time {
                    self.news = true;
                }
            }
        }
    }

    fn lost(&mut self, now: NicTime, wire: usize) {
        let (node, port) = (self.config.node.0, self.wires[wire].number());
        let why = self.wires[wire].reason().unwrap_or_default();
        tracing::warn!(node, port, why, "a wire is down");
        if self.network.set(self.wires[wire].number(), true) {
            self.changed(now);
        }
    }

    /// Takes a packet that has come by a wire.
    #[inline]
    fn forward(&mut self, now: NicTime, wire: usize, channel: usize, packet: Stored) {
        let mut head = packet.head();
        let (source, destination) = (head.source.get(), head.destination.get());
        let nodes = self.network.topology().nodes().len();
        let me = self.config.node.0;
        let exists = usize::from(source) < nodes && usize::from(destination) < nodes;
        if !exists || source == me || (destination != me && head.hops == 0) {
            self.counters.bad += 1;
            self.pool.give(packet);
            self.wires[wire].release(now, channel);
            return;
        }
        let mut packet = packet;
        head.hops = head.hops.saturating_sub(1);
        head.write(packet.room());
        let queue = self.router.queue(Some(wire), channel);
        self.router.push(queue, packet, now);
    }

    /// Takes the head of a queue, whose slot is free then.
    #[inline]
    fn pop(&mut self, now: NicTime, queue: usize) -> Option<(Stored, bool)> {
        let (wire, channel) = self.router.origin(queue);
        let packet = self.router.pop(queue, now)?;
        if let Some(wire) = wire {
            self.wires[wire].release(now, channel);
        }
        Some((packet, wire.is_some()))
    }

    /// Moves packets from queues to wires.
    #[inline]
    fn spread(&mut self, now: NicTime) {
        self.inject_broadcast(now);
        for wire in 0..self.wires.len() {
            let way = Way::Wire(wire as u8);
            while self.router.waits(way) && self.wires[wire].takes() {
                let free = |channel| self.wires[wire].free(channel);
                let Some(queue) = self.router.next(way, free) else {
                    break;
                };
                let (_, channel) = self.router.origin(queue);
                let Some((packet, came)) = self.pop(now, queue) else {
                    break;
                };
                self.counters.forwarded += u64::from(came);
                self.wires[wire].send(now, channel, packet);
            }
        }
        while let Some(queue) = self.router.next(Way::Nowhere, |_| 0) {
            self.drop_head(now, queue);
            self.counters.unreachable += 1;
        }
    }

    fn drop_head(&mut self, now: NicTime, queue: usize) {
        if let Some((packet, came)) = self.pop(now, queue) {
            if !came {
                self.gone.dropped(NodeId(packet.head().destination.get()));
                // It was counted when it was taken.
                self.traffic.tx_frames -= 1;
                self.traffic.tx_bytes -= (packet.bytes().len() - FRAME_AT) as u64;
                self.traffic.tx_dropped += 1;
            }
            self.pool.give(packet);
        }
    }

    /// Takes what has come, moves what can be moved, and does what is due.
    fn turn(&mut self, now: NicTime) {
        self.turned = Some(now);
        for wire in 0..self.wires.len() {
            for _ in 0..BUDGET {
                let Some(event) = self.wires[wire].receive(now, &mut self.pool) else {
                    break;
                };
                self.handle(now, wire, event);
            }
        }
        self.drop_stuck(now);
        self.leave(now);
        for node in self.gone.step(now) {
            let why = self.no_way(node);
            tracing::warn!(node = self.config.node.0, "{why}");
        }
    }

    /// That a node is gone, and which wires are missing.
    fn no_way(&self, node: NodeId) -> String {
        let name = &self.network.topology().nodes()[node.index()].name;
        let missing = self.network.missing(node).join(", ");
        format!("no way to {name}: missing {missing}")
    }

    /// Moves what can be moved, and does what is due.
    fn leave(&mut self, now: NicTime) {
        self.spread(now);
        for wire in 0..self.wires.len() {
            let knows = self.network.knows();
            let to = &mut self.wires[wire];
            let starved = self.router.waits(Way::Wire(wire as u8)) && to.takes();
            if to.serve(now, knows, starved, &mut self.pool) {
                self.lost(now, wire);
            }
        }
        if std::mem::take(&mut self.news) {
            self.reported = now;
            for wire in self.wires.iter_mut().filter(|w| w.is_up()) {
                // Word that finds no room comes with the next credits.
                wire.tell_network(now, self.network.changes());
            }
        }
        for wire in &mut self.wires {
            wire.port_mut().flush(now);
        }
    }

    /// Drops packets that have stood too long: the proof excludes that they wait for each other,
    /// and a neighbour that is there but takes nothing must not stop others.
    fn drop_stuck(&mut self, now: NicTime) {
        let limit = NicTime(now.0)
            .0
            .checked_sub(self.config.stuck.as_nanos() as u64);
        let Some(limit) = limit else { return };
        let stands = |(queue, packet): (usize, &Stored)| {
            let way = self.router.way(packet.head().destination.get());
            (packet.since.0 <= limit && matches!(way, Way::Wire(_))).then_some(queue)
        };
        let stuck: Vec<usize> = self.router.heads().filter_map(stands).collect();
        for queue in stuck {
            self.drop_head(now, queue);
            self.counters.stuck += 1;
        }
    }

    /// The queue of what this node sends to another.
    fn own_queue(&self, to: NodeId, class: Class) -> usize {
        let channel = self.network.channels(to)[class as usize];
        self.router.queue(None, channel.into())
    }

    /// Whether a queue of this node takes a packet more.
    fn has_room(&self, queue: usize) -> bool {
        self.router.len(queue) < self.config.depth
    }

    /// Whether there is room for a frame to this address.
    fn takes(&self, dst: MacAddr) -> bool {
        match node_of(dst, self.network.topology().nodes().len()) {
            // What is never sent needs no room.
            None if dst.is_unicast() => true,
            None => self.broadcast.is_none(),
            Some(to) => {
                let queues = Class::ALL.map(|c| self.own_queue(to, c));
                queues.into_iter().all(|q| self.has_room(q))
            }
        }
    }

    /// Puts a packet of this node into its queue.
    fn inject(&mut self, now: NicTime, to: NodeId, mut packet: Stored, flags: u8) {
        let frame = &packet.bytes()[FRAME_AT..];
        self.traffic.tx_frames += 1;
        self.traffic.tx_bytes += frame.len() as u64;
        let class = class_of(frame);
        let queue = self.own_queue(to, class);
        let mut head = Head::new(Kind::Packet);
        head.channel = self.router.origin(queue).1 as u8;
        head.source.set(self.config.node.0);
        head.destination.set(to.0);
        head.hops = u8::try_from(self.network.topology().nodes().len()).unwrap_or(u8::MAX);
        head.flags = flags;
        head.write(packet.room());
        self.router.push(queue, packet, now);
    }

    /// Sends the copies of a frame to all for which there is room.
    fn inject_broadcast(&mut self, now: NicTime) {
        let Some(mut broadcast) = self.broadcast.take() else {
            return;
        };
        let nodes = self.network.topology().nodes().len();
        while usize::from(broadcast.to) < nodes {
            let to = NodeId(broadcast.to);
            if to != self.config.node {
                if !self.has_room(self.own_queue(to, Class::Request)) {
                    self.broadcast = Some(broadcast);
                    return;
                }
                let copy = self.pool.copy(broadcast.packet.bytes());
                self.inject(now, to, copy, FLAG_BROADCAST);
            }
            broadcast.to += 1;
        }
        self.pool.give(broadcast.packet);
    }
}

/// Whether the wires given are those of a node.
fn are_given(
    topology: &Topology,
    node: NodeId,
    wires: &[(u8, Box<dyn Port>)],
) -> Result<(), MeshError> {
    let name = || topology.nodes()[node.index()].name.clone();
    for (n, (port, wire)) in wires.iter().enumerate() {
        let is_second = wires[..n].iter().any(|(other, _)| other == port);
        if is_second || topology.link(node, *port).is_none() {
            let (node, port) = (name(), *port);
            return Err(MeshError::NoSuchWire { node, port });
        }
        if !wire.capabilities().medium.has_frames() {
            let (port, what) = (*port, wire.describe());
            return Err(MeshError::NoFrames { port, what });
        }
    }
    for link in topology.leaving(node) {
        let expected = topology.from(link).port;
        if !wires.iter().any(|(port, _)| *port == expected) {
            let node = name();
            return Err(MeshError::WireMissing { node, expected });
        }
    }
    Ok(())
}

/// The class of a frame: answers of RoCEv2 (its opcodes 13 to 18: read responses and
/// acknowledgements) have channels of their own.
fn class_of(frame: &[u8]) -> Class {
    const UDP: u8 = 17;
    const ROCE: [u8; 2] = 4791u16.to_be_bytes();
    let is = |at: usize, what: &[u8]| frame.get(at..at + what.len()) == Some(what);
    let is_roce =
        is(12, &ETHERTYPE_IPV4.to_be_bytes()) && is(14, &[0x45]) && is(23, &[UDP]) && is(36, &ROCE);
    match frame.get(42) {
        Some(opcode) if is_roce && (13..=18).contains(&(opcode & 0x1f)) => Class::Acknowledgement,
        _ => Class::Request,
    }
}

impl Port for MeshPort {
    fn describe(&self) -> String {
        let topology = self.network.topology();
        let node = &topology.nodes()[self.config.node.index()].name;
        format!("mesh {node} of {}", topology.name())
    }

    fn report(&self) -> Vec<String> {
        let wires = self.wires().into_iter().map(|w| w.to_string());
        let down = self.down().into_iter().map(|w| format!("down: {w}"));
        let MeshCounters {
            forwarded,
            unreachable,
            stuck,
            bad,
            reroutes,
        } = self.counters;
        let all = format!(
            "forwarded {forwarded} packets; dropped {unreachable} without a route, {stuck} that \
             stood, {bad} with a wrong head; {reroutes} times new routes"
        );
        let gone = self.gone.all().map(|node| self.no_way(node));
        wires.chain(down).chain(gone).chain([all]).collect()
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn receive(&mut self, now: NicTime) -> Option<Arrived<'_>> {
        if let Some(read) = self.read.take() {
            self.pool.give(read);
        }
        if self.turned != Some(now) || !self.router.waits(Way::Here) {
            self.turn(now);
        }
        let queue = self.router.next(Way::Here, |_| u32::MAX)?;
        let (mut packet, _) = self.pop(now, queue)?;
        let head = packet.head();
        let to = match head.flags & FLAG_BROADCAST != 0 {
            true => MacAddr::BROADCAST,
            false => self.capabilities.medium.mac(),
        };
        let from = mac_of(NodeId(head.source.get()));
        let frame = &mut packet.room()[FRAME_AT..HEAD];
        frame[..6].copy_from_slice(&to.0);
        frame[6..].copy_from_slice(&from.0);
        let frame = &self.read.insert(packet).bytes()[FRAME_AT..];
        self.traffic.rx_frames += 1;
        self.traffic.rx_bytes += frame.len() as u64;
        Some(Arrived::Frame(frame))
    }

    fn is_quiet(&self) -> bool {
        self.router.is_empty()
            && self.broadcast.is_none()
            && !self.gone.has_reports()
            && self.wires.iter().all(Wire::is_quiet)
    }

    fn poll(&mut self) -> bool {
        !self.router.is_empty()
            || self.broadcast.is_some()
            || self.gone.has_reports()
            || self.wires.iter_mut().any(Wire::poll)
    }

    fn tx_frame(&mut self, now: NicTime, dst: MacAddr) -> Option<&mut [u8]> {
        if !self.takes(dst) {
            self.leave(now);
            if !self.takes(dst) {
                return None;
            }
        }
        self.chosen = Some(dst);
        let end = FRAME_AT + ETHERNET_HEADER + self.capabilities.mtu;
        Some(&mut self.written.room()[FRAME_AT..end])
    }

    fn tx_commit(&mut self, now: NicTime, len: usize) {
        let Some(dst) = self.chosen.take() else {
            return;
        };
        let nodes = self.network.topology().nodes().len();
        let to = node_of(dst, nodes);
        let is_frame = (ETHERNET_HEADER..=ETHERNET_HEADER + self.capabilities.mtu).contains(&len);
        let is_lost = to.is_none() && dst.is_unicast() || to == Some(self.config.node);
        if !is_frame || is_lost {
            self.traffic.tx_dropped += 1;
            return;
        }
        let mut packet = std::mem::replace(&mut self.written, self.pool.take());
        packet.set_len(FRAME_AT + len);
        match to {
            Some(to) => self.inject(now, to, packet, 0),
            None => {
                self.broadcast = Some(Broadcast { packet, to: 0 });
                self.inject_broadcast(now);
            }
        }
    }

    fn flush(&mut self, now: NicTime) {
        self.leave(now);
    }

    fn next_timer(&self) -> Option<NicTime> {
        let now = self.turned.unwrap_or_default();
        let wires = self.wires.iter().filter_map(|w| w.next_timer(now)).min();
        let stuck = self.config.stuck;
        let heads = self.router.heads().map(|(_, p)| p.since.plus(stuck)).min();
        let soon =
            self.broadcast.is_some() || self.router.waits(Way::Here) || self.gone.has_reports();
        let soon = soon.then_some(NicTime(now.0 + ROOM_NS));
        [wires, heads, soon, self.gone.next_timer()]
            .into_iter()
            .flatten()
            .min()
    }

    fn next_refused(&mut self) -> Option<RefusedBy> {
        let node = self.gone.next_report()?;
        Some(RefusedBy::NoWay(mac_of(node)))
    }

    fn poll_fds<'a>(&'a self, fds: &mut Vec<BorrowedFd<'a>>) {
        for wire in &self.wires {
            wire.port().poll_fds(fds);
        }
    }

    fn counters(&self) -> PortCounters {
        let mut counters = self.traffic;
        for wire in &self.wires {
            counters.rx_malformed += wire.counters().rx_malformed;
        }
        counters
    }
}
