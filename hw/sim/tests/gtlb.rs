//! `gtlb.sv` against the GTLB of the software NIC: the same commands, look-ups in every cycle, the
//! same answers.

use std::collections::VecDeque;

use ringbell_gtlb::testing::Rng;
use ringbell_gtlb::{Access, GtlbConfig, Mmu, MmuConfig, LARGE_PAGE_BYTES, PAGE_BYTES};
use ringbell_hw_sim::figure::{self, Signal, Wave};
use ringbell_hw_sim::gtlb::Block;
use ringbell_nic_abi::bar::Reg;
use ringbell_nic_abi::translation::{
    GTLB_INVALIDATE, GTLB_WRITE_LARGE, GTLB_WRITE_PAGE, GTLB_WRITE_POINTER,
};
use ringbell_nic_abi::{GpuVa, PdId};

/// Main and complementary entries of the block as it is built.
const MAIN: u64 = 16_384;
const COMPLEMENTARY: u64 = 2_048;
/// Cycles from a look-up to its answer.
const LATENCY: usize = 3;

#[derive(Clone, Copy)]
enum Command {
    Base(u64),
    Entry {
        command: u32,
        index: u32,
        va: u64,
        pa: u64,
    },
}

/// The block beside its model, in step.
struct Pair {
    rtl: Block,
    model: Mmu,
    pd: PdId,
    /// Registered ranges: their handle and first address.
    regions: Vec<(u32, u64)>,
    rng: Rng,
    /// Answers that are due, oldest first; none for a cycle without a look-up.
    due: VecDeque<Option<Option<(u64, u64)>>>,
    /// Addresses of commands, near which look-ups are dense.
    recent: Vec<u64>,
    hits: u64,
    faults: u64,
    refused: u64,
    cycles: u64,
}

impl Pair {
    fn new(seed: u64) -> Pair {
        let instances = vec![GtlbConfig::default()];
        let config = MmuConfig {
            instances,
            refill: false,
        };
        let mut model = Mmu::new(config).expect("the default sizes");
        let pd = model.alloc_pd().expect("the first");
        let mut rtl = Block::new();
        rtl.rst_ni(0);
        rtl.tick();
        rtl.tick();
        rtl.rst_ni(1);
        Pair {
            rtl,
            model,
            pd,
            regions: Vec::new(),
            rng: Rng::new(seed),
            due: vec![None; LATENCY].into(),
            recent: Vec::new(),
            hits: 0,
            faults: 0,
            refused: 0,
            cycles: 0,
        }
    }

    /// What the model answers now: bus address and bytes left.
    fn expected(&mut self, region: u32, va: u64) -> Option<(u64, u64)> {
        let left = LARGE_PAGE_BYTES - va % LARGE_PAGE_BYTES;
        let span = self.model.span(region, GpuVa(va), left).ok()?;
        Some((span.addr.value(), span.len))
    }

    /// One cycle with a look-up, and with what is under way of a command; gives the block's verdict
    /// in the cycle in which it acts.
    fn cycle(&mut self, acting: Option<Command>) -> bool {
        let look = !self.regions.is_empty() && self.rng.below(8) != 0;
        self.rtl.lookup_valid_i(u64::from(look));
        let mut answer = None;
        if look {
            let (region, start) = self.regions[self.rng.below(self.regions.len() as u64) as usize];
            let near = self.rng.below(4) != 0 && !self.recent.is_empty();
            let va = if near {
                let at = self.recent[self.rng.below(self.recent.len() as u64) as usize];
                at - at % LARGE_PAGE_BYTES + self.rng.below(LARGE_PAGE_BYTES)
            } else {
                start + self.rng.below(MAIN * LARGE_PAGE_BYTES)
            };
            let covering = self
                .regions
                .iter()
                .find(|(_, s)| (*s..s + MAIN * LARGE_PAGE_BYTES).contains(&va));
            let region = covering.map_or(region, |r| r.0);
            self.rtl.lookup_va_i(va);
            answer = Some(self.expected(region, va));
        }
        self.rtl.eval();
        self.due.push_back(answer);
        let due = self.due.pop_front().expect("it is never empty");
        assert_eq!(
            self.rtl.lookup_valid_o() == 1,
            due.is_some(),
            "cycle {}",
            self.cycles
        );
        if let Some(due) = due {
            let got = (self.rtl.lookup_fault_o() == 0)
                .then(|| (self.rtl.lookup_bus_o(), self.rtl.lookup_left_o()));
            assert_eq!(got, due, "cycle {}", self.cycles);
            match due {
                Some(_) => self.hits += 1,
                None => self.faults += 1,
            }
        }
        let acts = self.rtl.done_o() == 1;
        if acts {
            let command = acting.expect("a command is under way");
            let refused = !self.in_model(command);
            assert_eq!(self.rtl.error_o() == 1, refused, "cycle {}", self.cycles);
            self.refused += u64::from(refused);
        }
        self.rtl.tick();
        self.cycles += 1;
        acts
    }

    /// Does a command in the model; false when it is refused.
    fn in_model(&mut self, command: Command) -> bool {
        let mut write = |reg, value| self.model.write_register(reg, value).is_ok();
        match command {
            Command::Base(base) => {
                write(Reg::GtlbBaseLo, base as u32) && write(Reg::GtlbBaseHi, (base >> 32) as u32)
            }
            Command::Entry {
                command,
                index,
                va,
                pa,
            } => {
                write(Reg::GtlbVaLo, va as u32);
                write(Reg::GtlbVaHi, (va >> 32) as u32);
                write(Reg::GtlbPaLo, pa as u32);
                write(Reg::GtlbPaHi, (pa >> 32) as u32);
                write(Reg::GtlbIndex, index);
                write(Reg::GtlbCommand, command)
            }
        }
    }

    /// Gives the block a command and runs cycles until it has acted.
    fn command(&mut self, command: Command) {
        let limit = self.cycles + MAIN + 64;
        match command {
            Command::Base(base) => {
                self.rtl.base_i(base);
                self.rtl.base_valid_i(1);
            }
            Command::Entry {
                command,
                index,
                va,
                pa,
            } => {
                self.rtl.cmd_i(u64::from(command));
                self.rtl.cmd_index_i(u64::from(index));
                self.rtl.cmd_va_i(va);
                self.rtl.cmd_pa_i(pa);
                self.rtl.cmd_valid_i(1);
            }
        }
        loop {
            assert!(self.cycles < limit, "a command must be taken");
            self.rtl.eval();
            let taken = match command {
                Command::Base(_) => self.rtl.base_ready_o(),
                Command::Entry { .. } => self.rtl.cmd_ready_o(),
            } == 1;
            self.cycle(None);
            if taken {
                break;
            }
        }
        self.rtl.base_valid_i(0);
        self.rtl.cmd_valid_i(0);
        while !self.cycle(Some(command)) {
            assert!(self.cycles < limit, "a command must act");
        }
    }

    /// A large entry for every group of a window, so that the model lets its range be registered.
    fn fill(&mut self, base: u64) {
        self.command(Command::Base(base));
        for index in 0..MAIN {
            let va = base + index * LARGE_PAGE_BYTES;
            let pa = self.rng.bits() & !(LARGE_PAGE_BYTES - 1);
            self.command(Command::Entry {
                command: GTLB_WRITE_LARGE,
                index: index as u32,
                va,
                pa,
            });
        }
        let len = MAIN * LARGE_PAGE_BYTES;
        let region = self
            .model
            .register(self.pd, GpuVa(base), len, Access::LOCAL);
        self.regions
            .push((region.expect("every group has an entry").lkey.0, base));
    }

    /// A command that is right most of the time, in a part of the window so small that commands
    /// meet.
    fn random(&mut self, base: u64) -> Command {
        let r = &mut self.rng;
        let index = r.below(96) as u32;
        let mut va = base + u64::from(index) * LARGE_PAGE_BYTES + r.below(LARGE_PAGE_BYTES);
        let mut pa = r.bits();
        let mut command = [
            GTLB_WRITE_LARGE,
            GTLB_WRITE_PAGE,
            GTLB_WRITE_PAGE,
            GTLB_WRITE_PAGE,
            GTLB_WRITE_POINTER,
            GTLB_INVALIDATE,
        ][r.below(6) as usize];
        let mut index = match command {
            GTLB_WRITE_PAGE => r.below(COMPLEMENTARY + 2) as u32,
            _ => index,
        };
        match command {
            GTLB_WRITE_POINTER => {
                pa = (pa & !0xffff_ffff) | (r.below(COMPLEMENTARY / 32 + 1) * 32);
            }
            GTLB_WRITE_PAGE => pa &= !(PAGE_BYTES - 1),
            _ => pa &= !(LARGE_PAGE_BYTES - 1),
        }
        match r.below(40) {
            0 => command = r.below(7) as u32,
            1 => index = r.bits() as u32,
            2 => va = r.bits(),
            3 => pa = r.bits(),
            4 => index += 1,
            _ => {}
        }
        if command != GTLB_WRITE_PAGE {
            self.recent.push(va % (1 << 57));
            if self.recent.len() > 24 {
                self.recent.remove(0);
            }
        }
        Command::Entry {
            command,
            index,
            va,
            pa,
        }
    }
}

#[test]
fn answers_as_the_model_under_random_commands() {
    let mut pair = Pair::new(7);
    // The second window overlaps the first by a half, the third begins at no multiple of its size.
    let first = 0x7f00_0000_0000;
    let bases = [
        first,
        first + MAIN / 2 * LARGE_PAGE_BYTES,
        13 * LARGE_PAGE_BYTES,
    ];
    for base in bases {
        pair.fill(base);
    }
    for _ in 0..12 {
        let mut base = bases[pair.rng.below(3) as usize];
        // One base in four is refused, and the window stays.
        if pair.rng.below(4) == 0 {
            pair.command(Command::Base(base + PAGE_BYTES));
            base = bases[2];
        }
        pair.command(Command::Base(base));
        for _ in 0..5_000 {
            let command = pair.random(base);
            pair.command(command);
        }
    }
    println!(
        "{} cycles: {} hits, {} faults, {} commands refused",
        pair.cycles, pair.hits, pair.faults, pair.refused
    );
    for (seen, what) in [
        (pair.hits, "hits"),
        (pair.faults, "faults"),
        (pair.refused, "refusals"),
    ] {
        assert!(seen > 5_000, "only {seen} {what}");
    }
}

#[test]
fn the_last_byte_of_the_address_space_does_not_wrap() {
    let mut pair = Pair::new(1);
    let base = !(LARGE_PAGE_BYTES - 1);
    pair.command(Command::Base(base));
    for (index, va) in [(0, base), (1, 0)] {
        pair.command(Command::Entry {
            command: GTLB_WRITE_LARGE,
            index,
            va,
            pa: 1 << 40,
        });
    }
    let mut answers = Vec::new();
    for va in [u64::MAX, 0] {
        pair.rtl.lookup_valid_i(1);
        pair.rtl.lookup_va_i(va);
        for _ in 0..LATENCY {
            pair.rtl.tick();
        }
        let fault = pair.rtl.lookup_fault_o() == 1;
        answers.push((!fault).then(|| (pair.rtl.lookup_bus_o(), pair.rtl.lookup_left_o())));
    }
    // Address 0 lies behind the window's last group, not in it.
    assert_eq!(answers, [Some(((1 << 40) + LARGE_PAGE_BYTES - 1, 1)), None]);
}

#[test]
fn timing_of_look_ups() {
    use Signal::{Bit, Word};
    let mut pair = Pair::new(2);
    let base = 0x7f00_0000_0000;
    pair.command(Command::Base(base));
    pair.command(Command::Entry {
        command: GTLB_WRITE_LARGE,
        index: 0,
        va: base,
        pa: 1 << 40,
    });
    let rtl = &mut pair.rtl;
    let mut wave = Wave::new(&[
        Bit("lookup_valid_i"),
        Word("lookup_va_i[23:0]"),
        Bit("lookup_valid_o"),
        Bit("lookup_fault_o"),
        Word("lookup_bus_o"),
        Word("lookup_left_o"),
    ]);
    // The third has no entry.
    let looks = [Some(0), Some(0x12_3456), Some(0x20_0000), Some(0x1f_ffff)];
    for look in looks.into_iter().chain([None; 5]) {
        rtl.lookup_valid_i(look.is_some().into());
        rtl.lookup_va_i(base + look.unwrap_or(0));
        rtl.eval();
        let found = rtl.lookup_valid_o() == 1;
        wave.sample(&[
            Some(look.is_some().into()),
            look,
            Some(found.into()),
            Some(u64::from(found) & rtl.lookup_fault_o()),
            found.then(|| rtl.lookup_bus_o()),
            found.then(|| rtl.lookup_left_o()),
        ]);
        rtl.tick();
    }
    println!("{wave}");
    figure::record("gtlb.txt", &wave.to_string());
}
