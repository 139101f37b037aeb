//! VXLAN (RFC 7348 §5): an Ethernet frame inside a UDP datagram.
//!
//! ```text
//! |R|R|R|R|I|R|R|R|   Reserved (24)        |
//! |        VNI (24)              | Reserved |
//! ```

use zerocopy::byteorder::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the header.
pub const VXLAN_HEADER: usize = 8;
/// The UDP port assigned to VXLAN (RFC 7348 §5).
pub const VXLAN_PORT: u16 = 4789;
/// Largest network identifier.
pub const VNI_MAX: u32 = 0x00ff_ffff;

const FLAG_VNI: u32 = 0x0800_0000;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    flags: U32,
    vni: U32,
}

/// The datagram is no VXLAN packet with a valid network identifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a VXLAN packet with a network identifier")]
pub struct NotVxlan;

/// Splits a datagram into network identifier and frame.
///
/// # Errors
/// [`NotVxlan`] when it is too short or the I flag is not set. Reserved bits are ignored on
/// receipt, as RFC 7348 §5 demands.
pub fn parse(datagram: &[u8]) -> Result<(u32, &[u8]), NotVxlan> {
    let (hdr, frame) = Header::ref_from_prefix(datagram).map_err(|_| NotVxlan)?;
    if hdr.flags.get() & FLAG_VNI == 0 {
        return Err(NotVxlan);
    }
    Ok((hdr.vni.get() >> 8, frame))
}

/// The header for a network identifier; bits above [`VNI_MAX`] are cut off.
pub fn header(vni: u32) -> [u8; VXLAN_HEADER] {
    let hdr = Header {
        flags: U32::new(FLAG_VNI),
        vni: U32::new((vni & VNI_MAX) << 8),
    };
    zerocopy::transmute!(hdr)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixture_of_rfc_7348() {
        assert_eq!(header(0x123456), [0x08, 0, 0, 0, 0x12, 0x34, 0x56, 0]);
        let mut d = header(VNI_MAX).to_vec();
        d.extend(b"frame");
        assert_eq!(parse(&d), Ok((VNI_MAX, &b"frame"[..])));
        d[0] = 0xf7; // everything but I
        assert_eq!(parse(&d), Err(NotVxlan));
        assert_eq!(parse(&d[..7]), Err(NotVxlan));
    }
}
