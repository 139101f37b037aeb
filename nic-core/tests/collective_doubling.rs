//! The all-reduce by recursive doubling on NICs, against serial models.

use crate::collective_support;

use collective_support::{Call, Rng, Wire, World};
use ringbell_nic_abi::{Algorithm, CollectiveKind as K, DataType, ReduceOp};
use ringbell_nic_core::collective::CollectiveSettings;

use crate::collectives::small;

const OUT: u64 = 1 << 20;

/// An element of an integer type, in a number that holds every one of them.
fn whole(dtype: DataType, b: &[u8]) -> i128 {
    let signed = matches!(
        dtype,
        DataType::I8 | DataType::I16 | DataType::I32 | DataType::I64
    );
    let fill = if signed && b[b.len() - 1] >= 128 {
        255
    } else {
        0
    };
    let mut wide = [fill; 16];
    wide[..b.len()].copy_from_slice(b);
    i128::from_le_bytes(wide)
}

/// The reduction of all sources, element by element in the order of the ranks.
pub(crate) fn serial(dtype: DataType, op: ReduceOp, sources: &[Vec<u8>]) -> Vec<u8> {
    let size = dtype.bytes() as usize;
    let apply = |a: i128, b: i128| match op {
        // Only the low bits count, so that nothing need be wider.
        ReduceOp::Sum => a.wrapping_add(b),
        ReduceOp::Prod => a.wrapping_mul(b),
        ReduceOp::Min => a.min(b),
        ReduceOp::Max => a.max(b),
        ReduceOp::And => a & b,
        ReduceOp::Or => a | b,
        ReduceOp::Xor => a ^ b,
    };
    let mut out = Vec::new();
    for at in (0..sources[0].len()).step_by(size) {
        let all = sources.iter().map(|s| whole(dtype, &s[at..at + size]));
        out.extend(&all.reduce(apply).unwrap_or(0).to_le_bytes()[..size]);
    }
    out
}

#[test]
fn random_integers_have_the_bits_of_the_serial_model() {
    let mut rng = Rng(2005);
    let mut any = |below: usize| rng.next() as usize % below;
    let integers: Vec<_> = DataType::ALL.iter().filter(|d| !d.is_float()).collect();
    for (wire, ranks) in [
        (Wire::Local, 2),
        (Wire::Local, 3),
        (Wire::Rdma, 4),
        (Wire::LossyRdma(2, 9), 5),
        (Wire::Local, 6),
        (Wire::Lossy(2, 5), 7),
        (Wire::Local, 13),
    ] {
        let mut w = World::new(ranks, wire, &small());
        for _ in 0..24 {
            let dtype = *integers[any(integers.len())];
            let op = ReduceOp::ALL[any(ReduceOp::ALL.len())];
            let count = any(1500);
            let dst = [0, OUT][any(2)];
            let len = count * dtype.bytes() as usize;
            let sources: Vec<Vec<u8>> = (0..ranks)
                .map(|_| (0..len).map(|_| any(256) as u8).collect())
                .collect();
            for (r, source) in sources.iter().enumerate() {
                w.host(r).poke(0, source);
            }
            let call = Call::new(K::AllReduce, count as u64).of(dtype, op);
            w.run(&call.algo(Algorithm::RecursiveDoubling).at(0, dst));
            let wanted = serial(dtype, op, &sources);
            for r in 0..ranks {
                assert!(
                    w.host(r).peek(dst, len) == wanted,
                    "{wire:?}, rank {r} of {ranks}: {count} {dtype:?} {op:?} at {dst}"
                );
            }
        }
    }
}

/// The sum of floats as halves are combined; a pair stands for one of the first places.
fn halves(inputs: &[Vec<f32>], first: usize, len: usize, pairs: usize) -> Vec<f32> {
    let add = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a + b).collect();
    match len {
        1 if first < pairs => add(&inputs[2 * first], &inputs[2 * first + 1]),
        1 => inputs[first + pairs].clone(),
        _ => {
            let at = |first| halves(inputs, first, len / 2, pairs);
            add(&at(first), &at(first + len / 2))
        }
    }
}

#[test]
fn floats_have_one_order_for_each_number_of_ranks_and_any_cut() {
    let bytes = |v: &[f32]| -> Vec<u8> { v.iter().flat_map(|x| x.to_le_bytes()).collect() };
    let mut rng = Rng(5);
    for (wire, ranks) in [
        (Wire::Local, 2),
        (Wire::Rdma, 3),
        (Wire::Local, 4),
        (Wire::LossyRdma(2, 3), 6),
        (Wire::Local, 11),
    ] {
        for segment_bytes in [64, 4096] {
            let settings = CollectiveSettings {
                segment_bytes,
                ..small()
            };
            let mut w = World::new(ranks, wire, &settings);
            let n = 3001;
            let inputs: Vec<Vec<f32>> = (0..ranks)
                .map(|_| (0..n).map(|_| rng.next() as u32 as f32 / 7.0).collect())
                .collect();
            let places = 1 << ranks.ilog2();
            let wanted = bytes(&halves(&inputs, 0, places, ranks - places));
            for dst in [OUT, 0] {
                for (r, v) in inputs.iter().enumerate() {
                    w.host(r).poke(0, &bytes(v));
                }
                for (first, count) in [(0, 1000), (1000, 2001)] {
                    let call = Call::new(K::AllReduce, count).algo(Algorithm::RecursiveDoubling);
                    w.run(&call.at(first * 4, dst + first * 4));
                }
                for r in 0..ranks {
                    let got = w.host(r).peek(dst, n * 4);
                    assert!(got == wanted, "{wire:?} rank {r} of {ranks} at {dst}");
                }
            }
        }
    }
}
