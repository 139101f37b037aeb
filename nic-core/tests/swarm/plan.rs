//! What a seed chooses: NICs, wire, faults, and operations.

use std::collections::BTreeSet;
use std::time::Duration;

use ringbell_nic_abi::{Algorithm, CollectiveKind as K};
use ringbell_nic_core::collective::CollectiveSettings;
use ringbell_nic_core::port::impair::Faults;
use ringbell_onc_engines::program::algorithms;

use super::collective_support::Rng;
use super::drawn;
use super::failing::Fails;
use super::merging::Merge;

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
    /// As users name it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Net::Local => "local",
            Net::Tcp => "tcp",
            Net::Rdma => "rdma",
            Net::Udp => "udp",
        }
    }

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

/// What a collective's numbers are, and how they travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum With {
    /// Integers, as they are.
    Nothing,
    /// Floats.
    Floats,
    /// Floats of which the wire has the upper half.
    NarrowWire,
}

/// How a collective is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct How {
    pub(super) with: With,
    pub(super) algo: Algorithm,
    /// The result takes the place of the source.
    pub(super) in_place: bool,
}

/// As a program does that asks for nothing.
pub(super) const PLAIN: How = How {
    with: With::Nothing,
    algo: Algorithm::Auto,
    in_place: false,
};

/// What is wrong with an operation on a peer's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    Key,
    /// A part lies behind the end of the region.
    Bounds,
    /// The word of the signal does.
    Word,
}

/// How a session ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Close,
    Abort,
}

/// Several operations that belong together, on sessions or communicators of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Scene {
    /// A session with an engine, its half-close, bytes the other way, its end, and the use of its
    /// old id.
    Session {
        from: usize,
        to: usize,
        sends: Vec<u32>,
        back: u32,
        /// The bytes the other way leave with the first ones.
        both: bool,
        /// Steps until the first receive.
        waits: u32,
        engine: Option<&'static str>,
        some: bool,
        end: End,
    },
    /// A receive of more than was sent, which ends by its time-out.
    Late {
        from: usize,
        to: usize,
        sent: u32,
        lacks: u32,
    },
    /// Messages of one tag from several senders.
    Burst {
        to: usize,
        froms: Vec<usize>,
        len: u32,
        order: u64,
    },
    /// Additions to one word behind a put with a signal, and gets between them, all under way at
    /// once.
    Adds {
        from: usize,
        to: usize,
        count: u64,
        ahead: u32,
    },
    /// A put or get that the peer refuses, and a put behind it.
    Refused {
        from: usize,
        to: usize,
        len: u32,
        put: bool,
        fault: Fault,
    },
    /// Memory that is withdrawn, and comes back elsewhere.
    Withdrawn {
        from: usize,
        to: usize,
    },
    /// Two communicators whose ranks begin to make them one after the other.
    Groups {
        both: [Vec<usize>; 2],
        count: u64,
        order: u64,
    },
    /// A communicator whose ranks differ about the count.
    Unlike {
        members: Vec<usize>,
        count: u64,
        odd: usize,
    },
    /// A communicator that a rank aborts while a collective is under way.
    Aborted {
        members: Vec<usize>,
        count: u64,
        by: usize,
        after: u32,
    },
    /// A communicator that a rank gives back before the others have used it.
    Left {
        members: Vec<usize>,
        count: u64,
        by: usize,
    },
    /// An all-reduce of kernels' streams.
    Streams {
        count: u64,
        order: u64,
    },
    /// A communicator with engines at its input and output.
    Engines {
        members: Vec<usize>,
        count: u64,
    },
    /// A user's program.
    Program {
        members: Vec<usize>,
        count: u64,
        with: With,
        order: u64,
    },
    Fails(Fails),
    Merges(Merge),
}

/// An operation, or what happens between two of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Op {
    /// On all NICs.
    Collective {
        kind: K,
        root: u32,
        count: u64,
        how: How,
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
    Scene(Scene),
    /// A NIC does nothing for a while.
    Pause {
        who: usize,
        us: u64,
    },
    /// A NIC's wire carries nothing for a while.
    Part {
        who: usize,
        us: u64,
    },
    /// Everything has ended before the next one begins.
    Settle,
    Break(Break),
    /// A new NIC takes the place of the broken one, early or when all has ended.
    Return(bool),
}

impl Op {
    /// The two ends of a session that it needs.
    pub(super) fn pair(&self) -> Option<(usize, usize)> {
        match *self {
            Op::Stream { from, to, .. }
            | Op::Put { from, to, .. }
            | Op::Get { from, to, .. }
            | Op::Add { from, to, .. }
            | Op::Swap { from, to, .. }
            | Op::Scene(Scene::Adds { from, to, .. } | Scene::Refused { from, to, .. })
            | Op::Scene(Scene::Withdrawn { from, to }) => Some((from, to)),
            _ => None,
        }
    }
}

impl Op {
    /// Whether memory that no CPU maps cannot do it.
    fn needs_words(&self) -> bool {
        matches!(
            self,
            Op::Add { .. } | Op::Swap { .. } | Op::Put { signal: true, .. }
        )
    }
}

/// An operation with its number, and the steps that pass before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) id: usize,
    pub(super) after: u32,
    pub(super) op: Op,
}

/// How the NICs are made and stepped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Hosts {
    /// Bytes of a session that may be on the way.
    pub(super) window: Option<usize>,
    /// Their GTLBs have few entries, which are refilled.
    pub(super) refills: bool,
    /// Their memory answers late.
    pub(super) slow: bool,
    /// Their clocks differ.
    pub(super) drifts: bool,
    /// They are stepped in another order each time.
    pub(super) shuffled: bool,
    /// Eager buffers of a communicator's member.
    pub(super) eager_buffers: u32,
    /// Collectives pass messages although all ranks are of one host.
    pub(super) by_messages: bool,
    /// Ranks have links to few others before they need more.
    pub(super) lazy: bool,
    /// Bytes of a segment, and how many are under way.
    pub(super) segments: (u64, u32),
}

/// See the module text.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) ranks: usize,
    pub(super) net: Net,
    pub(super) mtu: usize,
    pub(super) faults: Faults,
    pub(super) hosts: Hosts,
    pub(super) steps: Vec<Step>,
}

/// Numbers below a limit.
pub(super) struct Dice(pub(super) Rng);

impl Dice {
    pub(super) fn below(&mut self, limit: usize) -> usize {
        (self.0.next() % limit as u64) as usize
    }

    pub(super) fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    pub(super) fn two(&mut self, ranks: usize) -> (usize, usize) {
        let from = self.below(ranks);
        (from, (from + 1 + self.below(ranks - 1)) % ranks)
    }

    /// A length: most are short, and some end beside a power of two.
    pub(super) fn len(&mut self, most: usize) -> usize {
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
                Op::Collective {
                    kind,
                    root,
                    count,
                    how: PLAIN,
                }
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

impl Dice {
    /// Some of the ranks, two at least.
    fn some(&mut self, ranks: usize) -> Vec<usize> {
        let mut all: Vec<usize> = (0..ranks).filter(|_| self.below(3) > 0).collect();
        if all.len() < 2 {
            all = vec![0, 1];
        }
        all
    }

    fn hosts(&mut self, net: Net) -> Hosts {
        Hosts {
            // The last one needs a scale of TCP, and is no multiple of it.
            window: self.of(&[None, Some(4096), Some(16 << 10), Some(70_001)]),
            refills: self.below(2) == 0,
            // Operations that end late take time of the one who waits for the test.
            slow: self.below(8) == 0 && net != Net::Udp,
            drifts: self.below(2) == 0,
            shuffled: self.below(2) == 0,
            eager_buffers: self.of(&[1, 2, 4]),
            by_messages: self.below(2) == 0,
            lazy: self.below(4) == 0,
            segments: self.of(&[(4096, 4), (1024, 8), (256, 16)]),
        }
    }

    /// Lengths of sends: few long ones, or many that each fit one line.
    fn sends(&mut self, most: usize) -> Vec<u32> {
        if self.below(4) == 0 {
            let count = 1 + self.below(100);
            return (0..count).map(|_| 1 + self.below(120) as u32).collect();
        }
        let len = match self.below(2) {
            0 => most,
            _ => self.len(most),
        };
        self.parts(len)
    }

    /// A collective by any algorithm, of any numbers.
    fn collective(&mut self, root: u32, ranks: usize) -> Op {
        let with = self.of(&[With::Nothing, With::Floats, With::NarrowWire]);
        let kind = match with {
            With::Nothing => self.of(&[
                K::AllReduce,
                K::AllGather,
                K::ReduceScatter,
                K::Broadcast,
                K::Reduce,
                K::AllToAll,
                K::Gather,
            ]),
            _ => self.of(&[K::AllReduce, K::Reduce, K::ReduceScatter, K::Broadcast]),
        };
        let algo = match self.of(algorithms(kind)) {
            // Ranks of different hosts have no memory in common.
            Algorithm::Direct => Algorithm::Auto,
            algo => algo,
        };
        let most = OPERAND / 4 / ranks;
        Op::Collective {
            kind,
            root,
            count: match self.below(2) {
                0 => most,
                _ => self.len(most),
            } as u64,
            how: How {
                with,
                algo,
                in_place: kind == K::AllReduce && self.below(2) == 0,
            },
        }
    }

    fn program(&mut self, ranks: usize) -> Op {
        let mut members = self.some(ranks);
        // More are drawn for long before a program is whole.
        members.truncate(6);
        let most = OPERAND / 4 / members.len();
        Op::Scene(Scene::Program {
            count: match self.below(2) {
                0 => most,
                _ => self.len(most),
            } as u64,
            with: self.of(&[With::Nothing, With::NarrowWire]),
            order: self.0.next(),
            members,
        })
    }

    /// What widens a plan.
    fn scene(&mut self, net: Net, hosts: &Hosts, ranks: usize, parts: bool) -> Op {
        let (from, to) = self.two(ranks);
        let order = self.0.next();
        let kinds = match net.is_one_sided() {
            true => 24,
            false => 17,
        };
        let scene = match self.below(kinds) {
            0..=2 => {
                let engine = self.of(&[
                    None,
                    Some("cast:f32-bf16"),
                    Some("cast:bf16-f32"),
                    Some("checksum"),
                    Some("hll:p=10,width=4"),
                    Some("late"),
                ]);
                // An engine may double the bytes.
                let sends = self.sends(if engine.is_some() {
                    OPERAND / 4
                } else {
                    OPERAND
                });
                Scene::Session {
                    from,
                    to,
                    sends,
                    back: self.len(OPERAND / 4) as u32,
                    both: self.below(2) == 0,
                    waits: self.of(&[0, 10, 300, 300]),
                    engine,
                    some: self.below(2) == 0,
                    end: self.of(&[End::Close, End::Abort]),
                }
            }
            3 => Scene::Late {
                from,
                to,
                sent: self.below(3) as u32 * self.len(3000) as u32,
                lacks: self.len(3000) as u32,
            },
            4 | 5 => {
                let count = 2 + self.below(7);
                let mut from = || (to + 1 + self.below(ranks - 1)) % ranks;
                Scene::Burst {
                    to,
                    froms: (0..count).map(|_| from()).collect(),
                    len: self.len(OPERAND / 8) as u32,
                    order,
                }
            }
            6 => Scene::Groups {
                both: [self.some(ranks), self.some(ranks)],
                count: self.len(OPERAND / 16) as u64,
                order,
            },
            7 => {
                let members = self.some(ranks);
                Scene::Unlike {
                    odd: self.below(members.len()),
                    count: self.len(OPERAND / 16) as u64,
                    members,
                }
            }
            8 => {
                let members = self.some(ranks);
                Scene::Aborted {
                    by: self.below(members.len()),
                    count: self.len(OPERAND / 4) as u64,
                    after: self.below(60) as u32,
                    members,
                }
            }
            9 => {
                let members = self.some(ranks);
                Scene::Left {
                    by: self.below(members.len()),
                    count: self.len(OPERAND / 16) as u64,
                    members,
                }
            }
            10 if !hosts.slow => Scene::Streams {
                count: self.len(OPERAND / 16) as u64,
                order,
            },
            11 => Scene::Engines {
                members: self.some(ranks),
                count: self.len(OPERAND / 4) as u64,
            },
            12 => {
                let us = 1 << self.below(16);
                return Op::Pause { who: to, us };
            }
            13 if parts => {
                let us = 1 << self.below(16);
                return Op::Part { who: to, us };
            }
            17..=19 if !hosts.slow => Scene::Adds {
                from,
                to,
                count: 2 + self.below(12) as u64,
                ahead: self.of(&[0, 5000, OPERAND as u32 - 16]),
            },
            20 | 21 => Scene::Refused {
                from,
                to,
                len: self.len(OPERAND - 16) as u32,
                put: self.below(3) > 0,
                fault: self.of(&[Fault::Key, Fault::Bounds, Fault::Word]),
            },
            22 => Scene::Withdrawn { from, to },
            _ => return self.collective(to as u32, ranks),
        };
        Op::Scene(scene)
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
        // Apart, so that what stands above keeps its numbers.
        let mut more = Dice(Rng(seed ^ 0x5ce9e));
        let hosts = more.hosts(net);
        // One of UDP would be excused for all that follows.
        let parts = net != Net::Local && (net != Net::Udp || faults != Faults::default());
        for step in &mut steps {
            if more.below(2) == 0 {
                step.op = more.scene(net, &hosts, ranks, parts);
            } else if hosts.slow && step.op.needs_words() {
                step.op = Op::Settle;
            }
        }
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
        let mut last = Dice(Rng(seed ^ 0x9_06a3));
        if last.below(3) == 0 {
            let (id, at) = (steps.len(), last.below(steps.len() + 1));
            let op = last.program(ranks);
            steps.insert(at, Step { id, after: 0, op });
        }
        drawn::add(&mut steps, seed, ranks);
        drawn::come_back(Plan {
            seed,
            ranks,
            net,
            mtu,
            faults,
            hosts,
            steps,
        })
    }

    /// The same by NICs with nothing unusual.
    pub(super) fn by_plain_hosts(mut self) -> Plan {
        self.hosts = Hosts {
            eager_buffers: 4,
            segments: (4096, 4),
            ..Hosts::default()
        };
        self
    }

    /// Of its communicators.
    pub(super) fn settings(&self) -> CollectiveSettings {
        CollectiveSettings {
            segment_bytes: self.hosts.segments.0,
            segments_in_flight: self.hosts.segments.1,
            eager_max: 512,
            eager_buffers: self.hosts.eager_buffers,
            scratch_bytes: 256 << 10,
            stream_bytes: 1024,
            direct: !self.hosts.by_messages,
            linked_ranks: match self.hosts.lazy {
                true => 1,
                false => CollectiveSettings::default().linked_ranks,
            },
            ..CollectiveSettings::default()
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

    /// Most sessions of a NIC that stay, and a listener.
    pub(super) fn sessions(&self) -> usize {
        let pairs: BTreeSet<_> = self.steps.iter().filter_map(|s| s.op.pair()).collect();
        let of = |rank| pairs.iter().filter(|p| p.0 == rank || p.1 == rank).count();
        1 + (0..self.ranks).map(of).max().unwrap_or(0)
    }

    /// Whether a NIC does nothing for a while, or its wire.
    pub(super) fn rests(&self) -> bool {
        let rests = |s: &Step| matches!(s.op, Op::Pause { .. } | Op::Part { .. });
        self.steps.iter().any(rests)
    }

    /// Whether any operation may fail although no NIC does.
    pub(super) fn may_lose(&self) -> bool {
        let parts = |s: &Step| matches!(s.op, Op::Part { .. });
        self.net == Net::Udp && (self.faults != Faults::default() || self.steps.iter().any(parts))
    }
}
