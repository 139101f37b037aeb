//! The time of a NIC.

use std::time::Duration;

/// NIC time: nanoseconds since the NIC was made. Given as an argument, never read from a clock
/// here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct NicTime(pub u64);

impl NicTime {
    /// This time plus a duration, saturating.
    #[inline]
    pub fn plus(self, d: Duration) -> NicTime {
        NicTime(
            self.0
                .saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)),
        )
    }

    /// The earliest of several times, if there are any.
    #[inline]
    pub fn earliest<const N: usize>(times: [Option<NicTime>; N]) -> Option<NicTime> {
        let mut first = None;
        for time in times {
            first = match (first, time) {
                (Some(a), Some(b)) => Some(NicTime::min(a, b)),
                (a, b) => a.or(b),
            };
        }
        first
    }
}
