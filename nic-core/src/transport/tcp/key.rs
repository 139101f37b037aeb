//! The key by which a connection is found: its addresses, hashed with a secret.

use std::hash::{BuildHasher, Hasher};
use std::net::{Ipv4Addr, SocketAddrV4};

/// Remote address and port, and local port. The local address is the transport's only one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key(u64);

impl Key {
    pub(super) fn new(remote: Ipv4Addr, remote_port: u16, local_port: u16) -> Key {
        Key(u64::from(u32::from(remote)) << 32
            | u64::from(remote_port) << 16
            | u64::from(local_port))
    }
    pub(super) fn of(peer: SocketAddrV4, local_port: u16) -> Key {
        Key::new(*peer.ip(), peer.port(), local_port)
    }
}

/// Hashes a [`Key`] with a secret multiplier, so that a peer cannot choose ports that collide
/// without knowing it.
#[derive(Debug, Clone)]
pub(super) struct KeyHash(pub(super) u64);

/// State of [`KeyHash`].
#[derive(Debug)]
pub(super) struct KeyHasher {
    secret: u64,
    state: u64,
}

impl BuildHasher for KeyHash {
    type Hasher = KeyHasher;
    fn build_hasher(&self) -> KeyHasher {
        KeyHasher {
            secret: self.0,
            state: 0,
        }
    }
}

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &b in bytes {
            self.write_u64(u64::from(b));
        }
    }
    fn write_u64(&mut self, n: u64) {
        // 64 × 64 → 128-bit multiply, both halves folded together.
        let p = u128::from(self.state ^ n ^ self.secret) * u128::from(self.secret | 1);
        self.state = (p >> 64) as u64 ^ p as u64;
    }
    fn finish(&self) -> u64 {
        self.state
    }
}
