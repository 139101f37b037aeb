//! Algorithm files of MSCCL, executed: thread blocks in random order, connections of few slots.

use std::collections::{BTreeMap, VecDeque};

use ringbell_nic_abi::{Algorithm, CollectiveKind};

use super::super::{algorithms, buffer_blocks, generate_all, Operand, Program, Step, Target};
use super::{msccl, MscclError};

/// A step as the file has it.
#[derive(Debug, Clone, Copy)]
struct Read {
    kind: &'static str,
    from: (char, i64),
    to: (char, i64),
    chunks: usize,
    dep: (i64, i64),
}

#[derive(Debug, Default)]
struct Block {
    send: i64,
    receive: i64,
    channel: i64,
    steps: Vec<Read>,
}

#[derive(Debug, Default)]
struct Gpu {
    chunks: [usize; 3],
    blocks: Vec<Block>,
}

/// The attributes of a line.
fn attributes(line: &str) -> BTreeMap<&str, &str> {
    let pairs = line.split("\" ").flat_map(|part| {
        let (name, value) = part.split_once("=\"")?;
        let name = name.rsplit(' ').next()?;
        Some((name, value.split('"').next()?))
    });
    pairs.collect()
}

const KINDS: [&str; 7] = ["s", "r", "rrc", "cpy", "re", "nop", "?"];

/// Reads a file, and checks that its numbers fit each other.
fn read(text: &str) -> Vec<Gpu> {
    let mut gpus: Vec<Gpu> = Vec::new();
    let mut awaited = Vec::new();
    for line in text.lines() {
        let of = attributes(line);
        let number = |name: &str| of[name].parse::<i64>().expect(name);
        match line.trim_start().split(' ').next().expect("a word") {
            "<gpu" => {
                assert_eq!(number("id") as usize, gpus.len());
                let chunks = ["i_chunks", "o_chunks", "s_chunks"].map(|n| number(n) as usize);
                let blocks = Vec::new();
                gpus.push(Gpu { chunks, blocks });
            }
            "<tb" => {
                let blocks = &mut gpus.last_mut().expect("a gpu").blocks;
                assert_eq!(number("id") as usize, blocks.len());
                let [send, receive, channel] = ["send", "recv", "chan"].map(number);
                assert!(send == -1 || receive == -1);
                let steps = Vec::new();
                blocks.push(Block {
                    send,
                    receive,
                    channel,
                    steps,
                });
            }
            "<step" => {
                let rank = gpus.len() - 1;
                let blocks = &mut gpus[rank].blocks;
                let block = blocks.len() - 1;
                let steps = &mut blocks[block].steps;
                assert_eq!(number("s") as usize, steps.len());
                let kind = KINDS.into_iter().find(|k| *k == of["type"]).unwrap_or("?");
                let place =
                    |buf: &str, off: &str| (of[buf].chars().next().expect("a buffer"), number(off));
                let dep = (number("depid"), number("deps"));
                steps.push(Read {
                    kind,
                    from: place("srcbuf", "srcoff"),
                    to: place("dstbuf", "dstoff"),
                    chunks: number("cnt") as usize,
                    dep,
                });
                awaited.push(((rank, block, steps.len() - 1), number("hasdep") == 1));
            }
            _ => {}
        }
    }
    for ((rank, block, step), is_awaited) in awaited {
        let this = (block as i64, step as i64);
        let mut all = gpus[rank].blocks.iter().flat_map(|b| &b.steps);
        assert_eq!(all.any(|s| s.dep == this), is_awaited, "{rank} {this:?}");
    }
    gpus
}

/// Runs a file with a slot for each message of a connection; returns the outputs. A chunk is a sum
/// of numbers that are all different.
fn run(gpus: &[Gpu], slots: usize, seed: u64) -> Vec<Vec<u64>> {
    let mut draw = seed;
    let mut below = |n: usize| {
        draw = draw
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (draw >> 33) as usize % n
    };
    let new = |rank: usize, gpu: &Gpu| {
        let input = (0..gpu.chunks[0]).map(|c| value(rank, c)).collect();
        [
            input,
            vec![u64::MAX; gpu.chunks[1]],
            vec![u64::MAX; gpu.chunks[2]],
        ]
    };
    let mut memory: Vec<[Vec<u64>; 3]> = gpus.iter().enumerate().map(|(r, g)| new(r, g)).collect();
    let mut at: Vec<Vec<usize>> = gpus.iter().map(|g| vec![0; g.blocks.len()]).collect();
    let mut wires: BTreeMap<(i64, i64, i64), VecDeque<Vec<u64>>> = BTreeMap::new();
    let mut open: Vec<(usize, usize)> = Vec::new();
    for (rank, gpu) in gpus.iter().enumerate() {
        open.extend((0..gpu.blocks.len()).map(|b| (rank, b)));
    }
    let buffer = |b: char| {
        ['i', 'o', 's']
            .iter()
            .position(|x| *x == b)
            .expect("a buffer")
    };
    let mut idle = 0;
    while !open.is_empty() {
        let i = below(open.len());
        let (rank, number) = open[i];
        let block = &gpus[rank].blocks[number];
        let step = at[rank][number];
        let Some(s) = block.steps.get(step) else {
            open.swap_remove(i);
            continue;
        };
        idle += 1;
        assert!(idle < 100_000, "no thread block goes on");
        let waits = s.dep.0 >= 0 && at[rank][s.dep.0 as usize] <= s.dep.1 as usize;
        let me = rank as i64;
        let out = wires.entry((me, block.send, block.channel)).or_default();
        let is_full = s.kind == "s" && out.len() == slots;
        if waits || is_full {
            continue;
        }
        let take = |memory: &[Vec<u64>; 3], (b, first): (char, i64)| -> Vec<u64> {
            memory[buffer(b)][first as usize..][..s.chunks].to_vec()
        };
        let value = match s.kind {
            "nop" => None,
            "s" => {
                out.push_back(take(&memory[rank], s.from));
                None
            }
            "cpy" => Some(take(&memory[rank], s.from)),
            "re" => {
                let pairs = take(&memory[rank], s.from)
                    .into_iter()
                    .zip(take(&memory[rank], s.to));
                Some(pairs.map(|(a, b)| a.wrapping_add(b)).collect())
            }
            "r" | "rrc" => {
                let wire = wires.entry((block.receive, me, block.channel)).or_default();
                let Some(mut got) = wire.pop_front() else {
                    continue;
                };
                assert_eq!(got.len(), s.chunks, "sender and receiver differ");
                if s.kind == "rrc" {
                    let own = take(&memory[rank], s.from);
                    got.iter_mut()
                        .zip(own)
                        .for_each(|(a, b)| *a = a.wrapping_add(b));
                }
                Some(got)
            }
            other => panic!("{other}"),
        };
        if let Some(value) = value {
            assert_ne!(s.to.0, 'i', "the input is written");
            memory[rank][buffer(s.to.0)][s.to.1 as usize..][..s.chunks].copy_from_slice(&value);
        }
        at[rank][number] += 1;
        idle = 0;
    }
    assert!(wires.values().all(VecDeque::is_empty), "messages are left");
    memory.into_iter().map(|m| m[1].clone()).collect()
}

fn value(rank: usize, chunk: usize) -> u64 {
    // Sums of different ranks and chunks differ.
    let x = (rank as u64 + 1) << 32 | (chunk as u64 + 1);
    x.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The chunk of a rank's output that a collective gives.
fn wanted(program: &Program, chunk: usize) -> u64 {
    use CollectiveKind as K;
    let (ranks, block) = (program.ranks as usize, program.block_chunks as usize);
    let sum = |chunk| (0..ranks).fold(0_u64, |a, r| a.wrapping_add(value(r, chunk)));
    let (rank, root) = (program.rank as usize, program.root as usize);
    let (of, within) = (chunk / block, chunk % block);
    match program.kind {
        K::AllReduce | K::Reduce => sum(chunk),
        K::ReduceScatter => sum(rank * block + chunk),
        K::AllGather | K::Gather => value(of, within),
        K::AllToAll => value(of, rank * block + within),
        K::Scatter => value(root, rank * block + chunk),
        _ => value(root, chunk),
    }
}

#[test]
fn every_program_gives_its_collective_as_an_algorithm_of_msccl() {
    let mut count = 0;
    for kind in CollectiveKind::ALL {
        for &algo in algorithms(*kind) {
            for ranks in [1, 2, 3, 4, 5, 8, 13] {
                let root = if kind.has_root() { ranks / 2 } else { 0 };
                let Ok(programs) = generate_all(*kind, algo, ranks, root) else {
                    continue;
                };
                let text = match msccl(&programs) {
                    Ok(text) => text,
                    Err(MscclError::Kind { kind }) => {
                        assert_eq!(kind, CollectiveKind::Barrier);
                        continue;
                    }
                    Err(error) => {
                        assert!(programs.iter().any(Program::is_direct), "{error}");
                        continue;
                    }
                };
                let gpus = read(&text);
                for (slots, seed) in [(usize::MAX, 1), (8, 2), (2, 3), (1, 4)] {
                    let outputs = run(&gpus, slots, seed);
                    for (program, output) in programs.iter().zip(&outputs) {
                        let all: Vec<u64> = (0..output.len()).map(|c| wanted(program, c)).collect();
                        assert_eq!(
                            *output, all,
                            "{kind:?} {algo:?} {ranks} ranks, {slots} slots"
                        );
                        let at_root = program.rank == root;
                        let blocks = buffer_blocks(*kind, ranks, at_root).expect("a collective");
                        assert_eq!(output.len() as u32, blocks.1 * program.block_chunks);
                    }
                }
                count += 1;
            }
        }
    }
    assert!(count > 100, "{count}");
}

#[test]
fn what_msccl_does_not_have_is_named() {
    let barrier = generate_all(
        CollectiveKind::Barrier,
        algorithms(CollectiveKind::Barrier)[0],
        4,
        0,
    );
    let error = msccl(&barrier.expect("it exists")).expect_err("no such collective");
    assert_eq!(error.to_string(), "barrier is no collective of MSCCL");
    let mut ring =
        generate_all(CollectiveKind::AllReduce, Algorithm::Ring, 2, 0).expect("it exists");
    ring[1].steps[0] = Step {
        round: 0,
        operands: vec![Operand::Stream],
        results: vec![Target::output(0)],
        chunks: 1,
    };
    let error = msccl(&ring).expect_err("a stream");
    let said = "rank 1, step 0: MSCCL has no operation that takes what a kernel pushes";
    assert_eq!(error.to_string(), said);
}
