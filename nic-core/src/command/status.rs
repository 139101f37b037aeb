//! The status registers: their values, and the page that shows them.
//!
//! A read through the NIC returns the present value. A reader of the shared page (a
//! kernel, `ringbell regs` in another process) sees the value that the NIC last wrote there.

use std::time::Duration;

use ringbell_nic_abi::bar::{Reg, MAGIC};
use ringbell_nic_abi::ABI_VERSION;

use super::{Core, Counters};
use crate::bar::Bar;
use crate::types::NicTime;

/// How old the page may grow while the NIC is stepped.
const REFRESH: Duration = Duration::from_millis(20);
/// Value of [`Reg::Backend`] for the software NIC.
const BACKEND_SOFT: u32 = 1;

/// The page that shows the status registers.
#[derive(Debug, Default)]
pub(super) struct StatusPage {
    bar: Option<Bar>,
    due: NicTime,
}

impl Core {
    /// Shows the status registers in this BAR from now on.
    pub(crate) fn show_status_in(&mut self, bar: Bar) {
        self.report.status.bar = Some(bar);
        self.refresh_status();
    }

    /// Refreshes the page when it is due; called with each reading of the clock.
    pub(super) fn keep_status_fresh(&mut self) {
        if self.time.now >= self.report.status.due {
            self.refresh_status();
        }
    }

    fn refresh_status(&mut self) {
        self.report.status.due = self.time.now.plus(REFRESH);
        let Some(bar) = &self.report.status.bar else {
            return;
        };
        for &(reg, ..) in Reg::ALL {
            if let Some(value) = self.register_value(reg) {
                bar.set(reg, value);
            }
        }
    }

    /// The numbers that only grow, those of other modules included.
    pub(crate) fn counters(&self) -> Counters {
        Counters {
            copied_bytes: self.memory.dma.copied,
            staged_bytes: self.memory.dma.staged,
            direct_bytes: self.memory.dma.direct,
            events_lost: self.report.events.lost(),
            ..self.report.counters
        }
    }

    /// The value of a register now; none when it has none besides what was last written.
    pub(crate) fn register_value(&self, reg: Reg) -> Option<u32> {
        let counters = self.counters();
        let mac = self.config.mac;
        Some(match reg {
            Reg::Magic => MAGIC,
            Reg::AbiVersion => ABI_VERSION,
            Reg::Backend => BACKEND_SOFT,
            Reg::Queues => self.queue_count(),
            Reg::Ipv4 => u32::from(self.config.ip),
            Reg::MacLo => u32::from_be_bytes([mac[2], mac[3], mac[4], mac[5]]),
            Reg::MacHi => u32::from(u16::from_be_bytes([mac[0], mac[1]])),
            Reg::Faults => counters.faults as u32,
            Reg::Accepted => counters.accepted as u32,
            Reg::Retired => counters.retired as u32,
            Reg::TxBytesLo => counters.tx_bytes as u32,
            Reg::TxBytesHi => (counters.tx_bytes >> 32) as u32,
            Reg::RxBytesLo => counters.rx_bytes as u32,
            Reg::RxBytesHi => (counters.rx_bytes >> 32) as u32,
            Reg::EventsLost => counters.events_lost as u32,
            Reg::Sessions => self.sessions.len() as u32,
            Reg::BadDescriptor => self.report.last_bad,
            Reg::Heartbeat => counters.steps as u32,
            other => return self.memory.mmu.read_register(other),
        })
    }
}
