//! The page that shows the status registers.
//!
//! A read through the NIC returns the present value. A reader of the shared page (a
//! kernel, `ringbell regs` in another process) sees the value that the NIC last wrote there.

use std::time::Duration;

use ringbell_nic_abi::bar::{Reg, MAGIC};
use ringbell_nic_abi::block::{
    header_offset, Block, BlockKind, BLOCK_HARDWARE, HEADERS_BASE, HEADER_STRIDE, HEADER_WORDS,
};
use ringbell_nic_abi::ABI_VERSION;

use super::memory::Memory;
use super::report::{Counters, Report};
use super::streams::Streams;
use crate::bar::Bar;
use crate::card::SharedCard;
use crate::config::NicConfig;
use crate::queue::{Queues, MAX_DEPTH};
use crate::types::NicTime;

/// Value of [`Reg::Backend`] without and with a card.
const BACKEND: [u32; 2] = [1, 2];

/// How old the page may grow while the NIC is stepped.
const REFRESH: Duration = Duration::from_millis(20);

/// See the module text.
#[derive(Debug, Default)]
pub(super) struct StatusPage {
    bar: Option<Bar>,
    due: NicTime,
}

impl StatusPage {
    pub(super) fn show_in(&mut self, bar: Bar) {
        self.bar = Some(bar);
    }

    /// Asked with each reading of the clock.
    #[inline]
    pub(super) fn is_due(&self, now: NicTime) -> bool {
        now >= self.due
    }

    /// Stores the values of all registers that have one besides what was last written, and the
    /// headers of the blocks that the NIC has.
    pub(super) fn refresh(&mut self, now: NicTime, shown: &Shown<'_>) {
        self.due = now.plus(REFRESH);
        let Some(bar) = &self.bar else { return };
        for &(reg, ..) in Reg::ALL {
            if let Some(value) = shown.value(reg) {
                bar.set(reg, value);
            }
        }
        for kind in BlockKind::ALL {
            let words = shown.header(*kind).into_iter().flatten();
            for (i, word) in words.enumerate() {
                bar.store(header_offset(*kind) + 4 * i, word);
            }
        }
    }
}

/// What the registers show.
pub(super) struct Shown<'a> {
    pub(super) config: &'a NicConfig,
    pub(super) card: Option<&'a SharedCard>,
    pub(super) queues: &'a Queues,
    pub(super) streams: &'a Streams,
    pub(super) memory: &'a Memory,
    pub(super) report: &'a Report,
    pub(super) counters: Counters,
}

impl Shown<'_> {
    /// The block of a kind, if the NIC has it.
    fn block(&self, kind: BlockKind) -> Option<Block> {
        let mut block = Block::new(kind);
        let sizes = self.card.map(|card| card.lock().sizes());
        match (kind, sizes) {
            (BlockKind::Queues, None) => {
                (block.units, block.size) = (self.config.max_queues as u32, MAX_DEPTH);
            }
            (BlockKind::Queues, Some(sizes)) => {
                block.flags |= BLOCK_HARDWARE;
                (block.units, block.size) =
                    (sizes.queues.min(self.config.max_queues as u32), sizes.slots);
            }
            // The registers of this BAR act on the software's GTLB, with a card as well.
            (BlockKind::Gtlb, _) => {
                let read = |reg| self.memory.mmu.read_register(reg).unwrap_or(0);
                block.units = read(Reg::GtlbInstances);
                block.size = read(Reg::GtlbMainEntries);
                block.more = read(Reg::GtlbComplementaryEntries);
            }
            (BlockKind::Network, _) => block.units = self.streams.network.ports().len() as u32,
            (BlockKind::Direct, sizes) => {
                let sizes = sizes?;
                block.flags |= BLOCK_HARDWARE;
                (block.units, block.size) = (sizes.conns.into(), sizes.operations as u32);
            }
            (BlockKind::Engines, sizes) => {
                sizes?;
                block.flags |= BLOCK_HARDWARE;
            }
            (BlockKind::Mailbox, Some(_)) => block.flags |= BLOCK_HARDWARE,
            (BlockKind::Identity | BlockKind::Counters | BlockKind::Mailbox, _) => {}
        }
        Some(block)
    }

    /// The words of a block's header, if the NIC has it.
    fn header(&self, kind: BlockKind) -> Option<[u32; HEADER_WORDS]> {
        let block = self.block(kind)?;
        let mut later = BlockKind::ALL.iter().filter(|k| **k > kind);
        let next = later.find(|k| self.block(**k).is_some());
        Some(block.header(next.copied()).words())
    }

    /// The word at an offset of the headers.
    pub(super) fn header_word(&self, offset: usize) -> Option<u32> {
        let at = offset.checked_sub(HEADERS_BASE)?;
        let kind = *BlockKind::ALL.get(at / HEADER_STRIDE)?;
        self.header(kind)?.get(at % HEADER_STRIDE / 4).copied()
    }

    /// The value of a register now; none when it has none besides what was last written.
    pub(super) fn value(&self, reg: Reg) -> Option<u32> {
        let mac = self.config.mac;
        Some(match reg {
            Reg::Magic => MAGIC,
            Reg::AbiVersion => ABI_VERSION,
            Reg::Backend => BACKEND[usize::from(self.card.is_some())],
            Reg::Queues => self.queues.count(),
            Reg::Ipv4 => u32::from(self.config.ip),
            Reg::MacLo => u32::from_be_bytes([mac[2], mac[3], mac[4], mac[5]]),
            Reg::MacHi => u32::from(u16::from_be_bytes([mac[0], mac[1]])),
            Reg::Faults => self.counters.faults as u32,
            Reg::Accepted => self.counters.accepted as u32,
            Reg::Retired => self.counters.retired as u32,
            Reg::TxBytesLo => self.counters.tx_bytes as u32,
            Reg::TxBytesHi => (self.counters.tx_bytes >> 32) as u32,
            Reg::RxBytesLo => self.counters.rx_bytes as u32,
            Reg::RxBytesHi => (self.counters.rx_bytes >> 32) as u32,
            Reg::FramesDropped => self.streams.network.refused_frames() as u32,
            Reg::Ports => self.streams.network.ports().len() as u32,
            Reg::FramesSent => self.streams.network.sum(|c| c.tx_frames) as u32,
            Reg::FramesReceived => self.streams.network.sum(|c| c.rx_frames) as u32,
            Reg::FramesLost => self.streams.network.sum(|c| c.tx_dropped) as u32,
            Reg::EventsLost => self.counters.events_lost as u32,
            Reg::Sessions => self.streams.sessions.len() as u32,
            Reg::BadDescriptor => self.report.last_bad,
            Reg::Heartbeat => self.counters.steps as u32,
            Reg::Blocks => HEADERS_BASE as u32,
            Reg::MailboxTaken => self.report.mailbox.taken,
            other => return self.memory.mmu.read_register(other),
        })
    }
}
