//! Capture: streams that write what they are given into a graph instead of running it.
//!
//! A capture begins in one stream. Others join it when they wait for an event that was recorded in
//! it, and must be behind the first one again at its end (CUDA C++ Programming Guide, "Cross-stream
//! Dependencies and Events").

use std::collections::BTreeMap;
use std::sync::Mutex;

use crate::nodes;
use crate::operation::Operation;
use crate::{lock, Result, STREAM_CAPTURE_UNSUPPORTED};

/// CUDA_ERROR_ILLEGAL_STATE: as it was without a capture, or within one.
const ILLEGAL_STATE: Result = 401;
const INVALIDATED: Result = 901;
const MERGE: Result = 902;
const UNMATCHED: Result = 903;
const UNJOINED: Result = 904;
const ISOLATION: Result = 905;
/// CUDA_ERROR_CAPTURED_EVENT.
pub(crate) const CAPTURED_EVENT: Result = 907;

/// A capture that has begun.
struct Capture {
    graph: usize,
    origin: usize,
    /// A call that no graph can hold was made.
    invalid: bool,
    /// The last operations of each of its streams.
    tails: BTreeMap<usize, Vec<usize>>,
}

static CAPTURES: Mutex<Vec<Capture>> = Mutex::new(Vec::new());

/// The point of a capture at which an event was recorded.
#[derive(Debug, Clone)]
pub(crate) struct Mark {
    graph: usize,
    after: Vec<usize>,
}

/// What a stream does with what it is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    Runs,
    /// Into this graph.
    Captures(usize),
    Invalid,
}

fn with<R>(stream: usize, f: impl FnOnce(&mut Capture) -> R) -> Option<R> {
    let mut all = lock(&CAPTURES);
    let own = all.iter_mut().find(|c| c.tails.contains_key(&stream));
    own.map(f)
}

pub(crate) fn status(stream: usize) -> Status {
    let of = |c: &mut Capture| match c.invalid {
        true => Status::Invalid,
        false => Status::Captures(c.graph),
    };
    with(stream, of).unwrap_or(Status::Runs)
}

pub(crate) fn is_capturing(stream: usize) -> bool {
    status(stream) != Status::Runs
}

pub(crate) fn begin(stream: usize) -> std::result::Result<(), Result> {
    if is_capturing(stream) {
        return Err(ILLEGAL_STATE);
    }
    let capture = Capture {
        graph: nodes::create(),
        origin: stream,
        invalid: false,
        tails: BTreeMap::from([(stream, Vec::new())]),
    };
    lock(&CAPTURES).push(capture);
    Ok(())
}

/// Takes an operation, if the stream captures.
pub(crate) fn add(stream: usize, operation: &Operation) -> Option<std::result::Result<(), Result>> {
    with(stream, |c| {
        if c.invalid {
            return Err(INVALIDATED);
        }
        let tail = c.tails.entry(stream).or_default();
        let node = nodes::add(c.graph, operation.clone(), tail)?;
        *tail = vec![node];
        Ok(())
    })
}

/// What a call that no graph can hold gets; the capture is spoiled by it.
pub(crate) fn refuse(stream: usize) -> std::result::Result<(), Result> {
    let captures = with(stream, |c| c.invalid = true);
    match captures {
        Some(()) => Err(STREAM_CAPTURE_UNSUPPORTED),
        None => Ok(()),
    }
}

/// The point at which a stream that captures is.
pub(crate) fn mark(stream: usize) -> Option<Mark> {
    with(stream, |c| Mark {
        graph: c.graph,
        after: c.tails.get(&stream).cloned().unwrap_or_default(),
    })
}

/// A stream waits for an event: nothing was recorded by a capture without a mark. Whether the
/// capture has taken it.
pub(crate) fn wait(stream: usize, mark: Option<&Mark>) -> std::result::Result<bool, Result> {
    let mut all = lock(&CAPTURES);
    let own = all.iter().position(|c| c.tails.contains_key(&stream));
    let Some(mark) = mark else {
        // What was queued elsewhere is no part of the graph.
        return match own {
            Some(i) => {
                all[i].invalid = true;
                Err(ISOLATION)
            }
            None => Ok(false),
        };
    };
    let theirs = all.iter().position(|c| c.graph == mark.graph);
    match (own, theirs) {
        (_, None) => Err(CAPTURED_EVENT),
        (Some(i), Some(j)) if i != j => {
            all[i].invalid = true;
            all[j].invalid = true;
            Err(MERGE)
        }
        (_, Some(j)) => {
            let tail = all[j].tails.entry(stream).or_default();
            tail.extend(&mark.after);
            tail.sort_unstable();
            tail.dedup();
            Ok(true)
        }
    }
}

/// Ends the capture that began in a stream: its graph.
pub(crate) fn end(stream: usize) -> std::result::Result<usize, Result> {
    let mut all = lock(&CAPTURES);
    let own = all.iter().position(|c| c.tails.contains_key(&stream));
    let i = own.ok_or(ILLEGAL_STATE)?;
    if all[i].origin != stream {
        all[i].invalid = true;
        return Err(UNMATCHED);
    }
    let ended = all.remove(i);
    drop(all);
    let others: Vec<usize> = ended.tails.values().flatten().copied().collect();
    let loose = nodes::loose(ended.graph, &others, &ended.tails[&stream]);
    let refused = match (ended.invalid, loose.is_empty()) {
        (true, _) => Some(INVALIDATED),
        (false, false) => Some(UNJOINED),
        (false, true) => None,
    };
    match refused {
        Some(code) => {
            nodes::destroy(ended.graph)?;
            Err(code)
        }
        None => Ok(ended.graph),
    }
}

/// A stream is destroyed: so is a capture that it has begun.
pub(crate) fn forget(stream: usize) {
    lock(&CAPTURES).retain(|c| c.origin != stream);
}
