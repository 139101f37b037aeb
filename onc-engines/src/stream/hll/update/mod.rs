//! The update of registers by items, on each instruction set.
//!
//! Almost every item changes nothing: its rank is not above the lowest register. So each kernel
//! first compares the rank's hash with a threshold made from that *floor*, without touching a
//! register, and looks only at the few items that pass, in the order of the stream. Registers, and
//! the history that depends on the order of their changes, are therefore the same on every
//! instruction set.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

use super::hash::{kind, HashKind};
use super::registers::Registers;

/// An instruction set that the update is compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Isa {
    /// The base instruction set of the architecture.
    Scalar,
    /// AVX2.
    Avx2,
    /// AVX-512 F, BW, CD, DQ and VL.
    Avx512,
}

impl Isa {
    /// All that this machine has, the best last.
    pub fn available() -> Vec<Isa> {
        [Isa::Scalar, Isa::Avx2, Isa::Avx512]
            .into_iter()
            .filter(|isa| isa.is_available())
            .collect()
    }

    /// The best that this machine has.
    pub fn best() -> Isa {
        [Isa::Avx512, Isa::Avx2]
            .into_iter()
            .find(|isa| isa.is_available())
            .unwrap_or(Isa::Scalar)
    }

    /// Whether this machine has it.
    pub fn is_available(self) -> bool {
        match self {
            Isa::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => portable::has_avx2(),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => avx512::is_available(),
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }

    /// As in reports.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
        }
    }
}

/// Takes whole items of `width` bytes. `isa` must be available on this machine.
///
/// # Panics
/// When the instruction set is not there, or the bytes are no whole items.
pub(super) fn update(
    registers: &mut Registers,
    isa: Isa,
    hash: HashKind,
    width: usize,
    items: &[u8],
) {
    assert!(
        items.len().is_multiple_of(width),
        "{} bytes are no whole items of {width}",
        items.len()
    );
    assert!(isa.is_available(), "this machine has no {}", isa.name());
    macro_rules! by_width {
        ($Kind:ident) => {
            match width {
                1 => run::<{ kind::$Kind }, 1>(registers, isa, items),
                2 => run::<{ kind::$Kind }, 2>(registers, isa, items),
                4 => run::<{ kind::$Kind }, 4>(registers, isa, items),
                8 => run::<{ kind::$Kind }, 8>(registers, isa, items),
                _ => run::<{ kind::$Kind }, 16>(registers, isa, items),
            }
        };
    }
    match hash {
        HashKind::Mix => by_width!(MIX),
        HashKind::Murmur3 => by_width!(MURMUR3),
        HashKind::DataSketches => by_width!(DATASKETCHES),
        HashKind::DataSketchesBytes => by_width!(DATASKETCHES_BYTES),
    }
}

fn run<const KIND: u8, const W: usize>(registers: &mut Registers, isa: Isa, items: &[u8]) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => avx512::update::<KIND, W>(registers, items),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => avx2::update::<KIND, W>(registers, items),
        _ => portable::update::<KIND, W>(registers, items),
    }
}
