//! Virtual time as each NIC sees it.

use ringbell_nic_core::types::NicTime;

use super::collective_support::Rng;
use super::plan::Plan;

/// When each NIC is stepped, and what time it is told.
pub(super) struct Clocks {
    /// Order of the NICs in a step; `None`: by number.
    order: Option<Rng>,
    /// Parts in a million by which each runs faster, and nanoseconds that it is ahead.
    drift: Vec<(u64, u64)>,
    /// When a NIC that pauses goes on, and its wire is whole again.
    pub(super) paused: Vec<u64>,
    pub(super) parted: Vec<u64>,
}

impl Clocks {
    pub(super) fn new(plan: &Plan) -> Clocks {
        let mut rng = Rng(plan.seed ^ 0xc10c);
        let drifts = plan.hosts.drifts;
        let mut drift = || match drifts {
            true => (rng.next() % 500, rng.next() % 1_000_000_000),
            false => (0, 0),
        };
        Clocks {
            drift: (0..plan.ranks).map(|_| drift()).collect(),
            order: plan.hosts.shuffled.then_some(Rng(plan.seed ^ 0x0dde)),
            paused: vec![0; plan.ranks],
            parted: vec![0; plan.ranks],
        }
    }

    /// The time of a NIC.
    pub(super) fn at(&self, rank: usize, now: u64) -> NicTime {
        let (ppm, ahead) = self.drift[rank];
        NicTime(now + now / 1_000_000 * ppm + ahead)
    }

    /// About when a NIC's clock shows a time, not later.
    pub(super) fn when(&self, rank: usize, time: NicTime) -> u64 {
        let (ppm, ahead) = self.drift[rank];
        let since = time.0.saturating_sub(ahead);
        since - since / 1_000_000 * ppm
    }

    /// The order of the next step.
    pub(super) fn order(&mut self) -> Vec<usize> {
        let n = self.drift.len();
        let mut order: Vec<usize> = (0..n).collect();
        if let Some(rng) = &mut self.order {
            for i in (1..n).rev() {
                order.swap(i, (rng.next() % (i as u64 + 1)) as usize);
            }
        }
        order
    }
}
