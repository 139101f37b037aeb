//! Programs at random, whose threads wait in loops, under guards and in called functions, against
//! an interpreter.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};

use ringbell_gpu::{parse, Block, Code, CodeKey, CodeStore, Order, Program, Shape, Step};

use super::harness::{random, run, NoMemory, NoTime};

const REGISTERS: usize = 24;

/// Statements of a program. Odd registers have 64 bits, even ones 32.
enum S {
    /// `to = a op b`, under the guard of a register's lowest bit.
    Do(&'static str, usize, usize, usize, Option<(usize, bool)>),
    /// `to = a * b + (a ^ b)`, through registers that nothing else uses and that are kept over
    /// waits.
    Keep(usize, usize, usize),
    /// All lanes of the warp, or all threads of the block.
    Wait(bool),
    If(usize, bool, Vec<S>),
    /// So often; each time `to` gets the next of a sequence, which goes on from iteration to
    /// iteration.
    Loop(u32, usize, Vec<S>),
    /// `to = f(a, b)`, where `f` waits.
    Call(usize, usize, usize),
}

const OPS: [&str; 5] = ["add", "sub", "xor", "mul", "and"];

fn apply(op: &str, a: u64, b: u64) -> u64 {
    match op {
        "add" => a.wrapping_add(b),
        "sub" => a.wrapping_sub(b),
        "xor" => a ^ b,
        "mul" => a.wrapping_mul(b),
        _ => a & b,
    }
}

fn program(next: &mut impl FnMut() -> u64, depth: u32, left: &mut u32) -> Vec<S> {
    let mut all = Vec::new();
    let n = 3 + next() % 12;
    for _ in 0..n {
        let mut r = || next() as usize % REGISTERS;
        let (to, a, b) = (r(), r(), r());
        let kind = next() % 16;
        *left = left.saturating_sub(1);
        all.push(match kind {
            0 | 1 => S::Wait(next() & 1 == 1),
            2 if depth < 3 && *left > 0 => {
                S::If(a, next() & 1 == 1, program(next, depth + 1, left))
            }
            3 if depth < 3 && *left > 0 => {
                S::Loop(1 + next() as u32 % 4, to, program(next, depth + 1, left))
            }
            4 => S::Call(to, a, b),
            5..=7 => S::Keep(to, a, b),
            _ => {
                let guard =
                    (next() & 3 == 0).then(|| (next() as usize % REGISTERS, next() & 1 == 1));
                S::Do(OPS[next() as usize % OPS.len()], to, a, b, guard)
            }
        });
    }
    all
}

/// The text; `inside` an `if` no warp waits, since its lanes may differ.
fn text(all: &[S], inside: bool, labels: &mut u32, t: &mut String) {
    // Operands of 64 bits; 32-bit registers are extended, and results cut.
    let load = |t: &mut String, name: &str, r: usize| match r % 2 {
        0 => writeln!(t, "cvt.u64.u32 {name}, %r{r};").unwrap(),
        _ => writeln!(t, "mov.b64 {name}, %r{r};").unwrap(),
    };
    let bit = |t: &mut String, r: usize| {
        load(t, "%g", r);
        writeln!(t, "and.b64 %g, %g, 1; setp.eq.u64 %p, %g, 1;").unwrap();
    };
    for s in all {
        match s {
            S::Do(op, to, a, b, guard) => {
                load(t, "%x", *a);
                load(t, "%y", *b);
                let ty = match *op {
                    "xor" | "and" => "b64",
                    "mul" => "lo.u64",
                    _ => "u64",
                };
                writeln!(t, "{op}.{ty} %x, %x, %y;").unwrap();
                let at = guard.map_or(String::new(), |(r, set)| {
                    bit(t, r);
                    if set { "@%p " } else { "@!%p " }.to_owned()
                });
                match to % 2 {
                    0 => writeln!(t, "{at}cvt.u32.u64 %r{to}, %x;").unwrap(),
                    _ => writeln!(t, "{at}mov.b64 %r{to}, %x;").unwrap(),
                }
            }
            S::Keep(to, a, b) => {
                *labels += 1;
                let k = *labels;
                let wait = if inside {
                    ""
                } else {
                    "bar.warp.sync 0xffffffff;"
                };
                writeln!(t, ".reg .b64 %u{k}, %v{k};").unwrap();
                load(t, "%x", *a);
                load(t, "%y", *b);
                writeln!(t, "mul.lo.u64 %u{k}, %x, %y; {wait} {wait} {wait}").unwrap();
                writeln!(t, "xor.b64 %v{k}, %x, %y; {wait} {wait} {wait}").unwrap();
                writeln!(t, "add.u64 %v{k}, %u{k}, %v{k}; {wait} {wait} {wait}").unwrap();
                match to % 2 {
                    0 => writeln!(t, "cvt.u32.u64 %r{to}, %v{k};").unwrap(),
                    _ => writeln!(t, "mov.b64 %r{to}, %v{k};").unwrap(),
                }
            }
            S::Wait(_) if inside => {}
            S::Wait(false) => t.push_str("bar.warp.sync 0xffffffff;\n"),
            S::Wait(true) => t.push_str("bar.sync 0;\n"),
            S::If(r, set, body) => {
                *labels += 1;
                let l = *labels;
                bit(t, *r);
                writeln!(t, "@{}%p bra L{l};", if *set { "!" } else { "" }).unwrap();
                text(body, true, labels, t);
                writeln!(t, "L{l}:").unwrap();
            }
            S::Loop(n, to, body) => {
                *labels += 1;
                let l = *labels;
                writeln!(t, "{{ .reg .b32 %n; .reg .pred %q; mov.u32 %n, {n}; .reg .b64 %c; mov.b64 %c, {to};\nL{l}:").unwrap();
                t.push_str("mad.lo.u64 %c, %c, 31, 1;\n");
                match to % 2 {
                    0 => writeln!(t, "cvt.u32.u64 %r{to}, %c;").unwrap(),
                    _ => writeln!(t, "mov.b64 %r{to}, %c;").unwrap(),
                }
                text(body, inside, labels, t);
                writeln!(
                    t,
                    "sub.u32 %n, %n, 1; setp.ne.u32 %q, %n, 0; @%q bra L{l}; }}"
                )
                .unwrap();
            }
            S::Call(to, a, b) => {
                load(t, "%x", *a);
                load(t, "%y", *b);
                let f = if inside { "quiet" } else { "waits" };
                writeln!(
                    t,
                    "{{ .param .b64 a; .param .b64 b; .param .b64 c; st.param.b64 [a], %x; st.param.b64 [b], %y;\n\
                     call.uni (c), {f}, (a, b); ld.param.b64 %x, [c]; }}"
                )
                .unwrap();
                match to % 2 {
                    0 => writeln!(t, "cvt.u32.u64 %r{to}, %x;").unwrap(),
                    _ => writeln!(t, "mov.b64 %r{to}, %x;").unwrap(),
                }
            }
        }
    }
}

fn interpret(all: &[S], r: &mut [u64; REGISTERS]) {
    let put = |r: &mut [u64; REGISTERS], to: usize, v: u64| {
        r[to] = if to & 1 == 0 { v & 0xffff_ffff } else { v };
    };
    for s in all {
        match s {
            S::Do(op, to, a, b, guard) => {
                if guard.is_none_or(|(g, set)| (r[g] & 1 == 1) == set) {
                    put(r, *to, apply(op, r[*a], r[*b]));
                }
            }
            S::Keep(to, a, b) => put(
                r,
                *to,
                r[*a].wrapping_mul(r[*b]).wrapping_add(r[*a] ^ r[*b]),
            ),
            S::Wait(_) => {}
            S::If(g, set, body) => {
                if (r[*g] & 1 == 1) == *set {
                    interpret(body, r);
                }
            }
            S::Loop(n, to, body) => {
                let mut c = *to as u64;
                for _ in 0..*n {
                    c = c.wrapping_mul(31).wrapping_add(1);
                    put(r, *to, c);
                    interpret(body, r);
                }
            }
            S::Call(to, a, b) => put(r, *to, called(r[*a], r[*b])),
        }
    }
}

/// What the functions of the text compute.
fn called(a: u64, b: u64) -> u64 {
    (0..3).fold(a, |v, _| v.wrapping_mul(b).wrapping_add(a))
}

fn function(name: &str, wait: &str) -> String {
    format!(
        ".func (.param .b64 c) {name} (.param .b64 a, .param .b64 b) {{\n\
         .reg .b64 %a, %b, %v; .reg .b32 %n; .reg .pred %p;\n\
         ld.param.b64 %a, [a]; ld.param.b64 %b, [b]; mov.b64 %v, %a; mov.u32 %n, 0;\n\
         again: {wait} mad.lo.u64 %v, %v, %b, %a; {wait}\n\
         add.u32 %n, %n, 1; setp.lt.u32 %p, %n, 3; @%p bra again;\n\
         st.param.b64 [c], %v; ret; }}\n"
    )
}

#[test]
fn registers_keep_their_values_while_threads_wait() {
    for seed in 1..=150u64 {
        let mut next = random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let all = program(&mut next, 0, &mut 60);
        let mut body = String::new();
        text(&all, false, &mut 0, &mut body);
        let declare: String = (0..REGISTERS)
            .map(|i| format!(".reg .b{} %r{i};\n", if i % 2 == 0 { 32 } else { 64 }))
            .collect();
        // Each register starts with a mixture of the inputs, and each counts in the result.
        let fill: String = (0..REGISTERS)
            .map(|i| match i % 2 {
                0 => format!("mad.lo.u64 %x, %a, {i}, %b; cvt.u32.u64 %r{i}, %x;\n"),
                _ => format!("mad.lo.u64 %r{i}, %b, {i}, %c;\n"),
            })
            .collect();
        let sum: String = (0..REGISTERS)
            .map(|i| {
                let from = if i % 2 == 0 { "cvt.u64.u32" } else { "mov.b64" };
                format!("{from} %x, %r{i}; mad.lo.u64 %d, %d, 31, %x;\n")
            })
            .collect();
        let text = format!(
            ".version 8.0\n.target sm_90\n.address_size 64\n{}{}\
             .visible .entry k(.param .u64 p) {{\n\
             .reg .b64 %at, %k, %a, %b, %c, %d, %x, %y, %g; .reg .b32 %t; .reg .pred %p;\n{declare}\
             ld.param.u64 %at, [p]; mov.u32 %t, %tid.x; mul.wide.u32 %k, %t, 32; add.s64 %at, %at, %k;\n\
             ld.global.b64 %a, [%at]; ld.global.b64 %b, [%at+8]; ld.global.b64 %c, [%at+16]; mov.b64 %d, 0;\n\
             {fill}{body}{sum}st.global.b64 [%at+24], %d; ret; }}",
            function("waits", "bar.warp.sync 0xffffffff; bar.sync 0;"),
            function("quiet", ""),
        );
        let inputs: Vec<[u64; 3]> = (0..70).map(|_| [next(), next(), next()]).collect();
        for (input, got) in inputs.iter().zip(run(&text, &inputs)) {
            let [a, b, c] = *input;
            let mut r = [0; REGISTERS];
            for (i, v) in r.iter_mut().enumerate() {
                let k = i as u64;
                *v = match i % 2 {
                    0 => a.wrapping_mul(k).wrapping_add(b) & 0xffff_ffff,
                    _ => b.wrapping_mul(k).wrapping_add(c),
                };
            }
            interpret(&all, &mut r);
            let want = r
                .iter()
                .fold(0u64, |d, v| d.wrapping_mul(31).wrapping_add(*v));
            assert_eq!(got, want, "seed {seed}, {input:#x?}\n{text}");
        }
    }
}

/// Code in memory, by key.
#[derive(Default)]
struct Kept(Mutex<HashMap<CodeKey, Vec<u8>>>);

impl CodeStore for Kept {
    fn find(&self, key: &CodeKey) -> Option<Arc<Code>> {
        let bytes = self.0.lock().unwrap().get(key).cloned()?;
        Some(Arc::new(Code::from_bytes(&bytes).unwrap()))
    }

    fn keep(&self, key: &CodeKey, code: &Arc<Code>) {
        self.0.lock().unwrap().insert(*key, code.to_bytes());
    }
}

#[test]
fn code_that_was_kept_runs_elsewhere_and_damaged_bytes_are_refused() {
    let text = super::harness::kernel_of(
        "add.u64 %d, %a, %b; bar.sync 0; cos.approx.f32 %f, %f;",
        [64; 4],
    );
    let text = text.replace(".reg .b32 %t;", ".reg .b32 %t; .reg .f32 %f;");
    let module = || parse("kept.ptx", &text).unwrap();
    let store = Arc::new(Kept::default());
    let program = |base| Program::new(module(), vec![], base, 1 << 20).with_store(store.clone());
    let first = program(1 << 40).kernel("k").unwrap();
    assert_eq!(store.0.lock().unwrap().len(), 1);
    let again = program(1 << 41).kernel("k").unwrap();
    assert_eq!(first.to_bytes(), again.to_bytes());
    assert_eq!(store.0.lock().unwrap().len(), 1);
    // The second program's kernel is bytes of the store; it runs in memory of its own.
    let memory = vec![[0u64; 4]; 4096];
    let base = (memory.as_ptr() as u64).next_multiple_of(4096);
    let kernel = program(base).kernel("k").unwrap();
    let shape = Shape {
        grid: [1; 3],
        block: [32, 1, 1],
        dynamic_shared: 0,
    };
    let mut block = Block::new(kernel, shape, Arc::new([u128::from(base)]));
    block.begin([0; 3]);
    let stop = AtomicU32::new(0);
    let mut order = Order::new(0);
    let mut step = || block.step(&NoMemory, &NoTime, &stop, &mut order);
    assert_eq!((step(), step()), (Step::Running, Step::Done));
    // A text of one letter more is another key.
    let other = parse("kept.ptx", &format!("{text} ")).unwrap();
    Program::new(other, vec![], 0, 0)
        .with_store(store.clone())
        .kernel("k")
        .unwrap();
    assert_eq!(store.0.lock().unwrap().len(), 2);
    let bytes = first.to_bytes();
    for n in 0..bytes.len() {
        assert!(
            Code::from_bytes(&bytes[..n]).is_none(),
            "{n} bytes of {}",
            bytes.len()
        );
    }
    for at in 0..48 {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0xff;
        // A count may stay plausible by chance; reading it must not fail in another way.
        let _ = Code::from_bytes(&damaged);
    }
}
