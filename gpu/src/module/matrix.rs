//! Matrices that the lanes of a warp hold together (§9.7.14).

use super::asynchronous::Place;
use super::operand::{Operand, Reg, Target};

/// What a matrix consists of (§9.7.14.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Element {
    F16,
    Bf16,
    Tf32,
    F32,
    F64,
    S8,
    U8,
    S4,
    U4,
    B1,
    S32,
    E4m3,
    E5m2,
}

impl Element {
    const ALL: [Element; 13] = [
        Element::F16,
        Element::Bf16,
        Element::Tf32,
        Element::F32,
        Element::F64,
        Element::S8,
        Element::U8,
        Element::S4,
        Element::U4,
        Element::B1,
        Element::S32,
        Element::E4m3,
        Element::E5m2,
    ];

    /// By its name, without the dot.
    pub(crate) fn named(name: &str) -> Option<Element> {
        Some(match name {
            "f16" => Element::F16,
            "bf16" => Element::Bf16,
            "tf32" => Element::Tf32,
            "f32" => Element::F32,
            "f64" => Element::F64,
            "s8" => Element::S8,
            "u8" => Element::U8,
            "s4" => Element::S4,
            "u4" => Element::U4,
            "b1" => Element::B1,
            "s32" => Element::S32,
            "e4m3" => Element::E4m3,
            "e5m2" => Element::E5m2,
            _ => return None,
        })
    }

    pub(crate) fn bits(self) -> u32 {
        match self {
            Element::F64 => 64,
            Element::F32 | Element::Tf32 | Element::S32 => 32,
            Element::F16 | Element::Bf16 => 16,
            Element::S4 | Element::U4 => 4,
            Element::B1 => 1,
            _ => 8,
        }
    }

    pub(crate) fn is_integer(self) -> bool {
        use Element as E;
        matches!(self, E::S8 | E::U8 | E::S4 | E::U4 | E::B1 | E::S32)
    }

    fn number(self) -> u64 {
        Element::ALL.iter().position(|e| *e == self).unwrap_or(0) as u64
    }
}

/// `D = A * B + C`, of which `A` is m by k and `B` k by n.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Product {
    pub(crate) m: u32,
    pub(crate) n: u32,
    pub(crate) k: u32,
    pub(crate) a: Element,
    pub(crate) b: Element,
    /// Of `C`.
    pub(crate) c: Element,
    pub(crate) d: Element,
    /// `.satfinite`.
    pub(crate) saturate: bool,
    /// Of single bits: `and` instead of `xor`.
    pub(crate) and: bool,
    /// Fragments of `wmma`, whose order is ours.
    pub(crate) linear: bool,
}

impl Product {
    /// 32-bit words of a lane, for `A`, `B`, `C` and `D`.
    pub(crate) fn words(&self) -> [u32; 4] {
        let words = |rows: u32, columns: u32, e: Element| rows * columns * e.bits() / 1024;
        [
            words(self.m, self.k, self.a),
            words(self.n, self.k, self.b),
            words(self.m, self.n, self.c),
            words(self.m, self.n, self.d),
        ]
    }

    /// As a constant of compiled code.
    pub(crate) fn pack(&self) -> u64 {
        let elements = [self.a, self.b, self.c, self.d];
        let elements = elements.iter().fold(0, |v, e| v << 4 | e.number());
        let flags = [self.saturate, self.and, self.linear];
        let flags = flags.iter().fold(0, |v, f| v << 1 | u64::from(*f));
        u64::from(self.m)
            | u64::from(self.n) << 8
            | u64::from(self.k) << 16
            | elements << 32
            | flags << 48
    }

    pub(crate) fn unpack(word: u64) -> Product {
        let element = |n: u32| Element::ALL[(word >> (32 + 4 * n) & 15).min(12) as usize];
        let flag = |n: u32| word >> (48 + n) & 1 == 1;
        Product {
            m: word as u32 & 255,
            n: word as u32 >> 8 & 255,
            k: word as u32 >> 16,
            a: element(3),
            b: element(2),
            c: element(1),
            d: element(0),
            saturate: flag(2),
            and: flag(1),
            linear: flag(0),
        }
    }
}

/// A matrix of `wmma` in memory and in the registers of a warp. A lane holds elements that follow
/// each other in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fragment {
    pub(crate) rows: u32,
    pub(crate) columns: u32,
    pub(crate) element: Element,
    /// Whether the elements of a row lie next to each other in memory; else those of a column.
    pub(crate) by_rows: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum MatrixOp {
    /// `ldmatrix` (§9.7.14.5.15): one register for each matrix.
    Load {
        transpose: bool,
        from: Place,
        to: Vec<Target>,
    },
    /// `stmatrix`.
    Store {
        transpose: bool,
        to: Place,
        from: Vec<Operand>,
    },
    /// `movmatrix`.
    Transpose { to: Target, from: Operand },
    /// `mma`, `wmma.mma`. `args` are those of `A`, `B` and `C`.
    Multiply {
        product: Product,
        to: Vec<Target>,
        args: [Vec<Operand>; 3],
    },
    /// `wmma.load`.
    LoadFragment {
        fragment: Fragment,
        from: Place,
        stride: Option<Operand>,
        to: Vec<Target>,
    },
    /// `wmma.store`.
    StoreFragment {
        fragment: Fragment,
        to: Place,
        stride: Option<Operand>,
        from: Vec<Operand>,
    },
}

impl MatrixOp {
    pub(super) fn waits(&self) -> bool {
        !matches!(
            self,
            MatrixOp::LoadFragment { .. } | MatrixOp::StoreFragment { .. }
        )
    }

    pub(super) fn reads(&self, f: &mut dyn FnMut(Reg)) {
        let (place, operands): (Option<&Place>, Vec<&Operand>) = match self {
            MatrixOp::Load { from, .. } => (Some(from), Vec::new()),
            MatrixOp::Store { to, from, .. } => (Some(to), from.iter().collect()),
            MatrixOp::Transpose { from, .. } => (None, vec![from]),
            MatrixOp::Multiply { args, .. } => (None, args.iter().flatten().collect()),
            MatrixOp::LoadFragment { from, stride, .. } => (Some(from), stride.iter().collect()),
            MatrixOp::StoreFragment {
                to, stride, from, ..
            } => (Some(to), stride.iter().chain(from).collect()),
        };
        let address = place.and_then(|p| p.at.register());
        let operands = operands.iter().filter_map(|o| o.register());
        address.into_iter().chain(operands).for_each(f);
    }

    pub(super) fn writes(&self, f: &mut dyn FnMut(Reg)) {
        match self {
            MatrixOp::Load { to, .. }
            | MatrixOp::Multiply { to, .. }
            | MatrixOp::LoadFragment { to, .. } => to.iter().flatten().for_each(|r| f(*r)),
            MatrixOp::Transpose { to, .. } => to.iter().for_each(|r| f(*r)),
            MatrixOp::Store { .. } | MatrixOp::StoreFragment { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packed_product_says_what_it_was() {
        for (i, a) in Element::ALL.into_iter().enumerate() {
            let other = |n: usize| Element::ALL[(i + n) % Element::ALL.len()];
            let product = Product {
                m: 16,
                n: 8,
                k: 256,
                a,
                b: other(1),
                c: other(2),
                d: other(3),
                saturate: i % 2 == 0,
                and: i % 3 == 0,
                linear: i % 5 == 0,
            };
            assert_eq!(Product::unpack(product.pack()), product);
        }
    }
}
