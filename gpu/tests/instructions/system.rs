//! `vprintf`, `__assertfail`, `trap`, `brkpt`.

use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};

use ringbell_gpu::{parse, Block, FaultKind, Order, Output, Program, Shape, Step};

use super::harness::{NoMemory, NoTime};

#[derive(Default)]
struct Kept(Mutex<Vec<u8>>);

impl Output for Kept {
    fn print(&self, text: &[u8]) {
        self.0.lock().unwrap().extend(text);
    }
}

/// Runs statements in two threads; how the block ended, and what they printed.
fn run(statements: &str) -> (Step, String) {
    let text = format!(
        ".version 8.0\n.target sm_90\n.address_size 64\n\
         .extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);\n\
         .extern .func __assertfail (.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);\n\
         .visible .entry k() {{\n\
         .reg .b64 %x, %y; .reg .b32 %r, %t; .reg .pred %p; .local .align 8 .b8 s[32];\n\
         mov.u64 %x, s; cvta.local.u64 %x, %x; mov.u32 %t, %tid.x;\n\
         {statements}\nret; }}"
    );
    let module = parse("system.ptx", &text).unwrap();
    let program = Program::new(module, vec![], 1 << 40, 1 << 20);
    let kernel = program.kernel("k").unwrap();
    let shape = Shape {
        grid: [1; 3],
        block: [2, 1, 1],
        dynamic_shared: 0,
    };
    let output = Arc::new(Kept::default());
    let mut block = Block::new(kernel, shape, Arc::new([0]));
    block.print_to(output.clone());
    block.begin([3, 0, 0]);
    let stop = AtomicU32::new(0);
    let step = block.step(&NoMemory, &NoTime, &stop, &mut Order::new(0));
    let text = String::from_utf8(output.0.lock().unwrap().clone()).unwrap();
    (step, text)
}

/// `%d %ld` and a line's end at `s`, arguments at `s+16`.
const FORMAT: &str = "st.local.b64 [s], 0x000a646c25206425; st.local.b32 [s+16], %t; \
     st.local.b64 [s+24], -5; add.s64 %y, %x, 16;";

fn call(format: &str, list: &str) -> String {
    format!(
        "{{ .param .b64 p0; .param .b64 p1; .param .b32 q; st.param.b64 [p0], {format}; st.param.b64 [p1], {list}; \
         call.uni (q), vprintf, (p0, p1); ld.param.b32 %r, [q]; }}"
    )
}

#[test]
fn kernels_print() {
    let (step, text) = run(&format!("{FORMAT} {}", call("%x", "%y")));
    assert_eq!((step, text.as_str()), (Step::Done, "0 -5\n1 -5\n"));
    // The result is the number of arguments: 2, and -1 without a format.
    let check = "setp.eq.s32 %p, %r, 2; @%p bra good; trap; good: mov.u64 %x, 0;";
    let again = "setp.eq.s32 %p, %r, -1; @%p bra fine; trap; fine: mov.u64 %x, 0;";
    let (first, second) = (call("%x", "%y"), call("%x", "%y"));
    let (step, _) = run(&format!("{FORMAT} {first} {check} {second} {again}"));
    assert_eq!(step, Step::Done);
}

#[test]
fn a_text_that_cannot_be_read_ends_the_launch() {
    let (step, text) = run(&format!("mov.u64 %x, 64; {}", call("%x", "%x")));
    let Step::Failed(fault) = step else {
        panic!("{step:?}");
    };
    let address = matches!(
        fault.kind,
        FaultKind::Access {
            address: 64,
            bytes: 1,
            store: false,
            ..
        }
    );
    assert!(address, "{fault:?}");
    assert_eq!((fault.site.line, text.as_str()), (9, ""));
}

#[test]
fn an_assertion_says_what_does_not_hold_and_ends_the_launch() {
    let statements = "st.local.b32 [s], 0x00303e78; setp.eq.u32 %p, %t, 0; @%p bra good;\n\
         { .param .b64 p0; .param .b64 p1; .param .b32 p2; .param .b64 p3; .param .b64 p4;\n\
         st.param.b64 [p0], %x; st.param.b64 [p1], %x; st.param.b32 [p2], 12; st.param.b64 [p3], 0; st.param.b64 [p4], 1;\n\
         call.uni __assertfail, (p0, p1, p2, p3, p4); }\ngood:";
    let (step, text) = run(statements);
    let Step::Failed(fault) = step else {
        panic!("{step:?}");
    };
    assert_eq!(fault.kind, FaultKind::Assertion);
    assert_eq!(
        (fault.block, fault.thread, fault.site.line),
        ([3, 0, 0], [1, 0, 0], 12)
    );
    let want = "x>0:12: ?: block: [3, 0, 0], thread: [1, 0, 0] Assertion `x>0` failed.\n";
    assert_eq!(text, want);
    assert_eq!(fault.kind.to_string(), "an assertion does not hold");
}

#[test]
fn traps_and_breakpoints_end_the_launch() {
    for statement in ["trap;", "brkpt;"] {
        let (step, _) = run(statement);
        assert!(matches!(step, Step::Failed(f) if f.kind == FaultKind::Trap && f.site.line == 9));
    }
}
