//! Connection matrices of htsim (`.cm` files) as schedules.
//!
//! Each connection is a message: a send of its source and a receive of its destination, with a tag
//! of its own. The grammar is that of htsim's `ConnectionMatrix::load`. A start waits for a
//! calculation of that length, in nanoseconds for htsim's picoseconds. A trigger lets a connection
//! wait for others; htsim's triggers take no time and know no places, a NIC knows what happens at
//! its host alone. So the source of what is triggered must be an end of what triggers it: it waits
//! for its own receive, or for its own send.

use std::collections::BTreeMap;

use super::super::FileError;
use super::needs::{circle, Need};
use super::schedule::{Op, Schedule, Work};

/// Most hosts and connections of a file.
const HOSTS: u64 = 1 << 20;
const CONNECTIONS: u64 = 1 << 22;
/// The processor on which starts are waited for: an operation begins when its processor is free,
/// and a connection that is triggered must not wait for the start of another.
const CLOCK: u8 = 1;
/// That of the operations that join what a trigger waits for: a barrier of many connections that
/// triggers many would have as many dependencies as pairs else.
const JOINT: u8 = 2;
/// Bytes of a connection are below this.
const BYTES: u64 = 1 << 48;

/// Words of a connection that it takes, for messages.
const WORDS: &str = "`id`, `start`, `size`, `trigger`, `send_done_trigger` or `recv_done_trigger`";

/// A word, and the byte where it begins.
#[derive(Debug, Clone, Copy)]
struct Word<'t> {
    text: &'t str,
    at: usize,
}

/// The end of an operation, as what another waits for.
fn after(op: u32) -> Need {
    Need { op, begin: false }
}

/// Words of a line.
type Words<'t> = std::vec::IntoIter<Word<'t>>;

#[derive(Debug)]
struct Connection {
    line: u32,
    at: usize,
    ends: [u32; 2],
    id: Option<u64>,
    start_ns: u64,
    bytes: u64,
    /// The trigger that it waits for.
    trigger: Option<u64>,
    /// Triggers that its end activates.
    activates: Vec<u64>,
}

#[derive(Debug)]
struct Trigger {
    line: u32,
    /// Activations that it needs.
    count: u64,
}

/// Whether a text is such a file: its first word is one of its head.
pub(super) fn is_connections(text: &str) -> bool {
    let lines = text.lines().map(str::trim_start);
    let first = lines
        .filter(|l| !l.is_empty() && !l.starts_with('#'))
        .find_map(|l| l.split_whitespace().next());
    matches!(
        first,
        Some("Nodes" | "Connections" | "Triggers" | "Failures")
    )
}

/// Reads a file; `name` is what errors call it.
///
/// # Errors
/// [`FileError`]: what is wrong, and what was expected.
pub(super) fn parse(name: &str, text: &str) -> Result<Schedule, FileError> {
    let mut reader = Reader {
        name,
        text,
        hosts: None,
        counted: [None; 2],
        connections: Vec::new(),
        triggers: BTreeMap::new(),
    };
    let mut at = 0;
    for (line, number) in text.split_inclusive('\n').zip(1..) {
        let begin = at;
        at += line.len();
        if !line.trim_start().starts_with('#') {
            let words = line.split_whitespace().map(|w| Word {
                text: w,
                at: begin + (w.as_ptr() as usize - line.as_ptr() as usize),
            });
            let words: Vec<_> = words.collect();
            reader.line(number, words.into_iter())?;
        }
    }
    reader.schedule()
}

struct Reader<'t> {
    name: &'t str,
    text: &'t str,
    hosts: Option<u32>,
    /// How many connections and triggers the head promises, and where.
    counted: [Option<(u64, usize)>; 2],
    connections: Vec<Connection>,
    triggers: BTreeMap<u64, Trigger>,
}

impl<'t> Reader<'t> {
    fn error<T>(&self, at: usize, what: String) -> Result<T, FileError> {
        Err(FileError::at(self.name, self.text, at, what))
    }

    /// The number behind a word, from `least` to `most`.
    fn number(
        &self,
        of: Word<'t>,
        value: Option<Word<'t>>,
        (least, most): (u64, u64),
    ) -> Result<u64, FileError> {
        let at = value.map_or(of.at, |v| v.at);
        let number = value.and_then(|v| v.text.parse::<u64>().ok());
        match number.filter(|n| (least..=most).contains(n)) {
            Some(number) => Ok(number),
            None => {
                let found = value.map_or("nothing", |v| v.text);
                let what = format!(
                    "`{found}` behind `{}`, expected a whole number from {least} to {most}",
                    of.text
                );
                self.error(at, what)
            }
        }
    }

    fn line(&mut self, line: u32, mut words: Words<'t>) -> Result<(), FileError> {
        let Some(first) = words.next() else {
            return Ok(());
        };
        match first.text {
            "Nodes" => {
                let hosts = self.number(first, words.next(), (2, HOSTS))?;
                if self.hosts.replace(hosts as u32).is_some() {
                    return self.error(first.at, "`Nodes` is there twice".into());
                }
            }
            "Connections" => {
                let count = self.number(first, words.next(), (1, CONNECTIONS))?;
                self.counted[0] = Some((count, first.at));
            }
            "Triggers" => {
                let count = self.number(first, words.next(), (0, CONNECTIONS))?;
                self.counted[1] = Some((count, first.at));
            }
            "Failures" if self.number(first, words.next(), (0, CONNECTIONS))? == 0 => {}
            "Failures" | "failure" => {
                let what = "failures of switches are not simulated; --cut cuts a wire";
                return self.error(first.at, what.into());
            }
            "trigger" => self.trigger(line, first, &mut words)?,
            text if text.contains("->") => self.connection(line, first, &mut words)?,
            text => {
                let what = format!("`{text}`, expected a connection (`0->1 ...`) or `trigger`");
                return self.error(first.at, what);
            }
        }
        match words.next() {
            None => Ok(()),
            Some(word) => self.error(
                word.at,
                format!("`{}`, expected the end of the line", word.text),
            ),
        }
    }

    fn trigger(
        &mut self,
        line: u32,
        first: Word<'t>,
        words: &mut Words<'t>,
    ) -> Result<(), FileError> {
        let (mut id, mut count, mut is_barrier) = (None, None, None);
        while let Some(word) = words.next() {
            match word.text {
                "id" => id = Some(self.number(word, words.next(), (1, u64::MAX))?),
                "count" => count = Some(self.number(word, words.next(), (1, CONNECTIONS))?),
                "oneshot" => is_barrier = Some(false),
                "barrier" => is_barrier = Some(true),
                "multishot" => {
                    let what = "`multishot`: which connection comes next depends on the run; \
                        `oneshot` and `barrier` are taken";
                    return self.error(word.at, what.into());
                }
                text => {
                    let what = format!("`{text}`, expected `id`, `oneshot`, `barrier` or `count`");
                    return self.error(word.at, what);
                }
            }
        }
        let (Some(id), Some(is_barrier)) = (id, is_barrier) else {
            let what = "a trigger has an `id`, and is `oneshot` or `barrier`";
            return self.error(first.at, what.into());
        };
        let count = match (is_barrier, count) {
            (false, None | Some(1)) => 1,
            (true, Some(count)) => count,
            _ => return self.error(first.at, "a `barrier` has a `count`, and no other".into()),
        };
        match self.triggers.insert(id, Trigger { line, count }) {
            None => Ok(()),
            Some(before) => {
                let what = format!("trigger {id} is in line {} already", before.line);
                self.error(first.at, what)
            }
        }
    }

    fn connection(
        &mut self,
        line: u32,
        first: Word<'t>,
        words: &mut Words<'t>,
    ) -> Result<(), FileError> {
        let hosts = u64::from(self.hosts.unwrap_or(0));
        let ends = first.text.split_once("->").and_then(|(from, to)| {
            let end = |text: &str| text.parse::<u32>().ok().filter(|n| u64::from(*n) < hosts);
            Some([end(from)?, end(to)?]).filter(|[a, b]| a != b)
        });
        let Some(ends) = ends else {
            let what = format!(
                "`{}`, expected SOURCE->DESTINATION, two of the {hosts} nodes that `Nodes` counts",
                first.text
            );
            return self.error(first.at, what);
        };
        let mut c = Connection {
            line,
            at: first.at,
            ends,
            id: None,
            start_ns: 0,
            bytes: 0,
            trigger: None,
            activates: Vec::new(),
        };
        let mut has_start = false;
        while let Some(word) = words.next() {
            let any = (1, u64::MAX);
            match word.text {
                "id" => c.id = Some(self.number(word, words.next(), any)?),
                "size" => c.bytes = self.number(word, words.next(), (1, BYTES - 1))?,
                "start" => {
                    c.start_ns = self.start(word, words.next())?;
                    has_start = true;
                }
                "trigger" => c.trigger = Some(self.number(word, words.next(), any)?),
                "send_done_trigger" | "recv_done_trigger" => {
                    let id = self.number(word, words.next(), any)?;
                    c.activates.push(id);
                }
                "prio" | "addon" => {
                    let what = format!("`{}`: NICs have one priority", word.text);
                    return self.error(word.at, what);
                }
                text => return self.error(word.at, format!("`{text}`, expected {WORDS}")),
            }
        }
        if c.bytes == 0 {
            let what = "this connection has no `size`, and connections without end are not taken";
            return self.error(first.at, what.into());
        }
        if has_start == c.trigger.is_some() {
            let what = "a connection has either a `start` or a `trigger`";
            return self.error(first.at, what.into());
        }
        if self.connections.len() as u64 == CONNECTIONS {
            return self.error(first.at, format!("more than {CONNECTIONS} connections"));
        }
        self.connections.push(c);
        Ok(())
    }

    /// A start in picoseconds, which may have a fraction, as nanoseconds.
    fn start(&self, of: Word<'t>, value: Option<Word<'t>>) -> Result<u64, FileError> {
        let most = BYTES as f64;
        let ps = value.and_then(|v| v.text.parse::<f64>().ok());
        match ps.filter(|ps| (0.0..most * 1e3).contains(ps)) {
            Some(ps) => Ok((ps / 1e3).round() as u64),
            None => {
                let at = value.map_or(of.at, |v| v.at);
                self.error(at, "expected picoseconds behind `start`".into())
            }
        }
    }

    /// The connections as a schedule, when all is read.
    fn schedule(self) -> Result<Schedule, FileError> {
        let Some(hosts) = self.hosts else {
            return self.error(0, "`Nodes` is missing".into());
        };
        let there = [self.connections.len(), self.triggers.len()];
        for ((counted, there), what) in
            (self.counted.into_iter().zip(there)).zip(["connections", "triggers"])
        {
            if let Some((counted, at)) = counted.filter(|(n, _)| *n != there as u64) {
                let what = format!("{counted} {what} are promised, and {there} are there");
                return self.error(at, what);
            }
        }
        let mut ranks: Vec<Vec<Op>> = (0..hosts).map(|_| Vec::new()).collect();
        // By connection: its send and its receive, by their places.
        let mut placed = Vec::with_capacity(self.connections.len());
        for (c, tag) in self.connections.iter().zip(0..) {
            let op = |work| Op {
                label: c.id.map(|id| id.to_string().into()),
                line: c.line,
                work,
                cpu: 0,
                needs: Vec::new(),
            };
            let ([from, to], bytes) = (c.ends, c.bytes);
            let send = Work::Send { to, bytes, tag };
            let receive = Work::Recv {
                from: Some(from),
                bytes,
                tag: Some(tag),
            };
            let mut place = |rank: u32, work| {
                let ops = &mut ranks[rank as usize];
                ops.push(op(work));
                ops.len() as u32 - 1
            };
            placed.push([place(from, send), place(to, receive)]);
        }
        self.starts(&mut ranks, &placed);
        self.triggers(&mut ranks, &placed)?;
        for ops in &ranks {
            if let Some(all) = circle(ops.len(), |i| &ops[i].needs) {
                let lines: Vec<_> = all
                    .iter()
                    .map(|i| ops[*i as usize].line.to_string())
                    .collect();
                let what = format!("triggers in a circle: lines {}", lines.join(", "));
                return self.error(0, what);
            }
        }
        Ok(Schedule::of(ranks))
    }

    /// Lets sends wait for their start: a calculation from one start of a host to the next.
    fn starts(&self, ranks: &mut [Vec<Op>], placed: &[[u32; 2]]) {
        let mut by_host: BTreeMap<u32, BTreeMap<u64, Vec<u32>>> = BTreeMap::new();
        let late = self.connections.iter().zip(placed);
        for (c, [send, _]) in late.filter(|(c, _)| c.start_ns > 0) {
            let of = by_host.entry(c.ends[0]).or_default();
            of.entry(c.start_ns).or_default().push(*send);
        }
        for (host, starts) in by_host {
            let ops = &mut ranks[host as usize];
            let mut before: Option<(u64, u32)> = None;
            for (at, sends) in starts {
                let since = before.map_or(0, |(at, _)| at);
                let this = ops.len() as u32;
                ops.push(Op {
                    label: None,
                    line: 0,
                    work: Work::Calc { ns: at - since },
                    cpu: CLOCK,
                    needs: before.map(|(_, op)| after(op)).into_iter().collect(),
                });
                for send in sends {
                    ops[send as usize].needs.push(after(this));
                }
                before = Some((at, this));
            }
        }
    }

    /// Lets what is triggered wait for what triggers it.
    fn triggers(&self, ranks: &mut [Vec<Op>], placed: &[[u32; 2]]) -> Result<(), FileError> {
        let mut activators: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        for (i, c) in self.connections.iter().enumerate() {
            for id in &c.activates {
                if !self.triggers.contains_key(id) {
                    return self.error(c.at, format!("trigger {id} is not there"));
                }
                activators.entry(*id).or_default().push(i);
            }
        }
        // By trigger and host: what its connections there wait for.
        let mut joined: BTreeMap<(u64, u32), u32> = BTreeMap::new();
        for (c, [send, _]) in self.connections.iter().zip(placed) {
            let Some(id) = c.trigger else { continue };
            let source = c.ends[0];
            if let Some(&op) = joined.get(&(id, source)) {
                ranks[source as usize][*send as usize].needs.push(after(op));
                continue;
            }
            let Some(trigger) = self.triggers.get(&id) else {
                return self.error(c.at, format!("trigger {id} is not there"));
            };
            let all = activators.get(&id).map_or(&[][..], Vec::as_slice);
            if all.len() as u64 != trigger.count {
                let what = format!(
                    "trigger {id} of line {} needs {} activations, and {} connections activate it",
                    trigger.line,
                    trigger.count,
                    all.len()
                );
                return self.error(c.at, what);
            }
            let mut needs = Vec::with_capacity(all.len());
            for other in all {
                let by = &self.connections[*other];
                let end = [1, 0].into_iter().find(|end| by.ends[*end] == source);
                let Some(end) = end else {
                    let what = format!(
                        "it begins at node {source}, and trigger {id} is activated by line {} at nodes {} and {}: \
                         a NIC knows of that by a message alone",
                        by.line, by.ends[0], by.ends[1]
                    );
                    return self.error(c.at, what);
                };
                needs.push(after(placed[*other][end]));
            }
            let ops = &mut ranks[source as usize];
            let op = ops.len() as u32;
            ops.push(Op {
                label: None,
                line: trigger.line,
                work: Work::Calc { ns: 0 },
                cpu: JOINT,
                needs,
            });
            ops[*send as usize].needs.push(after(op));
            joined.insert((id, source), op);
        }
        Ok(())
    }
}
