//! The allocations of a GPU memory by address: what an address that is wrong lies next to.

use std::collections::{BTreeMap, VecDeque};

use crate::hooks::grouped;

/// Freed allocations that are remembered.
const REMEMBERED: usize = 1024;

/// Bytes from which an address has nothing to do with an allocation.
const FAR: u64 = 1 << 32;

/// What is allocated, and what was freed lately.
#[derive(Debug, Default)]
pub struct Allocations {
    live: BTreeMap<u64, Allocation>,
    freed: VecDeque<(u64, Allocation)>,
}

#[derive(Debug, Clone)]
struct Allocation {
    bytes: u64,
    /// First byte of the allocation that it is a part of.
    owner: u64,
    /// A variable's name.
    name: Option<String>,
}

impl Allocation {
    fn describe(&self, at: u64, freed: bool) -> String {
        let bytes = grouped(self.bytes);
        let allocated = if freed {
            "that were allocated"
        } else {
            "allocated"
        };
        match &self.name {
            Some(name) => format!("variable `{name}` of {bytes} bytes at {at:#x}"),
            None => format!("the {bytes} bytes {allocated} at {at:#x}"),
        }
    }
}

impl Allocations {
    /// Memory was allocated.
    pub fn add(&mut self, address: u64, bytes: u64) {
        self.insert(address, bytes, address, None);
    }

    /// A variable's place in memory that is freed by its first byte, `owner`.
    pub fn add_variable(&mut self, owner: u64, address: u64, bytes: u64, name: &str) {
        self.insert(address, bytes, owner, Some(name.to_owned()));
    }

    fn insert(&mut self, address: u64, bytes: u64, owner: u64, name: Option<String>) {
        let end = address.saturating_add(bytes);
        self.freed
            .retain(|(at, a)| *at >= end || at + a.bytes <= address);
        let allocation = Allocation { bytes, owner, name };
        self.live.insert(address, allocation);
    }

    /// Memory was freed that began at this address; returns its parts, as first byte and length.
    pub fn remove(&mut self, owner: u64) -> Vec<(u64, u64)> {
        let parts = self.live.range(owner..);
        let parts = parts.take_while(|(_, a)| a.owner == owner);
        let parts: Vec<(u64, u64)> = parts.map(|(at, a)| (*at, a.bytes)).collect();
        for (at, _) in &parts {
            if let Some(a) = self.live.remove(at) {
                if self.freed.len() == REMEMBERED {
                    self.freed.pop_front();
                }
                self.freed.push_back((*at, a));
            }
        }
        parts
    }

    /// Bytes from an address to the end of its allocation; 0 if it is in none.
    pub fn rest(&self, address: u64) -> u64 {
        let below = self.live.range(..=address).next_back();
        below.map_or(0, |(at, a)| a.bytes.saturating_sub(address - at))
    }

    /// Where an address lies: in freed memory, or how far from the nearest allocation.
    pub fn nearest(&self, address: u64) -> Option<String> {
        let old = self.freed.iter().rev();
        let mut old = old.filter(|(at, a)| address.wrapping_sub(*at) < a.bytes);
        if let Some((at, a)) = old.next() {
            let offset = grouped(address - at);
            let what = a.describe(*at, true);
            return Some(format!("{offset} bytes into {what} and freed since"));
        }
        let below = self.live.range(..=address).next_back();
        let above = self.live.range(address..).next();
        let behind = below.map(|(at, a)| (address - at, *at, a));
        if let Some((offset, at, a)) = behind.filter(|(offset, _, a)| *offset < a.bytes) {
            let what = a.describe(at, false);
            return Some(format!("{} bytes into {what}", grouped(offset)));
        }
        let behind = behind.map(|(offset, at, a)| (offset - a.bytes, at, a));
        let before = above.map(|(at, a)| (at - address, *at, a));
        let (how, (distance, at, a)) = match (behind, before) {
            (Some(b), before) if before.is_none_or(|f| b.0 <= f.0) => ("behind", b),
            (_, Some(f)) => ("before", f),
            _ => return Some("nothing is allocated".to_owned()),
        };
        let (distance, what) = (Some(distance).filter(|d| *d < FAR)?, a.describe(at, false));
        Some(format!("{} bytes {how} {what}", grouped(distance)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_described_by_its_nearest_allocation() {
        let mut a = Allocations::default();
        assert_eq!(a.nearest(5).unwrap(), "nothing is allocated");
        a.add(0x10000, 4096);
        a.add(0x20000, 16);
        let first = "the 4,096 bytes allocated at 0x10000";
        assert_eq!(
            a.nearest(0x11000).unwrap(),
            format!("0 bytes behind {first}")
        );
        assert_eq!(
            a.nearest(0x10fff).unwrap(),
            format!("4,095 bytes into {first}")
        );
        assert_eq!(
            a.nearest(0x1fffc).unwrap(),
            "4 bytes before the 16 bytes allocated at 0x20000"
        );
        assert_eq!(a.remove(0x10000), [(0x10000, 4096)]);
        assert_eq!(
            a.nearest(0x10010).unwrap(),
            "16 bytes into the 4,096 bytes that were allocated at 0x10000 and freed since"
        );
        a.add_variable(0x10000, 0x10000, 8, "low");
        a.add_variable(0x10000, 0x10020, 8, "high");
        assert_eq!(
            a.nearest(0x1000c).unwrap(),
            "4 bytes behind variable `low` of 8 bytes at 0x10000"
        );
        assert_eq!(a.remove(0x10000), [(0x10000, 8), (0x10020, 8)]);
    }
}
