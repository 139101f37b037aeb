//! Frames of a sum: a port that combines them on their way takes them to the address of their root
//! ([`Port::reached_by_tree`](crate::port::Port::reached_by_tree)).
//!
//! The root numbers its sums, one at a time. Each rank sends its elements in segments, and the
//! root's NIC gets one frame for each, with the elements of all.

use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::wire::MacAddr;

/// Segments that a root grants beyond those that it has: as many places each input has.
pub const WINDOW: usize = 32;
/// [`SumHead::kind`].
pub const SUM: u8 = 21;
/// The same of a frame by which a root grants: to all, without elements.
pub const GRANT: u8 = 22;
/// What stands behind the EtherType of a sum's frames. The elements follow, little endian.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct SumHead {
    /// [`SUM`], or [`GRANT`].
    pub kind: u8,
    /// Type of the elements: the code of a data type of the NIC.
    pub dtype: u8,
    /// The code of a reduction.
    pub op: u8,
    /// Zero.
    pub spare: u8,
    /// Bytes of the elements: a frame may be padded.
    pub len: U16,
    /// Ranks whose elements these are.
    pub ranks: U16,
    /// The root's number of the sum.
    pub id: U32,
    /// Number of the segment, from 0 on. Of a grant: of the first that is not granted.
    pub segment: U32,
}

/// Bytes of a [`SumHead`].
pub const SUM_HEAD: usize = size_of::<SumHead>();

/// The address of what is combined on its way to a root: the root's, as that of a group.
pub fn sum_to(root: MacAddr) -> MacAddr {
    let mut address = root;
    address.0[0] |= 1;
    address
}
