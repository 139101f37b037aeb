//! The checked memory of a rank: the value, the messages in flight and the accesses of each chunk.

use super::value::{Algebra, Value};
use crate::program::{Place, Program};

/// A message that may still be read from a chunk.
#[derive(Debug, Clone, Copy)]
pub(super) struct PendingRead {
    /// Receiver.
    pub(super) to: u32,
    /// Its step.
    pub(super) taken: usize,
    /// The step that sent.
    pub(super) sent: usize,
}

/// Ranks that touch a chunk of a program without messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Touched {
    /// No rank.
    No,
    /// One rank only reads.
    Read(u32),
    /// Several read.
    ReadByMany,
    /// One rank writes, and perhaps reads.
    Written(u32),
}

/// One chunk.
#[derive(Debug, Clone)]
pub(super) struct MemoryCell {
    pub(super) value: Value,
    /// Rank and step that wrote last.
    pub(super) writer: Option<(u32, usize)>,
    pub(super) pending: Vec<PendingRead>,
    pub(super) touched: Touched,
    /// The step that last named this chunk, and the index in its value: finds overlaps.
    pub(super) mark: (u64, u32),
}

/// The memory of one rank.
#[derive(Debug)]
pub(super) struct RankMemory {
    pub(super) cells: Vec<MemoryCell>,
    inputs: usize,
    outputs: usize,
    /// Input and output chunk that coincide.
    in_place: Option<(usize, usize)>,
}

impl RankMemory {
    pub(super) fn new(program: &Program, algebra: &Algebra, in_place: bool) -> RankMemory {
        let (inputs, outputs) = (
            program.input_chunks as usize,
            program.output_chunks as usize,
        );
        let empty = MemoryCell {
            value: Value::Nothing,
            writer: None,
            pending: Vec::new(),
            touched: Touched::No,
            mark: (0, 0),
        };
        let mut cells = vec![empty; inputs + outputs + program.scratch_chunks as usize];
        for (chunk, cell) in (0..).zip(&mut cells[..inputs]) {
            cell.value = algebra.source(program.rank, chunk);
        }
        let coincide = program.in_place().filter(|_| in_place);
        RankMemory {
            cells,
            inputs,
            outputs,
            in_place: coincide.map(|(i, o)| (i as usize, o as usize)),
        }
    }

    /// Index of the cell of the `i`-th chunk of a place.
    pub(super) fn index(&self, place: Place, i: u32) -> usize {
        let chunk = (place.chunks().first + i) as usize;
        match place {
            Place::Input(_) => chunk,
            Place::Output(_) => self.output(chunk),
            Place::Scratch(_) => self.inputs + self.outputs + chunk,
        }
    }

    fn output(&self, chunk: usize) -> usize {
        if let Some((input, output)) = self.in_place {
            if chunk >= output && chunk - output + input < self.inputs {
                return chunk - output + input;
            }
        }
        self.inputs + chunk
    }

    /// The cell of an output chunk.
    pub(super) fn output_cell(&self, chunk: u32) -> &MemoryCell {
        &self.cells[self.output(chunk as usize)]
    }
}
