//! A block of several threads, with memory that a test fills and reads.

use std::sync::atomic::AtomicU32;
use std::sync::Arc;

use ringbell_gpu::{parse, Block, Checker, Checks, Fault, Memory, Order, Program, Shape, Step};

use super::harness::{also_for_aarch64, NoTime};

/// A module with a kernel `k(p)`, whose registers are `%r`, `%x` (64 bits), `%h` (16), `%f`, `%d`,
/// `%p`, with numbers.
pub(crate) fn module(declarations: &str, statements: &str) -> String {
    format!(
        ".version 8.6\n.target sm_100\n.address_size 64\n{declarations}\n.visible .entry k(.param .u64 p) {{\n\
         .reg .b32 %r<64>; .reg .b64 %x<64>; .reg .b16 %h<16>; .reg .f32 %f<64>; .reg .f64 %d<64>; .reg .pred %p<8>;\n\
         ld.param.u64 %x0, [p]; mov.u32 %r0, %tid.x; mul.wide.u32 %x1, %r0, 4; add.u64 %x1, %x0, %x1;\n\
         {statements}\nret; }}"
    )
}

/// Runs one block over the words, which lie at `p`.
pub(crate) fn launch(text: &str, threads: u32, words: &mut [u32]) {
    if let Err(fault) = try_launch(text, threads, words) {
        panic!("{fault:?}\n{text}");
    }
}

pub(crate) fn try_launch(text: &str, threads: u32, words: &mut [u32]) -> Result<(), Box<Fault>> {
    run(text, threads, words, Checks::default()).map(|_| ())
}

/// What all checks find.
pub(crate) fn findings(text: &str, threads: u32, words: &mut [u32]) -> Vec<String> {
    let found = run(text, threads, words, Checks::ALL);
    found.unwrap_or_else(|fault| panic!("{fault:?}\n{text}"))
}

/// Memory that only a checker knows.
struct Checked<'a>(&'a Checker);

impl Memory for Checked<'_> {
    fn allows(&self, _: u64, _: u32) -> bool {
        false
    }

    fn checker(&self) -> Option<&Checker> {
        Some(self.0)
    }
}

fn run(
    text: &str,
    threads: u32,
    words: &mut [u32],
    checks: Checks,
) -> Result<Vec<String>, Box<Fault>> {
    let module = parse("block.ptx", text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    also_for_aarch64(text);
    let mut bytes = std::mem::size_of_val(words).next_multiple_of(16);
    let places: Vec<usize> = module
        .variables
        .iter()
        .map(|v| {
            let at = bytes.next_multiple_of(256);
            bytes = at + (v.bytes as usize).next_multiple_of(16);
            at
        })
        .collect();
    let memory = vec![0u128; bytes / 16 + 4096];
    let base = (memory.as_ptr() as u64).next_multiple_of(1 << 16);
    let addresses: Vec<u64> = places.iter().map(|at| base + *at as u64).collect();
    let at = base as *mut u32;
    let put = |to: u64, from: &[u8]| {
        // SAFETY: 64 KiB more than words and variables take were allocated.
        #[allow(unsafe_code)]
        unsafe {
            std::ptr::copy(from.as_ptr(), to as *mut u8, from.len());
        }
    };
    let given: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    put(base, &given);
    for (v, to) in module.variables.iter().zip(&addresses) {
        if v.is_global() {
            put(*to, &v.image(&addresses));
        }
    }
    let checker = Checker::new(checks, base, (bytes as u64).next_multiple_of(1 << 16));
    checker.allocated(base, bytes as u64);
    checker.host(base, bytes as u64, true);
    let program = Program::new(module, addresses, base, bytes as u64).checked(checks);
    let kernel = program.kernel("k").unwrap();
    let shape = Shape {
        grid: [1; 3],
        block: [threads, 1, 1],
        dynamic_shared: 0,
    };
    let watch = checker.launch(&kernel, shape, |site| format!("{site:?}"));
    let mut block = Block::new(kernel, shape, Arc::new([u128::from(base)]));
    block.watch(watch.clone());
    block.begin([0; 3]);
    let (stop, mut order) = (AtomicU32::new(0), Order::new(7));
    // A test that waits for ever is to fail.
    for _ in 0..100_000 {
        match block.step(&Checked(&checker), &NoTime, &stop, &mut order) {
            Step::Done => {
                // SAFETY: as above.
                #[allow(unsafe_code)]
                unsafe {
                    std::ptr::copy(at, words.as_mut_ptr(), words.len());
                }
                checker.ended(&watch);
                return Ok(watch.findings());
            }
            Step::Failed(fault) => return Err(fault),
            _ => {}
        }
    }
    panic!("the block does not end\n{text}");
}
