//! PTX text: refused with a line of it, or a module whose small kernels can be compiled, never a
//! panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringbell_gpu::{parse, Program};

fuzz_target!(|text: &str| {
    let module = match parse("fuzz.ptx", text) {
        Ok(module) => module,
        Err(e) => {
            assert!(e.line as usize <= text.lines().count().max(1), "{e}");
            assert!(!e.what.is_empty());
            return;
        }
    };
    // Compiling a long text takes long, and finds nothing that a short one does not.
    if text.len() > 4096 {
        return;
    }
    let kernels: Vec<String> = module.kernels().map(|k| k.name.clone()).collect();
    let addresses = vec![1 << 30; module.variables.len()];
    let program = Program::new(module, addresses, 1 << 30, 1 << 30);
    for kernel in kernels {
        let _ = program.kernel(&kernel);
    }
});
