//! Block headers: the BAR's own description of its blocks.
//!
//! Register [`Reg::Blocks`] holds the byte offset of the first header, and each header the offset
//! of the next one, always a higher one; the last has 0. A header says what the block is, which
//! registers belong to it, and how large it is. A reader that does not know a kind skips it.
//! [`walk`] reads a chain and refuses one that is broken.
//!
//! A NIC of this contract has the header of kind `k` at [`header_offset`], or none where it lacks
//! the block.

use crate::bar::{Reg, DOORBELL_STRIDE};
use crate::bar::{BAR_BYTES, CONTROL_BYTES, DOORBELL_BASE, MAX_QUEUES, STATUS_BASE};
use crate::{abi_struct, coded_enum};

/// Byte offset of the first header of a NIC of this contract.
pub const HEADERS_BASE: usize = 0xc00;
/// Bytes between two headers.
pub const HEADER_STRIDE: usize = 64;
/// Words of a header.
pub const HEADER_WORDS: usize = BlockHeader::LAYOUT.size / 4;
/// Flag: hardware does the block's work; else software does.
pub const BLOCK_HARDWARE: u32 = 1;
/// Flag: kernels may write its control registers.
pub const BLOCK_KERNELS: u32 = 2;

coded_enum! {
    /// Kind of a block of the BAR.
    pub enum BlockKind: u32 ["BLOCK_"] {
        /// Names the contract, and resets the NIC.
        Identity = 1 => "IDENTITY",
        /// Doorbells: `units` queues of at most `size` slots.
        Queues = 2 => "QUEUES",
        /// GPU TLB: `units` instances of `size` main and `more` complementary entries.
        Gtlb = 3 => "GTLB",
        /// Counters of operations, bytes, faults and steps.
        Counters = 4 => "COUNTERS",
        /// Addresses of the NIC, and counters of its `units` ports.
        Network = 5 => "NETWORK",
        /// Direct model: `units` connections of `size` operations in each direction. It has no
        /// registers.
        Direct = 6 => "DIRECT",
        /// Mailbox from kernels to the host.
        Mailbox = 7 => "MAILBOX",
        /// Engines on the path of received payloads: `units` slots. Hardware alone has it.
        Engines = 8 => "ENGINES",
    }
}

abi_struct! {
    /// Header of a block of the BAR, 48 bytes. Registers are byte ranges of the BAR; those without
    /// bytes begin at 0.
    pub struct BlockHeader ["rb_block_header"] {
        /// See the BLOCK_ constants.
        kind: u32,
        /// Version of the block; one that is higher has everything of those before.
        version: u32,
        /// Bytes of this header: 48, more in later versions.
        bytes: u32,
        /// Byte offset of the next header, beyond this one's end; 0 in the last.
        next: u32,
        /// See the BLOCK_ flags.
        flags: u32,
        /// First byte of its control registers or doorbells.
        control: u32,
        /// Bytes of them.
        control_bytes: u32,
        /// First byte of its status registers.
        status: u32,
        /// Bytes of them.
        status_bytes: u32,
        /// How many it has of what its kind counts.
        units: u32,
        /// Size of one of them.
        size: u32,
        /// A second size, where the kind has one.
        more: u32,
    }
}

/// A block of a NIC: what its header says beside what the contract fixes for its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Its kind.
    pub kind: BlockKind,
    /// BLOCK_ flags.
    pub flags: u32,
    /// See [`BlockHeader`].
    pub units: u32,
    /// See [`BlockHeader`].
    pub size: u32,
    /// See [`BlockHeader`].
    pub more: u32,
}

/// Byte offset of the header of a kind, in a NIC of this contract.
pub const fn header_offset(kind: BlockKind) -> usize {
    HEADERS_BASE + (kind as usize - 1) * HEADER_STRIDE
}

/// First byte and bytes of the registers from one to another.
const fn registers(first: Reg, last: Reg) -> (u32, u32) {
    let bytes = last.offset() + 4 - first.offset();
    (first.offset() as u32, bytes as u32)
}

impl BlockKind {
    /// The present version of the block.
    pub const fn version(self) -> u32 {
        1
    }

    /// Flags that the contract fixes: whether kernels may write its control registers. The
    /// doorbells are theirs as well.
    pub const fn flags(self) -> u32 {
        match self {
            BlockKind::Queues | BlockKind::Mailbox => BLOCK_KERNELS,
            _ => 0,
        }
    }

    /// First byte and bytes of its control registers, then of its status registers.
    pub const fn ranges(self) -> [(u32, u32); 2] {
        const NONE: (u32, u32) = (0, 0);
        match self {
            BlockKind::Identity => [
                registers(Reg::Reset, Reg::Reset),
                registers(Reg::Magic, Reg::Backend),
            ],
            BlockKind::Queues => [
                (DOORBELL_BASE as u32, (MAX_QUEUES * DOORBELL_STRIDE) as u32),
                registers(Reg::Queues, Reg::Queues),
            ],
            BlockKind::Gtlb => [
                registers(Reg::GtlbSelect, Reg::GtlbRefill),
                registers(Reg::GtlbInstances, Reg::GtlbMissVaHi),
            ],
            BlockKind::Counters => [NONE, registers(Reg::Faults, Reg::Heartbeat)],
            BlockKind::Network => [
                registers(Reg::MacLo, Reg::MacHi),
                registers(Reg::Ports, Reg::FramesLost),
            ],
            BlockKind::Direct => [NONE, NONE],
            BlockKind::Mailbox => [
                registers(Reg::MailboxData, Reg::MailboxRing),
                registers(Reg::MailboxTaken, Reg::MailboxTaken),
            ],
            BlockKind::Engines => [registers(Reg::EngineConn, Reg::EngineCommand), NONE],
        }
    }
}

impl Block {
    /// A block of one unit without sizes.
    pub const fn new(kind: BlockKind) -> Block {
        Block {
            kind,
            flags: kind.flags(),
            units: 1,
            size: 0,
            more: 0,
        }
    }

    /// Its header, in front of the block of `next`.
    pub const fn header(&self, next: Option<BlockKind>) -> BlockHeader {
        let [(control, control_bytes), (status, status_bytes)] = self.kind.ranges();
        BlockHeader {
            kind: self.kind.code(),
            version: self.kind.version(),
            bytes: BlockHeader::LAYOUT.size as u32,
            next: match next {
                Some(kind) => header_offset(kind) as u32,
                None => 0,
            },
            flags: self.flags,
            control,
            control_bytes,
            status,
            status_bytes,
            units: self.units,
            size: self.size,
            more: self.more,
        }
    }
}

impl BlockHeader {
    /// Its words in the BAR.
    pub const fn words(&self) -> [u32; HEADER_WORDS] {
        [
            self.kind,
            self.version,
            self.bytes,
            self.next,
            self.flags,
            self.control,
            self.control_bytes,
            self.status,
            self.status_bytes,
            self.units,
            self.size,
            self.more,
        ]
    }

    const fn from_words(w: [u32; HEADER_WORDS]) -> BlockHeader {
        let [kind, version, bytes, next, flags, control, control_bytes, status, status_bytes, units, size, more] =
            w;
        BlockHeader {
            kind,
            version,
            bytes,
            next,
            flags,
            control,
            control_bytes,
            status,
            status_bytes,
            units,
            size,
            more,
        }
    }

    /// Its kind, if this version of the contract knows it.
    pub const fn known(&self) -> Option<BlockKind> {
        BlockKind::from_code(self.kind)
    }
}

/// Why a chain of headers is refused. Offsets are bytes of the BAR.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChainError {
    /// A word of a header cannot be read.
    Unreadable {
        /// Its offset.
        at: usize,
    },
    /// A header lies where none can: unaligned, not beyond the one before, or not whole in the
    /// status registers.
    Misplaced {
        /// Its offset.
        at: usize,
        /// First offset that would have been right.
        least: usize,
    },
    /// A header says that it is shorter than one, or reaches out of the status registers.
    Length {
        /// Offset of the header.
        at: usize,
        /// The bytes that it states.
        bytes: u32,
    },
    /// Registers of a block are unaligned or lie outside of the BAR, or of their half of it.
    Range {
        /// Offset of the header.
        at: usize,
        /// First byte of the registers.
        first: u32,
        /// Bytes of them.
        bytes: u32,
    },
}

impl core::fmt::Display for ChainError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let last = CONTROL_BYTES - BlockHeader::LAYOUT.size;
        match *self {
            ChainError::Unreadable { at } => {
                write!(f, "the block header at BAR offset {at:#x} cannot be read")
            }
            ChainError::Misplaced { at, least } => write!(
                f,
                "no block header can lie at BAR offset {at:#x}: the chain goes on at a multiple of 4 from {least:#x} to {last:#x}"
            ),
            ChainError::Length { at, bytes } => write!(
                f,
                "the block header at BAR offset {at:#x} states {bytes} bytes: it has at least {}, and ends by {CONTROL_BYTES:#x}",
                BlockHeader::LAYOUT.size
            ),
            ChainError::Range { at, first, bytes } => write!(
                f,
                "the block header at BAR offset {at:#x} names {bytes} bytes of registers at {first:#x}, which are not in its half of the BAR"
            ),
        }
    }
}

impl core::error::Error for ChainError {}

/// The headers of a BAR, in the order of its chain, with their offsets. `read` gives a word of the
/// BAR, if there is one. Ends with the first error; never endless, since offsets only rise.
pub fn walk<F: FnMut(usize) -> Option<u32>>(read: F) -> Walk<F> {
    Walk {
        read,
        least: STATUS_BASE,
        at: Ok(None),
    }
}

/// See [`walk`].
#[derive(Debug)]
pub struct Walk<F> {
    read: F,
    /// The next header lies here or beyond.
    least: usize,
    /// The next header; none before the first was asked for. An error: it has ended.
    at: Result<Option<usize>, ()>,
}

impl<F: FnMut(usize) -> Option<u32>> Walk<F> {
    fn word(&mut self, at: usize) -> Result<u32, ChainError> {
        (self.read)(at).ok_or(ChainError::Unreadable { at })
    }

    fn header(&mut self, at: usize) -> Result<BlockHeader, ChainError> {
        let size = BlockHeader::LAYOUT.size;
        if !at.is_multiple_of(4) || at < self.least || at > CONTROL_BYTES - size {
            let least = self.least;
            return Err(ChainError::Misplaced { at, least });
        }
        let mut words = [0; HEADER_WORDS];
        for (i, word) in words.iter_mut().enumerate() {
            *word = self.word(at + 4 * i)?;
        }
        let header = BlockHeader::from_words(words);
        let bytes = header.bytes;
        let whole = bytes as usize >= size && bytes as usize <= CONTROL_BYTES - at;
        if !whole || !bytes.is_multiple_of(4) {
            return Err(ChainError::Length { at, bytes });
        }
        let halves = [
            (header.control, header.control_bytes, false),
            (header.status, header.status_bytes, true),
        ];
        for (first, bytes, is_status) in halves {
            if !is_range(first, bytes, is_status) {
                return Err(ChainError::Range { at, first, bytes });
            }
        }
        self.least = at + bytes as usize;
        Ok(header)
    }
}

/// Whether registers can lie there: control registers in the lower half or among the doorbells,
/// status registers in the upper half.
fn is_range(first: u32, bytes: u32, is_status: bool) -> bool {
    let (first, bytes) = (first as usize, bytes as usize);
    if bytes == 0 {
        return first == 0;
    }
    let inside = |from: usize, to: usize| first >= from && first < to && bytes <= to - first;
    let there = match is_status {
        true => inside(STATUS_BASE, CONTROL_BYTES),
        false => inside(0, STATUS_BASE) || inside(DOORBELL_BASE, BAR_BYTES),
    };
    there && first.is_multiple_of(4) && bytes.is_multiple_of(4)
}

impl<F: FnMut(usize) -> Option<u32>> Iterator for Walk<F> {
    type Item = Result<(usize, BlockHeader), ChainError>;

    fn next(&mut self) -> Option<Self::Item> {
        let at = match self.at {
            Err(()) => return None,
            Ok(Some(at)) => Ok(at),
            Ok(None) => self.word(Reg::Blocks.offset()).map(|at| at as usize),
        };
        if at == Ok(0) {
            self.at = Err(());
            return None;
        }
        let found = at.and_then(|at| Ok((at, self.header(at)?)));
        self.at = match found {
            Ok((_, header)) if header.next != 0 => Ok(Some(header.next as usize)),
            _ => Err(()),
        };
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A BAR with the headers of all kinds.
    fn bar() -> [u32; CONTROL_BYTES / 4] {
        let mut bar = [0; CONTROL_BYTES / 4];
        bar[Reg::Blocks as usize] = HEADERS_BASE as u32;
        for (i, &kind) in BlockKind::ALL.iter().enumerate() {
            let next = BlockKind::ALL.get(i + 1).copied();
            let words = Block::new(kind).header(next).words();
            bar[header_offset(kind) / 4..][..HEADER_WORDS].copy_from_slice(&words);
        }
        bar
    }

    /// The first error of a walk, and the headers before it.
    fn error(bar: &[u32]) -> (usize, ChainError) {
        let mut count = 0;
        let mut walk = walk(|at| bar.get(at / 4).copied());
        let found = walk.by_ref().find_map(|h| {
            count += usize::from(h.is_ok());
            h.err()
        });
        assert!(walk.next().is_none(), "a walk ends with its first error");
        (count, found.expect("an error"))
    }

    #[test]
    fn the_walk_finds_every_block_with_its_registers_once() {
        let bar = bar();
        let mut owner = [0; BAR_BYTES / 4];
        let mut kinds = BlockKind::ALL.iter();
        for found in walk(|at| bar.get(at / 4).copied()) {
            let (at, header) = found.expect("a right chain");
            let kind = *kinds.next().expect("no more than there are");
            assert_eq!((header.known(), at), (Some(kind), header_offset(kind)));
            for (first, bytes) in [
                (header.control, header.control_bytes),
                (header.status, header.status_bytes),
            ] {
                let words = first as usize / 4..(first + bytes) as usize / 4;
                owner[words].iter_mut().for_each(|n| *n += 1);
            }
        }
        assert_eq!(kinds.next(), None);
        for (reg, ..) in Reg::ALL {
            let own = usize::from(*reg != Reg::Blocks);
            assert_eq!(owner[*reg as usize], own, "{}", reg.name());
        }
    }

    #[test]
    fn a_chain_that_loops_overruns_or_names_foreign_bytes_is_refused() {
        let right = bar();
        let broken = |word: usize, value: u32| {
            let mut bar = right;
            bar[word] = value;
            error(&bar)
        };
        let gtlb = header_offset(BlockKind::Gtlb);
        let least = gtlb + BlockHeader::LAYOUT.size;
        let next = gtlb / 4 + 3;
        // To itself, back to the first, into itself, unaligned, the last bytes, beyond the window
        // and far beyond the BAR.
        for at in [
            gtlb,
            HEADERS_BASE,
            gtlb + 8,
            gtlb + 65,
            0xfd4,
            0x1000,
            1 << 31,
        ] {
            let found = broken(next, at as u32);
            assert_eq!(found, (3, ChainError::Misplaced { at, least }));
        }
        let start = broken(Reg::Blocks as usize, 0x7fc);
        let (at, least) = (0x7fc, STATUS_BASE);
        assert_eq!(start, (0, ChainError::Misplaced { at, least }));
        for bytes in [0, 44, 50, CONTROL_BYTES as u32, u32::MAX] {
            let at = gtlb;
            let found = broken(gtlb / 4 + 2, bytes);
            assert_eq!(found, (2, ChainError::Length { at, bytes }));
        }
        // Control registers in the status half, status registers that run over, a sum that wraps.
        for (word, value) in [
            (5, 0x800),
            (6, 0x800),
            (7, 0x20),
            (8, 0xfff),
            (8, 0xffff_fffc),
        ] {
            let (found, error) = broken(gtlb / 4 + word, value);
            assert!(
                matches!(error, ChainError::Range { at, .. } if at == gtlb),
                "{error}"
            );
            assert_eq!(found, 2);
        }
        let unread = walk(|at| (at != gtlb + 20).then(|| right[at / 4])).last();
        assert_eq!(unread, Some(Err(ChainError::Unreadable { at: gtlb + 20 })));
    }

    #[test]
    fn a_bar_without_headers_has_none_and_any_words_end_the_walk() {
        assert!(walk(|_| Some(0)).next().is_none());
        // Words of any kind: each walk ends within the headers that have room.
        let mut seed = 1_u64;
        for _ in 0..2_000 {
            let count = walk(|_| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                Some((seed >> 33) as u32 & 0xffc)
            })
            .count();
            assert!(count <= (CONTROL_BYTES - STATUS_BASE) / BlockHeader::LAYOUT.size + 1);
        }
    }
}
