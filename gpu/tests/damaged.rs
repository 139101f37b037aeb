//! Damaged PTX is refused with a line, or compiled: never a panic. `fuzz/fuzz_targets/ptx.rs` looks
//! further.
#![allow(missing_docs)] // Tests.

use ringbell_gpu::{parse, Program};

/// Texts, and of how many changed ones some are to be compiled and most are not.
const TEXTS: [&str; 4] = [
    include_str!("../../fuzz/seeds/ptx/call"),
    include_str!("../../fuzz/seeds/ptx/asynchronous"),
    include_str!("../../fuzz/seeds/ptx/matrix"),
    include_str!("../../fuzz/seeds/ptx/arithmetic"),
];

fn try_text(text: &str) -> bool {
    let Ok(module) = parse("damaged.ptx", text) else {
        return false;
    };
    let kernels: Vec<String> = module.kernels().map(|k| k.name.clone()).collect();
    let addresses = vec![1 << 30; module.variables.len()];
    let program = Program::new(module, addresses, 1 << 30, 1 << 30);
    kernels.iter().all(|k| program.kernel(k).is_ok())
}

#[test]
fn a_text_that_is_cut_off_is_refused() {
    for text in TEXTS {
        assert!(try_text(text), "{text}");
        for end in 0..text.len() {
            try_text(&text[..end]);
        }
    }
}

#[test]
fn words_in_the_place_of_others_do_no_harm() {
    let mut x = 0x9e37_79b9u64;
    let mut next = |n: usize| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x % n as u64) as usize
    };
    for text in TEXTS {
        let words: Vec<&str> = text
            .split_inclusive([' ', ',', ';', '\t', '\n', '[', '.'])
            .collect();
        let mut compiled = 0;
        for _ in 0..6_000 {
            let mut damaged = words.clone();
            for _ in 0..1 + next(3) {
                let (at, from) = (next(words.len()), next(words.len()));
                damaged[at] = words[from];
            }
            compiled += u32::from(try_text(&damaged.concat()));
        }
        // Some changes are no damage; most are.
        assert!((30..4_500).contains(&compiled), "{compiled}");
    }
}

#[test]
fn limits_are_refused_and_not_run_into() {
    let head = ".version 8.0\n.target sm_90\n.address_size 64\n";
    let kernel = |body: &str| format!("{head}.visible .entry k() {{\n{body}\nret;\n}}");
    let refused = |text: &str, words: &str| match parse("limits.ptx", text) {
        Err(e) => assert!(e.what.contains(words), "{e}"),
        Ok(_) => panic!("`{words}` is not said"),
    };
    refused(&kernel(".reg .b32 %r<4000000000>;"), "registers");
    refused(&kernel(".reg .b32 %r<2000000>;"), "registers");
    refused(&kernel(&"{".repeat(100_000)), "nested");
    refused(&kernel(".local .b8 a[4294967295];"), "2 GiB");
    refused(
        &format!("{head}.visible .entry k() {{ call f; }}"),
        "no function",
    );
    let endless = "mov.u64 %r0, f; call.uni f;";
    refused(&kernel(endless), "no register");
    let deep = format!(
        "{head}.func f() {{ call.uni f; ret; }}\n.visible .entry k() {{ call.uni f; ret; }}"
    );
    assert!(try_text(&deep));
    // A chain of calls is compiled in parts.
    let chain: String = (1..3000)
        .map(|i| format!(".func f{i}() {{ call.uni f{}; ret; }}\n", i - 1))
        .collect();
    let chain = format!(
        "{head}.func f0() {{ ret; }}\n{chain}.visible .entry k() {{ call.uni f2999; ret; }}"
    );
    assert!(try_text(&chain));
    refused(".version 12.0\n", "versions 3.0 to 9.x");
    assert!(try_text(&kernel(
        ".reg .b32 %r<1000000>;\nmov.u32 %r999999, 1;"
    )));
}
