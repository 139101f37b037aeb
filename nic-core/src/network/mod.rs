//! The NIC's network: its ports, the forwarding table, and what all its transports share of
//! Ethernet.
//!
//! A transport emits and accepts packets. It asks for a *hop* towards a peer once per connection;
//! the forwarding table chooses port and next hop, and ARP finds the hardware address. A frame that
//! arrives is classified once, for the transport of its [`Protocol`]; those that are no transport's
//! (ARP, ICMP echo) are answered here.
//!
//! The NIC has one address of IPv4, which it answers for on every port of frames, and by which
//! other NICs name it. A port of datagrams has an address of its host beside it, of IPv4 or IPv6.

mod addresses;
mod copies;
mod error;
mod hosts;
mod neighbor;
mod packet;
mod route;
mod routes;
mod to_all;

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use ringbell_nic_abi::Status;
use smoltcp::wire::Ipv4Cidr;

use self::copies::Copies;
pub use self::error::{NetworkError, PORTS_MAX};
pub use self::hosts::is_short_name;
use self::hosts::Hosts;
pub use self::neighbor::Resolved;
use self::neighbor::{Neighbors, Place};
pub use self::packet::{Datagrams, Headers, Link, Packet, Protocol, Refused, Waiter, PROTOCOLS};
pub use self::route::{Route, RouteError, Via, ROUTES_MAX};
pub(crate) use self::routes::Routes;
use crate::types::NicTime;
use ringbell_net::port::{
    Arrived, Batch, Destination, MacAddr, Medium, Places, Port, PortCounters, RefusedBy,
    Segmentation,
};
use ringbell_net::wire::accl::ACCL_UDP_PORT;
use ringbell_net::wire::control::{echo_reply, Arp, ARP_FRAME};
use ringbell_net::wire::frame::{classify, Dropped, Frame, UdpFrame};
use ringbell_net::wire::roce::icrc::Flow;
use ringbell_net::wire::udp::{self, IP_UDP_HEADERS, UNFRAGMENTED};
use ringbell_net::wire::{emit_ethernet, ETHERNET_HEADER, ETHERTYPE_IPV4};

/// What the network counted since it was made, beside its ports' counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NetworkCounters {
    /// Frames that were malformed, fragments, of an unknown protocol, or to all while too many of
    /// those waited.
    pub dropped: u64,
    /// Frames addressed to another host.
    pub not_ours: u64,
    /// Answers and ARP requests dropped because a port had no room.
    pub replies_lost: u64,
}

/// A port of a NIC, for users and tools.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortInfo {
    /// Kind and destination: `mem 0 of 2`, `tap rb0`.
    pub name: String,
    /// Largest IP packet that it carries now.
    pub mtu: usize,
    /// Where it receives, if it carries datagrams of the host.
    pub address: Option<SocketAddr>,
    /// TCP connections of iWARP come in there, too, or alone.
    pub has_streams: bool,
    /// What went through it.
    pub counters: PortCounters,
    /// Its parts: of a mesh, each wire with its state, and what was forwarded.
    pub parts: Vec<String>,
}

/// A frame that has arrived.
pub(crate) enum Received<'a> {
    /// One for the transport of this protocol.
    Packet(Protocol, Packet<'a>),
    /// One that was answered or dropped here.
    Handled,
}

/// The ports of a NIC and its forwarding table. See the module text.
pub struct Network {
    address: Ipv4Cidr,
    ports: Vec<Box<dyn Port>>,
    /// What each port's packets are.
    media: Vec<Medium>,
    routes: Arc<Routes>,
    neighbors: Neighbors,
    hosts: Hosts,
    /// What datagrams of the host carry.
    datagrams: Protocol,
    counters: NetworkCounters,
    /// An answer to the last frame, which leaves when the port has its buffer back.
    answer: Option<(Link, usize)>,
    scratch: Box<[u8]>,
    resolved: Vec<(Waiter, Resolved)>,
    copies: Copies,
}

impl std::fmt::Debug for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ports = self.ports.iter().map(|p| p.describe());
        f.debug_struct("Network")
            .field("address", &self.address)
            .field("ports", &ports.collect::<Vec<_>>())
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

impl Network {
    /// A network with these ports, numbered from 0. The NIC's own network is at port 0 unless a
    /// route says otherwise.
    ///
    /// # Errors
    /// [`NetworkError`] names the address, the port or the route that cannot work.
    pub fn new(
        ip: Ipv4Addr,
        prefix_len: u8,
        ports: Vec<Box<dyn Port>>,
        routes: &[Route],
    ) -> Result<Network, NetworkError> {
        if !ringbell_net::is_host(ip) || is_short_name(ip) || prefix_len == 0 || prefix_len > 32 {
            return Err(NetworkError::Address { ip, prefix_len });
        }
        if ports.len() > PORTS_MAX {
            let ports = ports.len();
            return Err(NetworkError::TooManyPorts { ports });
        }
        let media: Vec<Medium> = ports.iter().map(|p| p.capabilities().medium).collect();
        let is_group = |m: &Medium| m.has_frames() && !m.mac().is_unicast();
        if let Some(port) = media.iter().position(is_group) {
            let mac = media[port].mac();
            return Err(NetworkError::Mac { port, mac });
        }
        let address = Ipv4Cidr::new(ip, prefix_len);
        let frames = ports
            .iter()
            .map(|p| p.capabilities())
            .filter(|c| c.medium.has_frames());
        let longest = frames.map(|c| c.mtu).max().unwrap_or(0);
        Ok(Network {
            address,
            routes: Arc::new(Routes::new(address, &media, routes)?),
            ports,
            media,
            neighbors: Neighbors::default(),
            hosts: Hosts::default(),
            datagrams: Protocol::Roce,
            counters: NetworkCounters::default(),
            answer: None,
            scratch: vec![0; (ETHERNET_HEADER + longest).max(ARP_FRAME)].into(),
            resolved: Vec::new(),
            copies: Copies::default(),
        })
    }

    /// The NIC's address.
    pub fn ip(&self) -> Ipv4Addr {
        self.address.address()
    }

    /// The ports, by number.
    pub fn ports(&self) -> &[Box<dyn Port>] {
        &self.ports
    }

    /// The ports for users, by number.
    pub(crate) fn describe_ports(&self) -> Vec<PortInfo> {
        let info = |p: &dyn Port| PortInfo {
            name: p.describe(),
            mtu: p.capabilities().mtu,
            address: p.capabilities().medium.local(),
            has_streams: p.listener().is_some(),
            counters: p.counters(),
            parts: p.report(),
        };
        self.ports.iter().map(|p| info(&**p)).collect()
    }

    /// Why no way leads to a peer, where its port knows.
    pub(crate) fn no_way(&self, peer: Ipv4Addr) -> Option<String> {
        // All transports over frames have the same routes.
        let route = self.routes.to(Protocol::Tcp, peer)?;
        let port = route.port;
        let ip = match route.via {
            Via::Gateway(gateway) => gateway,
            Via::Link | Via::Mac(_) => peer,
        };
        let mac = self.neighbors.mac(Place { port, ip });
        self.ports[port].no_way(mac)
    }

    /// The forwarding table, longest prefixes first.
    pub fn routes(&self) -> impl Iterator<Item = &Route> {
        self.routes.iter()
    }

    /// What was counted since the network was made.
    pub fn counters(&self) -> NetworkCounters {
        self.counters
    }

    /// The sum of a counter over all ports.
    pub(crate) fn sum(&self, counter: impl Fn(&PortCounters) -> u64) -> u64 {
        self.ports.iter().map(|p| counter(&p.counters())).sum()
    }

    /// Frames that were malformed, not authenticated, or not for this NIC.
    pub(crate) fn refused_frames(&self) -> u64 {
        let of_ports = self.sum(|c| c.rx_malformed + c.rx_unauthenticated);
        of_ports + self.counters.dropped + self.counters.not_ours
    }

    pub(crate) fn table(&self) -> Arc<Routes> {
        self.routes.clone()
    }

    /// The hop towards a peer, with one user more. `seen` is where a packet of the peer came from:
    /// its source answers for its address until ARP says otherwise, unless answers leave by another
    /// port (RFC 3704 §2.2).
    ///
    /// # Errors
    /// `HostUnreachable` without a route, `NoResources` when the neighbour table is full.
    pub fn hop_to(
        &mut self,
        protocol: Protocol,
        peer: Ipv4Addr,
        seen: Option<Link>,
        now: NicTime,
    ) -> Result<usize, Status> {
        let route = self.routes.to(protocol, peer);
        let route = route.ok_or(Status::HostUnreachable)?;
        let port = route.port;
        if seen.is_some_and(|s| s.port != port) {
            return Err(Status::HostUnreachable);
        }
        let is_reachable = match self.media[port] {
            Medium::Ethernet(_) => !is_short_name(peer),
            Medium::Udp(local) => {
                let host = self.hosts.address(peer);
                host.is_some_and(|host| host.is_ipv6() == local.is_ipv6())
            }
        };
        if !is_reachable {
            return Err(Status::HostUnreachable);
        }
        let (ip, fixed) = match (route.via, self.media[port]) {
            // The kernel finds the hardware address.
            (Via::Link, Medium::Udp(_)) => (peer, Some(MacAddr::default())),
            (Via::Link, Medium::Ethernet(_)) => (peer, None),
            (Via::Gateway(gateway), _) => (gateway, None),
            (Via::Mac(mac), _) => (peer, Some(mac)),
        };
        let hint = seen.map(|s| s.mac);
        let hop = {
            let resolved = &mut self.resolved;
            self.neighbors
                .acquire(Place { port, ip }, hint, now, resolved)
        };
        let hop = hop.ok_or(Status::NoResources)?;
        if let Some(mac) = fixed {
            self.neighbors.fix(hop, mac, now, &mut self.resolved);
        }
        if let Some(place) = hint.and_then(|mac| self.neighbors.doubt(hop, mac, now)) {
            self.ask(place, now);
        }
        Ok(hop)
    }

    /// One user of a hop less; `who` no longer waits for it.
    pub fn release(&mut self, hop: usize, who: Waiter) {
        self.neighbors.release(hop, who);
    }

    /// Reports `who` by [`PacketTransport::resolved`](crate::transport::PacketTransport::resolved)
    /// when the hop's hardware address is known or will not be.
    pub fn wait(&mut self, hop: usize, who: Waiter, now: NicTime) {
        self.neighbors.wait(hop, who, now);
    }

    /// Where frames for a hop go, once that is known.
    #[inline]
    pub fn link(&self, hop: usize) -> Option<Link> {
        self.neighbors.link(hop)
    }

    /// The port of a hop.
    pub fn port_of(&self, hop: usize) -> usize {
        self.neighbors.place(hop).port
    }

    /// Says what ports of datagrams carry, if not RoCEv2: they tell no protocols apart.
    pub fn carry_by_datagrams(&mut self, protocol: Protocol) {
        self.datagrams = protocol;
    }

    /// Bytes that wait at a port of datagrams before the network loses some.
    pub fn receive_buffer(&self, port: usize) -> Option<usize> {
        self.ports[port].capabilities().receive_buffer
    }

    /// How many packets of one size leave a port as one.
    pub fn segmentation(&self, port: usize) -> Segmentation {
        self.ports[port].capabilities().segmentation
    }

    /// Sends packets `from..` of a batch, each beginning behind the UDP header, between the
    /// addresses of a flow. Returns how many were taken; the others found no room and may be sent
    /// again. A packet longer than [`Network::payload_to`] is taken, dropped and counted. Frames
    /// wait for [`Network::flush`].
    pub fn send(
        &mut self,
        now: NicTime,
        link: Link,
        flow: &Flow,
        how: &Datagrams,
        batch: &Batch,
        from: usize,
    ) -> usize {
        if !self.media[link.port].has_frames() {
            let to = Destination::Socket {
                to: flow.to,
                ecn: how.ecn,
                segmented: how.segmented,
            };
            return self.ports[link.port].send(now, &to, batch, from);
        }
        let (SocketAddr::V4(source), SocketAddr::V4(to)) = (flow.from, flow.to) else {
            // Frames carry IPv4 alone: lost, as on any network.
            return batch.len().saturating_sub(from);
        };
        for packet in from..batch.len() {
            let Some(room) = self.room(now, link) else {
                return packet - from;
            };
            let len = batch.len_of(packet);
            let fits =
                room.len() >= IP_UDP_HEADERS && batch.copy_to(packet, &mut room[IP_UDP_HEADERS..]);
            if fits {
                let port = source.port() ^ batch.way_of(packet);
                let source = SocketAddrV4::new(*source.ip(), port);
                udp::emit(room, source, to, how.ecn, len);
            }
            // The port drops and counts what is longer than its room.
            self.commit(now, link, IP_UDP_HEADERS + len);
        }
        batch.len().saturating_sub(from)
    }

    /// A valid packet came from there.
    pub(crate) fn confirm(&mut self, hop: usize, now: NicTime) {
        self.neighbors.confirm(hop, now);
    }

    /// Packets have left for a hop, `again` when there was no answer. It is asked for again then,
    /// or when nothing has confirmed it for long.
    pub(crate) fn sent_to(&mut self, hop: usize, again: bool, now: NicTime) {
        let place = match again {
            true => self.neighbors.unanswered(hop, now),
            false => self.neighbors.stale(hop, now),
        };
        if let Some(place) = place {
            self.ask(place, now);
        }
    }

    /// Whether connections wait for hardware addresses.
    #[inline]
    pub(crate) fn is_asking(&self) -> bool {
        self.neighbors.is_asking() || !self.resolved.is_empty()
    }

    /// Asks for hardware addresses that are due. Returns connections whose hop is known, or will
    /// not be.
    pub(crate) fn resolve(&mut self, now: NicTime) -> Vec<(Waiter, Resolved)> {
        let mut due = Vec::new();
        self.neighbors
            .step(now, &mut self.resolved, |place| due.push(place));
        for place in due {
            if !self.ask(place, now) {
                self.neighbors.not_sent(place, now);
            }
        }
        std::mem::take(&mut self.resolved)
    }

    /// Sends an ARP request. `false`: the port has no room.
    fn ask(&mut self, place: Place, now: NicTime) -> bool {
        let mut frame = [0; ARP_FRAME];
        let request = Arp {
            request: true,
            sender_mac: self.media[place.port].mac(),
            sender_ip: self.ip(),
            target_mac: MacAddr::default(),
            target_ip: place.ip,
        };
        let len = request.emit(&mut frame);
        let port = &mut *self.ports[place.port];
        let sent = send(port, now, MacAddr::BROADCAST, &frame[..len]);
        self.counters.replies_lost += u64::from(!sent);
        sent
    }

    /// Where to say which RoCEv2 packets are expected in which places, right before
    /// [`Network::rx`].
    #[inline]
    pub(crate) fn places(&mut self, port: usize) -> Option<&mut Places> {
        self.ports[port].places()
    }

    /// The next frame of a port. Answers leave with the next call, or with [`Network::flush`].
    // Inlined: the segment, written field by field and copied whole, stalls on the store buffer
    // otherwise.
    #[inline(always)]
    pub(crate) fn rx(&mut self, port: usize, now: NicTime) -> Option<Received<'_>> {
        if self.answer.is_some() {
            self.send_answer(now);
        }
        let ip = self.address.address();
        let (frame, mac) = match (self.ports[port].receive(now)?, self.media[port]) {
            (arrived, Medium::Ethernet(mac)) => (arrived.bytes(), mac),
            (Arrived::Frame(frame), Medium::Udp(_)) => (frame, MacAddr::default()),
            (Arrived::Datagram(datagram), Medium::Udp(dst)) => {
                let mac = MacAddr::default();
                let packet = Packet {
                    from: Link { port, mac },
                    headers: Headers::Udp(UdpFrame {
                        src_mac: mac,
                        src: datagram.from,
                        dst,
                        ecn: datagram.ecn,
                        fragment: UNFRAGMENTED,
                        payload_at: 0,
                        end: datagram.bytes.len(),
                    }),
                    frame: datagram.bytes,
                    placed: datagram.placed,
                };
                return Some(Received::Packet(self.datagrams, packet));
            }
        };
        if self.copies.take(frame, &mut self.counters.dropped) {
            return Some(Received::Handled);
        }
        match classify(frame, mac, ip) {
            Ok(Frame::Tcp(seg)) => {
                let mac = seg.src_mac;
                let packet = Packet {
                    from: Link { port, mac },
                    headers: Headers::Tcp(seg),
                    frame,
                    placed: None,
                };
                return Some(Received::Packet(Protocol::Tcp, packet));
            }
            Ok(Frame::Udp(datagram)) => {
                let mac = datagram.src_mac;
                let protocol = match datagram.dst.port() {
                    ACCL_UDP_PORT => Protocol::Udp,
                    _ => Protocol::Roce,
                };
                let packet = Packet {
                    from: Link { port, mac },
                    headers: Headers::Udp(datagram),
                    frame,
                    placed: None,
                };
                return Some(Received::Packet(protocol, packet));
            }
            Ok(Frame::Arp) => match Arp::parse(frame) {
                Some(arp) => {
                    self.neighbors.heard(port, &arp, now, &mut self.resolved);
                    if arp.request && arp.target_ip == ip {
                        let to = arp.sender_mac;
                        let answer = Arp {
                            request: false,
                            sender_mac: mac,
                            sender_ip: ip,
                            target_mac: to,
                            target_ip: arp.sender_ip,
                        };
                        let len = answer.emit(&mut self.scratch);
                        self.answer = Some((Link { port, mac: to }, len));
                    }
                }
                None => self.counters.dropped += 1,
            },
            Ok(Frame::Icmp { src_mac: to }) => {
                let len = echo_reply(frame, mac, &mut self.scratch);
                self.answer = len.map(|len| (Link { port, mac: to }, len));
            }
            Err(Dropped::NotOurs) => self.counters.not_ours += 1,
            Err(_) => self.counters.dropped += 1,
        }
        Some(Received::Handled)
    }

    /// Counts a packet of a protocol that no transport of the NIC takes.
    pub(crate) fn drop_unclaimed(&mut self) {
        self.counters.dropped += 1;
    }

    fn send_answer(&mut self, now: NicTime) {
        if let Some((to, len)) = self.answer.take() {
            let port = &mut *self.ports[to.port];
            let sent = send(port, now, to.mac, &self.scratch[..len]);
            self.counters.replies_lost += u64::from(!sent);
        }
    }

    /// Room for a packet of the port's MTU, behind its Ethernet header; `None` while there is none.
    /// Nothing leaves without [`Network::commit`].
    #[inline]
    pub(crate) fn room(&mut self, now: NicTime, to: Link) -> Option<&mut [u8]> {
        let frame = self.ports[to.port].tx_frame(now, to.mac)?;
        emit_ethernet(frame, to.mac, self.media[to.port].mac(), ETHERTYPE_IPV4);
        Some(&mut frame[ETHERNET_HEADER..])
    }

    /// Whether there is room for a packet.
    #[inline]
    pub(crate) fn has_room(&mut self, now: NicTime, to: Link) -> bool {
        // A port of datagrams says so when it sends.
        let has_frames = self.media[to.port].has_frames();
        !has_frames || self.ports[to.port].tx_frame(now, to.mac).is_some()
    }

    /// Sends the first `len` bytes of the room.
    #[inline]
    pub(crate) fn commit(&mut self, now: NicTime, to: Link, len: usize) {
        self.ports[to.port].tx_commit(now, ETHERNET_HEADER + len);
    }

    /// Sends a packet, or loses it when there is no room.
    pub(crate) fn reply(&mut self, now: NicTime, to: Link, packet: &[u8]) {
        let room = self.room(now, to).and_then(|r| r.get_mut(..packet.len()));
        match room {
            Some(room) => {
                room.copy_from_slice(packet);
                self.commit(now, to, packet.len());
            }
            None => self.counters.replies_lost += 1,
        }
    }

    /// The next host that has refused a packet; see [`Port::next_refused`].
    pub(crate) fn next_refused(&mut self) -> Option<Refused> {
        let mut ports = self.ports.iter_mut().enumerate();
        ports.find_map(|(port, p)| match p.next_refused()? {
            RefusedBy::Link(mac) => Some(Refused::Link(Link { port, mac })),
            RefusedBy::Socket(peer) => Some(Refused::Peer { port, peer }),
            RefusedBy::NoWay(mac) => Some(Refused::NoWay(Link { port, mac })),
        })
    }

    /// Whether no port has anything, and nothing waits for a step. A port that cannot tell without
    /// a system call says no.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        self.answer.is_none() && !self.is_asking() && self.ports.iter().all(|p| p.is_quiet())
    }

    /// Whether a port may have something, or something waits for a step. Ports of datagrams receive
    /// to find out.
    #[inline]
    pub(crate) fn poll(&mut self) -> bool {
        self.answer.is_some() || self.is_asking() || self.ports.iter_mut().any(|p| p.poll())
    }

    /// Whether a look at the ports takes a system call.
    #[inline]
    pub(crate) fn calls_kernel(&self) -> bool {
        self.media.iter().any(|m| !m.has_frames())
    }

    /// Sends what waits for a batch.
    pub fn flush(&mut self, now: NicTime) {
        self.send_answer(now);
        for port in &mut self.ports {
            port.flush(now);
        }
    }

    /// When the transports must be stepped although no frame arrives.
    pub fn next_timer(&self) -> Option<NicTime> {
        let ports = self.ports.iter().filter_map(|p| p.next_timer());
        ports.chain(self.neighbors.next_timer()).min()
    }

    /// File descriptors that become readable when frames arrive, and whether every port has one.
    pub fn poll_fds(&self) -> (Vec<BorrowedFd<'_>>, bool) {
        let mut fds = Vec::new();
        let all = self.ports.iter().all(|p| {
            let before = fds.len();
            p.poll_fds(&mut fds);
            fds.len() > before
        });
        (fds, all)
    }

    /// Gives the ports back.
    pub(crate) fn close(&mut self) {
        self.ports.clear();
        self.media.clear();
    }
}

/// Sends a whole frame. `false`: there was no room.
fn send(port: &mut dyn Port, now: NicTime, dst: MacAddr, frame: &[u8]) -> bool {
    let room = port.tx_frame(now, dst);
    let Some(room) = room.and_then(|r| r.get_mut(..frame.len())) else {
        return false;
    };
    room.copy_from_slice(frame);
    port.tx_commit(now, frame.len());
    true
}
