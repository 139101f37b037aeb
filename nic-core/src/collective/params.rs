//! The parameters of an operation, on which ranks must agree before they move a byte, and its
//! buffers.

use ringbell_nic_abi::{Algorithm, CollectiveKind, DataType, ReduceOp, WireType};

/// A buffer of the operation.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Side {
    pub(crate) region: u32,
    pub(crate) va: u64,
}

/// Whether the blocks of all ranks follow each other in an operation when it is streamed, so that a
/// stream can stand for all of them. Ranks that relay blocks would have to hold them meanwhile.
pub(crate) fn takes_blocks_in_order(kind: CollectiveKind, algo: Algorithm) -> bool {
    use CollectiveKind as K;
    matches!(kind, K::Scatter | K::Gather) && algo == Algorithm::Flat
}

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
    /// It takes the direct path, or has tried to: `algo` is what messages would use.
    pub(crate) direct: bool,
}

/// Whether an operation may take the direct path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// It goes over messages.
    Messages,
    /// When there is one.
    MayDirect,
    /// It fails when there is none.
    MustDirect,
}

/// FNV-1a over words, folded to 32 bits: it detects mistakes, not attacks.
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
        [
            lo,
            u32::from(self.wire.code()) | u32::from(self.direct) << 8,
        ]
    }

    /// Back from the words of a frame; `None` when a code is unknown.
    pub(crate) fn from_wire(tag: u64, count: u64, small: [u32; 2]) -> Option<Params> {
        let [lo, hi] = small;
        Some(Params {
            kind: CollectiveKind::from_code(lo as u8)?,
            dtype: DataType::from_code((lo >> 8) as u8)?,
            op: ReduceOp::from_code((lo >> 16) as u8)?,
            algo: Algorithm::from_code((lo >> 24) as u8)?,
            wire: WireType::from_code(hi as u8)?,
            direct: match hi >> 8 {
                0 => false,
                1 => true,
                _ => return None,
            },
            root: tag as u32,
            extra: (tag >> 32) as u32,
            count,
        })
    }

    /// Its difference from another rank's, as readable text; `None`: there is none.
    pub(crate) fn difference(&self, theirs: &Params) -> Option<String> {
        // Taken apart, so that a new field cannot be forgotten here.
        let Params {
            kind,
            dtype,
            op,
            algo,
            wire,
            root,
            count,
            extra,
            direct,
        } = theirs;
        let name = |a: &str, b: &str| Some((a.to_owned(), b.to_owned()));
        let number = |a: u64, b: u64| Some((a.to_string(), b.to_string()));
        let path = |direct: bool, algo: Algorithm| match direct {
            true => "AUTO or DIRECT, over the ranks' memory".to_owned(),
            false => format!("{} over messages", algo.name()),
        };
        let (what, both) = if self.kind != *kind {
            ("operation", name(self.kind.name(), kind.name()))
        } else if self.count != *count {
            ("count", number(self.count, *count))
        } else if self.dtype != *dtype {
            ("type", name(self.dtype.name(), dtype.name()))
        } else if self.op != *op {
            ("reduction", name(self.op.name(), op.name()))
        } else if self.root != *root {
            ("root", number(self.root.into(), (*root).into()))
        } else if self.wire != *wire {
            ("type on the wire", name(self.wire.name(), wire.name()))
        } else if (self.direct, self.algo) != (*direct, *algo) {
            let both = (path(self.direct, self.algo), path(*direct, *algo));
            ("algorithm", Some(both))
        } else if self.extra != *extra {
            ("program, or whether it is streamed", None)
        } else {
            return None;
        };
        Some(match both {
            Some((ours, theirs)) => format!("{what} ({ours}, not {theirs})"),
            None => what.to_owned(),
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
