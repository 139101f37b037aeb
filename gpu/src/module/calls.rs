//! Which functions have code of their own; all others are compiled into their callers.

use super::{Function, Module, Op, Statement, Variable};

/// What a function's address is: no address of memory, and never 0.
pub(crate) fn function_address(index: u32) -> i64 {
    1 << 56 | (i64::from(index) + 1) << 4
}

/// Offsets of parameters in a call's part of the stack, and its bytes, a multiple of 16.
pub(crate) fn formal_offsets<'v>(formals: impl Iterator<Item = &'v Variable>) -> (Vec<u32>, u32) {
    let mut top = 0u32;
    let offsets = formals.map(|v| {
        let at = top.next_multiple_of(v.align.max(1));
        top = at.saturating_add(v.bytes);
        at
    });
    let offsets = offsets.collect();
    (
        offsets,
        top.checked_next_multiple_of(16).unwrap_or(u32::MAX),
    )
}

/// Functions that are compiled into one another, at most: the compiler's own stack bounds it.
const DEEPEST: u32 = 64;

impl Function {
    /// Results and arguments.
    pub(crate) fn formals(&self) -> impl Iterator<Item = &Variable> {
        self.variables.iter().take_while(|v| v.formal.is_some())
    }

    pub(crate) fn ops(&self) -> impl Iterator<Item = (&Op, u32)> {
        self.body.iter().filter_map(|s| match s {
            Statement::Instruction(i) => Some((&i.op, i.site.line)),
            Statement::Label(_) => None,
        })
    }

    /// Whether it takes memory of the stack, which goes when it returns.
    fn grows(&self) -> bool {
        let mut ops = self.ops();
        ops.any(|(op, _)| matches!(op, Op::StackAllocate { .. } | Op::StackRestore { .. }))
    }
}

impl Module {
    /// Decides which functions have code of their own: those at which a chain of calls comes back,
    /// those that take memory of the stack, and some of a long chain.
    ///
    /// # Errors
    /// Line and reason: a function that is called, or whose address is taken, has no body.
    pub(crate) fn outline(&mut self) -> Result<(), (u32, String)> {
        let n = self.functions.len();
        let mut own: Vec<bool> = self
            .functions
            .iter()
            .map(|f| !f.entry && f.grows())
            .collect();
        for f in &self.addressed {
            let f = &self.functions[*f as usize];
            if !f.defined {
                let why = format!(
                    "the address of function `{}` is taken, which has no body here",
                    f.name
                );
                return Err((f.line, why));
            }
        }
        let calls = |f: usize| {
            self.functions[f].ops().filter_map(|(op, line)| match op {
                Op::Call { function, .. } => Some((*function as usize, line)),
                _ => None,
            })
        };
        // 0: not seen, 1: on the path, 2: done. An own stack, because a chain of calls may be long.
        let mut state = vec![0u8; n];
        // Functions that are compiled into each other, the deepest chain of each.
        let mut heights = vec![0u32; n];
        for root in 0..n {
            if state[root] != 0 {
                continue;
            }
            state[root] = 1;
            let mut path = vec![(root, calls(root))];
            while let Some((f, rest)) = path.last_mut() {
                let Some((callee, line)) = rest.next() else {
                    let f = *f;
                    state[f] = 2;
                    let inner = calls(f).filter(|(callee, _)| !own[*callee]);
                    heights[f] = 1 + inner.map(|(callee, _)| heights[callee]).max().unwrap_or(0);
                    own[f] |= heights[f] > DEEPEST && !self.functions[f].entry;
                    path.pop();
                    continue;
                };
                let function = &self.functions[callee];
                if !function.defined && function.system().is_none() {
                    let why = format!(
                        "function `{}` is called and has no body here",
                        function.name
                    );
                    return Err((line, why));
                }
                match state[callee] {
                    0 => {
                        state[callee] = 1;
                        path.push((callee, calls(callee)));
                    }
                    1 => own[callee] = true,
                    _ => {}
                }
            }
        }
        self.outlined = own;
        Ok(())
    }

    /// Whether a kernel needs a stack: it reaches code of its own, a call by address, or memory of
    /// the stack.
    pub(crate) fn needs_stack(&self, kernel: usize) -> bool {
        let mut seen = vec![false; self.functions.len()];
        let mut left = vec![kernel];
        while let Some(f) = left.pop() {
            if std::mem::replace(&mut seen[f], true) {
                continue;
            }
            for (op, _) in self.functions[f].ops() {
                match op {
                    Op::Call { function, .. } if self.outlined[*function as usize] => return true,
                    Op::Call { function, .. } => left.push(*function as usize),
                    Op::CallAddress { .. }
                    | Op::StackAllocate { .. }
                    | Op::StackSave { .. }
                    | Op::StackRestore { .. } => return true,
                    _ => {}
                }
            }
        }
        false
    }
}
