//! What the units of the command layer work with, and how they answer.

use ringbell_nic_abi::EventKind;

use super::memory::Memory;
use super::report::Report;
use crate::types::NicTime;

/// What the units work with besides their own state.
pub(crate) struct Env<'a> {
    pub(super) now: NicTime,
    pub(super) memory: &'a mut Memory,
    pub(super) report: &'a mut Report,
}

impl Env<'_> {
    /// Reports an event to the host.
    pub(super) fn push(&mut self, kind: EventKind, subject: u32, data: u64) {
        self.report.events.push(self.now, kind, subject, data);
    }
}
