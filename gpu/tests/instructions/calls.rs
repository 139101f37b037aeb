//! Recursion, calls by address, structures as parameters, memory of the stack (§9.7.12.5, §9.7.17,
//! §7).

use ringbell_gpu::{parse, FaultKind, Program};

use super::launch::{launch, module, try_launch};

/// As clang writes `f(n) = n < 2 ? n : f(n - 1) + f(n - 2)`.
const FIBONACCI: &str = ".func (.param .b32 r) fib(.param .b32 n) { .reg .b32 %r<9>; .reg .pred %p;\n\
     ld.param.u32 %r1, [n]; setp.lt.u32 %p, %r1, 2; @%p bra small; mov.u32 %r6, %r1; add.u32 %r2, %r1, -1;\n\
     { .param .b32 a; st.param.b32 [a], %r2; .param .b32 v; call.uni (v), fib, (a); ld.param.b32 %r3, [v]; }\n\
     add.u32 %r4, %r6, -2; WAIT\n\
     { .param .b32 a; st.param.b32 [a], %r4; .param .b32 v; call.uni (v), fib, (a); ld.param.b32 %r5, [v]; }\n\
     add.u32 %r3, %r3, %r5; st.param.b32 [r], %r3; ret; small: st.param.b32 [r], %r1; ret; }";

const CALL: &str = "{ .param .b32 a; st.param.b32 [a], %r1; .param .b32 v; call.uni (v), fib, (a); ld.param.b32 %r2, [v]; }\n\
     st.global.u32 [%x1], %r2;";

#[test]
fn a_function_calls_itself_in_each_thread() {
    let fib = |n: u32| (0..n).fold((0u32, 1u32), |(a, b), _| (b, a + b)).0;
    let want: Vec<u32> = (0..64).map(|i| fib(i % 16)).collect();
    // Without waits, and with threads that let others run at any depth.
    for wait in ["", "nanosleep.u32 0;"] {
        let text = module(
            &FIBONACCI.replace("WAIT", wait),
            &format!("and.b32 %r1, %r0, 15; {CALL}"),
        );
        let mut words = vec![0; 64];
        launch(&text, 64, &mut words);
        assert_eq!(words, want, "{wait}");
    }
}

#[test]
fn functions_call_each_other_and_kernels_call_twice() {
    let declared = ".func (.param .b32 r) odd(.param .b32 n);\n\
         .func (.param .b32 r) even(.param .b32 n) { .reg .b32 %r<4>; .reg .pred %p; ld.param.u32 %r1, [n]; mov.u32 %r3, 1;\n\
         setp.eq.u32 %p, %r1, 0; @%p bra end; add.u32 %r1, %r1, -1;\n\
         { .param .b32 a; st.param.b32 [a], %r1; .param .b32 v; call.uni (v), odd, (a); ld.param.b32 %r3, [v]; }\n\
         end: st.param.b32 [r], %r3; ret; }\n\
         .func (.param .b32 r) odd(.param .b32 n) { .reg .b32 %r<4>; .reg .pred %p; ld.param.u32 %r1, [n]; mov.u32 %r3, 0;\n\
         setp.eq.u32 %p, %r1, 0; @%p bra end; add.u32 %r1, %r1, -1;\n\
         { .param .b32 a; st.param.b32 [a], %r1; .param .b32 v; call.uni (v), even, (a); ld.param.b32 %r3, [v]; }\n\
         end: st.param.b32 [r], %r3; ret; }";
    let call = |f: &str, to: &str| {
        format!("{{ .param .b32 a; st.param.b32 [a], %r0; .param .b32 v; call.uni (v), {f}, (a); ld.param.b32 {to}, [v]; }}")
    };
    let text = module(
        declared,
        &format!(
            "{} bar.sync 0; {} mad.lo.u32 %r4, %r2, 10, %r3; st.global.u32 [%x1], %r4;",
            call("even", "%r2"),
            call("odd", "%r3")
        ),
    );
    let mut words = vec![9; 96];
    launch(&text, 96, &mut words);
    let want: Vec<u32> = (0..96).map(|i| if i % 2 == 0 { 10 } else { 1 }).collect();
    assert_eq!(words, want);
}

/// Each thread calls one of three functions, whose addresses it finds in a register or in a table.
#[test]
fn functions_are_called_by_address() {
    let declared = ".func (.param .b64 r) add(.param .b32 a, .param .align 8 .b8 s[24]) { .reg .b64 %x<4>; .reg .b32 %r;\n\
         ld.param.u32 %r, [a]; cvt.u64.u32 %x1, %r; ld.param.u64 %x2, [s+16]; add.u64 %x1, %x1, %x2; st.param.b64 [r], %x1; ret; }\n\
         .func (.param .b64 r) mul(.param .b32 a, .param .align 8 .b8 s[24]) { .reg .b64 %x<4>; .reg .b32 %r;\n\
         ld.param.u32 %r, [a]; cvt.u64.u32 %x1, %r; ld.param.u64 %x2, [s+8]; bar.warp.sync -1; mul.lo.u64 %x1, %x1, %x2;\n\
         st.param.b64 [r], %x1; ret; }";
    // All lanes wait in one of the functions or in the kernel.
    let text = module(
        declared,
        "mov.u64 %x5, add; mov.u64 %x6, mul; and.b32 %r1, %r0, 32; setp.ne.u32 %p1, %r1, 0; selp.b64 %x7, %x6, %x5, %p1;\n\
         add.u32 %r2, %r0, 100; mov.u64 %x8, 7; mov.u64 %x9, 1000; mov.u32 %r9, %r0; mul.wide.u32 %x10, %r0, 8; add.u64 %x10, %x10, %x0;\n\
         { .param .b32 p0; st.param.b32 [p0], %r2; .param .align 8 .b8 p1[24]; st.param.b64 [p1+8], %x8; st.param.b64 [p1+16], %x9;\n\
         .param .b64 v; proto_0 : .callprototype (.param .b64 _) _ (.param .b32 _, .param .align 8 .b8 _[24]);\n\
         call (v), %x7, (p0, p1), proto_0; ld.param.b64 %x11, [v]; }\n\
         cvt.u64.u32 %x12, %r9; mad.lo.u64 %x11, %x12, 1000000, %x11; st.global.u64 [%x10], %x11;",
    );
    let mut words = vec![0; 128];
    launch(&text, 64, &mut words);
    for i in 0..64u64 {
        let got = u64::from(words[2 * i as usize]) | u64::from(words[2 * i as usize + 1]) << 32;
        let want = if i < 32 { i + 1100 } else { (i + 100) * 7 };
        assert_eq!(got, i * 1_000_000 + want);
    }
    let table = ".func (.param .b32 r) one() { st.param.b32 [r], 1; ret; }\n\
         .func (.param .b32 r) two() { st.param.b32 [r], 2; ret; }\n\
         .global .align 8 .u64 both[2] = {one, two};";
    let statements = "mov.u64 %x4, both; and.b32 %r1, %r0, 1; mad.wide.u32 %x4, %r1, 8, %x4; ld.global.u64 %x5, [%x4];\n\
         { .param .b32 v; targets_0 : .calltargets one, two; call (v), %x5, targets_0; ld.param.b32 %r2, [v]; }\n\
         st.global.u32 [%x1], %r2;";
    let module = parse("table.ptx", &module(table, statements)).unwrap();
    let image = module.variables[0].image(&[0]);
    let addresses: Vec<u64> = image
        .chunks(8)
        .map(|b| u64::from_le_bytes(b.try_into().unwrap()))
        .collect();
    assert!(addresses[0] != addresses[1] && !addresses.contains(&0));
    let program = Program::new(module, vec![1 << 30], 1 << 30, 1 << 20);
    program.kernel("k").unwrap();
}

#[test]
fn a_call_of_no_function_ends_the_launch() {
    let text = module(
        "",
        "{ mov.u64 %x5, 4096; mov.u64 %x6, 0; add.u64 %x5, %x5, %x6; proto_0 : .callprototype ()_ ();\n\
         call %x5, proto_0; }",
    );
    let fault = try_launch(&text, 1, &mut [0; 4]).unwrap_err();
    assert!(
        matches!(fault.kind, FaultKind::Access { address: 4096, .. }),
        "{fault:?}"
    );
}

#[test]
fn calls_without_end_fill_the_stack_and_end_the_launch() {
    let endless = ".func deep(.param .b32 n) { .reg .b32 %r<3>; ld.param.u32 %r1, [n]; add.u32 %r1, %r1, 1;\n\
         { .param .b32 a; st.param.b32 [a], %r1; call.uni deep, (a); } st.param.b32 [n], %r1; ret; }";
    let text = module(
        endless,
        "{ .param .b32 a; st.param.b32 [a], %r0; call.uni deep, (a); }",
    );
    let fault = try_launch(&text, 3, &mut [0; 4]).unwrap_err();
    assert_eq!(fault.kind, FaultKind::StackOverrun);
    assert!(fault.kind.to_string().contains("stack"));
    // The next block begins with an empty stack; see `launch`, which makes one block. Here, in one
    // kernel.
    let text = module("", "mov.u64 %x5, 1048576; alloca.u64 %x6, %x5;");
    let fault = try_launch(&text, 3, &mut [0; 4]).unwrap_err();
    assert_eq!(fault.kind, FaultKind::StackOverrun);
    let text = module("", "mov.u64 %x5, -64; alloca.u64 %x6, %x5;");
    let fault = try_launch(&text, 3, &mut [0; 4]).unwrap_err();
    assert_eq!(fault.kind, FaultKind::StackOverrun);
}

/// Memory of as many bytes as a thread wants, twice, and given back between.
#[test]
fn memory_of_the_stack_lives_until_it_is_given_back() {
    let sum = ".func (.param .b32 r) sum(.param .b32 n) { .reg .b32 %r<9>; .reg .b64 %x<9>; .reg .pred %p;\n\
         ld.param.u32 %r1, [n]; mul.wide.u32 %x1, %r1, 4; alloca.u64 %x2, %x1, 16; mov.u32 %r2, 0; mov.u64 %x3, %x2;\n\
         fill: st.local.u32 [%x3], %r2; add.u64 %x3, %x3, 4; add.u32 %r2, %r2, 1; setp.lt.u32 %p, %r2, %r1; @%p bra fill;\n\
         bar.warp.sync -1; mov.u32 %r3, 0;\n\
         add: add.u64 %x3, %x3, -4; ld.local.u32 %r4, [%x3]; add.u32 %r3, %r3, %r4; setp.gt.u64 %p, %x3, %x2; @%p bra add;\n\
         st.param.b32 [r], %r3; ret; }";
    // 200 calls of up to 132 bytes: more than the stack has if they were not given back.
    let text = module(
        sum,
        "mov.u32 %r5, 0; mov.u32 %r6, 0; stacksave.u64 %x8; add.u32 %r1, %r0, 2;\n\
         again: mov.u64 %x7, 256; alloca.u64 %x9, %x7; st.local.u32 [%x9+252], %r5;\n\
         { .param .b32 a; st.param.b32 [a], %r1; .param .b32 v; call.uni (v), sum, (a); ld.param.b32 %r2, [v]; }\n\
         ld.local.u32 %r7, [%x9+252]; setp.ne.u32 %p2, %r7, %r5; @%p2 trap; add.u32 %r6, %r6, %r2; stackrestore.u64 %x8;\n\
         add.u32 %r5, %r5, 1; setp.lt.u32 %p1, %r5, 200; @%p1 bra again; st.global.u32 [%x1], %r6;",
    );
    let mut words = vec![0; 32];
    launch(&text, 32, &mut words);
    let want: Vec<u32> = (0..32).map(|i| 200 * (i + 2) * (i + 1) / 2).collect();
    assert_eq!(words, want);
}

#[test]
fn wrong_calls_are_refused() {
    let refuse = |declared: &str, statements: &str, words: &str| {
        let text = module(declared, statements);
        match parse("call.ptx", &text) {
            Err(e) => assert!(e.what.contains(words) && e.line > 3, "{e}"),
            Ok(_) => panic!("`{words}` is not said"),
        }
    };
    refuse("", "call %x0, nothing;", "no prototype `nothing`");
    refuse("", "call %x0;", "a register and a prototype");
    refuse(
        "",
        "proto : .callprototype ()_ (.param .b32 _); call %x0, proto;",
        "number of parameters",
    );
    refuse(".extern .func f();", "mov.u64 %x1, f;", "no body");
    refuse("", "proto : .calltargets f;", "no function");
    refuse("", "alloca.u64 %x1, %x0, 24;", "power of two");
    refuse("", "alloca.u32 %r1, %r0;", "alloca.u32");
}

/// Functions by address, virtual ones and structures by value, compiled by clang of `calls.cu`.
#[test]
fn code_of_a_compiler_calls_functions() {
    fn tree(n: u32, leaf: fn(u32) -> u32) -> u32 {
        match n {
            0 | 1 => leaf(n),
            n => tree(n - 1, leaf)
                .wrapping_mul(3)
                .wrapping_add(tree(n - 2, leaf)),
        }
    }
    let expected = |n: u32| {
        let mut six = [0, 1, 2, 3, 4, 5].map(|j| n + j);
        six[n as usize % 6] += n;
        let leaf: fn(u32) -> u32 = if n % 2 == 1 { |a| a * 7 } else { |a| a ^ 5 };
        let area = if n.is_multiple_of(3) { n } else { n * n + n };
        tree(n % 7, leaf) + six[n as usize % 5] * 1000 + area * 100_000
    };
    let mut words: Vec<u32> = (0..32).collect();
    launch(include_str!("calls.ptx"), 32, &mut words);
    let want: Vec<u32> = (0..32).map(expected).collect();
    assert_eq!(words, want);
}

#[test]
fn branches_go_by_a_number() {
    // Each thread takes 5 steps of a small machine, of which two go back; some of them wait.
    let text = module(
        "",
        "mov.u32 %r2, 0; mov.u32 %r3, 0; mov.u32 %r1, %r0;\n\
         again: and.b32 %r4, %r1, 3; table: .branchtargets zero, one, two, again2;\n\
         brx.idx %r4, table;\n\
         zero: mad.lo.u32 %r2, %r2, 10, 1; bra next; one: mad.lo.u32 %r2, %r2, 10, 2; bra next;\n\
         two: mad.lo.u32 %r2, %r2, 10, 3; next: add.u32 %r1, %r1, 1; add.u32 %r3, %r3, 1; setp.lt.u32 %p1, %r3, 5;\n\
         @%p1 bra again; bra end; again2: nanosleep.u32 0; mad.lo.u32 %r2, %r2, 10, 4; bra next; end: st.global.u32 [%x1], %r2;",
    );
    let mut words = vec![0; 32];
    launch(&text, 32, &mut words);
    let want: Vec<u32> = (0..32)
        .map(|i| (0..5).fold(0, |v, k| v * 10 + (i + k) % 4 + 1))
        .collect();
    assert_eq!(words, want);
    // A table that only goes back, in a loop that ends by the number.
    let text = module(
        "",
        "mov.u32 %r1, 0; mov.u32 %r2, 0; setp.ne.u32 %p1, %r0, %r0; bra begin;\n\
         up: add.u32 %r1, %r1, 1; begin: add.u32 %r2, %r2, 3; setp.gt.u32 %p2, %r1, 5000; selp.u32 %r3, 1, 0, %p2;\n\
         list: .branchtargets up, done; brx.idx.uni %r3, list; done: st.global.u32 [%x1], %r2;",
    );
    launch(&text, 32, &mut words);
    assert_eq!(words, [3 * 5002; 32]);
    let text = module(
        "",
        "add.u32 %r1, %r0, 2; list: .branchtargets a, b; brx.idx %r1, list; a: b: ret;",
    );
    let fault = try_launch(&text, 1, &mut words).unwrap_err();
    assert_eq!(fault.kind, FaultKind::Trap);
    let text = module("", "brx.idx %r1, list;");
    assert!(parse("branch.ptx", &text)
        .unwrap_err()
        .what
        .contains("list of labels"));
}

#[test]
fn an_alias_is_another_name_of_a_function() {
    let functions = ".visible .func (.param .b32 r) twice(.param .b32 n) { .reg .b32 %r<3>;\n\
         ld.param.u32 %r1, [n]; shl.b32 %r1, %r1, 1; st.param.b32 [r], %r1; ret; }\n\
         .visible .func (.param .b32 r) other(.param .b32 n);\n\
         .alias other, twice;";
    let call = "{ .param .b32 a; st.param.b32 [a], %r0; .param .b32 v; call.uni (v), other, (a); ld.param.b32 %r2, [v]; }\n\
         st.global.u32 [%x1], %r2;";
    let mut words = vec![9; 32];
    launch(&module(functions, call), 32, &mut words);
    assert!(words.iter().zip(0..).all(|(w, i)| *w == 2 * i), "{words:?}");
    for (wrong, what) in [
        (".alias other, nobody;", "there is no function `nobody`"),
        (".alias twice, other;", "an alias is declared"),
    ] {
        let text = module(&functions.replace(".alias other, twice;", wrong), call);
        let e = parse("alias.ptx", &text).unwrap_err();
        assert!(e.what.contains(what), "{e}");
    }
}

#[test]
fn names_are_defined_once_and_weak_ones_where_they_come_first() {
    let define = |linkage: &str, value: u32| {
        format!(
            "{linkage} .func (.param .b32 r) value() {{ .reg .b32 %r1; mov.u32 %r1, {value}; st.param.b32 [r], %r1; ret; }}\n"
        )
    };
    let call = "{ .param .b32 v; call.uni (v), value, (); ld.param.b32 %r2, [v]; }\n\
         st.global.u32 [%x1], %r2;";
    let mut words = vec![9; 1];
    let text = module(&(define(".weak", 1) + &define(".weak", 2)), call);
    launch(&text, 1, &mut words);
    assert_eq!(words, [1]);
    let text = module(&(define(".visible", 1) + &define(".visible", 2)), call);
    let e = parse("twice.ptx", &text).unwrap_err();
    assert!(e.what.contains("function `value` is defined twice"), "{e}");
    let text = module(".extern .global .align 4 .u32 nowhere;\n", "");
    let e = parse("extern.ptx", &text).unwrap_err();
    assert!(e.what.contains("`nowhere` is `.extern`"), "{e}");
}
