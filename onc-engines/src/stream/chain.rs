//! Chains of engines, which are engines themselves.

use super::{EngineError, StreamEngine};

/// Bytes that pass through the whole chain at once, so that one engine's output is still in the
/// cache when the next engine reads it.
const PIECE: usize = 32 << 10;

/// Engines in a row: the output of one is the input of the next.
///
/// Its result is the results in order, each as its length (`u64`) and its bytes, padded with zeros
/// to a multiple of 8, so that a GPU kernel reads aligned words. [`split_results`] takes it apart.
///
/// ```
/// use ringbell_onc_engines::stream::cast::{Cast, CastEngine};
/// use ringbell_onc_engines::stream::hll::{HllConfig, HllEngine};
/// use ringbell_onc_engines::stream::{Chain, StreamEngine};
///
/// // Counts the distinct f32 of a stream, and sends it on as bf16.
/// let hll = HllEngine::new(HllConfig::default()).unwrap();
/// let cast = CastEngine::new(Cast::F32ToBf16);
/// let mut chain = Chain::new(vec![Box::new(hll), Box::new(cast)]);
/// let mut out = Vec::new();
/// chain.process(&1.0f32.to_le_bytes(), &mut out);
/// assert_eq!(out, [0x80, 0x3f]);
/// ```
#[derive(Default)]
pub struct Chain {
    engines: Vec<Box<dyn StreamEngine>>,
    /// The output of the engine of that place, while the next reads it.
    between: Vec<Vec<u8>>,
}

impl Chain {
    /// A chain; without engines, a tap that does nothing.
    pub fn new(engines: Vec<Box<dyn StreamEngine>>) -> Chain {
        let between = engines.iter().map(|_| Vec::new()).collect();
        Chain { engines, between }
    }

    /// The engines, in order.
    pub fn engines(&self) -> &[Box<dyn StreamEngine>] {
        &self.engines
    }

    /// Sends `input` through the engines from place `from` on.
    fn pass(&mut self, from: usize, input: &[u8], out: &mut Vec<u8>) {
        let last_writer = self.engines.iter().rposition(|e| !e.is_tap());
        let Some(last) = last_writer.filter(|&last| last >= from) else {
            // Only taps are left. The stream itself goes on where there is a writer before them.
            for engine in &mut self.engines[from..] {
                engine.process(input, out);
            }
            if last_writer.is_some() {
                out.extend_from_slice(input);
            }
            return;
        };
        let begin = out.len();
        // The stream's present bytes: the input, an engine's output, or the bytes that the last one
        // appended.
        let mut source: Option<usize> = None;
        for place in from..self.engines.len() {
            let (before, rest) = self.between.split_at_mut(place);
            let data: &[u8] = match source {
                None => input,
                Some(writer) => &before[writer],
            };
            let engine = &mut self.engines[place];
            if place > last {
                // Taps behind the last writer read the bytes that it appended; they write nothing.
                engine.process(&out[begin..], &mut rest[0]);
            } else if engine.is_tap() {
                engine.process(data, &mut rest[0]);
            } else if place == last {
                engine.process(data, out);
            } else {
                rest[0].clear();
                engine.process(data, &mut rest[0]);
                source = Some(place);
            }
        }
    }
}

impl std::fmt::Debug for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = self.engines.iter().map(|e| e.name());
        f.debug_list().entries(names).finish()
    }
}

impl StreamEngine for Chain {
    fn name(&self) -> &'static str {
        "chain"
    }

    fn declared_rate(&self) -> f64 {
        // Seconds for a long stream's byte, of which an engine may have made several or a fraction.
        const LONG: usize = 1 << 20;
        let mut bytes = LONG as f64;
        let mut seconds = 0.0;
        for engine in &self.engines {
            seconds += bytes / engine.declared_rate();
            if !engine.is_tap() {
                bytes *= engine.output_bound(LONG) as f64 / LONG as f64;
            }
        }
        if seconds == 0.0 {
            f64::MAX
        } else {
            LONG as f64 / seconds
        }
    }

    fn is_tap(&self) -> bool {
        self.engines.iter().all(|e| e.is_tap())
    }

    fn output_bound(&self, input: usize) -> usize {
        if self.is_tap() {
            return 0;
        }
        let writers = || self.engines.iter().filter(|e| !e.is_tap());
        let piece = |bytes| writers().fold(bytes, |bytes, e| e.output_bound(bytes));
        let rest = input % PIECE;
        let pieces = input / PIECE * piece(PIECE) + if rest > 0 { piece(rest) } else { 0 };
        // At the end each engine's rest passes those behind it.
        let end = writers().fold(0, |bytes, e| e.output_bound(bytes) + e.output_bound(0));
        if input == 0 {
            end
        } else {
            pieces
        }
    }

    fn process(&mut self, input: &[u8], out: &mut Vec<u8>) {
        for piece in input.chunks(PIECE) {
            self.pass(0, piece, out);
        }
    }

    fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), EngineError> {
        let mut first = Ok(());
        for place in 0..self.engines.len() {
            let mut held = Vec::new();
            let end = self.engines[place].finish(&mut held);
            first = first.and(end);
            if !held.is_empty() {
                self.pass(place + 1, &held, out);
            }
        }
        first
    }

    fn result(&self, into: &mut Vec<u8>) {
        for engine in &self.engines {
            let at = into.len();
            into.extend_from_slice(&[0; 8]);
            engine.result(into);
            let bytes = into.len() - at - 8;
            into[at..at + 8].copy_from_slice(&(bytes as u64).to_le_bytes());
            into.resize(at + 8 + bytes.next_multiple_of(8), 0);
        }
    }

    fn reset(&mut self) {
        self.engines.iter_mut().for_each(|e| e.reset());
    }
}

/// The results of a chain's engines, in order; `None` when the bytes are not the result of a chain.
pub fn split_results(mut result: &[u8]) -> Option<Vec<&[u8]>> {
    let mut results = Vec::new();
    while !result.is_empty() {
        let (len, rest) = result.split_first_chunk::<8>()?;
        let len = usize::try_from(u64::from_le_bytes(*len)).ok()?;
        results.push(rest.get(..len)?);
        result = rest.get(len.checked_next_multiple_of(8)?..)?;
    }
    Some(results)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::cast::{Cast, CastEngine};
    use crate::stream::conformance;
    use crate::stream::filter::{Compare, Constant, FilterConfig, FilterEngine};
    use crate::stream::hll::{HllConfig, HllEngine, HllSummary};

    fn hll(width: usize) -> Box<dyn StreamEngine> {
        let config = HllConfig {
            precision: 8,
            width,
            ..HllConfig::default()
        };
        Box::new(HllEngine::new(config).unwrap())
    }

    fn cast(cast: Cast) -> Box<dyn StreamEngine> {
        Box::new(CastEngine::new(cast))
    }

    fn filter(record: usize) -> Box<dyn StreamEngine> {
        let config = FilterConfig {
            record,
            field_at: 0,
            compare: Compare::Ge,
            constant: Constant::U8(128),
            keep: 0..record,
        };
        Box::new(FilterEngine::new(config).unwrap())
    }

    /// Holds all bytes back until the end, which no engine of ours does.
    struct Late(Vec<u8>);

    impl StreamEngine for Late {
        fn name(&self) -> &'static str {
            "late"
        }
        fn declared_rate(&self) -> f64 {
            1e9
        }
        fn is_tap(&self) -> bool {
            false
        }
        fn output_bound(&self, input: usize) -> usize {
            if input == 0 {
                self.0.len()
            } else {
                0
            }
        }
        fn process(&mut self, input: &[u8], _out: &mut Vec<u8>) {
            self.0.extend_from_slice(input);
        }
        fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), EngineError> {
            out.append(&mut self.0);
            Ok(())
        }
        fn result(&self, _into: &mut Vec<u8>) {}
        fn reset(&mut self) {
            self.0.clear();
        }
    }

    /// Each engine alone over the whole output of the one before.
    fn model(engines: Vec<Box<dyn StreamEngine>>, stream: &[u8]) -> (Vec<u8>, Vec<Vec<u8>>) {
        let mut data = stream.to_vec();
        let mut results = Vec::new();
        for mut engine in engines {
            let mut out = Vec::new();
            engine.process(&data, &mut out);
            let _ = engine.finish(&mut out);
            if !engine.is_tap() {
                data = out;
            }
            let mut result = Vec::new();
            engine.result(&mut result);
            results.push(result);
        }
        (data, results)
    }

    type Maker = fn() -> Vec<Box<dyn StreamEngine>>;

    const CHAINS: [Maker; 8] = [
        Vec::new,
        || vec![hll(4), hll(8)],
        || vec![hll(4), cast(Cast::F32ToBf16)],
        || vec![cast(Cast::F32ToBf16), hll(2)],
        || vec![filter(12), hll(4), cast(Cast::F32ToF16), hll(2), hll(1)],
        || vec![cast(Cast::Bf16ToF32), filter(8), cast(Cast::F32ToBf16)],
        || vec![hll(1), Box::new(Late(Vec::new())), hll(8)],
        || vec![Box::new(Late(Vec::new())), filter(3), hll(1)],
    ];

    #[test]
    fn a_chain_equals_its_engines_one_after_the_other() {
        let stream = conformance::noise(1, 100_001);
        for (i, make) in CHAINS.into_iter().enumerate() {
            let (data, results) = model(make(), &stream);
            let mut chain = Chain::new(make());
            let mut out = Vec::new();
            chain.process(&stream, &mut out);
            let _ = chain.finish(&mut out);
            if chain.is_tap() {
                assert!(out.is_empty(), "chain {i}");
            } else {
                assert!(out == data, "chain {i}");
            }
            let mut result = Vec::new();
            chain.result(&mut result);
            assert_eq!(split_results(&result).unwrap(), results, "chain {i}");
            assert!(chain.declared_rate() > 0.0);
        }
    }

    #[test]
    fn the_engine_passes_the_conformance_suite() {
        for make in CHAINS {
            conformance::check(|| Box::new(Chain::new(make())));
        }
    }

    #[test]
    fn the_first_cut_item_is_reported_and_all_engines_end() {
        let mut chain = Chain::new(vec![hll(4), filter(3), hll(8)]);
        chain.process(&[255; 10], &mut Vec::new());
        let cut = EngineError::CutItem {
            engine: "hll",
            left: 2,
            item: 4,
        };
        assert_eq!(chain.finish(&mut Vec::new()), Err(cut));
        assert_eq!(chain.finish(&mut Vec::new()), Ok(()));
        let mut result = Vec::new();
        chain.result(&mut result);
        let results = split_results(&result).unwrap();
        // 10 bytes are 2 items of 4; the filter keeps 3 records of 3 bytes, which are one of 8.
        let items = |r| HllSummary::read(r).unwrap().items;
        assert_eq!((items(results[0]), items(results[2])), (2, 1));
    }

    #[test]
    fn broken_results_are_refused() {
        let long = u64::MAX.to_le_bytes();
        for bytes in [&[1u8][..], &[9, 0, 0, 0, 0, 0, 0, 0, 1], &long] {
            assert_eq!(split_results(bytes), None);
        }
        // Its padding may not be missing.
        assert_eq!(split_results(&[1, 0, 0, 0, 0, 0, 0, 0, 5]), None);
        let padded = [1, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(split_results(&padded), Some(vec![&[5u8][..]]));
    }
}
