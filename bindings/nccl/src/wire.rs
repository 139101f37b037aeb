//! What processes exchange: the handle, which NCCL carries, and records of 40 bytes in front of
//! messages and against them.
//!
//! A record travels inside a descriptor ([`INLINE_MAX`]), as do the bytes of a message that fits
//! behind its header.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ringbell::abi::descriptor::INLINE_MAX;

use crate::abi::HANDLE_BYTES;

/// Bytes of a record.
pub(crate) const RECORD: usize = INLINE_MAX;
/// Most bytes of a message that travel inside its header.
pub(crate) const INSIDE: usize = 24;
/// Most receives of a group: their tags fill a record.
pub(crate) const GROUP: usize = 8;

/// Begins every handle, with the version of what follows and of the records.
const MAGIC: [u8; 8] = *b"rbnccl\0\x01";
/// Bytes of a host's name in a handle, and in a record.
const HOST: usize = 48;
const HOST_SHORT: usize = 18;

const HELLO: u8 = 1;
const POSTED: u8 = 2;
const MESSAGE: u8 = 3;
const PING: u8 = 4;

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

/// A record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Record {
    /// The first one of a connection.
    Hello { nonce: [u8; 16], process: Process },
    /// The receiver has posted a group of receives with these tags.
    Posted { group: u32, tags: Vec<i32> },
    /// A message for one receive of a group. Its bytes follow, or are here.
    Message {
        group: u32,
        index: u8,
        size: u64,
        inside: [u8; INSIDE],
    },
    /// Nothing: an answer by the peer's NIC shows that it is there.
    Ping,
}

impl Record {
    pub(crate) fn encode(&self) -> [u8; RECORD] {
        let mut out = [0; RECORD];
        match self {
            Record::Hello { nonce, process } => {
                out[0] = HELLO;
                put(&mut out[2..], nonce);
                put(&mut out[18..], &process.pid.to_le_bytes());
                put(&mut out[22..], process.host.as_bytes());
            }
            Record::Posted { group, tags } => {
                out[0] = POSTED;
                out[1] = tags.len() as u8;
                put(&mut out[4..], &group.to_le_bytes());
                for (to, tag) in out[8..].chunks_exact_mut(4).zip(tags) {
                    to.copy_from_slice(&tag.to_le_bytes());
                }
            }
            Record::Message {
                group,
                index,
                size,
                inside,
            } => {
                out[0] = MESSAGE;
                out[1] = *index;
                put(&mut out[4..], &group.to_le_bytes());
                put(&mut out[8..], &size.to_le_bytes());
                put(&mut out[16..], inside);
            }
            Record::Ping => out[0] = PING,
        }
        out
    }

    /// `None` when it is none.
    pub(crate) fn decode(b: &[u8; RECORD]) -> Option<Record> {
        let group = u32::from_le_bytes(at(b, 4));
        match b[0] {
            HELLO => Some(Record::Hello {
                nonce: at(b, 2),
                process: Process {
                    pid: u32::from_le_bytes(at(b, 18)),
                    host: text(&b[22..22 + HOST_SHORT]),
                },
            }),
            POSTED if (1..=GROUP).contains(&usize::from(b[1])) => {
                let tags = b[8..].chunks_exact(4).take(b[1].into());
                let tags = tags.map(|t| i32::from_le_bytes(at(t, 0))).collect();
                Some(Record::Posted { group, tags })
            }
            MESSAGE => Some(Record::Message {
                group,
                index: b[1],
                size: u64::from_le_bytes(at(b, 8)),
                inside: at(b, 16),
            }),
            PING => Some(Record::Ping),
            _ => None,
        }
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
        let nonce = [9; 16];
        let all = [
            Record::Hello { nonce, process },
            Record::Posted {
                group: u32::MAX,
                tags: (-4..4).collect(),
            },
            Record::Message {
                group: 5,
                index: 7,
                size: 1 << 40,
                inside: [3; INSIDE],
            },
            Record::Ping,
        ];
        for record in all {
            assert_eq!(Record::decode(&record.encode()), Some(record));
        }
        for wrong in [[0; RECORD], [POSTED; RECORD], [200; RECORD]] {
            let read = Record::decode(&wrong);
            assert!(
                !matches!(read, Some(Record::Posted { ref tags, .. }) if tags.len() > GROUP),
                "{read:?}"
            );
        }
    }
}
