//! Hardware addresses of ranks.

use ringbell_nic_core::wire::MacAddr;

/// Address of a rank's port: locally administered.
pub(crate) fn mac(rank: usize) -> MacAddr {
    let [high, low] = (rank as u16).to_be_bytes();
    MacAddr([0x02, 0x53, 0x49, 0x4d, high, low])
}

/// The rank whose port has an address.
pub(super) fn rank_of(address: &[u8], ranks: usize) -> Option<usize> {
    let rank = usize::from(u16::from_be_bytes([address[4], address[5]]));
    (rank < ranks && mac(rank).0 == *address).then_some(rank)
}
