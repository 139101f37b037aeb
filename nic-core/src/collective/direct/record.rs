//! Records: a rank's description of an operation for its peers, two lines of 64 bytes.
//!
//! | word | meaning |
//! |---|---|
//! | 0 | sequence number, stored last with release: it validates the rest |
//! | 1 | kind, type, reduction, flags (a byte each), root (32 bits) |
//! | 2 | count |
//! | 3 | all other parameters that must agree |
//! | 4–7 | eager: the input, up to 32 bytes (longer inputs follow the first line) |
//! | 8–10 | source buffer: see [`Place`] |
//! | 11–13 | destination buffer |
//!
//! Tables of pages are written for each operation and live as long as it does, so that no peer ever
//! holds a translation that could be stale, and nothing need be invalidated when memory is freed.

use ringbell_nic_abi::{CollectiveKind, DataType, ReduceOp};

use super::pages::{Pages, INLINE_PAGES};
use super::{DirectOp, DirectParams};
use crate::memory::nic_memory::{Block, NicMemory, NIC_BUS};

/// Words of a record.
pub(super) const WORDS: usize = 16;

/// Bits of a record's flags.
pub(super) mod flag {
    /// Peers can read the source buffer, or there is none.
    pub(in super::super) const READABLE: u8 = 1;
    /// Peers can and may write the destination buffer, or there is none.
    pub(in super::super) const WRITABLE: u8 = 2;
    /// Source and destination are the same memory, or there is only one of them.
    pub(in super::super) const IN_PLACE: u8 = 4;
    /// An engine of the rank is to see messages.
    pub(in super::super) const MESSAGES: u8 = 8;
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

    fn pack(&self) -> [u64; 3] {
        let [a, b] = self.words;
        [a, b, u64::from(self.pages) | u64::from(self.offset) << 32]
    }

    fn unpack(w: &[u64]) -> Place {
        Place {
            words: [w[0], w[1]],
            pages: w[2] as u32,
            offset: (w[2] >> 32) as u32,
        }
    }
}

/// A record, decoded; unchecked: it came from a peer.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Record {
    /// Words 1–3.
    head: [u64; 3],
    pub(super) input: Place,
    pub(super) output: Place,
}

impl Record {
    /// The record of an own operation.
    pub(super) fn of(
        op: &DirectOp,
        eager: bool,
        tables: &mut [Option<Block>; 2],
        nic_memory: &mut NicMemory,
    ) -> Record {
        let mut flags = Record::flags_of(op);
        let [input_table, output_table] = tables;
        let (mut input, mut output) = (Place::default(), Place::default());
        if !eager {
            let in_ = Place::of(&op.input, nic_memory, input_table);
            let out = Place::of(&op.output, nic_memory, output_table);
            match (in_, out) {
                (Some(i), Some(o)) => (input, output) = (i, o),
                // NIC memory is short: peers cannot find the buffers.
                _ => flags &= !(flag::READABLE | flag::WRITABLE),
            }
        }
        Record {
            head: head(&op.params, flags),
            input,
            output,
        }
    }

    /// The flags of an own operation.
    pub(super) fn flags_of(op: &DirectOp) -> u8 {
        let mut f = 0;
        if op.input.is_empty() || op.input.is_exported() {
            f |= flag::READABLE;
        }
        if op.output.is_empty() || op.output.is_writable() {
            f |= flag::WRITABLE;
        }
        if !op.input.is_empty() && op.input.is_same(&op.output) {
            f |= flag::IN_PLACE;
        }
        if op.messages {
            f |= flag::MESSAGES;
        }
        f
    }

    pub(super) fn flags(&self) -> u8 {
        (self.head[0] >> 24) as u8
    }

    pub(super) fn has(&self, f: u8) -> bool {
        self.flags() & f != 0
    }

    /// Whether the peer runs the same operation.
    pub(super) fn agrees(&self, p: &DirectParams) -> bool {
        head(p, self.flags()) == self.head
    }

    /// Words 1–3 and 8–13.
    pub(super) fn words(&self) -> ([u64; 3], [u64; 6]) {
        let (i, o) = (self.input.pack(), self.output.pack());
        (self.head, [i[0], i[1], i[2], o[0], o[1], o[2]])
    }

    pub(super) fn from_words(w: &[u64; WORDS]) -> Record {
        Record {
            head: [w[1], w[2], w[3]],
            input: Place::unpack(&w[8..11]),
            output: Place::unpack(&w[11..14]),
        }
    }
}

fn head(p: &DirectParams, flags: u8) -> [u64; 3] {
    let code = |kind: CollectiveKind, dtype: DataType, op: ReduceOp| {
        u64::from(kind.code()) | u64::from(dtype.code()) << 8 | u64::from(op.code()) << 16
    };
    [
        code(p.kind, p.dtype, p.op) | u64::from(flags) << 24 | u64::from(p.root) << 32,
        p.count,
        p.extra,
    ]
}
