//! Windows: the range of addresses that each GTLB instance serves.
//!
//! A window is a run of consecutive groups, at most as many as the GTLB has main entries. Windows
//! never overlap, so an address belongs to one instance. They grow as memory is mapped: 80 GB in
//! one allocation fills three instances of 32 GiB, and two allocations that lie near each other
//! share one.

/// Consecutive groups that one instance serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct GtlbWindow {
    /// First group.
    pub(crate) first: u64,
    /// Number of groups; 0 when the instance is unused.
    pub(crate) count: u64,
}

impl GtlbWindow {
    /// Whether the group lies inside.
    #[inline]
    pub(crate) fn contains(&self, group: u64) -> bool {
        group.wrapping_sub(self.first) < self.count
    }

    fn end(&self) -> u64 {
        self.first + self.count
    }

    fn overlaps(&self, other: &GtlbWindow) -> bool {
        self.count > 0 && other.count > 0 && self.first < other.end() && other.first < self.end()
    }
}

/// The instance whose window holds the group.
#[inline]
pub(crate) fn find(windows: &[GtlbWindow], group: u64) -> Option<usize> {
    windows.iter().position(|w| w.contains(group))
}

/// Whether `window` may be given to `instance` without overlapping another.
pub(crate) fn fits(windows: &[GtlbWindow], instance: usize, window: &GtlbWindow) -> bool {
    windows
        .iter()
        .enumerate()
        .all(|(i, other)| i == instance || !other.overlaps(window))
}

/// Grows windows over the groups `first..end`. Returns the first group that no instance can take.
///
/// `sizes` are the main entries of each instance. Neighbours are extended before an unused instance
/// is taken, so that many small allocations do not use them up.
pub(crate) fn claim(
    windows: &mut [GtlbWindow],
    sizes: &[u64],
    first: u64,
    end: u64,
) -> Result<(), u64> {
    let mut group = first;
    while group < end {
        if let Some(i) = find(windows, group) {
            group = windows[i].end().min(end);
            continue;
        }
        // Up to the next window above.
        let limit = windows
            .iter()
            .filter(|w| w.count > 0 && w.first > group)
            .map(|w| w.first)
            .min()
            .unwrap_or(u64::MAX)
            .min(end);
        let grown = (0..windows.len())
            .filter(|i| windows[*i].count > 0)
            .chain((0..windows.len()).filter(|i| windows[*i].count == 0))
            .find_map(|i| grow(windows, sizes, i, group, limit).map(|w| (i, w)));
        let Some((i, window)) = grown else {
            return Err(group);
        };
        windows[i] = window;
    }
    Ok(())
}

/// The window of `instance` grown to hold `group`, and as many up to `limit` as it has entries for.
fn grow(
    windows: &[GtlbWindow],
    sizes: &[u64],
    instance: usize,
    group: u64,
    limit: u64,
) -> Option<GtlbWindow> {
    let old = windows[instance];
    let size = sizes[instance];
    let first = if old.count == 0 {
        group
    } else {
        old.first.min(group)
    };
    let end = if old.count > 0 && old.first > group {
        old.end()
    } else {
        limit.min(first.saturating_add(size))
    };
    let window = GtlbWindow {
        first,
        count: end.checked_sub(first)?,
    };
    (window.count <= size && window.contains(group) && fits(windows, instance, &window))
        .then_some(window)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eighty_gigabytes_fill_three_windows() {
        let mut windows = [GtlbWindow::default(); 3];
        let groups = 80_000_000_000u64.div_ceil(2 << 20);
        claim(&mut windows, &[16_384; 3], 5, 5 + groups).unwrap();
        assert_eq!(
            windows[0],
            GtlbWindow {
                first: 5,
                count: 16_384
            }
        );
        assert_eq!(windows.iter().map(|w| w.count).sum::<u64>(), groups);
        assert!((5..5 + groups).all(|g| find(&windows, g).is_some()));
        assert_eq!(find(&windows, 4), None);
        assert_eq!(find(&windows, 5 + groups), None);
    }

    #[test]
    fn neighbours_share_a_window_downwards_and_upwards() {
        let mut windows = [GtlbWindow::default(); 2];
        for group in [100, 90, 105] {
            claim(&mut windows, &[16; 2], group, group + 1).unwrap();
        }
        assert_eq!(
            windows[0],
            GtlbWindow {
                first: 90,
                count: 16
            }
        );
        assert_eq!(windows[1].count, 0);
        claim(&mut windows, &[16; 2], 89, 90).unwrap();
        assert_eq!(
            windows[1],
            GtlbWindow {
                first: 89,
                count: 1
            }
        );
    }

    #[test]
    fn the_first_group_that_fits_nowhere_is_named() {
        let mut windows = [GtlbWindow::default(); 2];
        assert_eq!(claim(&mut windows, &[4; 2], 10, 19), Err(18));
    }

    #[test]
    fn windows_never_overlap() {
        let mut windows = [GtlbWindow::default(); 3];
        for (first, end) in [(50, 60), (20, 30), (30, 50), (0, 5)] {
            let _ = claim(&mut windows, &[32; 3], first, end);
            for (i, w) in windows.iter().enumerate() {
                assert!(fits(&windows, i, w), "{windows:?}");
                assert!(w.count <= 32);
            }
        }
    }
}
