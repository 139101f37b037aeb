//! The forwarding table: which port leads to an address, and by which next hop. Static; the longest
//! prefix decides.

use std::net::Ipv4Addr;

use smoltcp::wire::Ipv4Cidr;

use super::error::NetworkError;
use super::hosts::SHORT_NAMES;
use super::packet::Protocol;
use super::route::{Route, Via, ROUTES_MAX};
use ringbell_net::port::Medium;

/// The table, longest prefixes first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Routes {
    all: Vec<Route>,
    /// What each port carries; datagrams are RoCEv2's alone.
    media: Vec<Medium>,
}

impl Routes {
    /// The given routes, and the NIC's own network at the first port unless one of them has it. A
    /// port of datagrams, the first of them, leads everywhere else: the host's routes are behind
    /// it. Short names lead to the first one of IPv6.
    pub(super) fn new(
        own: Ipv4Cidr,
        media: &[Medium],
        given: &[Route],
    ) -> Result<Routes, NetworkError> {
        let ports = media.len();
        if given.len() > ROUTES_MAX {
            return Err(NetworkError::TooManyRoutes);
        }
        let mut all: Vec<Route> = Vec::new();
        for &route in given {
            if route.prefix_len > 32 || route.cidr().network().address() != route.network {
                return Err(NetworkError::Prefix { route });
            }
            if route.port >= ports {
                return Err(NetworkError::NoSuchPort { route, ports });
            }
            if !media[route.port].has_frames() && route.via != Via::Link {
                return Err(NetworkError::HostRoutes { route });
            }
            let usable = match route.via {
                Via::Link => true,
                Via::Gateway(ip) => ringbell_net::is_host(ip) && ip != own.address(),
                Via::Mac(mac) => mac.is_unicast(),
            };
            if !usable {
                return Err(NetworkError::NextHop { route });
            }
            if all.iter().any(|r| r.cidr() == route.cidr()) {
                return Err(NetworkError::Duplicate { route });
            }
            all.push(route);
        }
        let own = own.network();
        let everywhere = Ipv4Cidr::new(Ipv4Addr::UNSPECIFIED, 0);
        let first_of_datagrams = media.iter().position(|m| !m.has_frames());
        let ipv6 = media.iter().position(Medium::is_ipv6);
        let implied = [
            (ports > 0).then_some((own, 0)),
            first_of_datagrams.map(|port| (everywhere, port)),
            ipv6.map(|port| (SHORT_NAMES, port)),
        ];
        for (network, port) in implied.into_iter().flatten() {
            if !all.iter().any(|r| r.cidr() == network) {
                all.push(Route {
                    network: network.address(),
                    prefix_len: network.prefix_len(),
                    port,
                    via: Via::Link,
                });
            }
        }
        all.sort_by_key(|r| std::cmp::Reverse(r.prefix_len));
        let media = media.to_vec();
        Ok(Routes { all, media })
    }

    /// The route to an address for a protocol: TCP has none by a port of datagrams.
    pub(crate) fn to(&self, protocol: Protocol, ip: Ipv4Addr) -> Option<&Route> {
        let carries = |r: &Route| protocol != Protocol::Tcp || self.media[r.port].has_frames();
        let mut all = self.all.iter();
        all.find(|r| r.cidr().contains_addr(&ip) && carries(r))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Route> {
        self.all.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringbell_net::port::MacAddr;

    fn own() -> Ipv4Cidr {
        Ipv4Cidr::new(Ipv4Addr::new(10, 0, 1, 5), 24)
    }

    const FRAMES: Medium = Medium::Ethernet(MacAddr([2, 0, 0, 0, 0, 1]));

    fn table(ports: usize, texts: &[&str]) -> Result<Routes, NetworkError> {
        let given: Vec<Route> = texts.iter().map(|t| t.parse().unwrap()).collect(); // routes all
        Routes::new(own(), &vec![FRAMES; ports], &given)
    }

    #[test]
    fn the_longest_prefix_decides_and_the_own_network_is_at_the_first_port() {
        let t = table(3, &["10.0.0.0/8=2", "10.0.1.9/32=1", "0.0.0.0/0=1"]).unwrap(); // sound
        let port = |ip: [u8; 4]| t.to(Protocol::Tcp, ip.into()).map(|r| r.port);
        assert_eq!(port([10, 0, 1, 7]), Some(0));
        assert_eq!(port([10, 0, 1, 9]), Some(1));
        assert_eq!(port([10, 9, 9, 9]), Some(2));
        assert_eq!(port([192, 168, 0, 1]), Some(1));
        let moved = table(2, &["10.0.1.0/24=1"]).unwrap(); // sound
        assert_eq!(
            moved
                .to(Protocol::Tcp, [10, 0, 1, 7].into())
                .map(|r| r.port),
            Some(1)
        );
        assert_eq!(moved.to(Protocol::Tcp, [10, 0, 2, 7].into()), None);
        assert_eq!(
            table(0, &[])
                .unwrap()
                .to(Protocol::Tcp, [10, 0, 1, 7].into()),
            None
        ); // sound
    }

    #[test]
    fn a_port_of_datagrams_leads_everywhere_and_carries_no_tcp() {
        let given = ["10.0.3.0/24=1".parse().unwrap()]; // a route
        let [v4, v6] = ["127.0.0.1:1", "[::1]:1"].map(|at| Medium::Udp(at.parse().unwrap())); // addresses
        let t = Routes::new(own(), &[FRAMES, v4, v6], &given).unwrap(); // sound
        let port = |protocol, ip: [u8; 4]| t.to(protocol, ip.into()).map(|r| r.port);
        for (ip, tcp, roce) in [
            ([10, 0, 1, 7], Some(0), Some(0)),
            ([10, 0, 3, 7], None, Some(1)),
            ([192, 168, 0, 1], None, Some(1)),
            ([240, 0, 0, 1], None, Some(2)),
        ] {
            assert_eq!(port(Protocol::Tcp, ip), tcp, "{ip:?}");
            assert_eq!(port(Protocol::Roce, ip), roce, "{ip:?}");
        }
        let via = ["10.0.3.0/24=1,via=10.0.1.254".parse().unwrap()]; // a route
        let refused = Routes::new(own(), &[FRAMES, v4], &via).unwrap_err();
        assert!(refused.to_string().contains("host's own routes"));
    }

    #[test]
    fn contradictory_and_invalid_routes_are_refused() {
        let wrong = |texts: &[&str]| table(2, texts).unwrap_err().to_string();
        assert!(wrong(&["10.0.2.0/24=2"]).contains("ports 0 to 1"));
        assert!(wrong(&["10.0.2.0/24=0", "10.0.2.0/24=1"]).contains("twice"));
        assert!(wrong(&["10.0.2.9/24=0"]).contains("10.0.2.9/24=0"));
        assert!(wrong(&["10.0.2.0/33=0"]).contains("10.0.2.0/33=0"));
        for hop in [
            "0.0.0.0",
            "255.255.255.255",
            "10.0.1.5",
            "01:00:5e:00:00:01",
        ] {
            let route = format!("10.0.2.0/24=0,via={hop}");
            assert!(wrong(&[&route]).contains("next hop"), "{hop}");
        }
        let one: Route = "10.0.2.0/24=0".parse().unwrap(); // a route
        let many = vec![one; ROUTES_MAX + 1];
        assert_eq!(
            Routes::new(own(), &[FRAMES], &many),
            Err(NetworkError::TooManyRoutes)
        );
    }
}
