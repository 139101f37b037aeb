//! Programs as a state table, in the form of FpgaNIC's Table 8.
//!
//! A row is a NIC, a column a step in time, and a cell says `input/output`. G stands for the GPU's
//! memory (source and destination), E for the network, S for a kernel's stream; `E_i^j` is chunk i
//! with j contributions. `(G_3^1 + E_3^1)` is reduced and kept in NIC memory, `(E_1^4, G_1^4)` goes
//! to network and GPU. An output of a column was an input, or was reduced, in the one before. As in
//! the paper, moves in and out of NIC memory are not shown by themselves; M stands for it in a
//! reduction that reads it. `@2` is memory of rank 2, which a rank of the same host reads or writes
//! in place.

use std::fmt;

use ringbell_nic_abi::CollectiveKind;

use super::check::{observe, Seen};
use super::{CheckError, Limits, Operand, Place, Program, Step, Target, Value};

/// The medium that a value comes from or goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Medium {
    /// The rank's own source or destination.
    Gpu,
    /// The same of another rank.
    Peer(u32),
    /// A kernel's stream.
    Stream,
    /// NIC memory.
    Memory,
    /// A message.
    Network,
}

/// A part of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Label {
    /// No payload: a barrier's message.
    None,
    /// A chunk, by its number in the whole.
    Chunk(u32),
    /// A run of chunks, first and last.
    Run(u32, u32),
    /// In an all-to-all, the block from a rank to another.
    Pair(u32, u32),
}

/// One value at one medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Term {
    /// Where.
    pub medium: Medium,
    /// What.
    pub label: Label,
    /// Number of ranks that have contributed.
    pub accumulated: u32,
}

/// Inputs and outputs of a NIC in one column.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cell {
    /// Each entry is one step's operands; several are reduced.
    pub inputs: Vec<Vec<Term>>,
    /// The outputs.
    pub outputs: Vec<Term>,
}

/// A message, by the cells where it goes out and comes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrow {
    /// Sender.
    pub from: u32,
    /// Column of the sender's cell.
    pub out: u32,
    /// Receiver.
    pub to: u32,
    /// Column of the receiver's cell.
    pub into: u32,
}

/// The state table of all ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// By rank, then column.
    pub rows: Vec<Vec<Cell>>,
    /// Messages.
    pub arrows: Vec<Arrow>,
}

impl Table {
    /// The table of the programs of all ranks.
    ///
    /// # Errors
    /// As [`check`](super::check()): only right programs have a table.
    pub fn new(programs: &[Program], limits: &Limits) -> Result<Table, CheckError> {
        let (seen, messages) = observe(programs, limits)?;
        let columns = programs.iter().map(Program::rounds).max().unwrap_or(0) + 1;
        let mut rows = vec![vec![Cell::default(); columns as usize]; programs.len()];
        for (p, seen) in programs.iter().zip(&seen) {
            let row = &mut rows[p.rank as usize];
            for (step, seen) in p.steps.iter().zip(seen) {
                let round = step.round as usize;
                let inputs = inputs(p, step, seen);
                if !inputs.is_empty() {
                    row[round].inputs.push(inputs);
                }
                row[round + 1].outputs.extend(outputs(p, step, seen));
            }
        }
        let round = |rank: u32, step: usize| programs[rank as usize].steps[step].round;
        let arrow = |m: &super::check::Message| Arrow {
            from: m.from,
            out: round(m.from, m.sent) + 1,
            to: m.to,
            into: round(m.to, m.taken),
        };
        Ok(Table {
            rows,
            arrows: messages.iter().map(arrow).collect(),
        })
    }

    /// Number of columns.
    pub fn columns(&self) -> usize {
        self.rows.first().map_or(0, Vec::len)
    }
}

/// The operands of a step. Its moves out of NIC memory are not inputs, unless they are reduced.
fn inputs(p: &Program, step: &Step, seen: &Seen) -> Vec<Term> {
    let alone = step.operands.len() == 1;
    let medium = |o: &Operand| match *o {
        Operand::Net { .. } => Some(Medium::Network),
        Operand::Local(Place::Scratch(_)) if alone => None,
        Operand::Local(Place::Scratch(_)) => Some(Medium::Memory),
        // The own result so far, which is read again: neither new nor from elsewhere.
        Operand::Local(Place::Output(_)) if alone => None,
        Operand::Local(_) => Some(Medium::Gpu),
        Operand::Peer { rank, .. } => Some(Medium::Peer(rank)),
        Operand::Stream => Some(Medium::Stream),
    };
    let mut terms = Vec::new();
    for (i, operand) in step.operands.iter().enumerate() {
        if let Some(medium) = medium(operand) {
            terms.push(term(p, medium, seen.operands.get(i).copied()));
        }
    }
    // Table 8 writes G before E; among ranks of one host the order of reduction says more.
    if !p.is_direct() {
        terms.sort_by_key(|t| t.medium);
    }
    terms
}

/// The results of a step, except what it keeps in NIC memory; E before G, as Table 8 writes them.
fn outputs(p: &Program, step: &Step, seen: &Seen) -> Vec<Term> {
    let medium = |t: &Target| match *t {
        Target::Net { .. } => Some(Medium::Network),
        Target::Local(Place::Scratch(_)) => None,
        Target::Local(_) => Some(Medium::Gpu),
        Target::Peer { rank, .. } => Some(Medium::Peer(rank)),
        Target::Stream => Some(Medium::Stream),
    };
    let media = step.results.iter().filter_map(medium);
    let mut terms: Vec<Term> = media.map(|m| term(p, m, seen.value)).collect();
    if !p.is_direct() {
        terms.sort_by_key(|t| std::cmp::Reverse(t.medium));
    }
    terms
}

fn term(p: &Program, medium: Medium, values: Option<(Value, Value)>) -> Term {
    let Some((first, last)) = values else {
        return Term {
            medium,
            label: Label::None,
            accumulated: 0,
        };
    };
    let accumulated = match first {
        Value::Nothing => 0,
        Value::Run { len, .. } | Value::Any { len, .. } => len,
    };
    let label = match (label(p, first), label(p, last)) {
        (Label::Chunk(a), Label::Chunk(b)) if a != b => Label::Run(a, b),
        (one, _) => one,
    };
    Term {
        medium,
        label,
        accumulated,
    }
}

/// The place of a value in the whole.
fn label(p: &Program, value: Value) -> Label {
    match value {
        Value::Nothing => Label::None,
        Value::Run { chunk, first, .. } => match p.kind {
            CollectiveKind::Gather | CollectiveKind::AllGather => {
                Label::Chunk(first * p.block_chunks + chunk)
            }
            CollectiveKind::AllToAll => Label::Pair(first, chunk / p.block_chunks),
            _ => Label::Chunk(chunk),
        },
        Value::Any { chunk, .. } => Label::Chunk(chunk),
    }
}

/// The notation of the paper: `E_0^4`, with braces around several digits.
impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = match self.medium {
            Medium::Gpu | Medium::Peer(_) => 'G',
            Medium::Stream => 'S',
            Medium::Memory => 'M',
            Medium::Network => 'E',
        };
        let braced = |text: String| match text.len() {
            1 => text,
            _ => format!("{{{text}}}"),
        };
        write!(f, "{letter}")?;
        match self.label {
            Label::None => {}
            Label::Chunk(c) => write!(f, "_{}", braced(c.to_string()))?,
            Label::Run(a, b) => write!(f, "_{{{a}-{b}}}")?,
            Label::Pair(a, b) => write!(f, "_{{{a},{b}}}")?,
        }
        if self.accumulated > 0 {
            write!(f, "^{}", braced(self.accumulated.to_string()))?;
        }
        if let Medium::Peer(rank) = self.medium {
            write!(f, "@{rank}")?;
        }
        Ok(())
    }
}

/// The notation of the paper: `(G_3^1 + E_3^1)/E_0^1`.
impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let join = |terms: &[Term], by: &str| {
            let texts: Vec<String> = terms.iter().map(Term::to_string).collect();
            match texts.len() {
                1 => texts.concat(),
                _ => format!("({})", texts.join(by)),
            }
        };
        let inputs: Vec<String> = self.inputs.iter().map(|i| join(i, " + ")).collect();
        match inputs.len() {
            0 => write!(f, "-")?,
            _ => write!(f, "{}", inputs.join(", "))?,
        }
        match self.outputs.len() {
            0 => write!(f, "/-"),
            _ => write!(f, "/{}", join(&self.outputs, ", ")),
        }
    }
}

/// A text in the paper's notation with Unicode's subscripts and superscripts: `E₀⁴`.
pub fn pretty(text: &str) -> String {
    const SUB: [char; 10] = ['₀', '₁', '₂', '₃', '₄', '₅', '₆', '₇', '₈', '₉'];
    const SUPER: [char; 10] = ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'];
    let mut out = String::with_capacity(text.len());
    // The digits to use, and whether a brace holds them.
    let (mut digits, mut braced): (Option<&[char; 10]>, bool) = (None, false);
    for c in text.chars() {
        match (c, digits) {
            ('_', _) => digits = Some(&SUB),
            ('^', _) => digits = Some(&SUPER),
            ('{', Some(_)) => braced = true,
            ('}', Some(_)) => (digits, braced) = (None, false),
            ('-', Some(_)) if braced => out.push('₋'),
            // There is no small comma.
            (',', Some(_)) if braced => out.push('ˏ'),
            (c, Some(set)) => {
                match c.to_digit(10) {
                    Some(d) => out.push(set[d as usize]),
                    None => out.push(c),
                }
                if !braced {
                    digits = None;
                }
            }
            (c, None) => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use ringbell_nic_abi::Algorithm;

    use super::*;
    use crate::program::generate_all;

    /// Table 8 of the FpgaNIC paper (USENIX ATC '22), cell by cell. Its caption and columns agree
    /// with each other; the text beside it (§A.2.2) has three slips, which the table does not: it
    /// counts the FPGAs "from 1 to 4" (the rows are 0 to 3); at t_5 FPGA i receives E_{i-1}, not
    /// E_{i-3}; and at t_6 it sends E_{i-1}, not E_{i-3}.
    const TABLE_8: [[&str; 8]; 4] = [
        [
            "G_0^1/-",
            "(G_3^1 + E_3^1)/E_0^1",
            "(G_2^1 + E_2^2)/E_3^2",
            "(G_1^1 + E_1^3)/E_2^3",
            "E_0^4/(E_1^4, G_1^4)",
            "E_3^4/(E_0^4, G_0^4)",
            "E_2^4/(E_3^4, G_3^4)",
            "-/G_2^4",
        ],
        [
            "G_1^1/-",
            "(G_0^1 + E_0^1)/E_1^1",
            "(G_3^1 + E_3^2)/E_0^2",
            "(G_2^1 + E_2^3)/E_3^3",
            "E_1^4/(E_2^4, G_2^4)",
            "E_0^4/(E_1^4, G_1^4)",
            "E_3^4/(E_0^4, G_0^4)",
            "-/G_3^4",
        ],
        [
            "G_2^1/-",
            "(G_1^1 + E_1^1)/E_2^1",
            "(G_0^1 + E_0^2)/E_1^2",
            "(G_3^1 + E_3^3)/E_0^3",
            "E_2^4/(E_3^4, G_3^4)",
            "E_1^4/(E_2^4, G_2^4)",
            "E_0^4/(E_1^4, G_1^4)",
            "-/G_0^4",
        ],
        [
            "G_3^1/-",
            "(G_2^1 + E_2^1)/E_3^1",
            "(G_1^1 + E_1^2)/E_2^2",
            "(G_0^1 + E_0^3)/E_1^3",
            "E_3^4/(E_0^4, G_0^4)",
            "E_2^4/(E_3^4, G_3^4)",
            "E_1^4/(E_2^4, G_2^4)",
            "-/G_1^4",
        ],
    ];

    fn table(kind: CollectiveKind, algo: Algorithm, ranks: u32) -> Vec<Vec<String>> {
        let programs = generate_all(kind, algo, ranks, 0).unwrap();
        let table = Table::new(&programs, &Limits::default()).unwrap();
        let cells = |row: &Vec<Cell>| row.iter().map(Cell::to_string).collect();
        table.rows.iter().map(cells).collect()
    }

    #[test]
    fn the_ring_of_four_is_the_papers_table_8() {
        let ours = table(CollectiveKind::AllReduce, Algorithm::Ring, 4);
        assert_eq!(ours, TABLE_8.map(|row| row.map(str::to_owned).to_vec()));
    }

    #[test]
    fn other_programs_have_tables_too() {
        use Algorithm as A;
        use CollectiveKind as K;
        let direct = table(K::AllReduce, A::Direct, 2);
        assert_eq!(direct[1][0], "(G_1^1 + G_1^1@0)/-");
        assert_eq!(direct[1][1], "-/(G_1^2, G_1^2@0)");
        let pairs = table(K::AllToAll, A::Pairwise, 2);
        assert_eq!(pairs[0][1], "E_{1,0}^1/(G_{0,0}^1, E_{0,1}^1)");
        let barrier = table(K::Barrier, A::RecursiveDoubling, 2);
        assert_eq!(barrier[0], ["-/-", "E/E", "-/-"]);
        let blocks = table(K::AllGather, A::RecursiveDoubling, 4);
        assert_eq!(blocks[3][2], "E_{0-1}^1/(E_3^1, G_2^1)");
    }

    #[test]
    fn arrows_join_the_cells_of_a_message() {
        let ring = generate_all(CollectiveKind::AllReduce, Algorithm::Ring, 4, 0).unwrap();
        let table = Table::new(&ring, &Limits::default()).unwrap();
        assert_eq!(table.arrows.len(), 24);
        assert!(table.arrows.iter().all(|a| a.out == a.into));
    }

    #[test]
    fn small_digits_are_readable() {
        assert_eq!(pretty("(G_3^1 + E_{12}^{10})/-"), "(G₃¹ + E₁₂¹⁰)/-");
        assert_eq!(pretty("E_{0-1}^1@7"), "E₀₋₁¹@7");
    }
}
