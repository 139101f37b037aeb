//! What NICs and hosts cost beside the network: a NIC's processor, the bus, doorbells.
//!
//! The processor takes one frame after the other, sent or received, as they come. Delays
//! pass beside it: a frame that is fetched or stored keeps no other one waiting.

/// Costs of a NIC and its host; zero where they are not modelled.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct HostCosts {
    /// From a post until the NIC finds it.
    pub doorbell_ns: u64,
    /// From the NIC's completion until the program sees it.
    pub completion_ns: u64,
    /// From the end of the processor's work until a frame is at the link: its payload is fetched.
    pub send_delay_ns: u64,
    /// From the end of the processor's work until a received frame is in memory.
    pub receive_delay_ns: u64,
    /// Processor's time for each frame, sent or received.
    pub frame_ns: u64,
    /// Processor's time for each byte of it, in picoseconds.
    pub byte_ps: u64,
}

/// A NIC's processor. Times are picoseconds.
#[derive(Debug)]
pub(crate) struct Processor {
    costs: HostCosts,
    /// How many times as long it takes as the costs say.
    factor: f64,
    /// When it has done what it was given.
    free: u64,
}

impl Processor {
    /// One that takes so many times as long as the costs say.
    pub(crate) fn new(costs: HostCosts, factor: f64) -> Processor {
        let free = 0;
        Processor {
            costs,
            factor,
            free,
        }
    }

    fn pass(&mut self, at: u64, len: usize) -> u64 {
        let work = self.costs.frame_ns * 1_000 + self.costs.byte_ps * len as u64;
        let work = (work as f64 * self.factor).round() as u64;
        self.free = self.free.max(at) + work;
        self.free
    }

    /// When a frame that the NIC gives is at its link.
    pub(crate) fn sends(&mut self, at: u64, len: usize) -> u64 {
        self.pass(at, len) + self.send_delay()
    }

    /// When the NIC has a frame that has crossed its link.
    pub(crate) fn receives(&mut self, at: u64, len: usize) -> u64 {
        self.pass(at, len) + self.costs.receive_delay_ns * 1_000
    }

    /// How long a frame is on its way to the link that keeps no other one waiting.
    pub(crate) fn send_delay(&self) -> u64 {
        self.costs.send_delay_ns * 1_000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_takes_one_frame_after_the_other() {
        let costs = HostCosts {
            send_delay_ns: 10,
            receive_delay_ns: 20,
            frame_ns: 3,
            byte_ps: 5,
            ..HostCosts::default()
        };
        let mut one = Processor::new(costs, 1.0);
        // 3 ns and 5 ps a byte; then 10 ns beside it.
        assert_eq!(one.sends(1_000, 100), 1_000 + 3_500 + 10_000);
        assert_eq!(one.receives(2_000, 200), 4_500 + 4_000 + 20_000);
        assert_eq!(one.sends(9_000, 0), 9_000 + 3_000 + 10_000);
        let mut slow = Processor::new(costs, 2.5);
        assert_eq!(slow.receives(9_000, 0), 9_000 + 7_500 + 20_000);
    }
}
