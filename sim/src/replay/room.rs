//! Memory of a rank for messages that come straight to it: the first free range that fits.

/// Ranges begin at multiples of this.
const ALIGN: u64 = 64;

#[derive(Debug)]
pub(super) struct Room {
    /// Free ranges by their begin: begin and end.
    free: Vec<(u64, u64)>,
}

impl Room {
    /// The bytes from one address to another.
    pub(super) fn new(begin: u64, end: u64) -> Room {
        let free = vec![(begin.next_multiple_of(ALIGN), end)];
        Room { free }
    }

    /// Bytes that a message takes of it.
    pub(super) fn needed(bytes: u64) -> u64 {
        bytes.max(1).next_multiple_of(ALIGN)
    }

    /// The begin of a free range.
    pub(super) fn take(&mut self, bytes: u64) -> Option<u64> {
        let needed = Room::needed(bytes);
        let fits = |(begin, end): &(u64, u64)| end.saturating_sub(*begin) >= needed;
        let i = self.free.iter().position(fits)?;
        let at = self.free[i].0;
        self.free[i].0 += needed;
        Some(at)
    }

    /// A range is free again.
    pub(super) fn give_back(&mut self, at: u64, bytes: u64) {
        let end = at + Room::needed(bytes);
        let i = self.free.partition_point(|f| f.0 < at);
        self.free.insert(i, (at, end));
        self.free.retain(|f| f.0 < f.1);
        self.free.dedup_by(|next, last| {
            let joins = last.1 == next.0;
            if joins {
                last.1 = next.1;
            }
            joins
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::mix;

    #[test]
    fn ranges_do_not_overlap_and_all_come_back() {
        let mut room = Room::new(4096, 4096 + 10_000);
        let mut taken: Vec<(u64, u64)> = Vec::new();
        let mut refused = 0;
        for i in 0..4_000 {
            let draw = mix(i);
            if draw.is_multiple_of(2) && !taken.is_empty() {
                let (at, bytes) = taken.swap_remove(draw as usize / 2 % taken.len());
                room.give_back(at, bytes);
                continue;
            }
            let bytes = draw / 2 % 1_500;
            let Some(at) = room.take(bytes) else {
                refused += 1;
                continue;
            };
            assert!(at >= 4096 && at + bytes <= 14_096, "{at}");
            let apart = |o: &(u64, u64)| at + bytes.max(1) <= o.0 || o.0 + o.1.max(1) <= at;
            assert!(taken.iter().all(apart), "{at} {bytes}: {taken:?}");
            taken.push((at, bytes));
        }
        assert!(refused > 10, "it was never full");
        for (at, bytes) in taken {
            room.give_back(at, bytes);
        }
        assert_eq!(room.take(9_900), Some(4096));
    }
}
