//! The text of a schedule, as [`Schedule::parse`] reads it.

use std::borrow::Cow;
use std::fmt;

use super::schedule::{Op, Schedule};

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "num_ranks {}", self.ranks().len())?;
        for (rank, ops) in self.ranks().iter().enumerate() {
            // A number in place of a missing label could be another's label.
            let are_named = ops.iter().all(|op| op.label.is_some());
            let label = |i: usize| -> Cow<'_, str> {
                match &ops[i].label {
                    Some(label) if are_named => Cow::Borrowed(label),
                    _ => Cow::Owned(format!("l{}", i + 1)),
                }
            };
            writeln!(f, "\nrank {rank} {{")?;
            for (i, Op { work, cpu, .. }) in ops.iter().enumerate() {
                write!(f, "{}: {work}", label(i))?;
                match cpu {
                    0 => writeln!(f)?,
                    cpu => writeln!(f, " cpu {cpu}")?,
                }
            }
            for (i, op) in ops.iter().enumerate() {
                for need in &op.needs {
                    let what = match need.begin {
                        true => "irequires",
                        false => "requires",
                    };
                    writeln!(f, "{} {what} {}", label(i), label(need.op as usize))?;
                }
            }
            writeln!(f, "}}")?;
        }
        Ok(())
    }
}
