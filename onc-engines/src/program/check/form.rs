//! Checks of each program and of each step by itself.

use ringbell_nic_abi::CollectiveKind as K;

use super::error::{CheckError, Extent, Problem, Where};
use super::limits::Limits;
use crate::program::{buffer_blocks, Chunks, Operand, Order, Place, Program, Step, Target};

/// Checks all that needs no execution.
pub(super) fn check(programs: &[Program], limits: &Limits) -> Result<(), CheckError> {
    let Some(zero) = programs.first() else {
        let problem = Problem::Programs {
            programs: 0,
            ranks: 0,
        };
        return Err(CheckError::new(0, None, problem));
    };
    let direct = programs.iter().any(Program::is_direct);
    if direct && !limits.peers {
        let rank = programs.iter().position(Program::is_direct).unwrap_or(0);
        let problem = Problem::Unsupported {
            what: "memory of peers",
        };
        return Err(CheckError::new(rank as u32, None, problem));
    }
    for (rank, program) in (0..).zip(programs) {
        header(program, rank, programs.len(), zero, limits)
            .map_err(|problem| CheckError::new(rank, None, problem))?;
        steps(program, direct, limits)?;
    }
    Ok(())
}

/// Checks a program without those of other ranks.
pub(super) fn check_one(p: &Program, limits: &Limits) -> Result<(), CheckError> {
    header(p, p.rank, p.ranks as usize, p, limits)
        .map_err(|problem| CheckError::new(p.rank, None, problem))?;
    steps(p, p.is_direct(), limits)
}

/// Checks the steps of a program.
fn steps(program: &Program, direct: bool, limits: &Limits) -> Result<(), CheckError> {
    let form = Form {
        program,
        limits,
        direct,
    };
    let (mut popped, mut pushed) = (0, 0);
    for (index, step) in program.steps.iter().enumerate() {
        form.step(step, &mut popped, &mut pushed)
            .map_err(|problem| CheckError::new(program.rank, index, problem))?;
    }
    Ok(())
}

/// One more than the highest slot of NIC memory that it uses.
pub(super) fn scratch_used(program: &Program) -> u32 {
    let end = |place: Place| match place {
        Place::Scratch(c) => c.end(),
        _ => 0,
    };
    let of = |s: &Step| places(s).map(|w| end(w.place)).max().unwrap_or(0);
    program.steps.iter().map(of).max().unwrap_or(0)
}

/// How long the value of each step is.
pub(super) fn extents(program: &Program) -> Vec<Extent> {
    let (mut popped, mut pushed) = (0, 0);
    let mut extent = |step: &Step| {
        let mut first = places(step).next().map(|w| w.place.chunks().first);
        if step.operands.contains(&Operand::Stream) {
            first = first.or(Some(popped));
            popped += step.chunks;
        }
        if step.results.contains(&Target::Stream) {
            first = first.or(Some(pushed));
            pushed += step.chunks;
        }
        Extent {
            first: first.map(|f| f % program.block_chunks),
            chunks: step.chunks,
        }
    };
    program.steps.iter().map(&mut extent).collect()
}

/// The places that a step names.
fn places(step: &Step) -> impl Iterator<Item = Where> + '_ {
    let operands = step.operands.iter().filter_map(|o| match *o {
        Operand::Local(place) => Some(place.into()),
        Operand::Peer { rank, place } => Some(Where {
            of: Some(rank),
            place,
        }),
        _ => None,
    });
    let results = step.results.iter().filter_map(|t| match *t {
        Target::Local(place) => Some(place.into()),
        Target::Peer { rank, place } => Some(Where {
            of: Some(rank),
            place,
        }),
        _ => None,
    });
    operands.chain(results)
}

fn limit(what: &'static str, has: u64, limit: u64) -> Result<(), Problem> {
    if has > limit {
        return Err(Problem::Limit { what, has, limit });
    }
    Ok(())
}

/// The fields beside the steps.
fn header(
    p: &Program,
    rank: u32,
    programs: usize,
    zero: &Program,
    limits: &Limits,
) -> Result<(), Problem> {
    if p.ranks as usize != programs {
        return Err(Problem::Programs {
            programs,
            ranks: p.ranks,
        });
    }
    let disagrees = |what, ours: String, theirs: String| {
        if ours == theirs {
            return Ok(());
        }
        Err(Problem::Disagrees { what, ours, theirs })
    };
    if p.rank != rank {
        return disagrees(
            "rank",
            p.rank.to_string(),
            format!("0, so it must be {rank}"),
        );
    }
    disagrees("kind", format!("{:?}", p.kind), format!("{:?}", zero.kind))?;
    disagrees(
        "algorithm",
        format!("{:?}", p.algo),
        format!("{:?}", zero.algo),
    )?;
    disagrees("root", p.root.to_string(), zero.root.to_string())?;
    disagrees(
        "order",
        format!("{:?}", p.order),
        format!("{:?}", zero.order),
    )?;
    disagrees(
        "block_chunks",
        p.block_chunks.to_string(),
        zero.block_chunks.to_string(),
    )?;
    if p.root >= p.ranks {
        return Err(Problem::Root {
            root: p.root,
            ranks: p.ranks,
        });
    }
    order(p)?;
    limit("steps", p.steps.len() as u64, limits.steps as u64)?;
    limit(
        "slots of NIC memory",
        p.scratch_chunks.into(),
        limits.scratch_chunks.into(),
    )?;
    let (input, output) = buffers(p).ok_or_else(|| Problem::NotCollective {
        kind: format!("{:?}", p.kind),
    })?;
    for (buffer, chunks, blocks) in [
        ("source", p.input_chunks, input),
        ("destination", p.output_chunks, output),
    ] {
        let wanted = u64::from(blocks) * u64::from(p.block_chunks);
        if u64::from(chunks) != wanted {
            return Err(Problem::Buffer {
                buffer,
                chunks,
                wanted,
                block_chunks: p.block_chunks,
            });
        }
        limit("chunks of a buffer", wanted, limits.buffer_chunks.into())?;
    }
    Ok(())
}

/// Blocks of source and destination; `None` for other operations than collectives.
fn buffers(p: &Program) -> Option<(u32, u32)> {
    buffer_blocks(p.kind, p.ranks, p.rank == p.root)
}

/// Whether the order that is claimed can be.
fn order(p: &Program) -> Result<(), Problem> {
    let refused = |why| {
        Err(Problem::Order {
            order: format!("{:?}", p.order),
            why,
        })
    };
    if p.block_chunks == 0 {
        return refused("a block has at least one chunk");
    }
    let whole_block = matches!(p.kind, K::Reduce | K::AllReduce);
    match p.order {
        Order::None if whole_block || p.kind == K::ReduceScatter => {
            refused("the collective reduces: claim Ring, Rank or Other")
        }
        Order::Ring | Order::Rank | Order::Other if !whole_block && p.kind != K::ReduceScatter => {
            refused("the collective reduces nothing: say None")
        }
        Order::Ring if whole_block && !p.block_chunks.is_multiple_of(p.ranks) => {
            refused("Ring starts chunk i at rank i: block_chunks must be a multiple of the ranks")
        }
        _ => Ok(()),
    }
}

struct Form<'a> {
    program: &'a Program,
    limits: &'a Limits,
    /// Whether any rank uses memory of peers.
    direct: bool,
}

impl Form<'_> {
    fn step(&self, step: &Step, popped: &mut u32, pushed: &mut u32) -> Result<(), Problem> {
        let p = self.program;
        let (operands, results) = (step.operands.len(), step.results.len());
        let (most_operands, most_results) = if self.direct {
            (p.ranks as usize, p.ranks as usize)
        } else {
            (self.limits.operands, self.limits.operands)
        };
        limit("operands", operands as u64, most_operands as u64)?;
        limit("results", results as u64, most_results as u64)?;
        for operand in &step.operands {
            self.operand(operand)?;
        }
        for target in &step.results {
            self.target(target)?;
        }
        let streams =
            step.operands.contains(&Operand::Stream) || step.results.contains(&Target::Stream);
        if streams && !self.limits.streams {
            return Err(Problem::Unsupported {
                what: "a kernel's stream",
            });
        }
        let empty = places(step).next().is_none() && !streams;
        if empty != (step.chunks == 0) || (!empty && (operands == 0 || results == 0)) {
            return Err(Problem::Empty {
                chunks: step.chunks,
                operands,
                results,
            });
        }
        self.lengths(step)?;
        self.streams(step, popped, pushed)?;
        let plain = operands == 1 && step.operands[0] == Operand::Stream;
        if step.messages() > 0 && !empty && !plain && step.home().is_none() {
            return Err(Problem::NoHome);
        }
        Ok(())
    }

    fn operand(&self, operand: &Operand) -> Result<(), Problem> {
        match *operand {
            Operand::Local(place) => self.bounds(place.into(), self.sizes(place)),
            Operand::Net { from, .. } => self.net(from),
            Operand::Peer { rank, place } => self.peer(rank, place),
            Operand::Stream => Ok(()),
        }
    }

    fn target(&self, target: &Target) -> Result<(), Problem> {
        match *target {
            Target::Local(place @ Place::Input(_)) => Err(Problem::WritesInput {
                place: place.into(),
            }),
            Target::Local(place) => self.bounds(place.into(), self.sizes(place)),
            Target::Net { to, .. } => self.net(to),
            Target::Peer { rank, place } => match place {
                Place::Input(_) => Err(Problem::WritesInput {
                    place: Where {
                        of: Some(rank),
                        place,
                    },
                }),
                _ => self.peer(rank, place),
            },
            Target::Stream => Ok(()),
        }
    }

    fn sizes(&self, place: Place) -> u32 {
        match place {
            Place::Input(_) => self.program.input_chunks,
            Place::Output(_) => self.program.output_chunks,
            Place::Scratch(_) => self.program.scratch_chunks,
        }
    }

    fn bounds(&self, place: Where, size: u32) -> Result<(), Problem> {
        let Chunks { first, count } = place.place.chunks();
        if first.checked_add(count).is_none_or(|end| end > size) {
            return Err(Problem::OutOfBounds {
                place,
                chunks: size,
            });
        }
        Ok(())
    }

    fn other(&self, rank: u32) -> Result<(), Problem> {
        if rank >= self.program.ranks {
            return Err(Problem::NoSuchRank {
                rank,
                ranks: self.program.ranks,
            });
        }
        if rank == self.program.rank {
            return Err(Problem::Itself);
        }
        Ok(())
    }

    fn net(&self, rank: u32) -> Result<(), Problem> {
        if self.direct {
            return Err(Problem::Direct {
                what: "uses the network in a program with memory of peers (DIRECT): use one or the other",
            });
        }
        self.other(rank)
    }

    fn peer(&self, rank: u32, place: Place) -> Result<(), Problem> {
        self.other(rank)?;
        if matches!(place, Place::Scratch(_)) {
            return Err(Problem::Direct {
                what: "uses a peer's NIC memory: only its source and destination are shared",
            });
        }
        // The peer's buffers follow from the collective in the checked header of its program.
        let p = self.program;
        let peer = Program {
            rank,
            steps: Vec::new(),
            ..*p
        };
        let (input, output) = buffers(&peer).unwrap_or((0, 0));
        let blocks = match place {
            Place::Input(_) => input,
            _ => output,
        };
        let of = Where {
            of: Some(rank),
            place,
        };
        self.bounds(of, blocks.saturating_mul(p.block_chunks))
    }

    /// All places are as long as the value, and start at the same chunk of a block.
    fn lengths(&self, step: &Step) -> Result<(), Problem> {
        let bc = self.program.block_chunks;
        let mut first: Option<Where> = None;
        for place in places(step) {
            if place.place.chunks().count != step.chunks {
                return Err(Problem::Length {
                    place,
                    chunks: step.chunks,
                });
            }
            let a = *first.get_or_insert(place);
            if a.place.chunks().first % bc != place.place.chunks().first % bc {
                return Err(Problem::Misaligned {
                    a,
                    b: place,
                    block_chunks: bc,
                });
            }
        }
        Ok(())
    }

    /// A kernel's stream stands for the whole buffer, in order.
    fn streams(&self, step: &Step, popped: &mut u32, pushed: &mut u32) -> Result<(), Problem> {
        let p = self.program;
        let bc = p.block_chunks;
        let at = places(step).next();
        let uses = [
            (
                step.operands.contains(&Operand::Stream),
                p.input_chunks,
                popped,
            ),
            (
                step.results.contains(&Target::Stream),
                p.output_chunks,
                pushed,
            ),
        ];
        for (streams, chunks, used) in uses {
            if !streams {
                continue;
            }
            let aligned = at.is_none_or(|w| w.place.chunks().first % bc == *used % bc);
            let end = u64::from(*used) + u64::from(step.chunks);
            if end > u64::from(chunks) || !aligned {
                return Err(Problem::Stream {
                    chunks,
                    used: end.min(u64::from(u32::MAX)) as u32,
                });
            }
            *used = end as u32;
        }
        Ok(())
    }
}
