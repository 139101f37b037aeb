//! [`Card`]: the verilated `nic_top` as a NIC, cycle by cycle.
//!
//! Its PCIe side is a [`Bus`]; its network side and its command layer are queues of plain values, which the program fills and
//! empties between cycles. Time is cycles: nothing here reads a clock.

use std::collections::VecDeque;
use std::fmt;

use crate::nic_top::Block;

/// Bytes of a line, and of a beat.
pub const LINE: usize = 64;
/// Entries of the main table of the card's GTLB.
const MAIN_ENTRIES: u64 = 16_384;
/// Cycles after which an answer that the card owes is missing. Clearing the GTLB takes the longest.
const PATIENCE: u64 = 4 * MAIN_ENTRIES;

/// Memory behind PCIe, by bus address. Lines are aligned to 64 bytes.
pub trait Bus {
    /// Reads a line.
    fn read(&mut self, addr: u64, line: &mut [u8; LINE]);
    /// Writes the bytes of a line whose bits in `strobe` are set.
    fn write(&mut self, addr: u64, line: &[u8; LINE], strobe: u64);
    /// Writes words 0 to 3 of a completion line, word 0 last, after everything written before.
    fn complete(&mut self, addr: u64, words: [u64; 4]);
}

/// A descriptor that the card has fetched: it is to be completed once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetched {
    /// Number of the queue.
    pub queue: u32,
    /// Its ticket.
    pub ticket: u32,
    /// The words with bit 63 restored.
    pub words: [u64; 8],
    /// The word at fault of a malformed one.
    pub bad: Option<u8>,
}

/// A send or receive of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Io {
    /// It sends.
    pub send: bool,
    /// The connection.
    pub conn: u16,
    /// First byte.
    pub va: u64,
    /// Bytes.
    pub len: u32,
    /// A receive that ends with its first segment.
    pub some: bool,
    /// Returned when it ends.
    pub tag: u16,
}

/// How a send or receive has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// All of it, or of a receive with `some` these bytes.
    Done(u32),
    /// It was flushed after so many bytes.
    Flushed(u32),
    /// No such connection, no slot, or no bytes.
    Refused,
}

/// What to do with a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    /// Operations are taken from now on.
    Open = 0,
    /// They are refused.
    Close = 1,
    /// All sends end.
    FlushSends = 2,
    /// All receives end.
    FlushReceives = 3,
}

/// What happens at the card beside the streams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A descriptor was fetched.
    Fetched(Fetched),
    /// An operation has ended.
    End {
        /// It was a send.
        send: bool,
        /// Its number.
        tag: u16,
        /// How.
        ended: Ended,
    },
    /// An address has faulted; that side of the connection waits to be flushed.
    Fault {
        /// Of a send.
        send: bool,
        /// The connection.
        conn: u16,
        /// The address.
        va: u64,
    },
    /// Bytes of a connection for the transport. `cut`: those behind them did not come, because an address faulted.
    Sent {
        /// The connection.
        conn: u16,
        /// In order.
        bytes: Vec<u8>,
        /// See above.
        cut: bool,
    },
    /// The card has room for bytes of a connection.
    Want {
        /// The connection.
        conn: u16,
        /// How many.
        len: u32,
        /// One segment is enough.
        some: bool,
    },
    /// A register that is not the GTLB's was written.
    Register {
        /// Its index.
        index: u32,
        /// The value.
        value: u32,
    },
}

/// Counts since the card was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cycles {
    /// Clock cycles.
    pub cycles: u64,
    /// Beats of `tx_data`.
    pub tx_beats: u64,
    /// Beats of `rx_data`.
    pub rx_beats: u64,
    /// Cycles in which a beat of `rx_data` waited for the card.
    pub stalls: u64,
    /// The cycle of the last read that was asked for, of an entry or of data.
    pub last_read: u64,
    /// Completions that had no descriptor.
    pub strays: u64,
    /// Segments that were dropped.
    pub dropped: u64,
}

/// A burst asked for: when its first line comes, next line, lines left, and whether it is an entry.
type Burst = (u64, u64, u64, bool);

/// See the module text.
pub struct Card {
    rtl: Block,
    bus: Box<dyn Bus>,
    /// Cycles from a read's request to its first line.
    latency: u64,
    now: Cycles,
    reads: VecDeque<Burst>,
    events: VecDeque<Event>,
    ios: VecDeque<Io>,
    dones: VecDeque<(u32, u32, u8, u64, u64)>,
    credits: VecDeque<(u16, u32)>,
    /// Connection, stated bytes, and the bytes.
    segments: VecDeque<(u16, u32, Vec<u8>)>,
    /// Segments whose meta was taken, and their next byte.
    rx: VecDeque<(Vec<u8>, usize)>,
    /// The chunk that leaves.
    tx: Option<(u16, Vec<u8>)>,
}

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
        rtl.bready_i(1);
        rtl.rready_i(1);
        rtl.read_ready_i(1);
        rtl.line_ready_i(1);
        rtl.op_ready_i(1);
        rtl.end_ready_i(1);
        rtl.fault_ready_i(1);
        rtl.tx_meta_ready_i(1);
        rtl.tx_ready_i(1);
        rtl.want_ready_i(1);
        rtl.reg_ready_i(1);
        Card {
            rtl,
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
        }
    }

    /// Counts so far.
    pub fn cycles(&self) -> Cycles {
        self.now
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

    /// A segment whose meta states another length than it has.
    pub fn receive_as(&mut self, conn: u16, len: u32, bytes: Vec<u8>) {
        self.segments.push_back((conn, len, bytes));
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
        self.rtl.awaddr_i(offset as u64);
        self.rtl.wdata_i(value.into());
        self.rtl.wstrb_i(0xf);
        self.rtl.awvalid_i(1);
        self.rtl.wvalid_i(1);
        self.until(|rtl| rtl.awready_o() & rtl.wready_o() == 1);
        self.rtl.awvalid_i(0);
        self.rtl.wvalid_i(0);
        let mut okay = false;
        self.until(|rtl| {
            okay = rtl.bresp_o() == 0;
            rtl.bvalid_o() == 1
        });
        okay
    }

    /// Reads a word of the BAR; none where there is no register.
    pub fn bar_read(&mut self, offset: usize) -> Option<u32> {
        self.rtl.araddr_i(offset as u64);
        self.rtl.arvalid_i(1);
        self.until(|rtl| rtl.arready_o() == 1);
        self.rtl.arvalid_i(0);
        let mut value = None;
        self.until(|rtl| {
            value = (rtl.rresp_o() == 0).then(|| rtl.rdata_o() as u32);
            rtl.rvalid_o() == 1
        });
        value
    }

    /// Runs cycles up to and with the first in which `is_there` holds.
    fn until(&mut self, mut is_there: impl FnMut(&Block) -> bool) {
        for _ in 0..PATIENCE {
            self.drive();
            let there = is_there(&self.rtl);
            self.finish();
            if there {
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
        let rtl = &mut self.rtl;
        let line = self.reads.front().filter(|r| r.0 <= self.now.cycles);
        rtl.data_valid_i(line.is_some().into());
        if let Some(&(_, addr, _, entry)) = line {
            let mut bytes = [0; LINE];
            self.bus.read(addr, &mut bytes);
            rtl.data_i(&words(&bytes));
            rtl.data_entry_i(entry.into());
        }
        rtl.io_valid_i(u64::from(!self.ios.is_empty()));
        if let Some(io) = self.ios.front() {
            rtl.io_send_i(io.send.into());
            rtl.io_conn_i(io.conn.into());
            rtl.io_va_i(io.va);
            rtl.io_len_i(io.len.into());
            rtl.io_some_i(io.some.into());
            rtl.io_tag_i(io.tag.into());
        }
        rtl.done_valid_i(u64::from(!self.dones.is_empty()));
        if let Some(&(queue, ticket, status, bytes, detail)) = self.dones.front() {
            rtl.done_queue_i(queue.into());
            rtl.done_ticket_i(ticket.into());
            rtl.done_status_i(status.into());
            rtl.done_bytes_i(bytes);
            rtl.done_detail_i(detail);
        }
        rtl.credit_valid_i(u64::from(!self.credits.is_empty()));
        if let Some(&(conn, bytes)) = self.credits.front() {
            rtl.credit_conn_i(conn.into());
            rtl.credit_i(bytes.into());
        }
        rtl.rx_meta_valid_i(u64::from(!self.segments.is_empty()));
        if let Some(&(conn, len, _)) = self.segments.front() {
            rtl.rx_meta_conn_i(conn.into());
            rtl.rx_meta_len_i(len.into());
        }
        rtl.rx_valid_i(u64::from(!self.rx.is_empty()));
        if let Some((bytes, at)) = self.rx.front() {
            let rest = &bytes[*at..];
            let mut beat = [0; LINE];
            let n = rest.len().min(LINE);
            beat[..n].copy_from_slice(&rest[..n]);
            rtl.rx_data_i(&words(&beat));
            rtl.rx_last_i(u64::from(rest.len() <= LINE));
        }
        rtl.eval();
    }

    /// Takes the outputs of a cycle, and ends it.
    fn finish(&mut self) {
        let rtl = &self.rtl;
        let given = self.reads.front_mut().filter(|r| r.0 <= self.now.cycles);
        if let Some(burst) = given {
            burst.1 += LINE as u64;
            burst.2 -= 1;
            if burst.2 == 0 {
                self.reads.pop_front();
            }
        }
        if rtl.read_valid_o() == 1 {
            self.now.last_read = self.now.cycles;
            let (addr, len) = (rtl.read_addr_o(), rtl.read_len_o());
            let first = addr & !(LINE as u64 - 1);
            let lines = (addr + len - first).div_ceil(LINE as u64);
            let due = self.now.cycles + self.latency;
            self.reads
                .push_back((due, first, lines, rtl.read_entry_o() == 1));
        }
        if rtl.line_valid_o() == 1 {
            let line = bytes(&rtl.line_o());
            let addr = rtl.line_addr_o();
            if rtl.line_done_o() == 1 {
                let word = |i: usize| line[8 * i..][..8].try_into().map_or(0, u64::from_le_bytes);
                self.bus.complete(addr, std::array::from_fn(word));
            } else {
                self.bus.write(addr, &line, rtl.line_strobe_o());
            }
        }
        if rtl.op_valid_o() == 1 {
            let entry = bytes(&rtl.op_entry_o());
            let word = |i: usize| entry[8 * i..][..8].try_into().map_or(0, u64::from_le_bytes);
            self.events.push_back(Event::Fetched(Fetched {
                queue: rtl.op_queue_o() as u32,
                ticket: rtl.op_ticket_o() as u32,
                words: std::array::from_fn(word),
                bad: (rtl.op_bad_o() == 1).then(|| rtl.op_word_o() as u8),
            }));
        }
        if rtl.end_valid_o() == 1 {
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
        if rtl.fault_valid_o() == 1 {
            self.events.push_back(Event::Fault {
                send: rtl.fault_send_o() == 1,
                conn: rtl.fault_conn_o() as u16,
                va: rtl.fault_va_o(),
            });
        }
        if rtl.want_valid_o() == 1 {
            self.events.push_back(Event::Want {
                conn: rtl.want_conn_o() as u16,
                len: rtl.want_len_o() as u32,
                some: rtl.want_some_o() == 1,
            });
        }
        if rtl.reg_valid_o() == 1 {
            self.events.push_back(Event::Register {
                index: rtl.reg_index_o() as u32,
                value: rtl.reg_value_o() as u32,
            });
        }
        if rtl.tx_meta_valid_o() == 1 {
            let len = rtl.tx_meta_len_o() as usize;
            self.tx = Some((rtl.tx_meta_conn_o() as u16, Vec::with_capacity(len)));
        }
        if rtl.tx_valid_o() == 1 {
            self.now.tx_beats += 1;
            let (data, keep) = (bytes(&rtl.tx_data_o()), rtl.tx_keep_o());
            let (_, chunk) = self.tx.as_mut().expect("its meta went before");
            let kept = (0..LINE).filter(|i| keep >> i & 1 == 1);
            chunk.extend(kept.map(|i| data[i]));
            if rtl.tx_last_o() == 1 {
                let (conn, bytes) = self.tx.take().expect("it is there");
                let cut = rtl.tx_cut_o() == 1;
                self.events.push_back(Event::Sent { conn, bytes, cut });
            }
        }
        if rtl.io_ready_o() == 1 && !self.ios.is_empty() {
            self.ios.pop_front();
        }
        if rtl.done_ready_o() == 1 {
            self.dones.pop_front();
        }
        if rtl.credit_ready_o() == 1 {
            self.credits.pop_front();
        }
        if let (1, Some((bytes, at))) = (rtl.rx_ready_o(), self.rx.front_mut()) {
            self.now.rx_beats += 1;
            *at += LINE;
            if *at >= bytes.len() {
                self.rx.pop_front();
            }
        } else {
            self.now.stalls += u64::from(!self.rx.is_empty());
        }
        if rtl.rx_meta_ready_o() == 1 {
            if let Some((_, _, bytes)) = self.segments.pop_front() {
                self.rx.push_back((bytes, 0));
            }
        }
        self.now.strays += rtl.stray_o();
        self.now.dropped += rtl.rx_dropped_o();
        self.rtl.tick();
        self.now.cycles += 1;
    }
}

fn words(bytes: &[u8; LINE]) -> [u32; LINE / 4] {
    std::array::from_fn(|i| bytes[4 * i..][..4].try_into().map_or(0, u32::from_le_bytes))
}

fn bytes(words: &[u32; LINE / 4]) -> [u8; LINE] {
    std::array::from_fn(|i| words[i / 4].to_le_bytes()[i % 4])
}
