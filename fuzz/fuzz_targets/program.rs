//! A user's collective program of any shape: refused, or proved and then run without a fault.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringbell_onc_engines::program::{format, parse, simulate, Limits, UserProgram};

fuzz_target!(|text: &str| {
    if let Ok(programs) = parse(text) {
        assert_eq!(parse(&format(&programs)).as_ref(), Ok(&programs));
    }
    let limits = Limits {
        buffer_chunks: 64,
        scratch_chunks: 64,
        ..Limits::default()
    };
    if let Ok(user) = UserProgram::load(text, &limits) {
        let block = u64::from(user.programs()[0].block_chunks);
        let source = |chunks: u32| vec![1u64; chunks as usize];
        let sources: Vec<_> = user
            .programs()
            .iter()
            .map(|p| source(p.input_chunks))
            .collect();
        simulate(user.programs(), block, &sources, false, |a, b| a + b, 1).expect("proved");
    }
});
