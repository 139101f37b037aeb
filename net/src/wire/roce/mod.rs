//! RoCEv2 packets: headers, their order, and the invariant CRC.
//!
//! ```text
//! | IP | UDP 4791 | BTH | headers of the operation | payload | pad | ICRC |
//! ```
//!
//! Each header has two types: a view that borrows received bytes of a checked length
//! ([`bth::BthView`], …), and a plain structure whose values are valid by construction and that
//! writes itself. [`packet::Packet`] reads a whole packet. Numbers are those of
//! [`ringbell_nic_abi::roce`], which hardware shares.
//!
//! IBTA vol. 1 chapter 9, and annex A17 (RoCEv2).

pub mod aeth;
pub mod bth;
pub mod cm;
pub mod extended;
pub mod icrc;
mod invalid;
pub mod mad;
pub mod packet;
pub mod psn;

pub use self::aeth::{Aeth, Syndrome};
pub use self::bth::{Bth, BTH_BYTES};
pub use self::extended::{AtomicEth, Deth, Extended, Reth};
pub use self::icrc::ICRC_BYTES;
pub use self::invalid::Invalid;
pub use self::packet::{Packet, REPORT_MAX};
pub use self::psn::{Psn, Qpn};

/// Layout of a word whose low 24 bits are a number, and whose high byte has another meaning.
fn join(high: u8, low: u32) -> u32 {
    u32::from(high) << 24 | low & 0x00ff_ffff
}
