//! Initial sequence numbers (RFC 9293 §3.4.1) and SYN cookies (RFC 4987 §3.6).
//!
//! Both are a keyed hash of the connection's addresses, so that only a host that sees an answer can
//! use its number. A cookie also holds the SYN's options; the NIC keeps nothing until the
//! handshake's last segment brings it back:
//!
//! ```text
//!  31                               7 6    4 3    1  0
//! | SipHash(addresses, number, time) | MSS | scale |SACK|
//! ```
//!
//! A guess is right once in 2^24: two spans of time are valid. Cookies are given and looked for
//! only while half-open handshakes fill a backlog:
//!
//! ```text
//! SYN ──▶ backlog has room? ──▶ a socket in SYN-RECEIVED ──(ACK)──▶ Incoming
//!               │ no, but half-open handshakes fill it
//!               └──▶ a SYN|ACK with a cookie, and nothing kept ──(ACK with the cookie)──▶ socket, Incoming
//! ```
//!
//! So a continuous flood of SYNs keeps no client out. A backlog full of connections that the
//! program has not accepted differs: SYNs then get no answer, and the peer tries again (as Linux
//! does).

use std::hash::Hasher;
use std::net::SocketAddrV4;

use siphasher::sip::SipHasher24;

use crate::types::NicTime;

/// Sizes of segments that a cookie can encode; the next smaller one stands for the rest. The peer's
/// links decide: 536 (RFC 9293 §3.7.1), tunnels, Ethernet without and with VLANs or PPPoE, jumbo
/// frames.
const SIZES: [u16; 8] = [88, 536, 1220, 1360, 1410, 1440, 1460, 8960];
/// Window scales that a cookie can encode; the next smaller one stands for the rest, which makes
/// the peer's window look smaller than it is.
const SCALES: [Option<u8>; 8] = [
    None,
    Some(0),
    Some(2),
    Some(4),
    Some(6),
    Some(7),
    Some(8),
    Some(10),
];
/// Low bits of a cookie that hold [`Options`].
const OPTIONS: u32 = 0x7f;
/// A cookie is valid for this long, and up to twice as long: 32 s, for a handshake whose segments
/// were lost.
const COOKIE_NS: u64 = 32_000_000_000;
/// A number moves on by one in this time (RFC 9293 §3.4.1): 4 µs.
const TICK_NS: u64 = 4_000;

/// The options of a SYN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Options {
    pub(super) mss: u16,
    pub(super) scale: Option<u8>,
    pub(super) sack: bool,
}

impl Options {
    fn encode(self) -> u32 {
        let last = |fits: &dyn Fn(usize) -> bool| (0..8).rev().find(|&i| fits(i)).unwrap_or(0);
        let mss = last(&|i| SIZES[i] <= self.mss);
        let scale = match self.scale {
            Some(s) => last(&|i| SCALES[i].is_some_and(|t| t <= s)),
            None => 0,
        };
        // Three, three and one bit.
        (mss << 4 | scale << 1) as u32 | u32::from(self.sack)
    }

    fn decode(cookie: u32) -> Options {
        Options {
            mss: SIZES[(cookie >> 4 & 7) as usize],
            scale: SCALES[(cookie >> 1 & 7) as usize],
            sack: cookie & 1 == 1,
        }
    }
}

/// The keys of one transport.
#[derive(Clone)]
pub(super) struct Keys {
    numbers: SipHasher24,
    cookies: SipHasher24,
    /// Until when a cookie may come back.
    cookies_until: Option<NicTime>,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // No keys in logs.
        f.debug_struct("Keys").finish_non_exhaustive()
    }
}

impl Keys {
    pub(super) fn new(seed: u64) -> Keys {
        let key = |purpose: &[u8; 8]| {
            let mut key = [0; 16];
            key[..8].copy_from_slice(&seed.to_be_bytes());
            key[8..].copy_from_slice(purpose);
            SipHasher24::new_with_key(&key)
        };
        Keys {
            numbers: key(b"sequence"),
            cookies: key(b"SYN seal"),
            cookies_until: None,
        }
    }

    /// A cookie was given.
    pub(super) fn cookie_given(&mut self, now: NicTime) {
        self.cookies_until = Some(now.plus(COOKIES_LAST));
    }

    /// Whether a cookie may come back.
    pub(super) fn expects_cookies(&self, now: NicTime) -> bool {
        self.cookies_until.is_some_and(|t| now <= t)
    }

    /// The number with which a connection begins.
    pub(super) fn initial(&self, local: SocketAddrV4, peer: SocketAddrV4, now: NicTime) -> u32 {
        let mut h = self.numbers;
        addresses(&mut h, local, peer);
        ((now.0 / TICK_NS) as u32).wrapping_add(h.finish() as u32)
    }

    fn seal(
        &self,
        local: SocketAddrV4,
        peer: SocketAddrV4,
        theirs: u32,
        span: u64,
        options: u32,
    ) -> u32 {
        let mut h = self.cookies;
        addresses(&mut h, local, peer);
        h.write_u32(theirs);
        h.write_u64(span);
        h.write_u32(options);
        h.finish() as u32 & !OPTIONS | options
    }

    /// The answer to a SYN with the number `theirs`.
    pub(super) fn cookie(
        &self,
        local: SocketAddrV4,
        peer: SocketAddrV4,
        theirs: u32,
        options: Options,
        now: NicTime,
    ) -> u32 {
        self.seal(local, peer, theirs, now.0 / COOKIE_NS, options.encode())
    }

    /// The options of the SYN with the number `theirs`, if this is the cookie that it was answered
    /// with.
    pub(super) fn open(
        &self,
        local: SocketAddrV4,
        peer: SocketAddrV4,
        theirs: u32,
        cookie: u32,
        now: NicTime,
    ) -> Option<Options> {
        let span = now.0 / COOKIE_NS;
        let mut spans = [Some(span), span.checked_sub(1)].into_iter().flatten();
        spans
            .any(|s| self.seal(local, peer, theirs, s, cookie & OPTIONS) == cookie)
            .then(|| Options::decode(cookie))
    }
}

fn addresses(h: &mut SipHasher24, local: SocketAddrV4, peer: SocketAddrV4) {
    for a in [local, peer] {
        h.write_u32(u32::from(*a.ip()));
        h.write_u16(a.port());
    }
}

/// How long after the last cookie one may come back.
const COOKIES_LAST: std::time::Duration = std::time::Duration::from_nanos(2 * COOKIE_NS);

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const HERE: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 80);
    const THERE: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 2), 4000);

    #[test]
    fn a_cookie_encodes_at_most_the_options_of_the_syn() {
        let keys = Keys::new(1);
        let now = NicTime(5 * COOKIE_NS);
        for mss in [1, 88, 500, 536, 1219, 1220, 1460, 8959, 8960, u16::MAX] {
            for scale in (0..=14).map(Some).chain([None]) {
                for sack in [false, true] {
                    let said = Options { mss, scale, sack };
                    let c = keys.cookie(HERE, THERE, 7, said, now);
                    let got = keys.open(HERE, THERE, 7, c, now).unwrap(); // just made
                    assert_eq!(got.sack, sack);
                    assert_eq!(got.scale.is_some(), scale.is_some());
                    assert!(got.scale <= scale && (got.mss <= mss || got.mss == 88));
                }
            }
        }
        // Common values are encoded exactly.
        for (mss, scale) in [
            (1460, Some(7)),
            (8960, Some(8)),
            (1460, Some(2)),
            (536, None),
        ] {
            let said = Options {
                mss,
                scale,
                sack: true,
            };
            assert_eq!(Options::decode(said.encode()), said);
        }
    }

    #[test]
    fn a_cookie_is_of_one_connection_one_transport_and_one_minute() {
        let keys = Keys::new(1);
        let said = Options {
            mss: 1460,
            scale: Some(7),
            sack: true,
        };
        let made = NicTime(5 * COOKIE_NS + 1);
        let c = keys.cookie(HERE, THERE, 7, said, made);
        let opens = |k: &Keys, here, there, theirs, ns| {
            k.open(here, there, theirs, c, NicTime(ns)).is_some()
        };
        assert!(opens(&keys, HERE, THERE, 7, made.0 + COOKIE_NS));
        assert!(!opens(&keys, HERE, THERE, 7, made.0 + 2 * COOKIE_NS));
        assert!(!opens(&keys, HERE, THERE, 7, made.0 - COOKIE_NS));
        assert!(!opens(&keys, HERE, THERE, 8, made.0));
        assert!(!opens(&keys, THERE, HERE, 7, made.0));
        assert!(!opens(&Keys::new(2), HERE, THERE, 7, made.0));
        let other = SocketAddrV4::new(*THERE.ip(), 4001);
        assert!(!opens(&keys, HERE, other, 7, made.0));
    }

    #[test]
    fn numbers_move_on_and_differ_by_connection() {
        let keys = Keys::new(1);
        let at = |ns| keys.initial(HERE, THERE, NicTime(ns));
        assert_eq!(at(1_000_000_000).wrapping_sub(at(0)), 250_000);
        let other = SocketAddrV4::new(*THERE.ip(), 4001);
        assert_ne!(at(0), keys.initial(HERE, other, NicTime(0)));
        assert_ne!(at(0), Keys::new(2).initial(HERE, THERE, NicTime(0)));
    }
}
