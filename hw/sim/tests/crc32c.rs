//! `crc32c.sv` against `ChecksumEngine`: the same checksum and number of bytes after every stream.

use ringbell_gtlb::testing::Rng;
use ringbell_hw_sim::crc32c::Block;
use ringbell_hw_sim::stream::{beats, Beat, BEAT};
use ringbell_onc_engines::stream::checksum::ChecksumEngine;
use ringbell_onc_engines::stream::StreamEngine;

/// Most cycles from a stream's last beat to its result.
const RESULT_WITHIN: u32 = 12;

struct Bench {
    rtl: Block,
    model: ChecksumEngine,
    rng: Rng,
    cycles: u64,
}

impl Bench {
    fn new(seed: u64) -> Bench {
        let mut bench = Bench {
            rtl: Block::new(),
            model: ChecksumEngine::new(),
            rng: Rng::new(seed),
            cycles: 0,
        };
        bench.reset();
        bench
    }

    fn reset(&mut self) {
        self.rtl.rst_ni(0);
        self.rtl.tick();
        self.rtl.rst_ni(1);
        self.model.reset();
    }

    /// Offers a beat until it is taken.
    fn beat(&mut self, beat: &Beat, stalls: bool) {
        for _ in 0..100 {
            let offered = !stalls || self.rng.below(3) != 0;
            self.rtl.op_in_valid_i(u64::from(offered));
            self.rtl.op_in_i(&beat.data);
            self.rtl.op_in_keep_i(beat.keep);
            self.rtl.op_in_last_i(u64::from(beat.last));
            self.rtl.eval();
            let taken = offered && self.rtl.op_in_ready_o() == 1;
            self.tick();
            if taken {
                return;
            }
        }
        panic!("a beat is not taken");
    }

    fn tick(&mut self) {
        self.rtl.tick();
        self.rtl.op_in_valid_i(0);
        self.cycles += 1;
    }

    /// One stream through both.
    fn stream(&mut self, bytes: &[u8], stalls: bool) {
        for beat in beats(bytes) {
            self.beat(&beat, stalls);
        }
        self.model.process(bytes, &mut Vec::new());
        self.model
            .finish(&mut Vec::new())
            .expect("a tap has no item to cut");
        let mut wanted = Vec::new();
        self.model.result(&mut wanted);

        // Nothing is taken before the result has left, and that waits for its taker.
        let late = if stalls { self.rng.below(20) as u32 } else { 0 };
        self.rtl.op_res_ready_i(0);
        for n in 0.. {
            self.rtl.eval();
            assert_eq!(self.rtl.op_in_ready_o(), 0);
            if self.rtl.op_res_valid_o() == 1 && n >= late {
                break;
            }
            assert!(n < RESULT_WITHIN + late, "no result");
            self.tick();
        }
        let result = Beat {
            data: self.rtl.op_res_o(),
            keep: self.rtl.op_res_keep_o(),
            last: self.rtl.op_res_last_o() == 1,
        };
        assert_eq!(
            (result.bytes(), result.last),
            (wanted, true),
            "{} bytes",
            bytes.len()
        );
        self.rtl.op_res_ready_i(1);
        self.tick();
        self.rtl.eval();
        assert_eq!(
            (self.rtl.op_res_valid_o(), self.rtl.op_in_ready_o()),
            (0, 1)
        );
    }

    fn noise(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.rng.bits() as u8).collect()
    }
}

#[test]
fn every_bit_of_a_beat_counts_as_the_definition_says() {
    // The checksum of equal lengths is linear but for a constant: these streams and one of zeros
    // show it for all beats.
    let mut bench = Bench::new(1);
    bench.stream(&[0; BEAT], false);
    for bit in 0..8 * BEAT {
        let mut line = [0; BEAT];
        line[bit / 8] = 1 << (bit % 8);
        bench.reset();
        bench.stream(&line, false);
    }
}

#[test]
fn streams_of_every_length_go_on_from_one_to_the_next() {
    let mut bench = Bench::new(2);
    for len in 0..260 {
        let stalls = bench.rng.below(2) == 0;
        let bytes = bench.noise(len);
        bench.stream(&bytes, stalls);
    }
    for _ in 0..200 {
        let len = bench.rng.below(4_000) as usize;
        let bytes = bench.noise(len);
        bench.stream(&bytes, true);
        if bench.rng.below(8) == 0 {
            bench.reset();
        }
    }
}

#[test]
fn a_reset_at_any_time_leaves_a_new_engine() {
    let mut bench = Bench::new(3);
    for n in 0..300usize {
        let bytes = bench.noise(n % 7 * BEAT + n);
        for beat in beats(&bytes) {
            bench.beat(&beat, false);
        }
        for _ in 0..n % 14 {
            bench.tick();
        }
        bench.reset();
        bench.stream(b"123456789", false);
        assert_eq!(bench.model.checksum(), 0xe306_9283);
    }
}

#[test]
fn a_beat_is_taken_each_cycle() {
    let mut bench = Bench::new(4);
    let bytes = bench.noise(10_000 * BEAT);
    let start = bench.cycles;
    bench.stream(&bytes, false);
    let cycles = bench.cycles - start;
    assert!(
        (10_000..=10_000 + u64::from(RESULT_WITHIN)).contains(&cycles),
        "{cycles}"
    );
}
