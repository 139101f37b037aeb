//! Where a function's registers live: as values of the compiler, or in slots of the thread's frame.
//!
//! A value that is live over a wait is stored before it and loaded behind it, at each wait. A
//! register that many waits cross and few instructions use is cheaper in memory: there a wait costs
//! nothing, and a use is a load.

use crate::module::{Function, Label, Op, Reg, Statement};

use super::liveness::{accesses, Liveness};

/// The words of the frame that a function's registers take.
pub(super) struct Slots {
    /// First word of each register, from the begin of the function's part.
    at: Vec<Option<u32>>,
    /// Words of the part.
    pub(super) words: u32,
}

/// An access in a loop counts so many times more than outside.
const LOOP: u64 = 8;

/// Loops that are told apart.
const DEEPEST: usize = 4;

impl Slots {
    /// Chooses by cost. `waits` says how often the statement, which is among those of `live`, lets
    /// the thread wait.
    pub(super) fn of(f: &Function, live: &Liveness, waits: &dyn Fn(&Op) -> u64) -> Slots {
        let mut slots = Slots {
            at: vec![None; f.registers.len()],
            words: 0,
        };
        let weights = weights(f, live);
        let mut kept = vec![0u64; f.registers.len()];
        for (i, regs) in live.all() {
            let Statement::Instruction(s) = &f.body[*i] else {
                continue;
            };
            // Stored and loaded.
            let cost = 2 * weights[*i] * waits(&s.op);
            regs.iter().for_each(|r| kept[r.0 as usize] += cost);
        }
        let mut used = vec![0u64; f.registers.len()];
        for (i, s) in f.body.iter().enumerate() {
            accesses(s, &mut |Reg(r)| used[r as usize] += weights[i]);
        }
        let mut spans: Vec<(Reg, usize, usize)> = (0u32..)
            .zip(live.spans())
            .filter(|(r, _)| kept[*r as usize] > used[*r as usize])
            .map(|(r, (first, last))| (Reg(r), *first, *last))
            .collect();
        spans.sort_by_key(|s| s.1);
        // Slots of one and of two words, each with the last statement that needs it.
        let mut taken: [Vec<(usize, u32)>; 2] = Default::default();
        for (register, first, last) in spans {
            let words = words(f, register);
            let taken = &mut taken[words as usize - 1];
            let at = match taken.iter_mut().find(|(until, _)| *until < first) {
                Some(slot) => {
                    slot.0 = last;
                    slot.1
                }
                None => {
                    let at = slots.words;
                    slots.words += words;
                    taken.push((last, at));
                    at
                }
            };
            slots.at[register.0 as usize] = Some(at);
        }
        slots
    }

    /// The first word of a register that lives in memory.
    pub(super) fn of_register(&self, Reg(r): Reg) -> Option<u32> {
        self.at[r as usize]
    }
}

/// Words of the frame that a register takes.
fn words(f: &Function, Reg(r): Reg) -> u32 {
    f.registers[r as usize].bytes().div_ceil(8).max(1)
}

/// How often each statement is executed, as far as loops tell. A loop is what lies between a label
/// and the last branch back to it.
fn weights(f: &Function, live: &Liveness) -> Vec<u64> {
    let mut ends = vec![0usize; f.labels as usize];
    for (i, s) in f.body.iter().enumerate() {
        if let Statement::Instruction(s) = s {
            s.op.targets(&mut |Label(l)| {
                if live.at[l as usize] <= i {
                    ends[l as usize] = i;
                }
            });
        }
    }
    let mut deeper = vec![0i32; f.body.len() + 1];
    for (l, end) in ends.iter().enumerate().filter(|(_, end)| **end > 0) {
        deeper[live.at[l]] += 1;
        deeper[end + 1] -= 1;
    }
    let mut depth = 0;
    let of_depth = |d: i32| LOOP.pow((d.max(0) as usize).min(DEEPEST) as u32);
    let per = deeper[..f.body.len()].iter();
    per.map(|d| {
        depth += d;
        of_depth(depth)
    })
    .collect()
}
