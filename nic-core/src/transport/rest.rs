//! When a connection rests, and gives back what it keeps for bytes under way.

use crate::types::NicTime;

/// A connection rests after so long without a byte: 200 ms. What it needs then is allocated anew
/// with its next bytes.
const REST_NS: u64 = 200_000_000;

/// See the module text. One timer covers any number of services, so that a busy connection sets
/// five a second.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Rest {
    /// Something has moved since the timer was set.
    moved: bool,
    look_at: Option<NicTime>,
}

impl Rest {
    /// When the connection must be served, to see whether it rests.
    #[inline]
    pub(super) fn look_at(&self) -> Option<NicTime> {
        self.look_at
    }

    /// After a service that may have moved something. Returns whether the rest begins now.
    #[inline]
    pub(super) fn begins(
        &mut self,
        now: NicTime,
        moved: bool,
        has_spare: impl FnOnce() -> bool,
    ) -> bool {
        self.moved |= moved;
        if !self.moved {
            return self.look_at.take_if(|at| *at <= now).is_some();
        }
        if self.look_at.is_none_or(|at| at <= now) {
            let spare = has_spare();
            self.look_at = spare.then(|| NicTime(now.0.saturating_add(REST_NS)));
            self.moved = !spare;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rest_begins_once_nothing_has_moved_for_a_while() {
        let mut rest = Rest::default();
        let mut at = |ms: u64, moved, spare| rest.begins(NicTime(ms * 1_000_000), moved, || spare);
        assert!(!at(0, false, true), "nothing has moved yet");
        assert!(!at(10, true, true));
        assert!(!at(100, true, true));
        assert!(!at(210, false, true), "it has moved since");
        assert!(!at(409, false, true));
        assert!(at(410, false, true));
        assert!(!at(900, false, true), "once");
        assert!(!at(1_000, true, false), "nothing to give back");
        assert!(!at(1_100, false, true), "now there is");
        assert!(at(1_300, false, true));
    }
}
