//! What happened when, for Perfetto: operations of NICs, kernels, frames on links, bytes at
//! switches.
//!
//! The file is JSON of Chrome's trace events, in the order of time. Its microseconds are virtual.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::Serialize;

/// Groups of tracks, by their number in the file.
const NICS: u32 = 1;
const LINKS: u32 = 2;
const QUEUES: u32 = 3;
/// Number of the first rank's track; the links' follow the ranks', and further ones of ranks follow
/// those. Perfetto may take equal numbers in two groups for one track, and 0 for an idle processor.
const FIRST: usize = 4;

/// A frame on a link. Times are picoseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Crossing {
    pub(crate) link: usize,
    pub(crate) bytes: usize,
    /// When it was given to the link.
    pub(crate) given: u64,
    /// When its first bit left, and when its last.
    pub(crate) sent: (u64, u64),
}

/// A link as the file shows it.
#[derive(Debug)]
pub(crate) struct LinkTrack {
    pub(crate) name: String,
    /// It begins at a switch, where frames wait for it.
    pub(crate) is_output: bool,
}

#[derive(Debug)]
struct Span {
    rank: usize,
    name: String,
    time: (u64, u64),
}

/// All that was seen.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    crossings: Vec<Crossing>,
    /// Links, times and bytes of lost frames.
    lost: Vec<(usize, u64, usize)>,
    spans: Vec<Span>,
}

#[derive(Serialize)]
struct Entry<'a> {
    name: &'a str,
    ph: &'static str,
    /// Microseconds.
    ts: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    pid: u32,
    tid: usize,
    /// An instant belongs to its track alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<&'static str>,
    args: Args<'a>,
}

#[derive(Default, Serialize)]
struct Args<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
}

fn us(ps: u64) -> f64 {
    ps as f64 / 1e6
}

impl<'a> Entry<'a> {
    /// The name of a group, or of a track of it.
    fn naming(what: &'static str, pid: u32, tid: usize, name: &'a str) -> Entry<'a> {
        let args = Args {
            name: Some(name),
            bytes: None,
        };
        Entry {
            args,
            ..Entry::new(what, "M", 0, pid, tid)
        }
    }

    fn new(name: &'a str, ph: &'static str, at: u64, pid: u32, tid: usize) -> Entry<'a> {
        Entry {
            name,
            ph,
            ts: us(at),
            dur: None,
            pid,
            tid,
            s: None,
            args: Args::default(),
        }
    }

    fn lasting(self, time: (u64, u64)) -> Entry<'a> {
        let dur = Some(us(time.1 - time.0));
        Entry { dur, ..self }
    }

    fn of_bytes(mut self, bytes: u64) -> Entry<'a> {
        self.args.bytes = Some(bytes);
        self
    }
}

impl Timeline {
    pub(crate) fn crossed(&mut self, crossing: Crossing) {
        self.crossings.push(crossing);
    }

    pub(crate) fn lost(&mut self, link: usize, at: u64, bytes: usize) {
        self.lost.push((link, at, bytes));
    }

    pub(crate) fn operation(&mut self, rank: usize, name: String, time: (u64, u64)) {
        self.spans.push(Span { rank, name, time });
    }

    /// Writes the file.
    pub(crate) fn write(
        &self,
        ranks: usize,
        links: &[LinkTrack],
        file: impl Write,
    ) -> io::Result<()> {
        let names: Vec<_> = (0..ranks).map(|rank| format!("rank {rank}")).collect();
        let first_link = FIRST + ranks;
        let mut entries = Vec::new();
        for (pid, group) in [(NICS, "NICs"), (LINKS, "links"), (QUEUES, "waiting")] {
            entries.push(Entry::naming("process_name", pid, 0, group));
        }
        let nics = names.iter().enumerate().map(|(i, n)| (NICS, FIRST + i, n));
        let wires = links
            .iter()
            .enumerate()
            .map(|(i, l)| (LINKS, first_link + i, &l.name));
        for (pid, i, name) in nics.chain(wires) {
            entries.push(Entry::naming("thread_name", pid, i, name));
        }
        let lanes = Lanes::of(&self.spans);
        let further: Vec<_> = lanes
            .further
            .iter()
            .map(|(r, n)| format!("rank {r}, {n}"))
            .collect();
        let first_further = first_link + links.len();
        for (i, name) in further.iter().enumerate() {
            entries.push(Entry::naming("thread_name", NICS, first_further + i, name));
        }
        let named = entries.len();
        for (span, lane) in self.spans.iter().zip(&lanes.of) {
            let track = lane.map_or(FIRST + span.rank, |i| first_further + i);
            let entry = Entry::new(&span.name, "X", span.time.0, NICS, track);
            entries.push(entry.lasting(span.time));
        }
        for c in &self.crossings {
            let entry = Entry::new("frame", "X", c.sent.0, LINKS, first_link + c.link);
            entries.push(entry.lasting(c.sent).of_bytes(c.bytes as u64));
        }
        for &(link, at, bytes) in &self.lost {
            let entry =
                Entry::new("lost", "i", at, LINKS, first_link + link).of_bytes(bytes as u64);
            let s = Some("t");
            entries.push(Entry { s, ..entry });
        }
        let mut waiting = self.waiting(links);
        entries.append(&mut waiting);
        entries[named..].sort_by(|a, b| a.ts.total_cmp(&b.ts));
        let trace = Trace {
            unit: "ns",
            entries,
        };
        let mut file = io::BufWriter::new(file);
        serde_json::to_writer(&mut file, &trace)?;
        file.write_all(b"\n")?;
        file.flush()
    }

    /// Bytes that wait at each output, whenever they change.
    fn waiting<'a>(&self, links: &'a [LinkTrack]) -> Vec<Entry<'a>> {
        let outputs = self.crossings.iter().filter(|c| links[c.link].is_output);
        // A frame that does not wait is not counted.
        let waited = outputs.filter(|c| c.given < c.sent.0);
        let mut changes: Vec<_> = waited
            .flat_map(|c| {
                let bytes = c.bytes as i64;
                [(c.given, c.link, bytes), (c.sent.0, c.link, -bytes)]
            })
            .collect();
        changes.sort_unstable();
        let mut now = vec![0; links.len()];
        let counted = changes.into_iter().map(|(at, link, bytes)| {
            now[link] += bytes;
            // Perfetto makes a track for each name.
            let entry = Entry::new(&links[link].name, "C", at, QUEUES, 0);
            entry.of_bytes(now[link] as u64)
        });
        counted.collect()
    }
}

/// Tracks of operations: one track has no two at a time.
#[derive(Debug, Default, PartialEq)]
struct Lanes {
    /// By operation: its place in `further`, unless it is on its rank's own track.
    of: Vec<Option<usize>>,
    /// Ranks of further tracks, and the number of each among its rank's.
    further: Vec<(usize, usize)>,
}

impl Lanes {
    fn of(spans: &[Span]) -> Lanes {
        let mut order: Vec<usize> = (0..spans.len()).collect();
        // A kernel before the operations that it posts at once.
        order.sort_by_key(|i| (spans[*i].time.0, Reverse(spans[*i].time.1)));
        let mut lanes = Lanes {
            of: vec![None; spans.len()],
            further: Vec::new(),
        };
        // By rank: the tracks, and when each is free.
        let mut all: BTreeMap<usize, Vec<(Option<usize>, u64)>> = BTreeMap::new();
        for i in order {
            let Span { rank, time, .. } = spans[i];
            let tracks = all.entry(rank).or_insert_with(|| vec![(None, 0)]);
            let free = tracks.iter().position(|t| t.1 <= time.0);
            let free = free.unwrap_or_else(|| {
                tracks.push((Some(lanes.further.len()), 0));
                lanes.further.push((rank, tracks.len()));
                tracks.len() - 1
            });
            tracks[free].1 = time.1;
            lanes.of[i] = tracks[free].0;
        }
        lanes
    }
}

/// The file.
#[derive(Serialize)]
struct Trace<'a> {
    /// What its reader shows.
    #[serde(rename = "displayTimeUnit")]
    unit: &'static str,
    #[serde(rename = "traceEvents")]
    entries: Vec<Entry<'a>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_at_one_time_have_tracks_of_their_own() {
        let span = |rank, begin, end| Span {
            rank,
            name: String::new(),
            time: (begin, end),
        };
        let spans = [
            span(1, 5, 9),
            span(1, 0, 6),
            span(0, 0, 7),
            span(1, 9, 10),
            span(1, 6, 9),
            span(2, 3, 4),
            span(2, 3, 5),
        ];
        let lanes = Lanes::of(&spans);
        let further = [Some(1), None, None, None, None, Some(0), None];
        assert_eq!(lanes.of, further);
        assert_eq!(lanes.further, [(2, 2), (1, 2)]);
    }
}
