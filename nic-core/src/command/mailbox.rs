//! The mailbox: values that kernels tell the host by registers.
//!
//! A kernel stores a value to `MAILBOX_DATA`, then with release another number to `MAILBOX_RING`
//! than `MAILBOX_TAKEN` has. The NIC reports the value as an event, and then shows the number in
//! `MAILBOX_TAKEN`. With a card both stores pass its register file before.

use ringbell_nic_abi::bar::Reg;
use ringbell_nic_abi::EventKind;

use crate::bar::Bar;
use crate::card::SharedCard;
use crate::event::EventQueue;
use crate::types::NicTime;

/// See the module text.
#[derive(Debug, Default)]
pub(super) struct Mailbox {
    bar: Option<Bar>,
    /// The last number whose value was reported.
    pub(super) taken: u32,
    /// With a card: the number that was passed to it last.
    passed: u32,
    /// The same: the value that came out of it last.
    value: u32,
}

impl Mailbox {
    pub(super) fn show_in(&mut self, bar: Bar) {
        self.bar = Some(bar);
    }

    /// A number that was not seen before, with its value.
    fn rung(&self) -> Option<(u32, u32)> {
        let bar = self.bar.as_ref()?;
        // Acquires the value, which was stored before.
        let ring = bar.load(Reg::MailboxRing.offset());
        (ring != self.passed).then(|| (ring, bar.load(Reg::MailboxData.offset())))
    }

    /// Takes what a kernel has put in, and reports it. Returns whether there was something.
    pub(super) fn poll(
        &mut self,
        now: NicTime,
        card: Option<&SharedCard>,
        events: &mut EventQueue,
    ) -> bool {
        let Some((ring, value)) = self.rung() else {
            return false;
        };
        self.passed = ring;
        let Some(card) = card else {
            self.report((ring, value), now, events);
            return true;
        };
        let mut card = card.lock();
        for (reg, value) in [(Reg::MailboxData, value), (Reg::MailboxRing, ring)] {
            if !card.bar_write(reg, value) {
                tracing::error!(
                    reg = reg.name(),
                    value,
                    "the card refuses a register of kernels"
                );
            }
        }
        // What has come out of it.
        for (index, value) in card.register_writes() {
            match Reg::from_index(index) {
                Some(Reg::MailboxData) => self.value = value,
                Some(Reg::MailboxRing) => self.report((value, self.value), now, events),
                // Their work is done by the registers of the NIC's own BAR.
                _ => {}
            }
        }
        true
    }

    fn report(&mut self, (ring, value): (u32, u32), now: NicTime, events: &mut EventQueue) {
        events.push(now, EventKind::Mailbox, ring, value.into());
        self.taken = ring;
        if let Some(bar) = &self.bar {
            bar.set(Reg::MailboxTaken, ring);
        }
    }
}
