//! The limit of challenge ACKs of one connection (RFC 5961 §7).

use std::time::Duration;

use crate::types::NicTime;

/// At most so many challenge ACKs for a connection in this time (RFC 5961 §7). Not one count for
/// all connections: that would reveal others' state to an attacker (CVE-2016-5696).
const CHALLENGES: u8 = 10;
const CHALLENGE_TIME: Duration = Duration::from_secs(5);

/// When a connection has sent challenge ACKs.
#[derive(Debug, Default)]
pub(in crate::transport::tcp) struct Challenges {
    since: NicTime,
    sent: u8,
}

impl Challenges {
    /// Whether one more may go out now.
    pub(super) fn allow(&mut self, now: NicTime) -> bool {
        if self.sent == 0 || now > self.since.plus(CHALLENGE_TIME) {
            (self.since, self.sent) = (now, 0);
        }
        let allowed = self.sent < CHALLENGES;
        self.sent += u8::from(allowed);
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_challenges_in_five_seconds() {
        let mut c = Challenges::default();
        let at = |s: f64| NicTime((s * 1e9) as u64);
        let n = (0..100).filter(|_| c.allow(at(1.0))).count();
        assert_eq!(n, usize::from(CHALLENGES));
        assert!(!c.allow(at(5.9)));
        assert!(c.allow(at(6.1)));
    }
}
