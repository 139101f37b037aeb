//! Lookups per second, and how long it takes to populate 80 GB (page-table numbers only; no memory
//! is touched).
//!
//! `cargo bench --profile dist -p ringbell-micro --bench gtlb [-- --quick] [-- --json]`. Every row
//! checks the bus addresses it got against the page table (`#wrong`); a timed loop's sum of
//! addresses must also agree. Times are medians of five runs of the software GTLB, not of
//! hardware's.

use std::hint::black_box;
use std::process::ExitCode;
use std::time::Instant;

use ringbell_gtlb::testing::Rng;
use ringbell_gtlb::{Access, GtlbConfig, Mmu, MmuConfig, Need, PageTable, PAGE_BYTES};
use ringbell_nic_abi::{GpuVa, Lkey, PdId};

const BASE: u64 = 0x7f00_0020_0000;
const BYTES_80_GB: u64 = 80_000_000_000;
const RUNS: usize = 5;

/// The paper's GTLB, and one whose complementary TLB could hold every page of its window.
const PAPER: GtlbConfig = GtlbConfig {
    main_entries: 16_384,
    complementary_entries: 2_048,
};
const WIDE: GtlbConfig = GtlbConfig {
    main_entries: 16_384,
    complementary_entries: 16_384 * 32,
};

#[derive(Clone, Copy, PartialEq)]
enum Pages {
    Contiguous,
    /// No two neighbours follow each other on the bus.
    Scattered,
}

impl Pages {
    fn name(self) -> &'static str {
        match self {
            Pages::Contiguous => "contiguous",
            Pages::Scattered => "scattered",
        }
    }

    fn table(self, bytes: u64) -> PageTable {
        let n = bytes.div_ceil(PAGE_BYTES);
        let mut pages: Vec<u64> = (0..n).map(|i| (1 << 36) + i * PAGE_BYTES).collect();
        if self == Pages::Scattered {
            let mut rng = Rng::new(1);
            for i in (1..pages.len()).rev() {
                pages.swap(i, rng.below(i as u64 + 1) as usize);
            }
        }
        PageTable {
            base: GpuVa(BASE),
            pages,
        }
    }
}

fn expected(table: &PageTable, va: u64) -> u64 {
    let offset = va - BASE;
    table.pages[(offset / PAGE_BYTES) as usize] + offset % PAGE_BYTES
}

/// One line of the report.
struct Row {
    what: String,
    pages: &'static str,
    gtlb: &'static str,
    count: u64,
    /// Median seconds for `count`.
    seconds: f64,
    /// Misses per lookup in the timed runs.
    missed: f64,
    wrong: u64,
}

/// A populated MMU with one region over everything.
struct Bench {
    mmu: Mmu,
    pd: PdId,
    region: u32,
    table: PageTable,
    bytes: u64,
}

impl Bench {
    fn new(pages: Pages, config: GtlbConfig, bytes: u64) -> Bench {
        let table = pages.table(bytes);
        let mut mmu = mmu(config);
        mmu.map(&table).expect("refill is on");
        let pd = mmu.alloc_pd().expect("the first domain");
        let region = mmu
            .register(pd, table.base, bytes, Access::LOCAL)
            .expect("the range is mapped");
        Bench {
            mmu,
            pd,
            region: region.lkey.0,
            table,
            bytes,
        }
    }

    fn span(&mut self, va: u64) -> u64 {
        let span = self.mmu.span(self.region, GpuVa(va), 1);
        span.expect("the region is registered").addr.value()
    }

    fn pin_span_unpin(&mut self, va: u64) -> u64 {
        let pin = self.mmu.pin(self.pd, Lkey(0), GpuVa(va), 1, Need::Write);
        let pin = pin.expect("the region is registered");
        let span = self.mmu.span(pin.region, GpuVa(va), 1);
        self.mmu.unpin(pin);
        span.expect("the region is registered").addr.value()
    }

    /// Times `count` operations on the addresses that `next` yields from a counter.
    fn measure(
        &mut self,
        count: u64,
        next: impl Fn(u64, u64) -> u64,
        op: impl Fn(&mut Bench, u64) -> u64,
    ) -> (f64, f64, u64) {
        let address = |bytes: u64, i: u64| BASE + next(i, bytes);
        let (mut wrong, mut sum) = (0, 0u64);
        for i in 0..count {
            let va = address(self.bytes, i);
            let right = expected(&self.table, va);
            wrong += u64::from(op(self, va) != right);
            sum = sum.wrapping_add(right);
        }
        let misses = self.mmu.stats().misses;
        let mut seconds = Vec::new();
        for _ in 0..RUNS {
            let mut got = 0u64;
            seconds.push(timed(|| {
                for i in 0..count {
                    got = got.wrapping_add(op(self, address(self.bytes, i)));
                }
            }));
            wrong += u64::from(black_box(got) != sum);
        }
        let missed = (self.mmu.stats().misses - misses) as f64 / (RUNS as u64 * count) as f64;
        (median(seconds), missed, wrong)
    }
}

fn mmu(config: GtlbConfig) -> Mmu {
    Mmu::new(MmuConfig {
        instances: vec![config; 3],
        refill: true,
    })
    .expect("the sizes are valid")
}

/// Runs `work` and gives the seconds it took. A bench is the edge where the clock is read.
#[allow(clippy::disallowed_methods)]
fn timed(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// 4 KiB steps.
fn sequential(i: u64, bytes: u64) -> u64 {
    (i * 4096) % bytes
}

/// A multiplicative hash of the counter, scaled to the range.
fn random(i: u64, bytes: u64) -> u64 {
    let hash = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (i >> 3);
    ((hash.wrapping_mul(0xbf58_476d_1ce4_e5b9) as u128 * bytes as u128) >> 64) as u64
}

fn lookups(rows: &mut Vec<Row>, count: u64) {
    let cases = [
        (Pages::Contiguous, PAPER, "3 x (16384 + 2048)", BYTES_80_GB),
        (Pages::Scattered, PAPER, "3 x (16384 + 2048)", 128 << 20),
        (Pages::Scattered, WIDE, "3 x (16384 + 524288)", BYTES_80_GB),
        (Pages::Scattered, PAPER, "3 x (16384 + 2048)", BYTES_80_GB),
    ];
    for (pages, config, gtlb, bytes) in cases {
        let mut bench = Bench::new(pages, config, bytes);
        let mut row = |what: &str, (seconds, missed, wrong): (f64, f64, u64)| {
            rows.push(Row {
                what: format!("{what}, {}", size(bytes)),
                pages: pages.name(),
                gtlb,
                count,
                seconds,
                missed,
                wrong,
            });
        };
        row(
            "lookup sequential",
            bench.measure(count, sequential, Bench::span),
        );
        row("lookup random", bench.measure(count, random, Bench::span));
        if pages == Pages::Contiguous {
            let pin = bench.measure(count, random, Bench::pin_span_unpin);
            row("pin + lookup + unpin random", pin);
        }
    }
}

fn population(rows: &mut Vec<Row>) {
    let cases = [
        (Pages::Contiguous, PAPER, "3 x (16384 + 2048)"),
        (Pages::Scattered, WIDE, "3 x (16384 + 524288)"),
        (Pages::Scattered, PAPER, "3 x (16384 + 2048)"),
    ];
    for (pages, config, gtlb) in cases {
        let table = pages.table(BYTES_80_GB);
        let (mut seconds, mut wrong) = (Vec::new(), 0);
        for _ in 0..RUNS {
            let mut mmu = mmu(config);
            seconds.push(timed(|| mmu.map(&table).expect("refill is on")));
            let pd = mmu.alloc_pd().expect("the first domain");
            let region = mmu.register(pd, table.base, BYTES_80_GB, Access::LOCAL);
            let region = region.expect("the range is mapped").lkey.0;
            for va in (BASE..BASE + BYTES_80_GB).step_by(PAGE_BYTES as usize) {
                let span = mmu.span(region, GpuVa(va), 1);
                let span = span.expect("the range is registered");
                wrong += u64::from(span.addr.value() != expected(&table, va));
            }
        }
        rows.push(Row {
            what: format!("populate {}", size(BYTES_80_GB)),
            pages: pages.name(),
            gtlb,
            count: table.pages.len() as u64,
            seconds: median(seconds),
            missed: 0.0,
            wrong,
        });
    }
}

fn size(bytes: u64) -> String {
    if bytes.is_multiple_of(1 << 20) && bytes < 1 << 30 {
        format!("{} MiB", bytes >> 20)
    } else {
        format!("{} GB", bytes / 1_000_000_000)
    }
}

fn print_table(rows: &[Row]) {
    println!(
        "{:<36} {:<11} {:<21} {:>9} {:>9} {:>10} {:>9} {:>7}",
        "what", "pages", "main + complementary", "M/s", "ns each", "total ms", "missed", "#wrong"
    );
    for r in rows {
        println!(
            "{:<36} {:<11} {:<21} {:>9.1} {:>9.2} {:>10.2} {:>8.1}% {:>7}",
            r.what,
            r.pages,
            r.gtlb,
            r.count as f64 / r.seconds / 1e6,
            r.seconds / r.count as f64 * 1e9,
            r.seconds * 1e3,
            r.missed * 100.0,
            r.wrong
        );
    }
}

fn print_json(rows: &[Row]) {
    let rows: Vec<_> = rows
        .iter()
        .map(|r| {
            serde_json::json!({
                "what": r.what,
                "pages": r.pages,
                "gtlb": r.gtlb,
                "count": r.count,
                "time_us": r.seconds * 1e6,
                "ns_each": r.seconds / r.count as f64 * 1e9,
                "missed": r.missed,
                "wrong": r.wrong,
            })
        })
        .collect();
    let meta = serde_json::json!({
        "bench": "gtlb",
        "version": env!("CARGO_PKG_VERSION"),
        "nic": "soft",
        "runs": RUNS,
    });
    println!("{}", serde_json::json!({ "meta": meta, "rows": rows }));
}

fn main() -> ExitCode {
    eprintln!("built by the profile {}", env!("RINGBELL_PROFILE"));
    let args: Vec<String> = std::env::args().collect();
    let flag = |name: &str| args.iter().any(|a| a == name);
    let count = if flag("--quick") { 200_000 } else { 5_000_000 };
    let mut rows = Vec::new();
    lookups(&mut rows, count);
    population(&mut rows);
    if flag("--json") {
        print_json(&rows);
    } else {
        print_table(&rows);
    }
    if rows.iter().any(|r| r.wrong > 0) {
        eprintln!("wrong translations: see the column #wrong");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
