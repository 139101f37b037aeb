//! The conformance suite of engines (feature `testing`).
//!
//! ```
//! use ringbell_onc_engines::stream::{conformance, EngineError, StreamEngine};
//!
//! /// Counts the bytes of a stream.
//! struct Counter(u64);
//!
//! impl StreamEngine for Counter {
//!     fn name(&self) -> &'static str {
//!         "counter"
//!     }
//!     fn declared_rate(&self) -> f64 {
//!         1e10
//!     }
//!     fn is_tap(&self) -> bool {
//!         true
//!     }
//!     fn output_bound(&self, _input: usize) -> usize {
//!         0
//!     }
//!     fn process(&mut self, input: &[u8], _out: &mut Vec<u8>) {
//!         self.0 += input.len() as u64;
//!     }
//!     fn finish(&mut self, _out: &mut Vec<u8>) -> Result<(), EngineError> {
//!         Ok(())
//!     }
//!     fn result(&self, into: &mut Vec<u8>) {
//!         into.extend_from_slice(&self.0.to_le_bytes());
//!     }
//!     fn reset(&mut self) {
//!         self.0 = 0;
//!     }
//! }
//!
//! conformance::check(|| Box::new(Counter(0)));
//! ```
#![allow(clippy::disallowed_methods)] // measures: it is called by tests and benches alone

use std::time::{Duration, Instant};

use super::{EngineError, StreamEngine};

/// Pseudo-random bytes (SplitMix64), the same for a seed on every machine.
pub fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut rng = Rng(seed);
    let mut out = Vec::with_capacity(bytes + 8);
    while out.len() < bytes {
        out.extend_from_slice(&rng.bits().to_le_bytes());
    }
    out.truncate(bytes);
    out
}

struct Rng(u64);

impl Rng {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.bits() % bound.max(1) as u64) as usize
    }
}

/// Everything that an engine said about a stream.
#[derive(Debug, PartialEq)]
struct Outcome {
    output: Vec<u8>,
    end: Result<(), EngineError>,
    result: Vec<u8>,
}

/// Checks an engine on streams of noise: that cuts of the stream change neither output nor result;
/// that it keeps its bound, and a tap its hands off the output; that the result can be asked for at
/// any time; that a reset engine is a new one; that a cut item is dropped and reported; that two
/// engines share nothing.
///
/// # Panics
/// When the engine breaks one of these rules, saying which.
pub fn check(make: impl Fn() -> Box<dyn StreamEngine>) {
    let lengths = [0, 1, 7, 64, 1000, 4096, 70_001];
    for (seed, &len) in (1..).zip(&lengths) {
        let stream = noise(seed, len);
        let whole = run(&mut *make(), &[&stream]);
        for round in 0..8 {
            let pieces = cut(&stream, seed * 100 + round);
            let cut = run(&mut *make(), &pieces);
            let name = make().name();
            assert_eq!(
                cut, whole,
                "{name}: cuts of {len} bytes change what it does"
            );
        }
        check_cut_item(&make, &stream, &whole);
        check_reset(&make, &stream, &whole);
    }
    check_resumed(&make);
    check_separate(&make);
    let rate = make().declared_rate();
    assert!(rate.is_finite() && rate > 0.0, "declared rate {rate}");
}

/// Feeds the pieces and ends the stream, holding the engine to its bound.
fn run(engine: &mut dyn StreamEngine, pieces: &[&[u8]]) -> Outcome {
    let mut output = Vec::new();
    for piece in pieces {
        feed(engine, piece, &mut output);
    }
    let most = output.len() + engine.output_bound(0);
    let end = engine.finish(&mut output);
    let name = engine.name();
    assert!(output.len() <= most, "{name}: finish broke its bound");
    let mut result = Vec::new();
    engine.result(&mut result);
    Outcome {
        output,
        end,
        result,
    }
}

fn feed(engine: &mut dyn StreamEngine, piece: &[u8], output: &mut Vec<u8>) {
    // What is there before belongs to others: an engine appends.
    let mut out = b"before".to_vec();
    engine.process(piece, &mut out);
    let name = engine.name();
    assert!(out.starts_with(b"before"), "{name} changed what was there");
    let (added, bound) = (out.len() - 6, engine.output_bound(piece.len()));
    let n = piece.len();
    assert!(
        added <= bound,
        "{name}: {added} bytes for {n}, beyond its bound {bound}"
    );
    assert!(
        !engine.is_tap() || added == 0,
        "{name} is a tap and wrote {added} bytes"
    );
    output.extend_from_slice(&out[6..]);
}

/// Random pieces: many short ones, some empty, some long.
fn cut(stream: &[u8], seed: u64) -> Vec<&[u8]> {
    let mut rng = Rng(seed);
    let longest = [1, 3, 17, 1408, 9000, 70_000][rng.below(6)];
    let mut pieces = Vec::new();
    let mut rest = stream;
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(rng.below(longest + 1).min(rest.len()));
        pieces.push(piece);
        rest = after;
    }
    pieces.push(rest);
    pieces
}

/// A cut item leaves the state of the whole items before it. Of a chain the item is one of its
/// engines', each of which is checked by itself.
fn check_cut_item(make: &impl Fn() -> Box<dyn StreamEngine>, stream: &[u8], whole: &Outcome) {
    let (left, item) = match whole.end {
        Err(EngineError::CutItem { engine, left, item }) if engine == make().name() => (left, item),
        _ => return,
    };
    assert!(
        0 < left && left < item,
        "{left} of {item} bytes are no cut item"
    );
    let mut engine = make();
    let shorter = run(&mut *engine, &[&stream[..stream.len() - left]]);
    assert_eq!(
        shorter.end,
        Ok(()),
        "without the cut item the stream is whole"
    );
    assert_eq!(
        (&shorter.output, &shorter.result),
        (&whole.output, &whole.result)
    );
}

fn check_reset(make: &impl Fn() -> Box<dyn StreamEngine>, stream: &[u8], whole: &Outcome) {
    let mut engine = make();
    // Not ended: an item may be open when it is reset.
    feed(
        &mut *engine,
        &noise(4711, 3 * stream.len() / 2 + 5),
        &mut Vec::new(),
    );
    engine.reset();
    let again = run(&mut *engine, &[stream]);
    assert_eq!(
        &again,
        whole,
        "{}: reset leaves something behind",
        engine.name()
    );
}

/// The result at any point is that of the stream so far, and asking for it changes nothing; a
/// stream that follows another is counted into the same state.
fn check_resumed(make: &impl Fn() -> Box<dyn StreamEngine>) {
    let stream = noise(99, 48 * 1000);
    let result = |engine: &dyn StreamEngine| {
        let mut result = Vec::new();
        engine.result(&mut result);
        result
    };
    let mut engine = make();
    let mut output = Vec::new();
    for (i, piece) in stream.chunks(4801).enumerate() {
        feed(&mut *engine, piece, &mut output);
        let end = stream.len().min((i + 1) * 4801);
        let mut fresh = make();
        let mut fresh_output = Vec::new();
        feed(&mut *fresh, &stream[..end], &mut fresh_output);
        let name = engine.name();
        assert_eq!(result(&*engine), result(&*fresh), "{name}: result at {end}");
        assert_eq!(result(&*engine), result(&*engine), "{name}: asked twice");
        assert_eq!(output, fresh_output, "{name}: output at {end}");
    }
    // 48 is a multiple of most items; other engines report a cut item here, and drop it.
    let one_end = engine.finish(&mut output);
    let again = engine.finish(&mut output);
    assert_eq!(
        again,
        Ok(()),
        "{}: a finished stream is whole",
        engine.name()
    );
    if one_end.is_ok() {
        run(&mut *engine, &[&stream]);
        let mut both = make();
        let twice = run(&mut *both, &[&stream, &stream]);
        assert_eq!(
            result(&*engine),
            twice.result,
            "{}: a second stream",
            engine.name()
        );
    }
}

/// Two engines fed in turns are as two engines alone.
fn check_separate(make: &impl Fn() -> Box<dyn StreamEngine>) {
    let streams = [noise(5, 20_000), noise(6, 20_000)];
    let alone = streams.each_ref().map(|s| run(&mut *make(), &[s]));
    let mut engines = [make(), make()];
    let mut outputs = [Vec::new(), Vec::new()];
    for at in (0..20_000).step_by(1000) {
        for i in 0..2 {
            feed(
                &mut *engines[i],
                &streams[i][at..at + 1000],
                &mut outputs[i],
            );
        }
    }
    for ((mut engine, mut output), alone) in engines.into_iter().zip(outputs).zip(alone) {
        let name = engine.name();
        let end = engine.finish(&mut output);
        let mut result = Vec::new();
        engine.result(&mut result);
        let together = Outcome {
            output,
            end,
            result,
        };
        assert_eq!(together, alone, "{name}: two engines share something");
    }
}

/// What an engine promised, and what it did.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// Bytes per second that it declares.
    pub declared: f64,
    /// Bytes per second in the best of several passes over a warm piece.
    pub measured: f64,
}

/// Measures an engine for about `time` on pieces of 64 KiB of noise, which lie in the cache.
pub fn measure(engine: &mut dyn StreamEngine, time: Duration) -> Rate {
    const PIECE: usize = 1 << 16;
    // Several pieces, so that an engine cannot know the one by heart.
    let pieces: Vec<Vec<u8>> = (0..4).map(|seed| noise(seed, PIECE)).collect();
    let mut out = Vec::with_capacity(engine.output_bound(PIECE));
    let (begin, mut best) = (Instant::now(), Duration::MAX);
    while begin.elapsed() < time {
        let start = Instant::now();
        for piece in &pieces {
            out.clear();
            engine.process(std::hint::black_box(piece), &mut out);
        }
        std::hint::black_box(&out);
        best = best.min(start.elapsed());
    }
    Rate {
        declared: engine.declared_rate(),
        measured: (pieces.len() * PIECE) as f64 / best.as_secs_f64(),
    }
}
