//! A host with a card: rings and GPU memory on its bus, and the command layer in software.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use ringbell_gtlb::testing::Rng;
use ringbell_gtlb::{LARGE_PAGE_BYTES, PAGE_BYTES};
use ringbell_hw_sim::card::{Bus, Card, Control, Counted, Ended, Event, Fetched, Io, LINE};
use ringbell_nic_abi::bar::{self, Reg};
use ringbell_nic_abi::descriptor::lap_bit;
use ringbell_nic_abi::{
    Completion, Descriptor, Flags, GpuVa, Opcode, SessionId, Status, WorkQueueEntry,
};

/// GPU memory: two groups of pages, the second scattered, at this virtual address.
pub(crate) const BASE: u64 = 0x7f00_0000_0000;
pub(crate) const PAGES: u64 = 2 * LARGE_PAGE_BYTES / PAGE_BYTES;
/// Where the rings lie on the bus.
pub(crate) const SQ: u64 = 0x10_0000;
pub(crate) const CQ: u64 = 0x20_0000;
pub(crate) const DEPTH_LOG2: u32 = 4;
pub(crate) const LATENCY: u64 = 100;
/// Room of the wire for a connection, in each direction.
pub(crate) const WINDOW: u32 = 1 << 20;

/// Memory by bus address; what nothing has written reads as zero.
#[derive(Clone, Default)]
pub(crate) struct Ram(Arc<Mutex<HashMap<u64, [u8; LINE]>>>);

impl Ram {
    pub(crate) fn poke(&self, addr: u64, bytes: &[u8]) {
        let mut lines = self.0.lock().expect("unpoisoned");
        let (mut at, mut bytes) = (addr, bytes);
        while !bytes.is_empty() {
            let from = at as usize % LINE;
            let (now, rest) = bytes.split_at(bytes.len().min(LINE - from));
            lines.entry(at & !63).or_insert([0; LINE])[from..from + now.len()].copy_from_slice(now);
            (at, bytes) = (at + now.len() as u64, rest);
        }
    }

    pub(crate) fn peek(&self, addr: u64, len: usize) -> Vec<u8> {
        let lines = self.0.lock().expect("unpoisoned");
        let mut bytes = Vec::with_capacity(len);
        while bytes.len() < len {
            let at = addr + bytes.len() as u64;
            let from = at as usize % LINE;
            let line = lines.get(&(at & !63)).unwrap_or(&[0; LINE]);
            bytes.extend_from_slice(&line[from..LINE.min(from + len - bytes.len())]);
        }
        bytes
    }
}

impl Bus for Ram {
    fn read(&mut self, addr: u64, line: &mut [u8; LINE]) {
        let lines = self.0.lock().expect("unpoisoned");
        *line = lines.get(&addr).copied().unwrap_or([0; LINE]);
    }
    fn write(&mut self, addr: u64, line: &[u8; LINE], strobe: u64) {
        let mut lines = self.0.lock().expect("unpoisoned");
        let to = lines.entry(addr).or_insert([0; LINE]);
        for i in (0..LINE).filter(|i| strobe >> i & 1 == 1) {
            to[i] = line[i];
        }
    }
    fn complete(&mut self, addr: u64, words: [u64; 4]) {
        self.poke(addr, &words.map(u64::to_le_bytes).concat());
    }
}

/// A host with a card, a GPU's memory and one queue; every session is the connection of its number.
pub(crate) struct Host {
    pub(crate) card: Card,
    pub(crate) ram: Ram,
    pages: Vec<u64>,
    pub(crate) next: u32,
    pub(crate) oldest: u32,
    /// Descriptors under way, by tag.
    under_way: HashMap<u16, Fetched>,
    pub(crate) fetched: Vec<Fetched>,
    pub(crate) faults: Vec<(bool, u16, u64)>,
    /// The last result of an engine.
    pub(crate) counted: Option<Counted>,
    /// Bytes on their way to the peer, and what the card has asked for.
    pub(crate) sent: HashMap<u16, Vec<u8>>,
    pub(crate) wants: HashMap<u16, VecDeque<(u32, bool)>>,
}

impl Host {
    pub(crate) fn new(seed: u64) -> Host {
        Host::with(seed, LATENCY)
    }

    /// Whose bus answers reads after so many cycles.
    pub(crate) fn with(seed: u64, latency: u64) -> Host {
        let mut rng = Rng::new(seed);
        let ram = Ram::default();
        let card = Card::new(Box::new(ram.clone()), latency);
        // The first group in one piece, the second page by page.
        let mut pages: Vec<u64> = (0..PAGES / 2).map(|i| (1 << 40) + i * PAGE_BYTES).collect();
        pages.extend((0..PAGES / 2).map(|i| (1 << 41) + (i * 7 + rng.below(7)) * PAGE_BYTES));
        let mut host = Host {
            card,
            ram,
            pages,
            next: 0,
            oldest: 0,
            under_way: HashMap::new(),
            fetched: Vec::new(),
            faults: Vec::new(),
            counted: None,
            sent: HashMap::new(),
            wants: HashMap::new(),
        };
        host.set_up();
        host
    }

    /// Resets the card, forgets what was under way, and sets both up again.
    pub(crate) fn reset(&mut self) {
        self.card.reset();
        for ring in [SQ, CQ] {
            self.ram.poke(ring, &[0; LINE << DEPTH_LOG2]);
        }
        (self.next, self.oldest) = (0, 0);
        self.under_way.clear();
        self.fetched.clear();
        self.faults.clear();
        self.sent.clear();
        self.wants.clear();
        self.set_up();
    }

    /// The GTLB's entries, the queue, and four connections.
    fn set_up(&mut self) {
        let (card, pages) = (&mut self.card, &self.pages);
        let mut write = |reg: Reg, value: u64| {
            assert!(
                card.bar_write(reg.offset(), value as u32),
                "{reg:?} = {value:#x}"
            );
        };
        write(Reg::GtlbBaseLo, BASE);
        write(Reg::GtlbBaseHi, BASE >> 32);
        let mut entry = |va: u64, pa: u64, index: u64, command: u64| {
            write(Reg::GtlbVaLo, va);
            write(Reg::GtlbVaHi, va >> 32);
            write(Reg::GtlbPaLo, pa);
            write(Reg::GtlbPaHi, pa >> 32);
            write(Reg::GtlbIndex, index);
            write(Reg::GtlbCommand, command);
        };
        let group = BASE + LARGE_PAGE_BYTES;
        entry(BASE, pages[0], 0, 1);
        entry(group, 0, 1, 3);
        for (i, page) in (0..).zip(&pages[PAGES as usize / 2..]) {
            entry(group + i * PAGE_BYTES, *page, i, 2);
        }
        card.setup_queue(3, SQ, CQ, DEPTH_LOG2, 0);
        for conn in 0..4 {
            card.control(conn, Control::Open);
            card.credit(conn, WINDOW);
        }
    }
}

impl Host {
    /// Stores an entry and rings; gives its ticket.
    pub(crate) fn post_entry(&mut self, entry: WorkQueueEntry) -> u32 {
        let ticket = self.next;
        assert!(ticket - self.oldest < 1 << DEPTH_LOG2, "the ring is full");
        let slot = u64::from(ticket % (1 << DEPTH_LOG2));
        self.ram
            .poke(SQ + 64 * slot, &entry.0.map(u64::to_le_bytes).concat());
        self.next += 1;
        assert!(self.card.bar_write(bar::doorbell_offset(3), self.next));
        ticket
    }

    pub(crate) fn post(&mut self, d: &Descriptor) -> u32 {
        self.post_entry(d.encode(lap_bit(self.next, DEPTH_LOG2)))
    }

    /// The completion of a ticket, when it is there.
    pub(crate) fn completion(&mut self, ticket: u32) -> Option<Completion> {
        let line = self
            .ram
            .peek(CQ + 64 * u64::from(ticket % (1 << DEPTH_LOG2)), 32);
        let word = |i: usize| line[8 * i..][..8].try_into().map_or(0, u64::from_le_bytes);
        let found = Completion::decode(std::array::from_fn(word), ticket)?;
        self.oldest += 1;
        Some(found)
    }

    /// Bytes of GPU memory.
    pub(crate) fn gpu(&self, va: u64, len: u64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len as usize);
        while (bytes.len() as u64) < len {
            let at = va + bytes.len() as u64;
            let n = (PAGE_BYTES - at % PAGE_BYTES).min(va + len - at);
            bytes.extend(self.ram.peek(self.bus(at), n as usize));
        }
        bytes
    }

    pub(crate) fn set_gpu(&self, va: u64, bytes: &[u8]) {
        let (mut at, mut bytes) = (va, bytes);
        while !bytes.is_empty() {
            let n = (PAGE_BYTES - at % PAGE_BYTES).min(bytes.len() as u64);
            let (now, rest) = bytes.split_at(n as usize);
            self.ram.poke(self.bus(at), now);
            (at, bytes) = (at + n, rest);
        }
    }

    pub(crate) fn bus(&self, va: u64) -> u64 {
        let at = va - BASE;
        self.pages[(at / PAGE_BYTES) as usize] + at % PAGE_BYTES
    }

    /// One cycle, and what the command layer does with its events.
    pub(crate) fn cycle(&mut self) {
        self.card.cycle();
        while let Some(event) = self.card.event() {
            match event {
                Event::Fetched(f) => self.execute(f),
                Event::End { tag, ended, .. } => {
                    let f = self.under_way.remove(&tag).expect("one end for each");
                    let (status, bytes) = match ended {
                        Ended::Done(bytes) => (Status::Ok, bytes),
                        Ended::Flushed(bytes) => (Status::NoTranslation, bytes),
                        Ended::Refused => (Status::NotConnected, 0),
                    };
                    self.card
                        .complete(f.queue, f.ticket, status as u8, bytes.into(), 0);
                }
                Event::Fault { send, conn, va } => self.faults.push((send, conn, va)),
                Event::Sent { conn, bytes, .. } => {
                    self.card.credit(conn, bytes.len() as u32);
                    self.sent.entry(conn).or_default().extend(bytes);
                }
                Event::Want { conn, len, some } => {
                    self.wants.entry(conn).or_default().push_back((len, some));
                }
                Event::Counted(counted) => self.counted = Some(counted),
                Event::Register { index, value } => panic!("register {index} = {value}"),
            }
        }
    }

    fn execute(&mut self, f: Fetched) {
        self.fetched.push(f.clone());
        let whole = f.entry.decode();
        // Word 7 has its lap bit cleared, so the software decoder takes the words as they are.
        match whole {
            Err(e) => {
                assert_eq!(f.bad, Some(e.word()), "{:x?}", f.entry);
                let status = Status::BadDescriptor as u8;
                self.card
                    .complete(f.queue, f.ticket, status, 0, e.word().into());
            }
            Ok(d) => {
                assert_eq!(f.bad, None, "{d:?}");
                let conn = d.session.0 as u16;
                let inline = d.flags.contains(Flags::INLINE);
                match d.opcode {
                    Opcode::Send if inline => {
                        let bytes = &d.inline[..d.inline_len.into()];
                        self.sent.entry(conn).or_default().extend(bytes);
                        self.card
                            .complete(f.queue, f.ticket, 0, d.inline_len.into(), 0);
                    }
                    Opcode::Send | Opcode::Recv => {
                        let tag = f.ticket as u16;
                        self.under_way.insert(tag, f);
                        self.card.post(Io {
                            send: d.opcode == Opcode::Send,
                            conn,
                            va: d.local_va.0,
                            len: d.len,
                            some: d.flags.contains(Flags::SOME),
                            tag,
                        });
                    }
                    _ => self.card.complete(f.queue, f.ticket, 0, 0, 0),
                }
            }
        }
    }

    /// Passes bytes of a peer to the card, as far as it has asked for them.
    pub(crate) fn deliver(&mut self, from: &mut Host) {
        for (conn, bytes) in &mut from.sent {
            let wants = self.wants.entry(*conn).or_default();
            while let (false, Some((len, some))) = (bytes.is_empty(), wants.front_mut()) {
                let n = bytes.len().min(*len as usize);
                self.card.receive(*conn, bytes.drain(..n).collect());
                *len -= n as u32;
                if *len == 0 || *some {
                    wants.pop_front();
                }
            }
        }
    }
}

/// A cycle of both, and of the wire between them.
pub(crate) fn cycle(hosts: &mut [Host; 2]) {
    let [a, b] = hosts;
    a.cycle();
    b.cycle();
    a.deliver(b);
    b.deliver(a);
}

/// Runs cycles until both completions are there.
pub(crate) fn complete(hosts: &mut [Host; 2], tickets: [u32; 2]) -> [Completion; 2] {
    let mut found = [None, None];
    for _ in 0..2_000_000 {
        cycle(hosts);
        for i in 0..2 {
            if found[i].is_none() {
                found[i] = hosts[i].completion(tickets[i]);
            }
        }
        if let [Some(a), Some(b)] = found {
            return [a, b];
        }
    }
    panic!("an operation does not end: {found:?}");
}

pub(crate) fn transfer(opcode: Opcode, conn: u32, va: u64, len: u32) -> Descriptor {
    let mut d = Descriptor::new(opcode);
    d.session = SessionId(conn);
    d.local_va = GpuVa(va);
    d.len = len;
    d.wr_id = u64::from(len) << 32 | 1 << 63 | u64::from(conn);
    d
}

pub(crate) fn hosts() -> [Host; 2] {
    [Host::new(1), Host::new(2)]
}
