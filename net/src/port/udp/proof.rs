//! Authentication of UDP peers by the job's secret, which is never sent.
//!
//! ```text
//! a ── frame, no tag ─────────────────────▶ b     b does not accept it
//! a ◀── CHALLENGE(cookie, MAC) ──────────── b     cookie = keyed hash of a's address; b stores nothing
//! a ── RESPONSE(cookie, MAC') ────────────▶ b     b stores a's address
//! a ── frames, tag = MAC''(cookie) ───────▶ b     b accepts them
//! ```
//!
//! The MACs are SipHash-2-4 under the secret, each over its own purpose; the cookie is SipHash-2-4
//! under a random key that the port never sends. So a datagram copied from the wire is useless from
//! another address or to another port.
//!
//! **Limits.** The tag in a frame has the 32 bits that VXLAN reserves, stays the same for one pair
//! of addresses while the receiver lives, and does not cover the frame: it keeps out attackers who
//! cannot read the wire. An attacker who reads it can send frames under the sender's address, and
//! the secret has 64 bits, which may be searched for offline. Against such an attacker use a
//! network that encrypts.

use std::hash::Hasher;
use std::net::{IpAddr, SocketAddr};

use siphasher::sip::SipHasher24;

/// Bytes of a CHALLENGE or RESPONSE: kind, network identifier, cookie, MAC.
pub(super) const CONTROL: usize = 24;
/// First bytes of a control datagram; VXLAN's first byte is never 0, because the I flag is set.
const MAGIC: [u8; 3] = [0, b'R', b'B'];

/// Kind of a control datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Asks for a proof.
    Challenge = 1,
    /// Carries the proof.
    Response = 2,
}

/// Purpose of a MAC that goes into frames; beside those of [`Kind`].
const FRAME: u8 = 3;

/// The keys of one port.
#[derive(Clone)]
pub(super) struct Proof {
    vni: u32,
    secret: SipHasher24,
    own: SipHasher24,
}

impl std::fmt::Debug for Proof {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // No keys in logs.
        f.debug_struct("Proof").finish_non_exhaustive()
    }
}

impl Proof {
    /// `own` is random, and of this port alone.
    pub(super) fn new(vni: u32, secret: u64, own: [u8; 16]) -> Proof {
        let mut key = [0; 16];
        key[..8].copy_from_slice(&secret.to_be_bytes());
        key[8..].copy_from_slice(b"ringbell");
        Proof {
            vni,
            secret: SipHasher24::new_with_key(&key),
            own: SipHasher24::new_with_key(&own),
        }
    }

    fn mac(&self, purpose: u8, cookie: u64) -> u64 {
        let mut h = self.secret;
        h.write(&[purpose]);
        h.write(&self.vni.to_be_bytes());
        h.write(&cookie.to_be_bytes());
        h.finish()
    }

    /// The cookie that a sender at this address must prove to have received.
    pub(super) fn cookie(&self, from: SocketAddr) -> u64 {
        let mut h = self.own;
        match from.ip() {
            IpAddr::V4(ip) => h.write(&ip.octets()),
            IpAddr::V6(ip) => h.write(&ip.octets()),
        }
        h.write(&from.port().to_be_bytes());
        h.finish()
    }

    /// The tag of frames to the port that gave this cookie.
    pub(super) fn tag(&self, cookie: u64) -> [u8; 4] {
        let [a, b, c, d, ..] = self.mac(FRAME, cookie).to_be_bytes();
        [a, b, c, d]
    }

    /// A control datagram.
    pub(super) fn emit(&self, kind: Kind, cookie: u64) -> [u8; CONTROL] {
        let mut d = [0; CONTROL];
        d[..3].copy_from_slice(&MAGIC);
        d[3] = kind as u8;
        d[4..8].copy_from_slice(&self.vni.to_be_bytes());
        d[8..16].copy_from_slice(&cookie.to_be_bytes());
        d[16..].copy_from_slice(&self.mac(kind as u8, cookie).to_be_bytes());
        d
    }

    /// A control datagram of a sender that holds the secret; `None` for all others.
    pub(super) fn parse(&self, datagram: &[u8]) -> Option<(Kind, u64)> {
        let d: &[u8; CONTROL] = datagram.try_into().ok()?;
        let kind = match d[3] {
            1 => Kind::Challenge,
            2 => Kind::Response,
            _ => return None,
        };
        let mut cookie = [0; 8];
        cookie.copy_from_slice(&d[8..16]);
        let cookie = u64::from_be_bytes(cookie);
        // Compared whole: the time of it reveals nothing useful to an attacker on the network.
        (self.emit(kind, cookie) == *d).then_some((kind, cookie))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_secret_network_and_purpose_fit() {
        let a = Proof::new(77, 5, [1; 16]);
        let b = Proof::new(77, 5, [2; 16]);
        let others = [Proof::new(77, 6, [1; 16]), Proof::new(78, 5, [1; 16])];
        for kind in [Kind::Challenge, Kind::Response] {
            let d = a.emit(kind, 9);
            assert_eq!(b.parse(&d), Some((kind, 9)));
            assert!(others.iter().all(|o| o.parse(&d).is_none()));
            assert!(a.parse(&d[1..]).is_none());
            for i in 0..CONTROL {
                let mut bent = d;
                bent[i] ^= 3;
                assert!(b.parse(&bent).is_none(), "byte {i}");
            }
        }
        assert_eq!(a.tag(9), b.tag(9));
        assert!(others.iter().all(|o| o.tag(9) != a.tag(9)));
        assert_ne!(a.tag(9), a.tag(10));
    }

    #[test]
    fn a_cookie_is_of_one_address_and_one_port() {
        let (a, b) = (Proof::new(77, 5, [1; 16]), Proof::new(77, 5, [2; 16]));
        let [x, y] = [1, 2].map(|p| SocketAddr::from(([10, 0, 0, 1], p)));
        assert_eq!(a.cookie(x), a.cookie(x));
        assert_ne!(a.cookie(x), a.cookie(y));
        assert_ne!(a.cookie(x), b.cookie(x));
    }
}
