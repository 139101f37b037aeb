//! What processes exchange before messages: the handle, which NCCL carries, and the record by which
//! a connection begins.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::abi::HANDLE_BYTES;

/// Bytes of the first record of a connection.
pub(crate) const HELLO: usize = 88;
/// Most bytes of a message whose memory need not be registered.
pub(crate) const INSIDE: usize = 24;
/// Most receives of a group.
pub(crate) const GROUP: usize = 8;

/// Begins every handle, with the version of what follows and of the records.
const MAGIC: [u8; 8] = *b"rbnccl\0\x02";
/// Bytes of a host's name.
const HOST: usize = 48;

/// A process, for messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) host: String,
    pub(crate) pid: u32,
}

impl std::fmt::Display for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "process {} of {}", self.pid, self.host)
    }
}

/// `; rank 3 is process 77 of node-4`, for each rank.
pub(crate) fn named_processes(ranks: &[u32], all: &[&Process]) -> String {
    let named = ranks.iter().filter_map(|r| {
        let process = all.get(*r as usize)?;
        Some(format!("; rank {r} is {process}"))
    });
    named.collect()
}

impl Process {
    pub(crate) fn own() -> Process {
        let name = rustix::system::uname();
        Process {
            host: name.nodename().to_string_lossy().into_owned(),
            pid: std::process::id(),
        }
    }
}

/// Where a communicator listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Handle {
    pub(crate) nic: Ipv4Addr,
    pub(crate) port: u16,
    /// Where its NIC receives datagrams of other hosts.
    pub(crate) datagrams: Option<SocketAddr>,
    /// UDP port for introductions, beside `datagrams`.
    pub(crate) introductions: u16,
    /// What a connection must begin with.
    pub(crate) nonce: [u8; 16],
    pub(crate) process: Process,
    /// Number of the connection that is being made with this copy; 0: none.
    pub(crate) pending: u64,
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    // It ends in a log.
    let text = String::from_utf8_lossy(&bytes[..end]);
    text.chars().filter(|c| !c.is_control()).collect()
}

fn put(to: &mut [u8], from: &[u8]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = *from;
    }
}

/// The bytes at an offset.
fn at<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    std::array::from_fn(|i| bytes[offset + i])
}

impl Handle {
    pub(crate) fn encode(&self) -> [u8; HANDLE_BYTES] {
        let mut out = [0; HANDLE_BYTES];
        put(&mut out, &MAGIC);
        put(&mut out[8..], &self.nic.octets());
        put(&mut out[12..], &self.port.to_le_bytes());
        if let Some(at) = self.datagrams {
            put(&mut out[14..], &at.port().to_le_bytes());
            put(&mut out[16..], &octets(at.ip()));
        }
        put(&mut out[32..], &self.nonce);
        put(&mut out[48..], &self.process.pid.to_le_bytes());
        put(&mut out[52..52 + HOST], self.process.host.as_bytes());
        put(&mut out[100..], &self.introductions.to_le_bytes());
        put(&mut out[120..], &self.pending.to_le_bytes());
        out
    }

    /// `None` when no plug-in of this version has made it.
    pub(crate) fn decode(b: &[u8; HANDLE_BYTES]) -> Option<Handle> {
        if b[..8] != MAGIC {
            return None;
        }
        let ip = Ipv6Addr::from(at::<16>(b, 16)).to_canonical();
        let datagrams = u16::from_le_bytes(at(b, 14));
        Some(Handle {
            nic: Ipv4Addr::from(at::<4>(b, 8)),
            port: u16::from_le_bytes(at(b, 12)),
            datagrams: (datagrams != 0).then(|| SocketAddr::new(ip, datagrams)),
            introductions: u16::from_le_bytes(at(b, 100)),
            nonce: at(b, 32),
            process: Process {
                pid: u32::from_le_bytes(at(b, 48)),
                host: text(&b[52..52 + HOST]),
            },
            pending: u64::from_le_bytes(at(b, 120)),
        })
    }
}

/// Begins every handle of a rank, with the version of what follows.
const RANK_MAGIC: [u8; 8] = *b"rbcoll\0\x01";

/// A rank of a collective communicator before it is made: its NIC, and the bootstrap that it would
/// serve as rank 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RankHandle {
    pub(crate) nic: Ipv4Addr,
    /// Where its NIC receives datagrams of other hosts.
    pub(crate) datagrams: Option<SocketAddr>,
    pub(crate) bootstrap: SocketAddr,
    /// What admits to the bootstrap.
    pub(crate) secret: [u8; 16],
    pub(crate) process: Process,
}

/// An address as 16 bytes.
fn octets(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

impl RankHandle {
    pub(crate) fn encode(&self) -> [u8; HANDLE_BYTES] {
        let mut out = [0; HANDLE_BYTES];
        put(&mut out, &RANK_MAGIC);
        put(&mut out[8..], &self.nic.octets());
        put(&mut out[12..], &self.bootstrap.port().to_le_bytes());
        if let Some(at) = self.datagrams {
            put(&mut out[14..], &at.port().to_le_bytes());
            put(&mut out[16..], &octets(at.ip()));
        }
        put(&mut out[32..], &self.secret);
        put(&mut out[48..], &self.process.pid.to_le_bytes());
        put(&mut out[52..52 + HOST], self.process.host.as_bytes());
        put(&mut out[100..], &octets(self.bootstrap.ip()));
        out
    }

    /// `None` when no plug-in of this version has made it.
    pub(crate) fn decode(b: &[u8; HANDLE_BYTES]) -> Option<RankHandle> {
        if b[..8] != RANK_MAGIC {
            return None;
        }
        let socket = |ip, port| {
            let ip = Ipv6Addr::from(at::<16>(b, ip)).to_canonical();
            SocketAddr::new(ip, u16::from_le_bytes(at(b, port)))
        };
        let datagrams = socket(16, 14);
        Some(RankHandle {
            nic: Ipv4Addr::from(at::<4>(b, 8)),
            datagrams: (datagrams.port() != 0).then_some(datagrams),
            bootstrap: socket(100, 12),
            secret: at(b, 32),
            process: Process {
                pid: u32::from_le_bytes(at(b, 48)),
                host: text(&b[52..52 + HOST]),
            },
        })
    }
}

/// Begins every record, with the version of what follows.
const HELLO_MAGIC: [u8; 8] = *b"rbnccl\0h";

/// What a connecting process says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hello {
    /// Of the handle.
    pub(crate) nonce: [u8; 16],
    /// Number of the connection's messages.
    pub(crate) number: u64,
    pub(crate) nic: Ipv4Addr,
    pub(crate) process: Process,
}

impl Hello {
    pub(crate) fn encode(&self) -> [u8; HELLO] {
        let mut out = [0; HELLO];
        put(&mut out, &HELLO_MAGIC);
        put(&mut out[8..], &self.nonce);
        put(&mut out[24..], &self.number.to_le_bytes());
        put(&mut out[32..], &self.nic.octets());
        put(&mut out[36..], &self.process.pid.to_le_bytes());
        put(&mut out[40..40 + HOST], self.process.host.as_bytes());
        out
    }

    /// `None` when no plug-in of this version has sent it.
    pub(crate) fn decode(b: &[u8; HELLO]) -> Option<Hello> {
        (b[..8] == HELLO_MAGIC).then(|| Hello {
            nonce: at(b, 8),
            number: u64::from_le_bytes(at(b, 24)),
            nic: Ipv4Addr::from(at::<4>(b, 32)),
            process: Process {
                pid: u32::from_le_bytes(at(b, 36)),
                host: text(&b[40..40 + HOST]),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_and_records_are_read_as_they_were_written() {
        let process = Process {
            host: "node-17".into(),
            pid: 4711,
        };
        for at in ["192.0.2.7:4791", "[2001:db8::7]:4000"] {
            let handle = Handle {
                nic: Ipv4Addr::new(10, 1, 2, 3),
                port: 40_000,
                datagrams: Some(at.parse().expect("an address")),
                introductions: 5001,
                nonce: [7; 16],
                process: process.clone(),
                pending: u64::MAX,
            };
            let mut bytes = handle.encode();
            assert_eq!(Handle::decode(&bytes), Some(handle));
            bytes[7] += 1;
            assert_eq!(Handle::decode(&bytes), None, "another version");
            let rank = RankHandle {
                nic: Ipv4Addr::new(10, 1, 2, 3),
                datagrams: Some(at.parse().expect("an address")),
                bootstrap: "192.0.2.9:5000".parse().expect("an address"),
                secret: [5; 16],
                process: process.clone(),
            };
            let here = RankHandle {
                datagrams: None,
                bootstrap: "[::1]:5000".parse().expect("an address"),
                ..rank.clone()
            };
            for handle in [rank, here] {
                let mut bytes = handle.encode();
                assert_eq!(Handle::decode(&bytes), None, "of the other interface");
                assert_eq!(RankHandle::decode(&bytes), Some(handle));
                bytes[7] += 1;
                assert_eq!(RankHandle::decode(&bytes), None, "another version");
            }
        }
        let hello = Hello {
            nonce: [9; 16],
            number: u64::MAX - 1,
            nic: Ipv4Addr::new(10, 3, 2, 1),
            process,
        };
        let mut bytes = hello.encode();
        assert_eq!(Hello::decode(&bytes), Some(hello));
        bytes[7] += 1;
        assert_eq!(Hello::decode(&bytes), None, "another version");
    }
}
