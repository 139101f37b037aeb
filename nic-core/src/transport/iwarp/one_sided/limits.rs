//! Bounds of what may be under way at once.

/// Reads and atomic operations that an end serves.
pub(in crate::transport::iwarp) const READS: u16 = 16;
/// Operations of all kinds that may be unanswered.
pub(super) const OPEN_MAX: usize = 128;
