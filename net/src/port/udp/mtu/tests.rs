use std::net::Ipv4Addr;

use super::*;
use crate::port::udp::{UdpConfig, UdpPort};
use crate::port::{MacAddr, Port as _};
use crate::NicTime;

const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

fn open(bind: SocketAddr, peers: &[SocketAddr], mtu: Option<usize>) -> Result<UdpPort, UdpError> {
    UdpPort::open(UdpConfig {
        bind,
        peers: peers.to_vec(),
        vni: 1,
        secret: None,
        mac: MacAddr::local(1),
        mtu,
    })
}

#[test]
fn the_route_to_the_peers_gives_the_mtu_and_a_setting_lowers_it() {
    let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, 4789));
    let of = |bind, peers: &[_], mtu| open(bind, peers, mtu).map(|p| p.capabilities().mtu).ok();
    assert_eq!(of(any, &[], None), Some(MTU_DEFAULT), "no way is known");
    assert_eq!(of(any, &[peer], None), Some(MTU_MAX));
    assert_eq!(of(LOOPBACK, &[], None), Some(MTU_MAX));
    for mtu in [MTU_MIN, 577, 1450, 9000, MTU_MAX] {
        assert_eq!(of(LOOPBACK, &[peer], Some(mtu)), Some(mtu));
    }
    for mtu in [0, MTU_MIN - 1, MTU_MAX + 1, usize::MAX] {
        let refused = open(LOOPBACK, &[peer], Some(mtu)).err();
        assert!(
            matches!(refused, Some(UdpError::Mtu { mtu: m }) if m == mtu),
            "{refused:?}"
        );
    }
}

#[test]
fn the_headers_of_the_tunnel_count() {
    let v6 = SocketAddr::from(([0; 16], 1));
    assert_eq!((inside(1500, &LOOPBACK), inside(1500, &v6)), (1450, 1430));
    assert_eq!(inside(7, &v6), 0);
}

/// What a router has refused lowers the MTU, never below the smallest and never up.
#[test]
fn the_mtu_falls_to_the_routers_limit_and_stays() {
    let mut port = open(LOOPBACK, &[LOOPBACK], None).unwrap(); // loopback has free ports
    let mut now_is = |most| {
        port.shrink_to(most, LOOPBACK);
        port.capabilities().mtu
    };
    assert_eq!([now_is(9300), now_is(2000)], [MTU_MAX, 2000]);
    assert_eq!([now_is(3000), now_is(0)], [2000, MTU_MIN]);
    let room = port
        .tx_frame(NicTime(0), MacAddr::local(2))
        .map(|r| r.len());
    assert_eq!(room, Some(ETHERNET_HEADER + MTU_MIN));
}
