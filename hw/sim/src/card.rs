//! [`Card`]: the verilated `nic_top` as the card of a NIC, cycle by cycle.
//!
//! Its PCIe side is a [`Bus`]; its network side and its command layer are queues of plain values,
//! which the NIC fills and empties between cycles ([`ringbell_nic_core::card`]). Time is cycles;
//! the wall clock tells only how fast the simulation is.
#![allow(unsafe_code)] // An instance moves between the threads that step its NIC.
#![allow(clippy::disallowed_methods)] // Measures the simulation.

use std::collections::VecDeque;
use std::ffi::CStr;
use std::fmt;
use std::time::Instant;

use ringbell_nic_abi::{DataType, ReduceOp, WorkQueueEntry};
use ringbell_nic_core::card as nic;
pub use ringbell_nic_core::card::{Bus, Control, Counted, Cycles, Ended, Event, Fetched, Io, LINE};

use crate::neighbours::Ring;
use crate::nic_top::Block;
use crate::reducer::Reducer;
use crate::ring::{Piece, Report, Step};

/// Cycles after which an answer that the card owes is missing. Clearing the GTLB's 16,384 main
/// entries takes the longest.
const PATIENCE: u64 = 4 * 16_384;
/// Cycles without a sign of work after which nothing is under way, beside the bus's latency.
const REST: u64 = 48;
/// Looks for an entry that has not come which count as work. The card looks again every 256 cycles.
const LOOKS: u32 = 3;

/// A burst asked for: when its first line comes, next line, lines left, and whether it is an entry.
type Burst = (u64, u64, u64, bool);

/// See the module text.
pub struct Card {
    rtl: Block,
    /// The block `reduce`, beside it.
    reducer: Reducer,
    /// What surrounds the block `ring`.
    pub(crate) ring: Ring,
    bus: Box<dyn Bus>,
    /// Cycles from a read's request to its first line.
    latency: u64,
    now: Cycles,
    reads: VecDeque<Burst>,
    events: VecDeque<Event>,
    ios: VecDeque<Io>,
    dones: VecDeque<(u32, u32, u8, u64, u64)>,
    credits: VecDeque<(u16, u32)>,
    /// Connection, stated bytes, whether they came before, and the bytes.
    segments: VecDeque<(u16, u32, bool, Vec<u8>)>,
    /// Segments whose meta was taken, and their next byte.
    rx: VecDeque<(Vec<u8>, usize)>,
    /// The chunk that leaves: connection, announced bytes, and the bytes.
    tx: Option<(u16, u32, Vec<u8>)>,
    /// The engine's result, as far as it has come.
    result: Vec<u8>,
    /// Bytes of `segments` and `rx`.
    backlog: usize,
    work: Work,
    ports: Ports,
    asks: Asks,
    /// A trace is written.
    traced: bool,
}

/// The access of the BAR that is under way: what of it the block has not taken.
#[derive(Default)]
struct Asks {
    write_address: bool,
    write_data: bool,
    read: bool,
}

/// What tells a busy card from one at rest.
#[derive(Default)]
struct Work {
    /// The last cycle with a sign of work.
    worked: u64,
    /// Looks for entries since the last that was there.
    looks: u32,
    /// An access of the BAR, or of the control ports, waits for its answer.
    awaited: bool,
}

/// Outputs that the surroundings take, in the order of `Ports::ready`.
const SINKS: usize = 12;
/// Inputs that the surroundings offer, in the order of `Ports::offered`.
const SOURCES: usize = 8;

/// Sees the ports in each cycle.
type Watch = Box<dyn FnMut(&Block) + Send>;

/// What may move in this cycle, and who looks on.
#[derive(Default)]
struct Ports {
    may: Option<Box<dyn FnMut() -> bool + Send>>,
    watch: Option<Watch>,
    ready: [bool; SINKS],
    /// What was offered stays until it is taken.
    offered: [bool; SOURCES],
}

impl Ports {
    fn may(&mut self) -> bool {
        self.may.as_mut().is_none_or(|may| may())
    }

    fn offer(&mut self, source: usize, is_there: bool) -> u64 {
        self.offered[source] |= is_there && self.may();
        self.offered[source].into()
    }

    fn is_taken(&mut self, source: usize, ready: u64) -> bool {
        let taken = self.offered[source] && ready == 1;
        self.offered[source] &= !taken;
        taken
    }
}

// SAFETY: the instance has a context of its own, so that no two share state, and one thread at a
// time has `&mut Card`.
unsafe impl Send for Card {}

impl fmt::Debug for Card {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Card")
            .field("now", &self.now)
            .finish_non_exhaustive()
    }
}

impl Card {
    /// A card after its reset, in front of a bus whose reads take `latency` cycles.
    pub fn new(bus: Box<dyn Bus>, latency: u64) -> Card {
        let mut rtl = Block::new();
        rtl.rst_ni(0);
        rtl.tick();
        rtl.rst_ni(1);
        Card {
            rtl,
            reducer: Reducer::new(),
            ring: Ring::default(),
            bus,
            latency,
            now: Cycles::default(),
            reads: VecDeque::new(),
            events: VecDeque::new(),
            ios: VecDeque::new(),
            dones: VecDeque::new(),
            credits: VecDeque::new(),
            segments: VecDeque::new(),
            rx: VecDeque::new(),
            tx: None,
            result: Vec::new(),
            backlog: 0,
            work: Work::default(),
            ports: Ports::default(),
            asks: Asks::default(),
            traced: false,
        }
    }

    /// Resets the card; what was under way is lost, on its bus and its streams as well.
    pub fn reset(&mut self) {
        let rtl = &mut self.rtl;
        rtl.setup_valid_i(0);
        rtl.ctl_valid_i(0);
        rtl.awvalid_i(0);
        rtl.wvalid_i(0);
        rtl.arvalid_i(0);
        rtl.ring_step_we_i(0);
        rtl.ring_start_valid_i(0);
        rtl.ring_clear_valid_i(0);
        rtl.rst_ni(0);
        rtl.tick();
        rtl.rst_ni(1);
        self.reads.clear();
        self.events.clear();
        self.ios.clear();
        self.dones.clear();
        self.credits.clear();
        self.segments.clear();
        self.rx.clear();
        self.tx = None;
        self.result.clear();
        self.backlog = 0;
        self.ring.reset();
        self.ports.offered = [false; SOURCES];
        self.asks = Asks::default();
    }

    /// Asks `may` in each cycle, for each port, whether the surroundings are ready there.
    pub fn hold(&mut self, may: impl FnMut() -> bool + Send + 'static) {
        self.ports.may = Some(Box::new(may));
    }

    /// Shows the ports to `look` in each cycle, with all outputs settled.
    pub fn watch(&mut self, look: impl FnMut(&Block) + Send + 'static) {
        self.ports.watch = Some(Box::new(look));
    }

    /// Writes a trace of all signals (VCD, two steps a cycle) from now on. `false`: the file cannot
    /// be made.
    pub fn trace(&mut self, file: &CStr) -> bool {
        self.traced = self.rtl.trace(file);
        self.traced
    }

    /// Counts so far.
    pub fn cycles(&self) -> Cycles {
        Cycles {
            reduce_beats: self.reducer.beats,
            reduce_cycles: self.reducer.cycles,
            ring: nic::RingCounts {
                steps: self.ring.steps,
                beats: self.ring.beats,
                cycles: self.ring.cycles,
            },
            ..self.now
        }
    }

    /// The oldest event that was not taken.
    pub fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Posts a send or receive.
    pub fn post(&mut self, io: Io) {
        self.ios.push_back(io);
    }

    /// Completes a descriptor.
    pub fn complete(&mut self, queue: u32, ticket: u32, status: u8, bytes: u64, detail: u64) {
        self.dones.push_back((queue, ticket, status, bytes, detail));
    }

    /// The transport has room for more bytes of a connection.
    pub fn credit(&mut self, conn: u16, bytes: u32) {
        self.credits.push_back((conn, bytes));
    }

    /// The transport has received bytes that the card has asked for, within one [`Event::Want`].
    pub fn receive(&mut self, conn: u16, bytes: Vec<u8>) {
        self.receive_as(conn, bytes.len() as u32, bytes);
    }

    /// Received bytes that the engine on the path has seen before.
    pub fn receive_again(&mut self, conn: u16, bytes: Vec<u8>) {
        self.backlog += bytes.len();
        let len = bytes.len() as u32;
        self.segments.push_back((conn, len, true, bytes));
    }

    /// A segment whose meta states another length than it has.
    pub fn receive_as(&mut self, conn: u16, len: u32, bytes: Vec<u8>) {
        self.backlog += bytes.len();
        self.segments.push_back((conn, len, false, bytes));
    }

    /// Makes a queue known: bus addresses of its entries and completion lines.
    pub fn setup_queue(
        &mut self,
        queue: u32,
        sq: u64,
        cq: u64,
        depth_log2: u32,
        first_ticket: u32,
    ) {
        self.rtl.setup_queue_i(queue.into());
        self.rtl.setup_sq_i(sq);
        self.rtl.setup_cq_i(cq);
        self.rtl.setup_depth_i(depth_log2.into());
        self.rtl.setup_ticket_i(first_ticket.into());
        self.rtl.setup_valid_i(1);
        self.until(|rtl| rtl.setup_ready_o() == 1);
        self.rtl.setup_valid_i(0);
    }

    /// Opens, closes or flushes; returns when it has been done.
    pub fn control(&mut self, conn: u16, what: Control) {
        self.rtl.ctl_conn_i(conn.into());
        self.rtl.ctl_what_i(what as u64);
        self.rtl.ctl_valid_i(1);
        self.until(|rtl| rtl.ctl_ready_o() == 1);
        self.rtl.ctl_valid_i(0);
    }

    /// Writes a word of the BAR. `false`: the card refuses it.
    pub fn bar_write(&mut self, offset: usize, value: u32) -> bool {
        self.work.looks = 0;
        self.rtl.awaddr_i(offset as u64);
        self.rtl.wdata_i(value.into());
        self.rtl.wstrb_i(0xf);
        // Address and data are offered by themselves, in any order.
        self.asks.write_address = true;
        self.asks.write_data = true;
        let mut okay = false;
        self.until(|rtl| {
            okay = rtl.bresp_o() == 0;
            rtl.bvalid_o() & rtl.bready_i_now() == 1
        });
        okay
    }

    /// Reads a word of the BAR; none where there is no register.
    pub fn bar_read(&mut self, offset: usize) -> Option<u32> {
        self.rtl.araddr_i(offset as u64);
        self.asks.read = true;
        let mut value = None;
        self.until(|rtl| {
            value = (rtl.rresp_o() == 0).then(|| rtl.rdata_o() as u32);
            rtl.rvalid_o() & rtl.rready_i_now() == 1
        });
        value
    }

    /// Writes the steps of a collective, up to 64, and starts them. Values are kept in on-card
    /// memory from line 0 on.
    pub fn ring_start(&mut self, steps: &[Step], dtype: DataType, op: ReduceOp) {
        self.ring.used = true;
        self.ring.report = None;
        self.ring.messages.begin();
        let mut slot = 0;
        self.rtl.ring_step_we_i(1);
        for (n, step) in steps.iter().enumerate() {
            let rtl = &mut self.rtl;
            rtl.ring_step_index_i(n as u64);
            rtl.ring_step_net_in_i(step.net_in.into());
            rtl.ring_step_net_out_i(step.net_out.into());
            rtl.ring_step_gpu_in_i(step.read.is_some().into());
            rtl.ring_step_gpu_out_i(step.write.is_some().into());
            rtl.ring_step_read_va_i(step.read.unwrap_or(0));
            rtl.ring_step_write_va_i(step.write.unwrap_or(0));
            rtl.ring_step_slot_i(u64::from(slot));
            rtl.ring_step_len_i(step.bytes.into());
            slot += step.lines();
            self.cycle();
        }
        self.rtl.ring_step_we_i(0);
        self.rtl.ring_start_steps_i(steps.len() as u64);
        self.rtl.ring_start_dtype_i(dtype as u64);
        self.rtl.ring_start_redop_i(op as u64);
        self.rtl.ring_start_valid_i(1);
        self.until(|rtl| rtl.ring_start_ready_o() == 1);
        self.rtl.ring_start_valid_i(0);
        self.ring.loaded = steps.len() as u64;
        self.ring.running = true;
        self.ring.worked = self.now.cycles;
    }

    /// How the collective has ended.
    pub fn ring_report(&self) -> Option<Report> {
        self.ring.report
    }

    /// Ends what is left of a collective, with its streams; the next may start. The neighbours'
    /// ends of the streams are the caller's.
    pub fn ring_clear(&mut self) {
        self.rtl.ring_clear_valid_i(1);
        self.until(|rtl| rtl.ring_clear_ready_o() == 1);
        self.rtl.ring_clear_valid_i(0);
        self.ring.clear();
    }

    /// The next piece of a message for the next NIC.
    pub fn ring_sent(&mut self) -> Option<Piece> {
        self.ring.pieces_out.pop_front()
    }

    /// The next piece of a message from the previous NIC.
    pub fn ring_receive(&mut self, piece: Piece) {
        self.ring.pieces_in.push_back(piece);
    }

    /// Received pieces that the card has not taken.
    pub fn ring_backlog(&self) -> usize {
        self.ring.pieces_in.len()
    }

    /// The state table (Table 8): steps of inputs with and without a message, and of outputs
    /// likewise, that are done.
    pub fn ring_state(&self) -> [u64; 4] {
        let at = self.rtl.ring_at_step_o();
        std::array::from_fn(|i| at >> (7 * i) & 0x7f)
    }

    /// Runs cycles up to and with the first in which `is_there` holds.
    fn until(&mut self, mut is_there: impl FnMut(&Block) -> bool) {
        self.work.awaited = true;
        for _ in 0..PATIENCE {
            self.drive();
            let there = is_there(&self.rtl);
            self.finish();
            if there {
                self.work.awaited = false;
                return;
            }
        }
        panic!("the card owes an answer since {PATIENCE} cycles");
    }

    /// One cycle.
    pub fn cycle(&mut self) {
        self.drive();
        self.finish();
    }

    /// Sets the inputs of a cycle.
    fn drive(&mut self) {
        let (rtl, ports) = (&mut self.rtl, &mut self.ports);
        ports.ready = [(); SINKS].map(|()| ports.may());
        let [read, line, op, end, fault, tx_meta, tx, want, reg, b, r, result] = ports.ready;
        rtl.read_ready_i(read.into());
        rtl.line_ready_i(line.into());
        rtl.op_ready_i(op.into());
        rtl.end_ready_i(end.into());
        rtl.fault_ready_i(fault.into());
        rtl.tx_meta_ready_i(tx_meta.into());
        rtl.tx_ready_i(tx.into());
        rtl.want_ready_i(want.into());
        rtl.reg_ready_i(reg.into());
        rtl.bready_i(b.into());
        rtl.rready_i(r.into());
        rtl.result_ready_i(result.into());
        let line = self.reads.front().filter(|r| r.0 <= self.now.cycles);
        let line = line.filter(|_| ports.may());
        rtl.data_valid_i(line.is_some().into());
        if let Some(&(_, addr, _, entry)) = line {
            let mut bytes = [0; LINE];
            self.bus.read(addr, &mut bytes);
            rtl.data_i(&words(&bytes));
            rtl.data_entry_i(entry.into());
        }
        rtl.io_valid_i(ports.offer(0, !self.ios.is_empty()));
        if let Some(io) = self.ios.front() {
            rtl.io_send_i(io.send.into());
            rtl.io_conn_i(io.conn.into());
            rtl.io_va_i(io.va);
            rtl.io_len_i(io.len.into());
            rtl.io_some_i(io.some.into());
            rtl.io_tag_i(io.tag.into());
        }
        rtl.done_valid_i(ports.offer(1, !self.dones.is_empty()));
        if let Some(&(queue, ticket, status, bytes, detail)) = self.dones.front() {
            rtl.done_queue_i(queue.into());
            rtl.done_ticket_i(ticket.into());
            rtl.done_status_i(status.into());
            rtl.done_bytes_i(bytes);
            rtl.done_detail_i(detail);
        }
        rtl.credit_valid_i(ports.offer(2, !self.credits.is_empty()));
        if let Some(&(conn, bytes)) = self.credits.front() {
            rtl.credit_conn_i(conn.into());
            rtl.credit_i(bytes.into());
        }
        rtl.rx_meta_valid_i(ports.offer(3, !self.segments.is_empty()));
        if let Some(&(conn, len, again, _)) = self.segments.front() {
            rtl.rx_meta_conn_i(conn.into());
            rtl.rx_meta_len_i(len.into());
            rtl.rx_meta_again_i(again.into());
        }
        rtl.rx_valid_i(ports.offer(4, !self.rx.is_empty()));
        if let Some((bytes, at)) = self.rx.front() {
            let rest = &bytes[*at..];
            let mut beat = [0; LINE];
            let n = rest.len().min(LINE);
            beat[..n].copy_from_slice(&rest[..n]);
            rtl.rx_data_i(&words(&beat));
            rtl.rx_last_i(u64::from(rest.len() <= LINE));
        }
        rtl.awvalid_i(ports.offer(5, self.asks.write_address));
        rtl.wvalid_i(ports.offer(6, self.asks.write_data));
        rtl.arvalid_i(ports.offer(7, self.asks.read));
        self.ring.drive(rtl, self.now.cycles, &mut || ports.may());
        rtl.eval();
    }

    /// Whether something is under way: there was a sign of work within the bus's latency.
    pub fn is_busy(&self) -> bool {
        self.is_asked() || self.now.cycles - self.work.worked < self.latency + REST
    }

    /// Something was given that the block may take.
    pub(crate) fn wake(&mut self) {
        self.work.worked = self.now.cycles;
    }

    /// Whether something waits to be taken by the block.
    fn is_asked(&self) -> bool {
        let none = !self.work.awaited
            && self.ios.is_empty()
            && self.dones.is_empty()
            && self.credits.is_empty()
            && self.segments.is_empty()
            && self.rx.is_empty();
        !none
    }

    /// Counts this cycle as busy if it has a sign of work, and those before it that waited for
    /// memory.
    fn count_work(&mut self) {
        let longest = self.latency + REST;
        let ring_moves = self.ring.is_moving(&self.rtl);
        if ring_moves {
            self.ring.count(self.now.cycles, longest);
        }
        let rtl = &self.rtl;
        let fetches = rtl.read_valid_o() == 1 && rtl.read_entry_o() == 1;
        if rtl.op_valid_o() == 1 {
            self.work.looks = 0;
        } else if fetches {
            self.work.looks += 1;
        }
        let is_entry = self.reads.front().is_some_and(|r| r.3) || fetches;
        let reads = rtl.read_valid_o() | u64::from(!self.reads.is_empty());
        let works = rtl.line_valid_o()
            | rtl.op_valid_o()
            | rtl.end_valid_o()
            | rtl.fault_valid_o()
            | rtl.want_valid_o()
            | rtl.tx_meta_valid_o()
            | rtl.tx_valid_o()
            | rtl.result_valid_o()
            | u64::from(ring_moves)
            | u64::from(self.is_asked());
        if works == 1 || (reads == 1 && !(is_entry && self.work.looks > LOOKS)) {
            let gap = self.now.cycles - self.work.worked;
            self.now.busy += if gap <= longest { gap } else { 1 };
            self.work.worked = self.now.cycles;
        }
    }

    /// Takes the outputs of a cycle, and ends it.
    fn finish(&mut self) {
        self.count_work();
        let (rtl, ports) = (&self.rtl, &mut self.ports);
        if let Some(look) = &mut ports.watch {
            look(rtl);
        }
        let [read, line, op, end, fault, tx_meta, tx, want, reg, _, _, result] = ports.ready;
        let given = self.reads.front_mut();
        if let Some(burst) = given.filter(|_| rtl.data_valid_i_now() == 1) {
            burst.1 += LINE as u64;
            burst.2 -= 1;
            if burst.2 == 0 {
                self.reads.pop_front();
            }
        }
        if rtl.read_valid_o() == 1 && read {
            self.now.last_read = self.now.cycles;
            let (addr, len) = (rtl.read_addr_o(), rtl.read_len_o());
            let first = addr & !(LINE as u64 - 1);
            let lines = (addr + len - first).div_ceil(LINE as u64);
            let due = self.now.cycles + self.latency;
            self.reads
                .push_back((due, first, lines, rtl.read_entry_o() == 1));
        }
        if rtl.line_valid_o() == 1 && line {
            let line = bytes(&rtl.line_o());
            let addr = rtl.line_addr_o();
            if rtl.line_done_o() == 1 {
                self.now.completed += 1;
                let word = |i: usize| line[8 * i..][..8].try_into().map_or(0, u64::from_le_bytes);
                self.bus.complete(addr, std::array::from_fn(word));
            } else {
                self.bus.write(addr, &line, rtl.line_strobe_o());
            }
        }
        if rtl.op_valid_o() == 1 && op {
            self.now.fetched += 1;
            let entry = bytes(&rtl.op_entry_o());
            let word = |i: usize| entry[8 * i..][..8].try_into().map_or(0, u64::from_le_bytes);
            self.events.push_back(Event::Fetched(Fetched {
                queue: rtl.op_queue_o() as u32,
                ticket: rtl.op_ticket_o() as u32,
                entry: WorkQueueEntry(std::array::from_fn(word)),
                bad: (rtl.op_bad_o() == 1).then(|| rtl.op_word_o() as u8),
            }));
        }
        if rtl.end_valid_o() == 1 && end {
            let bytes = rtl.end_bytes_o() as u32;
            let ended = match (rtl.end_refused_o(), rtl.end_flushed_o()) {
                (1, _) => Ended::Refused,
                (_, 1) => Ended::Flushed(bytes),
                _ => Ended::Done(bytes),
            };
            self.events.push_back(Event::End {
                send: rtl.end_send_o() == 1,
                tag: rtl.end_tag_o() as u16,
                ended,
            });
        }
        if rtl.fault_valid_o() == 1 && fault {
            self.events.push_back(Event::Fault {
                send: rtl.fault_send_o() == 1,
                conn: rtl.fault_conn_o() as u16,
                va: rtl.fault_va_o(),
            });
        }
        if rtl.want_valid_o() == 1 && want {
            self.events.push_back(Event::Want {
                conn: rtl.want_conn_o() as u16,
                len: rtl.want_len_o() as u32,
                some: rtl.want_some_o() == 1,
            });
        }
        if rtl.reg_valid_o() == 1 && reg {
            self.events.push_back(Event::Register {
                index: rtl.reg_index_o() as u32,
                value: rtl.reg_value_o() as u32,
            });
        }
        if rtl.result_valid_o() == 1 && result {
            let (data, keep) = (bytes(&rtl.result_o()), rtl.result_keep_o());
            let kept = (0..LINE).filter(|i| keep >> i & 1 == 1);
            self.result.extend(kept.map(|i| data[i]));
            if rtl.result_last_o() == 1 {
                let rest = &rtl.result_rest_o().to_le_bytes()[..rtl.result_rest_len_o() as usize];
                self.events.push_back(Event::Counted(Counted {
                    result: std::mem::take(&mut self.result),
                    rest: rest.to_vec(),
                    failed: rtl.result_error_o() == 1,
                }));
            }
        }
        if rtl.tx_meta_valid_o() == 1 && tx_meta {
            let len = rtl.tx_meta_len_o() as u32;
            let room = Vec::with_capacity(len as usize);
            self.tx = Some((rtl.tx_meta_conn_o() as u16, len, room));
        }
        if rtl.tx_valid_o() == 1 && tx {
            self.now.tx_beats += 1;
            let (data, keep) = (bytes(&rtl.tx_data_o()), rtl.tx_keep_o());
            let (.., chunk) = self.tx.as_mut().expect("its meta went before");
            if keep == u64::MAX {
                chunk.extend_from_slice(&data);
            } else {
                let kept = (0..LINE).filter(|i| keep >> i & 1 == 1);
                chunk.extend(kept.map(|i| data[i]));
            }
            if rtl.tx_last_o() == 1 {
                let (conn, len, bytes) = self.tx.take().expect("it is there");
                self.events.push_back(Event::Sent { conn, len, bytes });
            }
        }
        if ports.is_taken(0, rtl.io_ready_o()) {
            self.ios.pop_front();
        }
        if ports.is_taken(1, rtl.done_ready_o()) {
            self.dones.pop_front();
        }
        if ports.is_taken(2, rtl.credit_ready_o()) {
            self.credits.pop_front();
        }
        let waits = ports.offered[4];
        if ports.is_taken(4, rtl.rx_ready_o()) {
            self.now.rx_beats += 1;
            if let Some((bytes, at)) = self.rx.front_mut() {
                *at += LINE;
                if *at >= bytes.len() {
                    self.backlog -= bytes.len();
                    self.rx.pop_front();
                }
            }
        } else {
            self.now.stalls += u64::from(waits);
        }
        if ports.is_taken(3, rtl.rx_meta_ready_o()) {
            if let Some((.., bytes)) = self.segments.pop_front() {
                self.rx.push_back((bytes, 0));
            }
        }
        self.asks.write_address &= !ports.is_taken(5, rtl.awready_o());
        self.asks.write_data &= !ports.is_taken(6, rtl.wready_o());
        self.asks.read &= !ports.is_taken(7, rtl.arready_o());
        self.ring.finish(rtl, self.now.cycles);
        self.now.strays += rtl.stray_o();
        self.now.dropped += rtl.rx_dropped_o();
        self.now.engine_beats = rtl.engine_beats_o();
        self.now.engine_stalls = rtl.engine_stalls_o();
        if self.traced {
            for clock in [1, 0] {
                self.rtl.clk_i(clock);
                self.rtl.eval();
                self.rtl.dump(2 * self.now.cycles + 1 - clock);
            }
        } else {
            self.rtl.tick();
        }
        self.now.cycles += 1;
    }
}

/// The same methods, for a NIC.
impl nic::Card for Card {
    fn cycle(&mut self) {
        let start = Instant::now();
        Card::cycle(self);
        self.now.simulated_ns += u64::try_from(start.elapsed().as_nanos()).unwrap_or(0);
    }
    fn is_busy(&self) -> bool {
        Card::is_busy(self)
    }
    fn cycles(&self) -> Cycles {
        Card::cycles(self)
    }
    fn event(&mut self) -> Option<Event> {
        Card::event(self)
    }
    fn setup_queue(&mut self, queue: u32, sq: u64, cq: u64, depth_log2: u32, first_ticket: u32) {
        Card::setup_queue(self, queue, sq, cq, depth_log2, first_ticket);
    }
    fn bar_read(&mut self, offset: usize) -> Option<u32> {
        Card::bar_read(self, offset)
    }
    fn bar_write(&mut self, offset: usize, value: u32) -> bool {
        Card::bar_write(self, offset, value)
    }
    fn control(&mut self, conn: u16, what: Control) {
        Card::control(self, conn, what);
    }
    fn post(&mut self, io: Io) {
        Card::post(self, io);
    }
    fn complete(&mut self, queue: u32, ticket: u32, status: u8, bytes: u64, detail: u64) {
        Card::complete(self, queue, ticket, status, bytes, detail);
    }
    fn credit(&mut self, conn: u16, bytes: u32) {
        Card::credit(self, conn, bytes);
    }
    fn receive(&mut self, conn: u16, bytes: Vec<u8>, again: bool) {
        match again {
            false => Card::receive(self, conn, bytes),
            true => self.receive_again(conn, bytes),
        }
    }
    fn backlog(&self) -> usize {
        self.backlog
    }
    fn reduce(&mut self, dtype: DataType, op: ReduceOp, a: &[u8], b: &[u8]) -> Option<Vec<u8>> {
        self.reducer.run(dtype, op, a, b)
    }
    fn ring(&mut self) -> Option<&mut dyn nic::Ring> {
        Some(self)
    }
}

fn words(bytes: &[u8; LINE]) -> [u32; LINE / 4] {
    std::array::from_fn(|i| bytes[4 * i..][..4].try_into().map_or(0, u32::from_le_bytes))
}

fn bytes(words: &[u32; LINE / 4]) -> [u8; LINE] {
    std::array::from_fn(|i| words[i / 4].to_le_bytes()[i % 4])
}
