//! Scatter and gather with kernels' streams at both ends: the root's kernel pushes the blocks of
//! all ranks, or pops them, one after the other.

use crate::collective_streamed::{play, settings, Kernel};
use crate::collective_support::{Call, Ring, Rng, Wire, World};

use ringbell_nic_abi::kernel_stream::STATE_AT;
use ringbell_nic_abi::{CollectiveKind as K, Completion, DataType, ReduceOp, Status};
use ringbell_nic_core::collective::CollectiveSettings;

const IN: u64 = 64;
const OUT: u64 = 4 << 20;
const RINGS: u64 = 12 << 20;

/// Bytes that differ from rank to rank and from seed to seed.
fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng(seed);
    (0..len).map(|_| rng.next() as u8).collect()
}

/// A scatter or gather of one round.
struct Case {
    kind: K,
    root: usize,
    /// Bytes of a block.
    block: usize,
    /// All blocks, by rank.
    blocks: Vec<u8>,
}

impl Case {
    /// What a rank pushes, and what it must get.
    fn of(&self, rank: usize) -> (&[u8], &[u8]) {
        let own = &self.blocks[rank * self.block..][..self.block];
        let all = if rank == self.root {
            &self.blocks[..]
        } else {
            &[]
        };
        match self.kind {
            K::Scatter => (all, own),
            _ => (own, all),
        }
    }
}

/// One on all ranks, with a stream or memory at each side as `rng` says, against the serial model.
fn run(w: &mut World, case: &Case, call: Call, rng: &mut Rng) {
    let (mut kernels, mut tickets) = (Vec::new(), Vec::new());
    for rank in 0..w.ranks() {
        let (pushed, got) = case.of(rank);
        let mut call = call.at(IN, OUT).streamed();
        let (mut push, mut pop) = (None, None);
        let start = 0u64.wrapping_sub(8 * (rng.next() % 64));
        if rng.next().is_multiple_of(4) {
            w.host(rank).poke(IN, pushed);
        } else {
            let ring = Ring::new(w, rank, RINGS, 7 + (rng.next() % 3) as u32, start);
            call = call.of_ring(&ring);
            push = Some((ring, pushed.to_vec(), 0));
        }
        w.host(rank).poke(OUT, &vec![0x5a; got.len() + 8]);
        if !rng.next().is_multiple_of(4) {
            let ring = Ring::new(w, rank, RINGS + 4096, 7, start);
            call = call.to_ring(&ring);
            pop = Some((ring, Vec::new()));
        }
        kernels.push(Kernel { push, pop });
        tickets.push(w.post(rank, &call));
    }
    let what = |rank: usize| {
        let (kind, root, block) = (case.kind, case.root, case.block);
        format!(
            "{kind:?} of blocks of {block}, root {root}, rank {rank} of {}",
            tickets.len()
        )
    };
    let done = play(w, &mut kernels, &tickets, rng);
    for (rank, (kernel, end)) in kernels.iter().zip(done).enumerate() {
        assert_eq!(end.status, Status::Ok, "{}: {end:?}", what(rank));
        let (_, wanted) = case.of(rank);
        let got = match &kernel.pop {
            Some((_, got)) => got.clone(),
            None => w.host(rank).peek(OUT, wanted.len()),
        };
        assert!(got == wanted, "{}: other bytes", what(rank));
        let behind = w.host(rank).peek(OUT + got.len() as u64, 8);
        assert_eq!(behind, [0x5a; 8], "{}", what(rank));
        if let Some((ring, data, at)) = &kernel.push {
            assert_eq!((*at, ring.level(w)), (data.len(), 0), "{}", what(rank));
        }
    }
}

fn random(wire: Wire, seed: u64, worlds: usize) {
    let mut rng = Rng(seed);
    for _ in 0..worlds {
        let ranks = 1 + rng.next() as usize % 7;
        let settings = CollectiveSettings {
            stream_bytes: 32 << (rng.next() % 3),
            segments_in_flight: 1 + (rng.next() % 6) as u32,
            ..settings()
        };
        let mut w = World::new(ranks, wire, &settings);
        for _ in 0..6 {
            let types = [DataType::U8, DataType::U16, DataType::F32, DataType::U64];
            let dtype = types[rng.next() as usize % types.len()];
            let count = match rng.next() % 4 {
                0 => rng.next() % 3,
                1 => 1 + rng.next() % 20,
                _ => 1 + rng.next() % 300,
            };
            let block = (count * dtype.bytes()) as usize;
            let case = Case {
                kind: [K::Scatter, K::Gather][rng.next() as usize % 2],
                root: rng.next() as usize % ranks,
                block,
                blocks: bytes(rng.next(), ranks * block),
            };
            let call = Call::new(case.kind, count).of(dtype, ReduceOp::Sum);
            run(&mut w, &case, call.root(case.root as u32), &mut rng);
        }
    }
}

#[test]
fn blocks_of_random_sizes_are_those_of_a_serial_model_on_one_host() {
    random(Wire::Local, 1, 24);
}

#[test]
fn blocks_of_random_sizes_are_those_of_a_serial_model_over_networks() {
    random(Wire::Tcp, 2, 6);
    random(Wire::Rdma, 3, 6);
    random(Wire::LossyRdma(2, 5), 4, 4);
}

/// A kernel's end of a side of a rank.
fn ring(w: &World, rank: usize, at: u64) -> Ring {
    Ring::new(w, rank, RINGS + at, 6, 0)
}

#[test]
fn a_rank_has_its_block_before_the_root_has_computed_the_next() {
    const RANKS: usize = 4;
    const BLOCK: usize = 200;
    for root in [0, 2] {
        let mut w = World::new(RANKS, Wire::Local, &settings());
        let from = ring(&w, root, 0);
        let to: Vec<Ring> = (0..RANKS).map(|r| ring(&w, r, 4096)).collect();
        let call = Call::new(K::Scatter, BLOCK as u64).of(DataType::U8, ReduceOp::Sum);
        let call = call.root(root as u32).streamed();
        let tickets: Vec<_> = (0..RANKS)
            .map(|r| {
                let call = call.to_ring(&to[r]);
                let call = if r == root { call.of_ring(&from) } else { call };
                (r, w.post(r, &call))
            })
            .collect();
        let data = bytes(9, RANKS * BLOCK);
        let mut got = vec![Vec::new(); RANKS];
        for block in 0..RANKS {
            let mut at = block * BLOCK;
            let end = at + BLOCK;
            for _ in 0..5_000 {
                at += from.push(&w, &data[at..end]);
                w.step();
                for (ring, got) in to.iter().zip(&mut got) {
                    got.extend(ring.pop(&w, 64));
                }
            }
            for (rank, got) in got.iter().enumerate() {
                let whole = if rank <= block { BLOCK } else { 0 };
                assert_eq!(got.len(), whole, "rank {rank} after block {block}");
                assert!(got == &data[rank * BLOCK..][..whole], "rank {rank}");
            }
        }
        for c in w.settle(&tickets) {
            assert_eq!(c.status, Status::Ok);
        }
    }
}

#[test]
fn the_root_pops_blocks_in_the_order_of_the_ranks_whoever_is_first() {
    const RANKS: usize = 3;
    const BLOCK: usize = 300;
    let mut w = World::new(RANKS, Wire::Local, &settings());
    let from: Vec<Ring> = (0..RANKS).map(|r| ring(&w, r, 0)).collect();
    let to = ring(&w, 1, 4096);
    let call = Call::new(K::Gather, BLOCK as u64).of(DataType::U8, ReduceOp::Sum);
    let call = call.root(1).streamed();
    let tickets: Vec<_> = (0..RANKS)
        .map(|r| {
            let call = call.of_ring(&from[r]);
            let call = if r == 1 { call.to_ring(&to) } else { call };
            (r, w.post(r, &call))
        })
        .collect();
    let data = bytes(4, RANKS * BLOCK);
    let (mut at, mut got) = (vec![0; RANKS], Vec::new());
    // The last rank is ahead, and waits; then the others come.
    for (ranks, wanted) in [(2..3, 0), (1..3, 0), (0..3, RANKS * BLOCK)] {
        for _ in 0..20_000 {
            for r in ranks.clone() {
                let block = &data[r * BLOCK..][..BLOCK];
                at[r] += from[r].push(&w, &block[at[r]..]);
            }
            w.step();
            got.extend(to.pop(&w, 40));
        }
        assert_eq!(got.len(), wanted, "{ranks:?}");
    }
    assert!(got == data);
    for c in w.settle(&tickets) {
        assert_eq!(c.status, Status::Ok);
    }
}

#[test]
fn a_rank_that_dies_ends_scatter_and_gather_for_the_kernels_of_all() {
    const RANKS: usize = 4;
    for (wire, kind) in [
        (Wire::Local, K::Scatter),
        (Wire::Local, K::Gather),
        (Wire::Tcp, K::Scatter),
        (Wire::Tcp, K::Gather),
        (Wire::Rdma, K::Scatter),
        (Wire::Rdma, K::Gather),
    ] {
        let mut w = World::new(RANKS, wire, &settings());
        let from: Vec<Ring> = (0..RANKS).map(|r| ring(&w, r, 0)).collect();
        let to: Vec<Ring> = (0..RANKS).map(|r| ring(&w, r, 4096)).collect();
        let call = Call::new(kind, 5_000).of(DataType::U32, ReduceOp::Sum);
        let call = call.root(1).streamed();
        let post = |r: usize| w.post(r, &call.of_ring(&from[r]).to_ring(&to[r]));
        let tickets: Vec<u32> = (0..RANKS).map(post).collect();
        let live = [0, 1, 3];
        let mut done: [Option<Completion>; 3] = [None; 3];
        let end = w.now + 60_000_000_000;
        for turn in 0.. {
            if turn == 300 {
                w.hosts[2] = None;
            }
            for r in live {
                from[r].push(&w, &[1; 8]);
                to[r].pop(&w, 8);
            }
            w.step();
            for (slot, r) in done.iter_mut().zip(live) {
                *slot = slot.or_else(|| w.host(r).queue.poll(tickets[r]));
            }
            assert!(w.now < end, "{wire:?}, {kind:?}: hung, {done:?}");
            if done.iter().all(Option::is_some) {
                break;
            }
        }
        for (c, r) in done.into_iter().flatten().zip(live) {
            let told = matches!(c.status, Status::PeerFailed | Status::CommAborted);
            assert!(told && c.detail == 2, "{wire:?}, {kind:?}, rank {r}: {c:?}");
            let sides = match (kind, r) {
                (_, 1) => vec![from[r], to[r]],
                (K::Scatter, _) => vec![to[r]],
                _ => vec![from[r]],
            };
            for ring in sides {
                assert_ne!(ring.get(&w, STATE_AT), 0, "{wire:?}, {kind:?}, rank {r}");
            }
        }
    }
}

#[test]
fn a_rank_with_another_count_is_named() {
    for kind in [K::Scatter, K::Gather] {
        let mut w = World::new(3, Wire::Local, &settings());
        let post = |r: usize| {
            let count = if r == 1 { 51 } else { 50 };
            let call = Call::new(kind, count).of(DataType::U32, ReduceOp::Sum);
            (r, w.post(r, &call.at(IN, OUT).streamed()))
        };
        let tickets: Vec<_> = (0..2).map(post).collect();
        for c in w.settle(&tickets) {
            assert_eq!((c.status, c.detail), (Status::Mismatch, 1), "{kind:?}");
        }
    }
}
