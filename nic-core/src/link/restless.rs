//! Links that may need something from a step: one bit for each, so that links at rest cost next to
//! nothing.

/// A set of links, in order.
#[derive(Debug, Default)]
pub(super) struct Restless(Vec<u64>);

impl Restless {
    #[inline]
    pub(super) fn insert(&mut self, link: usize) {
        let word = link / 64;
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (link % 64);
    }

    pub(super) fn remove(&mut self, link: usize) {
        if let Some(word) = self.0.get_mut(link / 64) {
            *word &= !(1 << (link % 64));
        }
    }

    /// The first of them from a number on.
    #[inline]
    pub(super) fn next(&self, from: usize) -> Option<usize> {
        let (first, mut before) = (from / 64, (1 << (from % 64)) - 1);
        for (word, bits) in self.0.iter().enumerate().skip(first) {
            let bits = bits & !before;
            if bits != 0 {
                return Some(word * 64 + bits.trailing_zeros() as usize);
            }
            before = 0;
        }
        None
    }

    /// Whether any of them is such.
    #[inline]
    pub(super) fn any(&self, mut is_such: impl FnMut(usize) -> bool) -> bool {
        for (word, &bits) in self.0.iter().enumerate() {
            let mut left = bits;
            while left != 0 {
                if is_such(word * 64 + left.trailing_zeros() as usize) {
                    return true;
                }
                left &= left - 1;
            }
        }
        false
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        std::iter::successors(self.next(0), |last| self.next(last + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_come_in_order_and_once() {
        let mut set = Restless::default();
        assert_eq!(set.next(700), None);
        for link in [200, 0, 63, 64, 5, 200] {
            set.insert(link);
        }
        assert!(set.iter().eq([0, 5, 63, 64, 200]));
        assert!(set.any(|l| l == 64) && set.any(|l| l == 200) && !set.any(|l| l == 6));
        assert_eq!(
            (set.next(1), set.next(65), set.next(201)),
            (Some(5), Some(200), None)
        );
        for link in [64, 9, 999] {
            set.remove(link);
        }
        assert!(set.iter().eq([0, 5, 63, 200]));
    }
}
