//! `dma_split.sv` against the spans of the software NIC's GTLB: the same bytes at the same bus
//! addresses.

use ringbell_gtlb::testing::Rng;
use ringbell_gtlb::{Access, GtlbConfig, Mmu, MmuConfig, PageTable, LARGE_PAGE_BYTES, PAGE_BYTES};
use ringbell_hw_sim::dma_split::Block;
use ringbell_nic_abi::{GpuVa, Lkey};

/// Bytes of a burst and beats under way, as the block is built.
const MAX_BURST: u64 = 512;
const CREDITS: u64 = 64;
const BASE: u64 = 0x7f00_0000_0000;

/// Bursts of a command by the model: bus address, bytes, last; and the address that faults.
type Bursts = (Vec<(u64, u64, bool)>, Option<u64>);

fn expected(model: &mut Mmu, region: u32, va: u64, len: u64) -> Bursts {
    let (mut at, end) = (va, va + len);
    let mut bursts = Vec::new();
    while at < end {
        let most = (MAX_BURST - at % MAX_BURST).min(end - at);
        // A span ends with its entry; the region ends with the memory, so behind it is a fault as
        // well.
        let Ok(span) = model.span(region, GpuVa(at), most) else {
            return (bursts, Some(at));
        };
        bursts.push((span.addr.value(), span.len, at + span.len == end));
        at += span.len;
    }
    (bursts, None)
}

struct Bench {
    rtl: Block,
    model: Mmu,
    region: u32,
    rng: Rng,
    /// Beats under way.
    beats: u64,
    cycles: u64,
}

impl Bench {
    /// 64 pages, some scattered.
    fn new(seed: u64) -> Bench {
        let mut rng = Rng::new(seed);
        let instances = vec![GtlbConfig::default()];
        let refill = false;
        let mut model = Mmu::new(MmuConfig { instances, refill }).expect("the default sizes");
        let mut pages: Vec<u64> = (0..64).map(|i| (1 << 40) + i * PAGE_BYTES).collect();
        for page in &mut pages[40..] {
            *page = (rng.bits() % (1 << 50)) & !(PAGE_BYTES - 1);
        }
        let base = GpuVa(BASE);
        model.map(&PageTable { base, pages }).expect("it fits");
        let pd = model.alloc_pd().expect("the first");
        let len = 2 * LARGE_PAGE_BYTES;
        let region = model.register(pd, base, len, Access::LOCAL);
        let region = region.expect("it is mapped").lkey.0;
        assert_ne!(Lkey(region), Lkey(0));
        let mut rtl = Block::new();
        rtl.rst_ni(0);
        rtl.tick();
        rtl.rst_ni(1);
        Bench {
            rtl,
            model,
            region,
            rng,
            beats: 0,
            cycles: 0,
        }
    }

    /// Runs a command with a look-up of 3 cycles and takers that are ready `ready` times in eight.
    fn command(&mut self, va: u64, len: u64, ready: u64) -> Bursts {
        self.rtl.cmd_va_i(va);
        self.rtl.cmd_len_i(len);
        self.rtl.cmd_valid_i(1);
        let (mut bursts, mut fault, mut answers) = (Vec::new(), None, [None; 3]);
        let limit = self.cycles + 100 + (len / MAX_BURST + 2) * 200;
        loop {
            let mut flag = || u64::from(self.rng.below(8) < ready);
            let (take, report, credit) = (flag(), flag(), flag());
            self.rtl.burst_ready_i(take);
            self.rtl.report_ready_i(report);
            let credit = u64::from(self.beats > 0) & credit;
            self.rtl.credit_i(credit);
            let due: Option<Option<u64>> = answers[0];
            self.rtl.lookup_valid_i(u64::from(due.is_some()));
            self.rtl
                .lookup_fault_i(u64::from(due.is_some_and(|a| a.is_none())));
            self.rtl.lookup_bus_i(due.flatten().unwrap_or(0));
            self.rtl.eval();
            let asked = (self.rtl.lookup_valid_o() == 1).then(|| {
                let at = GpuVa(self.rtl.lookup_va_o());
                let span = self.model.span(self.region, at, 1);
                span.ok().map(|s| s.addr.value())
            });
            answers = [answers[1], answers[2], asked];
            if self.rtl.burst_valid_o() & take == 1 {
                let (bus, bytes) = (self.rtl.burst_bus_o(), self.rtl.burst_len_o());
                bursts.push((bus, bytes, self.rtl.burst_last_o() == 1));
                self.beats += (bus + bytes - 1) / 64 - bus / 64 + 1;
            }
            self.beats -= credit;
            assert!(self.beats <= CREDITS, "{} beats under way", self.beats);
            let ended = self.rtl.report_valid_o() & report == 1;
            if ended && self.rtl.report_fault_o() == 1 {
                fault = Some(self.rtl.report_va_o());
            }
            let taken = self.rtl.cmd_ready_o() == 1;
            self.rtl.tick();
            self.cycles += 1;
            assert!(self.cycles < limit, "the command does not end");
            if taken {
                self.rtl.cmd_valid_i(0);
            }
            if ended {
                return (bursts, fault);
            }
        }
    }
}

#[test]
fn bursts_are_the_models_spans() {
    let mut bench = Bench::new(5);
    let (mut whole, mut faults) = (0, 0);
    let all = 2 * LARGE_PAGE_BYTES;
    for n in 0..3_000 {
        let at = bench.rng.below(all + PAGE_BYTES);
        let len = match bench.rng.below(4) {
            0 => bench.rng.below(3),
            1 => bench.rng.below(200),
            2 => bench.rng.below(2 * MAX_BURST),
            _ => bench.rng.below(3 * PAGE_BYTES / 2),
        };
        let ready = [8, 6, 3][n % 3];
        let (region, va) = (bench.region, BASE + at);
        // The model refuses a range that leaves its region as a whole, the block at the first page
        // without an entry.
        let inside = (all - at.min(all)).min(len);
        let mut wanted = expected(&mut bench.model, region, va, inside);
        if inside < len {
            wanted.0.iter_mut().for_each(|burst| burst.2 = false);
            wanted.1 = Some(va.max(BASE + all));
        }
        let got = bench.command(va, len, ready);
        assert_eq!(got, wanted, "command {n}: {len} bytes at {va:#x}");
        whole += u64::from(got.1.is_none());
        faults += u64::from(got.1.is_some());
    }
    assert!(
        whole > 1_000 && faults > 10,
        "{whole} whole, {faults} faults"
    );
}

#[test]
fn a_command_past_the_end_of_the_address_space_faults_at_its_first_byte() {
    let mut bench = Bench::new(6);
    let va = u64::MAX - 9;
    assert_eq!(bench.command(va, 11, 8), (vec![], Some(va)));
    // Its last byte may be the last of all; here it has no entry.
    assert_eq!(bench.command(va, 10, 8), (vec![], Some(va)));
}

#[test]
fn a_look_up_takes_no_longer_than_the_beats_of_a_burst() {
    let mut bench = Bench::new(7);
    let start = bench.cycles;
    bench.command(BASE, 512 * MAX_BURST, 8);
    let cycles = bench.cycles - start;
    // 8 beats each at one a cycle; the credits come as fast.
    assert!(cycles <= 512 * 8 + 16, "{cycles} cycles for 4,096 beats");
}
