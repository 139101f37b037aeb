//! `initcheck`: which bytes of a memory have been written since they were allocated.

/// A bit for each byte.
#[derive(Debug, Default)]
pub(crate) struct Written(Vec<u64>);

impl Written {
    pub(crate) fn new(bytes: u64) -> Written {
        // Zeroed by the operating system when first touched.
        Written(vec![0; bytes.div_ceil(64) as usize + 1])
    }

    /// Marks bytes as written, or as allocated anew.
    pub(crate) fn set(&mut self, at: u64, bytes: u64, on: bool) {
        self.each(at, bytes, |word, bits| {
            *word = if on { *word | bits } else { *word & !bits };
        });
    }

    /// Whether bytes, which lie in 64 that are aligned, are written.
    #[inline(always)]
    pub(crate) fn has(&self, at: u64, bytes: u64) -> bool {
        let bits = u64::MAX >> (64 - bytes) << (at % 64);
        let word = self.0.get((at / 64) as usize);
        word.is_some_and(|w| w & bits == bits)
    }

    /// Marks bytes as written; how many of them were not.
    #[inline]
    pub(crate) fn write(&mut self, at: u64, bytes: u64) -> u32 {
        let mut missing = 0;
        self.each(at, bytes, |word, bits| {
            if bits & !*word != 0 {
                missing += (bits & !*word).count_ones();
                *word |= bits;
            }
        });
        missing
    }

    #[inline]
    fn each(&mut self, at: u64, bytes: u64, mut f: impl FnMut(&mut u64, u64)) {
        let (mut at, end) = (at, at + bytes);
        while at < end {
            let n = (64 - at % 64).min(end - at);
            let bits = u64::MAX >> (64 - n) << (at % 64);
            f(&mut self.0[(at / 64) as usize], bits);
            at += n;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_counted_across_words() {
        let mut w = Written::new(256);
        w.set(60, 72, true);
        assert_eq!((w.write(60, 72), w.write(59, 2)), (0, 1));
        assert_eq!((w.write(128, 8), w.write(0, 256)), (4, 179));
        assert!(w.has(64, 64) && w.has(127, 1));
        w.set(64, 64, false);
        assert!(w.has(60, 4) && !w.has(64, 1));
        assert_eq!((w.write(60, 72), w.write(60, 72)), (64, 0));
    }
}
