//! What was lost when a NIC ended.

use std::fmt;

use crate::command::Undelivered;

/// Bytes that were reported as sent but had not arrived when the NIC ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub struct NotDelivered {
    /// The streams, each with its peer, its bytes and the reason.
    pub streams: Vec<Undelivered>,
}

impl fmt::Display for NotDelivered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 4;
        write!(
            f,
            "{} streams ended before the peer had everything: ",
            self.streams.len()
        )?;
        for (i, s) in self.streams.iter().take(SHOWN).enumerate() {
            let comma = if i > 0 { ", " } else { "" };
            write!(f, "{comma}{} lacks ", s.peer)?;
            match s.bytes {
                0 => f.write_str("the end")?,
                n => write!(f, "{n} B and the end")?,
            }
            write!(f, " ({})", s.why)?;
        }
        if self.streams.len() > SHOWN {
            write!(f, " and {} more", self.streams.len() - SHOWN)?;
        }
        f.write_str("; close sessions before the NIC, raise `linger`, or let the peer answer")
    }
}
