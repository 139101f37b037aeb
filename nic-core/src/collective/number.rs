//! Numbers of collectives: which operation of its communicator a message belongs to.
//!
//! Every rank counts its collectives, and equal numbers are one operation. A streamed one may name
//! a *port* (SMI §2.2). Each port counts on its own, so that kernels that know nothing of each
//! other may post operations of different ports in any order. Port 0 is that of all others.

/// Where the bits of a message's tag begin that name its operation. The highest of 22 is that of a
/// port's; its port is below, if it has one, and the lower bits of the count.
const TAG_SHIFT: u32 = 41;
/// The mark of a port other than 0, in those bits.
const PORT_IN_TAG: u32 = 1 << 21;
/// The same in a word.
const PORT_IN_WORD: u32 = 1 << 31;
/// Bits of a port.
const PORT_BITS: u32 = 8;

/// Port and count in one word. Counts wrap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Number(u32);

/// The lowest bits of a word.
fn low(bits: u32) -> u32 {
    (1 << bits) - 1
}

impl Number {
    /// The first of a port.
    pub(crate) fn first(port: u8) -> Number {
        match port {
            0 => Number(0),
            p => Number(PORT_IN_WORD | u32::from(p) << (31 - PORT_BITS)),
        }
    }

    /// Its port.
    #[inline]
    pub(crate) fn port(self) -> u8 {
        match self.0 & PORT_IN_WORD {
            0 => 0,
            _ => (self.0 >> (31 - PORT_BITS)) as u8,
        }
    }

    /// Bits of its count, in a word and in a tag.
    #[inline]
    fn bits(self) -> (u32, u32) {
        match self.0 & PORT_IN_WORD {
            0 => (31, 21),
            _ => (31 - PORT_BITS, 21 - PORT_BITS),
        }
    }

    #[inline]
    fn with(self, count: u32) -> Number {
        let mask = low(self.bits().0);
        Number(self.0 & !mask | count & mask)
    }

    /// The next of its port.
    #[inline]
    pub(crate) fn next(self) -> Number {
        self.with(self.0.wrapping_add(1))
    }

    /// Whether it comes before another of its port: by less than half of all.
    pub(crate) fn is_before(self, other: Number) -> bool {
        let apart = other.0.wrapping_sub(self.0) << (32 - self.bits().0);
        self.port() == other.port() && apart as i32 > 0
    }

    /// As frames carry it.
    pub(crate) fn word(self) -> u32 {
        self.0
    }

    /// Back from a frame.
    pub(crate) fn from_word(word: u32) -> Number {
        Number(word)
    }

    fn in_tag(self) -> u32 {
        let count = self.0 & low(self.bits().1);
        match self.port() {
            0 => count,
            p => PORT_IN_TAG | u32::from(p) << (21 - PORT_BITS) | count,
        }
    }

    /// The part of a tag that names it.
    pub(crate) fn tag(self) -> u64 {
        u64::from(self.in_tag()) << TAG_SHIFT
    }

    /// Whether a tag names it.
    pub(crate) fn is_in(self, tag: u64) -> bool {
        tag >> TAG_SHIFT == u64::from(self.in_tag())
    }

    /// The operation of a tag, when it was posted before this one of its port. A rank may be ahead
    /// by more than it may be behind: by what it has begun, and what its peers have buffered.
    pub(crate) fn earlier(self, tag: u64) -> Option<Number> {
        let mask = low(self.bits().1);
        let apart = self.0.wrapping_sub((tag >> TAG_SHIFT) as u32) & mask;
        let is = apart > 0 && apart < mask / 4 && port_of(tag) == self.port();
        is.then(|| self.with(self.0.wrapping_sub(apart)))
    }

    /// Whether it may begin while an earlier one of its port, as small as ports' tags are, is under
    /// way: with 4,096 more in a peer's buffers all tags still differ.
    pub(crate) fn is_near(self, earlier: Number) -> bool {
        self.0.wrapping_sub(earlier.0) & low(self.bits().0) < 1024
    }
}

/// The port that a tag names.
pub(crate) fn port_of(tag: u64) -> u8 {
    let bits = (tag >> TAG_SHIFT) as u32;
    match bits & PORT_IN_TAG {
        0 => 0,
        _ => (bits >> (21 - PORT_BITS)) as u8,
    }
}

/// The next number of every port of a communicator.
#[derive(Debug)]
pub(crate) struct Numbers {
    /// Of port 0.
    next: Number,
    /// Of the others that have had any: few.
    ports: Vec<Number>,
}

impl Default for Numbers {
    fn default() -> Numbers {
        Numbers {
            next: Number::first(0),
            ports: Vec::new(),
        }
    }
}

impl Numbers {
    /// The next of a port.
    pub(crate) fn next(&self, port: u8) -> Number {
        match port {
            0 => self.next,
            p => {
                let known = self.ports.iter().find(|n| n.port() == p);
                known.copied().unwrap_or(Number::first(p))
            }
        }
    }

    /// Gives an operation its number.
    #[inline]
    pub(crate) fn take(&mut self, port: u8) -> Number {
        if port == 0 {
            let next = self.next.next();
            return std::mem::replace(&mut self.next, next);
        }
        let number = self.next(port);
        match self.ports.iter_mut().find(|n| n.port() == port) {
            Some(n) => *n = n.next(),
            None => self.ports.push(number.next()),
        }
        number
    }
}

/// A set of ports.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Ports([u64; 4]);

impl Ports {
    pub(crate) fn add(&mut self, port: u8) {
        self.0[usize::from(port / 64)] |= 1 << (port % 64);
    }

    pub(crate) fn has(&self, port: u8) -> bool {
        self.0[usize::from(port / 64)] >> (port % 64) & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Around the places where counts wrap, of several ports.
    fn some() -> Vec<Number> {
        let mut all = Vec::new();
        for port in [0, 1, 7, 128, 255] {
            let first = Number::first(port);
            for count in [
                0,
                1,
                4095,
                8191,
                8192,
                (1 << 21) - 1,
                1 << 21,
                u32::MAX - 1,
                u32::MAX,
            ] {
                all.push(first.with(count));
            }
        }
        all
    }

    #[test]
    fn a_tag_names_the_numbers_of_its_port_alone() {
        for n in some() {
            let others = 0x1ff_ffff_ffff;
            for tag in [n.tag(), n.tag() | others] {
                assert_eq!(tag >> 63, 0, "{n:?}: the tag of a user");
                assert_eq!(port_of(tag), n.port());
                assert!(n.is_in(tag));
                assert!(!n.next().is_in(tag) && !n.is_in(tag | 1 << 63));
                assert_eq!(n.next().earlier(tag), Some(n));
                assert_eq!(n.next().next().next().earlier(tag), Some(n));
                assert_eq!(n.earlier(tag), None, "{n:?}: not before itself");
                assert_eq!(n.earlier(n.next().tag()), None);
            }
            assert_eq!(Number::from_word(n.word()), n);
            assert_eq!(n.next().port(), n.port());
            for m in some().iter().filter(|m| m.port() != n.port()) {
                assert!(!m.is_in(n.tag()) && m.earlier(n.tag()).is_none());
                assert!(!m.is_before(n));
            }
            assert!(n.next().is_near(n) && n.with(n.0.wrapping_add(1023)).is_near(n));
            assert!(!n.with(n.0.wrapping_add(1024)).is_near(n));
            assert!(n.is_before(n.next()) && !n.next().is_before(n) && !n.is_before(n));
        }
    }

    #[test]
    fn ports_count_on_their_own() {
        let mut all = Numbers::default();
        for round in 0..3 {
            for port in [0, 9, 255, 1] {
                let number = all.take(port);
                assert_eq!(number, Number::first(port).with(round));
                assert_eq!(all.next(port), number.next());
                assert_eq!(number.port(), port);
            }
        }
        assert_eq!(all.next(77), Number::first(77));
    }

    #[test]
    fn a_set_has_the_ports_that_were_added() {
        let mut set = Ports::default();
        for port in [0, 63, 64, 200, 255] {
            assert!(!set.has(port));
            set.add(port);
        }
        let all: Vec<u8> = (0..=255).filter(|p| set.has(*p)).collect();
        assert_eq!(all, [0, 63, 64, 200, 255]);
    }
}
