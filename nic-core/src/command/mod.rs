//! The command layer: descriptors in, completions out.
//!
//! It owns sessions, deadlines and completion permits; transports get operations and yield events.
//! Sans-I/O: the time of a step is an argument.

mod card;
mod collective_op;
mod control;
mod copy_op;
mod dialled;
mod engine_op;
mod engine_places;
mod engine_return;
mod env;
mod mailbox;
mod memory;
mod one_sided;
mod refusal;
mod report;
mod retire;
mod status;
mod stream;
mod streams;
mod transport_events;
mod windows;

use std::sync::Arc;
use std::time::Duration;

use ringbell_gtlb::{DmaMemory, Mmu};
use ringbell_nic_abi::bar::Reg;
use ringbell_nic_abi::{
    CollectiveSpec, Descriptor, EntryKind, EventKind, Flags, Opcode, PdId, SessionId, Status,
    WorkQueueEntry,
};

use crate::bar::Bar;
use crate::card::SharedCard;
use crate::collective::{After, Collectives};
use crate::config::NicConfig;
use crate::dma::DmaState;
use crate::engine::{EngineUseError, Return};
use crate::link::Io;
use crate::memory::nic_memory::NicMemory;
use crate::network::{Network, Protocol};
use crate::outstanding::{Operation, Outstanding};
use crate::permit::Permit;
use crate::queue::{Queues, SendQueue};
use crate::session::slot_of;
use crate::transport::{Transport, TransportEvent};
use crate::types::{NicTime, WorkToken};
use collective_op::Decoded;
use copy_op::{Copies, Ending, Step};
pub(crate) use engine_places::{EnginePlaces, On};
use engine_return::Returns;
pub(crate) use env::Env;
use memory::Memory;
use refusal::{is_fault, Refusal};
pub use report::Counters;
use report::Report;
use status::{Shown, StatusPage};
pub use streams::Undelivered;
use streams::{needs_clock, Streams};
pub(crate) use windows::Windows;
pub use windows::{RankMemory, Window};

/// Everything behind the NIC's lock: the units, and the step that calls them in order.
pub(crate) struct Core {
    pub(crate) config: NicConfig,
    pub(crate) time: Time,
    // Before the queues: a memory may hold announcements back, which point into the queues' lines.
    pub(crate) memory: Memory,
    pub(crate) queues: Queues,
    outstanding: Outstanding,
    pub(crate) streams: Streams,
    copies: Copies,
    returns: Returns,
    pub(crate) collectives: Collectives,
    pub(crate) windows: Windows,
    pub(crate) report: Report,
    status: StatusPage,
    stopping: bool,
    /// The next step looks at every part: the last one has left work, or the control path may have
    /// made some.
    pub(crate) is_due: bool,
    expired: Vec<WorkToken>,
    /// Hardware that takes descriptors and moves payloads.
    pub(crate) card: Option<SharedCard>,
}

/// What a look has found to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    Nothing,
    /// A collective can go on, and nothing else.
    Collectives,
    /// Something, perhaps of several parts.
    Anything,
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
            memory: Memory::new(mmu, DmaState::new(memory, nic_memory), config.engine_thread),
            queues: Queues::default(),
            outstanding: Outstanding::new(1024),
            streams: Streams::new(transports, network, config.max_sessions, config.linger),
            copies: Copies::default(),
            returns: Returns::default(),
            collectives: Collectives::new(config.ip),
            windows: Windows::default(),
            report: Report::new(config.event_capacity),
            status: StatusPage::default(),
            stopping: false,
            is_due: true,
            expired: Vec::new(),
            card: None,
            config,
        }
    }

    /// Puts a card behind a NIC without queues. `false`: NIC memory has no room for its payloads.
    pub(crate) fn attach(&mut self, card: SharedCard) -> bool {
        let is_attached = card::attach(&mut self.streams, &mut self.memory, &card);
        self.card = is_attached.then_some(card);
        is_attached
    }

    /// What a step without a clock reading would find to do. A load for each queue and each link,
    /// and a system call for each port of datagrams.
    #[inline(always)]
    pub(crate) fn look(&mut self) -> Found {
        let rung = self.is_due || self.queues.iter().any(SendQueue::is_rung_anew);
        if rung || self.streams.poll() {
            Found::Anything
        } else if self.collectives.exists() && !self.collectives.is_quiet() {
            Found::Collectives
        } else {
            Found::Nothing
        }
    }

    /// Whether no transport and no port has anything to do before the clock is read.
    #[inline]
    fn streams_are_quiet(&self) -> bool {
        let s = &self.streams;
        s.transports.iter().all(|t| t.is_quiet()) && (!s.has_ports() || s.network.is_quiet())
    }

    /// A step that finds nothing has been made.
    #[inline]
    pub(crate) fn count_step(&mut self) {
        self.report.counters.steps += 1;
    }

    /// Moves what can be moved: steps the parts that have something to do, all of them when the
    /// time is given or the last step has left work. `now` is given at least every few steps; in
    /// between, steps cost no clock reading. Returns whether anything moved.
    #[inline(always)]
    pub(crate) fn step(&mut self, now: Option<NicTime>) -> bool {
        self.count_step();
        self.time.fresh = now.is_some();
        let mut moved = match now {
            Some(now) => self.begin(now),
            None => false,
        };
        if let Some(card) = &self.card {
            let ran = card::step(&mut self.queues, card, self.time.fresh);
            moved |= ran.moved;
            self.is_due |= ran.is_busy;
        }
        moved |= self.take_descriptors();
        if std::mem::take(&mut self.streams.is_unflushed) {
            self.streams.transports.iter_mut().for_each(|t| t.flush());
        }
        if self.streams.has_ports() {
            // What a new operation sends leaves before the ports are asked for what has arrived.
            moved |= self.step_posted();
            if self.collectives.has_ready() {
                moved |= self.step_collectives();
            }
        }
        // Decides for all of them: memory that is polled may have bytes for any.
        let is_due = self.is_due;
        if is_due {
            moved |= self.memory.dma.poll();
        }
        if is_due || !self.streams_are_quiet() {
            moved |= self.step_transports(is_due);
        }
        if self.is_due
            || self.memory.engines.has_news()
            || (self.collectives.exists() && (moved || !self.collectives.is_quiet()))
        {
            moved |= self.step_others();
        }
        moved
    }

    /// The step of a NIC of which a look has found nothing but collectives.
    #[inline]
    pub(crate) fn step_found_collectives(&mut self) -> bool {
        self.count_step();
        self.time.fresh = false;
        self.step_others()
    }

    /// The part of a step that needs the time.
    #[inline(never)]
    fn begin(&mut self, now: NicTime) -> bool {
        self.is_due = true;
        self.time.now = self.time.now.max(now);
        self.time.is_wanted = false;
        let mut moved = self.expire();
        moved |= self.poll_mailbox();
        if self.status.is_due(self.time.now) {
            self.refresh_status();
        }
        moved
    }

    /// Steps the ports and transports that have something to do.
    #[inline(never)]
    fn step_transports(&mut self, is_due: bool) -> bool {
        let ports_are = self.streams.has_ports() && (is_due || !self.streams.network.is_quiet());
        let arrived = ports_are && self.streams.deliver(self.time.now, &mut self.memory);
        let mut moved = arrived;
        for i in 0..self.streams.transports.len() {
            let t = &mut self.streams.transports[i];
            let taker = arrived.then(|| t.caps().protocol).flatten();
            if taker == Some(Protocol::Roce) && !is_due && !t.is_quiet() {
                // The next step answers first of all: together with what a kernel sends upon these
                // packets.
                moved |= self.poll_events(i);
            } else if is_due || !t.is_quiet() || taker.is_some() {
                moved |= self.step_transport(i);
            }
        }
        moved
    }

    /// Lets what was posted leave by the ports, and arrive out of the transports' buffers.
    #[inline(never)]
    fn step_posted(&mut self) -> bool {
        let mut moved = false;
        for i in 0..self.streams.transports.len() {
            let t = &mut self.streams.transports[i];
            if t.packets().is_some() && !t.is_quiet() {
                moved |= self.step_transport(i);
            }
        }
        moved
    }

    fn step_transport(&mut self, i: usize) -> bool {
        let Streams {
            transports,
            network,
            ..
        } = &mut self.streams;
        let (transport, now) = (&mut transports[i], self.time.now);
        let memory = &mut self.memory;
        let moved = memory.with_datapath(i, |data| transport.step(now, network, data));
        moved | self.poll_events(i)
    }

    /// Acts on the events of a transport. Returns whether there were any.
    #[inline]
    fn poll_events(&mut self, i: usize) -> bool {
        let mut any = false;
        while let Some(e) = self.streams.transports[i].poll_event() {
            self.on_transport_event(i, e);
            any = true;
        }
        any
    }

    #[inline]
    fn on_transport_event(&mut self, t: usize, event: TransportEvent) {
        if let TransportEvent::SendDone {
            token,
            status,
            bytes,
            detail,
            conn,
        }
        | TransportEvent::RecvDone {
            token,
            status,
            bytes,
            detail,
            conn,
        }
        | TransportEvent::RemoteDone {
            token,
            status,
            bytes,
            detail,
            conn,
        } = event
        {
            if Outstanding::is_own(token) {
                if let Some(work) = self.outstanding.remove(token) {
                    self.streams.count((t, conn), &work, bytes);
                    self.retire_work(work, status, bytes, detail);
                }
                return;
            }
        }
        self.on_other_event(t, event);
    }

    /// An event of a connection, of a link, or of the NIC's own answers.
    #[inline(never)]
    fn on_other_event(&mut self, t: usize, event: TransportEvent) {
        if self.collectives.exists() {
            let (collectives, mut io) = self.collectives_io();
            if collectives.on_event(&mut io, t, &event) {
                return;
            }
        }
        let (streams, returns, mut env) = self.streams_env();
        if !returns.on_event(streams, &mut env, &event) {
            streams.on_event(t, event, &mut env);
        }
        self.retire_ended();
    }

    /// Engines' notices, collectives and copies.
    #[inline(never)]
    fn step_others(&mut self) -> bool {
        let engines = &mut self.memory.engines;
        self.report.tell_engine_notices(self.time.now, engines);
        let mut moved = self.step_collectives();
        moved |= !self.copies.is_empty() && self.step_copies();
        self.is_due = self.queues.iter().any(SendQueue::is_pending)
            || !self.copies.is_empty()
            || !self.memory.is_quiet()
            || self.time.is_wanted
            || self.card.as_ref().is_some_and(|c| c.lock().is_busy());
        moved
    }

    /// Moves collectives on.
    #[inline]
    fn step_collectives(&mut self) -> bool {
        if !self.collectives.exists() {
            return false;
        }
        let fresh = self.time.fresh;
        let queues = &self.queues;
        let ended = |after: After| match after {
            After::Nothing => true,
            After::Ticket { queue, ticket } => !queues[queue as usize].is_outstanding(ticket),
            After::Fence { queue, ticket } => !queues[queue as usize].is_outstanding_before(ticket),
        };
        let mut io = Io {
            now: self.time.now,
            transports: &mut self.streams.transports,
            net: &mut self.streams.network,
            mmu: &mut self.memory.mmu,
            dma: &mut self.memory.dma,
            engines: &mut self.memory.engines,
        };
        let moved = self.collectives.step(&mut io, fresh, &ended);
        self.retire_collectives();
        if !self.windows.dialled.is_empty() {
            self.post_dialled();
        }
        if self.collectives.take_posted() && self.streams.has_ports() {
            self.step_posted();
        }
        if !fresh && self.collectives.wants_clock() {
            self.time.is_wanted = true;
        }
        moved
    }

    /// Moves the oldest copies on. Returns whether any byte moved.
    fn step_copies(&mut self) -> bool {
        let mut budget = copy_op::STEP_BYTES;
        let mut moved = false;
        while budget > 0 {
            match self.copies.step(&mut self.memory.dma(), &mut budget) {
                Step::Waits => break,
                Step::Moved => moved = true,
                Step::Ended(token, status, bytes, detail) => {
                    moved = true;
                    self.retire(token, status, bytes, detail);
                }
            }
        }
        moved
    }

    /// The collectives and what they work with.
    #[inline]
    fn collectives_io(&mut self) -> (&mut Collectives, Io<'_>) {
        let io = Io {
            now: self.time.now,
            transports: &mut self.streams.transports,
            net: &mut self.streams.network,
            mmu: &mut self.memory.mmu,
            dma: &mut self.memory.dma,
            engines: &mut self.memory.engines,
        };
        (&mut self.collectives, io)
    }

    /// Runs `f` with the collectives, and retires the operations that it has ended.
    pub(crate) fn collectives<R>(
        &mut self,
        f: impl FnOnce(&mut Collectives, &mut Io<'_>) -> R,
    ) -> R {
        let (collectives, mut io) = self.collectives_io();
        let r = f(collectives, &mut io);
        self.retire_collectives();
        r
    }

    /// The streams and what they work with.
    #[inline]
    fn streams_env(&mut self) -> (&mut Streams, &mut Returns, Env<'_>) {
        let env = Env {
            now: self.time.now,
            memory: &mut self.memory,
            report: &mut self.report,
        };
        (&mut self.streams, &mut self.returns, env)
    }

    /// Runs `f` with the streams, and retires the operations that it has ended.
    fn streams<R>(&mut self, f: impl FnOnce(&mut Streams, &mut Env<'_>) -> R) -> R {
        let (streams, _, mut env) = self.streams_env();
        let r = f(streams, &mut env);
        self.retire_ended();
        r
    }

    /// The places of engines.
    pub(crate) fn engine_places(&mut self) -> EnginePlaces<'_> {
        EnginePlaces {
            env: Env {
                now: self.time.now,
                memory: &mut self.memory,
                report: &mut self.report,
            },
            streams: &mut self.streams,
            queues: &self.queues,
            outstanding: &mut self.outstanding,
            collectives: &mut self.collectives,
        }
    }

    /// Starts to receive the stream of a session, and to answer. An engine must be on its path.
    pub(crate) fn start_return(
        &mut self,
        session: SessionId,
        what: Return,
    ) -> Result<(), EngineUseError> {
        let (streams, returns, mut env) = self.streams_env();
        returns.start(streams, &mut env, session, what)
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
                if !self.memory.dma.is_mapped() {
                    let place = self.queues[q].place(ticket);
                    self.memory.dma.memory.begins(&entry, place);
                }
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

    /// Executes the entry that a queue has shown by the whole decoder. `false`: it needs a reading
    /// of the clock first.
    #[inline(never)]
    fn execute(&mut self, q: usize, ticket: u32, entry: &WorkQueueEntry) -> bool {
        let decoded = entry.decode();
        let opcode = entry.0[0] as u8;
        // Collectives and one-sided operations give transports work, which makes them look; other
        // operations may do so at once.
        let gives_work = |op: Opcode| op == Opcode::Collective || op.is_one_sided();
        self.is_due |= !Opcode::from_code(opcode).is_some_and(gives_work);
        if let Ok(d) = &decoded {
            if needs_clock(d.opcode) && !self.time.fresh {
                self.time.is_wanted = true;
                return false;
            }
        }
        self.queues[q].consume();
        self.report.counters.accepted += 1;
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
            let why = (Status::BadDescriptor, word.into());
            collective_op::refuse_streams(&mut self.memory, pd, entry.operands(), why);
        }
        self.finish(permit, Status::BadDescriptor, 0, word.into());
    }

    fn accept(&mut self, permit: Permit, d: &Descriptor) {
        let pd = self.queues[permit.queue as usize].pd;
        let answer = match d.opcode {
            _ if self.stopping => Err((Status::ShuttingDown, 0)),
            Opcode::Nop => Ok((0, 0)),
            Opcode::Send => return self.send(permit, pd, d),
            // `take_descriptors` has taken every well-formed one.
            Opcode::Recv => Err((Status::BadDescriptor, 0)),
            Opcode::Socket => self.streams.socket(pd),
            Opcode::Listen => self.streams.listen(pd, d),
            Opcode::Shutdown => self.streams.shutdown(pd, d),
            Opcode::Close | Opcode::Abort => self.streams(|s, env| s.close(pd, d, env)),
            Opcode::Accept | Opcode::Connect => match self.streams.may_begin(pd, d) {
                Ok(()) => return self.begin_session(permit, d),
                Err(refusal) => Err(refusal),
            },
            Opcode::Copy if d.len == 0 => Ok((0, 0)),
            Opcode::Copy => match Copies::pin(&mut self.memory, pd, d) {
                Ok((pins, sides)) => {
                    let mut work = self.operation(permit, d, u32::MAX);
                    work.pins = pins;
                    let token = self.outstanding.insert(work);
                    return self.copies.begin(token, sides, d.imm, Ending::default());
                }
                Err(refusal) => Err(refusal),
            },
            Opcode::Collective => return self.collective(permit, pd, d),
            Opcode::EngineAttach => self.engine_places().execute(pd, d),
            Opcode::EngineDetach => engine_op::detach(&mut self.memory.engines, pd, d),
            Opcode::EngineResult => engine_op::result(&mut self.memory, pd, d),
            Opcode::Put | Opcode::Get | Opcode::FetchAdd | Opcode::CompareSwap => {
                let symmetric = (&self.collectives, &self.windows);
                match one_sided::prepare(&mut self.streams, symmetric, &mut self.memory, pd, d) {
                    Ok(ready) => return self.begin_one_sided(permit, d, ready),
                    Err(refusal) => Err(refusal),
                }
            }
        };
        match answer {
            Ok((bytes, detail)) => self.finish(permit, Status::Ok, bytes, detail),
            Err(refusal) => self.refuse_operation(permit, pd, d, refusal),
        }
    }

    #[cold]
    fn refuse_operation(
        &mut self,
        permit: Permit,
        pd: PdId,
        d: &Descriptor,
        (status, detail): Refusal,
    ) {
        if is_fault(status) {
            let none = SessionId(u32::MAX);
            self.report.fault(self.time.now, none, detail);
        }
        if d.opcode == Opcode::Collective {
            let operands = (d.local_va, d.len, d.remote_va);
            collective_op::refuse_streams(&mut self.memory, pd, operands, (status, detail));
        }
        self.finish(permit, status, 0, detail);
    }

    fn collective(&mut self, permit: Permit, pd: PdId, d: &Descriptor) {
        let (collectives, mmu) = (&mut self.collectives, &mut self.memory.mmu);
        let Decoded {
            slot,
            task,
            pins,
            rings,
        } = match collective_op::decode(collectives, mmu, pd, d) {
            Ok(decoded) => decoded,
            Err(refusal) => return self.refuse_operation(permit, pd, d, refusal),
        };
        let (queue, ticket) = (permit.queue, permit.ticket);
        let after = match CollectiveSpec::distance(d.len) {
            _ if d.flags.contains(Flags::FENCE) => After::Fence { queue, ticket },
            0 => After::Nothing,
            distance => After::Ticket {
                queue,
                ticket: ticket.wrapping_sub(distance),
            },
        };
        let timeout_us = self.queues[queue as usize].timeout_us(d.timeout_us);
        let extra_us = collective_op::answer_us(timeout_us);
        let token = self.outstanding.insert(Operation {
            permit,
            scatter_to_cqe: false,
            opcode: Opcode::Collective,
            session: u32::MAX,
            chain: None,
            conn: None,
            pins,
            va: d.local_va.0,
            timeout_us: timeout_us - extra_us,
            extra_us,
        });
        let seen = crate::collective::seen(&self.memory.engines, slot, pd);
        self.collectives(|c, io| c.post(io, slot, token, task, (rings, seen), after));
    }

    /// An `ACCEPT` or a `CONNECT` that may begin.
    fn begin_session(&mut self, permit: Permit, d: &Descriptor) {
        let us = self.queues[permit.queue as usize].timeout_us(d.timeout_us);
        let deadline = self.time.now.plus(Duration::from_micros(us.into()));
        let slot = slot_of(d.session);
        let token = self.outstanding.insert(self.operation(permit, d, slot));
        self.streams(|s, env| match d.opcode {
            Opcode::Connect => s.connect(env.now, d, token, deadline),
            _ => s.accept(slot, token),
        });
    }

    /// An operation for a descriptor, with its time-out.
    fn operation(&self, permit: Permit, d: &Descriptor, slot: u32) -> Operation {
        self.queues[permit.queue as usize].operation(permit, d, slot)
    }

    /// Operations that have ended, ever, and other events that threads wait for.
    #[inline]
    pub(crate) fn ended(&self) -> u64 {
        let of_inboxes = self.collectives.inboxes.ended;
        self.report.counters.retired.wrapping_add(of_inboxes)
    }

    /// Whether the NIC needs no step before a thread, or a transport's descriptor, notifies it of
    /// work.
    pub(crate) fn may_sleep(&self) -> bool {
        !self.is_active() && self.memory.is_quiet() && self.next_timer().is_none()
    }

    /// Whether descriptors or connections are under way.
    pub(crate) fn is_active(&self) -> bool {
        self.outstanding.len() > 0
            || !self.streams.lingering.is_empty()
            || self.memory.dma.in_flight() > 0
            || self.collectives.is_active()
    }

    /// Takes what a kernel has put in the mailbox. Returns whether there was something.
    pub(crate) fn poll_mailbox(&mut self) -> bool {
        let report = &mut self.report;
        let (card, events) = (self.card.as_ref(), &mut report.events);
        report.mailbox.poll(self.time.now, card, events)
    }

    /// Shows the status registers in this BAR from now on.
    pub(crate) fn show_status_in(&mut self, bar: Bar) {
        self.report.mailbox.show_in(bar.clone());
        self.status.show_in(bar);
        self.refresh_status();
    }

    fn refresh_status(&mut self) {
        let mut page = std::mem::take(&mut self.status);
        page.refresh(self.time.now, &self.shown());
        self.status = page;
    }

    /// The numbers that only grow, those of other modules included.
    pub(crate) fn counters(&self) -> Counters {
        Counters {
            copied_bytes: self.memory.dma.copied,
            staged_bytes: self.memory.dma.staged,
            direct_bytes: self.memory.dma.direct,
            events_lost: self.report.events.lost(),
            ..self.report.counters
        }
    }

    fn shown(&self) -> Shown<'_> {
        Shown {
            config: &self.config,
            card: self.card.as_ref(),
            queues: &self.queues,
            streams: &self.streams,
            memory: &self.memory,
            report: &self.report,
            counters: self.counters(),
        }
    }

    /// The value of a register now; none when it has none besides what was last written.
    pub(crate) fn register_value(&self, reg: Reg) -> Option<u32> {
        self.shown().value(reg)
    }

    /// The word at an offset of the block headers now; none where there is no header.
    pub(crate) fn header_word(&self, offset: usize) -> Option<u32> {
        self.shown().header_word(offset)
    }
}
