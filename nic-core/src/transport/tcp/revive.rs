//! What smoltcp forgets, and how it is reminded.
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

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    IpAddress, IpProtocol, Ipv4Packet, Ipv4Repr, TcpControl, TcpPacket, TcpRepr, TcpSeqNumber,
};

use super::admit::guarded;
use super::conn::{is_synchronized, Conn};
use super::device::Ingress;
use super::TcpTransport;
use crate::transport::NicTime;
use crate::wire::frame::TcpFrame;

/// An IPv4 and a TCP header without options.
const PACKET: usize = 40;

/// The newest acknowledgement that a peer has sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Heard {
    ack: u32,
    window: u16,
}

impl Conn {
    /// Keeps the acknowledgement of a segment that goes to the socket.
    pub(super) fn note_ack(&mut self, seg: &TcpFrame) {
        let Some(ack) = seg.ack else { return };
        // An older one may arrive later.
        if self
            .heard_ack
            .is_none_or(|h| ack.wrapping_sub(h.ack) as i32 >= 0)
        {
            let window = seg.window;
            self.heard_ack = Some(Heard { ack, window });
        }
    }

    /// Whether the socket has bytes to bring over and, with no timer of its own, would not.
    pub(super) fn is_forgotten(&mut self, has_timer: bool) -> bool {
        !has_timer && is_synchronized(self.state()) && self.socket().send_queue() > 0
    }

    /// An acknowledgement as the peer would repeat it, with this window.
    fn repeated_ack(&self, window: u16) -> Option<[u8; PACKET]> {
        let (peer, local) = (*self.peer.ip(), *self.local.ip());
        let tcp = TcpRepr {
            src_port: self.peer.port(),
            dst_port: self.local.port(),
            control: TcpControl::None,
            seq_number: TcpSeqNumber(self.next_expected()? as i32),
            ack_number: Some(TcpSeqNumber(self.heard_ack?.ack as i32)),
            window_len: window,
            window_scale: None,
            max_seg_size: None,
            sack_permitted: false,
            sack_ranges: [None, None, None],
            timestamp: None,
            payload: &[],
        };
        let ip = Ipv4Repr {
            src_addr: peer,
            dst_addr: local,
            next_header: IpProtocol::Tcp,
            payload_len: tcp.buffer_len(),
            hop_limit: 64,
        };
        let mut packet = [0; PACKET];
        let sums = ChecksumCapabilities::default();
        let (head, body) = packet.split_at_mut_checked(ip.buffer_len())?;
        ip.emit(&mut Ipv4Packet::new_unchecked(head), &sums);
        tcp.emit(
            &mut TcpPacket::new_unchecked(body),
            &IpAddress::Ipv4(peer),
            &IpAddress::Ipv4(local),
            &sums,
        );
        // The total length covers both, although `head` alone was at hand.
        Some(packet)
    }
}

impl TcpTransport {
    /// Lets a forgotten connection hear what makes it go on.
    pub(super) fn revive(&mut self, index: usize, now: NicTime) {
        let Some(c) = self.table.at(index) else {
            return;
        };
        let Some(Heard { window, .. }) = c.heard_ack else {
            return;
        };
        tracing::debug!(peer = %c.peer, "TCP has forgotten its timer; it is reminded");
        self.counters.revived += 1;
        // Another window first: only that is no duplicate, so that counting begins anew.
        self.hear_again(index, now, &[window ^ 1, window, window, window, window]);
    }

    /// Lets a connection send the next hole of its window again.
    pub(super) fn mend(&mut self, index: usize, now: NicTime) {
        let heard = self.table.at(index).and_then(|c| c.heard_ack);
        if let Some(Heard { window, .. }) = heard {
            self.counters.mended += 1;
            self.hear_again(index, now, &[window; 3]);
        }
    }

    /// Repeats the peer's last acknowledgement to the socket, with these windows.
    fn hear_again(&mut self, index: usize, now: NicTime, windows: &[u16]) {
        let Some(c) = self.table.at(index).filter(|c| !c.broken) else {
            return;
        };
        for &window in windows {
            let Some(packet) = c.repeated_ack(window) else {
                return;
            };
            let mut device = Ingress {
                packet: Some(&packet),
                reply: &mut self.reply,
                caps: &self.caps,
            };
            let t = self.clock.instant(now);
            let (iface, sockets) = (&mut self.iface, &mut c.sockets);
            if guarded(|| iface.poll_ingress_single(t, &mut device, sockets)).is_none() {
                self.counters.defects += 1;
                c.broken = true;
                return;
            }
        }
        // What the socket answers is not for the peer, who has said nothing.
        self.reply.len = 0;
    }
}
