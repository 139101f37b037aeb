//! What the loops of a kernel wait for, as its code says it.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::module::Compare;

/// Of one loop, for the threads that give way at one of its ends.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Wanted {
    /// The constant, or the word of the frame, as `is_word` says.
    pub(crate) value: u64,
    /// The resume point.
    pub(crate) state: u32,
    /// Site of the load.
    pub(crate) site: u32,
    /// The bits that are compared: the first, and how many.
    pub(crate) first: u32,
    pub(crate) bits: u32,
    /// A [`Relation`] as a number.
    pub(crate) relation: u32,
    pub(crate) is_word: u32,
    /// The access is a compare and swap.
    pub(crate) swaps: u32,
    pub(crate) _reserved: u32,
}

/// How a word must stand to a value so that a loop ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relation {
    /// It is the value.
    Equal,
    /// It is another.
    Different,
    /// It is less.
    Less,
    /// It is the value or less.
    AtMost,
    /// It is greater.
    Greater,
    /// It is the value or greater.
    AtLeast,
    /// The loop compares them, and what it does then is not known.
    Compared,
}

impl Relation {
    const ALL: [Relation; 7] = [
        Relation::Equal,
        Relation::Different,
        Relation::Less,
        Relation::AtMost,
        Relation::Greater,
        Relation::AtLeast,
        Relation::Compared,
    ];

    pub(crate) fn numbered(n: u32) -> Relation {
        Relation::ALL[n as usize % Relation::ALL.len()]
    }

    /// `None` for comparisons that have no name here.
    pub(crate) fn of(compare: Compare) -> Option<Relation> {
        Some(match compare {
            Compare::Eq => Relation::Equal,
            Compare::Ne => Relation::Different,
            Compare::Lt | Compare::Lo => Relation::Less,
            Compare::Le | Compare::Ls => Relation::AtMost,
            Compare::Gt | Compare::Hi => Relation::Greater,
            Compare::Ge | Compare::Hs => Relation::AtLeast,
            _ => return None,
        })
    }

    pub(crate) fn negated(self) -> Relation {
        match self {
            Relation::Equal => Relation::Different,
            Relation::Different => Relation::Equal,
            Relation::Less => Relation::AtLeast,
            Relation::AtMost => Relation::Greater,
            Relation::Greater => Relation::AtMost,
            Relation::AtLeast => Relation::Less,
            Relation::Compared => Relation::Compared,
        }
    }

    /// As seen from the value.
    pub(crate) fn turned(self) -> Relation {
        match self {
            Relation::Less => Relation::Greater,
            Relation::AtMost => Relation::AtLeast,
            Relation::Greater => Relation::Less,
            Relation::AtLeast => Relation::AtMost,
            same => same,
        }
    }
}

/// So many low bits.
pub(crate) fn ones(bits: u32) -> u64 {
    u64::MAX.checked_shr(64 - bits.min(64)).unwrap_or(0)
}
