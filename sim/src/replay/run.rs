//! The run: hosts that take turns with their NICs, until all are done or nothing goes on.

use ringbell_nic_abi::Status;

use super::agenda::Agenda;
use super::collectives::Collectives;
use super::contents::{bytes_of, Ledger, Sent};
use super::endpoint::Endpoint;
use super::report::{Delivery, GoalPlan, GoalReport, GoalTrouble, Operation};
use super::room::Room;
use super::sizes::Sizes;
use crate::goal::Op;
use crate::node::{made, Memory};
use crate::simulation::{started, watched};
use crate::world::{World, PATIENCE};
use crate::{Failure, Kept, RankEnd, Watch};

/// Runs a plan.
///
/// # Errors
/// [`Failure`]: the plan cannot be run, or the ranks have not met. What became of the schedule is
/// in the report.
pub fn run_goal(plan: &GoalPlan) -> Result<GoalReport, Failure> {
    run_goal_watched(plan, Watch::default())
}

/// Runs a plan and watches it.
///
/// # Errors
/// As [`run_goal`]; or a rank that is watched is not there.
pub fn run_goal_watched(plan: &GoalPlan, watch: Watch) -> Result<GoalReport, Failure> {
    let sizes = Sizes::of(plan)?;
    let cluster = &plan.cluster;
    watched(cluster, watch, |mut watch, fabric| {
        let made = |rank: usize, port| {
            // Bytes of messages do not repeat.
            let bytes = sizes.0[rank].iter().sum();
            Memory::new(rank, cluster, port, Kept::Whole, bytes)
        };
        let (mut world, memories) = started(cluster, &mut watch, &fabric, made)?;
        let mut replay = Replay::new(plan, &world, memories, &sizes)?;
        let trouble = replay.run(&mut world);
        Ok(replay.report(&world, trouble))
    })
}

/// A rank's host.
pub(super) struct Host {
    pub(super) agenda: Agenda,
    pub(super) endpoint: Endpoint,
    /// How it has ended, if not with its last operation.
    failed: Option<RankEnd>,
    /// Nothing more happens here.
    is_over: bool,
    /// When it was last asked to look at its NIC.
    looks_at: Option<u64>,
    end_ns: u64,
    /// What goes on here: timers, and operations of the NIC that need nothing of other hosts.
    moving: usize,
}

impl Host {
    pub(super) fn is_done(&self) -> bool {
        self.agenda.left() == 0 || self.failed.is_some()
    }

    /// At this time it sees what has ended at its NIC.
    fn see(&mut self, at: u64) {
        for op in self.endpoint.ended() {
            self.agenda.sees(op, at);
        }
    }
}

/// A run.
pub(super) struct Replay<'p> {
    plan: &'p GoalPlan,
    pub(super) hosts: Vec<Host>,
    ledger: Ledger,
    deliveries: Vec<Delivery>,
    /// Hosts that are not done, and what goes on at all of them.
    left: usize,
    moving: usize,
    /// When a host last did something, in picoseconds.
    pub(super) last: u64,
    /// The latest time at which a host has had something to do.
    due: u64,
}

impl<'p> Replay<'p> {
    fn new(
        plan: &'p GoalPlan,
        world: &World,
        memories: Vec<Memory>,
        sizes: &Sizes,
    ) -> Result<Replay<'p>, Failure> {
        let doorbell = plan.cluster.profile.host.doorbell_ns * 1_000;
        let ranks = plan.schedule.ranks().iter().zip(memories).enumerate();
        let hosts = ranks.map(|(rank, (ops, memory))| {
            let node = &world.nodes()[rank];
            let inbox = node.nic.open_inbox(node.pd, node.comm);
            let inbox = inbox.map_err(|e| made(rank)(&e))?;
            let [source, operand, room] = sizes.0[rank];
            memory.write(0, &bytes_of(plan.cluster.seed, rank, 0, source));
            let ranks = plan.cluster.ranks as u64;
            let collectives = Collectives::new((rank as u64, ranks), &memory, (source, operand));
            let room = Room::new(source + operand, source + operand + room);
            Ok(Host {
                agenda: Agenda::new(ops, world.now(), doorbell),
                endpoint: Endpoint::new(
                    (rank, plan.cluster.seed),
                    inbox,
                    memory,
                    room,
                    collectives,
                ),
                failed: None,
                is_over: false,
                looks_at: None,
                end_ns: 0,
                moving: 0,
            })
        });
        let hosts = hosts.collect::<Result<Vec<_>, Failure>>()?;
        Ok(Replay {
            plan,
            left: hosts.iter().filter(|h| !h.is_done()).count(),
            hosts,
            ledger: Ledger::new(plan.cluster.seed),
            deliveries: Vec::new(),
            moving: 0,
            last: world.now(),
            due: 0,
        })
    }

    pub(super) fn ops(&self, rank: usize) -> &'p [Op] {
        &self.plan.schedule.ranks()[rank]
    }

    /// Runs until all hosts are done, or nothing goes on.
    fn run(&mut self, world: &mut World) -> Option<GoalTrouble> {
        for rank in 0..self.hosts.len() {
            self.advance(world, rank);
        }
        // What all bytes take on a link together, and as long as an operation may take.
        let slow = self
            .plan
            .cluster
            .slow
            .iter()
            .map(|s| s.factor)
            .fold(1.0, f64::max);
        let bits = self.plan.schedule.sent().1 as f64 * 8.0;
        let all = bits / self.plan.cluster.profile.link_gbps * slow * 1e3;
        let patience = PATIENCE.as_nanos() as u64 * 1_000 + all as u64;
        while self.left > 0 {
            // Faults are told of later, when nothing may seem to go on.
            if self.moving == 0 && self.plan.cluster.faults.is_empty() && !self.is_awaiting() {
                return Some(self.stuck(world));
            }
            let deadline = self.last.max(self.due).saturating_add(patience);
            let next = world.next_rank();
            if !world.turn(deadline) {
                return Some(self.stuck(world));
            }
            if let Some(rank) = next {
                self.advance(world, rank);
            }
        }
        self.trouble()
    }

    /// Whether a message is on its way that a receive will meet.
    fn is_awaiting(&self) -> bool {
        let mut hosts = self.hosts.iter().enumerate();
        hosts.any(|(rank, host)| {
            !host.is_over && host.endpoint.is_awaiting(self.ops(rank), &self.ledger)
        })
    }

    /// Lets a rank's host do what it can.
    fn advance(&mut self, world: &mut World, rank: usize) {
        let ops = self.ops(rank);
        if self.hosts[rank].is_over {
            return;
        }
        if world.is_dead(rank) {
            return self.end(rank, RankEnd::killed(world.since_begin()));
        }
        let completion = self.plan.cluster.profile.host.completion_ns * 1_000;
        loop {
            let now = world.now();
            let host = &mut self.hosts[rank];
            let was_done = host.is_done();
            let has_news = host.endpoint.has_news();
            let node = &world.nodes()[rank];
            let told = host.endpoint.advance(node, ops, &mut self.ledger);
            if has_news {
                // What was read is room for peers, and what was collected is asked for.
                world.step(rank);
            }
            host.see(now + completion);
            let moment = host.agenda.turn(ops, now);
            let mut goes_on = !moment.ended.is_empty();
            if goes_on {
                host.end_ns = world.since_begin();
            }
            for op in moment.ended {
                let begun = self.hosts[rank].agenda.begun(op);
                world.spent(rank, begun, || ops[op as usize].to_string());
                if let Some(met) = self.hosts[rank].endpoint.take_met(op) {
                    self.delivered(world, rank, met);
                }
            }
            let host = &mut self.hosts[rank];
            moment.posts.iter().for_each(|op| host.endpoint.post(*op));
            let mut given = told;
            if given.is_ok() && host.endpoint.has_posts() {
                // The NIC works with the time of its last step.
                world.step(rank);
                let node = &world.nodes()[rank];
                given = host.endpoint.give(node, ops, &mut self.ledger);
                world.step(rank);
                host.see(now + completion);
                goes_on |= !moment.posts.is_empty();
            }
            if let Err((status, detail)) = given {
                return self.end(rank, RankEnd::of(status, detail, world.since_begin()));
            }
            if goes_on {
                self.last = now;
            }
            // What it has sent may still be on its way.
            self.left -= usize::from(host.is_done() && !was_done);
            let due = host.agenda.next_timer();
            if !host.endpoint.has_news() && due.is_none_or(|at| at > now) {
                // One that was asked for and has not happened is asked for once.
                let asked = host.looks_at.filter(|at| *at > now);
                if let Some(at) = due.filter(|at| asked.is_none_or(|a| *at < a)) {
                    world.look_at(at, rank);
                    host.looks_at = Some(at);
                    self.due = self.due.max(at);
                }
                let moving = host.endpoint.moving() + usize::from(due.is_some());
                self.moving = self.moving - host.moving + moving;
                host.moving = moving;
                return;
            }
        }
    }

    /// A rank's host has seen the end of a message.
    fn delivered(&mut self, world: &World, rank: usize, (from, sent): (usize, Sent)) {
        let took_ns = (world.now() - self.hosts[from].agenda.begun(sent.op)) / 1_000;
        self.deliveries.push(Delivery {
            ends: [from as u32, rank as u32],
            line: self.ops(from)[sent.op as usize].line,
            bytes: sent.bytes,
            begin_ns: world.since_begin().saturating_sub(took_ns),
            took_ns,
        });
    }

    /// A rank's messages have ended, perhaps before its last operation.
    fn end(&mut self, rank: usize, end: RankEnd) {
        let host = &mut self.hosts[rank];
        self.moving -= std::mem::take(&mut host.moving);
        host.is_over = true;
        if !host.is_done() {
            host.failed = Some(end);
            host.end_ns = end.at_ns;
            self.left -= 1;
        }
    }

    pub(super) fn operation(&self, rank: usize, op: u32, why: String) -> Operation {
        let op = &self.ops(rank)[op as usize];
        Operation {
            rank,
            line: op.line,
            text: op.to_string(),
            why,
        }
    }

    /// What is wrong when all hosts are done.
    fn trouble(&self) -> Option<GoalTrouble> {
        if self.hosts.iter().any(|h| h.failed.is_some()) {
            let end = |h: &Host| {
                let well = RankEnd::of(Status::Ok, 0, h.end_ns);
                h.failed.unwrap_or(well)
            };
            return Some(GoalTrouble::Failed(self.hosts.iter().map(end).collect()));
        }
        let hosts = self.hosts.iter().enumerate();
        let too_long = hosts.flat_map(|(rank, host)| {
            let all = host.endpoint.too_long.iter();
            all.map(move |(op, sent, from)| {
                let place = self.ops(*from as usize)[sent.op as usize].place();
                let why = format!(
                    "the message of rank {from}, {place}, has {} bytes",
                    sent.bytes
                );
                self.operation(rank, *op, why)
            })
        });
        let too_long: Vec<_> = too_long.collect();
        if !too_long.is_empty() {
            return Some(GoalTrouble::TooLong(too_long));
        }
        let left = self.ledger.left().into_iter();
        let left = left.map(|(rank, op)| self.operation(rank, op, "no receive has met it".into()));
        let left: Vec<_> = left.collect();
        (!left.is_empty()).then_some(GoalTrouble::Unreceived(left))
    }

    fn report(self, world: &World, trouble: Option<GoalTrouble>) -> GoalReport {
        let ends_ns: Vec<u64> = self.hosts.iter().map(|h| h.end_ns).collect();
        GoalReport {
            time_ns: ends_ns.iter().copied().max().unwrap_or(0),
            ends_ns,
            messages: self.ledger.messages,
            deliveries: self.deliveries,
            bytes: self.ledger.bytes,
            collectives: self.ledger.collectives,
            wrong: self.ledger.wrong,
            waited: self.hosts.iter().map(|h| h.endpoint.waited).sum(),
            trouble,
            counts: world.counts(),
        }
    }
}
