//! Which algorithm an operation runs when it names none.
//!
//! All that are chosen here reduce in the order of FpgaNIC's Table 8, so the choice never changes a bit
//! of the result.

use ringbell_nic_abi::{Algorithm, CollectiveKind};

/// Bytes of a block up to which latency counts more than bandwidth.
const SMALL: u64 = 8 << 10;

/// The algorithm for `bytes` per block among `ranks`.
pub(crate) fn choose(kind: CollectiveKind, ranks: u32, bytes: u64) -> Algorithm {
    use Algorithm as A;
    let small = bytes <= SMALL;
    match kind {
        CollectiveKind::AllReduce if small && ranks <= 16 => A::RecursiveDoubling,
        CollectiveKind::AllReduce => A::Ring,
        CollectiveKind::Broadcast if small => A::RecursiveDoubling,
        CollectiveKind::Broadcast => A::Chain,
        CollectiveKind::Reduce if small => A::Flat,
        CollectiveKind::Reduce => A::Ring,
        CollectiveKind::Gather if small => A::Tree,
        CollectiveKind::AllGather if small => A::RecursiveDoubling,
        CollectiveKind::AllGather => A::Ring,
        CollectiveKind::ReduceScatter => A::Pairwise,
        CollectiveKind::AllToAll => A::Pairwise,
        CollectiveKind::Barrier => A::RecursiveDoubling,
        _ => A::Flat,
    }
}
