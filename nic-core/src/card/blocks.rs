//! A card's sizes, as the block headers of its BAR state them.

use ringbell_nic_abi::bar::MAX_QUEUES;
use ringbell_nic_abi::block::{walk, BlockHeader, BlockKind, ChainError};

use super::{Card, Sizes};

/// Most connections of a card: their numbers share 16 bits with those of operations.
const MAX_CONNS: u32 = 64;
/// Most slots of a queue.
const MAX_SLOTS: u32 = 65_536;
/// Most entries of a table.
const MAX_ENTRIES: u32 = 1 << 24;
/// Pages of a group: complementary entries come in rows of as many.
const ROW: u32 = 32;

/// Why a card is refused when the NIC is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CardBlocksError {
    /// Its block headers are broken.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// It lacks a block.
    #[error("it has no block {}: a card behind a NIC needs QUEUES, GTLB and DIRECT", .kind.name())]
    Missing {
        /// The block.
        kind: BlockKind,
    },
    /// A block has another version.
    #[error("its block {} has version {found}, this program knows {}; update the older of the two", .kind.name(), .kind.version())]
    Version {
        /// The block.
        kind: BlockKind,
        /// The card's version.
        found: u32,
    },
    /// A block states sizes that it cannot have.
    #[error("its block {} states {units} units of {size} and {more}, which the contract does not allow", .kind.name())]
    Sizes {
        /// The block.
        kind: BlockKind,
        /// Words of its header.
        units: u32,
        /// See `units`.
        size: u32,
        /// See `units`.
        more: u32,
    },
}

impl Sizes {
    /// The sizes of a card, from its headers.
    ///
    /// # Errors
    /// [`CardBlocksError`].
    pub(crate) fn of(card: &mut dyn Card) -> Result<Sizes, CardBlocksError> {
        let mut wanted = [BlockKind::Queues, BlockKind::Gtlb, BlockKind::Direct].map(|k| (k, None));
        for found in walk(|offset| card.bar_read(offset)) {
            let (_, header) = found?;
            for (kind, at) in &mut wanted {
                if header.known() == Some(*kind) && at.is_none() {
                    *at = Some(header);
                }
            }
        }
        let mut headers = [BlockHeader::default(); 3];
        for (header, (kind, found)) in headers.iter_mut().zip(wanted) {
            *header = found.ok_or(CardBlocksError::Missing { kind })?;
            let found = header.version;
            if found != kind.version() {
                return Err(CardBlocksError::Version { kind, found });
            }
            if !is_possible(kind, header) {
                let (units, size, more) = (header.units, header.size, header.more);
                return Err(CardBlocksError::Sizes {
                    kind,
                    units,
                    size,
                    more,
                });
            }
        }
        let [queues, gtlb, direct] = headers;
        Ok(Sizes {
            queues: queues.units,
            slots: queues.size,
            conns: direct.units as u16,
            operations: direct.size as usize,
            main_entries: gtlb.size,
            complementary_entries: gtlb.more,
        })
    }
}

fn is_possible(kind: BlockKind, h: &BlockHeader) -> bool {
    match kind {
        BlockKind::Queues => {
            let slots = (2..=MAX_SLOTS).contains(&h.size) && h.size.is_power_of_two();
            (1..=MAX_QUEUES as u32).contains(&h.units) && slots
        }
        BlockKind::Gtlb => {
            let main = (1..=MAX_ENTRIES).contains(&h.size) && h.size.is_power_of_two();
            let rows = (ROW..=MAX_ENTRIES).contains(&h.more) && h.more.is_multiple_of(ROW);
            h.units >= 1 && main && rows
        }
        BlockKind::Direct => {
            (1..=MAX_CONNS).contains(&h.units) && (1..=MAX_SLOTS).contains(&h.size)
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use ringbell_nic_abi::bar::Reg;
    use ringbell_nic_abi::block::{header_offset, Block};
    use ringbell_nic_abi::{DataType, ReduceOp};

    use super::super::{Control, Cycles, Event, Io, Ring};
    use super::*;

    /// A card of which only the BAR answers.
    struct Paper(HashMap<usize, u32>);

    #[rustfmt::skip]
    impl Card for Paper {
        fn bar_read(&mut self, offset: usize) -> Option<u32> { self.0.get(&offset).copied() }
        fn bar_write(&mut self, _: usize, _: u32) -> bool { false }
        fn cycle(&mut self) {}
        fn is_busy(&self) -> bool { false }
        fn cycles(&self) -> Cycles { Cycles::default() }
        fn event(&mut self) -> Option<Event> { None }
        fn setup_queue(&mut self, _: u32, _: u64, _: u64, _: u32, _: u32) {}
        fn control(&mut self, _: u16, _: Control) {}
        fn post(&mut self, _: Io) {}
        fn complete(&mut self, _: u32, _: u32, _: u8, _: u64, _: u64) {}
        fn credit(&mut self, _: u16, _: u32) {}
        fn receive(&mut self, _: u16, _: Vec<u8>, _: bool) {}
        fn backlog(&self) -> usize { 0 }
        fn reduce(&mut self, _: DataType, _: ReduceOp, _: &[u8], _: &[u8]) -> Option<Vec<u8>> { None }
        fn ring(&mut self) -> Option<&mut dyn Ring> { None }
    }

    /// A card with these blocks, in the order of their kinds.
    fn card(blocks: &[(BlockKind, u32, u32, u32)]) -> Paper {
        let mut bar = HashMap::new();
        let first = blocks.first().map_or(0, |b| header_offset(b.0));
        bar.insert(Reg::Blocks.offset(), first as u32);
        for (i, &(kind, units, size, more)) in blocks.iter().enumerate() {
            let mut block = Block::new(kind);
            (block.units, block.size, block.more) = (units, size, more);
            let words = block.header(blocks.get(i + 1).map(|b| b.0)).words();
            let at = header_offset(kind);
            bar.extend(words.iter().enumerate().map(|(w, v)| (at + 4 * w, *v)));
        }
        Paper(bar)
    }

    const RIGHT: [(BlockKind, u32, u32, u32); 3] = [
        (BlockKind::Queues, 16, 256, 0),
        (BlockKind::Gtlb, 1, 1024, 64),
        (BlockKind::Direct, 8, 4, 0),
    ];

    #[test]
    fn a_card_has_the_sizes_that_its_headers_state() {
        let sizes = Sizes::of(&mut card(&RIGHT)).expect("a right card");
        let wanted = Sizes {
            queues: 16,
            slots: 256,
            conns: 8,
            operations: 4,
            main_entries: 1024,
            complementary_entries: 64,
        };
        assert_eq!(sizes, wanted);
    }

    #[test]
    fn a_card_without_a_block_of_another_version_or_with_impossible_sizes_is_refused() {
        for lacking in 0..3 {
            let mut blocks = RIGHT.to_vec();
            let (kind, ..) = blocks.remove(lacking);
            let refused = Sizes::of(&mut card(&blocks));
            assert_eq!(refused, Err(CardBlocksError::Missing { kind }));
        }
        let impossible = [
            (0, (BlockKind::Queues, 0, 256, 0)),
            (0, (BlockKind::Queues, 513, 256, 0)),
            (0, (BlockKind::Queues, 16, 255, 0)),
            (0, (BlockKind::Queues, 16, 1 << 17, 0)),
            (1, (BlockKind::Gtlb, 1, 1000, 64)),
            (1, (BlockKind::Gtlb, 0, 1024, 64)),
            (1, (BlockKind::Gtlb, 1, 1024, 33)),
            (1, (BlockKind::Gtlb, 1, 1 << 31, 64)),
            (2, (BlockKind::Direct, 65, 4, 0)),
            (2, (BlockKind::Direct, 8, 0, 0)),
        ];
        for (at, block) in impossible {
            let mut blocks = RIGHT;
            blocks[at] = block;
            let (kind, units, size, more) = block;
            let wanted = CardBlocksError::Sizes {
                kind,
                units,
                size,
                more,
            };
            assert_eq!(Sizes::of(&mut card(&blocks)), Err(wanted));
        }
        let mut old = card(&RIGHT);
        old.0.insert(header_offset(BlockKind::Gtlb) + 4, 7);
        let (kind, found) = (BlockKind::Gtlb, 7);
        let wanted = CardBlocksError::Version { kind, found };
        assert_eq!(Sizes::of(&mut old), Err(wanted));
        let mut endless = card(&RIGHT);
        let gtlb = header_offset(BlockKind::Gtlb);
        endless.0.insert(gtlb + 12, gtlb as u32);
        let refused = Sizes::of(&mut endless).expect_err("a loop");
        assert!(matches!(refused, CardBlocksError::Chain(_)), "{refused}");
        assert!(Sizes::of(&mut Paper(HashMap::new())).is_err(), "no BAR");
    }
}
