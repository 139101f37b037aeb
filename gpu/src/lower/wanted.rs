//! What a loop waits for: the bits of a loaded word that it compares, and with what.
//!
//! It is found in the text when the loop is compiled, and costs nothing when it runs: the value
//! with which it compares is a constant, or is kept with the other registers when the thread gives
//! way.

use std::collections::HashMap;

use super::emit::{Emit, Kept};
use crate::code::{ones, Relation, Wanted};
use crate::module::{
    AtomicOp, BinaryOp, Function, Label, Op, Operand, Reg, Site, Statement, Type, UnaryOp,
};

/// Statements behind a load in which its comparison is looked for.
const FOLLOWED: usize = 32;

/// Statements of a loop that waits, at most: longer ones have such loops inside.
const LONGEST: usize = 512;

/// Bits of the loaded word that a register has.
#[derive(Debug, Clone, Copy)]
struct Field {
    first: u32,
    bits: u32,
}

/// A comparison of a loaded word in a loop.
struct Found {
    load: Site,
    field: Field,
    relation: Relation,
    with: Operand,
    ty: Type,
    swaps: bool,
}

impl Emit<'_, '_> {
    /// Notes what the loop between a label and a branch back to it waits for; its threads give way
    /// at `state`.
    pub(super) fn note_wanted(&mut self, (from, to): (usize, usize), kept: &Kept, state: u32) {
        if to - from > LONGEST {
            return;
        }
        for found in comparisons(self.frame().function, from, to) {
            let sites = &self.facts.sites;
            let Some(site) = sites.iter().rposition(|s| *s == found.load) else {
                continue;
            };
            let (value, is_word) = match found.with {
                Operand::Int(v) => (v as u64 & ones(found.ty.bits()), false),
                Operand::Reg(r) => match self.word_kept(r, kept) {
                    Some(word) => (u64::from(word), true),
                    None => continue,
                },
                _ => continue,
            };
            self.facts.wanted.push(Wanted {
                value,
                state,
                site: site as u32,
                first: found.field.first,
                bits: found.field.bits,
                relation: found.relation as u32,
                is_word: u32::from(is_word),
                swaps: u32::from(found.swaps),
                _reserved: 0,
            });
        }
    }
}

/// Comparisons of words that the loop loads with something else: the first of each load.
fn comparisons(f: &Function, from: usize, to: usize) -> Vec<Found> {
    let mut found = Vec::new();
    for at in from..=to {
        let Some(i) = f.body[at].instruction().filter(|i| i.op.observes()) else {
            continue;
        };
        let (targets, ty, swaps) = match &i.op {
            Op::Load { access, to } => (&to[..], access.ty, false),
            Op::Atomic { op, access, to, .. } => {
                (std::slice::from_ref(to), access.ty, *op == AtomicOp::Cas)
            }
            _ => continue,
        };
        let bits = ty.bits();
        let fields = targets.iter().zip(0..).filter_map(|(r, n)| {
            let first = n * bits;
            Some(((*r)?, Field { first, bits }))
        });
        let follow = Follow {
            f,
            range: (from, to),
            load: i.site,
            swaps,
        };
        found.extend(follow.from(at, fields.collect()));
    }
    found
}

/// The way of a loaded word to its comparison.
struct Follow<'a> {
    f: &'a Function,
    range: (usize, usize),
    load: Site,
    swaps: bool,
}

impl Follow<'_> {
    fn from(&self, load: usize, mut fields: HashMap<Reg, Field>) -> Option<Found> {
        // Far from the load it is no loop that waits, and following it takes time.
        for at in load + 1..=self.range.1.min(load + FOLLOWED) {
            let Some(i) = self.f.body[at].instruction() else {
                continue;
            };
            let known = |o: &Operand| o.register().and_then(|r| fields.get(&r)).copied();
            if let Op::Compare {
                compare,
                ty,
                to: [Some(p), None],
                a,
                b,
                combine: None,
                ..
            } = &i.op
            {
                let (field, with, turned) = match (known(a), known(b)) {
                    (Some(field), None) => (field, *b, false),
                    (None, Some(field)) => (field, *a, true),
                    _ => continue,
                };
                let relation = Relation::of(*compare)?;
                let relation = if turned { relation.turned() } else { relation };
                let relation = match self.leaves(at, *p) {
                    Some(true) => relation,
                    Some(false) => relation.negated(),
                    None => Relation::Compared,
                };
                return Some(Found {
                    load: self.load,
                    field,
                    relation,
                    with,
                    ty: *ty,
                    swaps: self.swaps,
                });
            }
            let parts = parts(&i.op, &known);
            i.op.writes(&mut |r| {
                fields.remove(&r);
            });
            fields.extend(parts);
        }
        None
    }

    /// Whether the loop ends when the predicate is true, or when it is false.
    fn leaves(&self, compare: usize, mut p: Reg) -> Option<bool> {
        let (from, to) = self.range;
        let position = |l: Label| {
            let is = |s: &Statement| matches!(s, Statement::Label(at) if *at == l);
            self.f.body.iter().position(is)
        };
        let goes_out = |l: Label| position(l).map(|at| at < from || at > to);
        let mut turned = false;
        for at in compare + 1..=to {
            let Some(i) = self.f.body[at].instruction() else {
                continue;
            };
            match (&i.op, i.guard) {
                (
                    Op::Unary {
                        to: Some(t),
                        a: Operand::Reg(a),
                        op: UnaryOp::Not,
                        ..
                    },
                    None,
                ) if *a == p => {
                    (p, turned) = (*t, !turned);
                }
                (Op::Branch { to: label }, Some((guard, negated))) if guard == p => {
                    let taken = negated == turned;
                    if goes_out(*label)? {
                        return Some(taken);
                    }
                    // Back to its begin; or over a branch out of it.
                    let next = self.f.body.get(at + 1).and_then(Statement::instruction);
                    let out = at == to
                        || match next.map(|n| (&n.op, n.guard)) {
                            Some((Op::Branch { to }, None)) => goes_out(*to)?,
                            Some((Op::Return | Op::Exit, None)) => true,
                            _ => false,
                        };
                    return out.then_some(!taken);
                }
                _ => {}
            }
        }
        None
    }
}

/// Registers that get some of the bits of a register whose bits are known.
fn parts(op: &Op, known: &dyn Fn(&Operand) -> Option<Field>) -> Vec<(Reg, Field)> {
    let one = |to: &Option<Reg>, field: Option<Field>| to.zip(field).into_iter().collect();
    match op {
        Op::Move { to, from, .. } => one(to, known(from)),
        Op::Convert { to_ty, to, a, .. } if !to_ty.is_float() => {
            let cut = known(a).map(|f| Field {
                bits: f.bits.min(to_ty.bits()),
                ..f
            });
            one(to, cut)
        }
        Op::Binary {
            op: BinaryOp::And,
            to,
            a,
            b: Operand::Int(mask),
            ..
        } if *mask as u64 & (*mask as u64).wrapping_add(1) == 0 => {
            let cut = known(a).map(|f| Field {
                bits: f.bits.min((*mask as u64).count_ones()),
                ..f
            });
            one(to, cut)
        }
        Op::Binary {
            op: BinaryOp::Shr,
            to,
            a,
            b: Operand::Int(n),
            ..
        } => {
            let rest = known(a).filter(|f| (*n as u64) < u64::from(f.bits));
            let rest = rest.map(|f| Field {
                first: f.first + *n as u32,
                bits: f.bits - *n as u32,
            });
            one(to, rest)
        }
        Op::Unpack { ty, to, from } => {
            let Some(field) = known(from) else {
                return Vec::new();
            };
            let bits = ty.bits() / to.len().max(1) as u32;
            let each = to.iter().zip(0..).filter_map(|(r, n)| {
                let first = field.first + n * bits;
                Some(((*r)?, Field { first, bits }))
            });
            each.collect()
        }
        _ => Vec::new(),
    }
}
