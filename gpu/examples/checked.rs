//! What checks cost: processor time of kernels with memcheck and with all checks, against the same
//! kernel without.
//!
//! `cargo run --release -p ringbell-gpu --example checked`, in the workspace's folder. One block
//! runs after the other on one thread; medians of interleaved runs. The results with checks must be
//! those without, and nothing must be found.
#![allow(unsafe_code)] // Reads and writes the memory that it lends to kernels.

use std::sync::atomic::AtomicU32;
use std::sync::Arc;

use ringbell_gpu::{parse, Block, Checker, Checks, Clock, Memory, Order, Program, Shape, Step};
use rustix::time::{clock_gettime, ClockId};

/// Bytes of GPU memory.
const BYTES: usize = 32 << 20;

/// Bytes of each buffer; the first is behind the memory's begin.
const BUFFER: u64 = 4 << 20;

const RUNS: usize = 11;

struct NoTime;

impl Clock for NoTime {
    fn now_ns(&self) -> u64 {
        0
    }
}

/// GPU memory with a checker, if kernels are checked.
struct Lent(Option<Checker>);

impl Memory for Lent {
    fn allows(&self, _: u64, _: u32) -> bool {
        false
    }

    fn checker(&self) -> Option<&Checker> {
        self.0.as_ref()
    }
}

/// A parameter: a buffer by its number, or a word.
#[derive(Clone, Copy)]
enum Arg {
    Buffer(u64),
    Word(u32),
}
use Arg::{Buffer, Word};

/// A launch.
struct Run {
    kernel: &'static str,
    grid: [u32; 3],
    block: [u32; 3],
    args: &'static [Arg],
}

const SIMPLE: &str = "cuda-kernels/tests/kernels/ptx_simple.ptx";
const PATTERNS: &str = "cuda-kernels/tests/kernels/cuda_patterns.ptx";

const fn run(kernel: &'static str, grid: [u32; 3], block: [u32; 3], args: &'static [Arg]) -> Run {
    Run {
        kernel,
        grid,
        block,
        args,
    }
}

/// Name, file, launches; buffers are 0 to 2 for input, the others for output, which each begins
/// with zeros.
#[rustfmt::skip]
const WORKS: &[(&str, &str, &[Run])] = &[
    ("saxpy of 1 Mi", SIMPLE, &[run("p_saxpy", [4096, 1, 1], [256, 1, 1], &[Word(1 << 20), Word(0x4000_0000), Buffer(0), Buffer(3)])]),
    ("block reduction", SIMPLE, &[run("p_block_reduce", [64, 1, 1], [256, 1, 1], &[Word(1 << 20), Buffer(0), Buffer(3)])]),
    ("GEMM of 256", SIMPLE, &[run("p_gemm", [16, 16, 1], [16, 16, 1], &[Word(256), Buffer(0), Buffer(1), Buffer(3)])]),
    ("histogram", SIMPLE, &[run("p_histogram", [64, 1, 1], [256, 1, 1], &[Word(1 << 20), Buffer(0), Buffer(3)])]),
    ("warp scan", SIMPLE, &[run("p_warp_scan", [4096, 1, 1], [256, 1, 1], &[Word(1 << 20), Buffer(0), Buffer(3)])]),
    ("GEMM of bfloat16", PATTERNS, &[run("bf16_gemm", [16, 16, 1], [16, 16, 1], &[Buffer(0), Buffer(1), Buffer(3), Word(256)])]),
    ("GEMM by mma", PATTERNS, &[run("mma_gemm", [16, 32, 1], [32, 1, 1], &[Buffer(0), Buffer(1), Buffer(3), Word(256)])]),
    ("MoE", PATTERNS, &[
        run("moe_dispatch", [256, 1, 1], [32, 1, 1], &[Buffer(0), Buffer(1), Word(8), Word(128), Word(256), Buffer(3), Buffer(4), Buffer(5), Buffer(6)]),
        run("moe_expert", [8, 1, 1], [64, 1, 1], &[Buffer(6), Buffer(3), Word(128), Word(256)]),
        run("moe_combine", [256, 1, 1], [32, 1, 1], &[Buffer(6), Buffer(4), Buffer(5), Word(128), Buffer(3)]),
    ]),
];

/// The parameters of a kernel at their offsets.
fn parameters(args: &[Arg], base: u64) -> Arc<[u128]> {
    let mut bytes = Vec::new();
    for a in args {
        match a {
            Word(w) => bytes.extend(w.to_le_bytes()),
            Buffer(n) => {
                bytes.resize(bytes.len().next_multiple_of(8), 0);
                bytes.extend((base + n * BUFFER).to_le_bytes());
            }
        }
    }
    bytes.resize(bytes.len().next_multiple_of(16), 0);
    let units = bytes.chunks(16).map(|c| {
        let unit = c.try_into().expect("16 bytes");
        u128::from_le_bytes(unit)
    });
    units.collect()
}

/// Processor milliseconds of some launches, and what is found in them.
fn launches(
    program: &Program,
    runs: &[Run],
    lent: &Lent,
    base: u64,
) -> Result<f64, Box<dyn std::error::Error>> {
    let mut took = 0.0;
    for r in runs {
        let kernel = program.kernel(r.kernel)?;
        let shape = Shape {
            grid: r.grid,
            block: r.block,
            dynamic_shared: 0,
        };
        let begin = now_ms();
        let mut block = Block::new(kernel.clone(), shape, parameters(r.args, base));
        let watch = lent
            .0
            .as_ref()
            .map(|c| c.launch(&kernel, shape, |_| String::new()));
        if let Some(w) = &watch {
            block.watch(w.clone());
        }
        let [x, y, z] = r.grid;
        for i in 0..x * y * z {
            block.begin([i % x, i / x % y, i / (x * y)]);
            let stop = AtomicU32::new(0);
            loop {
                match block.step(lent, &NoTime, &stop, &mut Order::new(0)) {
                    Step::Done => break,
                    Step::Failed(f) => return Err(format!("{}: {}", r.kernel, f.kind).into()),
                    _ => {}
                }
            }
        }
        if let (Some(c), Some(w)) = (&lent.0, &watch) {
            c.ended(w);
            if let Some(found) = w.findings().first() {
                return Err(format!("{}: {found}", r.kernel).into());
            }
        }
        took += now_ms() - begin;
    }
    Ok(took)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut memory = vec![0u64; BYTES / 8 + (1 << 13)];
    let base = (memory.as_mut_ptr() as u64).next_multiple_of(1 << 16);
    let all = [
        Checks::default(),
        "memcheck".parse::<Checks>()?,
        "initcheck".parse()?,
        "racecheck".parse()?,
        Checks::ALL,
    ];
    let only = std::env::args().nth(1).unwrap_or_default();
    println!(
        "{:18} {:>9}  memcheck initcheck racecheck  all",
        "times", "ms"
    );
    for (name, file, runs) in WORKS.iter().filter(|w| w.0.contains(&only)) {
        let text = std::fs::read_to_string(file)?;
        let lents = all.map(|checks| {
            let checker = checks.any().then(|| {
                let c = Checker::new(checks, base, BYTES as u64);
                for n in 0..8 {
                    c.allocated(base + n * BUFFER, BUFFER);
                    c.host(base + n * BUFFER, BUFFER, true);
                }
                c
            });
            Lent(checker)
        });
        let mut programs = Vec::new();
        for checks in all {
            let module = parse(file, &text)?;
            let addresses = vec![base; module.variables.len()];
            programs.push(Program::new(module, addresses, base, BYTES as u64).checked(checks));
        }
        let mut times = all.map(|_| Vec::new());
        let mut wanted: Option<Vec<u8>> = None;
        for _ in 0..RUNS {
            for (i, lent) in lents.iter().enumerate() {
                fill(base);
                times[i].push(launches(&programs[i], runs, lent, base)?);
                let output = base + 3 * BUFFER;
                // SAFETY: inside of `memory`, and no kernel runs.
                let got =
                    unsafe { std::slice::from_raw_parts(output as *const u8, BUFFER as usize) };
                if wanted.get_or_insert_with(|| got.to_vec()) != got {
                    return Err(format!("{name}: wrong with {:?}", all[i]).into());
                }
            }
        }
        let medians = times.map(|mut t| {
            t.sort_by(f64::total_cmp);
            t[RUNS / 2]
        });
        let [plain, memory, init, races, all] = medians;
        println!(
            "{name:18} {plain:9.2}  {:8.1} {:9.1} {:9.1} {:4.1}",
            memory / plain,
            init / plain,
            races / plain,
            all / plain
        );
    }
    drop(memory);
    Ok(())
}

/// Inputs that are small numbers in single precision, and zeros elsewhere.
fn fill(base: u64) {
    for i in 0..7 * BUFFER / 4 {
        let v = if i < 3 * BUFFER / 4 {
            (i * 7 % 13) as f32 / 4.0
        } else {
            0.0
        };
        // SAFETY: inside of the memory, and no kernel runs.
        unsafe { ((base + i * 4) as *mut f32).write_volatile(v) };
    }
}

fn now_ms() -> f64 {
    let t = clock_gettime(ClockId::ThreadCPUTime);
    t.tv_sec as f64 * 1e3 + t.tv_nsec as f64 / 1e6
}
