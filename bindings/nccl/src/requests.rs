//! Requests of a communicator: a fixed number of places, and numbers that tell a stale request from
//! a live one.

use ringbell::parts::nic_core::slab::Slab;

use crate::failure::Failure;
use crate::table::REQUEST_BITS;

/// Bits of a request's number that are its place.
const PLACE_BITS: u32 = 9;
const LAST_GENERATION: u32 = (1 << (REQUEST_BITS - PLACE_BITS)) - 1;

/// Requests that carry a `T` each. No number is 0.
#[derive(Debug)]
pub(crate) struct Requests<T>(Slab<T, PLACE_BITS, 1, LAST_GENERATION>);

impl<T> Requests<T> {
    pub(crate) fn new(most: usize) -> Requests<T> {
        Requests(Slab::new(most))
    }

    pub(crate) fn is_full(&self) -> bool {
        self.0.next().is_none()
    }

    /// The number of a new one; `None` when there are too many.
    pub(crate) fn insert(&mut self, value: T) -> Option<u64> {
        self.0.insert(value).map(u64::from)
    }

    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        self.0.get_mut(u32::try_from(number).ok()?)
    }

    /// Ends one.
    pub(crate) fn remove(&mut self, number: u64) -> Option<T> {
        self.0.remove(u32::try_from(number).ok()?)
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
        assert!(all.remove(a).is_none() && !all.is_full());
        for _ in 0..2 * LAST_GENERATION {
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
