//! Addresses of RoCEv2 packets: between which sockets they travel, and by which names users and
//! management know both ends.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4};

use ringbell_nic_abi::roce::ROCE_UDP_PORT;

use super::neighbor::Place;
use super::packet::Protocol;
use super::Network;
use ringbell_net::port::Medium;
use ringbell_net::wire::roce::icrc::Flow;
use ringbell_net::wire::udp::{headers_to, UNFRAGMENTED};

/// A flow whose packets are not cut.
fn unfragmented(from: SocketAddr, to: SocketAddr) -> Flow {
    let fragment = UNFRAGMENTED;
    Flow { from, to, fragment }
}

impl Network {
    /// Says at which address of its host a NIC receives datagrams. One that is not known has its
    /// own address there, and the port of RoCEv2.
    pub fn know_host(&mut self, ip: Ipv4Addr, address: SocketAddr) {
        self.hosts.know(ip, address);
    }

    /// The short name by which this NIC's users reach the NIC at an IPv6 address: at UDP port 4791,
    /// by the first port of datagrams with an address of IPv6. It is the same each time, and means
    /// nothing to other NICs. `None`: there is no such port, or there are too many names.
    pub fn short_name(&mut self, ip: Ipv6Addr) -> Option<Ipv4Addr> {
        let has_port = self.media.iter().any(Medium::is_ipv6);
        has_port.then(|| self.hosts.ask(ip)).flatten()
    }

    /// The IPv6 address behind a short name.
    pub fn behind_short_name(&self, name: Ipv4Addr) -> Option<Ipv6Addr> {
        self.hosts.behind(name)
    }

    /// A peer's address for users.
    pub(crate) fn shown(&self, peer: SocketAddrV4) -> SocketAddr {
        let behind = self.hosts.behind(*peer.ip());
        behind.map_or(peer.into(), |ip| (ip, peer.port()).into())
    }

    /// The name of the NIC at an IPv6 address, from which a request has come by a port. `None`: all
    /// names have connections.
    pub(crate) fn hear(&mut self, port: usize, ip: Ipv6Addr) -> Option<Ipv4Addr> {
        let neighbors = &self.neighbors;
        self.hosts
            .hear(ip, |name| neighbors.is_used(Place { port, ip: name }))
    }

    /// Whether a NIC is behind an address of this host, by the port of datagrams that leads there.
    pub(crate) fn is_on_this_host(&self, nic: Ipv4Addr) -> bool {
        let route = self.routes.to(Protocol::Roce, nic);
        let local = route.and_then(|r| self.media[r.port].local());
        let host = self.hosts.address(nic);
        local.zip(host).is_some_and(|(local, host)| {
            let (local, host) = (local.ip(), host.ip());
            host == local || (host.is_loopback() && local.is_loopback())
        })
    }

    /// The addresses of RoCEv2 packets to a peer, as its ICRC covers them: source, which has
    /// `src_port` on a port of frames, and destination.
    pub fn flow(&self, port: usize, src_port: u16, peer: Ipv4Addr) -> Flow {
        let (from, to) = match self.media[port] {
            Medium::Ethernet(_) => self.between(src_port, peer),
            Medium::Udp(local) => {
                let to = self.hosts.address(peer);
                // `hop_to` has refused a name that nothing has.
                (local, to.unwrap_or((peer, ROCE_UDP_PORT).into()))
            }
        };
        unfragmented(from, to)
    }

    /// Those of an answer to a packet that came from there.
    pub(crate) fn answer_flow(&self, port: usize, src_port: u16, to: SocketAddr) -> Flow {
        let (from, to) = match (self.media[port], to.ip()) {
            (Medium::Ethernet(_), IpAddr::V4(ip)) => self.between(src_port, ip),
            (Medium::Ethernet(_), IpAddr::V6(_)) => (to, to),
            (Medium::Udp(local), _) => (local, self.hosts.answer_to(to)),
        };
        unfragmented(from, to)
    }

    /// Those of a packet in a frame.
    fn between(&self, src_port: u16, peer: Ipv4Addr) -> (SocketAddr, SocketAddr) {
        let from = (self.ip(), src_port).into();
        (from, (peer, ROCE_UDP_PORT).into())
    }

    /// The addresses by which management names both ends of a connection (annex A11): ours and the
    /// peer's. They are of IPv6 for a peer that is known by a short name.
    pub(crate) fn ends(&self, port: usize, peer: Ipv4Addr) -> (IpAddr, IpAddr) {
        match (self.hosts.behind(peer), self.media[port]) {
            (Some(ip), Medium::Udp(local)) => (local.ip(), ip.into()),
            _ => (self.ip().into(), peer.into()),
        }
    }

    /// Whether management means this NIC by an address, in a message that came by a port.
    pub(crate) fn is_own(&self, port: usize, ip: IpAddr) -> bool {
        match (ip, self.media[port]) {
            (IpAddr::V4(ip), _) => ip == self.ip(),
            (IpAddr::V6(_), Medium::Udp(local)) => ip == local.ip(),
            (IpAddr::V6(_), Medium::Ethernet(_)) => false,
        }
    }

    /// The NIC whose RoCEv2 packets come from there. `None`: an IPv6 address that no NIC of ours
    /// names.
    pub(crate) fn sender(&self, port: usize, from: SocketAddr) -> Option<Ipv4Addr> {
        match (self.media[port], from) {
            (Medium::Ethernet(_), SocketAddr::V4(from)) => Some(*from.ip()),
            (Medium::Ethernet(_), SocketAddr::V6(_)) => None,
            (Medium::Udp(_), from) => self.hosts.whose(from),
        }
    }

    /// The NIC that says that it is `claimed`, and whose host has this address. `None`: that NIC is
    /// at another host, or its host has an IPv6 address for which there is no name.
    pub(crate) fn claimant(
        &mut self,
        port: usize,
        claimed: Ipv4Addr,
        from: IpAddr,
    ) -> Option<Ipv4Addr> {
        let known = self.hosts.address(claimed);
        match from {
            _ if known.is_some_and(|at| at.ip() == from) => Some(claimed),
            IpAddr::V4(_) => None,
            IpAddr::V6(ip) => self.hear(port, ip),
        }
    }

    /// Longest UDP payload to a peer by a port. It may fall, and never rises.
    pub fn payload_to(&mut self, port: usize, peer: Ipv4Addr) -> usize {
        let host = match self.media[port] {
            Medium::Ethernet(_) => peer.into(),
            Medium::Udp(_) => self.hosts.address(peer).map_or(peer.into(), |at| at.ip()),
        };
        self.ports[port].mtu_to(host) - headers_to(host)
    }
}
