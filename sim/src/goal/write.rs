//! The text of a schedule, as [`Schedule::parse`] reads it.

use std::borrow::Cow;
use std::fmt;

use super::schedule::{Op, Schedule};

/// Whether GOAL takes a label: those of other files may be numbers, or have spaces.
fn is_word(label: &str) -> bool {
    let begins = label.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    begins && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "num_ranks {}", self.ranks().len())?;
        for (rank, ops) in self.ranks().iter().enumerate() {
            // A number in place of a missing label could be another's label.
            let are_named = ops
                .iter()
                .all(|op| op.label.as_deref().is_some_and(is_word));
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
