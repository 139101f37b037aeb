//! What simulations measure for the documents: rows of numbers, and timing diagrams of sampled
//! signals as text.

use std::fmt;
use std::path::PathBuf;

/// Variable with the folder that figures are written to; `cargo xtask hw` sets it.
const FOLDER: &str = "RINGBELL_FIGURES";

/// Writes a figure, where a folder for figures is given.
///
/// # Panics
/// When it cannot be written.
pub fn record(file: &str, text: &str) {
    if let Some(folder) = std::env::var_os(FOLDER) {
        let path = PathBuf::from(folder).join(file);
        std::fs::write(&path, text)
            .unwrap_or_else(|e| panic!("cannot write {}: {e}", path.display()));
    }
}

/// A signal of a diagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// One bit, drawn as a level.
    Bit(&'static str),
    /// Several bits, drawn as a hexadecimal number.
    Word(&'static str),
}

/// Samples of signals, one of each in a cycle.
#[derive(Debug, Clone, Default)]
pub struct Wave {
    signals: Vec<Signal>,
    /// Values by cycle; none where a word means nothing.
    cycles: Vec<Vec<Option<u64>>>,
}

impl Wave {
    /// A diagram without cycles.
    pub fn new(signals: &[Signal]) -> Wave {
        Wave {
            signals: signals.to_vec(),
            cycles: Vec::new(),
        }
    }

    /// The values of the next cycle, of all signals.
    pub fn sample(&mut self, values: &[Option<u64>]) {
        assert_eq!(values.len(), self.signals.len(), "a value for each signal");
        self.cycles.push(values.to_vec());
    }

    /// The columns: a cycle, or none in place of cycles that repeat the one before.
    fn columns(&self) -> Vec<Option<usize>> {
        const SHOWN: usize = 3;
        let mut columns = Vec::new();
        let mut first = 0;
        while first < self.cycles.len() {
            let same = self.cycles[first..].iter();
            let run = same.take_while(|c| **c == self.cycles[first]).count();
            let last = first + run - 1;
            if run > SHOWN {
                columns.extend([Some(first), None, Some(last)]);
            } else {
                columns.extend((first..=last).map(Some));
            }
            first += run;
        }
        columns
    }
}

/// A line for each signal. `≈` stands for cycles in which nothing changes.
impl fmt::Display for Wave {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.columns();
        let text = |v: Option<u64>| v.map_or(String::new(), |v| format!("{v:x}"));
        let is_word = |i: &usize| matches!(self.signals[*i], Signal::Word(_));
        let words = (0..self.signals.len()).filter(is_word);
        let longest = words.flat_map(|i| self.cycles.iter().map(move |c| text(c[i]).len()));
        let last = self.cycles.len().saturating_sub(1).to_string().len();
        let width = 1 + longest.max().unwrap_or(0).max(last).max(2);
        let name = |s: &Signal| match *s {
            Signal::Bit(name) | Signal::Word(name) => name,
        };
        let names = self.signals.iter().map(|s| name(s).len()).max();
        let names = names.unwrap_or(0).max("cycle".len()) + 2;
        let mut head = format!("{:names$}", "cycle");
        for column in &columns {
            match column {
                Some(cycle) => head += &format!("{cycle:<width$}"),
                None => head += "≈ ",
            }
        }
        writeln!(f, "{}", head.trim_end())?;
        for (i, signal) in self.signals.iter().enumerate() {
            let mut line = format!("{:names$}", name(signal));
            let mut before = None;
            for column in &columns {
                let Some(cycle) = column else {
                    line += match (signal, before) {
                        (Signal::Bit(_), Some(1)) => "‾‾",
                        (Signal::Bit(_), _) => "__",
                        _ => "  ",
                    };
                    continue;
                };
                let value = self.cycles[*cycle][i];
                match (signal, value) {
                    (Signal::Bit(_), value) => {
                        let high = value == Some(1);
                        let edge = match (before, high) {
                            (Some(0), true) => "/",
                            (Some(1), false) => "\\",
                            (_, true) => "‾",
                            (_, false) => "_",
                        };
                        line += edge;
                        line += &if high { "‾" } else { "_" }.repeat(width - 1);
                        before = Some(u64::from(high));
                    }
                    (_, value) => {
                        line += &format!("{:<width$}", text(value));
                        before = value;
                    }
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_edges_words_and_pauses_are_drawn() {
        let mut wave = Wave::new(&[Signal::Bit("valid"), Signal::Word("data")]);
        for cycle in 0..9 {
            let valid = u64::from((1..=2).contains(&cycle) || cycle == 8);
            wave.sample(&[Some(valid), (valid == 1).then_some(0x40 + cycle)]);
        }
        let wanted = "\
cycle  0  1  2  3  ≈ 7  8
valid  ___/‾‾‾‾‾\\_______/‾‾
data      41 42         48
";
        assert_eq!(wave.to_string(), wanted);
    }
}
