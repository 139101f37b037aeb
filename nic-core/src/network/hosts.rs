//! Hosts of NICs behind ports of datagrams: where a NIC receives, and whose a datagram is.
//!
//! Descriptors, completions and tables of the NIC name a NIC by 4 bytes. One that is known by an
//! IPv6 address alone has a *short name*: an address of 240.0.0.0/8, which no host has (RFC 1112 §4
//! reserves it). Short names are this NIC's own and never leave it.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ringbell_nic_abi::roce::ROCE_UDP_PORT;
use rustc_hash::FxHashMap;
use smoltcp::wire::Ipv4Cidr;

/// The short names.
pub(super) const SHORT_NAMES: Ipv4Cidr = Ipv4Cidr::new(Ipv4Addr::new(240, 0, 0, 0), 8);
/// Most short names that the user has asked for.
const ASKED_MAX: usize = 65_536;
/// Most short names of peers that have connected, and that the user has not asked for. The oldest
/// one without a connection is forgotten.
const HEARD_MAX: usize = 4_096;

/// Whether an address is a short name of a host.
pub fn is_short_name(ip: Ipv4Addr) -> bool {
    SHORT_NAMES.contains_addr(&ip)
}

/// The UDP socket of each NIC's host. A NIC that was not named is reached at its own address, as
/// any RoCEv2 NIC.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    addresses: FxHashMap<Ipv4Addr, SocketAddr>,
    nics: FxHashMap<SocketAddr, Ipv4Addr>,
    /// The short names.
    names: FxHashMap<Ipv6Addr, Ipv4Addr>,
    /// Those of peers that have connected, the oldest first.
    heard: VecDeque<Ipv6Addr>,
    /// Number of the last short name.
    last: u32,
}

impl Hosts {
    pub(super) fn know(&mut self, nic: Ipv4Addr, mut address: SocketAddr) {
        if let SocketAddr::V6(at) = &mut address {
            // The port has the interface.
            at.set_scope_id(0);
            at.set_flowinfo(0);
        }
        if let Some(old) = self.addresses.insert(nic, address) {
            self.nics.remove(&old);
        }
        if let Some(old) = self.nics.insert(address, nic).filter(|old| *old != nic) {
            self.addresses.remove(&old);
        }
    }

    /// Where a NIC receives. `None`: a short name that nothing has.
    pub(super) fn address(&self, nic: Ipv4Addr) -> Option<SocketAddr> {
        match self.addresses.get(&nic) {
            Some(named) => Some(*named),
            None if is_short_name(nic) => None,
            None => Some((nic, ROCE_UDP_PORT).into()),
        }
    }

    /// The NIC whose datagrams come from there. `None`: an IPv6 address without a name.
    pub(super) fn whose(&self, from: SocketAddr) -> Option<Ipv4Addr> {
        let known = self.nics.get(&from).copied();
        known.or_else(|| match from.ip() {
            IpAddr::V4(ip) => Some(ip),
            IpAddr::V6(ip) => self.names.get(&ip).copied(),
        })
    }

    /// Where to answer what came from there: a NIC that was not named sends from any port.
    pub(super) fn answer_to(&self, from: SocketAddr) -> SocketAddr {
        match self.nics.contains_key(&from) {
            true => from,
            false => SocketAddr::new(from.ip(), ROCE_UDP_PORT),
        }
    }

    /// The IPv6 address of a short name.
    pub(super) fn behind(&self, name: Ipv4Addr) -> Option<Ipv6Addr> {
        match self.addresses.get(&name)?.ip() {
            IpAddr::V6(ip) if is_short_name(name) => Some(ip),
            _ => None,
        }
    }

    /// The name of the host with this address, for the user. `None`: there are too many.
    pub(super) fn ask(&mut self, ip: Ipv6Addr) -> Option<Ipv4Addr> {
        // It is kept from here on.
        self.heard.retain(|heard| *heard != ip);
        let known = self.names.get(&ip).copied();
        known.or_else(|| {
            let has_room = self.names.len() - self.heard.len() < ASKED_MAX;
            has_room.then(|| self.give(ip))
        })
    }

    /// The name of a host that has connected. `None`: all names of such hosts have connections.
    pub(super) fn hear(
        &mut self,
        ip: Ipv6Addr,
        is_used: impl Fn(Ipv4Addr) -> bool,
    ) -> Option<Ipv4Addr> {
        if let Some(known) = self.names.get(&ip) {
            return Some(*known);
        }
        if self.heard.len() >= HEARD_MAX {
            let names = &self.names;
            let unused = |ip: &Ipv6Addr| names.get(ip).is_none_or(|name| !is_used(*name));
            let oldest = self.heard.iter().position(unused)?;
            let name = self.names.remove(&self.heard.remove(oldest)?)?;
            self.addresses.remove(&name);
        }
        self.heard.push_back(ip);
        Some(self.give(ip))
    }

    fn give(&mut self, ip: Ipv6Addr) -> Ipv4Addr {
        let name = loop {
            // A name comes back after 16 million others.
            self.last = self.last % 0xff_fffe + 1;
            let name = Ipv4Addr::from(u32::from(SHORT_NAMES.address()) | self.last);
            if !self.addresses.contains_key(&name) {
                break name;
            }
        };
        self.names.insert(ip, name);
        // Not in `nics`: its packets may come from any UDP port.
        self.addresses.insert(name, (ip, ROCE_UDP_PORT).into());
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_host_is_found_both_ways_and_moves() {
        let nic = |n| Ipv4Addr::new(10, 77, 0, n);
        for ip in ["127.0.0.1", "::1"] {
            let ip: IpAddr = ip.parse().unwrap(); // an address
            let at = |port| SocketAddr::new(ip, port);
            let mut hosts = Hosts::default();
            hosts.know(nic(1), at(5_001));
            hosts.know(nic(2), at(5_002));
            assert_eq!(hosts.address(nic(1)), Some(at(5_001)));
            assert_eq!(hosts.whose(at(5_002)), Some(nic(2)));
            assert_eq!(hosts.answer_to(at(5_002)), at(5_002));
            // The second NIC opens again at the first one's socket.
            hosts.know(nic(2), at(5_001));
            assert_eq!(hosts.whose(at(5_001)), Some(nic(2)));
            let unknown = ip.is_ipv4().then_some(Ipv4Addr::LOCALHOST);
            assert_eq!(hosts.whose(at(5_002)), unknown);
            assert_eq!(hosts.answer_to(at(5_002)), at(ROCE_UDP_PORT));
            let own = SocketAddr::from((nic(1), ROCE_UDP_PORT));
            assert_eq!(hosts.address(nic(1)), Some(own));
        }
    }

    fn host(n: usize) -> Ipv6Addr {
        Ipv6Addr::from(0xfd00_u128 << 112 | n as u128)
    }

    #[test]
    fn a_short_name_stands_for_one_address_and_is_made_once() {
        let mut hosts = Hosts::default();
        let name = hosts.ask(host(1)).expect("room");
        assert!(is_short_name(name));
        assert_eq!(hosts.ask(host(1)), Some(name));
        assert_eq!(hosts.hear(host(1), |_| false), Some(name));
        assert_eq!(hosts.behind(name), Some(host(1)));
        let at = SocketAddr::from((host(1), ROCE_UDP_PORT));
        assert_eq!(hosts.address(name), Some(at));
        assert_eq!(hosts.whose((host(1), 50_000).into()), Some(name));
        assert_ne!(hosts.ask(host(2)), Some(name));
        let never = Ipv4Addr::new(240, 9, 9, 9);
        assert_eq!((hosts.address(never), hosts.behind(never)), (None, None));
        // The name of a NIC is not a short one, wherever it receives.
        hosts.know([10, 0, 0, 1].into(), at);
        assert_eq!(hosts.behind([10, 0, 0, 1].into()), None);
    }

    #[test]
    fn hosts_that_connect_push_out_the_oldest_without_a_connection_and_no_other() {
        let mut hosts = Hosts::default();
        let kept = hosts.ask(host(0)).expect("room");
        let first: Vec<_> = (1..=HEARD_MAX)
            .map(|n| hosts.hear(host(n), |_| false).expect("room"))
            .collect();
        // The oldest is in use, and the user has asked for the second.
        assert_eq!(hosts.ask(host(2)), Some(first[1]));
        hosts.hear(host(9_000), |_| false).expect("the second's");
        let is_used = |name: Ipv4Addr| name == first[0];
        let new = hosts.hear(host(9_001), is_used).expect("the third's");
        assert!(!first.contains(&new), "no name comes back at once");
        for (n, there) in [(0, true), (1, true), (2, true), (3, false), (4, true)] {
            assert_eq!(hosts.names.contains_key(&host(n)), there, "{n}");
        }
        assert_eq!(hosts.address(kept).map(|a| a.ip()), Some(host(0).into()));
        assert_eq!(hosts.address(first[2]), None);
        assert_eq!(hosts.hear(host(9_002), |_| true), None);
        assert_eq!(hosts.addresses.len(), hosts.names.len());
    }
}
