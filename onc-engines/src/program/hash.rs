//! Hashes of programs that are equal in every process, for the comparison between ranks.

use super::{Chunks, Operand, Order, Place, Program, Step, Target};

impl Program {
    /// A hash over the whole program: equal in every process and on every machine, so that ranks
    /// can compare it.
    pub fn hash(&self) -> u64 {
        let mut h = Fnv::new();
        h.program(self);
        h.0
    }
}

/// Hash over the programs of all ranks, in order, which the ranks of a communicator compare.
pub fn hash_all(programs: &[Program]) -> u64 {
    let mut h = Fnv::new();
    h.word(programs.len() as u32);
    programs.iter().for_each(|p| h.program(p));
    h.0
}

/// FNV-1a over 32-bit words. `std::hash` promises no value from one release to the next.
pub(super) struct Fnv(u64);

impl Fnv {
    pub(super) fn new() -> Fnv {
        Fnv(0xcbf2_9ce4_8422_2325)
    }

    pub(super) fn value(&self) -> u64 {
        self.0
    }

    pub(super) fn word(&mut self, word: u32) {
        self.0 = (self.0 ^ u64::from(word)).wrapping_mul(0x0000_0100_0000_01b3);
        // FNV moves nothing downwards; words, unlike bytes, need that.
        self.0 ^= self.0 >> 32;
    }

    fn program(&mut self, p: &Program) {
        self.word(u32::from(p.kind as u8) << 8 | u32::from(p.algo as u8));
        for word in [
            p.ranks,
            p.rank,
            p.root,
            p.block_chunks,
            p.input_chunks,
            p.output_chunks,
            p.scratch_chunks,
        ] {
            self.word(word);
        }
        self.order(p.order);
        self.word(p.steps.len() as u32);
        p.steps.iter().for_each(|s| self.step(s));
    }

    pub(super) fn order(&mut self, order: Order) {
        self.word(match order {
            Order::Ring => 1,
            Order::Other => 2,
            Order::None => 3,
            Order::Rank => 4,
        });
    }

    fn step(&mut self, s: &Step) {
        self.word(s.round);
        self.word(s.chunks);
        self.word(s.operands.len() as u32);
        for operand in &s.operands {
            match *operand {
                Operand::Local(place) => self.place(1, place),
                Operand::Net { from, channel } => {
                    self.word(2 << 8 | u32::from(channel));
                    self.word(from);
                }
                Operand::Peer { rank, place } => {
                    self.place(3, place);
                    self.word(rank);
                }
                Operand::Stream => self.word(4 << 8),
            }
        }
        self.word(s.results.len() as u32);
        for target in &s.results {
            match *target {
                Target::Local(place) => self.place(1, place),
                Target::Net { to, channel } => {
                    self.word(2 << 8 | u32::from(channel));
                    self.word(to);
                }
                Target::Peer { rank, place } => {
                    self.place(3, place);
                    self.word(rank);
                }
                Target::Stream => self.word(4 << 8),
            }
        }
    }

    fn place(&mut self, of: u32, place: Place) {
        let (which, Chunks { first, count }) = match place {
            Place::Input(c) => (1, c),
            Place::Output(c) => (2, c),
            Place::Scratch(c) => (3, c),
        };
        self.word(of << 8 | which);
        self.word(first);
        self.word(count);
    }
}
