//! Retransmission timers that smoltcp loses.
//!
//! A sender that has bytes under way must have a timer (RFC 6298 §5.1). smoltcp loses it when a closed
//! window opens again over bytes that were sent into it before: an edge that scaling rounds down moves
//! back by a few bytes, the receiver cuts them off, and the probe timer of the closed window ends
//! without the retransmission timer taking its place. Usually the next segment starts it; the last
//! bytes of a burst would stay away for good, with everything behind them.
//!
//! From outside, this shows as a queue that is not empty while no timer runs. After the shortest
//! retransmission time-out the socket then hears three duplicates of the peer's last acknowledgement,
//! upon which it retransmits (RFC 5681 §3.2); with a window that is closed it starts to probe.

use crate::transport::tcp::conn::{is_synchronized, Conn};
use crate::transport::tcp::TcpTransport;
use crate::types::NicTime;

impl Conn {
    /// Whether the socket has bytes to bring over and, with no timer of its own, would not.
    pub(in crate::transport::tcp) fn is_forgotten(&mut self, has_timer: bool) -> bool {
        !has_timer && is_synchronized(self.state()) && self.tcp().send_queue() > 0
    }
}

impl TcpTransport {
    /// Lets a forgotten connection hear what makes it go on.
    pub(in crate::transport::tcp) fn revive(&mut self, index: usize, now: NicTime) {
        let Some(c) = self.table.at(index) else {
            return;
        };
        let window = c.heard_window;
        tracing::debug!(peer = %c.peer, "TCP has lost its retransmission timer; it starts again");
        self.counters.revived += 1;
        // Another window first: only that is no duplicate, so that counting begins anew.
        self.repeat_ack(index, now, &[window ^ 1, window, window, window, window]);
    }
}
