//! `hll.sv` against `HllEngine`: the same registers, bit for bit, for both hashes and precisions.

use ringbell_gtlb::testing::Rng;
use ringbell_hw_sim::stream::{beats, Beat, BEAT};
use ringbell_hw_sim::{hll, hll_murmur3};
use ringbell_onc_engines::stream::hll::{HashKind, HllConfig, HllEngine, Sketch};
use ringbell_onc_engines::stream::StreamEngine;

/// Bits of a result's fault byte.
const CUT: u8 = 1;
const MERGE_LENGTH: u8 = 2;
const MERGE_VALUE: u8 = 4;

/// The ports of both variants.
trait Rtl {
    const HASH: HashKind;
    fn new() -> Self;
    fn control(&mut self, reset: bool, clear: bool, p16: bool);
    fn input(&mut self, beat: Option<&Beat>, merge: bool, result_ready: bool);
    fn ready(&self) -> (bool, bool);
    fn result(&self) -> Option<Beat>;
    fn tick(&mut self);
}

macro_rules! rtl {
    ($Block:ty, $HASH:expr) => {
        impl Rtl for $Block {
            const HASH: HashKind = $HASH;
            fn new() -> Self {
                <$Block>::new()
            }
            fn control(&mut self, reset: bool, clear: bool, p16: bool) {
                self.rst_ni(u64::from(!reset));
                self.clear_valid_i(u64::from(clear));
                self.p16_i(u64::from(p16));
            }
            fn input(&mut self, beat: Option<&Beat>, merge: bool, result_ready: bool) {
                self.op_in_valid_i(u64::from(beat.is_some()));
                if let Some(beat) = beat {
                    self.op_in_i(&beat.data);
                    self.op_in_keep_i(beat.keep);
                    self.op_in_last_i(u64::from(beat.last));
                }
                self.merge_i(u64::from(merge));
                self.op_res_ready_i(u64::from(result_ready));
                self.eval();
            }
            fn ready(&self) -> (bool, bool) {
                (self.op_in_ready_o() == 1, self.clear_ready_o() == 1)
            }
            fn result(&self) -> Option<Beat> {
                (self.op_res_valid_o() == 1).then(|| Beat {
                    data: self.op_res_o(),
                    keep: self.op_res_keep_o(),
                    last: self.op_res_last_o() == 1,
                })
            }
            fn tick(&mut self) {
                self.tick();
            }
        }
    };
}
rtl!(hll::Block, HashKind::Mix);
rtl!(hll_murmur3::Block, HashKind::Murmur3);

struct Bench<R> {
    rtl: R,
    model: HllEngine,
    /// What merges have brought, and all else: the registers are the highest of both.
    merged: Vec<u8>,
    p16: bool,
    rng: Rng,
    cycles: u64,
}

impl<R: Rtl> Bench<R> {
    fn new(seed: u64, p16: bool) -> Bench<R> {
        let mut bench = Bench {
            rtl: R::new(),
            model: model(R::HASH, p16),
            merged: Vec::new(),
            p16,
            rng: Rng::new(seed),
            cycles: 0,
        };
        bench.reset(p16);
        bench
    }

    fn forget(&mut self, p16: bool) {
        self.p16 = p16;
        self.model = model(R::HASH, p16);
        self.merged = vec![0; self.model.sketch().registers().len()];
    }

    fn reset(&mut self, p16: bool) {
        self.rtl.control(true, false, p16);
        self.rtl.input(None, false, false);
        self.rtl.tick();
        // The precision counts in a reset and with a clear alone.
        self.rtl.control(false, false, !p16);
        self.forget(p16);
    }

    fn clear(&mut self, p16: bool) {
        self.rtl.control(false, true, p16);
        self.wait(|rtl| rtl.ready().1);
        self.tick();
        self.rtl.control(false, false, !p16);
        self.forget(p16);
    }

    fn tick(&mut self) {
        self.rtl.tick();
        self.cycles += 1;
    }

    fn wait(&mut self, until: impl Fn(&R) -> bool) {
        self.rtl.input(None, false, false);
        for _ in 0..20_000 {
            if until(&self.rtl) {
                return;
            }
            self.tick();
            self.rtl.input(None, false, false);
        }
        panic!("a wait without end");
    }

    /// Sends a stream; gives the result's head and registers.
    fn stream(&mut self, bytes: &[u8], merge: bool, stalls: bool) -> (Vec<u8>, Vec<u8>) {
        for (n, beat) in beats(bytes).iter().enumerate() {
            loop {
                let offered = !stalls || self.rng.below(3) != 0;
                // The kind of a stream counts with its first beat.
                let kind = if n == 0 {
                    merge
                } else {
                    self.rng.below(2) == 0
                };
                self.rtl.input(offered.then_some(beat), kind, false);
                let taken = offered && self.rtl.ready().0;
                self.tick();
                if taken {
                    break;
                }
                self.rtl.input(None, false, false);
            }
        }
        self.wait(|rtl| rtl.result().is_some());
        let (mut result, mut last) = (Vec::new(), false);
        let start = self.cycles;
        while !last {
            let ready = !stalls || self.rng.below(20) == 0;
            self.rtl.input(None, false, ready);
            assert_eq!(self.rtl.ready(), (false, false));
            if let Some(beat) = self.rtl.result().filter(|_| ready) {
                result.extend(beat.bytes());
                last = beat.last;
            }
            self.tick();
        }
        let rows = if self.p16 { 1 << 14 } else { 1 << 12 };
        assert!(stalls || self.cycles - start <= rows + 10, "a row a cycle");
        let registers = result.split_off(BEAT);
        (result, registers)
    }

    /// A stream of items; the result is that of the model.
    fn items(&mut self, bytes: &[u8], stalls: bool) {
        self.model.process(bytes, &mut Vec::new());
        let cut = self.model.finish(&mut Vec::new()).is_err();
        let (head, registers) = self.stream(bytes, false, stalls);
        self.compare(&head, &registers, if cut { CUT } else { 0 });
    }

    fn compare(&self, head: &[u8], registers: &[u8], fault: u8) {
        let highest = |(a, b): (&u8, &u8)| *a.max(b);
        let own = self.model.sketch().registers();
        let wanted: Vec<u8> = own.iter().zip(&self.merged).map(highest).collect();
        assert!(registers == wanted, "registers differ");
        let mut expected = self.model.items().to_le_bytes().to_vec();
        let p = if self.p16 { 16 } else { 14 };
        expected.extend([p, u8::from(R::HASH == HashKind::Murmur3), fault]);
        expected.resize(BEAT, 0);
        assert_eq!(head, expected);
    }

    /// Items of which many meet in one register, within a beat and from beat to beat.
    fn noise(&mut self, items: usize) -> Vec<u8> {
        let few = [1, 3, 40, 5_000, u64::MAX][self.rng.below(5) as usize];
        let mut item = || (self.rng.bits() % few) as u32;
        (0..items).flat_map(|_| item().to_le_bytes()).collect()
    }
}

fn model(hash: HashKind, p16: bool) -> HllEngine {
    HllEngine::new(HllConfig {
        precision: if p16 { 16 } else { 14 },
        width: 4,
        hash,
        image: true,
    })
    .expect("a valid configuration")
}

fn registers_are_those_of_the_model<R: Rtl>(seed: u64) {
    let mut bench: Bench<R> = Bench::new(seed, true);
    for n in 0..12usize {
        let count = [0, 1, 15, 16, 17, 33, 1_000, 50_000][n % 8];
        let mut bytes = bench.noise(count);
        // Every third stream ends inside an item.
        bytes.extend(&[0xa5; 3][..if n % 3 == 2 { 1 + n % 3 } else { 0 }]);
        bench.items(&bytes, n % 2 == 1);
        if n % 4 == 3 {
            let p16 = n % 8 == 3;
            if bench.rng.below(2) == 0 {
                bench.clear(!p16);
            } else {
                bench.reset(!p16);
            }
        }
    }
}

#[test]
fn registers_are_those_of_the_model_with_mix() {
    registers_are_those_of_the_model::<hll::Block>(1);
}

#[test]
fn registers_are_those_of_the_model_with_murmur3() {
    registers_are_those_of_the_model::<hll_murmur3::Block>(2);
}

#[test]
fn items_of_one_register_in_close_order_leave_the_highest_rank() {
    // Of two items in one register, the one with the lower rank behind the other, at every
    // distance.
    let mut bench: Bench<hll::Block> = Bench::new(3, false);
    let hash = |i: u32| HashKind::Mix.slot_and_rank(&i.to_le_bytes());
    let (slot, rank) = hash(7);
    let lower = |i: &u32| (hash(*i).0 ^ slot) & 0x3fff == 0 && hash(*i).1 < rank;
    let other = (8..).find(lower).expect("one of some thousands");
    for distance in 1..6 {
        bench.clear(false);
        let mut lane = vec![1u32; distance + 1];
        (lane[0], lane[distance]) = (7, other);
        let bytes: Vec<u8> = lane
            .iter()
            .flat_map(|i| i.to_le_bytes().repeat(16))
            .collect();
        bench.items(&bytes, false);
    }
}

#[test]
fn a_beat_is_taken_each_cycle() {
    let mut bench: Bench<hll::Block> = Bench::new(4, false);
    bench.wait(|rtl| rtl.ready().0);
    let bytes = bench.noise(16 * 5_000);
    let start = bench.cycles;
    bench.items(&bytes, false);
    let result = (1 << 12) + 10;
    let cycles = bench.cycles - start - result;
    assert!((5_000..5_100).contains(&cycles), "{cycles}");
}

#[test]
fn merges_take_the_higher_of_each_register() {
    let mut bench: Bench<hll_murmur3::Block> = Bench::new(5, false);
    for n in 0..6usize {
        if n == 4 {
            bench.clear(true);
        }
        let bytes = bench.noise(30_000);
        bench.items(&bytes, n % 2 == 0);
        let precision = if bench.p16 { 16 } else { 14 };
        let mut other = Sketch::new(precision, HashKind::Murmur3, 4).expect("valid");
        other.update(&bench.noise(40_000));
        let mut image = other.registers().to_vec();
        let mut fault = 0;
        match n {
            1 => image.truncate(5_000),
            2 => image.extend([9; 100]),
            3 => image[77] = 45,
            _ => {}
        }
        for (to, from) in bench.merged.iter_mut().zip(&image) {
            *to = (*to).max(if *from > 44 { 0 } else { *from });
        }
        if image.len() != other.registers().len() {
            fault |= MERGE_LENGTH;
        }
        if image.iter().any(|v| *v > 44) {
            fault |= MERGE_VALUE;
        }
        let (head, registers) = bench.stream(&image, true, n % 2 == 1);
        bench.compare(&head, &registers, fault);
    }
}

#[test]
fn a_reset_at_any_time_leaves_an_empty_sketch() {
    let mut bench: Bench<hll::Block> = Bench::new(6, false);
    for n in 0..8u64 {
        bench.wait(|rtl| rtl.ready().0);
        for beat in beats(&bench.noise(160)) {
            bench.rtl.input(Some(&beat), false, true);
            bench.tick();
        }
        bench.rtl.input(None, false, true);
        for _ in 0..bench.rng.below(1 << (n + 5)) {
            bench.tick();
        }
        bench.reset(false);
        let bytes = bench.noise(100);
        bench.items(&bytes, false);
    }
}
