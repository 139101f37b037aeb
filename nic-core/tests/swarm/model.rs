//! What operations must leave behind.

use ringbell_nic_abi::CollectiveKind as K;

use super::collective_support::Rng;
use super::plan::With;

/// Bytes of an operation's operand on a NIC.
pub(super) fn bytes(seed: u64, id: usize, rank: usize, len: usize) -> Vec<u8> {
    let mut rng = Rng(seed ^ (id as u64) << 32 ^ (rank as u64) << 56);
    let words = (0..len.div_ceil(8)).flat_map(|_| rng.next().to_le_bytes());
    words.take(len).collect()
}

/// Blocks of `count` elements in a rank's source and destination.
pub(super) fn blocks(kind: K, ranks: usize, is_root: bool) -> (usize, usize) {
    let at_root = |n| if is_root { n } else { 0 };
    match kind {
        K::AllGather => (1, ranks),
        K::ReduceScatter => (ranks, 1),
        K::AllToAll => (ranks, ranks),
        K::Broadcast => (at_root(1), 1),
        K::Reduce => (1, at_root(1)),
        K::Scatter => (at_root(ranks), 1),
        K::Gather => (1, at_root(ranks)),
        K::Barrier => (0, 0),
        _ => (1, 1),
    }
}

/// Numbers whose sums are exact, also where the wire has eight bits of them.
pub(super) fn small(bytes: &[u8]) -> Vec<u8> {
    let number = |b: &[u8]| f32::from(b[0] % 16).to_le_bytes();
    bytes.chunks_exact(4).flat_map(number).collect()
}

/// The sum, element by element.
fn sum(sources: &[&[u8]], with: With) -> Vec<u8> {
    let mut out = sources[0].to_vec();
    for source in &sources[1..] {
        for (o, s) in out.chunks_exact_mut(4).zip(source.chunks_exact(4)) {
            let word = |b: &[u8]| [b[0], b[1], b[2], b[3]];
            let sum = match with {
                With::Nothing => {
                    let sum = u32::from_le_bytes(word(o)).wrapping_add(u32::from_le_bytes(word(s)));
                    sum.to_le_bytes()
                }
                _ => (f32::from_le_bytes(word(o)) + f32::from_le_bytes(word(s))).to_le_bytes(),
            };
            o.copy_from_slice(&sum);
        }
    }
    out
}

/// A rank's destination, of all ranks' sources; `block` is in bytes.
pub(super) fn result(
    kind: K,
    sources: &[Vec<u8>],
    root: usize,
    rank: usize,
    block: usize,
    with: With,
) -> Vec<u8> {
    let part = |of: usize, n: usize| &sources[of][n * block..(n + 1) * block];
    let all = 0..sources.len();
    let (_, out) = blocks(kind, sources.len(), rank == root);
    if out == 0 {
        return Vec::new();
    }
    match kind {
        K::AllReduce | K::Reduce => sum(&all.map(|r| part(r, 0)).collect::<Vec<_>>(), with),
        K::ReduceScatter => sum(&all.map(|r| part(r, rank)).collect::<Vec<_>>(), with),
        K::AllGather | K::Gather => all.flat_map(|r| part(r, 0).to_vec()).collect(),
        K::AllToAll => all.flat_map(|r| part(r, rank).to_vec()).collect(),
        K::Broadcast => part(root, 0).to_vec(),
        _ => part(root, rank).to_vec(),
    }
}
