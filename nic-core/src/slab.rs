//! A slab of entries with generation-checked numbers, which frames and events name.

/// Bits of a number that are the index; the rest is the generation.
const INDEX_BITS: u32 = 18;

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

/// A growing table. A number is an index and the generation of its slot, never 0.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab {
            slots: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Slab<T> {
    /// Adds a value; `None` when all 2^18 numbers are in use.
    // Inlined, so that a value is written where it stays.
    #[inline(always)]
    pub(crate) fn insert(&mut self, value: T) -> Option<u32> {
        let index = match self.free.pop() {
            Some(i) => i,
            None if self.slots.len() < 1 << INDEX_BITS => {
                self.slots.push(Slot {
                    generation: 1,
                    value: None,
                });
                (self.slots.len() - 1) as u32
            }
            None => return None,
        };
        let slot = &mut self.slots[index as usize];
        slot.value = Some(value);
        Some(index | slot.generation << INDEX_BITS)
    }

    /// Whether there is no value.
    pub(crate) fn is_empty(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    fn index(&self, id: u32) -> Option<usize> {
        let i = (id & ((1 << INDEX_BITS) - 1)) as usize;
        let slot = self.slots.get(i)?;
        (slot.generation == id >> INDEX_BITS).then_some(i)
    }

    /// The value of a number, unless it is stale.
    pub(crate) fn get(&self, id: u32) -> Option<&T> {
        self.slots[self.index(id)?].value.as_ref()
    }

    /// As [`Slab::get`], to change.
    pub(crate) fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        let i = self.index(id)?;
        self.slots[i].value.as_mut()
    }

    /// Takes a value out; its number is stale from then on.
    pub(crate) fn remove(&mut self, id: u32) -> Option<T> {
        let i = self.index(id)?;
        let value = self.slots[i].value.take()?;
        self.renew(i);
        Some(value)
    }

    /// The same for a value that is not used any more: it is dropped where it is.
    pub(crate) fn free(&mut self, id: u32) {
        if let Some(i) = self.index(id).filter(|i| self.slots[*i].value.is_some()) {
            self.slots[i].value = None;
            self.renew(i);
        }
    }

    /// An empty slot gets its next number.
    fn renew(&mut self, i: usize) {
        let slot = &mut self.slots[i];
        // 14 bits, and never 0.
        slot.generation = slot.generation % ((1 << (32 - INDEX_BITS)) - 1) + 1;
        self.free.push(i as u32);
    }

    /// All values with their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.slots.iter().enumerate().filter_map(|(i, s)| {
            let v = s.value.as_ref()?;
            Some((i as u32 | s.generation << INDEX_BITS, v))
        })
    }

    /// Numbers of the values that match.
    pub(crate) fn ids(&self, mut matches: impl FnMut(&T) -> bool) -> Vec<u32> {
        let of = self.iter().filter(|(_, v)| matches(v));
        of.map(|(id, _)| id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_ids_are_not_reused_at_once() {
        let mut s = Slab::default();
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
            s.free(id.wrapping_add(1 << INDEX_BITS));
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
}
