//! The port that a NIC has at a mesh.
//!
//! A NIC's address there is that of its node, [`mac_of`]. What it sends to another node's address
//! enters the queue of its channel; a frame to all goes by the node's tree, or to each node by
//! itself where routes have no trees; one to
//! [`sum_to`](ringbell_net::sum::sum_to) a root goes up its tree, and what others send
//! there is added to it. The thread that steps the NIC forwards for the others too:
//! each [`receive`](Port::receive) and [`flush`](Port::flush) moves what can be moved.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use ringbell_net::port::{
    Arrived, Capabilities, Checksums, MacAddr, Port, PortCounters, RefusedBy, MTU_MAX, MTU_MIN,
};
use ringbell_net::wire::ETHERNET_HEADER;
use ringbell_net::NicTime;
use ringbell_routes::tables::Class;
use ringbell_routes::topology::NodeId;
use zerocopy::big_endian::{U16, U32, U64};

mod replace;
mod summing;
mod ways;

use crate::buffers::{Pool, Stored, QUEUES_MAX};
use crate::config::{are_given, ranged, MeshConfig, MeshCounters, POLL_MAX};
use crate::error::MeshError;
use crate::gone::Gone;
use crate::head::{
    class_of, Head, Hello, Kind, EVERYONE, FLAG_BROADCAST, FLAG_SUM, FRAME_AT, GROWTH, HEAD,
    MARK_SHIFT, UPWARD, VERSION,
};
use crate::network::Network;
use crate::page::Page;
use crate::replacing::Replacing;
pub use crate::report::WireReport;
use crate::router::{Router, Way};
use crate::sound::SoundRoutes;
use crate::sums::Sum;
use crate::wire::{Event, Wire};

/// Frames taken from each wire in one turn.
const BUDGET: usize = 64;
/// Interval at which a full queue is looked at again: 20 µs.
const ROOM_NS: u64 = 20_000;
/// Shortest time between two reports of the network to a neighbour that knows less: 5 ms.
const REPORT_NS: u64 = 5_000_000;

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

/// A frame to all nodes, of which each gets a packet: there are no trees.
#[derive(Debug)]
struct Broadcast {
    packet: Stored,
    /// The next one.
    to: u16,
}

/// The wire by which what goes by a tree comes, and its channel.
type Comes = (Option<usize>, usize);

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
    /// By half of the channels and root: the wire by which what goes by its tree comes, and its
    /// channel.
    trees: [Vec<Option<Comes>>; 2],
    /// By half and root.
    sums: [Vec<Option<Sum>>; 2],
    /// Those that have a segment to combine.
    summed: VecDeque<(usize, u16)>,
    /// Others in the trees of the whole network, which all nodes know alike.
    reached_by_tree: usize,
    gone: Gone,
    replacing: Replacing,
    /// Time of the last turn.
    turned: Option<NicTime>,
    reported: NicTime,
    /// Neighbours are to be told what is known of the network.
    news: bool,
    counters: MeshCounters,
    traffic: PortCounters,
    page: Page,
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
        let sound = SoundRoutes::of(&config)?;
        MeshPort::open_with(config, &sound, wires)
    }

    /// The same with routes that were checked, in place of the configuration's.
    ///
    /// # Errors
    /// [`MeshError`]; also where the routes are of another network, or of other channels.
    pub fn open_with(
        config: MeshConfig,
        sound: &SoundRoutes,
        wires: Vec<(u8, Box<dyn Port>)>,
    ) -> Result<MeshPort, MeshError> {
        sound.holds_for(&config)?;
        let MeshConfig {
            topology,
            channels,
            node,
            depth,
            ..
        } = &config;
        let (node, channels, depth) = (*node, *channels, *depth);
        let most = POLL_MAX as usize;
        ranged(
            "packets from one queue in a row (R)",
            config.poll as usize,
            1,
            most,
        )?;
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
        let hello = |port| Hello {
            version: VERSION,
            port,
            node: U16::new(node.0),
            channels: channels as u8,
            bubble: sound.routes.proof.slots(),
            depth: U16::new(depth as u16),
            mtu: U16::new(mtu as u16),
            nodes: U16::new(nodes as u16),
            digest: U64::new(sound.digest),
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
            network: Network::new(topology.clone(), sound, channels, node),
            router: Router::new(wires.len(), channels, config.poll),
            replacing: Replacing::new(node, nodes, wires.len()),
            wires,
            read: None,
            written: pool.take(),
            pool,
            chosen: None,
            broadcast: None,
            trees: Default::default(),
            sums: Default::default(),
            summed: VecDeque::new(),
            reached_by_tree: 0,
            gone: Gone::new(nodes, config.grace),
            turned: None,
            reported: NicTime(0),
            news: false,
            counters: MeshCounters::default(),
            traffic: PortCounters::default(),
            page: Page::default(),
            config,
        };
        port.set_ways();
        let others = port.network.topology().ends().count() - 1;
        port.reached_by_tree = port.tree_queue().map_or(0, |_| others);
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
                name: self.network.wire_text(link.wire()),
                port: wire.number(),
                to: topology.port_text(topology.to(link)),
                state: wire.state().clone(),
                is_missed: wire.is_missed(),
                credit: (0..self.config.channels).map(|c| wire.free(c)).sum(),
                reason: wire.reason().map(str::to_owned),
                counters: wire.counters(),
            })
        };
        self.wires.iter().filter_map(report).collect()
    }

    /// The digest of the tables by which it sends: equal ones have equal digests.
    pub fn digest(&self) -> u64 {
        self.network.in_use().0
    }

    /// Has what users see of the node ([`Port::describe`], and the lines of [`Port::report`]) given
    /// to a function from now on, a few times a second while the port is stepped.
    pub fn show(&mut self, to: impl FnMut(&[String]) + Send + 'static) {
        self.page.set(to);
    }

    /// Names of the network's wires that are known to be down.
    pub fn down(&self) -> Vec<String> {
        self.network.down().collect()
    }

    /// The network has changed: routes around what is down, and word to the neighbours.
    fn changed(&mut self, now: NicTime) {
        self.counters.reroutes += 1;
        self.network.reroute();
        self.routes_changed(now);
        self.news = true;
    }

    /// Takes the network's routes into use, and notes whom they do not reach.
    fn routes_changed(&mut self, now: NicTime) {
        self.set_ways();
        let (network, me) = (&self.network, self.config.node);
        let has_way = |node| node == me || network.next(node).is_some();
        self.gone.update(now, has_way);
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
                self.replacing.up(wire);
                self.news |= self.network.knows() != 0;
            }
            Event::Refused(why) => {
                let port = self.wires[wire].number();
                tracing::warn!(node = self.config.node.0, port, %why, "a wire is refused");
            }
            Event::Down => self.lost(now, wire),
            Event::Plan(kind, number, body) => self.heard_plan(now, wire, kind, number, &body),
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

    /// A wire has not come up since it was opened. It is no reason to end anything: the node at the
    /// other end may be a rank that starts late.
    fn missed(&self, wire: usize) {
        let Some(wire) = self.wires().into_iter().nth(wire) else {
            return;
        };
        let (node, grace) = (self.config.node.0, self.config.grace);
        tracing::warn!(
            node,
            port = wire.port,
            "no answer by wire {} for {grace:?} since it was opened; see that a NIC runs at {} and that both ends name the same wire",
            wire.name,
            wire.to
        );
    }

    /// Takes a packet that has come by a wire.
    #[inline]
    fn forward(&mut self, now: NicTime, wire: usize, channel: usize, packet: Stored) {
        let mut head = packet.head();
        let (source, destination) = (head.source.get(), head.destination.get());
        let nodes = self.network.topology().nodes().len();
        let me = self.config.node.0;
        let half = self.network.half(channel);
        // What is left over from older tables would go by those that have its channel now.
        if self.network.mark(half) != Some(head.flags >> MARK_SHIFT) {
            self.counters.old += 1;
            self.pool.give(packet);
            self.wires[wire].release(now, channel);
            return;
        }
        if destination == UPWARD {
            self.add(now, half, (wire, channel), packet);
            return;
        }
        let leads_here = match destination {
            // A copy that comes by another way would go round, or double.
            EVERYONE => self.tree(half, source) == Some((Some(wire), channel)),
            node => usize::from(node) < nodes,
        };
        let exists = usize::from(source) < nodes && leads_here;
        if !exists || source == me || (destination != me && head.hops == 0) {
            self.counters.bad += 1;
            self.pool.give(packet);
            self.wires[wire].release(now, channel);
            return;
        }
        let mut packet = packet;
        self.replacing.filled(now, half);
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

    /// Takes the head of a queue for one of its ways: a copy, unless it is the last of them.
    #[inline]
    fn take(&mut self, now: NicTime, queue: usize, way: Way) -> Option<(Stored, bool)> {
        if let Some(copy) = self.router.copy(queue, way, &mut self.pool) {
            self.counters.copied += 1;
            return Some((copy, self.router.origin(queue).0.is_some()));
        }
        self.pop(now, queue)
    }

    /// The wire by which what goes by a node's tree in a half comes, and its channel.
    #[inline]
    fn tree(&self, half: usize, root: u16) -> Option<Comes> {
        *self.trees[half].get(usize::from(root))?
    }

    /// The queue of what this node sends by its tree.
    fn tree_queue(&self) -> Option<usize> {
        let half = 1 - self.network.spare();
        let (_, channel) = self.tree(half, self.config.node.0)?;
        Some(self.router.queue(None, channel))
    }

    /// Moves packets from queues to wires.
    #[inline]
    fn spread(&mut self, now: NicTime) {
        self.inject_broadcast(now);
        self.combine(now);
        for wire in 0..self.wires.len() {
            let way = Way::Wire(wire as u8);
            while self.router.waits(way) && self.wires[wire].takes() {
                let free = |channel| self.wires[wire].free(channel);
                let Some(queue) = self.router.next(way, free) else {
                    break;
                };
                let (_, channel) = self.router.origin(queue);
                let Some((packet, came)) = self.take(now, queue, way) else {
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
            if !came && packet.head().flags & FLAG_SUM == 0 {
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
        self.replace(now);
        self.leave(now);
        for node in self.gone.step(now) {
            let why = self.no_way_to(node);
            tracing::warn!(node = self.config.node.0, "{why}");
        }
        if self.page.is_due(now) {
            let lines: Vec<String> = [self.describe()].into_iter().chain(self.report()).collect();
            self.page.show(now, &lines);
        }
    }

    /// That a node is gone, and which wires are missing.
    fn no_way_to(&self, node: NodeId) -> String {
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
            } else if to.misses_answer(now, self.config.grace) {
                self.missed(wire);
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
            (packet.since.0 <= limit && self.router.waits_for_wire(queue)).then_some(queue)
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
            // What is added to a sum has its place.
            None if Self::sum_root(dst, self.network.topology().nodes().len()).is_some() => true,
            // What is never sent needs no room.
            None if dst.is_unicast() => true,
            None => match self.tree_queue() {
                Some(queue) => self.has_room(queue),
                None => self.broadcast.is_none(),
            },
            Some(to) => {
                let queues = Class::ALL.map(|c| self.own_queue(to, c));
                queues.into_iter().all(|q| self.has_room(q))
            }
        }
    }

    /// Puts a packet of this node into its queue.
    fn inject(&mut self, now: NicTime, to: NodeId, packet: Stored, flags: u8) {
        let class = class_of(&packet.bytes()[FRAME_AT..]);
        self.enqueue(now, self.own_queue(to, class), to.0, packet, flags);
    }

    fn enqueue(&mut self, now: NicTime, queue: usize, to: u16, mut packet: Stored, flags: u8) {
        self.traffic.tx_frames += 1;
        self.traffic.tx_bytes += (packet.bytes().len() - FRAME_AT) as u64;
        let mut head = Head::new(Kind::Packet);
        head.channel = self.router.origin(queue).1 as u8;
        head.source.set(self.config.node.0);
        head.destination.set(to);
        head.hops = u8::try_from(self.network.topology().nodes().len()).unwrap_or(u8::MAX);
        head.flags = flags | self.network.own_mark() << MARK_SHIFT;
        self.replacing.filled(now, 1 - self.network.spare());
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
            copied,
            combined,
            late,
            unreachable,
            stuck,
            bad,
            old,
            reroutes,
        } = self.counters;
        let all = format!(
            "forwarded {forwarded} packets, copied {copied}, combined {combined}; dropped {unreachable} without a route, {stuck} that \
             stood, {bad} with a wrong head, {old} of other tables, {late} late for a sum; {reroutes} times new routes"
        );
        let gone = self.gone.all().map(|node| self.no_way_to(node));
        let (digest, first, end) = self.network.in_use();
        let routes = format!(
            "routes {digest:016x} on channels {first} to {} of {}; R is {}",
            end - 1,
            self.config.channels,
            self.config.poll
        );
        let rest = [routes, all];
        wires.chain(down).chain(gone).chain(rest).collect()
    }

    fn no_way(&self, to: Option<MacAddr>) -> Option<String> {
        let is_meant = |node: &NodeId| to.is_none_or(|mac| mac == mac_of(*node));
        let gone = self.gone.all().filter(is_meant);
        let why: Vec<_> = gone.map(|node| self.no_way_to(node)).collect();
        (!why.is_empty()).then(|| why.join("; "))
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
        let (mut packet, _) = self.take(now, queue, Way::Here)?;
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
            && !self.replacing.is_asked()
            && self.wires.iter().all(Wire::is_quiet)
    }

    fn poll(&mut self) -> bool {
        self.replacing.is_asked()
            || !self.router.is_empty()
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
        let sum = Self::sum_root(dst, nodes);
        let is_lost = to.is_none() && dst.is_unicast() || to == Some(self.config.node);
        if !is_frame || is_lost {
            self.traffic.tx_dropped += 1;
            return;
        }
        let mut packet = std::mem::replace(&mut self.written, self.pool.take());
        packet.set_len(FRAME_AT + len);
        match (to, sum) {
            (Some(to), _) => self.inject(now, to, packet, 0),
            (None, Some(root)) => self.contribute(root, packet),
            (None, None) => match self.tree_queue() {
                Some(queue) => self.enqueue(now, queue, EVERYONE, packet, FLAG_BROADCAST),
                None => {
                    self.broadcast = Some(Broadcast { packet, to: 0 });
                    self.inject_broadcast(now);
                }
            },
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
        let gone = self.gone.next_timer();
        let page = self.page.next_timer();
        [wires, heads, soon, gone, page, self.replace_timer(now)]
            .into_iter()
            .flatten()
            .min()
    }

    fn next_refused(&mut self) -> Option<RefusedBy> {
        let node = self.gone.next_report()?;
        Some(RefusedBy::NoWay(mac_of(node)))
    }

    fn reached_by_tree(&self) -> usize {
        self.reached_by_tree
    }

    fn has_tree(&self) -> bool {
        self.tree_queue().is_some()
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
