//! Segments that a socket is told in the name of its peer, to make it do what smoltcp has no call for.
//!
//! They carry numbers that the peer has acknowledged or sent, so that they change nothing of the stream.

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{IpProtocol, Ipv4Repr, TcpControl, TcpRepr, TcpSeqNumber};

use super::guarded;
use crate::transport::tcp::conn::Conn;
use crate::transport::tcp::device::Ingress;
use crate::transport::tcp::listen::emit;
use crate::transport::tcp::TcpTransport;
use crate::types::NicTime;

/// An IPv4 and a TCP header, the options of a SYN, and a byte.
const PACKET: usize = 80;

impl Conn {
    /// A segment from the peer without options, flags or payload, but for an acknowledgement of what it has
    /// acknowledged.
    fn peer_segment(&self, window: u16) -> Option<TcpRepr<'static>> {
        Some(TcpRepr {
            src_port: self.peer.port(),
            dst_port: self.local.port(),
            control: TcpControl::None,
            seq_number: TcpSeqNumber(self.next_expected()? as i32),
            ack_number: Some(TcpSeqNumber(self.unacknowledged() as i32)),
            window_len: window,
            window_scale: None,
            max_seg_size: None,
            sack_permitted: false,
            sack_ranges: [None, None, None],
            timestamp: None,
            payload: &[],
        })
    }
}

impl TcpTransport {
    /// Repeats the peer's acknowledgement to a socket, with these windows.
    pub(super) fn repeat_ack(&mut self, index: usize, now: NicTime, windows: &[u16]) {
        for &window in windows {
            let repr = self.table.at(index).and_then(|c| c.peer_segment(window));
            let Some(repr) = repr else { return };
            self.forge(index, now, &repr);
        }
        // What the socket answers is not for the peer, who has said nothing.
        self.reply.len = 0;
    }

    /// Makes a socket say at which sequence numbers it is: the answer to a byte that came before (RFC 9293
    /// §3.10.7.4), left in the reply buffer. smoltcp answers such a byte always; its own challenge ACKs
    /// have a limit of one for all causes together.
    pub(super) fn provoke_ack(&mut self, index: usize, now: NicTime) {
        let Some(c) = self.table.at(index) else {
            return;
        };
        let Some(mut repr) = c.peer_segment(c.heard_window) else {
            return;
        };
        repr.seq_number = repr.seq_number - 1;
        repr.payload = &[0];
        self.forge(index, now, &repr);
    }

    /// Tells a listening socket of a SYN with these options; `true` when it has taken it. Its SYN|ACK is
    /// dropped: the peer has had it as a cookie.
    pub(in crate::transport::tcp) fn replay_syn(
        &mut self,
        index: usize,
        now: NicTime,
        repr: &TcpRepr<'_>,
        isn: u32,
    ) -> bool {
        let t = self.clock.instant(now);
        let mut iface = self.interface_with(isn, now);
        std::mem::swap(&mut iface, &mut self.iface);
        self.forge(index, now, repr);
        std::mem::swap(&mut iface, &mut self.iface);
        let Some(c) = self.table.at(index).filter(|c| !c.broken) else {
            return false;
        };
        let mut device = Ingress {
            packet: None,
            reply: &mut self.reply,
            caps: &self.caps,
        };
        let (iface, sockets) = (&mut self.iface, &mut c.sockets);
        let polled = guarded(|| iface.poll_egress(t, &mut device, sockets));
        self.reply.len = 0;
        polled.is_some()
    }

    fn forge(&mut self, index: usize, now: NicTime, tcp: &TcpRepr<'_>) {
        let Some(c) = self.table.at(index).filter(|c| !c.broken) else {
            return;
        };
        let (peer, local) = (*c.peer.ip(), *c.local.ip());
        let ip = Ipv4Repr {
            src_addr: peer,
            dst_addr: local,
            next_header: IpProtocol::Tcp,
            payload_len: tcp.buffer_len(),
            hop_limit: 64,
        };
        let mut room = [0; PACKET];
        let total = ip.buffer_len() + tcp.buffer_len();
        let Some(packet) = room.get_mut(..total) else {
            return;
        };
        emit(packet, &ip, tcp, &ChecksumCapabilities::default());
        self.tell(index, now, &room[..total]);
    }

    /// Shows a packet to the socket of a connection; its answer goes to the reply buffer.
    pub(in crate::transport::tcp) fn tell(&mut self, index: usize, now: NicTime, packet: &[u8]) {
        let t = self.clock.instant(now);
        let Some(c) = self.table.at(index) else {
            return;
        };
        let mut device = Ingress {
            packet: Some(packet),
            reply: &mut self.reply,
            caps: &self.caps,
        };
        let (iface, sockets) = (&mut self.iface, &mut c.sockets);
        if guarded(|| iface.poll_ingress_single(t, &mut device, sockets)).is_none() {
            self.counters.defects += 1;
            c.broken = true;
        }
    }
}
