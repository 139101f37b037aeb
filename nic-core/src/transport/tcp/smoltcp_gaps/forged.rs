//! Forged segments: passed to a socket as its peer's, for actions that smoltcp has no call for.
//!
//! Their numbers are ones that the peer has acknowledged or sent, so the stream stays unchanged.

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{IpProtocol, Ipv4Repr, TcpControl, TcpRepr, TcpSeqNumber};

use super::socket::TcpSocket;
use super::stack::Stack;
use crate::transport::tcp::compose::emit;
use crate::types::NicTime;

/// An IPv4 and a TCP header, the options of a SYN, and a byte.
const PACKET: usize = 80;

/// A segment from the peer without options, flags or payload, but for an acknowledgement of what it
/// has acknowledged.
fn peer_segment(s: &TcpSocket, window: u16) -> Option<TcpRepr<'static>> {
    Some(TcpRepr {
        src_port: s.peer.port(),
        dst_port: s.local.port(),
        control: TcpControl::None,
        seq_number: TcpSeqNumber(s.next_expected()? as i32),
        ack_number: Some(TcpSeqNumber(s.unacknowledged() as i32)),
        window_len: window,
        window_scale: None,
        max_seg_size: None,
        sack_permitted: false,
        sack_ranges: [None, None, None],
        timestamp: None,
        payload: &[],
    })
}

/// Repeats the peer's acknowledgement to a socket, with these windows.
pub(super) fn repeat_ack(stack: &mut Stack, s: &mut TcpSocket, now: NicTime, windows: &[u16]) {
    for &window in windows {
        let Some(repr) = peer_segment(s, window) else {
            return;
        };
        forge(stack, s, now, &repr);
    }
    // The peer has sent nothing, so the socket's answer is not for it.
    stack.reply.len = 0;
}

/// Makes a socket acknowledge its current sequence numbers, by a byte that came before (RFC 9293
/// §3.10.7.4). The answer is left in the reply buffer. smoltcp always answers such a byte; its own
/// challenge ACKs share one limit for all causes.
pub(super) fn provoke_ack(stack: &mut Stack, s: &mut TcpSocket, now: NicTime) {
    let Some(mut repr) = peer_segment(s, s.heard_window) else {
        return;
    };
    repr.seq_number = repr.seq_number - 1;
    repr.payload = &[0];
    forge(stack, s, now, &repr);
}

/// Passes a SYN with these options to a listening socket; `true` when the socket has taken it. Its
/// SYN|ACK is dropped: the peer has received it as a cookie.
pub(in crate::transport::tcp) fn replay_syn(
    stack: &mut Stack,
    s: &mut TcpSocket,
    now: NicTime,
    repr: &TcpRepr<'_>,
    isn: u32,
) -> bool {
    let own = stack.replace_interface(s.port, isn, now);
    forge(stack, s, now, repr);
    stack.restore_interface(s.port, own);
    let polled = !s.broken && stack.poll_unheard(s, now);
    stack.reply.len = 0;
    polled
}

fn forge(stack: &mut Stack, s: &mut TcpSocket, now: NicTime, tcp: &TcpRepr<'_>) {
    if s.broken {
        return;
    }
    let ip = Ipv4Repr {
        src_addr: *s.peer.ip(),
        dst_addr: *s.local.ip(),
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
    stack.receive(s, now, &room[..total]);
}
