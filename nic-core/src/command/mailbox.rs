//! The mailbox: values that kernels tell the host by registers.
//!
//! A kernel stores a value to `MAILBOX_DATA`, then with release another number to `MAILBOX_RING`
//! than `MAILBOX_TAKEN` has. The NIC reports the value as an event, and then shows the number in
//! `MAILBOX_TAKEN`. With a card both stores pass its register file before.

use ringbell_nic_abi::bar::Reg;
use ringbell_nic_abi::EventKind;

use super::Core;
use crate::bar::Bar;

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
}

/// Takes what a kernel has put in. Returns whether there was something.
pub(super) fn poll(core: &mut Core) -> bool {
    let Some((ring, value)) = core.report.mailbox.rung() else {
        return false;
    };
    core.report.mailbox.passed = ring;
    let Some(card) = &core.card else {
        report(core, ring, value);
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
    drop(card);
    take_from_card(core);
    true
}

/// Takes what has come out of the card.
pub(super) fn take_from_card(core: &mut Core) {
    let Some(card) = &core.card else { return };
    let writes = card.lock().register_writes();
    for (index, value) in writes {
        match Reg::from_index(index) {
            Some(Reg::MailboxData) => core.report.mailbox.value = value,
            Some(Reg::MailboxRing) => report(core, value, core.report.mailbox.value),
            // Their work is done by the registers of the NIC's own BAR.
            _ => {}
        }
    }
}

fn report(core: &mut Core, ring: u32, value: u32) {
    let now = core.time.now;
    let events = &mut core.report.events;
    events.push(now, EventKind::Mailbox, ring, value.into());
    core.report.mailbox.taken = ring;
    if let Some(bar) = &core.report.mailbox.bar {
        bar.set(Reg::MailboxTaken, ring);
    }
}
