//! The command layer: descriptors in, completions out.
//!
//! It owns sessions, deadlines and completion permits; transports get operations and yield events.
//! Sans-I/O: the time of a step is an argument.

mod collective_op;
mod control;
mod copy_op;
mod deadline;
mod engine_op;
mod engine_return;
mod engine_watch;
mod memory;
mod report;
mod status;
mod stream;
mod streams;
mod transport_events;

use std::sync::Arc;
use std::time::Duration;

use ringbell_gtlb::{DmaMemory, Mmu, Pin};
use ringbell_nic_abi::{
    Descriptor, EntryKind, EventKind, GpuVa, Lkey, Opcode, PdId, SessionId, Status, WorkQueueEntry,
};

use crate::collective::Collectives;
use crate::config::NicConfig;
use crate::datapath::Datapath;
use crate::dma::DmaState;
use crate::engine::Engines;
use crate::memory::nic_memory::NicMemory;
use crate::network::{Network, Protocol, PROTOCOLS};
use crate::outstanding::{Operation, Outstanding};
use crate::permit::Permit;
use crate::queue::SendQueue;
use crate::session::Sessions;
use crate::transport::{deliver, Takers, Transport};
use crate::types::{Buffer, NicTime, WorkToken};
use copy_op::Copies;
use engine_return::Returns;
use memory::Memory;
use report::Report;
pub use streams::Undelivered;
use streams::{Lingering, Streams};

/// Numbers that only grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Counters {
    /// Descriptors accepted.
    pub accepted: u64,
    /// Descriptors retired.
    pub retired: u64,
    /// Malformed descriptors, a part of the accepted.
    pub bad_descriptors: u64,
    /// Operations that retired because their time was up.
    pub timed_out: u64,
    /// DMA faults.
    pub faults: u64,
    /// Payload bytes sent.
    pub tx_bytes: u64,
    /// Payload bytes received.
    pub rx_bytes: u64,
    /// Payload bytes copied by this NIC.
    pub copied_bytes: u64,
    /// Payload bytes that went through NIC memory because the peer could not reach them, a part of the
    /// copied.
    pub staged_bytes: u64,
    /// Payload bytes that the memory's own engine copied, out of a peer's memory or inside it, past host and NIC memory;
    /// a part of the copied.
    pub direct_bytes: u64,
    /// Times that an engine was measured slower than it declares or than its stream.
    pub engines_slow: u64,
    /// Streams that ended inside an item of an engine, and engines that have failed.
    pub engine_errors: u64,
    /// Events lost.
    pub events_lost: u64,
    /// Steps.
    pub steps: u64,
}

/// Everything behind the NIC's lock.
pub(crate) struct Core {
    pub(crate) config: NicConfig,
    pub(crate) time: Time,
    // Before the queues: a memory may hold announcements back, which point into the queues' lines.
    pub(crate) memory: Memory,
    pub(crate) queues: Vec<SendQueue>,
    pub(crate) sessions: Sessions,
    pub(crate) outstanding: Outstanding,
    pub(crate) streams: Streams,
    copies: Copies,
    returns: Returns,
    pub(crate) collectives: Collectives,
    pub(crate) report: Report,
    pub(crate) stopping: bool,
    /// The next step looks at every part: the last one has left work, or the control path may have made some.
    pub(crate) is_due: bool,
    expired: Vec<WorkToken>,
}

/// The time of a step, and which parts need it.
#[derive(Debug)]
pub(crate) struct Time {
    /// As last read.
    pub(crate) now: NicTime,
    /// It was read for this step.
    fresh: bool,
    /// An operation waits for a reading.
    pub(crate) is_wanted: bool,
}

impl Core {
    pub(crate) fn new(
        config: NicConfig,
        mmu: Mmu,
        memory: Arc<dyn DmaMemory>,
        nic_memory: NicMemory,
        transports: Vec<Box<dyn Transport>>,
        network: Network,
    ) -> Core {
        Core {
            time: Time {
                now: NicTime(0),
                fresh: false,
                is_wanted: true,
            },
            memory: Memory::new(mmu, DmaState::new(memory, nic_memory)),
            queues: Vec::new(),
            sessions: Sessions::new(config.max_sessions),
            outstanding: Outstanding::new(1024),
            streams: Streams::new(transports, network),
            copies: Copies::default(),
            returns: Returns::default(),
            collectives: Collectives::new(config.ip),
            report: Report::new(config.event_capacity),
            stopping: false,
            is_due: true,
            expired: Vec::new(),
            config,
        }
    }

    /// How many queues there are; some are two rings.
    pub(crate) fn queue_count(&self) -> u32 {
        let kernels = self.queues.iter().enumerate();
        kernels
            .filter(|(i, ring)| ring.queue.0 as usize == *i)
            .count() as u32
    }

    /// Whether a step without a clock reading would find nothing to do. A load for each queue and each link.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        !self.is_due
            && !self.queues.iter().any(SendQueue::is_rung_anew)
            && self.streams.transports.iter().all(|t| t.is_quiet())
            && (!self.collectives.exists() || self.collectives.is_quiet())
    }

    /// A step that finds nothing has been made.
    #[inline]
    pub(crate) fn count_step(&mut self) {
        self.report.counters.steps += 1;
    }

    /// Moves what can be moved: steps the parts that have something to do, all of them when the time is given or the
    /// last step has left work. `now` is given at least every few steps; in between, steps cost no clock reading.
    /// Returns whether anything moved.
    #[inline(always)]
    pub(crate) fn step(&mut self, now: Option<NicTime>) -> bool {
        self.count_step();
        self.time.fresh = now.is_some();
        let mut moved = match now {
            Some(now) => self.begin(now),
            None => false,
        };
        moved |= self.take_descriptors();
        // Decides for all of them: memory that is polled may have bytes for any.
        let is_due = self.is_due;
        if is_due {
            moved |= self.memory.dma.poll();
        }
        if self.streams.has_ports() {
            moved |= self.deliver();
        }
        for i in 0..self.streams.transports.len() {
            if is_due || !self.streams.transports[i].is_quiet() {
                moved |= self.step_transport(i);
            }
        }
        if self.is_due
            || self.memory.dma.engines.has_news()
            || (self.collectives.exists() && (moved || !self.collectives.is_quiet()))
        {
            moved |= self.step_others();
        }
        moved
    }

    /// The part of a step that needs the time.
    #[inline(never)]
    fn begin(&mut self, now: NicTime) -> bool {
        self.is_due = true;
        self.time.now = self.time.now.max(now);
        self.time.is_wanted = false;
        let moved = self.expire();
        self.keep_status_fresh();
        moved
    }

    /// Passes what has arrived at the ports to the transports.
    fn deliver(&mut self) -> bool {
        let Streams {
            transports,
            network,
            ..
        } = &mut self.streams;
        let mut takers: Takers<'_> = [const { None }; PROTOCOLS];
        let mut writes = 0;
        for (i, transport) in transports.iter_mut().enumerate() {
            if let Some(taker) = transport.packets() {
                let protocol = taker.protocol();
                // The one that writes to memory as it receives.
                if protocol == Protocol::Roce {
                    writes = i;
                }
                takers[protocol as usize] = Some(taker);
            }
        }
        let mut engines = std::mem::take(&mut self.memory.dma.engines);
        let mut dma = self.memory.dma();
        let mut data = Datapath::new(&mut dma, &mut engines, writes);
        let any = deliver(self.time.now, network, &mut takers, &mut data);
        self.memory.dma.engines = engines;
        any
    }

    fn step_transport(&mut self, i: usize) -> bool {
        self.memory.dma.transport_index = i;
        let Streams {
            transports,
            network,
            ..
        } = &mut self.streams;
        let transport = &mut transports[i];
        // `local` still finds the engines behind its memory.
        let own = transport.packets().is_some() && !self.memory.dma.engines.is_idle();
        let mut engines = Engines::default();
        if own {
            std::mem::swap(&mut engines, &mut self.memory.dma.engines);
        }
        let mut dma = self.memory.dma();
        let mut data = Datapath::new(&mut dma, &mut engines, i);
        let mut moved = transport.step(self.time.now, network, &mut data);
        if own {
            self.memory.dma.engines = engines;
        }
        while let Some(e) = self.streams.transports[i].poll_event() {
            self.on_transport_event(i, e);
            moved = true;
        }
        moved
    }

    /// Engines' notices, collectives and copies.
    #[inline(never)]
    fn step_others(&mut self) -> bool {
        self.tell_engine_notices();
        let mut moved = self.step_collectives();
        moved |= !self.copies.is_empty() && self.step_copies();
        self.is_due = self.queues.iter().any(SendQueue::is_pending)
            || !self.copies.is_empty()
            || !self.memory.dma.is_quiet()
            || self.time.is_wanted;
        moved
    }

    /// When the NIC must be stepped although nothing arrives.
    pub(crate) fn next_timer(&self) -> Option<NicTime> {
        let mut t = self.outstanding.next_deadline();
        let mut add = |x: Option<NicTime>| {
            t = match (t, x) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            }
        };
        add(self.streams.next_timer());
        add(self.collectives.next_timer());
        t
    }

    #[inline(never)]
    fn take_descriptors(&mut self) -> bool {
        let mut moved = false;
        for q in 0..self.queues.len() {
            for _ in 0..self.config.batch {
                let Some((ticket, entry)) = self.queues[q].peek() else {
                    break;
                };
                let done = match entry.kind() {
                    EntryKind::InlineSend => self.send_now(q, &entry, true),
                    EntryKind::Send => self.send_now(q, &entry, false),
                    EntryKind::Receive => {
                        if !self.receive_now(q, &entry) {
                            self.receive(q, ticket, &entry);
                        }
                        true
                    }
                    EntryKind::Nop if !self.stopping => {
                        self.complete_next(q, Opcode::Nop, &entry, 0);
                        true
                    }
                    EntryKind::Nop | EntryKind::Other => false,
                };
                if !done && !self.execute(q, ticket, &entry) {
                    break;
                }
                moved = true;
            }
            // It is looked at in the next step, whether its doorbell rings or not.
            self.is_due |= self.queues[q].is_pending();
        }
        moved
    }

    /// Executes the entry that a queue has shown by the whole decoder. `false`: it needs a reading of the clock first.
    #[inline(never)]
    fn execute(&mut self, q: usize, ticket: u32, entry: &WorkQueueEntry) -> bool {
        let decoded = entry.decode();
        self.is_due = true;
        if let Ok(d) = &decoded {
            if needs_clock(d.opcode) && !self.time.fresh {
                self.time.is_wanted = true;
                return false;
            }
        }
        self.queues[q].consume();
        self.report.counters.accepted += 1;
        let opcode = entry.0[0] as u8;
        let permit = Permit::new(q as u32, ticket, opcode, entry.wr_id());
        match decoded {
            Ok(d) => self.accept(permit, &d),
            Err(e) => self.refuse(permit, entry, e.word()),
        }
        true
    }

    fn refuse(&mut self, permit: Permit, entry: &WorkQueueEntry, word: u8) {
        let queue = self.queues[permit.queue as usize].queue.0;
        tracing::warn!(queue, word, entry = ?entry.0, "malformed descriptor");
        self.report.counters.bad_descriptors += 1;
        self.report.last_bad = queue << 8 | u32::from(word);
        self.report
            .events
            .push(self.time.now, EventKind::BadDescriptor, queue, word.into());
        if Opcode::from_code(entry.0[0] as u8) == Some(Opcode::Collective) {
            let pd = self.queues[permit.queue as usize].pd;
            self.refuse_streams(pd, entry.operands(), Status::BadDescriptor, word.into());
        }
        self.finish(permit, Status::BadDescriptor, 0, word.into());
    }

    fn accept(&mut self, permit: Permit, d: &Descriptor) {
        let pd = self.queues[permit.queue as usize].pd;
        if self.stopping {
            let why = (Status::ShuttingDown, 0);
            return match d.opcode {
                Opcode::Collective => self.refuse_collective(permit, pd, d, why),
                _ => self.finish(permit, why.0, 0, why.1),
            };
        }
        match d.opcode {
            Opcode::Nop => self.finish(permit, Status::Ok, 0, 0),
            Opcode::Send => self.send(permit, pd, d),
            // `take_descriptors` has taken every well-formed one.
            Opcode::Recv => self.finish(permit, Status::BadDescriptor, 0, 0),
            Opcode::Socket => self.socket(permit, pd),
            Opcode::Listen => self.listen(permit, pd, d),
            Opcode::Accept => self.accept_op(permit, pd, d),
            Opcode::Connect => self.connect(permit, pd, d),
            Opcode::Shutdown => self.shutdown_op(permit, pd, d),
            Opcode::Close => self.close_op(permit, pd, d, false),
            Opcode::Abort => self.close_op(permit, pd, d, true),
            Opcode::Copy => self.copy_op(permit, pd, d),
            Opcode::Collective => self.collective_op(permit, pd, d),
            Opcode::EngineAttach => self.engine_attach(permit, pd, d),
            Opcode::EngineDetach => self.engine_detach(permit, pd, d),
            Opcode::EngineResult => self.engine_result(permit, pd, d),
        }
    }

    /// An operation for a descriptor, with its time-out.
    fn operation(&self, permit: Permit, d: &Descriptor, slot: u32) -> Operation {
        self.queues[permit.queue as usize].operation(permit, d, slot)
    }

    /// When a descriptor that is being accepted now times out.
    fn deadline_of(&self, queue: u32, d: &Descriptor) -> NicTime {
        let us = self.queues[queue as usize].timeout_us(d.timeout_us);
        self.time.now.plus(Duration::from_micros(us.into()))
    }

    /// Retires a descriptor that never became an operation.
    #[inline]
    fn finish(&mut self, permit: Permit, status: Status, bytes: u64, detail: u64) {
        let memory = &*self.memory.dma.memory;
        self.queues[permit.queue as usize].retire(permit, status, bytes, detail, memory);
        self.report.counters.retired += 1;
    }

    /// Retires an operation, unless it has retired already.
    fn retire(&mut self, token: WorkToken, status: Status, bytes: u64, detail: u64) {
        if let Some(work) = self.outstanding.remove(token) {
            self.retire_work(work, status, bytes, detail);
        }
    }

    /// Retires an operation that is no longer outstanding.
    #[inline]
    fn retire_work(&mut self, mut work: Operation, status: Status, bytes: u64, detail: u64) {
        for pin in work.pins.iter_mut() {
            if let Some(pin) = pin.take() {
                if status != Status::Ok {
                    self.memory.dma.forget_reads(pin.region);
                }
                self.memory.mmu.unpin(pin);
            }
        }
        let is_fault = matches!(
            status,
            Status::NotRegistered
                | Status::OutOfBounds
                | Status::AccessDenied
                | Status::NoTranslation
                | Status::RegionFreed
        );
        if is_fault {
            self.fault(work.session, detail);
        }
        if let (Some(id), false) = (work.chain, status == Status::Ok) {
            self.sessions.end_chain(id, status, detail);
        }
        match work.opcode {
            Opcode::Send => self.report.counters.tx_bytes += bytes,
            Opcode::Recv => self.report.counters.rx_bytes += bytes,
            _ => {}
        }
        if work.scatter_to_cqe {
            return self.finish_scattered(work.permit, GpuVa(work.va), status, bytes, detail);
        }
        self.finish(work.permit, status, bytes, detail);
    }

    fn fault(&mut self, session: u32, va: u64) {
        let id = self.sessions.id(session);
        self.report.fault(self.time.now, id, va);
    }

    /// Checks and pins a range; on a fault the permit retires with it.
    fn pin(
        &mut self,
        permit: Permit,
        pd: PdId,
        lkey: u32,
        range: (ringbell_nic_abi::GpuVa, u32),
        need: ringbell_gtlb::Need,
        slot: u32,
    ) -> Option<(Permit, Pin, Buffer)> {
        match self
            .memory
            .mmu
            .pin(pd, Lkey(lkey), range.0, u64::from(range.1), need)
        {
            Ok(pin) => {
                let buffer = Buffer {
                    region: pin.region,
                    va: range.0,
                    len: range.1,
                };
                Some((permit, pin, buffer))
            }
            Err(fault) => {
                self.refuse_pin(permit, fault, slot);
                None
            }
        }
    }

    /// Retires a descriptor whose buffer may not be used.
    #[cold]
    fn refuse_pin(&mut self, permit: Permit, fault: ringbell_gtlb::Fault, slot: u32) {
        let (status, detail) = fault.status();
        self.fault(slot, detail);
        self.finish(permit, status, 0, detail);
    }

    /// Whether the NIC needs no step before a thread, or a transport's descriptor, notifies it of work.
    pub(crate) fn may_sleep(&self) -> bool {
        !self.is_active() && self.memory.dma.is_quiet() && self.next_timer().is_none()
    }

    /// Whether descriptors or connections are under way.
    pub(crate) fn is_active(&self) -> bool {
        self.outstanding.len() > 0
            || !self.streams.lingering.is_empty()
            || self.memory.dma.in_flight() > 0
            || self.collectives.is_active()
    }

    fn slot(id: SessionId) -> u32 {
        id.0 & 0xffff
    }
}

/// Operations that tell a transport a point in time.
const fn needs_clock(op: Opcode) -> bool {
    matches!(
        op,
        Opcode::Connect | Opcode::Close | Opcode::Abort | Opcode::Listen
    )
}
