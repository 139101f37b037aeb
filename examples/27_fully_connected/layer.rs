//! The layer: a square matrix of weights, cut by columns, and a vector as its input.
//!
//! Weights and inputs are small whole numbers, so that a sum is exact in any order, and the product
//! of any number of ranks is that of a serial program to the bit.

use ndarray::linalg::general_mat_vec_mul;
use ndarray::{Array1, Array2, ArrayViewMut1};

/// A whole number from -4 to 4.
fn small(seed: usize) -> i32 {
    let x = (seed as u32).wrapping_add(1).wrapping_mul(2_654_435_761);
    ((x ^ x >> 15).wrapping_mul(0x2c1b_3c6d) >> 16) as i32 % 9 - 4
}

fn weight(row: usize, column: usize) -> i32 {
    small(row.wrapping_mul(40_503) ^ column.wrapping_mul(9_973))
}

fn input(column: usize) -> i32 {
    small(!column)
}

/// A rank's columns of the weights, and its elements of the input.
pub(crate) struct Part {
    weights: Array2<f32>,
    input: Array1<f32>,
}

impl Part {
    /// Of a layer with `side` inputs and outputs.
    pub(crate) fn new(side: usize, rank: usize, ranks: usize) -> Part {
        let (first, end) = (side * rank / ranks, side * (rank + 1) / ranks);
        let weights = Array2::from_shape_fn((side, end - first), |(row, column)| {
            weight(row, first + column) as f32
        });
        let input = (first..end).map(|column| input(column) as f32).collect();
        Part { weights, input }
    }

    /// The product of these columns, which the reduction adds to those of other ranks.
    pub(crate) fn multiply(&self, to: &mut [f32]) {
        let mut to = ArrayViewMut1::from(to);
        general_mat_vec_mul(1.0, &self.weights, &self.input, 0.0, &mut to);
    }
}

/// How many outputs differ from those of a serial program.
pub(crate) fn wrong(outputs: &[f32]) -> u64 {
    let inputs: Vec<i32> = (0..outputs.len()).map(input).collect();
    let serial = |row| -> i32 {
        let terms = inputs.iter().enumerate();
        terms.map(|(column, x)| weight(row, column) * x).sum()
    };
    let differ = |(row, y): &(usize, &f32)| y.to_bits() != (serial(*row) as f32).to_bits();
    outputs.iter().enumerate().filter(differ).count() as u64
}
