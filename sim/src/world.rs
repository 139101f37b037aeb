//! The nodes, and the loop that steps those to which something happens.

use std::sync::Arc;
use std::time::Duration;

use ringbell_cuda_kernels::SteppedKernel;
use ringbell_nic_abi::{GpuVa, Status};
use ringbell_nic_core::collective::CommStatus;

use crate::data::Data;
use crate::lane::{Begun, Handled, Happens, Lane, Lanes};
use crate::network::{Sent, Shared, SharedAdapter, What};
use crate::node::{Memory, Node};
use crate::running::{Kernels, Outcome, Ran};
use crate::steady::{projected, Moments, Projection};
use crate::{Breaks, Counts, Failure, Fault, Plan, RankEnd};

/// Virtual time that an operation, or the meeting of the ranks, may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Longer than an acknowledgement waits.
const SETTLES: Duration = Duration::from_micros(100);
/// Longest window, shorter than what is waited for between two looks at all NICs.
const LOOKAHEAD_MOST: Duration = Duration::from_micros(50);
/// How much sooner than the loop's deadline operations end themselves.
const OPERATION: Duration = Duration::from_secs(50);

/// An operation is looked at for a steady phase each time that it has gone on by one of so many
/// parts.
const LOOKS: u64 = 32;

/// How an operation on all ranks has ended.
pub(crate) enum Operated {
    /// On each rank.
    Ended(Vec<RankEnd>),
    /// It has not, and would after so long.
    Projected {
        time_ns: u64,
        projection: Projection,
    },
}

/// The cluster.
pub(crate) struct World {
    pub(crate) fabric: Shared,
    nodes: Vec<Arc<Node>>,
    pub(crate) lanes: Lanes,
    pub(crate) threads: usize,
    /// Picoseconds in which what a NIC does reaches no other.
    pub(crate) lookahead: u64,
    now: u64,
    /// When the first operation was posted.
    begin: u64,
    events: u64,
    hash: u64,
    kernels: Kernels,
    broken: Vec<Fault>,
    /// How the last event has ended the operation that its NIC's lane waits for.
    ended: Option<(Status, u64)>,
    /// Events that lanes have handled and the loop has not.
    pub(crate) ahead: usize,
}

impl World {
    /// A cluster whose NICs have been stepped once, of so many threads.
    pub(crate) fn new(
        fabric: Shared,
        nodes: Vec<Node>,
        adapters: Vec<Vec<SharedAdapter>>,
        threads: usize,
    ) -> World {
        let nodes: Vec<_> = nodes.into_iter().map(Arc::new).collect();
        let lanes = nodes.iter().zip(adapters).enumerate();
        let forwards = fabric.lock().is_mesh();
        let lanes =
            lanes.map(|(rank, (node, adapters))| Lane::new(rank, node.clone(), adapters, forwards));
        let lookahead = fabric
            .lock()
            .lookahead()
            .min(LOOKAHEAD_MOST.as_nanos() as u64 * 1_000);
        let mut world = World {
            lookahead,
            fabric,
            lanes: Lanes::new(lanes),
            nodes,
            threads,
            now: 0,
            begin: 0,
            events: 0,
            hash: 0xcbf2_9ce4_8422_2325,
            kernels: Kernels::default(),
            broken: Vec::new(),
            ended: None,
            ahead: 0,
        };
        for rank in 0..world.nodes.len() {
            world.step(rank);
        }
        world
    }

    pub(crate) fn nodes(&self) -> &[Arc<Node>] {
        &self.nodes
    }

    /// Gives each rank a kernel, which begins so many nanoseconds from now.
    pub(crate) fn launch(&mut self, name: &str, kernels: Vec<(SteppedKernel, u64)>) {
        name.clone_into(&mut self.kernels.name);
        for (rank, (kernel, after)) in kernels.into_iter().enumerate() {
            let at = self.now + after * 1_000;
            self.kernels.add(kernel, at);
            self.fabric.lock().events.add(at, rank, What::Kernel);
        }
    }

    /// Runs until all kernels have ended, one has failed, or none can go on before a time.
    pub(crate) fn run_kernels(&mut self, within_ns: u64) -> Outcome {
        let outcome = self.outcome(within_ns);
        for rank in 0..self.nodes.len() {
            if !self.kernels.is_over(rank) {
                self.lived(rank, ": has not ended");
            }
        }
        outcome
    }

    fn outcome(&mut self, within_ns: u64) -> Outcome {
        let deadline = self.now.saturating_add(within_ns.saturating_mul(1_000));
        loop {
            if let Some((rank, end)) = self.kernels.failed.take() {
                return Outcome::Failed { rank, end };
            }
            if self.kernels.left() == 0 {
                return Outcome::Ended(self.kernels.findings());
            }
            if !self.turn(deadline) {
                let is_over = self.fabric.lock().events.peek_at().is_none();
                let mut waits = self.kernels.explain();
                for (rank, text) in &mut waits {
                    let Node {
                        nic, queue, comm, ..
                    } = &*self.nodes[*rank];
                    if let Ok(n @ 1..) = nic.communicator_under_way(*comm, queue.id()) {
                        *text += &format!("\n  its NIC has not ended {n} of its operations");
                    }
                }
                return Outcome::Hung { is_over, waits };
            }
        }
    }

    /// What has happened, also on its network.
    pub(crate) fn counts(&self) -> Counts {
        let fabric = self.fabric.lock();
        Counts {
            events: self.events,
            packets: fabric.packets,
            bytes: fabric.bytes,
            lost: fabric.lost,
            marked: fabric.marked,
            pauses: fabric.pauses,
            deepest: fabric.deepest,
            virtual_ns: self.now / 1_000,
            hash: self.hash,
        }
    }

    /// What has broken until now.
    pub(crate) fn broken(&self) -> &[Fault] {
        &self.broken
    }

    /// The time in picoseconds.
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    /// The rank to which the next event happens, if it is one of a NIC or its host.
    pub(crate) fn next_rank(&self) -> Option<usize> {
        self.fabric.lock().peek_rank()
    }

    /// Lets a rank's host look at its NIC at a time in picoseconds.
    pub(crate) fn look_at(&self, at: u64, rank: usize) {
        self.fabric.lock().events.add(at, rank, What::Looks);
    }

    pub(crate) fn is_dead(&self, rank: usize) -> bool {
        self.fabric.lock().is_dead(rank)
    }

    /// Begins to count the time, and lets faults happen from now on. What the ranks have sent to
    /// meet has arrived before, acknowledgements that wait for a timer included.
    pub(crate) fn begin(&mut self, faults: &[Fault]) {
        self.wait(SETTLES.as_nanos() as u64);
        let deadline = self.now + PATIENCE.as_nanos() as u64 * 1_000;
        while self.fabric.lock().under_way > 0 && self.turn(deadline) {}
        self.begin = self.now;
        for fault in faults {
            let after = fault.at_ns.saturating_mul(1_000);
            let at = self.begin.saturating_add(after);
            self.fabric.lock().plan(at, fault.what);
        }
    }

    /// Steps a node until nothing moves, and notes when it wants to be stepped again.
    pub(crate) fn step(&mut self, node: usize) {
        if self.is_dead(node) {
            return;
        }
        loop {
            let (moved, sent) = self.lanes.lock(node).run(self.now);
            self.send(node, sent);
            if self.kernels.begun(node).is_some() && self.fabric.lock().timeline.is_some() {
                let Node {
                    nic, queue, comm, ..
                } = &*self.nodes[node];
                let operations = nic.communicator_under_way(*comm, queue.id());
                self.works(node, operations.unwrap_or(0));
            }
            if !self.kernels.wakes(node, moved) {
                break;
            }
            match self.kernels.turn(node, self.now.div_ceil(1_000)) {
                Ran::Again => {}
                Ran::Later(at) => {
                    let mut fabric = self.fabric.lock();
                    fabric.events.add(at * 1_000, node, What::Kernel);
                }
                Ran::Ended => {
                    self.note([node as u64, 7, 0]);
                    let failed = self.kernels.failed.as_ref();
                    let has_failed = failed.is_some_and(|(rank, _)| *rank == node);
                    self.lived(node, if has_failed { ": failed" } else { "" });
                }
            }
        }
        let due = self.lanes.lock(node).timer(self.now);
        if let Some(at) = due {
            self.fabric.lock().events.add(at, node, What::Due);
        }
    }

    /// Takes what a NIC has sent to its link.
    fn send(&self, rank: usize, sent: Vec<Sent>) {
        if sent.is_empty() {
            return;
        }
        let mut fabric = self.fabric.lock();
        for sent in sent {
            fabric.send(rank, sent);
        }
    }

    /// Handles an event at a NIC.
    fn happens(&mut self, rank: usize, what: Happens) {
        let begun = self.lanes.lock(rank).begin(self.now, what);
        self.begun(rank, &begun);
        if begun.steps {
            self.step(rank);
            self.ended = self.lanes.get_mut(rank).end();
        }
    }

    /// Enters how an event at a NIC has begun.
    fn begun(&mut self, rank: usize, begun: &Begun) {
        if let Some(note) = begun.note {
            self.note(note);
        }
        let mut fabric = self.fabric.lock();
        fabric.under_way -= u64::from(begun.has_arrived);
        if let Some((at, place)) = begun.later {
            fabric.events.add(at, rank, What::Received(place));
        }
    }

    /// Enters what a lane has done ahead. Returns how that has ended the operation.
    pub(crate) fn enter(&mut self, rank: usize, handled: Handled) -> Option<(Status, u64)> {
        self.ahead -= 1;
        self.begun(rank, &handled.begun);
        self.send(rank, handled.sent);
        if let Some(at) = handled.due {
            self.fabric.lock().events.add(at, rank, What::Due);
        }
        handled.end
    }

    /// Handles the next event. `false`: there is none before the deadline.
    pub(crate) fn turn(&mut self, deadline: u64) -> bool {
        let event = self.fabric.lock().events.next();
        let Some(event) = event.filter(|e| e.at <= deadline) else {
            return false;
        };
        let node = event.node;
        self.now = self.now.max(event.at);
        self.ended = None;
        if matches!(event.what, What::Due | What::Received(_) | What::Ahead) {
            let handled = self.lanes.lock(node).done.pop_front();
            if let Some(handled) = handled {
                self.ended = self.enter(node, handled);
                return true;
            }
        }
        match event.what {
            What::Due => self.happens(node, Happens::Due),
            What::Received(place) => self.happens(node, Happens::Received(place)),
            What::Kernel if !self.kernels.is_due(node, event.at) => {
                // An earlier one has taken its place, or it has ended.
            }
            What::Kernel => {
                self.note([node as u64, 6, 0]);
                self.step(node);
            }
            What::Looks => self.note([node as u64, 8, 0]),
            // Its lane has done it.
            What::Ahead => {}
            What::Free(link) => self.fabric.lock().free(event.at, link),
            What::Fetched(link, frame) => self.fabric.lock().fetched(event.at, link, frame),
            What::Paused(link, is_paused) => {
                self.note([link.index() as u64, 9, u64::from(is_paused)]);
                let left = self.fabric.lock().paused(event.at, link, is_paused);
                if node >= self.lanes.len() {
                    return true;
                }
                let lane = self.lanes.get_mut(node);
                let mut adapter = lane.adapter(link).lock();
                match is_paused {
                    true => adapter.pauses(),
                    false => adapter.goes_on(left),
                }
                drop(adapter);
                if !is_paused {
                    self.step(node);
                    self.ended = self.lanes.get_mut(node).end();
                }
            }
            What::Breaks(what) => {
                let (kind, number) = match what {
                    Breaks::Rank(rank) => (4, rank),
                    Breaks::Wire(wire) => (5, wire),
                };
                self.note([number as u64, kind, 0]);
                self.fabric.lock().broken(what);
                let at_ns = self.since_begin();
                self.broken.push(Fault { at_ns, what });
                match what {
                    Breaks::Rank(rank) if self.kernels.stop(rank) => self.lived(rank, ": killed"),
                    _ => {}
                }
            }
            What::Crossed(link, frame) => {
                let note = [link.index() as u64, 2, frame.len() as u64];
                let arrived = self.fabric.lock().crossed(event.at, link, frame);
                match arrived {
                    Some(frame) => self.happens(node, Happens::Crossed(link, frame)),
                    None => self.note(note),
                }
            }
        }
        true
    }

    /// Notes the life of a rank's kernel, if it has begun, and how it has ended.
    fn lived(&mut self, rank: usize, how: &str) {
        self.works(rank, 0);
        if let Some(begin) = self.kernels.begun(rank) {
            self.spent(rank, begin, || self.kernels.name.clone() + how);
        }
    }

    /// Notes for how long a kernel's NIC has had so many operations under way.
    fn works(&mut self, rank: usize, operations: usize) {
        if let Some((operations, begin)) = self.kernels.works(rank, operations, self.now) {
            self.spent(rank, begin, || match operations {
                1 => "1 operation".into(),
                n => format!("{n} operations"),
            });
        }
    }

    /// Notes what a NIC has done since a time.
    pub(crate) fn spent(&self, rank: usize, begin: u64, what: impl FnOnce() -> String) {
        if let Some(timeline) = &mut self.fabric.lock().timeline {
            timeline.operation(rank, what(), (begin, self.now));
        }
    }

    /// Lets time pass, with all that happens in it.
    fn wait(&mut self, ns: u64) {
        let until = self.now + ns * 1_000;
        let is_before = |at: u64| at <= until;
        while self.fabric.lock().events.peek_at().is_some_and(is_before) {
            self.run_ahead(until, None);
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

    /// Lets the ranks meet.
    pub(crate) fn meet(&mut self) -> Result<(), Failure> {
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
                for rank in 0..self.nodes.len() {
                    self.spent(rank, 0, || "meet".into());
                }
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
    pub(crate) fn since_begin(&self) -> u64 {
        (self.now - self.begin) / 1_000
    }

    /// Runs one operation on all ranks that live; returns how it ended on each. With `forward` it
    /// may stop in a steady phase, and the world is of no more use then.
    pub(crate) fn operation(
        &mut self,
        plan: &Plan,
        data: &Data,
        to: GpuVa,
        forward: bool,
    ) -> Result<Operated, Failure> {
        let begin = self.now;
        for rank in 0..self.nodes.len() {
            self.lanes.get_mut(rank).moments = forward.then(Moments::default);
        }
        let mut look = begin;
        let deadline = begin + PATIENCE.as_nanos() as u64 * 1_000;
        self.wait(plan.cluster.profile.host.doorbell_ns);
        let what = (plan.kind, plan.algo);
        for rank in 0..self.nodes.len() {
            let ticket = self.nodes[rank].post(what, data.count, [Memory::va(0), to], OPERATION);
            let ticket = ticket.ok_or_else(|| Failure::Made {
                rank,
                why: "its queue is full".into(),
            })?;
            self.lanes.lock(rank).ticket = Some(ticket);
        }
        // All of them once, then whom the last event may have ended.
        let mut ended = self.step_posted();
        let mut left = self.nodes.len();
        let mut ends = vec![None; left];
        loop {
            for (rank, ended) in ended.drain(..) {
                if ends[rank].is_some() {
                    continue;
                }
                if let Some(end) = self.end_of(rank, ended) {
                    let what = || match end.status {
                        Some(Status::Ok) => title(data),
                        Some(status) => format!("{}: {status:?}", title(data)),
                        None => format!("{}: killed", title(data)),
                    };
                    self.spent(rank, begin, what);
                    ends[rank] = Some(end);
                    left -= 1;
                }
            }
            if left == 0 {
                self.wait(plan.cluster.profile.host.completion_ns);
                return Ok(Operated::Ended(ends.into_iter().flatten().collect()));
            }
            if forward && self.now >= look {
                look = self.now + (self.now - begin) / LOOKS + 1;
                if let Some((end, projection)) = self.projected(begin) {
                    let end = end / 1_000 + plan.cluster.profile.host.completion_ns;
                    let time_ns = end - begin / 1_000;
                    return Ok(Operated::Projected {
                        time_ns,
                        projection,
                    });
                }
            }
            self.run_ahead(deadline, Some(&ends));
            let next = self.next_rank();
            if !self.turn(deadline) {
                let waiting = (0..ends.len()).filter(|r| ends[*r].is_none());
                let waiting: Vec<_> = waiting.collect();
                self.now = self.now.max(deadline);
                for &rank in &waiting {
                    let what = || format!("{}: has not ended", title(data));
                    self.spent(rank, begin, what);
                }
                return Err(hung(waiting, "the end of an operation"));
            }
            ended.extend(next.map(|rank| (rank, self.ended)));
        }
    }

    /// When an operation posted at a time ends by its steady phase, if it is in one.
    fn projected(&mut self, posted: u64) -> Option<(u64, Projection)> {
        let lanes = &self.lanes;
        let all: Vec<_> = (0..lanes.len()).map(|rank| lanes.lock(rank)).collect();
        let moments = all.iter().filter_map(|lane| lane.moments.as_ref());
        projected(moments, posted, self.now)
    }

    /// How an operation has ended on a rank, if it has: it was killed, or its NIC says so.
    fn end_of(&self, rank: usize, ended: Option<(Status, u64)>) -> Option<RankEnd> {
        let at_ns = self.since_begin();
        if self.is_dead(rank) {
            return Some(RankEnd::killed(at_ns));
        }
        ended.map(|(status, detail)| RankEnd::of(status, detail, at_ns))
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for rank in 0..self.lanes.len() {
            let lane = self.lanes.lock(rank);
            lane.adapters().for_each(|a| a.lock().end());
        }
    }
}

/// An operation, as a timeline names it.
fn title(data: &Data) -> String {
    format!("{:?}, {} bytes", data.kind, data.bytes())
}

fn hung(ranks: Vec<usize>, what: &'static str) -> Failure {
    let virtual_ms = PATIENCE.as_millis() as u64;
    Failure::Hung {
        ranks,
        what,
        virtual_ms,
    }
}
