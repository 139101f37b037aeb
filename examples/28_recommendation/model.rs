//! The model: embedding tables, three layers, and the same by one thread.
//!
//! Values are fixed-point numbers of 32 bits, 8 of them behind the point. Sums are kept to 32 bits,
//! so that they are the same in any order.

/// Ranks that have tables, and the upper half of a part of the first layer.
pub(crate) const PARTS: u32 = 4;

/// The sizes of a model (ACCL+, OSDI'24, Table 3).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Model {
    /// Embedding tables; each of the [`PARTS`] has as many.
    pub(crate) tables: u32,
    /// Rows of a table.
    pub(crate) table_rows: u32,
    /// Rows of a table that memory holds; a generator makes the others when they are looked up.
    pub(crate) held_rows: u32,
    /// Elements of a row.
    pub(crate) width: u32,
    /// Outputs of the three layers; the first number is even.
    pub(crate) layers: [u32; 3],
}

/// The paper's: a vector of 3,200, and tables of 50 GB.
pub(crate) const PAPER: Model = Model {
    tables: 100,
    table_rows: 3_906_250,
    held_rows: 4_096,
    width: 32,
    layers: [2_048, 512, 256],
};

/// A hundredth of its work, for a test.
pub(crate) const SMALL: Model = Model {
    tables: 12,
    table_rows: 5_000,
    held_rows: 2_500,
    width: 8,
    layers: [136, 68, 33],
};

/// Numbers that look random.
fn mixed(a: u32, b: u32, c: u32) -> u32 {
    let x = (a.wrapping_mul(0x9e37_79b9) ^ b).wrapping_mul(2_654_435_761);
    let x = x.wrapping_add(c.wrapping_mul(0x85eb_ca6b));
    (x ^ x >> 15).wrapping_mul(0x2c1b_3c6d)
}

/// An element of an embedding table: from -0.5 to 0.5.
pub(crate) fn embedding(table: u32, row: u32, element: u32) -> i32 {
    (mixed(table, row, element) >> 24) as i32 - 128
}

/// A weight: from -0.125 to 0.125.
pub(crate) fn weight(layer: u32, row: u32, column: u32) -> i32 {
    (mixed(layer + 1_000, row, column) >> 26) as i32 - 32
}

/// What a layer makes of a sum of products: back to 8 bits behind the point, and not below zero.
fn activate(sum: i32) -> i32 {
    sum.max(0) >> 8
}

impl Model {
    /// Elements of the vector that the lookups give.
    pub(crate) fn vector(&self) -> u32 {
        self.tables * self.width
    }

    /// The row of each table that a request asks for.
    pub(crate) fn request(&self, n: u32) -> Vec<u32> {
        let row = |table| mixed(table, n, 77) % self.table_rows;
        (0..self.tables).map(row).collect()
    }

    /// Rows and columns of a layer's weights, row by row.
    pub(crate) fn weights(
        &self,
        layer: u32,
        rows: std::ops::Range<u32>,
        columns: std::ops::Range<u32>,
    ) -> Vec<i32> {
        rows.flat_map(|row| columns.clone().map(move |c| weight(layer, row, c)))
            .collect()
    }
}

/// The whole model in one process.
pub(crate) struct Serial {
    model: Model,
    weights: [Vec<i32>; 3],
}

impl Serial {
    pub(crate) fn new(model: Model) -> Serial {
        let [first, second, third] = model.layers;
        Serial {
            model,
            weights: [
                model.weights(0, 0..first, 0..model.vector()),
                model.weights(1, 0..second, 0..first),
                model.weights(2, 0..third, 0..second),
            ],
        }
    }

    /// The answers to requests, layer by layer: a row of weights serves all of them.
    pub(crate) fn answers(&self, requests: &[u32]) -> Vec<Vec<i32>> {
        let lookup = |n: &u32| -> Vec<i32> {
            let rows = self.model.request(*n).into_iter().zip(0..);
            rows.flat_map(|(row, table)| {
                (0..self.model.width).map(move |i| embedding(table, row, i))
            })
            .collect()
        };
        let mut values: Vec<Vec<i32>> = requests.iter().map(lookup).collect();
        for weights in &self.weights {
            let mut next = vec![Vec::new(); values.len()];
            let columns = values.first().map_or(1, Vec::len);
            for row in weights.chunks_exact(columns) {
                for (x, out) in values.iter().zip(&mut next) {
                    let products = row.iter().zip(x).map(|(w, x)| w.wrapping_mul(*x));
                    out.push(activate(products.fold(0, i32::wrapping_add)));
                }
            }
            values = next;
        }
        values
    }
}
