//! Header of a management datagram (IBTA vol. 1 §13.4.3).

use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a datagram.
pub const MAD_BYTES: usize = 256;
/// Bytes of its header.
pub const MAD_HEADER: usize = 24;

const BASE_VERSION: u8 = 1;
/// Communication management (§16.7), and its version.
const CLASS_CM: u8 = 7;
const CLASS_VERSION: u8 = 2;
/// Method `ComMgtSend`.
const METHOD_SEND: u8 = 3;

/// The header as it lies in a datagram.
#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct MadView {
    base_version: u8,
    class: u8,
    class_version: u8,
    method: u8,
    status: U16,
    class_specific: U16,
    transaction: U64,
    attribute: U16,
    reserved: U16,
    modifier: U32,
}

/// A valid header of communication management.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mad {
    /// Number of the transaction, chosen by the sender of its first message.
    pub transaction: u64,
    /// Kind of the message.
    pub attribute: u16,
}

impl Mad {
    /// Reads the header of a datagram. `None`: another class, version or method.
    pub fn parse(bytes: &[u8; MAD_BYTES]) -> Option<Mad> {
        let (view, _) = MadView::ref_from_prefix(bytes).ok()?;
        let ours = (view.base_version, view.class, view.class_version)
            == (BASE_VERSION, CLASS_CM, CLASS_VERSION);
        (ours && view.method == METHOD_SEND).then(|| Mad {
            transaction: view.transaction.get(),
            attribute: view.attribute.get(),
        })
    }

    /// Writes the header to the front of a datagram.
    pub fn emit(&self, bytes: &mut [u8; MAD_BYTES]) {
        let view = MadView {
            base_version: BASE_VERSION,
            class: CLASS_CM,
            class_version: CLASS_VERSION,
            method: METHOD_SEND,
            status: U16::ZERO,
            class_specific: U16::ZERO,
            transaction: U64::new(self.transaction),
            attribute: U16::new(self.attribute),
            reserved: U16::ZERO,
            modifier: U32::ZERO,
        };
        bytes[..MAD_HEADER].copy_from_slice(view.as_bytes());
    }
}
