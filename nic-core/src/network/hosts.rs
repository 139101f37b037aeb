//! Hosts of NICs behind ports of datagrams: where a NIC receives, and whose a datagram is.

use std::net::{Ipv4Addr, SocketAddrV4};

use ringbell_nic_abi::roce::ROCE_UDP_PORT;
use rustc_hash::FxHashMap;

/// The UDP socket of each NIC's host. A NIC that was not named is reached at its own address, as any RoCEv2 NIC.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    addresses: FxHashMap<Ipv4Addr, SocketAddrV4>,
    nics: FxHashMap<SocketAddrV4, Ipv4Addr>,
}

impl Hosts {
    pub(super) fn know(&mut self, nic: Ipv4Addr, address: SocketAddrV4) {
        if let Some(old) = self.addresses.insert(nic, address) {
            self.nics.remove(&old);
        }
        if let Some(old) = self.nics.insert(address, nic).filter(|old| *old != nic) {
            self.addresses.remove(&old);
        }
    }

    pub(super) fn address(&self, nic: Ipv4Addr) -> SocketAddrV4 {
        let named = self.addresses.get(&nic).copied();
        named.unwrap_or(SocketAddrV4::new(nic, ROCE_UDP_PORT))
    }

    pub(super) fn whose(&self, from: SocketAddrV4) -> Ipv4Addr {
        self.nics.get(&from).copied().unwrap_or(*from.ip())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_host_is_found_both_ways_and_moves() {
        let nic = |n| Ipv4Addr::new(10, 77, 0, n);
        let at = |port| SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
        let mut hosts = Hosts::default();
        hosts.know(nic(1), at(5_001));
        hosts.know(nic(2), at(5_002));
        assert_eq!(hosts.address(nic(1)), at(5_001));
        assert_eq!(hosts.whose(at(5_002)), nic(2));
        // The second NIC opens again at the first one's socket.
        hosts.know(nic(2), at(5_001));
        assert_eq!(hosts.whose(at(5_001)), nic(2));
        assert_eq!(hosts.whose(at(5_002)), Ipv4Addr::LOCALHOST);
        assert_eq!(
            hosts.address(nic(1)),
            SocketAddrV4::new(nic(1), ROCE_UDP_PORT)
        );
    }
}
