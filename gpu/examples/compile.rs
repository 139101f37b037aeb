//! How long kernels take to compile: `cargo run --release -p ringbell-gpu --example compile --
//! FILE.ptx ...`
//!
//! Prints processor time for each kernel, and nanoseconds for each statement of the text.

use ringbell_gpu::{parse, Program};
use rustix::time::{clock_gettime, ClockId};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for file in std::env::args().skip(1) {
        let text = std::fs::read_to_string(&file)?;
        let begin = now_ms();
        let module = parse(&file, &text)?;
        let parsed = now_ms() - begin;
        println!("{file}: parsed in {parsed:.1} ms");
        let names: Vec<String> = module.kernels().map(|k| k.name.clone()).collect();
        let addresses = vec![0x1_0000; module.variables.len()];
        let program = Program::new(module, addresses, 0x1_0000, 1 << 30);
        for name in names {
            let begin = now_ms();
            let kernel = program.kernel(&name)?;
            let took = now_ms() - begin;
            println!(
                "  {took:9.1} ms  {name} ({} bytes of code)",
                kernel.code_bytes()
            );
        }
    }
    Ok(())
}

fn now_ms() -> f64 {
    let t = clock_gettime(ClockId::ThreadCPUTime);
    t.tv_sec as f64 * 1e3 + t.tv_nsec as f64 / 1e6
}
