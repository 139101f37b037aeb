//! A table whose values have numbers that go stale.
//!
//! A number is the index of a slot (low bits) and the slot's generation (above). Taking a value out
//! gives its slot the next generation, so that the old number finds nothing although the slot is in
//! use again. Numbers stand in descriptors, frames and events, so each table chooses how many bits
//! index and generation have.

/// No slot.
const NIL: u32 = u32::MAX;

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    /// The next empty slot, while this one is empty.
    next: u32,
    value: Option<T>,
}

/// A growing table. `INDEX` bits of a number are the index; generations go round from `FIRST` to
/// `LAST`. With a `FIRST` above 0 no number is 0.
#[derive(Debug)]
pub struct Slab<
    T,
    const INDEX: u32 = 18,
    const FIRST: u32 = 1,
    const LAST: u32 = { u32::MAX >> 18 },
> {
    slots: Vec<Slot<T>>,
    /// First and last empty slot.
    free: u32,
    last_free: u32,
    len: usize,
    limit: usize,
    /// New slots are used first, then the one that has been empty for longest.
    spreads: bool,
}

impl<T, const I: u32, const F: u32, const L: u32> Default for Slab<T, I, F, L> {
    /// A table that is limited by the bits of its index.
    fn default() -> Self {
        Slab::new(1 << I)
    }
}

impl<T, const INDEX: u32, const FIRST: u32, const LAST: u32> Slab<T, INDEX, FIRST, LAST> {
    /// A table of at most `limit` values, which uses as few slots as it can.
    pub fn new(limit: usize) -> Self {
        Slab {
            slots: Vec::new(),
            free: NIL,
            last_free: NIL,
            len: 0,
            limit: limit.min(1 << INDEX),
            spreads: false,
        }
    }

    /// A table of at most `limit` values, whose numbers come back as late as possible.
    pub fn spread(limit: usize) -> Self {
        Slab {
            spreads: true,
            ..Slab::new(limit)
        }
    }

    /// The index in a number.
    #[inline]
    pub fn index_of(number: u32) -> usize {
        (number & ((1 << INDEX) - 1)) as usize
    }

    /// How many values there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Most values.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// The indices of all slots, used or not.
    pub fn indices(&self) -> std::ops::Range<usize> {
        0..self.slots.len()
    }

    /// Adds a value; `None` at the limit.
    // Inlined, so that a value is written where it stays.
    #[inline(always)]
    pub fn insert(&mut self, value: T) -> Option<u32> {
        self.insert_with(|_| value)
    }

    /// Adds a value that is made for its number; `None` at the limit.
    #[inline(always)]
    pub fn insert_with(&mut self, make: impl FnOnce(u32) -> T) -> Option<u32> {
        let index = self.next()?;
        match self.slots.get(index) {
            Some(slot) => self.free = slot.next,
            None => self.grow(),
        }
        self.len += 1;
        let slot = &mut self.slots[index];
        let number = index as u32 | slot.generation << INDEX;
        slot.value = Some(make(number));
        Some(number)
    }

    /// The index that the next value gets; `None` at the limit.
    #[inline]
    pub fn next(&self) -> Option<usize> {
        let may_grow = self.slots.len() < self.limit;
        match self.free {
            free if free != NIL && !(self.spreads && may_grow) => Some(free as usize),
            _ => may_grow.then_some(self.slots.len()),
        }
    }

    // Apart, so that what is inlined stays short.
    #[cold]
    fn grow(&mut self) {
        self.slots.push(Slot {
            generation: FIRST,
            next: NIL,
            value: None,
        });
    }

    /// The index of a number that is not stale. Its slot may be empty.
    #[inline]
    fn index(&self, number: u32) -> Option<usize> {
        let index = Self::index_of(number);
        let slot = self.slots.get(index)?;
        (slot.generation == number >> INDEX).then_some(index)
    }

    /// The value of a number, unless it is stale.
    #[inline]
    pub fn get(&self, number: u32) -> Option<&T> {
        self.slots[self.index(number)?].value.as_ref()
    }

    /// As [`Slab::get`], to change.
    #[inline]
    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        let index = self.index(number)?;
        self.slots[index].value.as_mut()
    }

    /// The value at an index.
    #[inline]
    pub fn at(&self, index: usize) -> Option<&T> {
        self.slots.get(index)?.value.as_ref()
    }

    /// As [`Slab::at`], to change.
    #[inline]
    pub fn at_mut(&mut self, index: usize) -> Option<&mut T> {
        self.slots.get_mut(index)?.value.as_mut()
    }

    /// The values at two indices, which differ.
    pub fn both_at(&mut self, a: usize, b: usize) -> [Option<&mut T>; 2] {
        match self.slots.get_disjoint_mut([a, b]) {
            Ok(both) => both.map(|slot| slot.value.as_mut()),
            Err(_) => [None, None],
        }
    }

    /// The number of the value at an index; of an empty slot, that of its next value.
    pub fn number_at(&self, index: usize) -> u32 {
        let generation = self.slots.get(index).map_or(FIRST, |s| s.generation);
        index as u32 | generation << INDEX
    }

    /// Takes a value out for a call, so that it is borrowed apart from the others. Its number
    /// stays.
    #[inline]
    pub fn lend(&mut self, number: u32) -> Option<T> {
        let index = self.index(number)?;
        self.slots[index].value.take()
    }

    /// Gives back what [`Slab::lend`] has taken.
    #[inline]
    pub fn give_back(&mut self, number: u32, value: T) {
        if let Some(index) = self.index(number) {
            self.slots[index].value = Some(value);
        }
    }

    /// Takes a value out; its number is stale from then on.
    pub fn remove(&mut self, number: u32) -> Option<T> {
        let index = self.index(number)?;
        self.remove_at(index)
    }

    /// As [`Slab::remove`], by the index.
    pub fn remove_at(&mut self, index: usize) -> Option<T> {
        let value = self.slots.get_mut(index)?.value.take()?;
        self.renew(index);
        Some(value)
    }

    /// The same for a value that is not used any more: it is dropped where it is.
    pub fn free(&mut self, number: u32) {
        let used = |i: &usize| self.slots[*i].value.is_some();
        if let Some(index) = self.index(number).filter(used) {
            self.slots[index].value = None;
            self.renew(index);
        }
    }

    /// An empty slot gets its next generation.
    fn renew(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        let last = slot.generation == LAST;
        slot.generation = if last { FIRST } else { slot.generation + 1 };
        slot.next = NIL;
        let index = index as u32;
        if self.free == NIL {
            (self.free, self.last_free) = (index, index);
        } else if self.spreads {
            self.slots[self.last_free as usize].next = index;
            self.last_free = index;
        } else {
            self.slots[index as usize].next = self.free;
            self.free = index;
        }
        self.len -= 1;
    }

    /// All values with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.slots.iter().enumerate().filter_map(|(i, s)| {
            let value = s.value.as_ref()?;
            Some((i as u32 | s.generation << INDEX, value))
        })
    }

    /// As [`Slab::iter`], to change.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        self.slots.iter_mut().enumerate().filter_map(|(i, s)| {
            let value = s.value.as_mut()?;
            Some((i as u32 | s.generation << INDEX, value))
        })
    }

    /// Numbers of the values that match.
    pub fn ids(&self, mut matches: impl FnMut(&T) -> bool) -> Vec<u32> {
        let of = self.iter().filter(|(_, v)| matches(v));
        of.map(|(id, _)| id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_ids_are_not_reused_at_once() {
        let mut s = Slab::<u32>::default();
        let mut old = Vec::new();
        for round in 0..40_000u32 {
            let id = s.insert(round).expect("room");
            assert_ne!(id, 0);
            assert_eq!(s.get(id), Some(&round));
            assert!(!old.contains(&id), "round {round}");
            assert!(!s.is_empty());
            match round % 2 {
                0 => assert_eq!(s.remove(id), Some(round)),
                _ => s.free(id),
            }
            // A second time, and for a number that is not given out yet.
            s.free(id);
            s.free(id.wrapping_add(1 << 18));
            assert!(s.is_empty());
            assert_eq!(s.get_mut(id), None);
            old.push(id);
            if old.len() > 1000 {
                old.remove(0);
            }
        }
        let (a, b) = (s.insert(1).expect("room"), s.insert(2).expect("room"));
        assert!(a != b && s.ids(|v| *v == 2) == [b]);
    }

    /// Beside a model that keeps every number it has seen: a list of what is there, by number.
    #[test]
    fn a_table_does_what_a_map_of_numbers_does() {
        for spreads in [false, true] {
            let mut s: Slab<u64, 3, 0, 2> = match spreads {
                true => Slab::spread(5),
                false => Slab::new(5),
            };
            let mut model = std::collections::BTreeMap::new();
            let (mut random, mut freed) = (7_u64, std::collections::VecDeque::new());
            for round in 0..10_000 {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let number = (random >> 33) as u32 % 24;
                match random >> 60 {
                    0..8 => {
                        let added = s.insert(round);
                        assert_eq!(added.is_none(), model.len() == 5);
                        let Some(added) = added else { continue };
                        assert_eq!(model.insert(added, round), None);
                        if spreads && freed.len() + model.len() > 5 {
                            assert_eq!(freed.pop_front(), Some(added & 7), "the oldest");
                        }
                    }
                    8..11 => {
                        assert_eq!(
                            s.remove(number),
                            model.remove(&number).inspect(|_| {
                                freed.push_back(number & 7);
                            })
                        );
                    }
                    11..14 => {
                        let lent = s.lend(number);
                        assert_eq!(lent, model.get(&number).copied());
                        assert_eq!(s.get(number), None);
                        if let Some(value) = lent {
                            s.give_back(number, value);
                        }
                    }
                    _ => assert_eq!(s.get_mut(number).copied(), model.get(&number).copied()),
                }
                assert_eq!(s.len(), model.len());
                assert!(s.iter().map(|(n, v)| (n, *v)).eq({
                    let mut all: Vec<_> = model.clone().into_iter().collect();
                    all.sort_by_key(|(n, _)| n & 7);
                    all
                }));
            }
        }
    }
}
