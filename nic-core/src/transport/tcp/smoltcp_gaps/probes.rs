//! Liveness of one connection's peer, from keep-alive probes and refusals.

use std::time::Duration;

use crate::transport::tcp::TcpConfig;
use crate::types::NicTime;

/// Segments that the peer's host must refuse before the peer counts as gone. The kernel bounds how
/// many refusals it sends, and any of them may be forged (RFC 5927 §4).
const REFUSALS: u32 = 3;
/// How long the refusals must have gone on, without a segment from the peer.
const REFUSED_FOR: Duration = Duration::from_millis(500);

/// Whether the peer of one connection is still there.
#[derive(Debug, Default)]
pub(in crate::transport::tcp) struct Probes {
    /// When an idle connection starts to be probed.
    pub(in crate::transport::tcp) at: Option<NicTime>,
    /// The user has asked for early detection of the peer's end.
    pub(in crate::transport::tcp) watched: bool,
    /// Refusals since the peer's last segment, and when the first came.
    refused: Option<(NicTime, u32)>,
}

impl Probes {
    /// How often an idle connection is probed.
    pub(in crate::transport::tcp) fn every(&self, config: &TcpConfig) -> Option<Duration> {
        let watch = config.watch.filter(|_| self.watched);
        match (config.keep_alive, watch) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// A segment to the peer was refused.
    pub(in crate::transport::tcp) fn refused(&mut self, now: NicTime) {
        let (since, n) = self.refused.unwrap_or((now, 0));
        self.refused = Some((since, n + 1));
    }

    /// A segment came from the peer.
    pub(in crate::transport::tcp) fn answered(&mut self) {
        self.refused = None;
    }

    /// When the peer counts as gone because its host says so.
    pub(in crate::transport::tcp) fn gone_at(&self) -> Option<NicTime> {
        let (since, _) = self.refused.filter(|(_, n)| *n >= REFUSALS)?;
        Some(since.plus(REFUSED_FOR))
    }
}
