//! What ranks must agree on before they move a byte of an operation.

use ringbell_nic_abi::{Algorithm, CollectiveKind, DataType, ReduceOp, WireType};

/// Parameters of a collective operation. Every rank must give the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Params {
    pub(crate) kind: CollectiveKind,
    pub(crate) dtype: DataType,
    pub(crate) op: ReduceOp,
    /// As it runs: never `Auto`.
    pub(crate) algo: Algorithm,
    pub(crate) wire: WireType,
    pub(crate) root: u32,
    pub(crate) count: u64,
    /// Of the program and of the settings that shape messages.
    pub(crate) extra: u32,
}

/// FNV-1a over words, folded to 32 bits: it tells mistakes apart, not attackers.
pub(crate) fn fold(words: impl IntoIterator<Item = u64>) -> u32 {
    let mut h = 0xcbf2_9ce4_8422_2325u64;
    for w in words {
        for b in w.to_le_bytes() {
            h = (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3);
        }
    }
    (h ^ h >> 32) as u32
}

impl Params {
    /// Whether messages have another type than the elements.
    pub(crate) fn converts(&self) -> bool {
        self.wire != WireType::Same
    }

    /// The codes, packed.
    pub(crate) fn small(&self) -> [u32; 2] {
        let lo = u32::from(self.kind.code())
            | u32::from(self.dtype.code()) << 8
            | u32::from(self.op.code()) << 16
            | u32::from(self.algo.code()) << 24;
        [lo, self.wire.code().into()]
    }

    /// Back from the words of a frame; `None` when a code is unknown.
    pub(crate) fn from_wire(tag: u64, count: u64, small: [u32; 2]) -> Option<Params> {
        let [lo, hi] = small;
        Some(Params {
            kind: CollectiveKind::from_code(lo as u8)?,
            dtype: DataType::from_code((lo >> 8) as u8)?,
            op: ReduceOp::from_code((lo >> 16) as u8)?,
            algo: Algorithm::from_code((lo >> 24) as u8)?,
            wire: WireType::from_code(u8::try_from(hi).ok()?)?,
            root: tag as u32,
            extra: (tag >> 32) as u32,
            count,
        })
    }

    /// What every message of the operation carries; never 0.
    pub(crate) fn hash(&self) -> u32 {
        let [lo, hi] = self.small();
        let words = [
            u64::from(lo) | u64::from(hi) << 32,
            u64::from(self.root) | u64::from(self.extra) << 32,
            self.count,
        ];
        fold(words).max(1)
    }
}
