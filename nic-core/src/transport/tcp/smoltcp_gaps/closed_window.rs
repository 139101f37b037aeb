//! Acknowledgements that lie beyond the receive window as it was offered last.

use super::socket::TcpSocket;

/// The sequence number with which smoltcp should see a pure acknowledgement, when not its own.
///
/// smoltcp refuses one whose sequence number lies beyond the window it offered last, and then
/// sends no more: with a closed window, both sides wait forever. Such a segment is in order:
/// the window's edge moved back by a part of the window's scale after the peer had filled it.
/// "Special allowance should be made to accept valid ACKs" (RFC 9293 §3.10.7.4).
pub(in crate::transport::tcp) fn sequence_of_ack(s: &TcpSocket, seq: u32) -> Option<u32> {
    let expected = s.next_expected()?;
    let ahead = seq.wrapping_sub(expected) as usize;
    // What the buffer could hold, and the largest step of the window's scale.
    (ahead > 0 && ahead <= s.tcp().recv_capacity() + (1 << 14)).then_some(expected)
}
