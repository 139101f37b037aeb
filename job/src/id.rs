//! [`UniqueId`]: the address and secret with which the ranks of a job find each other.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

/// Where a job's bootstrap listens, and the secret that admits to it: NCCL's unique id.
///
/// One process makes it ([`UniqueId::create`](crate::UniqueId::create), or `ringbell run`) and
/// gives its text to the others, by environment, file or command line. Any process that has the
/// text may join the job, so keep it like a password.
///
/// ```
/// let id: ringbell_job::UniqueId = "rb1-000102030405060708090a0b0c0d0e0f@127.0.0.1:4711".parse()?;
/// assert_eq!(id.address().port(), 4711);
/// # Ok::<(), ringbell_job::UniqueIdError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UniqueId {
    address: SocketAddr,
    secret: [u8; 16],
}

/// A text that is no [`UniqueId`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a job's id: {why}; pass on the text of RINGBELL_ID or of `UniqueId::to_string` unchanged")]
pub struct UniqueIdError {
    /// As given, without the part that could be the secret.
    text: String,
    /// What is wrong with it.
    why: &'static str,
}

/// Start of the text; a later form can have another one.
const PREFIX: &str = "rb1-";

impl UniqueId {
    /// The id of a bootstrap that listens at `address` and admits holders of `secret`.
    pub fn new(address: SocketAddr, secret: [u8; 16]) -> UniqueId {
        UniqueId { address, secret }
    }

    /// Where the bootstrap listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The secret that admits to it.
    pub fn secret(&self) -> &[u8; 16] {
        &self.secret
    }
}

impl fmt::Display for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        self.secret.iter().try_for_each(|b| write!(f, "{b:02x}"))?;
        write!(f, "@{}", self.address)
    }
}

/// Omits the secret: other users may read a log.
impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UniqueId({PREFIX}...@{})", self.address)
    }
}

impl FromStr for UniqueId {
    type Err = UniqueIdError;

    fn from_str(text: &str) -> Result<UniqueId, UniqueIdError> {
        let bad = |why| UniqueIdError {
            text: match text.split_once('@') {
                Some((_, address)) => format!("...@{address}"),
                None => "...".into(),
            },
            why,
        };
        let rest = text
            .strip_prefix(PREFIX)
            .ok_or_else(|| bad("it does not begin with `rb1-`"))?;
        let (hex, address) = rest
            .split_once('@')
            .ok_or_else(|| bad("it has no `@ADDRESS:PORT`"))?;
        if hex.len() != 32 || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(bad("its secret does not have 32 hexadecimal digits"));
        }
        let mut secret = [0; 16];
        for (byte, digits) in secret.iter_mut().zip(hex.as_bytes().chunks(2)) {
            let value = |d: u8| char::from(d).to_digit(16).unwrap_or(0) as u8;
            *byte = value(digits[0]) << 4 | value(digits[1]);
        }
        let address = address
            .parse()
            .map_err(|_| bad("what follows `@` is not an address with a port"))?;
        Ok(UniqueId { address, secret })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_survives_and_a_log_shows_no_secret() {
        let id = UniqueId::new(([10, 0, 0, 7], 4711).into(), *b"0123456789abcdef");
        let text = id.to_string();
        assert_eq!(text.parse(), Ok(id));
        let shown = format!("{id:?}");
        assert!(
            shown.contains("10.0.0.7:4711") && !shown.contains("3031"),
            "{shown}"
        );
    }

    #[test]
    fn a_wrong_text_is_refused_with_the_reason_and_without_the_secret() {
        for (text, why) in [
            ("", "rb1-"),
            ("rb1-00112233445566778899aabbccddeeff", "ADDRESS"),
            ("rb1-0011@127.0.0.1:1", "32 hexadecimal"),
            ("rb1-00112233445566778899aabbccddeeff@host", "address"),
        ] {
            let e = text.parse::<UniqueId>().expect_err(text).to_string();
            assert!(e.contains(why) && !e.contains("001122"), "{e}");
        }
    }
}
