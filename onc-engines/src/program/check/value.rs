//! Symbolic values: the content of a chunk as an expression over the ranks' sources.

use std::fmt;

use crate::program::{Order, Program};

use ringbell_nic_abi::CollectiveKind;

/// The content of one chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value {
    /// Nothing was written.
    Nothing,
    /// `((first + next) + next but one) ...` of `len` ranks round the ring; with `len` 1 one rank's
    /// source.
    Run {
        /// Chunk of the source.
        chunk: u32,
        /// Rank of the leftmost operand.
        first: u32,
        /// Ranks.
        len: u32,
        /// Ranks of the communicator.
        ranks: u32,
    },
    /// A reduction of several ranks in any order.
    Any {
        /// Chunk of the source.
        chunk: u32,
        /// Number of ranks.
        len: u32,
        /// The set of them, as its index in the table of sets.
        set: u32,
    },
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Value::Nothing => write!(f, "nothing"),
            Value::Run {
                chunk,
                first,
                len: 1,
                ..
            } => write!(f, "rank {first}'s chunk {chunk}"),
            Value::Run {
                chunk,
                first,
                len,
                ranks,
            } => {
                let last = (first + len - 1) % ranks;
                write!(
                    f,
                    "chunk {chunk} of the {len} ranks {first} to {last} in ring order"
                )
            }
            Value::Any { chunk, len, .. } => write!(f, "chunk {chunk} of {len} ranks"),
        }
    }
}

/// Why two values are not reduced with each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refused {
    /// Nothing is reduced in this collective.
    Reduces,
    /// Different chunks.
    Chunks,
    /// Rank that would count twice.
    Twice(u32),
    /// What would be in order.
    Order(String),
}

/// How the values of one set of programs combine.
#[derive(Debug)]
pub(super) struct Algebra {
    kind: CollectiveKind,
    order: Order,
    ranks: u32,
    block_chunks: u32,
    sets: Vec<Vec<u64>>,
}

impl Algebra {
    pub(super) fn new(program: &Program) -> Algebra {
        Algebra {
            kind: program.kind,
            order: program.order,
            ranks: program.ranks,
            block_chunks: program.block_chunks,
            sets: Vec::new(),
        }
    }

    /// A rank's own source.
    pub(super) fn source(&self, rank: u32, chunk: u32) -> Value {
        Value::Run {
            chunk,
            first: rank,
            len: 1,
            ranks: self.ranks,
        }
    }

    /// The rank with which the reduction of a source chunk starts: rank 0; or round the ring, chunk
    /// i of n of a block with rank i, and a reduce-scatter's block i with rank i.
    fn start(&self, chunk: u32) -> u32 {
        if self.order == Order::Rank {
            0
        } else if self.kind == CollectiveKind::ReduceScatter {
            chunk / self.block_chunks
        } else {
            chunk % self.block_chunks / (self.block_chunks / self.ranks)
        }
    }

    /// Whether the order is fixed.
    fn in_order(&self) -> bool {
        matches!(self.order, Order::Ring | Order::Rank)
    }

    /// The whole reduction of a source chunk, in words.
    fn whole_text(&self, chunk: u32) -> String {
        match self.order {
            Order::Ring | Order::Rank => format!(
                "chunk {chunk} of all {} ranks in ring order from rank {}",
                self.ranks,
                self.start(chunk)
            ),
            _ => format!("chunk {chunk} of all {} ranks", self.ranks),
        }
    }

    /// Whether `value` is the whole reduction of a source chunk, in the claimed order.
    fn is_whole(&self, value: Value, of: u32) -> bool {
        match value {
            Value::Nothing => false,
            Value::Run {
                chunk, first, len, ..
            } => {
                let in_order = !self.in_order() || first == self.start(of);
                chunk == of && len == self.ranks && (in_order || self.ranks == 1)
            }
            Value::Any { chunk, len, .. } => chunk == of && len == self.ranks,
        }
    }

    /// Checks the value of output chunk `chunk` of `rank` at the end. The wanted value in words
    /// when it differs.
    pub(super) fn verify(&self, program: &Program, chunk: u32, has: Value) -> Result<(), String> {
        use CollectiveKind as K;
        let bc = self.block_chunks;
        let (block, part) = (chunk / bc, chunk % bc);
        let own = program.rank * bc;
        let source = match self.kind {
            K::Reduce | K::AllReduce | K::ReduceScatter => {
                let of = if self.kind == K::ReduceScatter {
                    own + chunk
                } else {
                    chunk
                };
                return if self.is_whole(has, of) {
                    Ok(())
                } else {
                    Err(self.whole_text(of))
                };
            }
            K::Broadcast => self.source(program.root, chunk),
            K::Scatter => self.source(program.root, own + chunk),
            K::AllToAll => self.source(block, own + part),
            _ => self.source(block, part),
        };
        if has == source {
            Ok(())
        } else {
            Err(source.to_string())
        }
    }

    /// `a op b`.
    pub(super) fn reduce(&mut self, a: Value, b: Value) -> Result<Value, Refused> {
        if self.order == Order::None {
            return Err(Refused::Reduces);
        }
        let (Some(of), Some(of_b)) = (chunk(a), chunk(b)) else {
            return Err(Refused::Chunks);
        };
        if of != of_b {
            return Err(Refused::Chunks);
        }
        if let Some(twice) = self.common(a, b) {
            return Err(Refused::Twice(twice));
        }
        if self.in_order() {
            return self.reduce_in_order(of, a, b);
        }
        let mut set = vec![0u64; (self.ranks as usize).div_ceil(64)];
        for r in (0..self.ranks).filter(|r| self.contains(a, *r) || self.contains(b, *r)) {
            set[r as usize / 64] |= 1 << (r % 64);
        }
        self.sets.push(set);
        Ok(Value::Any {
            chunk: of,
            len: len(a) + len(b),
            set: self.sets.len() as u32 - 1,
        })
    }

    fn reduce_in_order(&self, of: u32, a: Value, b: Value) -> Result<Value, Refused> {
        let start = self.start(of);
        match (a, b) {
            (Value::Run { first, .. }, _) if first != start => Err(Refused::Order(format!(
                "chunk {of} starts with rank {start}"
            ))),
            (
                Value::Run { first, len, .. },
                Value::Run {
                    first: next,
                    len: 1,
                    ..
                },
            ) => {
                let wanted = (first + len) % self.ranks;
                if next != wanted {
                    return Err(Refused::Order(format!("rank {wanted} comes next")));
                }
                Ok(Value::Run {
                    chunk: of,
                    first,
                    len: len + 1,
                    ranks: self.ranks,
                })
            }
            _ => Err(Refused::Order(
                "the right operand is one rank's own".to_owned(),
            )),
        }
    }

    /// A rank whose contribution is in both.
    fn common(&self, a: Value, b: Value) -> Option<u32> {
        // The usual right operand is one rank's own: no search then.
        if let Value::Run { first, len: 1, .. } = b {
            return self.contains(a, first).then_some(first);
        }
        (0..self.ranks).find(|r| self.contains(a, *r) && self.contains(b, *r))
    }

    /// Whether a rank's contribution is in `value`.
    fn contains(&self, value: Value, rank: u32) -> bool {
        match value {
            Value::Nothing => false,
            Value::Run { first, len, .. } => (rank + self.ranks - first) % self.ranks < len,
            Value::Any { set, .. } => {
                self.sets[set as usize][rank as usize / 64] >> (rank % 64) & 1 == 1
            }
        }
    }
}

fn chunk(value: Value) -> Option<u32> {
    match value {
        Value::Nothing => None,
        Value::Run { chunk, .. } | Value::Any { chunk, .. } => Some(chunk),
    }
}

fn len(value: Value) -> u32 {
    match value {
        Value::Nothing => 0,
        Value::Run { len, .. } | Value::Any { len, .. } => len,
    }
}
