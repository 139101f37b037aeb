//! Items of a text: its lines, or one column of them.
//!
//! A line ends with a line feed, with a carriage return before it or without, or with the input.
//! The bytes between are the item: an empty line is an item, and a line may have any length,
//! because it is hashed as it passes. A column is the text between two delimiters of a line, empty
//! or not; quotes mean nothing. A line with fewer columns has no item, and is reported; an empty
//! line has no column, as in awk.

use anyhow::Result;
use ringbell::engines::hll::{HashKind, HllSummary, ItemHash, Sketch};
use ringbell::engines::{EngineError, StreamEngine};

use crate::{Exit, Problem};

/// Bytes from which a text is recognised.
const LOOKED_AT: usize = 4096;

/// What an item is, when it has no fixed width.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct TextArgs {
    /// Count distinct lines, as `sort -u | wc -l` does; they end with LF or CRLF
    #[arg(long, conflicts_with_all = ["column", "width", "gpu_kernel"])]
    lines: bool,
    /// Count distinct values of the Nth column of the lines, from 1; lines that have fewer are
    /// told, not counted
    #[arg(long, value_name = "N", conflicts_with_all = ["width", "gpu_kernel"],
          value_parser = clap::value_parser!(u32).range(1..))]
    column: Option<u32>,
    /// What stands between columns: one byte, or `tab`; quotes mean nothing [default: tab]
    #[arg(long, value_name = "C", requires = "column", value_parser = delimiter)]
    delimiter: Option<u8>,
}

fn delimiter(text: &str) -> Result<u8, String> {
    match text.as_bytes() {
        b"tab" | b"\\t" => Ok(b'\t'),
        b"\n" | b"\r" => Err("a line's end is no delimiter".into()),
        [one] => Ok(*one),
        _ => Err("write one byte, such as , or ; or tab".into()),
    }
}

impl TextArgs {
    /// The column that is counted.
    pub(super) fn column(&self) -> Option<u32> {
        self.column
    }

    /// Whether items are of a text.
    pub(super) fn is_text(&self) -> bool {
        self.lines || self.column.is_some()
    }

    /// What is counted, in words; `width` for items of a fixed width.
    pub(super) fn items(&self, width: usize) -> String {
        match (self.lines, self.column) {
            (true, _) => "lines".into(),
            (_, Some(n)) => format!("values of column {n}"),
            (_, None) => format!("items of {width} bytes"),
        }
    }

    /// The hash: a fixed width is cheaper to hash.
    pub(super) fn hash(&self, asked: Option<HashKind>) -> HashKind {
        asked.unwrap_or(match self.is_text() {
            true => HashKind::Murmur3,
            false => HashKind::default(),
        })
    }

    /// An engine for the items of a text; `None`: they have a fixed width.
    pub(super) fn engine(&self, precision: u8, hash: HashKind) -> Result<Option<TextEngine>> {
        if !self.is_text() {
            return Ok(None);
        }
        let usage = |what: String, advice: &str| Problem::new(Exit::Usage, what, advice);
        let item = hash.of_bytes().ok_or_else(|| {
            usage(
                format!("hash {} is of numbers, and a text has strings", hash.name()),
                "give --hash murmur3 or datasketches-bytes with --lines and --column",
            )
        })?;
        let sketch = Sketch::new(precision, hash, 16)
            .ok()
            .filter(|s| s.precision() <= 18)
            .ok_or_else(|| {
                let what = format!("HyperLogLog precision {precision} is out of range");
                usage(what, "give --precision 4 to 18")
            })?;
        Ok(Some(TextEngine {
            wanted: self.column.unwrap_or(1),
            delimiter: self.column.map(|_| self.delimiter.unwrap_or(b'\t')),
            empty: (item, sketch.clone()),
            item,
            sketch,
            at: 1,
            begun: false,
            filled: false,
            held: false,
            items: 0,
            missing: 0,
        }))
    }
}

/// Counts the distinct items of a text as it passes. A tap.
#[derive(Debug, Clone)]
pub(super) struct TextEngine {
    /// The column that is counted; a whole line is the first without a delimiter.
    wanted: u32,
    delimiter: Option<u8>,
    /// State before the first byte of an item.
    empty: (ItemHash, Sketch),
    item: ItemHash,
    sketch: Sketch,
    /// The current column.
    at: u32,
    /// The line has bytes.
    begun: bool,
    /// The line has more than its end.
    filled: bool,
    /// A carriage return has passed that may end the line.
    held: bool,
    items: u64,
    /// Lines without the column.
    missing: u64,
}

impl TextEngine {
    /// Bytes of a line, without the line feed.
    fn piece(&mut self, mut bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.begun = true;
        if std::mem::take(&mut self.held) {
            self.feed(b"\r");
        }
        if let [before @ .., b'\r'] = bytes {
            self.held = true;
            bytes = before;
        }
        self.feed(bytes);
    }

    fn feed(&mut self, mut bytes: &[u8]) {
        self.filled |= !bytes.is_empty();
        let Some(delimiter) = self.delimiter else {
            self.item.update(bytes);
            return;
        };
        while self.at <= self.wanted {
            let end = bytes.iter().position(|b| *b == delimiter);
            if self.at == self.wanted {
                self.item.update(&bytes[..end.unwrap_or(bytes.len())]);
            }
            let Some(end) = end else { return };
            self.at += 1;
            bytes = &bytes[end + 1..];
        }
    }

    fn end_line(&mut self) {
        let has_columns = self.delimiter.is_none() || self.filled;
        match has_columns && self.at >= self.wanted {
            true => {
                self.sketch.insert_hashed(&self.item);
                self.items += 1;
            }
            false => self.missing += 1,
        }
        self.item = self.empty.0;
        self.at = 1;
        (self.begun, self.filled, self.held) = (false, false, false);
    }
}

impl StreamEngine for TextEngine {
    fn name(&self) -> &'static str {
        "hll-text"
    }

    fn declared_rate(&self) -> f64 {
        // Empty lines; each is hashed.
        20e6
    }

    fn is_tap(&self) -> bool {
        true
    }

    fn output_bound(&self, _input: usize) -> usize {
        0
    }

    fn process(&mut self, mut input: &[u8], _out: &mut Vec<u8>) {
        while let Some(end) = input.iter().position(|b| *b == b'\n') {
            self.piece(&input[..end]);
            self.end_line();
            input = &input[end + 1..];
        }
        self.piece(input);
    }

    fn finish(&mut self, _out: &mut Vec<u8>) -> Result<(), EngineError> {
        if self.begun {
            self.end_line();
        }
        Ok(())
    }

    /// As that of the engine for items of a fixed width; then the lines without the column.
    fn result(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.sketch.estimate().to_le_bytes());
        into.extend_from_slice(&self.sketch.relative_error().to_le_bytes());
        into.extend_from_slice(&self.items.to_le_bytes());
        into.extend_from_slice(&(self.sketch.image_bytes() as u64).to_le_bytes());
        self.sketch.write(into);
        into.extend_from_slice(&self.missing.to_le_bytes());
    }

    fn reset(&mut self) {
        (self.item, self.sketch) = self.empty.clone();
        self.at = 1;
        (self.begun, self.filled, self.held) = (false, false, false);
        (self.items, self.missing) = (0, 0);
    }
}

/// Lines without the column, from a text's result.
pub(super) fn missing(summary: &HllSummary, result: &[u8]) -> u64 {
    let at = HllSummary::BYTES + summary.image_bytes as usize;
    let word = result.get(at..at + 8).and_then(|w| w.try_into().ok());
    word.map_or(0, u64::from_le_bytes)
}

/// Whether bytes at the start of a file are lines of text: UTF-8 without control characters, and a
/// line feed.
pub(super) fn looks_like_text(start: &[u8]) -> bool {
    let seen = &start[..start.len().min(LOOKED_AT)];
    let text = match std::str::from_utf8(seen) {
        Ok(text) => text,
        // The look may have cut a character.
        Err(e) if e.error_len().is_none() => {
            std::str::from_utf8(&seen[..e.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => return false,
    };
    text.contains('\n') && !text.contains(|c: char| c.is_control() && !"\n\r\t\x0c".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(column: Option<u32>, delimiter: Option<u8>) -> TextArgs {
        TextArgs {
            lines: column.is_none(),
            column,
            delimiter,
        }
    }

    fn engine(args: &TextArgs) -> TextEngine {
        let made = args.engine(12, HashKind::Murmur3).expect("in range");
        made.expect("a text")
    }

    /// Items, lines without one, and distinct items, of a text in pieces of each length.
    fn count(args: &TextArgs, text: &[u8]) -> (u64, u64, u64) {
        let mut seen = None;
        for piece in [1, 2, 3, 7, text.len().max(1)] {
            let mut engine = engine(args);
            text.chunks(piece)
                .for_each(|p| engine.process(p, &mut Vec::new()));
            engine.finish(&mut Vec::new()).expect("no item is cut");
            let now = (
                engine.items,
                engine.missing,
                engine.sketch.estimate().round() as u64,
            );
            assert_eq!(*seen.get_or_insert(now), now, "pieces of {piece}");
        }
        seen.expect("counted")
    }

    #[test]
    fn lines_end_with_lf_crlf_or_the_input() {
        let lines = args(None, None);
        for (text, items, distinct) in [
            (&b""[..], 0, 0),
            (b"\n", 1, 1),
            (b"a", 1, 1),
            (b"a\nb\na\n", 3, 2),
            (b"a\nb\na", 3, 2),
            (b"a\r\na\n", 2, 1),
            (b"a\r", 1, 1),
            (b"a\ra\n", 1, 1),
            (b"a\r\r\na\r\n", 2, 2),
            (b"\r\n\n\n", 3, 1),
            (b"a\n\nb\n", 3, 3),
        ] {
            assert_eq!(count(&lines, text), (items, 0, distinct), "{text:?}");
        }
    }

    #[test]
    fn a_column_may_be_empty_or_missing() {
        for (text, items, missing, distinct) in [
            (&b"1,a\n2,b\n3,a\n"[..], 3, 0, 2),
            (b"1,a,x\r\n2,a\r\n", 2, 0, 1),
            (b"1\n2,b\n", 1, 1, 1),
            (b"1,\n2,\n", 2, 0, 1),
            (b",\n", 1, 0, 1),
            (b"\n", 0, 1, 0),
            (b"1,\"a,b\"\n2,\"a\n", 2, 0, 1),
        ] {
            let found = count(&args(Some(2), Some(b',')), text);
            assert_eq!(found, (items, missing, distinct), "{text:?}");
        }
        assert_eq!(
            count(&args(Some(1), None), b"a\tb\na\tc\n\n\r\n"),
            (2, 2, 1)
        );
    }

    #[test]
    fn a_reset_leaves_nothing_and_a_second_stream_is_counted_to_the_first() {
        let args = args(Some(2), Some(b','));
        let result = |engine: &TextEngine| {
            let mut result = Vec::new();
            engine.result(&mut result);
            result
        };
        let mut used = engine(&args);
        used.process(b"1,a\n2\r", &mut Vec::new());
        used.reset();
        assert_eq!(result(&used), result(&engine(&args)));
        for stream in [&b"1,a"[..], b"2,b\n3"] {
            used.process(stream, &mut Vec::new());
            used.finish(&mut Vec::new()).expect("no item is cut");
        }
        assert_eq!((used.items, used.missing), (2, 1));
        let result = result(&used);
        let summary = HllSummary::read(&result).expect("a summary");
        assert_eq!((summary.items, missing(&summary, &result)), (2, 1));
    }

    #[test]
    fn text_is_distinguished_from_numbers() {
        assert!(looks_like_text(b"alpha\nbeta\n"));
        assert!(looks_like_text("größe\r\n".as_bytes()));
        assert!(looks_like_text(
            &[b"a\n".repeat(2047), b"a\xc3\xb6".to_vec()].concat()
        ));
        assert!(!looks_like_text(b"one line without an end"));
        assert!(!looks_like_text(b""));
        assert!(!looks_like_text(&7u32.to_le_bytes()));
        assert!(!looks_like_text(b"\xff\xfe\n"));
    }
}
