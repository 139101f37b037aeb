//! Times of repeated work, and their statistics.

/// Times of repeated work, in nanoseconds.
#[derive(Debug, Clone, Default)]
pub struct Samples {
    sorted: bool,
    nanoseconds: Vec<f64>,
}

impl Samples {
    /// Room for `n` samples, so that adding one does not allocate.
    pub fn with_capacity(n: usize) -> Samples {
        Samples {
            sorted: false,
            nanoseconds: Vec::with_capacity(n),
        }
    }

    /// Adds one time.
    pub fn push(&mut self, nanoseconds: f64) {
        self.sorted = false;
        self.nanoseconds.push(nanoseconds);
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        self.nanoseconds.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.nanoseconds.is_empty()
    }

    /// The smallest sample that at least `p` percent of the samples do not exceed (nearest rank);
    /// 0 without samples.
    pub fn percentile(&mut self, p: f64) -> f64 {
        if self.is_empty() {
            return 0.0;
        }
        if !self.sorted {
            self.nanoseconds.sort_by(f64::total_cmp);
            self.sorted = true;
        }
        let rank = (p / 100.0 * self.len() as f64).ceil() as usize;
        self.nanoseconds[rank.clamp(1, self.len()) - 1]
    }

    /// The mean; 0 without samples.
    pub fn mean(&self) -> f64 {
        self.nanoseconds.iter().sum::<f64>() / self.len().max(1) as f64
    }

    /// The median.
    pub fn median(&mut self) -> f64 {
        self.percentile(50.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_samples() {
        let mut s = Samples::with_capacity(100);
        assert_eq!(s.median(), 0.0);
        for i in (1..=100).rev() {
            s.push(f64::from(i));
        }
        assert_eq!(s.median(), 50.0);
        assert_eq!(s.mean(), 50.5);
        assert_eq!(s.percentile(99.0), 99.0);
        assert_eq!(s.percentile(100.0), 100.0);
        assert_eq!(s.percentile(0.0), 1.0);
        s.push(0.5);
        assert_eq!(s.percentile(0.0), 0.5);
    }
}
