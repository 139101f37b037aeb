//! Loops that can only wait: they look at the same words of others' memory in each turn, and change
//! none.

use std::collections::HashSet;

use crate::context::BUDGET;
use crate::module::{Base, Function, Op, Reg, Statement};

/// What a turn of such a loop costs: it gives way soon.
pub(super) const POLL: i64 = BUDGET as i64 / 4;

/// Whether the statements between a label and a branch back to it are such a loop. One that looks
/// at another word in each turn gets on: it reads an array.
pub(super) fn polls(f: &Function, from: usize, to: usize) -> bool {
    let body = || {
        f.body[from..=to].iter().filter_map(|s| match s {
            Statement::Instruction(i) => Some(i),
            Statement::Label(_) => None,
        })
    };
    let mut written = HashSet::new();
    body().for_each(|i| {
        i.op.writes(&mut |r| {
            written.insert(r);
        });
    });
    // Registers that have the same value in each turn, though it is computed anew.
    let mut same = HashSet::new();
    let mut looks = false;
    for i in body() {
        let constant = |r: &Reg| !written.contains(r) || same.contains(r);
        match &i.op {
            Op::Store { .. } | Op::Atomic { .. } | Op::Call { .. } | Op::CallAddress { .. } => {
                return false;
            }
            Op::Load { access, .. } if i.op.observes() => {
                looks = true;
                if matches!(&access.at.base, Base::Reg(r) if !constant(r)) {
                    return false;
                }
            }
            _ => {}
        }
        let mut all_constant = i.guard.is_none() && is_arithmetic(&i.op);
        i.op.reads(&mut |r| all_constant &= constant(&r));
        i.op.writes(&mut |r| {
            if all_constant {
                same.insert(r);
            } else {
                same.remove(&r);
            }
        });
    }
    looks
}

/// What computes addresses.
fn is_arithmetic(op: &Op) -> bool {
    matches!(
        op,
        Op::Move { .. }
            | Op::Pack { .. }
            | Op::Unpack { .. }
            | Op::Unary { .. }
            | Op::Binary { .. }
            | Op::Multiply { .. }
            | Op::MultiplyAdd { .. }
            | Op::Convert { .. }
            | Op::ConvertAddress { .. }
    )
}
