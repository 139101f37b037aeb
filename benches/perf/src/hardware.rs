//! What simulated hardware has done in a part of a measurement, in cycles of its own clock. The
//! wall clock says nothing about it.

use ringbell::nic::{CardCounts, CARD_CLOCK_HZ};
use ringbell::Nic;

/// Counts at the start of a part.
#[derive(Debug, Clone, Copy)]
pub struct Hardware(CardCounts);

impl Hardware {
    /// From now on; `None` for a NIC that is software alone.
    pub fn of(nic: &Nic) -> Option<Hardware> {
        nic.backend().card_counts().map(Hardware)
    }

    /// What was done since, as a line; the next part begins.
    pub fn part(&mut self, nic: &Nic, what: &str) -> Option<String> {
        let now = nic.backend().card_counts()?;
        let before = std::mem::replace(&mut self.0, now);
        Some(line(what, &before, &now))
    }
}

fn line(what: &str, before: &CardCounts, now: &CardCounts) -> String {
    let of = |f: fn(&CardCounts) -> u64| f(now) - f(before);
    let cycles = of(|c| c.cycles.busy);
    let beats = of(|c| c.cycles.tx_beats + c.cycles.rx_beats);
    let bytes = of(|c| c.tx_bytes + c.rx_bytes);
    let seconds = cycles as f64 / CARD_CLOCK_HZ as f64;
    let mut text = format!(
        "hardware of this NIC, {what}: {cycles} cycles at work ({:.1} us at {} MHz), {beats} beats ({:.2} a cycle), {bytes} B ({:.2} GB/s); \
         {} descriptors; {} operations in software; simulated at {:.0} K cycles a second of wall clock",
        seconds * 1e6,
        CARD_CLOCK_HZ / 1_000_000,
        beats as f64 / cycles.max(1) as f64,
        bytes as f64 / seconds.max(1e-9) / 1e9,
        of(|c| c.cycles.fetched),
        of(|c| c.in_software),
        of(|c| c.cycles.cycles) as f64 * 1e6 / of(|c| c.cycles.simulated_ns).max(1) as f64,
    );
    let (seen, stalls) = (
        of(|c| c.cycles.engine_beats),
        of(|c| c.cycles.engine_stalls),
    );
    if seen + stalls > 0 {
        text += &format!("; engine: {seen} beats, {stalls} cycles of stalls");
    }
    let (reduced, at_work) = (
        of(|c| c.cycles.reduce_beats),
        of(|c| c.cycles.reduce_cycles),
    );
    if reduced > 0 {
        let rate = reduced as f64 / at_work.max(1) as f64;
        text += &format!("; reductions: {reduced} beats in {at_work} cycles ({rate:.2} a cycle)");
    }
    let (steps, sent, at_work) = (
        of(|c| c.cycles.ring.steps),
        of(|c| c.cycles.ring.beats),
        of(|c| c.cycles.ring.cycles),
    );
    if steps > 0 {
        let seconds = at_work.max(1) as f64 / CARD_CLOCK_HZ as f64;
        let rate = sent as f64 * 64.0 / seconds / 1e9;
        text += &format!(
            "; sequencer: {} collectives, {steps} steps, {sent} beats to the next NIC in {at_work} cycles (bus bandwidth {rate:.2} GB/s, without waits for the network)",
            of(|c| c.programs)
        );
    }
    let apart = of(|c| c.programs_in_software);
    if apart > 0 {
        text += &format!("; {apart} collectives of a ring with their steps in software");
    }
    let apart = of(|c| c.reductions_in_software);
    if apart > 0 {
        text += &format!("; {apart} reductions in software");
    }
    text
}

/// What a report of simulated hardware begins with.
pub const NOTE: &str =
    "the hardware is simulated: times and bandwidths of the table are the simulation's, those of the hardware are in the lines `hardware`, \
     with warm-up and checks";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_the_stated_clock() {
        let before = CardCounts::default();
        let mut now = before;
        now.cycles.busy = 1_000;
        now.cycles.tx_beats = 500;
        now.tx_bytes = 32_000;
        // 2,000 cycles, half of them idle, in 10 ms.
        (now.cycles.cycles, now.cycles.simulated_ns) = (2_000, 10_000_000);
        let text = line("64", &before, &now);
        assert!(!text.contains("engine") && !text.contains("reductions"));
        now.cycles.engine_beats = 7;
        (now.cycles.reduce_beats, now.cycles.reduce_cycles) = (50, 100);
        assert!(!line("64", &before, &now).contains("sequencer"));
        let mut on_card = now;
        (on_card.programs, on_card.cycles.ring.steps) = (2, 14);
        (on_card.cycles.ring.beats, on_card.cycles.ring.cycles) = (1_000, 2_000);
        let on_card = line("64", &before, &on_card);
        assert!(on_card.contains("sequencer: 2 collectives, 14 steps, 1000 beats to the next NIC in 2000 cycles (bus bandwidth 8.00 GB/s"), "{on_card}");
        let more = line("64", &before, &now);
        assert!(more.ends_with("engine: 7 beats, 0 cycles of stalls; reductions: 50 beats in 100 cycles (0.50 a cycle)"), "{more}");
        assert!(text.contains("1000 cycles at work (4.0 us at 250 MHz), 500 beats (0.50 a cycle), 32000 B (8.00 GB/s)"), "{text}");
        assert!(
            text.ends_with("simulated at 200 K cycles a second of wall clock"),
            "{text}"
        );
    }
}
