//! The page that shows the status registers.
//!
//! A read through the NIC returns the present value. A reader of the shared page (a
//! kernel, `ringbell regs` in another process) sees the value that the NIC last wrote there.

use std::time::Duration;

use ringbell_nic_abi::bar::Reg;

use crate::bar::Bar;
use crate::types::NicTime;

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

    /// Stores the values of all registers that have one besides what was last written.
    pub(super) fn refresh(&mut self, now: NicTime, value: impl Fn(Reg) -> Option<u32>) {
        self.due = now.plus(REFRESH);
        let Some(bar) = &self.bar else { return };
        for &(reg, ..) in Reg::ALL {
            if let Some(value) = value(reg) {
                bar.set(reg, value);
            }
        }
    }
}
