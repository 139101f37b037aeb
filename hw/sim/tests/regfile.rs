//! `regfile.sv` against the register table of the contract: random accesses, legal or not, with
//! every kind of back-pressure.

use std::collections::HashMap;

use ringbell_gtlb::testing::Rng;
use ringbell_hw_sim::regfile::Block;
use ringbell_nic_abi::bar::{
    Access, Reg, BAR_BYTES, CONTROL_BYTES, DOORBELL_BASE, DOORBELL_STRIDE, MAGIC, STATUS_BASE,
};
use ringbell_nic_abi::block::{
    header_offset, walk, Block as Described, BlockKind, BLOCK_HARDWARE, HEADERS_BASE, HEADER_STRIDE,
};
use ringbell_nic_abi::ABI_VERSION;

const OKAY: u64 = 0;
const SLAVE_ERROR: u64 = 2;
/// Values of a control register from here on are refused by its taker.
const REFUSED: u32 = 0xf000_0000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    Bell(u64, u32),
    Register(u64, u32),
}

struct Bench {
    rtl: Block,
    rng: Rng,
    /// Chance in eight that a side is ready in a cycle.
    ready: u64,
    events: Vec<Event>,
    cycles: u64,
}

impl Bench {
    fn new(seed: u64, ready: u64) -> Bench {
        let mut rtl = Block::new();
        rtl.rst_ni(0);
        rtl.tick();
        rtl.rst_ni(1);
        let rng = Rng::new(seed);
        Bench {
            rtl,
            rng,
            ready,
            events: Vec::new(),
            cycles: 0,
        }
    }

    fn flag(&mut self) -> u64 {
        u64::from(self.rng.below(8) < self.ready)
    }

    /// One cycle with random takers; records the events that they take.
    fn cycle(&mut self) {
        let (bell, reg) = (self.flag(), self.flag());
        self.rtl.bell_ready_i(bell);
        self.rtl.reg_ready_i(reg);
        self.rtl.eval();
        let value = self.rtl.value_o() as u32;
        self.rtl.reg_refuse_i(u64::from(value >= REFUSED));
        self.rtl.eval();
        if self.rtl.bell_valid_o() & bell == 1 {
            self.events
                .push(Event::Bell(self.rtl.bell_queue_o(), value));
        }
        if self.rtl.reg_valid_o() & reg == 1 {
            self.events
                .push(Event::Register(self.rtl.reg_index_o(), value));
        }
        self.rtl.tick();
        self.cycles += 1;
        assert!(self.cycles < 10_000_000, "the bus has stopped");
    }

    /// A write whose address and data come in any order; gives the answer.
    fn write(&mut self, addr: usize, value: u32, strobe: u64) -> u64 {
        let (mut to_send, mut answer) = ((true, true), None);
        self.rtl.awaddr_i(addr as u64);
        self.rtl.wdata_i(u64::from(value));
        self.rtl.wstrb_i(strobe);
        while answer.is_none() {
            let (aw, w, b) = (self.flag(), self.flag(), self.flag());
            let (aw, w) = (u64::from(to_send.0) & aw, u64::from(to_send.1) & w);
            self.rtl.awvalid_i(aw);
            self.rtl.wvalid_i(w);
            self.rtl.bready_i(b);
            self.rtl.eval();
            to_send.0 &= aw & self.rtl.awready_o() == 0;
            to_send.1 &= w & self.rtl.wready_o() == 0;
            answer = (self.rtl.bvalid_o() & b == 1).then(|| self.rtl.bresp_o());
            self.cycle();
        }
        self.rtl.awvalid_i(0);
        self.rtl.wvalid_i(0);
        self.rtl.bready_i(0);
        answer.expect("the loop ends with one")
    }

    fn read(&mut self, addr: usize) -> (u64, u32) {
        let (mut to_send, mut answer) = (true, None);
        self.rtl.araddr_i(addr as u64);
        while answer.is_none() {
            let (ar, r) = (u64::from(to_send) & self.flag(), self.flag());
            self.rtl.arvalid_i(ar);
            self.rtl.rready_i(r);
            self.rtl.eval();
            to_send &= ar & self.rtl.arready_o() == 0;
            let came = self.rtl.rvalid_o() & r == 1;
            answer = came.then(|| (self.rtl.rresp_o(), self.rtl.rdata_o() as u32));
            self.cycle();
        }
        self.rtl.arvalid_i(0);
        self.rtl.rready_i(0);
        answer.expect("the loop ends with one")
    }

    fn set_status(&mut self, reg: Reg, value: u32) {
        self.rtl
            .status_index_i(u64::from(reg as u32) - STATUS_BASE as u64 / 4);
        self.rtl.status_i(u64::from(value));
        self.rtl.status_valid_i(1);
        self.cycle();
        self.rtl.status_valid_i(0);
    }
}

/// The event that a write causes, by the contract's table; none when it is not allowed.
fn event(addr: usize, value: u32, strobe: u64) -> Option<Event> {
    if strobe != 0xf || !addr.is_multiple_of(4) {
        return None;
    }
    if addr >= DOORBELL_BASE {
        let at = addr - DOORBELL_BASE;
        let whole = addr < BAR_BYTES && at.is_multiple_of(DOORBELL_STRIDE);
        return whole.then_some(Event::Bell((at / DOORBELL_STRIDE) as u64, value));
    }
    let reg = Reg::from_index((addr / 4) as u32)?;
    let row = Reg::ALL.iter().find(|row| row.0 == reg)?;
    (row.1 != Access::Ro).then_some(Event::Register(reg as u64, value))
}

/// The blocks of the register file as it is built alone: the sizes are its own parameters.
fn described(kind: BlockKind) -> Described {
    let mut block = Described::new(kind);
    let flags;
    (flags, block.units, block.size, block.more) = match kind {
        BlockKind::Mailbox | BlockKind::Engines => (BLOCK_HARDWARE, 1, 0, 0),
        BlockKind::Queues => (BLOCK_HARDWARE, 16, 256, 0),
        BlockKind::Gtlb => (BLOCK_HARDWARE, 1, 16_384, 2_048),
        BlockKind::Direct => (BLOCK_HARDWARE, 64, 4, 0),
        _ => (0, 1, 0, 0),
    };
    block.flags |= flags;
    block
}

/// The word of a block header at an address, by the contract.
fn header_word(addr: usize) -> Option<u32> {
    let at = addr.checked_sub(HEADERS_BASE)?;
    let (i, word) = (at / HEADER_STRIDE, at % HEADER_STRIDE / 4);
    let kind = *BlockKind::ALL.get(i)?;
    let next = BlockKind::ALL.get(i + 1).copied();
    let words = described(kind).header(next).words();
    words.get(word).copied().filter(|_| addr.is_multiple_of(4))
}

/// Addresses of every kind, registers and doorbells most often.
fn address(rng: &mut Rng) -> usize {
    match rng.below(8) {
        0 => rng.below(1 << 16) as usize,
        1 => rng.below(CONTROL_BYTES as u64) as usize,
        2 => HEADERS_BASE + 4 * rng.below(256) as usize,
        3..=4 => DOORBELL_BASE + DOORBELL_STRIDE * rng.below(512) as usize,
        _ => 4 * Reg::ALL[rng.below(Reg::ALL.len() as u64) as usize].0 as usize,
    }
}

fn check(seed: u64, ready: u64, accesses: usize) {
    let mut bench = Bench::new(seed, ready);
    bench.read(4 * Reg::Magic as usize); // The block has cleared its memories, and takes status values from now on.
    let mut model: HashMap<usize, u32> = HashMap::new();
    let (mut rung, mut refused) = (0, 0);
    for n in 0..accesses {
        let addr = address(&mut bench.rng);
        let value = bench.rng.bits() as u32;
        match bench.rng.below(8) {
            0 => {
                let status = |row: &&(Reg, Access, &str, &str)| row.1 == Access::Ro;
                let rows: Vec<Reg> = Reg::ALL.iter().filter(status).map(|row| row.0).collect();
                let reg = rows[bench.rng.below(rows.len() as u64) as usize];
                bench.set_status(reg, value);
                model.insert(4 * reg as usize, value);
            }
            1..=4 => {
                let strobe = match bench.rng.below(16) {
                    0 => bench.rng.below(16),
                    _ => 0xf,
                };
                let wanted = event(addr, value, strobe);
                let answer = bench.write(addr, value, strobe);
                let events = std::mem::take(&mut bench.events);
                assert_eq!(events, wanted.as_slice(), "access {n} to {addr:#x}");
                let kept = match wanted {
                    Some(Event::Register(..)) => value < REFUSED,
                    Some(Event::Bell(..)) => true,
                    None => false,
                };
                let expected = if kept { OKAY } else { SLAVE_ERROR };
                assert_eq!(answer, expected, "access {n} to {addr:#x}");
                if kept {
                    model.insert(addr, value);
                }
                rung += u64::from(matches!(wanted, Some(Event::Bell(..))));
                refused += u64::from(!kept);
            }
            _ => {
                let header = header_word(addr);
                let there = match addr {
                    _ if header.is_some() => true,
                    a if !a.is_multiple_of(4) || a >= BAR_BYTES => false,
                    a if a >= DOORBELL_BASE => a.is_multiple_of(DOORBELL_STRIDE),
                    a => Reg::from_index((a / 4) as u32).is_some(),
                };
                let value = match (there, Reg::from_index((addr / 4) as u32)) {
                    (false, _) => 0,
                    (true, _) if header.is_some() => header.unwrap_or(0),
                    (true, Some(Reg::Blocks)) => HEADERS_BASE as u32,
                    (true, Some(Reg::Magic)) => MAGIC,
                    (true, Some(Reg::AbiVersion)) => ABI_VERSION,
                    (true, _) => model.get(&addr).copied().unwrap_or(0),
                };
                let expected = (if there { OKAY } else { SLAVE_ERROR }, value);
                assert_eq!(bench.read(addr), expected, "access {n} to {addr:#x}");
            }
        }
        assert!(bench.events.is_empty(), "an event without a write");
    }
    assert!(
        rung > 0 && refused > 0,
        "{rung} doorbells, {refused} refused"
    );
}

#[test]
fn every_write_leaves_its_event_once_under_any_back_pressure() {
    for (seed, ready) in [(1, 8), (2, 4), (3, 1)] {
        check(seed, ready, 20_000);
    }
}

#[test]
fn the_block_headers_are_the_contracts_chain_with_the_sizes_of_the_parameters() {
    let mut bench = Bench::new(4, 4);
    let chain = walk(|addr| match bench.read(addr) {
        (OKAY, value) => Some(value),
        _ => None,
    });
    let found: Vec<_> = chain.map(|h| h.expect("a right chain")).collect();
    assert_eq!(found.len(), BlockKind::ALL.len());
    for (i, (at, header)) in found.into_iter().enumerate() {
        let kind = BlockKind::ALL[i];
        let next = BlockKind::ALL.get(i + 1).copied();
        assert_eq!(
            (at, header),
            (header_offset(kind), described(kind).header(next))
        );
    }
    // They are constants: a write is refused, and changes nothing.
    let at = header_offset(BlockKind::Gtlb);
    let before = bench.read(at);
    assert_eq!(bench.write(at, 0, 0xf), SLAVE_ERROR);
    assert_eq!(bench.read(at), before);
    assert!(bench.events.is_empty());
}

#[test]
fn a_doorbell_is_rung_two_cycles_after_it_was_written() {
    let mut bench = Bench::new(1, 8);
    bench.read(4 * Reg::Magic as usize); // the block is out of reset
    let start = bench.cycles;
    bench.rtl.awaddr_i(DOORBELL_BASE as u64);
    bench.rtl.wstrb_i(0xf);
    bench.rtl.awvalid_i(1);
    bench.rtl.wvalid_i(1);
    while bench.events.is_empty() {
        bench.cycle();
    }
    assert_eq!(bench.cycles - start, 2);
}
