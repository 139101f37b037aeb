//! Bytes that repeat: those of a collective's operands, and of all sums of them.

/// Elements after which a source repeats.
pub(crate) const ELEMENTS: u64 = 13;
/// The same in bytes.
pub(crate) const PERIOD: usize = 52;

/// One period.
pub(crate) type Pattern = [u8; PERIOD];

/// Fills bytes with a pattern that has begun so many bytes before.
pub(crate) fn repeat(pattern: &Pattern, start: usize, into: &mut [u8]) {
    for (i, byte) in into.iter_mut().take(PERIOD).enumerate() {
        *byte = pattern[(start + i) % PERIOD];
    }
    let mut done = PERIOD;
    while done < into.len() {
        let n = done.min(into.len() - done);
        into.copy_within(..n, done);
        done += n;
    }
}
