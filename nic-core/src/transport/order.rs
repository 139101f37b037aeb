//! In which order the transports of a NIC are tried for a peer, and why.
//!
//! The order is that in which the NIC has them, with one exception. `rdma` and `iwarp` reach the
//! same peers by the same port, one by the host's UDP and one by its TCP. To a peer on this host
//! `rdma` goes first: no network limits it, and it takes fewer system calls. To a peer on another
//! host `iwarp` goes first: there the kernel cuts and joins packets of TCP for less than ours cost.
//! Nothing is measured, so a pair of NICs always has the same one. The end that dials decides, and
//! the other learns it as it listens on both.
//!
//! Where nothing answers to the first, it is the second's turn: a peer that has one of them is
//! reached.

use std::net::SocketAddrV4;
use std::time::Duration;

use ringbell_nic_abi::Status;

use super::Transport;
use crate::network::Network;
use crate::types::NicTime;

/// How long the first of the two may take at most to find the peer, as far as half of the time
/// allows it. A lost packet of a TCP handshake is sent again after a second.
const PATIENCE: Duration = Duration::from_secs(2);

/// The order of a NIC's transports for a peer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Order {
    count: usize,
    /// The indices of `rdma` and `iwarp`, the preferred one first, where there are both.
    pair: Option<(usize, usize)>,
    /// The peer is on this host.
    is_near: bool,
}

impl Order {
    pub(crate) fn new(
        transports: &[Box<dyn Transport>],
        net: &Network,
        peer: SocketAddrV4,
    ) -> Order {
        let is_near = net.is_on_this_host(*peer.ip());
        let of = |name| transports.iter().position(|t| t.caps().name == name);
        let pair = of("rdma").zip(of("iwarp"));
        Order {
            count: transports.len(),
            pair: pair.map(|(rdma, iwarp)| match is_near {
                true => (rdma, iwarp),
                false => (iwarp, rdma),
            }),
            is_near,
        }
    }

    /// The transport at a place of the order, and the place of a transport.
    fn swapped(&self, n: usize) -> usize {
        match self.pair {
            Some((first, second)) if first > second && n == first => second,
            Some((first, second)) if first > second && n == second => first,
            _ => n,
        }
    }

    /// The transport to try after one that has failed, or the first.
    pub(crate) fn after(&self, failed: Option<usize>) -> Option<usize> {
        let place = failed.map_or(0, |t| self.swapped(t) + 1);
        (place < self.count).then(|| self.swapped(place))
    }

    /// Until when transport `t` may try, of the time until the deadline.
    pub(crate) fn until(&self, t: usize, now: NicTime, deadline: NicTime) -> NicTime {
        match self.pair {
            Some((first, _)) if first == t => {
                let half = Duration::from_nanos(deadline.0.saturating_sub(now.0) / 2);
                now.plus(half.min(PATIENCE))
            }
            _ => deadline,
        }
    }

    /// Why transport `t` carries an outgoing connection, as text for users.
    pub(crate) fn why(&self, transports: &[Box<dyn Transport>], t: usize) -> &'static str {
        let name = |i: usize| transports.get(i).map_or("", |t| t.caps().name);
        match (self.pair, self.is_near) {
            (Some((first, _)), true) if t == first => {
                return "the peer is on this host, where RDMA over UDP goes before iWARP"
            }
            (Some((first, _)), false) if t == first => {
                return "the peer is on another host, where iWARP over the kernel's TCP goes before RDMA over UDP"
            }
            (Some((_, second)), _) if t == second && name(t) == "rdma" => {
                return "no NIC takes connections of iWARP at the peer's address, which goes before RDMA to another host"
            }
            (Some((_, second)), _) if t == second => {
                return "no NIC answers to RDMA at the peer's address, which goes before iWARP on this host"
            }
            _ => {}
        }
        match (name(t), t, transports.len()) {
            (_, _, 1) => "the only transport of this NIC",
            ("local", 0, _) => "the peer is a NIC of this host, user and network namespace; the port is not used, transport `tcp` would use it",
            (_, 0, _) => "first in policy order",
            _ if name(0) == "local" => "no NIC of this host, user and network namespace has that address",
            _ => "the transports before it cannot reach that address",
        }
    }
}

/// Whether another transport may reach the peer after a connection has failed: a refusal by the
/// peer's NIC is an answer, "cannot get there" is none.
pub(crate) fn is_for_another(status: Status, answer: Option<u16>) -> bool {
    matches!(status, Status::HostUnreachable | Status::NoResources) || answer.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All transports in the order in which they are tried.
    fn tried(order: Order) -> Vec<usize> {
        let next = |failed: &usize| order.after(Some(*failed));
        std::iter::successors(order.after(None), next).collect()
    }

    #[test]
    fn each_is_tried_once_and_the_preferred_of_the_two_first() {
        for (pair, expected) in [
            (None, [0, 1, 2, 3]),
            (Some((1, 2)), [0, 1, 2, 3]),
            (Some((2, 1)), [0, 2, 1, 3]),
            (Some((3, 0)), [3, 1, 2, 0]),
        ] {
            let order = Order {
                count: 4,
                pair,
                is_near: true,
            };
            assert_eq!(tried(order), expected, "{pair:?}");
        }
    }

    #[test]
    fn the_first_of_the_two_leaves_time_for_the_second() {
        let order = Order {
            count: 2,
            pair: Some((1, 0)),
            is_near: false,
        };
        let (now, second) = (NicTime(7), 1_000_000_000);
        let until = |t, seconds| order.until(t, now, NicTime(7 + seconds * second)).0 - 7;
        assert_eq!(until(1, 3), 3 * second / 2);
        assert_eq!(until(1, 60), 2 * second);
        assert_eq!(until(0, 60), 60 * second);
        // A deadline that is over leaves none.
        assert_eq!(order.until(1, now, NicTime(3)), now);
    }
}
