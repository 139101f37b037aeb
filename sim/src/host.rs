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

/// The NICs' processors. Times are picoseconds.
#[derive(Debug)]
pub(crate) struct Processors {
    costs: HostCosts,
    /// How many times as long each takes as the costs say.
    factors: Vec<f64>,
    /// When each has done what it was given.
    free: Vec<u64>,
}

impl Processors {
    pub(crate) fn new(nodes: usize, costs: HostCosts) -> Processors {
        Processors {
            costs,
            factors: vec![1.0; nodes],
            free: vec![0; nodes],
        }
    }

    /// A node's takes so many times as long.
    pub(crate) fn slow(&mut self, node: usize, factor: f64) {
        self.factors[node] *= factor;
    }

    fn pass(&mut self, at: u64, node: usize, len: usize) -> u64 {
        let work = self.costs.frame_ns * 1_000 + self.costs.byte_ps * len as u64;
        let work = (work as f64 * self.factors[node]).round() as u64;
        let done = self.free[node].max(at) + work;
        self.free[node] = done;
        done
    }

    /// When a frame that the NIC gives is at its link.
    pub(crate) fn sends(&mut self, at: u64, node: usize, len: usize) -> u64 {
        self.pass(at, node, len) + self.send_delay()
    }

    /// When the NIC has a frame that has crossed its link.
    pub(crate) fn receives(&mut self, at: u64, node: usize, len: usize) -> u64 {
        self.pass(at, node, len) + self.costs.receive_delay_ns * 1_000
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
        let mut all = Processors::new(2, costs);
        // 3 ns and 5 ps a byte; then 10 ns beside it.
        assert_eq!(all.sends(1_000, 0, 100), 1_000 + 3_500 + 10_000);
        assert_eq!(all.receives(2_000, 0, 200), 4_500 + 4_000 + 20_000);
        assert_eq!(all.sends(9_000, 0, 0), 9_000 + 3_000 + 10_000);
        assert_eq!(all.receives(0, 1, 0), 3_000 + 20_000);
        all.slow(1, 2.5);
        assert_eq!(all.receives(9_000, 1, 0), 9_000 + 7_500 + 20_000);
    }
}
