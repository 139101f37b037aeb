//! Keep-alive probes for idle connections only, and what they say about the peer.

use std::time::Duration;

use super::clock::Clock;
use super::socket::TcpSocket;
use crate::transport::tcp::TcpConfig;
use crate::types::NicTime;

/// Segments that the peer's host must refuse. The kernel bounds how many refusals it sends, and any of them may
/// be forged (RFC 5927 §4).
const REFUSALS: u32 = 3;
/// How long they must have gone on, without a word from the peer.
const REFUSED_FOR: Duration = Duration::from_millis(500);

/// Whether the peer of one connection is still there.
#[derive(Debug, Default)]
pub(in crate::transport::tcp) struct Probes {
    /// When an idle connection starts to be probed.
    pub(in crate::transport::tcp) at: Option<NicTime>,
    /// The user wants to know of the peer's end soon.
    pub(in crate::transport::tcp) watched: bool,
    /// Refusals since the peer was heard, and when the first came.
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

/// Lets smoltcp probe an idle connection, and only an idle one: its probe carries a byte that is not
/// the stream's, in the place of the last byte sent. A receiver that misses that byte would take it.
///
/// Not smoltcp's own time-out: it also ends connections that are merely idle.
pub(in crate::transport::tcp) fn mind_keep_alive(
    s: &mut TcpSocket,
    config: &TcpConfig,
    now: NicTime,
) {
    let Some(every) = s.probes.every(config) else {
        return;
    };
    let on = s.socket().keep_alive().is_some();
    if s.socket().send_queue() > 0 {
        if on {
            s.socket().set_keep_alive(None);
        }
        s.probes.at = None;
    } else if !on {
        match s.probes.at {
            Some(at) if at <= now => {
                let own = Clock::new(config.rto_min).duration(every);
                // This also sends the first probe.
                s.socket().set_keep_alive(Some(own));
                s.probes.at = None;
            }
            Some(_) => {}
            None => s.probes.at = Some(now.plus(every)),
        }
    }
}
