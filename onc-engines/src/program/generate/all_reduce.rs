//! All-reduce over the network.

use super::Builder;
use crate::program::{Operand, Order, Program, Target};

/// FpgaNIC's ring (§A.2.2, Table 8): rank p starts with its chunk p, adds its own to what arrives and
/// forwards; after n - 1 steps it has chunk p + 1 whole, and the whole chunks go round once more.
///
/// Partial results lie in NIC memory, in the slot of their chunk. The first message goes from the source
/// straight to the network (Table 8 reads it into NIC memory in t_0).
pub(super) fn ring(b: Builder) -> Program {
    let n = b.n();
    let mut b = b.buffers(n, n, n).order(Order::Ring);
    let p = b.rank();
    if n == 1 {
        b.step(0, [Operand::input(0)], [Target::output(0)]);
        return b.finish(0);
    }
    let (next, previous) = (b.after(1), b.before(1));
    b.step(0, [Operand::input(p)], [Target::to(next)]);
    for t in 1..n {
        let chunk = b.before(t);
        let kept = if t < n - 1 {
            Target::scratch(chunk)
        } else {
            Target::output(chunk)
        };
        b.step(
            t,
            [Operand::from(previous), Operand::input(chunk)],
            [kept, Target::to(next)],
        );
    }
    for t in n..2 * n - 2 {
        let chunk = b.before(t);
        b.step(
            t,
            [Operand::from(previous)],
            [Target::output(chunk), Target::to(next)],
        );
    }
    let last = 2 * n - 2;
    let chunk = b.before(last);
    b.step(last, [Operand::from(previous)], [Target::output(chunk)]);
    b.finish(if n > 2 { n } else { 0 })
}

#[cfg(test)]
mod tests {
    use ringbell_nic_abi::{Algorithm, CollectiveKind};

    use super::*;
    use crate::program::generate;

    #[test]
    fn rank_0_of_4_runs_the_first_row_of_table_8() {
        let p = generate(CollectiveKind::AllReduce, Algorithm::Ring, 4, 0, 0).unwrap();
        let chunks: Vec<_> = p
            .steps
            .iter()
            .map(|s| s.home().map(|h| h.chunks().first))
            .collect();
        // Sent: G0, then what was reduced or received in t1 to t5; the last is only kept.
        assert_eq!(
            chunks,
            [Some(0), Some(3), Some(2), Some(1), Some(0), Some(3), None]
        );
        assert_eq!(p.steps[6].results, [Target::output(2)]);
    }
}
