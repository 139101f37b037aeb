//! The steps that ring programs of `onc_engines` give to a NIC, and the bits that they must leave.

#![allow(unsafe_code)] // The model of a reduction takes raw operands.

use std::ops::Range;

use ringbell_gtlb::testing::Rng;
use ringbell_hw_sim::ring::Step;
use ringbell_nic_abi::{Algorithm, CollectiveKind, DataType, ReduceOp};
use ringbell_onc_engines::program::{
    generate_all, simulate, Layout, Operand, Place, Program, Target,
};
use ringbell_onc_engines::reduce::fused;

/// The steps of a program between neighbours. `input` and `output` are where the buffers begin.
fn steps(p: &Program, layout: &Layout, bytes: usize, input: u64, output: u64) -> Vec<Step> {
    let range = |place: &Place| {
        let c = place.chunks();
        let at = |chunk| layout.chunk(chunk).start as usize * bytes;
        at(c.first)..at(c.end())
    };
    let (next, previous) = ((p.rank + 1) % p.ranks, (p.rank + p.ranks - 1) % p.ranks);
    let one = |step: &ringbell_onc_engines::program::Step| {
        let mut out = Step::default();
        let mut of = |r: Range<usize>| {
            out.bytes = r.len() as u32;
            r.start as u64
        };
        for operand in &step.operands {
            match operand {
                Operand::Local(place @ Place::Input(_)) => {
                    out.read = Some(input + of(range(place)))
                }
                Operand::Net { from, channel: 0 } if *from == previous => out.net_in = true,
                other => panic!("not of a ring: {other:?}"),
            }
        }
        for target in &step.results {
            match target {
                Target::Local(place @ Place::Output(_)) => {
                    out.write = Some(output + of(range(place)))
                }
                // Every value is kept on the card.
                Target::Local(place @ Place::Scratch(_)) => _ = of(range(place)),
                Target::Net { to, channel: 0 } if *to == next => out.net_out = true,
                other => panic!("not of a ring: {other:?}"),
            }
        }
        out
    };
    p.steps.iter().map(one).collect()
}

pub(crate) const TYPES: [(DataType, usize); 4] = [
    (DataType::F32, 4),
    (DataType::F16, 2),
    (DataType::Bf16, 2),
    (DataType::I32, 4),
];
pub(crate) const OPS: [ReduceOp; 3] = [ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max];

/// A collective on elements of a type; one element as the low bytes of a word.
pub(crate) struct Job {
    pub(crate) programs: Vec<Program>,
    pub(crate) layout: Layout,
    pub(crate) dtype: (DataType, usize),
    pub(crate) op: ReduceOp,
    pub(crate) in_place: bool,
    pub(crate) sources: Vec<Vec<u32>>,
    /// Where each rank's destination begins.
    pub(crate) outputs: Vec<usize>,
}

impl Job {
    pub(crate) fn new(
        rng: &mut Rng,
        (kind, algo): (CollectiveKind, Algorithm),
        ranks: u32,
        count: u64,
        dtype: (DataType, usize),
        op: ReduceOp,
    ) -> Job {
        let root = rng.below(u64::from(ranks)) as u32;
        let programs = generate_all(kind, algo, ranks, root).expect("a program");
        let layout = Layout {
            count,
            block_chunks: programs[0].block_chunks,
        };
        let mask = u32::MAX >> (32 - 8 * dtype.1);
        let source = |p: &Program| {
            let elements = layout.chunk(p.input_chunks).start;
            // Small numbers of both signs as floats, mostly, so that sums differ by their order.
            let mut element = || match rng.below(8) {
                0 => rng.bits() as u32 & mask,
                _ => (rng.bits() as u32 & mask & !(0x7000_7000 & mask)) | (0x3000_3000 & mask),
            };
            (0..elements).map(|_| element()).collect()
        };
        let sources = programs.iter().map(source).collect();
        // Broadcasts and gathers have an in-place form at the root alone, which the steps here do
        // not tell apart.
        let in_place = kind == CollectiveKind::AllReduce && rng.below(2) == 0;
        Job {
            programs,
            layout,
            dtype,
            op,
            in_place,
            sources,
            outputs: vec![0; ranks as usize],
        }
    }

    fn bytes(&self, values: &[u32]) -> Vec<u8> {
        let bytes = self.dtype.1;
        values
            .iter()
            .flat_map(|v| v.to_le_bytes().into_iter().take(bytes))
            .collect()
    }

    /// Lays a rank's buffers behind what is in its GPU memory, which begins at an address; gives
    /// the steps.
    pub(crate) fn place(&mut self, rank: usize, gpu: &mut Vec<u8>, base: u64) -> Vec<Step> {
        let p = &self.programs[rank];
        let input = gpu.len();
        gpu.extend(self.bytes(&self.sources[rank]));
        let output = if self.in_place { input } else { gpu.len() };
        let len = self.layout.chunk(p.output_chunks).start as usize * self.dtype.1;
        gpu.resize(gpu.len().max(output + len), 0x5a);
        self.outputs[rank] = output;
        let at = |offset: usize| base + offset as u64;
        steps(p, &self.layout, self.dtype.1, at(input), at(output))
    }

    /// Every rank's destination by the Rust simulation: where it begins in GPU memory, and its
    /// bytes.
    pub(crate) fn wanted(&self) -> Vec<(usize, Vec<u8>)> {
        let (dtype, _) = self.dtype;
        let reduce = |a: &u32, b: &u32| {
            let mut out = [0; 4];
            let (a, b) = (a.to_le_bytes(), b.to_le_bytes());
            let srcs = [a.as_ptr(), b.as_ptr()];
            // SAFETY: one element of at most 4 bytes in each, and the result lies apart.
            unsafe { fused(dtype, self.op, &[out.as_mut_ptr()], &srcs, 1, false) };
            u32::from_le_bytes(out)
        };
        let count = self.layout.count;
        let outcome = simulate(&self.programs, count, &self.sources, false, reduce, 1);
        let outcome = outcome.expect("a right program");
        let whole = |wanted: &Vec<Option<u32>>| -> Vec<u32> {
            wanted.iter().map(|v| v.expect("written")).collect()
        };
        let bytes = outcome.outputs.iter().map(|w| self.bytes(&whole(w)));
        self.outputs.iter().copied().zip(bytes).collect()
    }
}

pub(crate) const ALL_REDUCE: (CollectiveKind, Algorithm) =
    (CollectiveKind::AllReduce, Algorithm::Ring);
