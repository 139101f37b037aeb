//! Keep-alive probes for idle connections only.

use super::clock::Clock;
use super::socket::TcpSocket;
use crate::transport::tcp::TcpConfig;
use crate::types::NicTime;

/// Lets smoltcp probe an idle connection, and only an idle one: its probe carries a byte that is
/// not the stream's, in the place of the last byte sent. A receiver that lacks that byte would
/// accept it.
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
