//! The MTU of a UDP port: what the way to its peers carries, less the headers of the tunnel.
//!
//! The kernel knows the way's MTU: that of the interface, or less after a router has refused a
//! datagram. Datagrams are never fragmented: one that is too long is refused, here or by a router,
//! and the port's MTU falls.

use std::io;
use std::net::{IpAddr, SocketAddr};

use super::config::{UdpError, MTU_DEFAULT};
use crate::port::kernel::path_mtu;
use crate::port::{MTU_MAX, MTU_MIN};
use crate::wire::vxlan::VXLAN_HEADER;
use crate::wire::ETHERNET_HEADER;

/// Bytes of the headers around an IP packet in the tunnel: IP without options, UDP, VXLAN,
/// Ethernet.
fn overhead(to: &SocketAddr) -> usize {
    let ip = match to.ip() {
        IpAddr::V4(_) => 20,
        IpAddr::V6(_) => 40,
    };
    ip + 8 + VXLAN_HEADER + ETHERNET_HEADER
}

/// IP MTU inside the tunnel where the network outside carries `path` bytes.
pub(super) fn inside(path: usize, to: &SocketAddr) -> usize {
    path.saturating_sub(overhead(to))
}

/// IP MTU inside the tunnel to a peer, as the kernel knows it.
pub(super) fn towards(from: IpAddr, to: SocketAddr) -> io::Result<usize> {
    path_mtu(SocketAddr::new(from, 0), to).map(|path| inside(path, &to))
}

/// The port's MTU when it is opened: as asked for, if the ways to all known peers carry it; else
/// what they carry.
///
/// A way that the kernel does not know yet says nothing: the first datagram tells.
pub(super) fn at_first(
    asked: Option<usize>,
    bind: SocketAddr,
    peers: &[SocketAddr],
) -> Result<usize, UdpError> {
    if let Some(mtu) = asked.filter(|m| !(MTU_MIN..=MTU_MAX).contains(m)) {
        return Err(UdpError::Mtu { mtu });
    }
    let known = |to: &SocketAddr| Some((towards(bind.ip(), *to).ok()?, *to));
    // Peers of a loopback address are on this machine.
    let own = bind.ip().is_loopback().then_some(bind);
    let narrowest = peers.iter().chain(&own).filter_map(known).min();
    match (asked, narrowest) {
        (_, Some((most, peer))) if most < asked.unwrap_or(MTU_MIN) => Err(UdpError::Path {
            peer,
            most,
            mtu: asked.unwrap_or(MTU_MIN),
        }),
        (Some(mtu), _) => Ok(mtu),
        (None, Some((most, _))) => Ok(most.min(MTU_MAX)),
        (None, None) => Ok(MTU_DEFAULT),
    }
}

#[cfg(test)]
mod tests;
