//! Requests of a communicator: a fixed number of places, and numbers that tell a stale request from
//! a live one.

use crate::failure::Failure;
use crate::table::REQUEST_BITS;

/// Bits of a request's number that are its place.
const PLACE_BITS: u32 = 9;
const GENERATIONS: u32 = 1 << (REQUEST_BITS - PLACE_BITS);

/// Requests that carry a `T` each.
#[derive(Debug)]
pub(crate) struct Requests<T> {
    places: Vec<(u32, Option<T>)>,
    free: Vec<usize>,
}

impl<T> Requests<T> {
    pub(crate) fn new(most: usize) -> Requests<T> {
        Requests {
            places: (0..most).map(|_| (0, None)).collect(),
            free: (0..most).rev().collect(),
        }
    }

    /// How many are under way.
    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// The number of a new one; `None` when there are too many.
    pub(crate) fn insert(&mut self, value: T) -> Option<u64> {
        let place = self.free.pop()?;
        let (generation, held) = &mut self.places[place];
        // Never 0, so that no number is 0.
        *generation = (*generation + 1) % GENERATIONS;
        if *generation == 0 {
            *generation = 1;
        }
        *held = Some(value);
        Some(u64::from(*generation) << PLACE_BITS | place as u64)
    }

    fn place(&self, number: u64) -> Option<usize> {
        let place = (number & ((1 << PLACE_BITS) - 1)) as usize;
        let (generation, held) = self.places.get(place)?;
        let is_live = u64::from(*generation) == number >> PLACE_BITS && held.is_some();
        is_live.then_some(place)
    }

    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        let place = self.place(number)?;
        self.places[place].1.as_mut()
    }

    /// Ends one.
    pub(crate) fn remove(&mut self, number: u64) -> Option<T> {
        let place = self.place(number)?;
        self.free.push(place);
        self.places[place].1.take()
    }

    pub(crate) fn unknown(number: u64) -> Failure {
        Failure::argument(format!(
            "{number:#x} is no request of this communicator; was it complete before?"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_ended_is_unknown_although_its_place_is_used_again() {
        let mut all = Requests::new(2);
        let (a, b) = (
            all.insert('a').expect("room"),
            all.insert('b').expect("room"),
        );
        assert!(all.is_full() && all.insert('c').is_none());
        assert_eq!(all.remove(a), Some('a'));
        assert_eq!((all.remove(a), all.len()), (None, 1));
        for _ in 0..2 * GENERATIONS {
            let c = all.insert('c').expect("room");
            assert!(c != 0 && c < 1 << REQUEST_BITS);
            assert_eq!(all.remove(c), Some('c'));
        }
        let d = all.insert('d').expect("room");
        assert_ne!(d, a);
        assert_eq!(all.get_mut(b), Some(&mut 'b'));
        assert_eq!(all.get_mut(511), None);
    }
}
