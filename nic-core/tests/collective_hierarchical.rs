//! Hierarchical collectives on NICs, against serial models.

use crate::collective_support;

use collective_support::{Call, Rng, Wire, World};
use ringbell_nic_abi::{Algorithm, CollectiveKind as K, DataType, ReduceOp, Status};
use ringbell_nic_core::collective::{CollectiveSettings, HostRanks};
use ringbell_onc_engines::program::Layout;

use crate::collective_doubling::serial;
use crate::collectives::small;

const OUT: u64 = 1 << 20;

fn on_hosts(host_ranks: impl Into<HostRanks>) -> CollectiveSettings {
    CollectiveSettings {
        host_ranks: host_ranks.into(),
        ..small()
    }
}

/// Elements of a type. Floats are 0, 1 or 2: their sums and products are exact in any order.
fn elements(dtype: DataType, count: usize, any: &mut impl FnMut(usize) -> usize) -> Vec<u8> {
    let mut one = || match dtype {
        DataType::F64 => [0f64, 1.0, 2.0][any(3)].to_le_bytes().to_vec(),
        DataType::F32 => [0f32, 1.0, 2.0][any(3)].to_le_bytes().to_vec(),
        DataType::F16 => [0, 0x3c00, 0x4000u16][any(3)].to_le_bytes().to_vec(),
        DataType::Bf16 => [0, 0x3f80, 0x4000u16][any(3)].to_le_bytes().to_vec(),
        _ => (0..dtype.bytes()).map(|_| any(256) as u8).collect(),
    };
    (0..count).flat_map(|_| one()).collect()
}

/// What each rank ends with; `None`: nothing is written there.
fn model(call: &Call, root: usize, sources: &[Vec<u8>]) -> Vec<Option<Vec<u8>>> {
    let (dtype, op) = (call.spec.dtype, call.spec.op);
    let of_all = |v: Vec<u8>| vec![Some(v); sources.len()];
    let reduced = || match dtype.is_float() {
        false => serial(dtype, op, sources),
        true => exact(dtype, op, sources),
    };
    let block = (call.count as usize * dtype.bytes() as usize).max(1);
    match call.spec.kind {
        K::Broadcast => of_all(sources[root].clone()),
        K::AllGather => of_all(sources.concat()),
        K::AllReduce => of_all(reduced()),
        K::Reduce => {
            let mut at = vec![None; sources.len()];
            at[root] = Some(reduced());
            at
        }
        _ if call.count == 0 => of_all(Vec::new()),
        _ => reduced().chunks(block).map(|b| Some(b.to_vec())).collect(),
    }
}

#[test]
fn random_elements_have_the_bits_of_the_serial_model() {
    let kinds = [
        K::AllReduce,
        K::AllGather,
        K::ReduceScatter,
        K::Broadcast,
        K::Reduce,
    ];
    let mut rng = Rng(85);
    let mut any = |below: usize| rng.next() as usize % below;
    for (wire, hosts) in [
        (Wire::Local, &[0, 0, 1, 1][..]),
        (Wire::Rdma, &[0, 0, 1, 1, 2, 2]),
        (Wire::LossyRdma(2, 9), &[0, 0, 0, 1, 1, 1]),
        (Wire::Local, &[0, 1, 2, 3, 4]),
        (Wire::Tcp, &[0; 4]),
        (Wire::Lossy(2, 5), &[0, 0, 1, 1, 2, 2, 3, 3]),
        (Wire::Local, &[0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]),
        (Wire::Local, &[0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1]),
        // Hosts with different numbers of ranks, and ranks that are mixed.
        (Wire::LossyRdma(2, 4), &[0, 0, 0, 1, 1, 2, 2, 2, 2]),
        (Wire::Lossy(2, 8), &[0, 1, 1, 1, 1, 2, 2]),
        (Wire::Local, &[0, 0, 0, 0, 0, 1]),
        (Wire::Rdma, &[0, 1, 0, 2, 1, 0]),
    ] {
        let ranks = hosts.len();
        let on = HostRanks::of_hosts(hosts);
        let mut w = World::new(ranks, wire, &on_hosts(on.clone()));
        for kind in kinds.into_iter().cycle().take(40) {
            let dtype = DataType::ALL[any(DataType::ALL.len())];
            let takes: Vec<_> = ReduceOp::ALL.iter().filter(|op| op.takes(dtype)).collect();
            let op = *takes[any(takes.len())];
            let (count, root) = (any(1500), any(ranks));
            let is_in_place = any(2) == 0;
            let len = (count * dtype.bytes() as usize) as u64;
            let call = Call::new(kind, count as u64).of(dtype, op);
            let call = call.algo(Algorithm::Hierarchical).root(root as u32);
            let what = format!(
                "{wire:?}, hosts {on}: {kind:?} to {root}, {count} {dtype:?} {op:?}, in place {is_in_place}"
            );
            let blocks = if kind == K::ReduceScatter { ranks } else { 1 };
            let sources: Vec<_> = (0..ranks)
                .map(|_| elements(dtype, count * blocks, &mut any))
                .collect();
            let place = |r: usize| match (is_in_place, kind) {
                (false, _) => (0, OUT),
                (true, K::AllGather) => (r as u64 * len, 0),
                (true, K::ReduceScatter) => (0, r as u64 * len),
                (true, _) => (0, 0),
            };
            let mut tickets = Vec::new();
            for (r, source) in sources.iter().enumerate() {
                let (src, dst) = place(r);
                w.host(r).poke(dst, &vec![0xa5; len as usize]);
                w.host(r).poke(src, source);
                tickets.push((r, w.post(r, &call.at(src, dst))));
            }
            for end in w.settle(&tickets) {
                assert_eq!(end.status, Status::Ok, "{end:?}, {what}");
            }
            for (r, wanted) in model(&call, root, &sources).into_iter().enumerate() {
                let unwritten = || match is_in_place {
                    true => sources[r].clone(),
                    false => vec![0xa5; len as usize],
                };
                let wanted = wanted.unwrap_or_else(unwritten);
                let got = w.host(r).peek(place(r).1, wanted.len());
                assert!(got == wanted, "rank {r}, {what}");
            }
        }
    }
}

/// The reduction of floats that no order rounds.
fn exact(dtype: DataType, op: ReduceOp, sources: &[Vec<u8>]) -> Vec<u8> {
    let size = dtype.bytes() as usize;
    // All values are whole, and so small that every type has them: a half has 5 bits of exponent.
    let read = |b: &[u8]| -> f64 {
        match *b {
            [a, b] => {
                let bits = u16::from_le_bytes([a, b]);
                let one = if dtype == DataType::F16 {
                    0x3c00
                } else {
                    0x3f80
                };
                match bits {
                    0 => 0.0,
                    bits if bits == one => 1.0,
                    _ => 2.0,
                }
            }
            [a, b, c, d] => f32::from_le_bytes([a, b, c, d]).into(),
            _ => f64::from_le_bytes(b.try_into().expect("8 bytes")),
        }
    };
    let write = |v: f64| -> Vec<u8> {
        let exponent = |bias: u32, bits: u32| {
            // Whole numbers of few bits.
            let v = v as u32;
            let log = v.checked_ilog2().unwrap_or(0);
            let fraction = (v - (1 << log)) << bits >> log;
            ((log + bias) << bits | fraction) as u16
        };
        match dtype {
            DataType::F64 => v.to_le_bytes().to_vec(),
            DataType::F32 => (v as f32).to_le_bytes().to_vec(),
            _ if v == 0.0 => vec![0, 0],
            DataType::F16 => exponent(15, 10).to_le_bytes().to_vec(),
            _ => exponent(127, 7).to_le_bytes().to_vec(),
        }
    };
    let apply = |a: f64, b: f64| match op {
        ReduceOp::Sum => a + b,
        ReduceOp::Prod => a * b,
        ReduceOp::Min => a.min(b),
        _ => a.max(b),
    };
    let mut out = Vec::new();
    for at in (0..sources[0].len()).step_by(size) {
        let all = sources.iter().map(|s| read(&s[at..at + size]));
        out.extend(write(all.reduce(apply).unwrap_or(0.0)));
    }
    out
}

#[test]
fn floats_have_the_order_of_hosts_for_any_segments_and_transport() {
    let bytes = |v: &[f32]| -> Vec<u8> { v.iter().flat_map(|x| x.to_le_bytes()).collect() };
    let mut rng = Rng(12);
    let count = 3001usize;
    for (wire, hosts, each) in [
        (Wire::Local, 2, 3),
        (Wire::Rdma, 3, 2),
        (Wire::LossyRdma(2, 3), 2, 2),
    ] {
        let ranks = hosts * each;
        let inputs: Vec<Vec<f32>> = (0..ranks)
            .map(|_| (0..count).map(|_| rng.next() as u32 as f32 / 7.0).collect())
            .collect();
        let layout = Layout {
            count: count as u64,
            block_chunks: ranks as u32,
        };
        let mut wanted = Vec::new();
        for chunk in 0..ranks {
            let (place, first) = (chunk / hosts, chunk % hosts);
            for i in layout.chunk(chunk as u32) {
                let of_host = |h: usize| {
                    let at = |k: usize| inputs[h * each + (place + k) % each][i as usize];
                    (1..each).fold(at(0), |sum, k| sum + at(k))
                };
                let at = |k: usize| of_host((first + k) % hosts);
                wanted.push((1..hosts).fold(at(0), |sum, k| sum + at(k)));
            }
        }
        for segment_bytes in [64, 4096] {
            let settings = CollectiveSettings {
                segment_bytes,
                ..on_hosts(each as u32)
            };
            let mut w = World::new(ranks, wire, &settings);
            for dst in [OUT, 0] {
                for (r, v) in inputs.iter().enumerate() {
                    w.host(r).poke(0, &bytes(v));
                }
                let call = Call::new(K::AllReduce, count as u64);
                w.run(&call.algo(Algorithm::Hierarchical).at(0, dst));
                for r in 0..ranks {
                    let got = w.host(r).peek(dst, count * 4);
                    assert!(
                        got == bytes(&wanted),
                        "{wire:?} rank {r} of {ranks} at {dst}"
                    );
                }
            }
        }
    }
}

#[test]
fn hosts_that_do_not_divide_the_ranks_are_refused_and_others_go_on() {
    for (ranks, host_ranks) in [(3, 2), (4, 3), (2, 4)] {
        let mut w = World::new(ranks, Wire::Local, &on_hosts(host_ranks));
        let call = Call::new(K::AllReduce, 9);
        for end in w.call(&call.algo(Algorithm::Hierarchical)) {
            let code = Algorithm::Hierarchical.code().into();
            assert_eq!((end.status, end.detail), (Status::InvalidArgument, code));
        }
        w.run(&call.algo(Algorithm::Ring));
    }
    // Of a communicator that is `deterministic` it cannot be asked for, as the ring.
    let strict = CollectiveSettings {
        deterministic: true,
        ..on_hosts(2)
    };
    let mut w = World::new(4, Wire::Local, &strict);
    let call = Call::new(K::AllReduce, 9).algo(Algorithm::Hierarchical);
    let ends = w.call(&call);
    assert!(ends.iter().all(|e| e.status == Status::InvalidArgument));
}
