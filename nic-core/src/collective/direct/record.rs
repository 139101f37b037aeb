//! Records: what a rank tells its peers of an operation, one line of 64 bytes and the input where
//! it is longer.
//!
//! Word 0, the *control word*, is stored last with release and validates the rest: the sequence
//! number in its upper half, the [`Shape`] in its lower. Words 1–7 depend on the shape's form:
//!
//! | form | words 1–7 |
//! |---|---|
//! | inline | the input, up to 56 bytes. The shape itself has all parameters |
//! | eager | 1: kind, type, reduction (a byte each), root (32 bits); 2: count; 3: the rest, folded. The input begins at the second line |
//! | placed | 1–3: the source buffer, 4–6: the destination; 7: flags (3 bits) and count |
//!
//! A buffer is two bus addresses (of its pages, or the first of a table), then its pages (32 bits),
//! the offset in the first (16 bits), and 16 bits with kind and type, or reduction and root.
//!
//! Equal shapes do not prove equal parameters of longer operations, so the words of the line are
//! compared too: two shapes with one hash are told apart before a byte moves. Records of another
//! shape have no meaning beyond that they differ: the ranks then exchange all parameters as
//! messages, which name the difference.
//!
//! Tables of pages are written for each operation and live as long as it does, so that no peer ever
//! holds a translation that could be stale, and nothing need be invalidated there when memory is
//! freed.

use super::pages::{Pages, INLINE_PAGES};
use super::ranks::MAX_DIRECT_RANKS;
use super::Params;
use crate::collective::params::fold;
use crate::memory::nic_memory::{Block, NicMemory, NIC_BUS};

/// How a record carries its operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Form {
    /// The input is in the record's line.
    Inline,
    /// The input follows it.
    Eager,
    /// The record says where the buffers are.
    #[default]
    Placed,
}

/// Words of a record, the control word included.
pub(super) const WORDS: usize = 8;
/// Bytes of an input that fit into the record's line.
pub(super) const INLINE_BYTES: u64 = (WORDS as u64 - 1) * 8;

/// Bits of a record's flags.
pub(super) mod flag {
    /// Peers can read the source buffer, or there is none.
    pub(in super::super) const READABLE: u8 = 1;
    /// Peers can and may write the destination buffer, or there is none.
    pub(in super::super) const WRITABLE: u8 = 2;
    /// Source and destination are the same memory, or there is only one of them.
    pub(in super::super) const IN_PLACE: u8 = 4;
}
/// Bits of all flags.
const FLAGS: u32 = 3;

/// What an operation is, in 32 bits; never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Shape(pub(super) u32);

impl Shape {
    /// An engine of the rank is to see messages.
    pub(super) const MESSAGES: u32 = 1;
    const INLINE: u32 = 1 << 31;
    const PLACED: u32 = 1 << 30;

    /// The shape of an operation. That of a short one has every parameter in bits of its own, but
    /// for the program that messages would use; otherwise it is a hash.
    pub(super) fn of(p: &Params, form: Form) -> Shape {
        let rest = fold([u64::from(p.extra), u64::from(p.algo.code())]);
        Shape(match form {
            Form::Inline => {
                debug_assert!(p.count < 64 && p.root < MAX_DIRECT_RANKS);
                Shape::INLINE
                    | u32::from(p.kind.code()) << 26
                    | u32::from(p.dtype.code()) << 22
                    | u32::from(p.op.code()) << 19
                    | p.root << 11
                    | (p.count as u32) << 5
                    | (rest & 0xf) << 1
            }
            Form::Eager | Form::Placed => {
                let hash = fold(head(p)) & (Shape::PLACED - 1) & !Shape::MESSAGES;
                match form {
                    Form::Placed => hash | Shape::PLACED,
                    _ => hash.max(2),
                }
            }
        })
    }

    /// Whether a peer's is the same but for its engines.
    #[inline]
    pub(super) fn agrees(self, theirs: Shape) -> bool {
        (self.0 ^ theirs.0) & !Shape::MESSAGES == 0
    }

    /// Whether an engine of the rank is to see messages.
    #[inline]
    pub(super) fn wants_messages(self) -> bool {
        self.0 & Shape::MESSAGES != 0
    }

    /// The same of a rank whose engine is to see messages.
    pub(super) fn with_messages(self, messages: bool) -> Shape {
        match messages {
            true => Shape(self.0 | Shape::MESSAGES),
            false => self,
        }
    }
}

/// Where a buffer's pages are: up to two in the words themselves, more in a table.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Place {
    /// Bus addresses of the first two pages, or of the table in word 0.
    pub(super) words: [u64; 2],
    /// Pages.
    pub(super) pages: u32,
    /// Offset of the first byte in the first page.
    pub(super) offset: u32,
}

impl Place {
    /// Describes own pages; a table comes from NIC memory. `None` when that has no room.
    fn of(p: &Pages, nic_memory: &mut NicMemory, table: &mut Option<Block>) -> Option<Place> {
        let mut place = Place {
            words: [0; 2],
            pages: p.len() as u32,
            offset: p.offset() as u32,
        };
        if p.len() <= INLINE_PAGES {
            for (w, page) in place.words.iter_mut().zip(p.bus()) {
                *w = page;
            }
            return Some(place);
        }
        let block = nic_memory.alloc(p.len() as u64 * 8)?;
        *table = Some(block);
        p.write_table(nic_memory, block);
        place.words[0] = NIC_BUS + block.at;
        Some(place)
    }

    fn pack(&self, codes: u16) -> [u64; 3] {
        let [a, b] = self.words;
        let sizes = u64::from(self.pages) | u64::from(self.offset) << 32;
        [a, b, sizes | u64::from(codes) << 48]
    }

    fn unpack(w: &[u64]) -> Place {
        Place {
            words: [w[0], w[1]],
            pages: w[2] as u32,
            offset: u32::from((w[2] >> 32) as u16),
        }
    }
}

/// A record with places, decoded; unchecked: it came from a peer.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Record {
    pub(super) input: Place,
    pub(super) output: Place,
    flags: u8,
    codes: [u16; 2],
    count: u64,
}

impl Record {
    /// The record of an own operation, with the flags that depend on its buffers.
    pub(super) fn of(
        p: &Params,
        (input, output): (&Pages, &Pages),
        tables: &mut [Option<Block>; 2],
        nic_memory: &mut NicMemory,
    ) -> Record {
        let mut flags = flags_of(input, output);
        let [input_table, output_table] = tables;
        let in_ = Place::of(input, nic_memory, input_table);
        let out = Place::of(output, nic_memory, output_table);
        let (input, output) = match (in_, out) {
            (Some(i), Some(o)) => (i, o),
            // NIC memory is short: peers cannot find the buffers.
            _ => {
                flags &= !(flag::READABLE | flag::WRITABLE);
                Default::default()
            }
        };
        Record {
            input,
            output,
            flags,
            codes: codes(p),
            count: p.count,
        }
    }

    pub(super) fn flags(&self) -> u8 {
        self.flags
    }

    pub(super) fn has(&self, f: u8) -> bool {
        self.flags & f != 0
    }

    /// Whether the peer runs the same operation.
    pub(super) fn agrees(&self, p: &Params) -> bool {
        (self.codes, self.count) == (codes(p), p.count)
    }

    /// Words 1–7.
    pub(super) fn words(&self) -> [u64; WORDS - 1] {
        let [i, o] = [
            self.input.pack(self.codes[0]),
            self.output.pack(self.codes[1]),
        ];
        let last = u64::from(self.flags) | self.count << FLAGS;
        [i[0], i[1], i[2], o[0], o[1], o[2], last]
    }

    pub(super) fn from_words(w: &[u64; WORDS - 1]) -> Record {
        Record {
            input: Place::unpack(&w[..3]),
            output: Place::unpack(&w[3..6]),
            flags: w[6] as u8 & ((1 << FLAGS) - 1),
            codes: [(w[2] >> 48) as u16, (w[5] >> 48) as u16],
            count: w[6] >> FLAGS,
        }
    }
}

/// The flags of an operation with these buffers.
pub(super) fn flags_of(input: &Pages, output: &Pages) -> u8 {
    let mut f = 0;
    if input.is_empty() || input.is_exported() {
        f |= flag::READABLE;
    }
    if output.is_empty() || output.is_writable() {
        f |= flag::WRITABLE;
    }
    if !input.is_empty() && input.is_same(output) {
        f |= flag::IN_PLACE;
    }
    f
}

/// Kind and type, reduction and root.
fn codes(p: &Params) -> [u16; 2] {
    let two = |a: u8, b: u8| u16::from(a) | u16::from(b) << 8;
    // At most 256 ranks use this path.
    [
        two(p.kind.code(), p.dtype.code()),
        two(p.op.code(), p.root as u8),
    ]
}

/// Words 1–3 of an eager record: all that ranks must agree on, with the program that messages would
/// use, for ranks that cannot take this path.
pub(super) fn head(p: &Params) -> [u64; 3] {
    let [a, b] = codes(p);
    [
        u64::from(a) | u64::from(b as u8) << 16 | u64::from(p.root) << 32,
        p.count,
        u64::from(p.extra) | u64::from(p.algo.code()) << 32,
    ]
}
