//! Reductions of memory that nothing else writes.
#![allow(unsafe_code)] // The pass takes raw operands.

use ringbell_nic_abi::{DataType, ReduceOp};

use super::fused;

/// `first = first op rest[0] op rest[1] ...`, element by element, left to right, as
/// [`fused`](super::fused()) does it.
///
/// `false`: lengths differ or are no whole elements, and nothing is changed.
pub fn combine(dtype: DataType, op: ReduceOp, first: &mut [u8], rest: &[&[u8]]) -> bool {
    let size = dtype.bytes() as usize;
    let is_alike = |operand: &&[u8]| operand.len() == first.len();
    if !first.len().is_multiple_of(size) || !rest.iter().all(is_alike) {
        return false;
    }
    let n = first.len() / size;
    let first = first.as_mut_ptr();
    let operands: Vec<*const u8> = std::iter::once(first.cast_const())
        .chain(rest.iter().map(|o| o.as_ptr()))
        .collect();
    // SAFETY: every operand has n elements; the destination is the first of them, and apart from
    // the others, which are borrowed beside it.
    unsafe { fused(dtype, op, &[first], &operands, n, false) };
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_combined_and_others_refused() {
        let words = |v: [u32; 3]| v.map(u32::to_le_bytes).concat();
        let mut first = words([1, 2, u32::MAX]);
        let (a, b) = (words([10, 20, 1]), words([100, 200, 7]));
        let sum = (DataType::U32, ReduceOp::Sum);
        assert!(combine(sum.0, sum.1, &mut first, &[&a, &b]));
        assert_eq!(first, words([111, 222, 7]));
        assert!(!combine(sum.0, sum.1, &mut first, &[&a, &b[..8]]));
        assert!(!combine(sum.0, sum.1, &mut first[..6], &[&a[..6]]));
        assert_eq!(first, words([111, 222, 7]));
    }
}
