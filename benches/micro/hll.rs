//! HyperLogLog: items per second against three crates and the core's read bandwidth, and accuracy.
//!
//! `cargo bench --profile dist -p ringbell-micro --bench hll [-- --quick] [-- --json] [--
//! --accuracy] [-- --billion]`. Peers and engine take turns on the same stream, on one core;
//! figures are medians. Each row checks its estimate against the exact count (`#wrong`: outside of
//! six standard errors). `--accuracy` runs 1,000 streams of each size up to a million; `--billion`
//! adds a few of up to 10^9.
#![allow(clippy::disallowed_methods)] // measures time

use std::hash::{BuildHasherDefault, Hasher};
use std::hint::black_box;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use cardinality_estimator::CardinalityEstimator;
use datasketches::hll::{HllSketch, HllType};
use hyperloglogplus::{HyperLogLog, HyperLogLogPF};
use ringbell_onc_engines::stream::conformance::measure;
use ringbell_onc_engines::stream::hll::{HashKind, HllConfig, HllEngine, Isa, Sketch};
use ringbell_onc_engines::stream::StreamEngine;

/// Turns that each row gets.
const RUNS: usize = 7;
/// Bytes of the pieces in which the engine gets its stream, as from a NIC.
const PIECE: usize = 64 << 10;

fn main() -> ExitCode {
    eprintln!("built by the profile {}", env!("RINGBELL_PROFILE"));
    let args: Vec<String> = std::env::args().collect();
    let flag = |name: &str| args.iter().any(|a| a == name);
    // `cargo test` runs benches without `--bench`: then only that it works.
    let quick = flag("--quick") || !flag("--bench");
    let mut failed = false;
    let mut report = serde_json::json!({
        "meta": {
            "bench": "hll",
            "version": env!("CARGO_PKG_VERSION"),
            "nic": "soft",
            "runs": RUNS,
            "isa": Isa::best().name(),
        },
    });
    if flag("--accuracy") || flag("--billion") || !flag("--bench") {
        let rows = accuracy(quick, flag("--billion"), !flag("--json"));
        failed |= rows.iter().any(|r| !r.is_good());
        report["accuracy"] = rows.iter().map(Accuracy::json).collect();
    } else {
        let rows = speed(quick);
        if !flag("--json") {
            print_speed(&rows);
        }
        failed |= rows.iter().any(|r| r.wrong > 0);
        failed |= !declared_rates(quick, flag("--json"));
        let fastest = fastest_peer(&rows);
        report["rows"] = rows.iter().map(|r| r.json(&rows, fastest)).collect();
    }
    if flag("--json") {
        println!("{report}");
    }
    if failed {
        eprintln!("a row is wrong: see above");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// One line of the comparison.
struct Row {
    what: String,
    stream: &'static str,
    item_bytes: usize,
    items: usize,
    seconds: Vec<f64>,
    wrong: u64,
}

impl Row {
    /// Items per second, median.
    fn rate(&self) -> f64 {
        let mut s = self.seconds.clone();
        s.sort_by(f64::total_cmp);
        self.items as f64 / s[s.len() / 2]
    }

    /// Items per second in the best turn: the rate of a core without other users.
    fn best(&self) -> f64 {
        let shortest = self.seconds.iter().copied().fold(f64::INFINITY, f64::min);
        self.items as f64 / shortest
    }

    fn bytes_per_second(&self) -> f64 {
        self.rate() * self.item_bytes as f64
    }

    fn is_peer(&self) -> bool {
        self.what.starts_with("crate")
    }

    fn json(&self, rows: &[Row], fastest_peer: f64) -> serde_json::Value {
        serde_json::json!({
            "what": self.what,
            "stream": self.stream,
            "item_bytes": self.item_bytes,
            "items": self.items,
            "items_per_s": self.rate(),
            "items_per_s_best": self.best(),
            "engine_gbs": self.bytes_per_second() / 1e9,
            "share_of_read": self.bytes_per_second() / rows[0].bytes_per_second(),
            "times_fastest_peer": self.rate() / fastest_peer,
            "wrong": self.wrong,
        })
    }
}

fn fastest_peer(rows: &[Row]) -> f64 {
    let peers = rows.iter().filter(|r| r.is_peer());
    peers.map(Row::rate).fold(0.0, f64::max)
}

fn print_speed(rows: &[Row]) {
    let (read, fastest) = (rows[0].bytes_per_second(), fastest_peer(rows));
    println!(
        "{:<38} {:<11} {:>5} {:>9} {:>6} {:>7} {:>6} {:>7} {:>7}",
        "what", "items", "bytes", "M items/s", "best", "GB/s", "%read", "x peer", "#wrong"
    );
    for r in rows {
        println!(
            "{:<38} {:<11} {:>5} {:>9.0} {:>6.0} {:>7.2} {:>5.0}% {:>7.2} {:>7}",
            r.what,
            r.stream,
            r.item_bytes,
            r.rate() / 1e6,
            r.best() / 1e6,
            r.bytes_per_second() / 1e9,
            r.bytes_per_second() / read * 100.0,
            r.rate() / fastest,
            r.wrong
        );
    }
    println!("x peer: times the fastest crate at 4-byte items; medians of {RUNS}, one core, cold sketches");
}

/// A permutation of 32-bit numbers that is none of the engine's hashes: distinct items that look
/// random.
fn shuffle(mut x: u32) -> u32 {
    x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
    x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}

/// SplitMix64's permutation of 64-bit numbers, with other multipliers than the engine's hashes.
fn shuffle64(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// What the other crates hash with: the same finaliser as ours, the cheapest that serves them.
#[derive(Default)]
struct Finaliser(u64);

impl Hasher for Finaliser {
    fn finish(&self) -> u64 {
        let mut h = self.0;
        h = (h ^ (h >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        h = (h ^ (h >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        h ^ (h >> 33)
    }
    fn write(&mut self, bytes: &[u8]) {
        for &b in bytes {
            self.0 = self.0 << 8 | u64::from(b);
        }
    }
    fn write_u32(&mut self, v: u32) {
        self.0 = u64::from(v);
    }
}

/// A way to count a stream: gives its estimate, and how far that may be off.
type Count = Box<dyn Fn(&[u8]) -> (f64, f64)>;

fn engine(isa: Isa, hash: HashKind, width: usize, precision: u8) -> Count {
    let config = HllConfig {
        precision,
        width,
        hash,
        image: false,
    };
    let make = move || HllEngine::on(isa, config).expect("the configuration is valid");
    Box::new(move |stream| {
        let mut engine = make();
        let mut out = Vec::new();
        for piece in stream.chunks(PIECE) {
            engine.process(piece, &mut out);
        }
        let summary = engine.summary();
        (summary.estimate, summary.relative_error)
    })
}

fn words(stream: &[u8]) -> impl Iterator<Item = u32> + '_ {
    let words = stream.chunks_exact(4);
    words.map(|c| u32::from_le_bytes(c.try_into().expect("chunks of 4")))
}

fn standard_error(precision: u8) -> f64 {
    1.04 / f64::from(1u32 << precision).sqrt()
}

fn peers() -> Vec<(String, Count)> {
    fn estimator<const P: usize>() -> Count {
        Box::new(|stream| {
            let mut e = CardinalityEstimator::<u32, Finaliser, P, 6>::new();
            words(stream).for_each(|w| e.insert(&w));
            (e.estimate() as f64, standard_error(P as u8))
        })
    }
    let mut all: Vec<(String, Count)> = Vec::new();
    for p in [14u8, 16] {
        all.push((
            format!("crate datasketches Hll8 p={p}"),
            Box::new(move |stream| {
                let mut s = HllSketch::new(p, HllType::Hll8).expect("a valid precision");
                words(stream).for_each(|w| s.update(w));
                (s.estimate(), standard_error(p))
            }),
        ));
        all.push((
            format!("crate hyperloglogplus PF p={p}"),
            Box::new(move |stream| {
                let build = BuildHasherDefault::<Finaliser>::default();
                let mut s: HyperLogLogPF<u32, _> =
                    HyperLogLogPF::new(p, build).expect("a valid precision");
                words(stream).for_each(|w| s.insert(&w));
                (s.count(), standard_error(p))
            }),
        ));
    }
    all.push(("crate cardinality-estimator p=14".into(), estimator::<14>()));
    all.push(("crate cardinality-estimator p=16".into(), estimator::<16>()));
    all
}

/// A stream and how many distinct items of 4 bytes it has.
struct Stream {
    name: &'static str,
    bytes: Vec<u8>,
    distinct: usize,
}

fn speed(quick: bool) -> Vec<Row> {
    // A sketch changes most over its first 2^p items and hardly later: short streams are slower.
    let n: u32 = if quick { 1 << 20 } else { 64 << 20 };
    let distinct = Stream {
        name: "distinct",
        bytes: (0..n).flat_map(|i| shuffle(i).to_le_bytes()).collect(),
        distinct: n as usize,
    };
    // The worst for a filter by the lowest register: that one stays 0 for ever.
    let few = Stream {
        name: "1000 values",
        bytes: (0..n / 4)
            .flat_map(|i| shuffle(shuffle(i) % 1000).to_le_bytes())
            .collect(),
        distinct: 1000,
    };
    let mut cases: Vec<(String, &Stream, usize, Count)> = Vec::new();
    cases.push((
        "read".into(),
        &distinct,
        4,
        Box::new(|stream| (read(stream), f64::INFINITY)),
    ));
    for (what, count) in peers() {
        cases.push((what, &distinct, 4, count));
    }
    let best = Isa::best();
    let mut ours = |isa: Isa, hash: HashKind, width, precision, stream| {
        let what = format!("engine {} {} p={precision}", isa.name(), hash.name());
        cases.push((what, stream, width, engine(isa, hash, width, precision)));
    };
    for precision in [14, 16, 18] {
        ours(best, HashKind::Mix, 4, precision, &distinct);
    }
    for hash in [HashKind::Murmur3, HashKind::DataSketches] {
        for precision in [14, 16] {
            ours(best, hash, 4, precision, &distinct);
        }
    }
    for width in [1, 2, 8, 16] {
        ours(best, HashKind::Mix, width, 14, &distinct);
    }
    for isa in Isa::available().into_iter().filter(|&i| i != best) {
        ours(isa, HashKind::Mix, 4, 14, &distinct);
    }
    for precision in [14, 16] {
        ours(best, HashKind::Mix, 4, precision, &few);
    }
    let mut rows: Vec<Row> = cases
        .iter()
        .map(|(what, stream, width, _)| Row {
            what: what.clone(),
            stream: stream.name,
            item_bytes: *width,
            items: stream.bytes.len() / width,
            seconds: Vec::new(),
            wrong: 0,
        })
        .collect();
    for _ in 0..RUNS {
        for (row, (_, stream, width, count)) in rows.iter_mut().zip(&cases) {
            let start = Instant::now();
            let (estimate, error) = count(black_box(&stream.bytes));
            row.seconds.push(start.elapsed().as_secs_f64());
            let exact = match width {
                1 => 256.0_f64.min(stream.distinct as f64),
                2 => f64::from(distinct_u16(&stream.bytes)),
                // Neighbours of distinct items are distinct pairs.
                w => (stream.distinct * 4 / w) as f64,
            };
            let off = (estimate / exact - 1.0).abs();
            row.wrong += u64::from(off > 6.0 * error);
        }
    }
    rows
}

fn distinct_u16(stream: &[u8]) -> u32 {
    let mut seen = vec![false; 1 << 16];
    for c in stream.chunks_exact(2) {
        seen[usize::from(u16::from_le_bytes([c[0], c[1]]))] = true;
    }
    seen.iter().map(|&s| u32::from(s)).sum()
}

/// Reads every byte, as fast as vectors do.
fn read(stream: &[u8]) -> f64 {
    let mut sums = [0u64; 32];
    for line in stream.chunks_exact(256) {
        for (sum, word) in sums.iter_mut().zip(line.chunks_exact(8)) {
            *sum ^= u64::from_le_bytes(word.try_into().expect("chunks of 8"));
        }
    }
    black_box(sums);
    0.0
}

/// Whether each engine keeps half of what it declares, so that a noisy machine does not fail it.
fn declared_rates(quick: bool, silent: bool) -> bool {
    let time = Duration::from_millis(if quick { 20 } else { 200 });
    let mut good = true;
    for isa in Isa::available() {
        for hash in HashKind::ALL {
            for width in [4, 8, 16] {
                let config = HllConfig {
                    precision: 16,
                    width,
                    hash,
                    image: false,
                };
                let mut engine = HllEngine::on(isa, config).expect("the configuration is valid");
                let rate = measure(&mut engine, time);
                good &= rate.measured > rate.declared / 2.0;
                if !silent {
                    println!(
                        "declared {:>5.2} GB/s, measured {:>6.2}: {} {} width {width}, few distinct items, in cache",
                        rate.declared / 1e9,
                        rate.measured / 1e9,
                        isa.name(),
                        hash.name(),
                    );
                }
            }
        }
    }
    good
}

/// What the streams of the accuracy run are made of; each begins elsewhere.
#[derive(Clone, Copy, PartialEq)]
enum Items {
    /// 8 bytes that look random.
    Random64,
    /// 4 bytes that look random.
    Random32,
    /// 4 bytes, each one more than the one before.
    Sequential32,
}

impl Items {
    fn name(self) -> &'static str {
        match self {
            Items::Random64 => "random u64",
            Items::Random32 => "random u32",
            Items::Sequential32 => "sequential u32",
        }
    }

    fn width(self) -> usize {
        match self {
            Items::Random64 => 8,
            Items::Random32 | Items::Sequential32 => 4,
        }
    }

    /// Items `range` of a stream.
    fn write(self, stream: u64, range: std::ops::Range<u64>, into: &mut Vec<u8>) {
        let start = shuffle64(stream + 1);
        into.clear();
        match self {
            Items::Random64 => {
                into.extend(range.flat_map(|i| shuffle64(start.wrapping_add(i)).to_le_bytes()))
            }
            Items::Random32 => into.extend(
                range.flat_map(|i| shuffle((start as u32).wrapping_add(i as u32)).to_le_bytes()),
            ),
            Items::Sequential32 => {
                into.extend(range.flat_map(|i| (start as u32).wrapping_add(i as u32).to_le_bytes()))
            }
        }
    }
}

/// The hashes and items that the accuracy run combines.
const COMBINATIONS: [(HashKind, Items); 5] = [
    (HashKind::Mix, Items::Random32),
    (HashKind::Mix, Items::Sequential32),
    (HashKind::Mix, Items::Random64),
    (HashKind::Murmur3, Items::Random64),
    (HashKind::DataSketches, Items::Random64),
];

/// Errors of many streams of one size, in standard errors of the theory: 1.04/√m.
struct Accuracy {
    hash: HashKind,
    items: Items,
    n: u64,
    streams: u64,
    /// Root mean square and mean, by the registers and by the history.
    registers: [f64; 2],
    history: [f64; 2],
}

impl Accuracy {
    /// Within 1.1 standard errors, and a bias below a tenth of one: asked where enough streams
    /// tell.
    fn is_good(&self) -> bool {
        let least = 1.1 + 3.0 * (0.5 / self.streams as f64).sqrt();
        let [most, bias] = if self.streams >= 1000 {
            [1.1, 0.1]
        } else {
            [least, 3.5 / (self.streams as f64).sqrt()]
        };
        let holds = |[rms, mean]: [f64; 2]| rms <= most && mean.abs() <= bias;
        holds(self.registers) && holds(self.history)
    }

    fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "hash": self.hash.name(),
            "items": self.items.name(),
            "distinct": self.n,
            "streams": self.streams,
            "rms_registers": self.registers[0],
            "bias_registers": self.registers[1],
            "rms_history": self.history[0],
            "bias_history": self.history[1],
            "good": self.is_good(),
        })
    }
}

fn accuracy(quick: bool, billion: bool, print: bool) -> Vec<Accuracy> {
    const PRECISION: u8 = 14;
    let streams = if quick { 20 } else { 1000 };
    let mut cases: Vec<(u64, u64)> = [1, 10, 100, 1000, 10_000, 30_000, 50_000, 100_000, 1_000_000]
        .map(|n| (n, streams))
        .to_vec();
    if quick {
        cases.pop();
    }
    if billion {
        cases.extend([(10_000_000, 300), (100_000_000, 60), (1_000_000_000, 20)]);
    }
    if print {
        println!("p={PRECISION}; errors in units of 1.04/sqrt(m): by registers | by history");
    }
    let mut rows = Vec::new();
    for &(n, streams) in &cases {
        for (hash, items) in COMBINATIONS {
            // Beyond a million the default's and DataSketches' hash stand for all.
            if n > 1_000_000 && (hash == HashKind::Murmur3 || items == Items::Random32) {
                continue;
            }
            let row = errors(PRECISION, hash, items, n, streams);
            if print {
                println!(
                    "{:<13} {:<14} {n:>10} distinct, {streams:>4} streams: rms {:.3} bias {:+.3} | rms {:.3} bias {:+.3}{}",
                    hash.name(),
                    items.name(),
                    row.registers[0],
                    row.registers[1],
                    row.history[0],
                    row.history[1],
                    if row.is_good() { "" } else { "  WRONG" },
                );
            }
            rows.push(row);
        }
    }
    rows
}

fn errors(precision: u8, hash: HashKind, items: Items, n: u64, streams: u64) -> Accuracy {
    let sigma = standard_error(precision);
    let (mut registers, mut history) = ([0.0; 2], [0.0; 2]);
    let mut bytes = Vec::with_capacity(PIECE);
    for stream in 0..streams {
        let mut sketch = Sketch::new(precision, hash, items.width()).expect("a valid precision");
        let mut next = 0;
        while next < n {
            let end = n.min(next + PIECE as u64 / 8);
            items.write(stream, next..end, &mut bytes);
            sketch.update(&bytes);
            next = end;
        }
        let add = |sums: &mut [f64; 2], estimate: f64| {
            let error = (estimate / n as f64 - 1.0) / sigma;
            sums[0] += error * error;
            sums[1] += error;
        };
        add(&mut registers, sketch.estimate_from_registers());
        add(&mut history, sketch.estimate());
    }
    let mean = |[squares, sum]: [f64; 2]| {
        let streams = streams as f64;
        [(squares / streams).sqrt(), sum / streams]
    };
    Accuracy {
        hash,
        items,
        n,
        streams,
        registers: mean(registers),
        history: mean(history),
    }
}
