//! Which registers a statement's successors read: those that a thread keeps while it waits.

use crate::module::{Function, Label, Op, Reg, Statement};

/// Registers that are live behind statements that were asked for.
pub(super) struct Liveness {
    /// Position of each label.
    pub(super) at: Vec<usize>,
    /// Sorted by statement.
    live: Vec<(usize, Vec<Reg>)>,
    spans: Vec<(usize, usize)>,
}

impl Liveness {
    /// Computes the live registers behind each statement for which `wanted` is true.
    pub(super) fn of(f: &Function, wanted: &dyn Fn(usize, &Op, &[usize]) -> bool) -> Liveness {
        let mut at = vec![usize::MAX; f.labels as usize];
        for (i, s) in f.body.iter().enumerate() {
            if let Statement::Label(Label(l)) = s {
                at[*l as usize] = i;
            }
        }
        let wanted: Vec<usize> = (0..f.body.len())
            .filter(|i| matches!(&f.body[*i], Statement::Instruction(s) if wanted(*i, &s.op, &at)))
            .collect();
        let (live, spans) = if wanted.is_empty() {
            Default::default()
        } else {
            solve(f, &at, &wanted)
        };
        Liveness { at, live, spans }
    }

    /// Each statement that was asked for, with what is live behind it.
    pub(super) fn all(&self) -> &[(usize, Vec<Reg>)] {
        &self.live
    }

    /// Where each register is needed, as first and last statement; the first is larger for those
    /// that are not.
    pub(super) fn spans(&self) -> &[(usize, usize)] {
        &self.spans
    }

    /// `None` if it was not asked for.
    pub(super) fn behind(&self, statement: usize) -> Option<&[Reg]> {
        let i = self.live.binary_search_by_key(&statement, |l| l.0).ok()?;
        Some(&self.live[i].1)
    }
}

/// What is live behind statements, and the span of each register.
type Solved = (Vec<(usize, Vec<Reg>)>, Vec<(usize, usize)>);

fn solve(f: &Function, at: &[usize], wanted: &[usize]) -> Solved {
    let words = f.registers.len().div_ceil(64);
    // Basic blocks, by their first statement.
    let mut starts = vec![0];
    for (i, s) in f.body.iter().enumerate() {
        match s {
            Statement::Label(_) => starts.push(i),
            Statement::Instruction(s) if ends_block(&s.op) => starts.push(i + 1),
            Statement::Instruction(_) => {}
        }
    }
    starts.dedup();
    starts.retain(|s| *s < f.body.len());
    let end = |k: usize| starts.get(k + 1).copied().unwrap_or(f.body.len());
    let block_of = |i: usize| starts.partition_point(|s| *s <= i) - 1;
    let successors: Vec<Vec<usize>> = (0..starts.len())
        .map(|k| {
            let mut next = Vec::new();
            let mut falls = true;
            if let Statement::Instruction(i) = &f.body[end(k) - 1] {
                i.op.targets(&mut |Label(l)| next.push(block_of(at[l as usize])));
                falls = !ends_block(&i.op) || i.guard.is_some();
            }
            if falls && k + 1 < starts.len() {
                next.push(k + 1);
            }
            next
        })
        .collect();
    let mut live_in = vec![0u64; words * starts.len()];
    let out_of = |k: usize, live_in: &[u64]| {
        let mut out = vec![0u64; words];
        for s in &successors[k] {
            let from = &live_in[s * words..(s + 1) * words];
            out.iter_mut().zip(from).for_each(|(o, l)| *o |= l);
        }
        out
    };
    let mut changed = true;
    while changed {
        changed = false;
        for k in (0..starts.len()).rev() {
            let mut live = out_of(k, &live_in);
            for s in f.body[starts[k]..end(k)].iter().rev() {
                step_back(s, &mut live);
            }
            let old = &mut live_in[k * words..(k + 1) * words];
            if old != live.as_slice() {
                old.copy_from_slice(&live);
                changed = true;
            }
        }
    }
    let mut found = Vec::with_capacity(wanted.len());
    let mut left = wanted;
    while let Some(first) = left.first() {
        let k = block_of(*first);
        let here = left.partition_point(|i| *i < end(k));
        let mut live = out_of(k, &live_in);
        let mut at_end = end(k);
        for i in left[..here].iter().rev() {
            for s in f.body[i + 1..at_end].iter().rev() {
                step_back(s, &mut live);
            }
            at_end = i + 1;
            let is_live = |r: &u32| live[*r as usize / 64] >> (r % 64) & 1 == 1;
            let regs = (0..f.registers.len() as u32).filter(is_live).map(Reg);
            found.push((*i, regs.collect()));
        }
        left = &left[here..];
    }
    found.sort_by_key(|f| f.0);
    let mut spans = vec![(usize::MAX, 0); f.registers.len()];
    let mut grow = |r: usize, i: usize| {
        let (first, last): &mut (usize, usize) = &mut spans[r];
        (*first, *last) = ((*first).min(i), (*last).max(i));
    };
    for (i, s) in f.body.iter().enumerate() {
        accesses(s, &mut |Reg(r)| grow(r as usize, i));
    }
    for k in 0..starts.len() {
        let here = &live_in[k * words..(k + 1) * words];
        registers(here, &mut |r| grow(r, starts[k]));
        registers(&out_of(k, &live_in), &mut |r| grow(r, end(k) - 1));
    }
    (found, spans)
}

/// The registers of a set.
fn registers(set: &[u64], each: &mut dyn FnMut(usize)) {
    for (i, word) in set.iter().enumerate() {
        let mut left = *word;
        while left != 0 {
            each(i * 64 + left.trailing_zeros() as usize);
            left &= left - 1;
        }
    }
}

fn ends_block(op: &Op) -> bool {
    matches!(
        op,
        Op::Branch { .. } | Op::BranchTable { .. } | Op::Return | Op::Exit | Op::Trap
    )
}

fn step_back(s: &Statement, live: &mut [u64]) {
    let Statement::Instruction(i) = s else {
        return;
    };
    // A guarded write may leave the old value.
    if i.guard.is_none() {
        i.op.writes(&mut |Reg(r)| live[r as usize / 64] &= !(1 << (r % 64)));
    }
    let mut read = |Reg(r): Reg| live[r as usize / 64] |= 1 << (r % 64);
    i.op.reads(&mut read);
    if let Some((r, _)) = i.guard {
        read(r);
    }
}

/// All registers that a statement reads or writes.
pub(super) fn accesses(s: &Statement, each: &mut dyn FnMut(Reg)) {
    let Statement::Instruction(i) = s else {
        return;
    };
    i.op.reads(each);
    i.op.writes(each);
    if let Some((r, _)) = i.guard {
        each(r);
    }
}
