//! The number of messages that a call to the kernel asks for.
//!
//! A call for several costs a quarter more than one for a single message, even when there is only
//! one. So a port asks for one while messages come one by one, and tries several when two calls in
//! a row have found one. A try in vain is repeated after twice as many messages as the last time.

use super::socket::MESSAGES;

/// Most messages between two tries.
const PATIENCE_MAX: u32 = 64;

/// See the module text.
#[derive(Debug)]
pub(super) struct Asks {
    /// How many messages the next call asks for.
    pub(super) next: usize,
    /// The last call has found a message.
    found: bool,
    /// Messages from a try in vain to the next try, and those that are left of them.
    patience: u32,
    left: u32,
}

impl Asks {
    pub(super) fn new() -> Asks {
        Asks {
            next: 1,
            found: false,
            patience: 1,
            left: 0,
        }
    }

    /// The call has found so many.
    #[inline]
    pub(super) fn answered(&mut self, count: usize) {
        let (tried, found_before) = (self.next > 1, self.found);
        self.found = count > 0;
        self.next = 1;
        match count {
            0 => {}
            1 if tried => {
                self.left = self.patience;
                self.patience = (2 * self.patience).min(PATIENCE_MAX);
            }
            1 if self.left > 0 => self.left -= 1,
            1 if found_before => self.next = MESSAGES,
            1 => {}
            _ => (self.next, self.patience) = (MESSAGES, 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many calls out of `calls` ask for several when each finds as many as `finds` says.
    fn tries(calls: usize, mut finds: impl FnMut(usize, usize) -> usize) -> usize {
        let (mut asks, mut tries) = (Asks::new(), 0);
        for call in 0..calls {
            tries += usize::from(asks.next > 1);
            let found = finds(call, asks.next);
            asks.answered(found);
        }
        tries
    }

    #[test]
    fn single_messages_are_seldom_taken_for_several() {
        assert_eq!(tries(1000, |_, _| 0), 0);
        // Between two empty calls nothing is tried at all.
        assert_eq!(tries(1000, |call, _| call % 2), 0);
        let one_by_one = tries(1000, |_, _| 1);
        assert!((1..=30).contains(&one_by_one), "{one_by_one}");
    }

    #[test]
    fn a_full_queue_is_taken_by_several_from_the_third_call_on() {
        assert_eq!(tries(1000, |_, asked| asked), 998);
        // As before after messages that came one by one.
        let later = tries(2000, |call, asked| if call < 1000 { 1 } else { asked });
        assert!(later > 900, "{later}");
    }
}
