//! Programs as text, to write and read by hand.
//!
//! ```text
//! ringbell program 1           # the version of this form
//! collective all-reduce
//! ranks 2
//! block 2                      # chunks of a block; 1 when left out
//! order ring                   # ring, other, or none (when left out)
//! rank 0                       # "rank 0 scratch 4" with four slots of NIC memory
//! 0: input[0] -> net 1
//! 1: net 1 + input[1] -> output[1], net 1
//! 2: net 1 -> output[0]
//! rank 1
//! 0: input[1] -> net 0
//! 1: net 0 + input[0] -> output[0], net 0
//! 2: net 0 -> output[1]
//! ```
//!
//! A line `ROUND: OPERANDS -> RESULTS` is a step. Operands are joined by `+` and reduced from left
//! to right, results by `,`. Places are `input`, `output`, `scratch` with a chunk `[3]` or a run
//! `[0..4]`; `net 3` is a message from or to rank 3, `net 3/1` on channel 1; `peer 3 input[0]` is
//! memory of a rank of this host; `stream[2]` are the next two chunks of the kernel's stream. A
//! barrier's messages have an empty side: `0: -> net 1`. `root 2` names the root. How many chunks
//! the buffers have follows from the collective.

mod error;
mod lex;

use std::fmt::Write as _;

use ringbell_nic_abi::Algorithm;

use super::{
    buffer_blocks, collective_named, spelled, Chunks, Operand, Order, Place, Program, Step, Target,
};
use error::VERSION;
pub use error::{TextError, TextProblem};
use lex::Line;

/// Most ranks of a text, and most chunks of a block.
const MOST: u32 = 4096;

/// The header's lines.
#[derive(Default)]
struct Header<'a> {
    kind: Option<ringbell_nic_abi::CollectiveKind>,
    ranks: Option<u32>,
    /// With its place: what it must be is known only with the other lines.
    root: Option<(u32, Line<'a>)>,
    block: u32,
    order: Option<Order>,
}

/// Reads the programs of all ranks. They are as the text says, not checked: see
/// [`UserProgram`](super::UserProgram) for both.
///
/// # Errors
/// The line and column of the error, and what belongs there.
pub fn parse(text: &str) -> Result<Vec<Program>, TextError> {
    let mut lines = text.lines().enumerate().map(|(i, l)| Line::new(i + 1, l));
    let mut lines = lines.by_ref().filter(|l| !l.at_end()).peekable();
    let Some(mut first) = lines.next() else {
        return Err(Line::new(1, "").expected("`ringbell program 1`"));
    };
    first.word("ringbell", "`ringbell program 1`")?;
    first.word("program", "`program 1`")?;
    let at = first.clone();
    let version = first.number(u32::MAX, "the version of the form")?;
    if version != VERSION {
        return Err(at.error(TextProblem::Version { version }));
    }
    first.end()?;
    let mut header = Header {
        block: 1,
        ..Header::default()
    };
    let mut last = first;
    let mut programs: Vec<Program> = Vec::new();
    for mut line in lines {
        last = line.clone();
        if line.starts_with_digit() {
            let Some(program) = programs.last_mut() else {
                return Err(line.expected("a line of the header, or `rank 0`"));
            };
            program.steps.push(step(&mut line)?);
        } else if line.accept("rank") {
            let next = programs.len() as u32;
            programs.push(start(&mut line, &header, next)?);
        } else if programs.is_empty() {
            header_line(&mut line, &mut header)?;
        } else {
            return Err(line.expected("a step (`ROUND: OPERANDS -> RESULTS`) or `rank`"));
        }
        line.end()?;
    }
    let (has, ranks) = (programs.len() as u32, header.ranks);
    match ranks {
        Some(ranks) if ranks == has => Ok(programs),
        Some(ranks) => Err(last.error(TextProblem::Ranks { has, ranks })),
        None => Err(last.error(TextProblem::Missing { line: "ranks N" })),
    }
}

fn header_line<'a>(line: &mut Line<'a>, header: &mut Header<'a>) -> Result<(), TextError> {
    if line.accept("collective") {
        let at = line.clone();
        let name = line.name("the name of a collective")?;
        let kind = collective_named(&name).filter(|k| buffer_blocks(*k, 1, true).is_some());
        header.kind = Some(kind.ok_or_else(|| at.error(TextProblem::Collective { name }))?);
    } else if line.accept("ranks") {
        let at = line.clone();
        let ranks = line.number(MOST, "the number of ranks")?;
        if ranks == 0 {
            return Err(at.error(TextProblem::NoRanks));
        }
        header.ranks = Some(ranks);
    } else if line.accept("root") {
        let at = line.clone();
        header.root = Some((line.number(MOST, "the root's rank")?, at));
    } else if line.accept("block") {
        header.block = line.number(MOST, "the number of chunks of a block")?;
    } else if line.accept("order") {
        header.order = Some(if line.accept("ring") {
            Order::Ring
        } else if line.accept("rank") {
            Order::Rank
        } else if line.accept("other") {
            Order::Other
        } else if line.accept("none") {
            Order::None
        } else {
            return Err(line.expected("`ring`, `rank`, `other` or `none`"));
        });
    } else {
        return Err(line.expected("`collective`, `ranks`, `root`, `block`, `order` or `rank`"));
    }
    Ok(())
}

/// Begins the program of the next rank.
fn start(line: &mut Line, header: &Header, next: u32) -> Result<Program, TextError> {
    let missing = |name| line.error(TextProblem::Missing { line: name });
    let kind = header.kind.ok_or_else(|| missing("collective NAME"))?;
    let ranks = header.ranks.ok_or_else(|| missing("ranks N"))?;
    let root = match &header.root {
        Some((_, at)) if !kind.has_root() => {
            let kind = spelled(kind.name());
            return Err(at.error(TextProblem::NoRoot { kind }));
        }
        Some((root, at)) if *root >= ranks => {
            return Err(at.error(TextProblem::Root { root: *root, ranks }));
        }
        given => given.as_ref().map_or(0, |(root, _)| *root),
    };
    let at = line.clone();
    let rank = line.number(u32::MAX, "a rank")?;
    if rank != next || rank >= ranks {
        return Err(at.error(TextProblem::Ranks { has: next, ranks }));
    }
    let scratch = if line.accept("scratch") {
        line.number(u32::MAX, "the number of slots of NIC memory")?
    } else {
        0
    };
    // In range: both factors are at most MOST.
    let (input, output) = buffer_blocks(kind, ranks, rank == root).unwrap_or((0, 0));
    Ok(Program {
        kind,
        algo: Algorithm::User,
        ranks,
        rank,
        root,
        block_chunks: header.block,
        input_chunks: input * header.block,
        output_chunks: output * header.block,
        scratch_chunks: scratch,
        order: header.order.unwrap_or(Order::None),
        steps: Vec::new(),
    })
}

/// `ROUND: OPERANDS -> RESULTS`
fn step(line: &mut Line) -> Result<Step, TextError> {
    let at = line.clone();
    let round = line.number(u32::MAX - 1, "the round")?;
    line.symbol(":", "`:` after the round")?;
    let mut chunks = 0;
    let mut operands = Vec::new();
    if !line.accept("->") {
        loop {
            operands.push(operand(line, &mut chunks)?);
            if line.accept("->") {
                break;
            }
            line.symbol("+", "`+` and an operand, or `->` and the results")?;
        }
    }
    let mut results = Vec::new();
    while !line.at_end() {
        if !results.is_empty() {
            line.symbol(",", "`,` and another result, or the end of the line")?;
        }
        results.push(target(line, &mut chunks)?);
    }
    if operands.is_empty() && results.is_empty() {
        return Err(at.error(TextProblem::EmptyStep));
    }
    Ok(Step {
        round,
        operands,
        results,
        chunks,
    })
}

/// A place, a message, a peer's place or the stream.
enum Term {
    Local(Place),
    Net(u32, u8),
    Peer(u32, Place),
    Stream,
}

fn operand(line: &mut Line, chunks: &mut u32) -> Result<Operand, TextError> {
    Ok(match term(line, chunks)? {
        Term::Local(place) => Operand::Local(place),
        Term::Net(from, channel) => Operand::Net { from, channel },
        Term::Peer(rank, place) => Operand::Peer { rank, place },
        Term::Stream => Operand::Stream,
    })
}

fn target(line: &mut Line, chunks: &mut u32) -> Result<Target, TextError> {
    Ok(match term(line, chunks)? {
        Term::Local(place) => Target::Local(place),
        Term::Net(to, channel) => Target::Net { to, channel },
        Term::Peer(rank, place) => Target::Peer { rank, place },
        Term::Stream => Target::Stream,
    })
}

/// Reads a term; the first one with a length gives the step its `chunks`.
fn term(line: &mut Line, chunks: &mut u32) -> Result<Term, TextError> {
    if line.accept("net") {
        let rank = line.number(u32::MAX, "a rank")?;
        let channel = if line.accept("/") {
            line.number(u8::MAX.into(), "a channel")? as u8
        } else {
            0
        };
        return Ok(Term::Net(rank, channel));
    }
    if line.accept("stream") {
        line.symbol("[", "`[` and how many chunks of the stream")?;
        let count = line.number(u32::MAX, "how many chunks of the stream")?;
        line.symbol("]", "`]`")?;
        if *chunks == 0 {
            *chunks = count;
        }
        return Ok(Term::Stream);
    }
    let peer = if line.accept("peer") {
        Some(line.number(u32::MAX, "a rank")?)
    } else {
        None
    };
    let place = place(line)?;
    if *chunks == 0 {
        *chunks = place.chunks().count;
    }
    Ok(match peer {
        Some(rank) => Term::Peer(rank, place),
        None => Term::Local(place),
    })
}

fn place(line: &mut Line) -> Result<Place, TextError> {
    let of = if line.accept("input") {
        Place::Input
    } else if line.accept("output") {
        Place::Output
    } else if line.accept("scratch") {
        Place::Scratch
    } else {
        return Err(
            line.expected("`input[..]`, `output[..]`, `scratch[..]`, `net`, `peer` or `stream`")
        );
    };
    line.symbol("[", "`[` and a chunk")?;
    let at = line.clone();
    let first = line.number(u32::MAX - 1, "a chunk")?;
    let mut count = 1;
    if line.accept("..") {
        let end = line.number(u32::MAX, "one past the last chunk")?;
        if end <= first {
            return Err(at.error(TextProblem::EmptyRun { first, end }));
        }
        count = end - first;
    }
    line.symbol("]", "`]`")?;
    Ok(of(Chunks { first, count }))
}

/// Writes the programs of all ranks, as [`parse`] reads them. The name of the algorithm is not
/// written: what was read is a user's.
pub fn format(programs: &[Program]) -> String {
    let mut out = format!("ringbell program {VERSION}\n");
    // Writing to a string cannot fail.
    let _ = write(&mut out, programs);
    out
}

fn write(out: &mut String, programs: &[Program]) -> std::fmt::Result {
    if let Some(p) = programs.first() {
        writeln!(out, "collective {}", spelled(p.kind.name()))?;
        writeln!(out, "ranks {}", p.ranks)?;
        if p.kind.has_root() {
            writeln!(out, "root {}", p.root)?;
        }
        writeln!(out, "block {}", p.block_chunks)?;
        writeln!(out, "order {}", format!("{:?}", p.order).to_lowercase())?;
    }
    for p in programs {
        write!(out, "rank {}", p.rank)?;
        if p.scratch_chunks > 0 {
            write!(out, " scratch {}", p.scratch_chunks)?;
        }
        writeln!(out)?;
        for step in &p.steps {
            writeln!(out, "{}: {}", step.round, step_text(step))?;
        }
    }
    Ok(())
}

/// A step as text, without its round.
pub(super) fn step_text(step: &Step) -> String {
    let operands = step.operands.iter().map(|o| match *o {
        Operand::Local(place) => place_text(place),
        Operand::Net { from, channel } => net_text(from, channel),
        Operand::Peer { rank, place } => format!("peer {rank} {}", place_text(place)),
        Operand::Stream => format!("stream[{}]", step.chunks),
    });
    let results = step.results.iter().map(|t| match *t {
        Target::Local(place) => place_text(place),
        Target::Net { to, channel } => net_text(to, channel),
        Target::Peer { rank, place } => format!("peer {rank} {}", place_text(place)),
        Target::Stream => format!("stream[{}]", step.chunks),
    });
    let (operands, results): (Vec<_>, Vec<_>) = (operands.collect(), results.collect());
    let text = format!("{} -> {}", operands.join(" + "), results.join(", "));
    text.trim().to_owned()
}

fn place_text(place: Place) -> String {
    let name = match place {
        Place::Input(_) => "input",
        Place::Output(_) => "output",
        Place::Scratch(_) => "scratch",
    };
    match place.chunks() {
        Chunks { first, count: 1 } => format!("{name}[{first}]"),
        c => format!("{name}[{}..{}]", c.first, c.end()),
    }
}

fn net_text(rank: u32, channel: u8) -> String {
    match channel {
        0 => format!("net {rank}"),
        _ => format!("net {rank}/{channel}"),
    }
}

#[cfg(test)]
mod tests;
