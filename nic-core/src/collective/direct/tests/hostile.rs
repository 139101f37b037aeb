//! A hostile rank: forged records, tables and flags, and random bytes all over the areas.
//! One thread and virtual time; the same in each run.

use super::super::record::WORDS;
use super::*;

const OUT: u64 = VA + (1 << 21);
/// The liar. It steps nothing.
const LIAR: u32 = 2;

struct Setup {
    gpus: Vec<Gpu>,
    memories: Vec<NicMemory>,
    paths: Vec<Direct>,
    world: Arc<World>,
}

fn setup() -> Setup {
    let n = 3u32;
    let gpus: Vec<_> = (0..n).map(Gpu::new).collect();
    let mut memories: Vec<_> = (0..n)
        .map(|_| NicMemory::new(1 << 20).expect("memfd"))
        .collect();
    let mut pool = AreaPool::default();
    let mut paths: Vec<_> = memories
        .iter_mut()
        .enumerate()
        .map(|(r, b)| Direct::new(b, &mut pool, 9, r as u32, n, EAGER, Order::Ring).expect("room"))
        .collect();
    let addresses: Vec<u64> = paths.iter().map(Direct::address).collect();
    for p in &mut paths {
        for (r, a) in addresses.iter().enumerate() {
            p.set_peer(r as u32, *a);
        }
    }
    let windows = memories
        .iter()
        .zip(&gpus)
        .map(|(b, g)| Window {
            nic_memory: b.at_bus(NIC_BUS, b.len()).expect("all of it") as usize,
            board_len: b.len(),
            gpu: g.map.base() as usize,
            gone: AtomicBool::new(false),
            wakes: AtomicU64::new(0),
        })
        .collect();
    Setup {
        gpus,
        memories,
        paths,
        world: Arc::new(World { windows }),
    }
}

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// An address that may be anything.
fn address(rng: &mut Rng) -> u64 {
    match rng.below(8) {
        0 => 0,
        1 => rng.below(MEMORY as u64),
        2 => MEMORY as u64 - rng.below(100),
        3 => NIC_BUS + rng.below(1 << 20),
        4 => NIC_BUS + (1 << 20) - rng.below(16),
        5 => u64::MAX - rng.below(100),
        6 => rng.below(64) * PAGE_BYTES + rng.below(7),
        _ => rng.next(),
    }
}

impl Setup {
    fn buffers(&self, rank: usize, p: &Params, grants: Access) -> [Pages; 2] {
        let bytes = p.count * p.dtype.bytes();
        [VA, OUT].map(|at| self.gpus[rank].pages(at, bytes, grants))
    }

    fn post(&mut self, rank: usize, p: &Params, grants: Access) {
        let [input, output] = self.buffers(rank, p, grants);
        post(&mut self.paths[rank], 1, *p, input, output);
    }

    /// Shape and words of a record, or words of a table, with something else in them.
    fn forged(&mut self, p: &Params, rng: &mut Rng) -> (Shape, [u64; WORDS - 1]) {
        let [input, output] = self.buffers(LIAR as usize, p, ALL);
        let form = self.paths[LIAR as usize].locate(p, input, output).form;
        let [input, output] = self.buffers(LIAR as usize, p, ALL);
        let mut shape = Shape::of(p, form);
        let mut tables = [None, None];
        let nic_memory = &mut self.memories[LIAR as usize];
        let sound = Record::of(p, (&input, &output), &mut tables, nic_memory);
        let mut words = match form {
            Form::Placed => sound.words(),
            _ => {
                let [a, b, c] = record::head(p);
                [a, b, c, 0, 0, 0, 0]
            }
        };
        for _ in 0..rng.below(4) {
            let place = 3 * rng.below(2) as usize;
            match rng.below(4) {
                0 => words[place + rng.below(2) as usize] = address(rng),
                // Pages and offset.
                1 => words[place + 2] = rng.below(6) | rng.below(PAGE_BYTES) << 32,
                2 => words[place + 2] = rng.next(),
                _ => {
                    // Entries of a table.
                    if let Some(t) = tables.iter().flatten().next() {
                        let at = NIC_BUS + t.at + rng.below(t.len / 8) * 8;
                        let entry = address(rng);
                        self.store(LIAR, at, entry);
                    }
                }
            }
        }
        match rng.below(4) {
            0 => words[6] ^= rng.below(8),
            1 if rng.below(4) == 0 => shape = Shape(shape.0 ^ 1 << rng.below(32)),
            1 if rng.below(4) == 0 => shape = shape.with_messages(true),
            2 if rng.below(4) == 0 => words[rng.below(7) as usize] ^= 1 << rng.below(64),
            _ => {}
        }
        (shape, words)
    }

    /// Stores a word into a rank's NIC memory.
    fn store(&self, rank: u32, bus: u64, word: u64) {
        if let Some(at) = self.world.windows[rank as usize].at(bus & !7, 8) {
            // SAFETY: eight mapped bytes, aligned; the words there are atomics.
            unsafe { &*at.cast::<AtomicU64>() }.store(word, Ordering::Relaxed);
        }
    }

    /// Something that is stored into a rank's area: `everywhere`, also where other ranks store.
    fn lie(&mut self, to: u32, p: &Params, seq: u64, everywhere: bool, rng: &mut Rng) {
        let (shape, words) = self.forged(p, rng);
        let liar = &self.paths[LIAR as usize];
        let (_, area) = liar.area_of(&self.world, to).expect("there");
        match rng.below(if everywhere { 11 } else { 8 }) {
            0 | 1 => {
                area.put_words(LIAR, seq, &words);
                let [input, _] = self.buffers(LIAR as usize, p, ALL);
                if input.bytes() <= EAGER && rng.below(2) == 0 {
                    area.put_input(LIAR, seq, &input);
                }
                area.publish(LIAR, seq, shape);
            }
            2 => {
                area.done(LIAR, seq + rng.below(3));
            }
            3 => area.busy(LIAR).store(rng.next(), Ordering::Relaxed),
            4 => liar.area.revoked().store(rng.below(2), Ordering::Relaxed),
            5 => area.show_windows(LIAR, address(rng)),
            6 => area.set(LIAR, Flag::Filled, rng.below(40)),
            7 => area.set(LIAR, Flag::Passed, rng.below(40)),
            8 => area.revoked().store(rng.next(), Ordering::Relaxed),
            9 => {
                let bus = self.paths[to as usize].address();
                let len = self.paths[to as usize].nic_memory();
                for _ in 0..64 {
                    let (at, word) = (bus + rng.below(len), rng.next());
                    self.store(to, at, word);
                }
            }
            _ => {
                area.put_words(1 - to, seq, &words);
                area.publish(1 - to, seq, shape);
            }
        }
    }

    /// Both others run the operation while the liar stores; then it is given up. Their outcomes.
    fn run(&mut self, p: &Params, grants: Access, everywhere: bool, seed: u64) -> [Outcome; 2] {
        let mut rng = Rng(seed);
        let mut now = NicTime(1);
        let mut out = [Vec::new(), Vec::new()];
        for r in 0..2 {
            self.post(r, p, grants);
        }
        for round in 0..60 {
            for (r, out) in out.iter_mut().enumerate() {
                if round > 0 || rng.below(2) == 0 {
                    self.lie(r as u32, p, 1, everywhere, &mut rng);
                }
                step(
                    &mut self.paths[r],
                    now,
                    &mut self.memories[r],
                    &self.world,
                    out,
                );
            }
            now = now.plus(Duration::from_micros(1));
        }
        for p in &mut self.paths[..2] {
            p.abort(now);
        }
        for _ in 0..4 {
            now = now.plus(DRAIN_GRACE);
            for (r, out) in out.iter_mut().enumerate() {
                step(
                    &mut self.paths[r],
                    now,
                    &mut self.memories[r],
                    &self.world,
                    out,
                );
            }
        }
        let one = |v: &Vec<Ended>| {
            assert_eq!(v.len(), 1, "seed {seed}: {v:?}");
            v[0].outcome
        };
        [one(&out[0]), one(&out[1])]
    }
}

const CASES: [(K, DataType, u64); 5] = [
    (K::AllReduce, DataType::F32, 3),
    (K::AllReduce, DataType::F16, 300),
    (K::AllReduce, DataType::F64, 40_001),
    (K::Broadcast, DataType::U8, 100_000),
    (K::AllReduce, DataType::U64, 8193),
];

#[test]
fn forged_records_and_tables_end_operations_and_change_only_the_forgers_memory() {
    let mut seen = Vec::new();
    for seed in 0..250u64 {
        let (kind, dtype, count) = CASES[seed as usize % CASES.len()];
        let p = params(kind, dtype, ReduceOp::Sum, LIAR, count);
        let writable = seed % 3 != 0;
        let grants = Access {
            exported: true,
            writable,
        };
        let mut s = setup();
        let bytes = count * dtype.bytes();
        for (r, g) in s.gpus.iter().enumerate() {
            g.write(VA, &noise(r as u64 + seed, bytes));
            g.write(VA + bytes, &[0x77; 64]);
            g.write(OUT + bytes, &[0x77; 64]);
            g.write(OUT - 64, &[0x77; 64]);
        }
        seen.extend(s.run(&p, grants, false, seed));
        for (r, g) in s.gpus[..2].iter().enumerate() {
            assert!(
                g.read(VA, bytes) == noise(r as u64 + seed, bytes),
                "seed {seed}: a source"
            );
            for at in [VA + bytes, OUT + bytes, OUT - 64] {
                assert!(g.read(at, 64) == [0x77; 64], "seed {seed}: beside a buffer");
            }
        }
    }
    // The lies are good enough to get anywhere.
    for o in [
        Outcome::Done,
        Outcome::Fallback,
        Outcome::Mismatch { rank: LIAR },
        Outcome::PeerFailed { rank: LIAR },
        Outcome::Unsafe { rank: LIAR },
    ] {
        assert!(seen.contains(&o), "{o:?} never came: {seen:?}");
    }
}

#[test]
fn garbage_all_over_the_areas_ends_operations_too() {
    for seed in 0..600u64 {
        let (kind, dtype, count) = CASES[seed as usize % CASES.len()];
        let p = params(kind, dtype, ReduceOp::Sum, LIAR, count);
        setup().run(&p, ALL, true, seed);
    }
}

#[test]
fn a_rank_that_stays_busy_is_named() {
    let mut s = setup();
    let p = params(K::AllReduce, DataType::F32, ReduceOp::Sum, 0, 5000);
    for r in 0..2 {
        s.post(r, &p, ALL);
        let (_, area) = s.paths[2].area_of(&s.world, r as u32).expect("there");
        area.busy(LIAR).store(1, Ordering::Relaxed);
        let mut out = Vec::new();
        s.paths[r].abort(NicTime(5));
        step(
            &mut s.paths[r],
            NicTime(6),
            &mut s.memories[r],
            &s.world,
            &mut out,
        );
        assert!(out.is_empty(), "its memory may be written");
        let late = NicTime(6).plus(DRAIN_GRACE);
        step(
            &mut s.paths[r],
            late,
            &mut s.memories[r],
            &s.world,
            &mut out,
        );
        assert_eq!(out.len(), 1);
        assert_eq!(out[0].outcome, Outcome::Unsafe { rank: LIAR });
    }
}
