//! The executor: runs the program of an operation, segment by segment, several segments at once.
//!
//! Steps of a segment run in list order: a step waits for its messages, combines, stores and sends.
//! Receives are posted ahead of it, into slots of NIC memory, or straight to where the value
//! belongs as soon as no step before it needs that memory. Nothing here blocks: [`Op::run`]
//! proceeds as far as it can, and is called again when a message has come or left.

use std::ops::Range;

use ringbell_gtlb::Fault;
use ringbell_nic_abi::Status;
use ringbell_onc_engines::program::Place;
use smallvec::{smallvec, SmallVec};

use super::combine::{pass, Combine, Held, Operands};
use super::job::Job;
use super::kernel_stream::{Refusal, StreamEnd};
use super::plan::{NetSend, Source};
use super::settings::ProgramProgress;
use super::taps::Viewer;
use super::task::Progress;
use crate::dma::{Dma, ReadStatus};
use crate::link::{Io, Pieces};
use crate::memory::nic_memory::Block;
use crate::message::{send_to_several, Messages, RecvRequest, SendRequest};
use crate::types::Buffer;

/// Steps for which receives are posted ahead.
const LOOK_AHEAD: u32 = 8;

/// Most segments of one operation.
pub(crate) const MAX_SEGMENTS: u64 = 1 << 20;

/// Slots that a message occupies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Temp {
    first: u32,
    count: u32,
}

#[derive(Debug, Clone, Default)]
struct StepState {
    /// Messages that have not come.
    waits: u32,
    /// Messages that have not left.
    sends: u32,
    /// Slots of its operands, in their order.
    temps: [Temp; 2],
    /// Slots that its messages leave from.
    out: Temp,
}

/// One segment under way.
#[derive(Debug)]
pub(crate) struct Instance {
    segment: u64,
    /// The next step.
    cursor: u32,
    /// The next step whose receives are posted.
    posted: u32,
    /// Messages that have not left, of all steps.
    sends: u32,
    block: Option<Block>,
    temps: SmallVec<[bool; 16]>,
    steps: SmallVec<[StepState; 6]>,
    combine: Option<(Combine, bool)>,
    idle: bool,
}

/// An operation under way.
#[derive(Debug)]
pub(crate) struct Op {
    pub(crate) job: Job,
    pub(crate) instances: Vec<Instance>,
    next_segment: u64,
    /// Behind the last segment that this rank takes part in.
    end: u64,
    /// Segments that are not done.
    left: u64,
    input: Option<StreamEnd>,
    output: Option<StreamEnd>,
    /// Engines that get the windows of streams.
    viewers: [Option<Viewer>; 2],
    /// The segment whose window the kernel gets next.
    next_out: u64,
    /// Whether it cannot go on before a kernel has pushed to the source or popped from the
    /// destination.
    awaits: [bool; 2],
    pub(crate) steps_run: u64,
    pub(crate) reduced: u64,
}

/// The number that a message's event carries: operation, instance, operand, step.
fn key(op: u32, instance: usize, operand: usize, step: u32) -> u64 {
    u64::from(op) << 32 | (instance as u64) << 26 | (operand as u64) << 25 | u64::from(step)
}

/// The operation of a key.
pub(crate) fn op_of(key: u64) -> u32 {
    (key >> 32) as u32
}

fn parts(key: u64) -> (usize, usize, usize) {
    (
        (key >> 26 & 63) as usize,
        (key >> 25 & 1) as usize,
        (key & 0x1ff_ffff) as usize,
    )
}

/// Passes an engine a window of a stream.
fn view(
    viewer: Option<Viewer>,
    io: &mut Io<'_>,
    window: Buffer,
    last: bool,
) -> Result<(), Refusal> {
    let Some(viewer) = viewer else { return Ok(()) };
    let window = Pieces::one(window);
    let shown = viewer.show(io, &window, &mut 0, u64::MAX);
    shown.map_err(|fault| fault.status())?;
    if last {
        viewer.end(io);
    }
    Ok(())
}

impl Op {
    /// An operation with the blocks of NIC memory of its instances.
    pub(super) fn new(
        job: Job,
        blocks: Vec<Option<Block>>,
        streams: [Option<StreamEnd>; 2],
        viewers: [Option<Viewer>; 2],
    ) -> Op {
        let [input, output] = streams;
        let n = job.plan.steps.len();
        let temps = job.plan.slots.all(job.converts()) as usize;
        let instance = |block| Instance {
            segment: 0,
            cursor: 0,
            posted: 0,
            sends: 0,
            block,
            temps: smallvec![false; temps],
            steps: smallvec![StepState::default(); n],
            combine: None,
            idle: true,
        };
        let instances = blocks.into_iter().map(instance).collect();
        let segments = job.own_segments();
        Op {
            job,
            instances,
            next_segment: segments.start,
            end: segments.end,
            left: segments.end - segments.start,
            input,
            output,
            viewers,
            next_out: segments.start,
            awaits: [false; 2],
            steps_run: 0,
            reduced: 0,
        }
    }

    /// Blocks of NIC memory, to be given back.
    pub(crate) fn blocks(&self) -> Vec<Block> {
        self.instances.iter().filter_map(|i| i.block).collect()
    }

    /// A message has come.
    pub(crate) fn received(&mut self, key: u64) {
        let (i, _, step) = parts(key);
        if let Some(s) = self
            .instances
            .get_mut(i)
            .and_then(|i| i.steps.get_mut(step))
        {
            s.waits = s.waits.saturating_sub(1);
        }
    }

    /// A message has left.
    pub(crate) fn sent(&mut self, key: u64) {
        let (i, _, step) = parts(key);
        let Some(inst) = self.instances.get_mut(i) else {
            return;
        };
        let Some(s) = inst.steps.get_mut(step) else {
            return;
        };
        s.sends = s.sends.saturating_sub(1);
        inst.sends = inst.sends.saturating_sub(1);
        if s.sends == 0 {
            let out = std::mem::take(&mut s.out);
            inst.free(out);
        }
    }

    /// How far it is.
    pub(super) fn progress(&self) -> ProgramProgress {
        let segments = self.job.own_segments();
        let segments = segments.end - segments.start;
        ProgramProgress {
            algo: self.job.params.algo,
            segments,
            at_once: self.instances.len() as u64,
            steps_run: self.steps_run,
            steps: segments * self.job.plan.steps.len() as u64,
        }
    }

    /// Proceeds as far as possible. `budget` counts elements.
    ///
    /// # Errors
    /// The fault of the user's memory, or what is wrong with a stream.
    pub(crate) fn run(
        &mut self,
        id: u32,
        messages: &mut Messages,
        io: &mut Io<'_>,
        budget: &mut u64,
    ) -> Result<Progress, Refusal> {
        let mut more = false;
        self.awaits = [false; 2];
        loop {
            let before = self.next_out;
            for i in 0..self.instances.len() {
                more |= self.run_segments(id, i, messages, io, budget)?;
            }
            // A window that has left may have been in the way of one that was done before it.
            if self.output.is_none() || self.next_out == before {
                break;
            }
        }
        Ok(if self.left == 0 {
            Progress::Done
        } else if more {
            Progress::More
        } else {
            Progress::Waits
        })
    }

    /// Runs segment after segment on one instance. Whether it could go on at once.
    fn run_segments(
        &mut self,
        id: u32,
        i: usize,
        messages: &mut Messages,
        io: &mut Io<'_>,
        budget: &mut u64,
    ) -> Result<bool, Refusal> {
        loop {
            if self.instances[i].idle {
                if self.next_segment == self.end || !self.fill(i, io)? {
                    return Ok(false);
                }
                self.instances[i].begin(self.next_segment);
                self.next_segment += 1;
            }
            match self.run_instance(id, i, messages, io, budget)? {
                Progress::Done if !self.drain(i, io)? => return Ok(false),
                Progress::Done => {
                    self.instances[i].idle = true;
                    self.left -= 1;
                }
                Progress::Waits => return Ok(false),
                Progress::More => return Ok(true),
            }
        }
    }

    /// Takes the next window of the source from the kernel's stream. `false`: it is not there.
    fn fill(&mut self, i: usize, io: &mut Io<'_>) -> Result<bool, Refusal> {
        let Some(stream) = &mut self.input else {
            return Ok(true);
        };
        let job = &self.job;
        let len = job.window_bytes(0, self.next_segment);
        if len > 0 && stream.ready(&mut io.dma())? < len {
            self.awaits[0] = true;
            return Ok(false);
        }
        let window = job.window_at(self.instances[i].scratch_at(job), 0);
        let mut at = window;
        for src in stream.pieces(0, len).iter() {
            let dst = job.scratch.buffer(at, src.len);
            copy(io, &dst, src)?;
            at += u64::from(src.len);
        }
        stream.advance(&mut io.dma(), len)?;
        let last = self.next_segment + 1 == self.end;
        // A window fits scratch, which has less than 4 GiB.
        let window = job.scratch.buffer(window, len as u32);
        view(self.viewers[0], io, window, last)?;
        Ok(true)
    }

    /// Gives a window of the destination to the kernel. `false`: it has no room, or others come
    /// first.
    fn drain(&mut self, i: usize, io: &mut Io<'_>) -> Result<bool, Refusal> {
        let Some(stream) = &mut self.output else {
            return Ok(true);
        };
        let (job, inst) = (&self.job, &self.instances[i]);
        if inst.segment != self.next_out {
            return Ok(false);
        }
        let len = job.window_bytes(1, inst.segment);
        if len > 0 && stream.ready(&mut io.dma())? < len {
            self.awaits[1] = true;
            return Ok(false);
        }
        let window = job.window_at(inst.scratch_at(job), 1);
        let last = self.next_out + 1 == self.end;
        let all = job.scratch.buffer(window, len as u32);
        view(self.viewers[1], io, all, last)?;
        let mut at = window;
        for dst in stream.pieces(0, len).iter() {
            let src = job.scratch.buffer(at, dst.len);
            copy(io, dst, &src)?;
            at += u64::from(dst.len);
        }
        stream.advance(&mut io.dma(), len)?;
        self.next_out += 1;
        Ok(true)
    }

    /// Whether it waits for a kernel at one of its streams.
    pub(crate) fn waits_for_kernel(&self) -> bool {
        self.awaits != [false; 2]
    }

    /// Whether a kernel has moved at a stream where this waits. What it does at the other one is
    /// of no use meanwhile, and stays new until that is waited for.
    pub(crate) fn has_news(&self, io: &mut Io<'_>) -> bool {
        let ends = [&self.input, &self.output].into_iter().zip(self.awaits);
        let mut streams = ends.filter_map(|(s, awaited)| s.as_ref().filter(|_| awaited));
        streams.any(|s| s.has_news(&mut io.dma()))
    }

    fn run_instance(
        &mut self,
        id: u32,
        i: usize,
        messages: &mut Messages,
        io: &mut Io<'_>,
        budget: &mut u64,
    ) -> Result<Progress, Refusal> {
        let job = &self.job;
        let inst = &mut self.instances[i];
        let n = job.plan.steps.len() as u32;
        loop {
            inst.post_ahead(job, id, i, messages, io);
            if inst.cursor == n {
                return Ok(if inst.sends == 0 {
                    Progress::Done
                } else {
                    Progress::Waits
                });
            }
            let k = inst.cursor as usize;
            if inst.posted <= inst.cursor || inst.steps[k].waits > 0 {
                return Ok(Progress::Waits);
            }
            if job.skips(&job.plan.steps[k], inst.segment) {
                inst.cursor += 1;
                continue;
            }
            let plain = inst.run_plain(job, k, &mut io.dma(), budget);
            if let Some(reduced) = plain.map_err(|f| f.status())? {
                self.reduced += reduced;
            } else if inst.combine.is_none() {
                let Some(c) = inst.combination(job, k) else {
                    // Its outgoing messages find no slot yet.
                    return Ok(Progress::Waits);
                };
                inst.combine = Some((c, false));
            }
            while let Some((c, rounded)) = &mut inst.combine {
                let ran = c.run(&mut io.dma(), budget).map_err(|f| f.status())?;
                if ran == ReadStatus::Pending {
                    return Ok(Progress::More);
                }
                if c.sources.len() > 1 {
                    self.reduced += c.count;
                }
                // Values that other ranks get rounded, this rank keeps rounded too: the same bits
                // everywhere.
                let again = !*rounded && c.results.iter().any(|r| r.1) && c.results.len() > 1;
                if !again {
                    inst.combine = None;
                    break;
                }
                let (wire, local): (Operands, Operands) = c.results.drain(..).partition(|r| r.1);
                c.sources = wire;
                c.results = local;
                (c.done, *rounded) = (0, true);
            }
            let step = &job.plan.steps[k];
            let state = &mut inst.steps[k];
            let temps = std::mem::take(&mut state.temps);
            if !step.sends.is_empty() {
                let payload = if job.converts() {
                    let bytes = job.step_elements(step, inst.segment) * 2;
                    inst.slot(job, inst.steps[k].out, bytes)
                } else {
                    let scratch = inst.scratch_at(job);
                    step.home
                        .map_or(Pieces::default(), |h| job.pieces(h, inst.segment, scratch))
                };
                // Steps that send the same memory to one rank each are one message to several.
                let same = match job.by_copies && !job.converts() {
                    true => job.plan.same_sends(k),
                    false => 1,
                };
                let segment = inst.segment;
                let request = |k: usize, s: &NetSend| SendRequest {
                    ctx: job.ctx,
                    to: s.to,
                    tag: job.tag(segment, s.channel, s.index),
                    hash: job.hash,
                    pieces: payload.clone(),
                    when_met: job.must_meet(),
                    key: key(id, i, 0, k as u32),
                };
                let mut several = Vec::new();
                for (k, step) in (k..).zip(&job.plan.steps[k..k + same]) {
                    inst.steps[k].sends = step.sends.len() as u32;
                    inst.sends += step.sends.len() as u32;
                    let requests = step.sends.iter().map(|s| request(k, s));
                    match same {
                        1 => requests.for_each(|r| messages.send(r)),
                        _ => several.extend(requests),
                    }
                }
                if same > 1 {
                    send_to_several(messages, several);
                }
                inst.cursor += same as u32 - 1;
                self.steps_run += same as u64 - 1;
            }
            for t in temps {
                inst.free(t);
            }
            inst.cursor += 1;
            self.steps_run += 1;
        }
    }
}

/// Copies between a ring and NIC memory, which are both directly mapped: at once.
fn copy(io: &mut Io<'_>, dst: &Buffer, src: &Buffer) -> Result<(), Refusal> {
    let copied = io.dma().copy(dst, src, 0, src.len.into());
    match copied.map_err(|f| f.status())? {
        ReadStatus::Done => Ok(()),
        ReadStatus::Pending => Err((Status::InvalidArgument, src.va.0)),
    }
}

impl Instance {
    fn begin(&mut self, segment: u64) {
        self.segment = segment;
        (self.cursor, self.posted, self.idle) = (0, 0, false);
        self.steps.fill(StepState::default());
    }

    fn free(&mut self, t: Temp) {
        self.temps[t.first as usize..(t.first + t.count) as usize].fill(false);
    }

    /// Takes a run of slots among those numbered `within`: what receives are posted into ahead must
    /// never leave a message without a slot to leave from.
    fn take(&mut self, count: u32, within: Range<u32>) -> Option<Temp> {
        let n = count as usize;
        if n == 0 {
            return Some(Temp::default());
        }
        let part = self
            .temps
            .get_mut(within.start as usize..within.end as usize)?;
        let first = part.windows(n).position(|w| w.iter().all(|b| !b))?;
        part[first..first + n].fill(true);
        Some(Temp {
            first: within.start + first as u32,
            count,
        })
    }

    /// Where scratch begins.
    fn scratch_at(&self, job: &Job) -> u64 {
        let at = self.block.map_or(0, |b| b.at);
        at + self.temps.len() as u64 * job.slot_bytes
    }

    fn slot(&self, job: &Job, t: Temp, bytes: u64) -> Pieces {
        let at = self.block.map_or(0, |b| b.at) + u64::from(t.first) * job.slot_bytes;
        Pieces::one(job.scratch.buffer(at, bytes as u32))
    }

    /// Posts the receives of the steps ahead.
    fn post_ahead(
        &mut self,
        job: &Job,
        id: u32,
        i: usize,
        messages: &mut Messages,
        io: &mut Io<'_>,
    ) {
        let steps = &job.plan.steps;
        while (self.posted as usize) < steps.len() && self.posted < self.cursor + LOOK_AHEAD {
            let k = self.posted as usize;
            let step = &steps[k];
            if job.skips(step, self.segment) {
                self.posted += 1;
                continue;
            }
            let lands = step.lands && !job.converts();
            let sent = |s: &u32| self.steps[*s as usize].sends == 0;
            let in_use = lands && !step.senders.iter().all(sent);
            // The step that is next does not wait for messages that have not left: their receivers
            // may wait for it, and its own message is one that the peer had to receive them for.
            let is_ahead = lands && self.posted > self.cursor;
            if is_ahead && (in_use || step.free_after > self.cursor) {
                return;
            }
            let elements = job.step_elements(step, self.segment);
            let size = if job.converts() { 2 } else { job.size() };
            let mut temps = [Temp::default(); 2];
            if !lands {
                for (o, s) in step.sources.iter().enumerate().take(2) {
                    if !matches!(s, Source::Net(_)) {
                        continue;
                    }
                    match self.take(step.chunks, 0..job.plan.slots.inbound) {
                        Some(t) => temps[o] = t,
                        None => {
                            self.free(temps[0]);
                            return;
                        }
                    }
                }
            }
            self.steps[k].temps = temps;
            self.posted += 1;
            for (o, s) in step.sources.iter().enumerate() {
                let Source::Net(net) = s else { continue };
                let pieces = if lands {
                    let scratch = self.scratch_at(job);
                    job.pieces(step.stores[0], self.segment, scratch)
                } else {
                    self.slot(job, temps[o], elements * size)
                };
                self.steps[k].waits += 1;
                let request = RecvRequest {
                    ctx: job.ctx,
                    from: Some(net.from),
                    tag: Some(job.tag(self.segment, net.channel, net.index)),
                    hash: job.hash,
                    pieces,
                    in_use,
                    key: key(id, i, o, k as u32),
                };
                // Without a free number the step waits until its time-out.
                let _ = messages.recv(io, request);
            }
        }
    }

    /// Runs the whole pass of a step whose operands and results are one buffer each that the CPU
    /// reaches, as those of short operations are. Returns how many elements it has reduced; `None`:
    /// nothing happened, the step takes the long way.
    fn run_plain(
        &self,
        job: &Job,
        k: usize,
        dma: &mut Dma<'_>,
        budget: &mut u64,
    ) -> Result<Option<u64>, Fault> {
        let step = &job.plan.steps[k];
        let count = job.step_elements(step, self.segment);
        if job.converts() || self.combine.is_some() || count > *budget {
            return Ok(None);
        }
        let scratch = self.scratch_at(job);
        let mut buffers = SmallVec::<[Buffer; 4]>::new();
        for (s, temp) in step.sources.iter().zip(self.steps[k].temps) {
            let buffer = match s {
                Source::Local(p) => job.single(*p, scratch),
                Source::Net(_) if step.lands => job.single(step.stores[0], scratch),
                Source::Net(_) => self.slot(job, temp, count * job.size()).single(),
            };
            match buffer {
                Some(b) => buffers.push(b),
                None => return Ok(None),
            }
        }
        let sources = buffers.len();
        if sources < step.sources.len() {
            return Ok(None);
        }
        for p in step.stores.iter().skip(usize::from(step.lands)) {
            match job.single(*p, scratch) {
                // In place the value is where it belongs.
                Some(b) if sources == 1 && buffers[0] == b => {}
                Some(b) => buffers.push(b),
                None => return Ok(None),
            }
        }
        if buffers.len() == sources || sources == 0 || count == 0 {
            return Ok(Some(0));
        }
        if !pass(&job.params, (&buffers, sources), count, dma)? {
            return Ok(None);
        }
        *budget -= count;
        Ok(Some(if sources > 1 { count } else { 0 }))
    }

    /// The pass of a step; `None` while its messages find no slot to leave from.
    fn combination(&mut self, job: &Job, k: usize) -> Option<Combine> {
        let step = &job.plan.steps[k];
        let scratch = self.scratch_at(job);
        let converts = job.converts();
        let lands = step.lands && !converts;
        let count = job.step_elements(step, self.segment);
        let at = |inst: &Instance, p: Place| job.pieces(p, inst.segment, scratch);
        let mut results = Operands::new();
        if converts && !step.sends.is_empty() && count > 0 {
            let slots = job.plan.slots;
            let out = self.take(slots.run, slots.inbound..slots.all(true))?;
            self.steps[k].out = out;
            results.push((self.slot(job, out, count * 2), true));
        }
        let mut sources = Operands::new();
        for (o, s) in step.sources.iter().enumerate().filter(|_| count > 0) {
            sources.push(match s {
                Source::Local(p) => (at(self, *p), false),
                Source::Net(_) if lands => (at(self, step.stores[0]), false),
                Source::Net(_) => {
                    let size = if converts { 2 } else { job.size() };
                    let t = self.steps[k].temps[o.min(1)];
                    (self.slot(job, t, count * size), converts)
                }
            });
        }
        let stores = step.stores.iter().skip(usize::from(lands));
        results.extend(stores.filter(|_| count > 0).map(|p| (at(self, *p), false)));
        if let [(from, false)] = &sources[..] {
            // In place the value is where it belongs.
            results.retain(|(to, wire)| *wire || !to.is_at(from));
        }
        if let ([Source::Local(p)], true) = (&step.sources[..], converts && !results.is_empty()) {
            if step.stores.is_empty() && !matches!(p, Place::Input(_)) {
                // What leaves rounded stays here rounded too (`run_instance` does it).
                results.push((at(self, *p), false));
            }
        }
        let nothing = results.is_empty() || sources.is_empty();
        Some(Combine {
            dtype: job.params.dtype,
            op: job.params.op,
            wire: job.params.wire,
            sources,
            results,
            count: if nothing { 0 } else { count },
            done: 0,
            held: Held::default(),
        })
    }
}
