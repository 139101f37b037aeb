//! Extended transport headers of requests and answers (IBTA vol. 1 §9.3), in the order of an
//! operation.

use ringbell_nic_abi::RoceOpcode;
use zerocopy::byteorder::network_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::aeth::Aeth;
use super::invalid::Invalid;
use super::Qpn;

/// RDMA extended transport header (§9.3.3): the remote memory of a READ or a WRITE.
#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RethView {
    address: U64,
    key: U32,
    length: U32,
}

/// Datagram extended transport header (§9.3.2).
#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DethView {
    key: U32,
    source: U32,
}

/// Atomic extended transport header (§9.3.4).
#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct AtomicEthView {
    address: U64,
    key: U32,
    swap_or_add: U64,
    compare: U64,
}

/// Remote memory of a READ or a WRITE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reth {
    /// First byte, in the responder's addresses.
    pub address: u64,
    /// The responder's remote key.
    pub key: u32,
    /// Bytes of the whole message, at most 2^31 (§9.7.7.1.1).
    pub length: u32,
}

/// Addressing of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deth {
    /// Queue key, which must be the receiver's.
    pub key: u32,
    /// The sending queue pair.
    pub source: Qpn,
    /// The byte before it. It is reserved: 0 to other NICs, and of them without a meaning.
    pub reserved: u8,
}

/// Word and operands of an atomic operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AtomicEth {
    /// The word, in the responder's addresses, aligned to 8 bytes.
    pub address: u64,
    /// The responder's remote key.
    pub key: u32,
    /// The new value, or what is added.
    pub swap_or_add: u64,
    /// The value to compare with.
    pub compare: u64,
}

/// The headers between the base header and the payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extended {
    /// None.
    None,
    /// Immediate data (§9.3.6).
    Immediate(u32),
    /// A key to invalidate (§9.3.7).
    Invalidate(u32),
    /// Remote memory.
    Reth(Reth),
    /// Remote memory, and immediate data.
    RethImmediate(Reth, u32),
    /// An acknowledgement, or an answer to a READ.
    Aeth(Aeth),
    /// An answer to an atomic operation: the word's old value (§9.3.5.3).
    AtomicAck(Aeth, u64),
    /// A request for an atomic operation.
    Atomic(AtomicEth),
    /// A datagram.
    Datagram(Deth),
    /// A datagram with immediate data.
    DatagramImmediate(Deth, u32),
}

/// Most bytes of extended headers.
pub const EXTENDED_MAX: usize = 28;

fn word(bytes: &[u8]) -> Result<(u32, &[u8]), Invalid> {
    let (view, rest) = U32::ref_from_prefix(bytes).map_err(|_| Invalid::Length)?;
    Ok((view.get(), rest))
}

fn reth(bytes: &[u8]) -> Result<(Reth, &[u8]), Invalid> {
    let (view, rest) = RethView::ref_from_prefix(bytes).map_err(|_| Invalid::Length)?;
    let reth = Reth {
        address: view.address.get(),
        key: view.key.get(),
        length: view.length.get(),
    };
    Ok((reth, rest))
}

fn deth(bytes: &[u8]) -> Result<(Deth, &[u8]), Invalid> {
    let (view, rest) = DethView::ref_from_prefix(bytes).map_err(|_| Invalid::Length)?;
    let deth = Deth {
        key: view.key.get(),
        source: Qpn::new(view.source.get()),
        reserved: view.source.get().to_be_bytes()[0],
    };
    Ok((deth, rest))
}

impl Extended {
    /// Reads the headers that belong to an operation, and returns what follows them.
    ///
    /// # Errors
    /// [`Invalid`]: too short, or a reserved syndrome.
    #[inline]
    pub fn parse(opcode: RoceOpcode, bytes: &[u8]) -> Result<(Extended, &[u8]), Invalid> {
        use RoceOpcode as Op;
        Ok(match opcode {
            Op::SendFirst | Op::SendMiddle | Op::SendLast | Op::SendOnly => (Extended::None, bytes),
            Op::WriteMiddle | Op::WriteLast | Op::ReadResponseMiddle => (Extended::None, bytes),
            Op::SendLastImm | Op::SendOnlyImm | Op::WriteLastImm => {
                let (immediate, rest) = word(bytes)?;
                (Extended::Immediate(immediate), rest)
            }
            Op::SendLastInvalidate | Op::SendOnlyInvalidate => {
                let (key, rest) = word(bytes)?;
                (Extended::Invalidate(key), rest)
            }
            Op::WriteFirst | Op::WriteOnly | Op::ReadRequest => {
                let (reth, rest) = reth(bytes)?;
                (Extended::Reth(reth), rest)
            }
            Op::WriteOnlyImm => {
                let (reth, rest) = reth(bytes)?;
                let (immediate, rest) = word(rest)?;
                (Extended::RethImmediate(reth, immediate), rest)
            }
            Op::ReadResponseFirst
            | Op::ReadResponseLast
            | Op::ReadResponseOnly
            | Op::Acknowledge => {
                let (aeth, rest) = Aeth::parse(bytes)?;
                (Extended::Aeth(aeth), rest)
            }
            Op::AtomicAcknowledge => {
                let (aeth, rest) = Aeth::parse(bytes)?;
                let (old, rest) = U64::ref_from_prefix(rest).map_err(|_| Invalid::Length)?;
                (Extended::AtomicAck(aeth, old.get()), rest)
            }
            Op::CompareSwap | Op::FetchAdd => {
                let (view, rest) =
                    AtomicEthView::ref_from_prefix(bytes).map_err(|_| Invalid::Length)?;
                let atomic = AtomicEth {
                    address: view.address.get(),
                    key: view.key.get(),
                    swap_or_add: view.swap_or_add.get(),
                    compare: view.compare.get(),
                };
                (Extended::Atomic(atomic), rest)
            }
            Op::DatagramSend => {
                let (deth, rest) = deth(bytes)?;
                (Extended::Datagram(deth), rest)
            }
            Op::DatagramSendImm => {
                let (deth, rest) = deth(bytes)?;
                let (immediate, rest) = word(rest)?;
                (Extended::DatagramImmediate(deth, immediate), rest)
            }
            // 16 reserved bytes follow (§A17.9.3); they are the payload.
            Op::CongestionNotification => (Extended::None, bytes),
        })
    }

    /// Bytes of the headers.
    pub const fn len(&self) -> usize {
        match self {
            Extended::None => 0,
            Extended::Immediate(_) | Extended::Invalidate(_) | Extended::Aeth(_) => 4,
            Extended::Reth(_) => 16,
            Extended::RethImmediate(..) => 20,
            Extended::AtomicAck(..) => 12,
            Extended::Atomic(_) => 28,
            Extended::Datagram(_) => 8,
            Extended::DatagramImmediate(..) => 12,
        }
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes the headers to the front of `room`.
    ///
    /// # Panics
    /// When `room` is shorter than [`Extended::len`].
    #[inline]
    pub fn emit(&self, room: &mut [u8]) {
        let reth_bytes = |r: &Reth| -> [u8; 16] {
            zerocopy::transmute!(RethView {
                address: U64::new(r.address),
                key: U32::new(r.key),
                length: U32::new(r.length),
            })
        };
        let deth_bytes = |d: &Deth| -> [u8; 8] {
            zerocopy::transmute!(DethView {
                key: U32::new(d.key),
                source: U32::new(u32::from(d.reserved) << 24 | d.source.value()),
            })
        };
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            room[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        match self {
            Extended::None => {}
            Extended::Immediate(n) | Extended::Invalidate(n) => put(&n.to_be_bytes()),
            Extended::Reth(r) => put(&reth_bytes(r)),
            Extended::RethImmediate(r, n) => {
                put(&reth_bytes(r));
                put(&n.to_be_bytes());
            }
            Extended::Aeth(a) => put(&a.bytes()),
            Extended::AtomicAck(a, old) => {
                put(&a.bytes());
                put(&old.to_be_bytes());
            }
            Extended::Atomic(a) => put(AtomicEthView {
                address: U64::new(a.address),
                key: U32::new(a.key),
                swap_or_add: U64::new(a.swap_or_add),
                compare: U64::new(a.compare),
            }
            .as_bytes()),
            Extended::Datagram(d) => put(&deth_bytes(d)),
            Extended::DatagramImmediate(d, n) => {
                put(&deth_bytes(d));
                put(&n.to_be_bytes());
            }
        }
    }
}
