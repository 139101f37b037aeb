//! Unpredictable numbers: of queue pairs, of first packets, and of connections.

use std::hash::Hasher;

use siphasher::sip::SipHasher24;

/// A keyed sequence of numbers.
#[derive(Clone)]
pub struct Numbers {
    key: SipHasher24,
    count: u64,
}

impl std::fmt::Debug for Numbers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // No keys in logs.
        f.debug_struct("Numbers").finish_non_exhaustive()
    }
}

impl Numbers {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Numbers {
        let mut key = [0; 16];
        key[..8].copy_from_slice(&seed.to_be_bytes());
        key[8..].copy_from_slice(b"RoCE nos");
        Numbers {
            key: SipHasher24::new_with_key(&key),
            count: 0,
        }
    }

    /// The next number.
    #[inline]
    pub fn draw(&mut self) -> u64 {
        self.count += 1;
        let mut h = self.key;
        h.write_u64(self.count);
        h.finish()
    }
}
