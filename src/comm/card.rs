//! Description of a rank's NIC, exchanged by the ranks when a job begins.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4};

use ringbell_job::{BootstrapError, Round};
use ringbell_nic_core::collective::HostRanks;

use super::agreement::Agreed;
use super::CollectiveError;
use crate::machine::host;
use crate::spec::TransportSpec;
use crate::Nic;

/// Bytes of a card.
pub(super) const BYTES: usize = 64;
/// Can use the `local` transport.
const LOCAL: u8 = 1;
/// Can use `tcp`.
const TCP: u8 = 2;
/// Uses `local` between network namespaces, too.
const ACROSS: u8 = 4;
/// Can use `rdma`.
const RDMA: u8 = 8;
/// Uses `udp`.
const UDP: u8 = 16;
/// Uses `iwarp`.
const IWARP: u8 = 32;

/// What a communicator keeps of a rank's NIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Peer {
    pub(super) address: SocketAddrV4,
    /// Identifies its machine.
    host: u64,
}

/// A rank's NIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Card {
    /// Address, and the port at which it serves collectives.
    pub(super) address: SocketAddrV4,
    transports: u8,
    /// Identifies the machine: the kernel's boot id as a number.
    host: u64,
    user: u32,
    /// Its network namespace; 0 where the system does not report one.
    network: u64,
    /// Address at which it would serve the bootstrap.
    standby: Option<SocketAddr>,
    /// Where it receives datagrams, or takes connections of `iwarp`.
    pub(super) datagrams: Option<SocketAddr>,
}

/// An address of IPv6, or one of IPv4 mapped to it, and a port; none has port 0.
fn socket(at: Option<SocketAddr>) -> [u8; 18] {
    let mut out = [0; 18];
    if let Some(at) = at {
        let ip = match at.ip() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        out[..16].copy_from_slice(&ip.octets());
        out[16..].copy_from_slice(&at.port().to_le_bytes());
    }
    out
}

fn read_socket(b: &[u8; 18]) -> Option<SocketAddr> {
    let port = u16::from_le_bytes([b[16], b[17]]);
    let ip = Ipv6Addr::from(std::array::from_fn::<u8, 16, _>(|i| b[i]));
    (port != 0).then(|| SocketAddr::new(ip.to_canonical(), port))
}

impl Card {
    pub(super) fn of(nic: &Nic, port: u16, standby: Option<SocketAddr>) -> Card {
        let transport = nic.transport();
        let local = !transport.needs_port();
        let ports = nic.ports();
        let of_frames = ports.iter().any(|p| p.address.is_none());
        let datagrams = ports.iter().find_map(|p| p.address);
        let over_port = match transport {
            TransportSpec::Auto => {
                let has_streams = !of_frames && ports.iter().all(|p| p.has_streams);
                (u8::from(of_frames) * TCP)
                    | (u8::from(datagrams.is_some()) * RDMA)
                    | (u8::from(datagrams.is_some() && has_streams) * IWARP)
            }
            TransportSpec::Tcp => TCP,
            TransportSpec::Rdma => RDMA,
            TransportSpec::Udp => UDP,
            TransportSpec::Iwarp => IWARP,
            TransportSpec::Local => 0,
        };
        Card {
            address: SocketAddrV4::new(nic.ip().ip, port),
            transports: (u8::from(local) * LOCAL)
                | over_port
                | (u8::from(transport == TransportSpec::Local) * ACROSS),
            host: host(),
            network: std::fs::metadata("/proc/thread-self/ns/net")
                .map_or(0, |m| std::os::unix::fs::MetadataExt::ino(&m)),
            user: rustix::process::getuid().as_raw(),
            standby,
            datagrams,
        }
    }

    pub(super) fn encode(&self) -> [u8; BYTES] {
        let mut out = [0; BYTES];
        out[..4].copy_from_slice(&self.address.ip().octets());
        out[4..6].copy_from_slice(&self.address.port().to_le_bytes());
        out[6] = self.transports;
        out[8..16].copy_from_slice(&self.host.to_le_bytes());
        out[16..20].copy_from_slice(&self.user.to_le_bytes());
        out[20..38].copy_from_slice(&socket(self.standby));
        out[38..46].copy_from_slice(&self.network.to_le_bytes());
        out[46..].copy_from_slice(&socket(self.datagrams));
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Card> {
        let b: &[u8; BYTES] = bytes.try_into().ok()?;
        let ip = Ipv4Addr::new(b[0], b[1], b[2], b[3]);
        Some(Card {
            address: SocketAddrV4::new(ip, u16::from_le_bytes([b[4], b[5]])),
            transports: b[6],
            host: u64::from_le_bytes(b[8..16].try_into().ok()?),
            user: u32::from_le_bytes(b[16..20].try_into().ok()?),
            network: u64::from_le_bytes(b[38..46].try_into().ok()?),
            standby: read_socket(b[20..38].try_into().ok()?),
            datagrams: read_socket(b[46..].try_into().ok()?),
        })
    }

    /// Reason why two NICs cannot reach each other; `None` when they can.
    fn obstacle(&self, other: &Card) -> Option<&'static str> {
        let both = self.transports & other.transports;
        let near = self.host == other.host
            && self.user == other.user
            && (self.network == other.network || both & ACROSS != 0);
        if both & (TCP | RDMA | UDP | IWARP) != 0 || (both & LOCAL != 0 && near) {
            return None;
        }
        Some(match (near, both & LOCAL != 0) {
            (true, _) => "each offers another transport; open both with the same transport",
            (false, true) => "they are on different hosts or in different network namespaces, or belong to different users, and have no port to a network; open their NICs with port roce, udp or tap",
            (false, false) => "they have no transport in common; open both with transport auto and a port of one kind",
        })
    }
}

/// Cards and settings of the ranks of a job.
pub(super) fn decode_all(round: &Round) -> Result<(Vec<Card>, Vec<Agreed>), CollectiveError> {
    let both = |(rank, part): &(u32, Vec<u8>)| {
        let read = part
            .split_first_chunk::<BYTES>()
            .and_then(|(card, settings)| {
                let settings = settings.try_into().ok()?;
                Some((Card::decode(card)?, Agreed::decode(settings)))
            });
        read.ok_or(BootstrapError::Version { rank: *rank })
    };
    Ok(round.parts.iter().map(both).collect::<Result<_, _>>()?)
}

/// Which ranks share a host, by the hosts' numbers.
pub(super) fn host_ranks(peers: &[Peer]) -> HostRanks {
    HostRanks::of_hosts(peers.iter().map(|p| p.host))
}

/// Standby addresses of the ranks, in order. Empty when a rank of another machine has only its
/// loopback address, because the bootstrap's host name resolves to that there: ranks would take
/// each other for dead.
pub(super) fn successors(cards: &[Card]) -> Vec<Option<SocketAddr>> {
    let one_host = cards.windows(2).all(|w| w[0].host == w[1].host);
    let loopback = |c: &Card| c.standby.is_some_and(|at| at.ip().is_loopback());
    if !one_host && cards.iter().any(loopback) {
        tracing::warn!("the bootstrap cannot move: a rank's address is the loopback of its machine; give the bootstrap's address as the network has it");
        return Vec::new();
    }
    cards.iter().map(|c| c.standby).collect()
}

/// Adds the standby addresses of these ranks, by number, to those that are known. An empty list
/// stays so: the bootstrap cannot move.
pub(super) fn add_successors(known: &mut Vec<Option<SocketAddr>>, ranks: &[u32], cards: &[Card]) {
    let one_host = cards.windows(2).all(|w| w[0].host == w[1].host);
    if known.is_empty() {
        return;
    }
    for (rank, card) in ranks.iter().zip(cards) {
        let at = *rank as usize;
        if at >= known.len() {
            known.resize(at + 1, None);
        }
        // The loopback of another machine would be taken for this one's.
        known[at] = card.standby.filter(|s| one_host || !s.ip().is_loopback());
    }
}

/// Addresses as a list of bytes, and back.
pub(super) fn put_sockets(out: &mut Vec<u8>, all: &[Option<SocketAddr>]) {
    all.iter()
        .for_each(|at| out.extend_from_slice(&socket(*at)));
}

pub(super) fn read_sockets(bytes: &[u8]) -> Vec<Option<SocketAddr>> {
    let (all, _) = bytes.as_chunks::<18>();
    all.iter().map(read_socket).collect()
}

/// Addresses and hosts of the NICs; tells the own one where the others receive datagrams.
pub(super) fn peers(cards: &[Card], nic: &Nic) -> Vec<Peer> {
    for card in cards {
        if let Some(at) = card.datagrams {
            nic.backend().know_host(*card.address.ip(), at);
        }
    }
    let peer = |c: &Card| Peer {
        address: c.address,
        host: c.host,
    };
    cards.iter().map(peer).collect()
}

/// Refuses a job in which this rank cannot reach another, before any rank waits for it.
pub(super) fn check_paths(cards: &[Card], rank: u32) -> Result<(), CollectiveError> {
    let Some(own) = cards.get(rank as usize) else {
        return Ok(());
    };
    for (b, other) in cards
        .iter()
        .enumerate()
        .filter(|(b, _)| *b != rank as usize)
    {
        if let Some(why) = own.obstacle(other) {
            return Err(CollectiveError::NoPath {
                a: rank,
                a_ip: *own.address.ip(),
                b: b as u32,
                b_ip: *other.address.ip(),
                why,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(n: u8, transports: u8, host: u64) -> Card {
        Card {
            address: SocketAddrV4::new([10, 0, 0, n].into(), 7),
            transports,
            host,
            user: 5,
            network: 0x1234_5678_9abc,
            standby: Some(([10, 1, 0, n], 700 + u16::from(n)).into()),
            datagrams: None,
        }
    }

    #[test]
    fn ranks_share_a_host_whose_number_is_the_same() {
        let of = |hosts: &[u64]| {
            let address = card(1, TCP, 0).address;
            let peers: Vec<_> = hosts.iter().map(|&host| Peer { address, host }).collect();
            host_ranks(&peers)
        };
        assert_eq!(of(&[7, 7, 3, 3, 9, 9]), HostRanks::from(2));
        assert_eq!(of(&[7, 7, 3, 3, 9]), HostRanks::of_sizes(&[2, 2, 1]));
        assert_eq!(of(&[7, 3, 7, 3]), HostRanks::of_hosts([0, 1, 0, 1]));
    }

    #[test]
    fn a_card_survives_and_ranks_without_a_path_are_named() {
        let c = card(1, LOCAL | TCP, 0x0123_4567_89ab_cdef);
        assert_eq!(Card::decode(&c.encode()), Some(c));
        let v6 = Card {
            standby: Some((Ipv6Addr::LOCALHOST, 9).into()),
            ..c
        };
        assert_eq!(Card::decode(&v6.encode()), Some(v6));
        let with_socket = Card {
            datagrams: Some(([10, 1, 0, 1], 4_791).into()),
            ..c
        };
        assert_eq!(Card::decode(&with_socket.encode()), Some(with_socket));
        let none = Card { standby: None, ..c };
        assert_eq!(Card::decode(&none.encode()), Some(none));
        assert_eq!(Card::decode(&[0; BYTES - 1]), None);
        assert_eq!(
            successors(&[c, none]),
            [Some(([10, 1, 0, 1], 701).into()), None]
        );
        assert_eq!(successors(&[v6, v6]), [v6.standby, v6.standby]);
        assert_eq!(successors(&[card(1, TCP, 8), v6]), [], "whose loopback?");
        let says = |cards: &[Card], word: &str| {
            let e = check_paths(cards, 0).expect_err(word).to_string();
            assert!(e.contains("rank 1 (10.0.0.2)") && e.contains(word), "{e}");
        };
        assert!(check_paths(&[c, card(2, LOCAL, c.host)], 0).is_ok());
        assert!(check_paths(&[c, card(2, TCP, 9)], 0).is_ok());
        says(&[c, card(2, LOCAL, 9)], "different hosts");
        // Another network namespace is not near, unless both ranks chose `local` by name.
        let elsewhere = |transports| Card {
            network: 8,
            ..card(2, transports, c.host)
        };
        says(&[c, elsewhere(LOCAL)], "network namespaces");
        let here = card(1, LOCAL, c.host);
        says(&[here, elsewhere(LOCAL | ACROSS)], "network namespaces");
        let across = Card {
            transports: LOCAL | ACROSS,
            ..c
        };
        assert!(check_paths(&[across, elsewhere(LOCAL | ACROSS)], 0).is_ok());
        assert!(check_paths(&[c, elsewhere(LOCAL | TCP)], 0).is_ok());
        says(&[card(1, LOCAL, 9), card(2, TCP, 9)], "same transport");
        says(&[card(1, LOCAL, 8), card(2, TCP, 9)], "in common");
        says(&[card(1, UDP, 8), card(2, RDMA, 9)], "in common");
        assert!(check_paths(&[card(1, UDP, 8), card(2, UDP, 9)], 0).is_ok());
    }
}
