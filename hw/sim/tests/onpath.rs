//! `onpath.sv` with engines that work, stall or talk without end: the stream leaves as it came, and
//! each has one result.

use std::collections::VecDeque;

use ringbell_gtlb::testing::Rng;
use ringbell_hw_sim::crc32c;
use ringbell_hw_sim::onpath::Block;
use ringbell_hw_sim::stream::{beats, Beat, BEAT};
use ringbell_onc_engines::stream::checksum::ChecksumEngine;
use ringbell_onc_engines::stream::StreamEngine;

/// Parameters of the block.
const DEADLINE: u64 = 32_768;
const RESULT_BEATS: usize = 2048;

/// An engine beside the slot. Its outputs do not depend on its inputs of the same cycle.
trait Engine {
    /// Inputs of this cycle; `beat` stays until it was taken.
    fn inputs(&mut self, reset: bool, beat: Option<&Beat>, result_ready: bool);
    fn ready(&self) -> bool;
    fn result(&self) -> Option<Beat>;
    fn tick(&mut self);
}

impl Engine for crc32c::Block {
    fn inputs(&mut self, reset: bool, beat: Option<&Beat>, result_ready: bool) {
        self.rst_ni(u64::from(!reset));
        self.op_in_valid_i(u64::from(beat.is_some()));
        if let Some(beat) = beat {
            self.op_in_i(&beat.data);
            self.op_in_keep_i(beat.keep);
            self.op_in_last_i(u64::from(beat.last));
        }
        self.op_res_ready_i(u64::from(result_ready));
        self.eval();
    }
    fn ready(&self) -> bool {
        self.op_in_ready_o() == 1
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

/// How a scripted engine ends.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Fate {
    Works,
    /// Takes this many beats of a stream and no more.
    Stalls(usize),
    /// Gives this many beats of its result and no more.
    Breaks(usize),
    /// Its result has no last beat.
    Endless,
}

/// Counts bytes; its result is the count in so many beats.
struct Scripted {
    rng: Rng,
    fate: Fate,
    /// Beats of the stream, and whether the last has come.
    seen: usize,
    bytes: u64,
    ended: bool,
    given: usize,
    beats: usize,
    willing: bool,
    offers: bool,
    now: (bool, Option<(usize, bool)>, bool),
}

impl Scripted {
    fn new(seed: u64) -> Scripted {
        Scripted {
            rng: Rng::new(seed),
            fate: Fate::Works,
            seen: 0,
            bytes: 0,
            ended: false,
            given: 0,
            beats: 1,
            willing: false,
            offers: false,
            now: (true, None, false),
        }
    }
}

impl Engine for Scripted {
    fn inputs(&mut self, reset: bool, beat: Option<&Beat>, result_ready: bool) {
        let taken = beat.filter(|_| self.ready());
        let taken = taken.map(|b| (b.bytes().len(), b.last));
        self.now = (reset, taken, result_ready && self.result().is_some());
    }
    fn ready(&self) -> bool {
        let stalls = matches!(self.fate, Fate::Stalls(n) if self.seen >= n);
        self.willing && !self.ended && !stalls
    }
    fn result(&self) -> Option<Beat> {
        let breaks = matches!(self.fate, Fate::Breaks(n) if self.given >= n);
        (self.ended && self.offers && !breaks).then(|| {
            let last = self.given + 1 == self.beats && self.fate != Fate::Endless;
            Beat::new(&(self.bytes << 16 | self.given as u64).to_le_bytes(), last)
        })
    }
    fn tick(&mut self) {
        let (reset, taken, given) = self.now;
        if let Some((bytes, last)) = taken {
            self.seen += 1;
            self.bytes += bytes as u64;
            self.ended = last;
        }
        let last = self.result().is_some_and(|b| b.last);
        if given {
            self.given += 1;
        }
        if reset || (given && last) {
            (self.seen, self.bytes, self.given, self.ended) = (0, 0, 0, false);
        }
        self.willing = self.rng.below(4) != 0;
        // An offer stays until it is taken.
        self.offers = self.offers && !given && self.ended || self.rng.below(3) != 0;
    }
}

struct Bench<E> {
    slot: Block,
    engine: E,
    rng: Rng,
    /// Beats that have left for the GPU.
    out: Vec<Beat>,
    /// Results: whether back to the network, its bytes, whether it ended with an error.
    results: Vec<(bool, Vec<u8>, bool)>,
    parts: Vec<u8>,
    cycles: u64,
    /// Beats and results are taken at every cycle.
    eager: bool,
}

impl<E: Engine> Bench<E> {
    fn new(seed: u64, engine: E) -> Bench<E> {
        let mut bench = Bench {
            slot: Block::new(),
            engine,
            rng: Rng::new(seed),
            out: Vec::new(),
            results: Vec::new(),
            parts: Vec::new(),
            cycles: 0,
            eager: false,
        };
        bench.reset();
        bench
    }

    fn reset(&mut self) {
        self.slot.rst_ni(0);
        self.cycle(None, false);
        self.slot.rst_ni(1);
        self.out.clear();
        self.results.clear();
        self.parts.clear();
    }

    /// One cycle; true when the offered beat was taken.
    fn cycle(&mut self, beat: Option<(&Beat, bool)>, deaf: bool) -> bool {
        let slot = &mut self.slot;
        slot.in_valid_i(u64::from(beat.is_some()));
        if let Some((beat, back)) = beat {
            slot.in_i(&beat.data);
            slot.in_keep_i(beat.keep);
            slot.in_last_i(u64::from(beat.last));
            slot.return_i(u64::from(back));
        }
        let ready = [(); 3].map(|()| !deaf && (self.eager || self.rng.below(3) != 0));
        slot.out_ready_i(u64::from(ready[0]));
        slot.op_out_ready_i(u64::from(ready[1]));
        slot.op_return_ready_i(u64::from(ready[2]));
        slot.op_in_ready_i(u64::from(self.engine.ready()));
        let result = self.engine.result();
        slot.op_res_valid_i(u64::from(result.is_some()));
        if let Some(result) = result {
            slot.op_res_i(&result.data);
            slot.op_res_keep_i(result.keep);
            slot.op_res_last_i(u64::from(result.last));
        }
        slot.eval();
        let now = Beat {
            data: slot.out_o(),
            keep: slot.out_keep_o(),
            last: slot.out_last_o() == 1,
        };
        if slot.out_valid_o() == 1 && ready[0] {
            self.out.push(now);
        }
        for (back, valid) in [
            (false, slot.op_out_valid_o()),
            (true, slot.op_return_valid_o()),
        ] {
            if valid == 1 && ready[1 + usize::from(back)] {
                let part = Beat {
                    data: slot.result_o(),
                    keep: slot.result_keep_o(),
                    last: slot.result_last_o() == 1,
                };
                self.parts.extend(part.bytes());
                if part.last {
                    let parts = std::mem::take(&mut self.parts);
                    self.results.push((back, parts, slot.result_error_o() == 1));
                }
            }
        }
        let for_engine = (slot.op_in_valid_o() == 1).then_some(&now);
        let reset = slot.op_rst_no() == 0;
        self.engine
            .inputs(reset, for_engine, slot.op_res_ready_o() == 1);
        let taken = beat.is_some() && slot.in_ready_o() == 1;
        self.engine.tick();
        self.slot.tick();
        self.cycles += 1;
        taken
    }

    /// Sends a stream and waits for its result; the bytes for the GPU are those of the stream.
    fn stream(&mut self, bytes: &[u8], back: bool) -> (Vec<u8>, bool) {
        let sent = beats(bytes);
        let (from, results) = (self.out.len(), self.results.len());
        // Every wait for the engine ends at its deadline; others wait for a few cycles.
        let limit = self.cycles + 20 * (sent.len() + RESULT_BEATS) as u64 + 4 * DEADLINE;
        let mut queue: VecDeque<&Beat> = sent.iter().collect();
        while self.results.len() == results {
            let offer = self.eager || self.rng.below(3) != 0;
            let beat = queue.front().copied().filter(|_| offer);
            if self.cycle(beat.map(|b| (b, back)), false) {
                queue.pop_front();
            }
            assert!(self.cycles < limit, "no result");
        }
        assert_eq!(self.out[from..], sent);
        let (to, result, error) = self.results.pop().expect("one result");
        assert_eq!((to, self.results.len()), (back, results));
        (result, error)
    }
}

#[test]
fn a_checksum_is_made_on_the_path_and_goes_where_it_shall() {
    let mut bench = Bench::new(1, crc32c::Block::new());
    let mut model = ChecksumEngine::new();
    for n in 0..300 {
        let bytes: Vec<u8> = (0..bench.rng.below(1_500))
            .map(|_| bench.rng.bits() as u8)
            .collect();
        let back = bench.rng.below(2) == 0;
        let (result, error) = bench.stream(&bytes, back);
        model.process(&bytes, &mut Vec::new());
        let mut wanted = Vec::new();
        model.result(&mut wanted);
        assert_eq!((result, error), (wanted, false));
        if n % 50 == 49 {
            // In the middle of a stream.
            for beat in &beats(&bytes)[..bytes.len() / BEAT / 2] {
                bench.cycle(Some((beat, false)), false);
            }
            bench.reset();
            model.reset();
        }
    }
}

#[test]
fn a_beat_leaves_each_cycle_and_no_stall_is_counted() {
    let mut bench = Bench::new(2, crc32c::Block::new());
    bench.eager = true;
    let bytes = vec![7; 5_000 * BEAT];
    let start = bench.cycles;
    bench.stream(&bytes, false);
    let cycles = bench.cycles - start;
    assert!((5_000..5_020).contains(&cycles), "{cycles}");
    assert_eq!(bench.slot.stalls_o(), 0);
}

#[test]
fn an_engine_that_fails_is_cut_off_and_the_stream_goes_on() {
    let mut bench = Bench::new(3, Scripted::new(4));
    for n in 0..120usize {
        let fate = match n % 6 {
            1 => Fate::Stalls(n % 4),
            3 => Fate::Breaks(n % 5),
            5 if n % 4 == 1 => Fate::Endless,
            _ => Fate::Works,
        };
        bench.engine.fate = fate;
        bench.engine.beats = if n % 8 == 0 { RESULT_BEATS } else { 5 };
        let len = 1 + bench.rng.below(10 * BEAT as u64) as usize;
        let bytes = vec![n as u8; len];
        // An engine that wants four beats of a stream may not come to stall.
        let stalls = matches!(fate, Fate::Stalls(k) if k < len.div_ceil(BEAT));
        let breaks = matches!(fate, Fate::Breaks(k) if k < bench.engine.beats);
        let wanted: Vec<u8> = (0..bench.engine.beats as u64)
            .flat_map(|k| ((len as u64) << 16 | k).to_le_bytes())
            .collect();
        let (result, error) = bench.stream(&bytes, n % 2 == 0);
        assert_eq!(error, stalls || breaks || fate == Fate::Endless, "{fate:?}");
        match fate {
            Fate::Endless => assert_eq!(result.len(), 8 * RESULT_BEATS),
            _ if stalls => assert!(result.is_empty()),
            Fate::Breaks(k) if breaks => assert_eq!(result, wanted[..8 * k]),
            _ => assert_eq!(result, wanted),
        }
    }
    assert!(bench.slot.stalls_o() > DEADLINE);
}

#[test]
fn takers_that_wait_are_no_fault_of_the_engine() {
    let mut bench = Bench::new(5, Scripted::new(6));
    let bytes = vec![1; 20 * BEAT];
    let sent = beats(&bytes);
    for beat in &sent[..2] {
        while !bench.cycle(Some((beat, true)), false) {}
    }
    for _ in 0..3 * DEADLINE {
        bench.cycle(None, true);
    }
    for beat in &sent[2..] {
        while !bench.cycle(Some((beat, true)), false) {}
    }
    for _ in 0..3 * DEADLINE {
        bench.cycle(None, true);
    }
    while bench.results.is_empty() {
        bench.cycle(None, false);
    }
    let wanted = ((bytes.len() as u64) << 16).to_le_bytes();
    assert_eq!(bench.results, [(true, wanted.to_vec(), false)]);
    assert_eq!(bench.out, sent);
}
