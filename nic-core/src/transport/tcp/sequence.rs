//! Arithmetic of TCP's sequence numbers, which wrap.

/// Whether sequence number `a` comes before `b` (RFC 9293 §3.4).
pub(super) fn is_before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}
