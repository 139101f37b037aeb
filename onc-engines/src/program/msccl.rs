//! Programs as an algorithm file of MSCCL, the XML of its tools (`msccl/language/ir.py`) that its
//! runtime and simulators read.
//!
//! A rank is a `gpu`. Each of its channels to a peer, and from a peer, is a thread block (`tb`),
//! whose steps run in order, and copies and local reductions are another. A step waits for one of
//! another thread block (`depid`, `deps`); where it needs several, `nop` steps wait for the others.
//! Buffers are counted in chunks: `i`, `o` and `s` are input, output and scratch.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use ringbell_nic_abi::CollectiveKind;

use super::{spelled, Operand, Place, Program, Step, Target};

/// Why programs are no algorithm of MSCCL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MscclError {
    /// Its algorithms are of other collectives.
    #[error("{} is no collective of MSCCL", spelled(kind.name()))]
    Kind {
        /// The collective.
        kind: CollectiveKind,
    },
    /// A step of `DIRECT` programs, or one that kernels push into.
    #[error("rank {rank}, step {step}: MSCCL has no operation that {what}")]
    Step {
        /// The rank.
        rank: u32,
        /// The step, by its place.
        step: usize,
        /// What it does.
        what: &'static str,
    },
}

/// A thread block: what it sends to, or receives from, by peer and channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Lane {
    Send(u32, u8),
    Receive(u32, u8),
    Local,
}

/// The first chunk of a buffer.
type At = (char, u32);

/// A step of a thread block.
#[derive(Debug)]
struct Op {
    kind: &'static str,
    lane: Lane,
    from: At,
    to: At,
    chunks: u32,
    /// Operations of other thread blocks for which it waits.
    waits: Vec<usize>,
}

/// The operations of a rank, and which of them touch its chunks.
#[derive(Debug, Default)]
struct Rank {
    ops: Vec<Op>,
    written: BTreeMap<At, usize>,
    read: BTreeMap<At, Vec<usize>>,
}

fn at(place: Place) -> At {
    match place {
        Place::Input(c) => ('i', c.first),
        Place::Output(c) => ('o', c.first),
        Place::Scratch(c) => ('s', c.first),
    }
}

impl Rank {
    /// Adds an operation, which waits for what touched its chunks before.
    fn add(
        &mut self,
        kind: &'static str,
        lane: Lane,
        from: Option<At>,
        to: Option<At>,
        chunks: u32,
    ) {
        let this = self.ops.len();
        let all = |at: Option<At>| {
            at.into_iter()
                .flat_map(move |(b, c)| (c..c + chunks).map(move |c| (b, c)))
        };
        let mut waits = Vec::new();
        for chunk in all(from) {
            waits.extend(self.written.get(&chunk));
            self.read.entry(chunk).or_default().push(this);
        }
        for chunk in all(to) {
            waits.extend(self.written.insert(chunk, this));
            waits.extend(self.read.remove(&chunk).into_iter().flatten());
        }
        // The last of each other thread block: those before it have ended then.
        let mut last: BTreeMap<Lane, usize> = BTreeMap::new();
        for op in waits {
            let of = self.ops.get(op).map(|o| o.lane);
            if let Some(other) = of.filter(|l| *l != lane) {
                let seen = last.entry(other).or_insert(op);
                *seen = op.max(*seen);
            }
        }
        // What only sends has a place there, and what only receives one here.
        let places = from.or(to).zip(to.or(from));
        if let Some((from, to)) = places {
            self.ops.push(Op {
                kind,
                lane,
                from,
                to,
                chunks,
                waits: last.into_values().collect(),
            });
        }
    }

    /// Adds a step's operations. Returns what MSCCL does not have.
    fn step(&mut self, step: &Step) -> Result<(), &'static str> {
        let n = step.chunks;
        let mut into = None;
        let mut sends = Vec::new();
        for result in &step.results {
            match *result {
                Target::Local(place) if into.is_none() => into = Some(at(place)),
                Target::Local(_) => return Err("writes to two places"),
                Target::Net { to, channel } => sends.push(Lane::Send(to, channel)),
                Target::Peer { .. } => return Err("writes to a peer's memory"),
                Target::Stream => return Err("gives a kernel what it pops"),
            }
        }
        let mut local = Vec::new();
        let mut received = Vec::new();
        for operand in &step.operands {
            match *operand {
                Operand::Local(place) => local.push(at(place)),
                Operand::Net { from, channel } => received.push(Lane::Receive(from, channel)),
                Operand::Peer { .. } => return Err("reads a peer's memory"),
                Operand::Stream => return Err("takes what a kernel pushes"),
            }
        }
        let home = match (into, &local[..], &received[..]) {
            (None, [only], []) => *only,
            (None, ..) => return Err("sends what has no place"),
            (Some(into), [only], []) => {
                self.add("cpy", Lane::Local, Some(*only), Some(into), n);
                into
            }
            (Some(into), locals, lanes) => {
                self.combine(into, locals, lanes, n);
                into
            }
        };
        for lane in sends {
            self.add("s", lane, Some(home), None, n);
        }
        Ok(())
    }

    /// Operations whose results are the sum of what is here and what is received.
    fn combine(&mut self, into: At, local: &[At], received: &[Lane], n: u32) {
        // What is there already needs no copy.
        let mut rest: Vec<At> = local.to_vec();
        let mut has = rest
            .iter()
            .position(|p| *p == into)
            .map(|i| rest.swap_remove(i));
        for &lane in received {
            match has.or_else(|| rest.pop()) {
                Some(from) => self.add("rrc", lane, Some(from), Some(into), n),
                None => self.add("r", lane, None, Some(into), n),
            }
            has = Some(into);
        }
        for from in rest {
            let kind = if has.is_some() { "re" } else { "cpy" };
            self.add(kind, Lane::Local, Some(from), Some(into), n);
            has = Some(into);
        }
    }

    /// Its thread blocks as XML.
    fn write(&self, out: &mut String) {
        let mut lanes: BTreeMap<Lane, Vec<usize>> = BTreeMap::new();
        for (i, op) in self.ops.iter().enumerate() {
            lanes.entry(op.lane).or_default().push(i);
        }
        // By operation: its thread block and its step there, behind its `nop`s.
        let mut places = vec![(0, 0); self.ops.len()];
        let mut is_awaited = vec![false; self.ops.len()];
        for (block, ops) in lanes.values().enumerate() {
            let mut step = 0;
            for &i in ops {
                step += self.ops[i].waits.len().saturating_sub(1);
                places[i] = (block, step);
                step += 1;
                for &other in &self.ops[i].waits {
                    is_awaited[other] = true;
                }
            }
        }
        for (block, (lane, ops)) in lanes.iter().enumerate() {
            let (send, receive, channel) = match *lane {
                Lane::Send(peer, channel) => (i64::from(peer), -1, channel),
                Lane::Receive(peer, channel) => (-1, i64::from(peer), channel),
                Lane::Local => (-1, -1, 0),
            };
            let _ = writeln!(
                out,
                "    <tb id=\"{block}\" send=\"{send}\" recv=\"{receive}\" chan=\"{channel}\">"
            );
            for &i in ops {
                let op = &self.ops[i];
                let (first, others) = match op.waits.split_first() {
                    Some((first, others)) => (Some(first), others),
                    None => (None, &[][..]),
                };
                let step = places[i].1;
                for (other, s) in others.iter().zip(step - others.len()..) {
                    let (depid, deps) = places[*other];
                    let _ = writeln!(
                        out,
                        "      <step s=\"{s}\" type=\"nop\" srcbuf=\"i\" srcoff=\"-1\" dstbuf=\"o\" \
                         dstoff=\"-1\" cnt=\"0\" depid=\"{depid}\" deps=\"{deps}\" hasdep=\"0\"/>"
                    );
                }
                let (depid, deps) = match first {
                    Some(op) => (places[*op].0 as i64, places[*op].1 as i64),
                    None => (-1, -1),
                };
                let ((srcbuf, srcoff), (dstbuf, dstoff)) = (op.from, op.to);
                let _ = writeln!(
                    out,
                    "      <step s=\"{step}\" type=\"{}\" srcbuf=\"{srcbuf}\" srcoff=\"{srcoff}\" \
                     dstbuf=\"{dstbuf}\" dstoff=\"{dstoff}\" cnt=\"{}\" depid=\"{depid}\" \
                     deps=\"{deps}\" hasdep=\"{}\"/>",
                    op.kind,
                    op.chunks,
                    u8::from(is_awaited[i])
                );
            }
            out.push_str("    </tb>\n");
        }
    }
}

/// The programs of all ranks as an algorithm file.
///
/// # Errors
/// [`MscclError`]
pub fn msccl(programs: &[Program]) -> Result<String, MscclError> {
    use CollectiveKind as K;
    let Some(first) = programs.first() else {
        return Ok(String::new());
    };
    let coll = match first.kind {
        K::AllReduce => "allreduce",
        K::AllGather => "allgather",
        K::ReduceScatter => "reduce_scatter",
        K::AllToAll => "alltoall",
        K::Broadcast => "broadcast",
        K::Reduce => "reduce",
        K::Gather | K::Scatter => "custom",
        kind => return Err(MscclError::Kind { kind }),
    };
    let mut gpus = String::new();
    let (mut channels, mut most) = (1, 1);
    for program in programs {
        let mut rank = Rank::default();
        for (number, step) in program.steps.iter().enumerate() {
            rank.step(step).map_err(|what| MscclError::Step {
                rank: program.rank,
                step: number,
                what,
            })?;
        }
        let of = rank.ops.iter().map(|op| match op.lane {
            Lane::Send(_, channel) | Lane::Receive(_, channel) => u32::from(channel) + 1,
            Lane::Local => 1,
        });
        channels = of.max().unwrap_or(1).max(channels);
        most = most.max(program.input_chunks).max(program.output_chunks);
        let _ = writeln!(
            gpus,
            "  <gpu id=\"{}\" i_chunks=\"{}\" o_chunks=\"{}\" s_chunks=\"{}\">",
            program.rank, program.input_chunks, program.output_chunks, program.scratch_chunks
        );
        rank.write(&mut gpus);
        gpus.push_str("  </gpu>\n");
    }
    Ok(format!(
        "<algo name=\"ringbell-{}\" proto=\"Simple\" nchannels=\"{channels}\" nchunksperloop=\"{most}\" \
         ngpus=\"{}\" coll=\"{coll}\" inplace=\"0\" outofplace=\"1\">\n{gpus}</algo>\n",
        spelled(first.algo.name()),
        programs.len()
    ))
}

#[cfg(test)]
mod tests;
