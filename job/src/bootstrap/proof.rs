//! Mutual authentication of a bootstrap connection: both ends prove that they hold the job's
//! secret.
//!
//! ```text
//! member ── HELLO: rank, ranks, nonce M ─────────────────▶ server
//! member ◀─ CHALLENGE: nonce S, MAC("server", HELLO, S) ── server
//! member ── PROOF: MAC("member", HELLO, S) ──────────────▶ server
//! ```
//!
//! The MAC is HMAC-SHA-256 under the secret, which never travels. Both nonces are drawn for each
//! connection, so a recorded MAC proves nothing on another one. The two purposes differ, so a
//! reflected MAC is wrong.

use hmac::{Hmac, Mac as _};
use rustix::rand::{getrandom, GetRandomFlags};
use sha2::Sha256;

use crate::id::UniqueId;

use super::message::{Hello, Nonce, NONCE_BYTES};

/// Bytes of a MAC.
pub(super) const MAC_BYTES: usize = 32;
/// Bytes of a CHALLENGE.
pub(super) const CHALLENGE_BYTES: usize = NONCE_BYTES + MAC_BYTES;

/// Draws a nonce.
pub(super) fn nonce() -> std::io::Result<Nonce> {
    let mut out = [0; NONCE_BYTES];
    getrandom(&mut out, GetRandomFlags::empty())?;
    Ok(out)
}

/// The end that proves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Server,
    Member,
}

/// One handshake; both ends hold the same.
#[derive(Debug, Clone, Copy)]
pub(super) struct Handshake {
    hello: Hello,
    server_nonce: Nonce,
}

impl Handshake {
    /// The server's side, with a new nonce.
    pub(super) fn new(hello: Hello, server_nonce: Nonce) -> Handshake {
        Handshake {
            hello,
            server_nonce,
        }
    }

    /// The member's side; `None` when the sender of the challenge does not hold the secret.
    pub(super) fn answer(
        hello: Hello,
        secret: &[u8; 16],
        challenge: &[u8; CHALLENGE_BYTES],
    ) -> Option<Handshake> {
        let (nonce, mac) = challenge.split_at(NONCE_BYTES);
        let handshake = Handshake::new(hello, nonce.try_into().ok()?);
        handshake
            .is_right(secret, Side::Server, mac)
            .then_some(handshake)
    }

    /// The member's hello.
    pub(super) fn hello(&self) -> &Hello {
        &self.hello
    }

    /// The server's challenge.
    pub(super) fn challenge(&self, secret: &[u8; 16]) -> [u8; CHALLENGE_BYTES] {
        let mut out = [0; CHALLENGE_BYTES];
        out[..NONCE_BYTES].copy_from_slice(&self.server_nonce);
        out[NONCE_BYTES..].copy_from_slice(&self.mac(secret, Side::Server));
        out
    }

    /// The member's proof.
    pub(super) fn proof(&self, secret: &[u8; 16]) -> [u8; MAC_BYTES] {
        self.mac(secret, Side::Member)
    }

    /// Whether the member holds the secret.
    pub(super) fn is_proved_by(&self, secret: &[u8; 16], proof: &[u8; MAC_BYTES]) -> bool {
        self.is_right(secret, Side::Member, proof)
    }

    fn keyed(&self, secret: &[u8; 16], side: Side) -> Hmac<Sha256> {
        let mut mac = keyed(secret);
        mac.update(match side {
            Side::Server => b"ringbell bootstrap server",
            Side::Member => b"ringbell bootstrap member",
        });
        mac.update(&self.hello.encode());
        mac.update(&self.server_nonce);
        mac
    }

    fn mac(&self, secret: &[u8; 16], side: Side) -> [u8; MAC_BYTES] {
        self.keyed(secret, side).finalize().into_bytes().into()
    }

    /// Compares in constant time.
    fn is_right(&self, secret: &[u8; 16], side: Side, mac: &[u8]) -> bool {
        self.keyed(secret, side).verify_slice(mac).is_ok()
    }
}

impl UniqueId {
    /// Bytes for one purpose of the job: the same on all its ranks. They reveal neither the secret
    /// nor the bytes for another purpose.
    pub fn derived(&self, purpose: &str) -> [u8; 32] {
        let mut mac = keyed(self.secret());
        mac.update(&self.address().port().to_be_bytes());
        mac.update(purpose.as_bytes());
        mac.finalize().into_bytes().into()
    }
}

/// HMAC-SHA-256 under a job's secret.
fn keyed(secret: &[u8; 16]) -> Hmac<Sha256> {
    // RFC 2104 §2 pads a key shorter than SHA-256's block with zeros.
    let mut block = [0; 64];
    block[..secret.len()].copy_from_slice(secret);
    Hmac::new(&block.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: [u8; 16] = *b"0123456789abcdef";

    fn hello(nonce: u8) -> Hello {
        Hello {
            rank: 1,
            ranks: 3,
            nonce: [nonce; NONCE_BYTES],
        }
    }

    #[test]
    fn both_ends_prove_the_secret_and_no_other_one() {
        let server = Handshake::new(hello(1), [2; NONCE_BYTES]);
        let challenge = server.challenge(&SECRET);
        let member = Handshake::answer(hello(1), &SECRET, &challenge).expect("the same secret");
        assert!(server.is_proved_by(&SECRET, &member.proof(&SECRET)));
        let other = *b"0123456789abcdeX";
        assert!(Handshake::answer(hello(1), &other, &challenge).is_none());
        assert!(!server.is_proved_by(&SECRET, &member.proof(&other)));
        for i in 0..CHALLENGE_BYTES {
            let mut bent = challenge;
            bent[i] ^= 1;
            assert!(
                Handshake::answer(hello(1), &SECRET, &bent).is_none(),
                "byte {i}"
            );
        }
    }

    #[test]
    fn recorded_and_reflected_messages_prove_nothing() {
        let first = Handshake::new(hello(1), [2; NONCE_BYTES]);
        let (challenge, proof) = (first.challenge(&SECRET), first.proof(&SECRET));
        // A recorded challenge, for a member with a nonce of its own.
        assert!(Handshake::answer(hello(7), &SECRET, &challenge).is_none());
        // A recorded proof, for a server with a nonce of its own, and as another rank.
        let next = Handshake::new(hello(1), [8; NONCE_BYTES]);
        assert!(!next.is_proved_by(&SECRET, &proof));
        let rank_2 = Hello {
            rank: 2,
            ..hello(1)
        };
        assert!(!Handshake::new(rank_2, [2; NONCE_BYTES]).is_proved_by(&SECRET, &proof));
        // The server's own MAC sent back to it, and the member's to a member.
        let mut mac = [0; MAC_BYTES];
        mac.copy_from_slice(&challenge[NONCE_BYTES..]);
        assert!(!first.is_proved_by(&SECRET, &mac));
        let mut reflected = challenge;
        reflected[NONCE_BYTES..].copy_from_slice(&proof);
        assert!(Handshake::answer(hello(1), &SECRET, &reflected).is_none());
    }
}
