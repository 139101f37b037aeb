//! iWARP: remote direct memory access over TCP, as bytes.
//!
//! ```text
//! TCP ─▶ MPA (RFC 5044): start-up frames, then units with a length and a CRC-32C     [`mpa`]
//!         └▶ DDP (RFC 5041) and RDMAP (RFC 5040): where a unit's payload goes        [`ddp`]
//!             └▶ Reads and atomic operations                                         [`rdmap`]
//!             └▶ Terminate: why a connection ends (RFC 5040 §4.8)                    [`terminate`]
//!             └▶ what sessions of our NICs put into Sends and start-up frames        [`session`]
//! ```
//!
//! Numbers have their high byte first. Everything here takes untrusted bytes: it returns an error,
//! it never panics.

pub mod ddp;
pub mod mpa;
pub mod rdmap;
pub mod session;
pub mod terminate;

/// The big-endian number of 2 bytes at `at`, of a slice that has them.
fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// The big-endian number of 4 bytes at `at`, of a slice that has them.
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The big-endian number of 8 bytes at `at`, of a slice that has them.
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) << 32 | u64::from(u32_at(bytes, at + 4))
}
