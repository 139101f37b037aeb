//! The smallest part of a plan that still fails.

/// Drops halves, quarters and so on, down to single operations, as long as the rest fails. Single
/// ones are tried again after one has gone.
pub(super) fn reduce(all: Vec<usize>, mut fails: impl FnMut(&[usize]) -> bool) -> Vec<usize> {
    let mut left = all;
    let mut size = left.len().div_ceil(2);
    while size > 0 {
        let (mut at, before) = (0, left.len());
        while at < left.len() {
            let mut rest = left.clone();
            rest.drain(at..(at + size).min(left.len()));
            match fails(&rest) {
                true => left = rest,
                false => at += size,
            }
        }
        size = match size {
            1 if left.len() < before => 1,
            1 => 0,
            _ => size.div_ceil(2),
        };
    }
    left
}

#[test]
fn what_a_failure_needs_is_left() {
    let fails = |ids: &[usize]| ids.contains(&7) && ids.contains(&23);
    assert_eq!(reduce((0..40).collect(), fails), [7, 23]);
    assert_eq!(reduce((0..40).collect(), |_| true), [0; 0]);
    // The first can go only when no other is left.
    let fails = |ids: &[usize]| ids.contains(&7) && (ids[0] == 0 || ids.len() == 1);
    assert_eq!(reduce((0..40).collect(), fails), [7]);
}
