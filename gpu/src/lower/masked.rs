//! Loads that a compiler has moved in front of the condition under which the program makes them.
//!
//! `if (leader && r.ok())` becomes a load of `r` by all threads and an `or` of both conditions. The
//! program does not load where the other condition decides, so that such a load is no access there
//! for the checks of races.

use std::collections::HashMap;

use super::liveness::Liveness;
use crate::module::{BinaryOp, Function, Op, Operand, Reg, Statement};

/// Statements behind a load in which its condition is looked for.
const NEAR: usize = 12;

/// Statements of a function beyond which it is not looked for.
const LARGE: usize = 50_000;

/// The value of a load is used where this holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Condition {
    /// A register is 0 (of a predicate, false), or not.
    Zero(Reg),
    NotZero(Reg),
}

/// Registers that are read by an `or` with one and the same other register alone, which is set
/// once.
fn always(f: &Function) -> HashMap<Reg, Condition> {
    let mut read: HashMap<Reg, Option<Condition>> = HashMap::new();
    let mut set: HashMap<Reg, u32> = HashMap::new();
    let mut note = |r: Reg, c: Option<Condition>| {
        let known = read.entry(r).or_insert(c);
        if *known != c {
            *known = None;
        }
    };
    for i in f.body.iter().filter_map(Statement::instruction) {
        i.op.writes(&mut |r| *set.entry(r).or_default() += 1);
        match i.op {
            Op::Binary {
                op: BinaryOp::Or,
                a: Operand::Reg(a),
                b: Operand::Reg(b),
                ..
            } => {
                note(a, Some(Condition::Zero(b)));
                note(b, Some(Condition::Zero(a)));
            }
            _ => i.op.reads(&mut |r| note(r, None)),
        }
        if let Some((r, _)) = i.guard {
            note(r, None);
        }
    }
    let once = |c: &Condition| matches!(c, Condition::Zero(r) if set.get(r) == Some(&1));
    let all = read.into_iter().filter_map(|(r, c)| Some((r, c?)));
    all.filter(|(_, c)| once(c)).collect()
}

/// The condition of the load at this position, if its one value has one use, or a comparison of it.
fn condition(
    f: &Function,
    (live, always): (&Liveness, &HashMap<Reg, Condition>),
    at: usize,
) -> Option<Condition> {
    let Statement::Instruction(load) = &f.body[at] else {
        return None;
    };
    let Op::Load { to, .. } = &load.op else {
        return None;
    };
    let [Some(mut value)] = to[..] else {
        return None;
    };
    if let Some(c) = always.get(&value) {
        return Some(*c);
    }
    let once = |r: Reg, at: usize| live.behind(at).is_some_and(|l| !l.contains(&r));
    let mut changed = Vec::new();
    for (at, s) in f.body.iter().enumerate().skip(at + 1).take(NEAR) {
        let Some(i) = s.instruction() else {
            continue;
        };
        if i.guard.is_some() {
            return None;
        }
        let mut reads = false;
        i.op.reads(&mut |r| reads |= r == value);
        if !reads {
            if matches!(i.op, Op::Branch { .. }) || i.op.waits() {
                return None;
            }
            i.op.writes(&mut |r| changed.push(r));
            continue;
        }
        if !once(value, at) {
            return None;
        }
        let other = |a: &Operand, b: &Operand| match (a, b) {
            (Operand::Reg(r), Operand::Reg(o)) if *r == value => Some(*o),
            (Operand::Reg(o), Operand::Reg(r)) if *r == value => Some(*o),
            _ => None,
        };
        // Of what the load's condition was before it; a register that has changed since is another.
        let before = |r: Reg| Some(r).filter(|r| !changed.contains(r));
        match &i.op {
            Op::Compare {
                to: [Some(to), None],
                combine: None,
                ..
            } => {
                value = *to;
                changed.push(*to);
            }
            Op::Binary {
                op: BinaryOp::Or,
                a,
                b,
                ..
            } => return other(a, b).and_then(before).map(Condition::Zero),
            Op::Binary {
                op: BinaryOp::And,
                ty: crate::module::Type::Pred,
                a,
                b,
                ..
            } => return other(a, b).and_then(before).map(Condition::NotZero),
            Op::Select {
                a,
                p: Operand::Reg(p),
                ..
            } => {
                let first = *a == Operand::Reg(value);
                return before(*p).map(|p| match first {
                    true => Condition::NotZero(p),
                    false => Condition::Zero(p),
                });
            }
            _ => return None,
        }
    }
    None
}

/// The conditions of a function's loads, by their positions.
pub(super) fn conditions(f: &Function) -> HashMap<usize, Condition> {
    if f.body.len() > LARGE {
        return HashMap::new();
    }
    let combines = |_: usize, op: &Op, _: &[usize]| {
        let logical = |op: BinaryOp| matches!(op, BinaryOp::Or | BinaryOp::And);
        matches!(op, Op::Compare { .. } | Op::Select { .. })
            || matches!(op, Op::Binary { op, .. } if logical(*op))
    };
    let live = Liveness::of(f, &combines);
    let always = always(f);
    let all = (0..f.body.len()).filter_map(|at| Some((at, condition(f, (&live, &always), at)?)));
    all.collect()
}
