//! What a seed chooses: NICs, wire, faults, and operations.

use std::time::Duration;

use ringbell_nic_abi::CollectiveKind as K;
use ringbell_nic_core::port::impair::Faults;

use super::collective_support::Rng;

/// Bytes of an operand.
pub(super) const OPERAND: usize = 128 << 10;

/// What carries the messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Net {
    Local,
    Tcp,
    Rdma,
    Udp,
}

impl Net {
    pub(super) fn is_one_sided(self) -> bool {
        matches!(self, Net::Local | Net::Rdma)
    }
}

/// What happens to one NIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Break {
    /// It ends in order, with operations under way.
    Ends(usize),
    /// Its process stops: it does nothing more.
    Stops(usize),
    /// Its wire is cut.
    Cut(usize),
}

impl Break {
    pub(super) fn victim(self) -> usize {
        let (Break::Ends(n) | Break::Stops(n) | Break::Cut(n)) = self;
        n
    }
}

/// An operation, or what happens between two of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Op {
    /// On all NICs.
    Collective {
        kind: K,
        root: u32,
        count: u64,
    },
    /// A message of the communicator.
    Message {
        from: usize,
        to: usize,
        len: u64,
    },
    /// Bytes through a socket, cut at different places on both sides.
    Stream {
        from: usize,
        to: usize,
        sends: Vec<u32>,
        recvs: Vec<u32>,
    },
    Put {
        from: usize,
        to: usize,
        len: u32,
        signal: bool,
    },
    Get {
        from: usize,
        to: usize,
        len: u32,
    },
    Add {
        from: usize,
        to: usize,
        addend: u64,
    },
    /// A compare-and-swap; half of them find what they look for.
    Swap {
        from: usize,
        to: usize,
        finds: bool,
    },
    /// A communicator of those that are well, for one collective.
    Group {
        members: Vec<usize>,
        count: u64,
    },
    /// Everything has ended before the next one begins.
    Settle,
    Break(Break),
}

impl Op {
    /// The two ends of a session that it needs.
    pub(super) fn pair(&self) -> Option<(usize, usize)> {
        match *self {
            Op::Stream { from, to, .. }
            | Op::Put { from, to, .. }
            | Op::Get { from, to, .. }
            | Op::Add { from, to, .. }
            | Op::Swap { from, to, .. } => Some((from, to)),
            _ => None,
        }
    }
}

/// An operation with its number, and the steps that pass before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) id: usize,
    pub(super) after: u32,
    pub(super) op: Op,
}

/// See the module text.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) ranks: usize,
    pub(super) net: Net,
    pub(super) mtu: usize,
    pub(super) faults: Faults,
    pub(super) steps: Vec<Step>,
}

/// Numbers below a limit.
struct Dice(Rng);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        (self.0.next() % limit as u64) as usize
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    fn two(&mut self, ranks: usize) -> (usize, usize) {
        let from = self.below(ranks);
        (from, (from + 1 + self.below(ranks - 1)) % ranks)
    }

    /// A length: most are short, and some end beside a power of two.
    fn len(&mut self, most: usize) -> usize {
        let up_to = 1 << self.below(most.ilog2() as usize + 1);
        let len = match self.below(3) {
            0 => up_to + self.below(3) - 1,
            _ => self.below(up_to) + 1,
        };
        len.clamp(1, most)
    }

    /// A length in parts.
    fn parts(&mut self, len: usize) -> Vec<u32> {
        let (mut left, mut parts) = (len, Vec::new());
        while left > 0 && parts.len() < 3 {
            let part = self.below(left) + 1;
            parts.push(part as u32);
            left -= part;
        }
        if left > 0 {
            parts.push(left as u32);
        }
        parts
    }

    fn op(&mut self, net: Net, ranks: usize) -> Op {
        let (from, to) = self.two(ranks);
        let kinds = if net.is_one_sided() { 15 } else { 11 };
        match self.below(kinds) {
            0..=3 => {
                let kind = self.of(&[
                    K::AllReduce,
                    K::AllGather,
                    K::ReduceScatter,
                    K::Broadcast,
                    K::Reduce,
                    K::AllToAll,
                    K::Scatter,
                    K::Gather,
                    K::Barrier,
                ]);
                let count = self.len(OPERAND / 4 / ranks) as u64;
                let root = self.below(ranks) as u32;
                Op::Collective { kind, root, count }
            }
            4 | 5 => {
                let len = self.len(OPERAND) as u64;
                Op::Message { from, to, len }
            }
            6..=8 => {
                let len = self.len(OPERAND);
                let (sends, recvs) = (self.parts(len), self.parts(len));
                Op::Stream {
                    from,
                    to,
                    sends,
                    recvs,
                }
            }
            9 => {
                let members = (0..ranks).filter(|_| self.below(3) > 0).collect();
                let count = self.len(OPERAND / 4) as u64;
                Op::Group { members, count }
            }
            10 => Op::Settle,
            11 => {
                // A signal is a word behind the bytes.
                let (len, signal) = (self.len(OPERAND - 16) as u32, self.below(2) == 0);
                Op::Put {
                    from,
                    to,
                    len,
                    signal,
                }
            }
            12 => {
                let len = self.len(OPERAND) as u32;
                Op::Get { from, to, len }
            }
            13 => {
                let addend = self.0.next();
                Op::Add { from, to, addend }
            }
            _ => {
                let finds = self.below(2) == 0;
                Op::Swap { from, to, finds }
            }
        }
    }
}

impl Plan {
    pub(super) fn of(seed: u64) -> Plan {
        let mut dice = Dice(Rng(seed));
        let net = dice.of(&[Net::Local, Net::Tcp, Net::Rdma, Net::Rdma, Net::Udp]);
        let ranks = 2 + dice.below(7);
        let mtu = dice.of(&[1500, 9000]);
        let mut share = |most: f64| match dice.below(2) {
            0 => 0.0,
            _ => most * dice.below(100) as f64 / 100.0,
        };
        let mut faults = Faults {
            loss: share(0.02),
            reorder: share(0.05),
            duplicate: share(0.05),
            corrupt: share(0.01),
            reorder_by: Duration::from_micros(20),
            seed,
            ..Faults::default()
        };
        // A UDP session ends at a lost message: half of the plans have none.
        if net == Net::Local || (net == Net::Udp && dice.below(2) == 0) {
            faults = Faults::default();
        }
        let count = 5 + dice.below(40);
        let mut steps: Vec<Step> = (0..count)
            .map(|id| Step {
                id,
                after: dice.of(&[0, 0, 1, 5, 50]),
                op: dice.op(net, ranks),
            })
            .collect();
        if dice.below(2) == 0 {
            let victim = dice.below(ranks);
            let what = match (net, dice.below(3)) {
                (Net::Local, _) | (_, 0) => Break::Ends(victim),
                (_, 1) => Break::Stops(victim),
                _ => Break::Cut(victim),
            };
            let at = dice.below(count);
            steps[at].op = Op::Break(what);
            // The survivors go on without it.
            let id = count;
            let op = Op::Group {
                members: (0..ranks).collect(),
                count: 100,
            };
            steps.push(Step { id, after: 0, op });
        }
        Plan {
            seed,
            ranks,
            net,
            mtu,
            faults,
            steps,
        }
    }

    /// The plan with these operations alone.
    pub(super) fn only(&self, ids: &[usize]) -> Plan {
        let mut plan = self.clone();
        plan.steps.retain(|s| ids.contains(&s.id));
        plan
    }

    pub(super) fn ids(&self) -> Vec<usize> {
        self.steps.iter().map(|s| s.id).collect()
    }

    /// Whether any operation may fail although no NIC does.
    pub(super) fn may_lose(&self) -> bool {
        self.net == Net::Udp && self.faults != Faults::default()
    }
}
