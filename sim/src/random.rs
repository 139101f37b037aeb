//! Numbers that a seed gives (SplitMix64, Steele and others 2014).

/// The step from one state to the next.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The number of the state behind this one.
pub(crate) fn mix(state: u64) -> u64 {
    let z = state.wrapping_add(STEP);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A number that depends on all of two.
pub(crate) fn mixed(a: u64, b: u64) -> u64 {
    mix(a.wrapping_add(b.wrapping_mul(STEP)))
}

/// A sequence of numbers.
#[derive(Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// Draws whether something happens that has this share.
    pub(crate) fn happens(&mut self, share: f64) -> bool {
        if share <= 0.0 {
            return false;
        }
        let drawn = mix(self.0);
        self.0 = self.0.wrapping_add(STEP);
        ((drawn >> 11) as f64) < share * (1u64 << 53) as f64
    }
}
