//! The nodes, and the loop that steps those to which something happens.

use std::time::Duration;

use ringbell_nic_abi::{CollectiveKind, Status};
use ringbell_nic_core::collective::CommStatus;
use ringbell_nic_core::port::Checksums;
use ringbell_nic_core::types::NicTime;

use crate::bound::{best_bus_gbps, bus_factor};
use crate::data::{Data, ELEMENT};
use crate::network::{Shared, SwitchPort, What};
use crate::node::Node;
use crate::profile::{payload_share, HEADERS};
use crate::timeline::Timeline;
use crate::{Breaks, Ended, Failure, Measured, Plan, RankEnd, Report, Watch};

/// Most ranks: what the checker of collectives' programs takes.
const MOST: usize = 256;
/// Virtual time that an operation, or the meeting of the ranks, may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// How much sooner than the loop's deadline operations end themselves.
const OPERATION: Duration = Duration::from_secs(50);
/// Most memory of all ranks together, of which every byte is real.
const MEMORY_MOST: u64 = 16 << 30;

struct World {
    fabric: Shared,
    nodes: Vec<Node>,
    /// When each node's earliest event of a timer is, in picoseconds.
    due: Vec<Option<u64>>,
    now: u64,
    /// When the first operation was posted.
    begin: u64,
    events: u64,
    hash: u64,
}

/// Runs a plan.
///
/// # Errors
/// [`Failure`]: the plan cannot be run, or a rank failed or hung.
pub fn run(plan: &Plan) -> Result<Report, Failure> {
    run_watched(plan, Watch::default())
}

/// Runs a plan and watches it.
///
/// # Errors
/// [`Failure`], as [`run`]; or a rank that is watched is not there. What was written until then is
/// whole.
pub fn run_watched(plan: &Plan, mut watch: Watch) -> Result<Report, Failure> {
    check(plan)?;
    watch.check(plan.ranks)?;
    let ranks = plan.ranks as u64;
    let most = plan.sizes.iter().copied().max().unwrap_or(0);
    if let Some(&bytes) = plan.sizes.iter().find(|b| data_of(plan, **b).count == 0) {
        return Err(Failure::Small { bytes });
    }
    if most.saturating_mul(2 * ranks) > MEMORY_MOST {
        return Err(Failure::Large { bytes: most });
    }
    let fabric = Shared::new(plan)?;
    let Some(file) = watch.take_timeline() else {
        return simulate(plan, watch, most, fabric);
    };
    fabric.lock().timeline = Some(Timeline::default());
    let done = simulate(plan, watch, most, fabric.clone());
    let fabric = fabric.lock();
    if let Some(timeline) = &fabric.timeline {
        let written = timeline.write(plan.ranks, &fabric.tracks(), file);
        written.map_err(|e| Failure::Timeline(e.to_string()))?;
    }
    done
}

/// Makes the cluster and runs the operations.
fn simulate(plan: &Plan, mut watch: Watch, most: u64, fabric: Shared) -> Result<Report, Failure> {
    let ranks = plan.ranks as u64;
    let checksums = match watch.reads_frames() {
        true => Checksums::Software,
        false => Checksums::Omitted,
    };
    let nodes = (0..plan.ranks).map(|rank| {
        let port = watch.around(rank, Box::new(SwitchPort::new(rank, &fabric, checksums)))?;
        Node::new(rank, plan, port, most)
    });
    let mut world = World {
        nodes: nodes.collect::<Result<_, _>>()?,
        due: vec![None; plan.ranks],
        fabric,
        now: 0,
        begin: 0,
        events: 0,
        hash: 0xcbf2_9ce4_8422_2325,
    };
    for node in 0..plan.ranks {
        world.step(node);
    }
    world.meet()?;
    for rank in 0..plan.ranks {
        world.spent(rank, 0, || "meet".into());
    }
    world.begin = world.now;
    for fault in &plan.faults {
        let at = world
            .begin
            .saturating_add(fault.at_ns.saturating_mul(1_000));
        world.fabric.lock().plan(at, fault.what);
    }
    let mut sizes = Vec::new();
    let mut ended = None;
    for &bytes in &plan.sizes {
        let data = data_of(plan, bytes);
        // Whole elements.
        let bytes = data.bytes();
        for (rank, node) in (0..ranks).zip(&world.nodes) {
            node.fill(&data.source(rank), data.lengths(rank).1 * ELEMENT);
        }
        let posted_ns = world.since_begin();
        let ends = world.operation(plan, &data)?;
        if ends.iter().any(RankEnd::is_error) {
            let ranks = ends;
            ended = Some(Ended {
                bytes,
                posted_ns,
                ranks,
            });
            break;
        }
        let time_ns = world.since_begin() - posted_ns;
        let results = (0..ranks).zip(&world.nodes).zip(&ends);
        let results = results.filter(|(_, end)| end.status.is_some());
        let results = results.map(|((rank, node), _)| {
            let result = node.result(data.lengths(rank).1 * ELEMENT);
            data.wrong(rank, &result)
        });
        let algbw_gbs = bytes as f64 / time_ns.max(1) as f64;
        sizes.push(Measured {
            bytes,
            count: data.count,
            time_ns,
            algbw_gbs,
            busbw_gbs: algbw_gbs * bus_factor(plan.kind, plan.ranks),
            wrong: results.sum(),
        });
    }
    let fabric = world.fabric.lock();
    let payload = fabric.longest.saturating_sub(HEADERS) as u64;
    let best = best_bus_gbps(plan.kind, plan.ranks, &fabric.wires());
    Ok(Report {
        sizes,
        payload_gbs: plan.profile.payload_gbs(payload),
        best_gbs: best / 8.0 * payload_share(payload),
        events: world.events,
        packets: fabric.packets,
        bytes: fabric.bytes,
        ended,
        lost: fabric.lost,
        virtual_ns: world.now / 1_000,
        hash: world.hash,
    })
}

fn data_of(plan: &Plan, bytes: u64) -> Data {
    Data::of(plan.kind, plan.ranks as u64, bytes)
}

fn check(plan: &Plan) -> Result<(), Failure> {
    use CollectiveKind as K;
    let ranks = plan.ranks;
    if !(2..=MOST).contains(&ranks) {
        return Err(Failure::Ranks { ranks, most: MOST });
    }
    if !(0.0..1.0).contains(&plan.loss) {
        return Err(Failure::Loss(plan.loss.to_string()));
    }
    match plan.kind {
        K::AllReduce | K::AllGather | K::ReduceScatter | K::Broadcast | K::Reduce | K::AllToAll => {
            Ok(())
        }
        kind => Err(Failure::Kind(kind)),
    }?;
    let wires = plan.network.wires(ranks);
    let is_there = |what: &Breaks| match *what {
        Breaks::Rank(rank) => rank < ranks,
        Breaks::Wire(wire) => wire < wires,
    };
    let beyond = plan.faults.iter().map(|f| f.what).find(|w| !is_there(w));
    match beyond {
        None => Ok(()),
        Some(what) => Err(Failure::NothingToBreak { what, ranks, wires }),
    }
}

impl World {
    /// Steps a node until nothing moves, and notes when it wants to be stepped again.
    fn step(&mut self, node: usize) {
        if self.fabric.lock().is_dead(node) {
            return;
        }
        // NICs count nanoseconds; one that is stepped early would find its timer not due.
        let now = self.now.div_ceil(1_000);
        let nic = &self.nodes[node].nic;
        while nic.step_at(NicTime(now)) {}
        let Some(timer) = nic.next_timer() else {
            return;
        };
        // What is due and has not happened waits for room at the port.
        let earliest = match timer.0 <= now {
            true => self.fabric.lock().room_at(node).div_ceil(1_000),
            false => 0,
        };
        let at = timer.0.max(now + 1).max(earliest).saturating_mul(1_000);
        if self.due[node].is_none_or(|due| due > at || due <= self.now) {
            self.due[node] = Some(at);
            self.fabric.lock().step_at(at, node);
        }
    }

    /// Handles the next event. `false`: there is none before the deadline.
    fn turn(&mut self, deadline: u64) -> bool {
        let event = self.fabric.lock().next();
        let Some(event) = event.filter(|e| e.at <= deadline) else {
            return false;
        };
        let node = event.node;
        self.now = self.now.max(event.at);
        match event.what {
            What::Due if self.due[node] != Some(event.at) => {
                // An earlier one has taken its place.
            }
            What::Due => {
                self.note([node as u64, 1, 0]);
                self.due[node] = None;
                self.step(node);
            }
            What::Received(frame) => {
                self.note([node as u64, 3, frame.bytes.len() as u64]);
                self.fabric.lock().received(node, frame);
                self.step(node);
            }
            What::Breaks(what) => {
                let (kind, number) = match what {
                    Breaks::Rank(rank) => (4, rank),
                    Breaks::Wire(wire) => (5, wire),
                };
                self.note([number as u64, kind, 0]);
                self.fabric.lock().broken(what);
            }
            What::Crossed(link, frame) => {
                self.note([link.index() as u64, 2, frame.bytes.len() as u64]);
                let arrived = self.fabric.lock().crossed(event.at, link, frame);
                if let Some(rank) = arrived {
                    self.step(rank);
                }
            }
        }
        true
    }

    /// Notes what a NIC has done since a time.
    fn spent(&self, rank: usize, begin: u64, what: impl FnOnce() -> String) {
        if let Some(timeline) = &mut self.fabric.lock().timeline {
            timeline.operation(rank, what(), (begin, self.now));
        }
    }

    /// Lets time pass, with all that happens in it.
    fn wait(&mut self, ns: u64) {
        let until = self.now + ns * 1_000;
        while self.fabric.lock().peek_at().is_some_and(|at| at <= until) {
            self.turn(until);
        }
        self.now = until;
    }

    /// Adds an event to the digest (FNV-1a over words): node or link, kind, and length.
    fn note(&mut self, what: [u64; 3]) {
        self.events += 1;
        for word in std::iter::once(self.now).chain(what) {
            self.hash = (self.hash ^ word).wrapping_mul(0x100_0000_01b3);
            self.hash ^= self.hash >> 32;
        }
    }

    fn meet(&mut self) -> Result<(), Failure> {
        let deadline = self.now + PATIENCE.as_nanos() as u64 * 1_000;
        let mut waiting: Vec<usize> = (0..self.nodes.len()).collect();
        loop {
            let mut failed = None;
            waiting.retain(|&rank| {
                let node = &self.nodes[rank];
                match node.nic.communicator_status(node.comm) {
                    Ok(CommStatus::Ready) => false,
                    Ok(CommStatus::Aborted { rank, status }) => {
                        failed = Some((rank, status));
                        true
                    }
                    _ => true,
                }
            });
            if let Some((rank, status)) = failed {
                let rank = rank as usize;
                return Err(Failure::Apart { rank, status });
            }
            if waiting.is_empty() {
                return Ok(());
            }
            // Asking all of them after each event would cost more than the events.
            for _ in 0..self.nodes.len() {
                if !self.turn(deadline) {
                    return Err(hung(waiting, "the others"));
                }
            }
        }
    }

    /// Nanoseconds from the first post on.
    fn since_begin(&self) -> u64 {
        (self.now - self.begin) / 1_000
    }

    /// Runs one operation on all ranks that live; returns how it ended on each.
    fn operation(&mut self, plan: &Plan, data: &Data) -> Result<Vec<RankEnd>, Failure> {
        let begin = self.now;
        let deadline = begin + PATIENCE.as_nanos() as u64 * 1_000;
        self.wait(plan.profile.host.doorbell_ns);
        let mut tickets = Vec::new();
        for rank in 0..self.nodes.len() {
            let ticket = self.nodes[rank].post(plan, data.count, OPERATION);
            let ticket = ticket.ok_or_else(|| Failure::Made {
                rank,
                why: "its queue is full".into(),
            })?;
            tickets.push(ticket);
            self.step(rank);
        }
        let mut ends = vec![None; tickets.len()];
        let mut left = tickets.len();
        let mut looked = 0..tickets.len();
        loop {
            // All of them once, then whom the last event may have ended.
            for rank in looked {
                if ends[rank].is_some() {
                    continue;
                }
                if let Some(end) = self.end_of(rank, tickets[rank]) {
                    self.spent(rank, begin, || title(data, end.status));
                    ends[rank] = Some(end);
                    left -= 1;
                }
            }
            if left == 0 {
                self.wait(plan.profile.host.completion_ns);
                return Ok(ends.into_iter().flatten().collect());
            }
            let next = self.fabric.lock().peek_rank();
            if !self.turn(deadline) {
                let waiting = (0..ends.len()).filter(|r| ends[*r].is_none());
                return Err(hung(waiting.collect(), "the end of an operation"));
            }
            looked = next.map_or(0..0, |n| n..n + 1);
        }
    }

    /// How an operation has ended on a rank, if it has.
    fn end_of(&self, rank: usize, ticket: u32) -> Option<RankEnd> {
        let at_ns = self.since_begin();
        if self.fabric.lock().is_dead(rank) {
            return Some(RankEnd::killed(at_ns));
        }
        let done = self.nodes[rank].queue.poll(ticket)?;
        Some(RankEnd::of(&done, at_ns))
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.fabric.lock().is_over = true;
    }
}

/// An operation on a rank, as a timeline names it.
fn title(data: &Data, status: Option<Status>) -> String {
    let what = format!("{:?}, {} bytes", data.kind, data.bytes());
    match status {
        Some(Status::Ok) => what,
        Some(status) => format!("{what}: {status:?}"),
        None => format!("{what}: killed"),
    }
}

fn hung(ranks: Vec<usize>, what: &'static str) -> Failure {
    let virtual_ms = PATIENCE.as_millis() as u64;
    Failure::Hung {
        ranks,
        what,
        virtual_ms,
    }
}
