//! Litmus tests of the memory model (§8): blocks on threads of the host, or warps of one block, of
//! which each executes its part a million times.
//!
//! What the model forbids must not be seen. What it allows, and the host does, must be: else the
//! test would show nothing.

use std::cell::Cell;
use std::sync::atomic::AtomicU32;
use std::sync::Arc;

use ringbell_gpu::{parse, Block, Order, Program, Shape, Step};

use super::harness::{also_for_aarch64, NoMemory, NoTime};

const RUNS: usize = 1 << 20;

/// Runs between two meetings of all threads.
const CHUNK: usize = 128;

/// Bytes before `x[0]`: a counter, and lines that all threads write.
const HEAD: usize = 4096;

/// The head of a kernel, whose statements follow.
fn entry(name: &str) -> String {
    format!(
        ".visible .entry {name}(.param .u64 p) {{ .reg .b32 %r<16>; .reg .b64 %x<16>; .reg .b128 %q<4>; .reg .pred %p<4>;\n"
    )
}

/// A thread's part: `%x2` and `%x3` are `x` and `y`, which begin as 0; what is read goes to `%r1`
/// and `%r2`.
fn part(number: usize, of: usize, body: &str) -> String {
    format!(
        "ld.param.u64 %x1, [p]; add.u64 %x2, %x1, {HEAD}; add.u64 %x3, %x2, {words}; add.u64 %x4, %x3, {words};\n\
         add.u64 %x4, %x4, {result}; mov.u32 %r8, 0; mov.u32 %r9, 0;\n\
         meet{number}: add.u32 %r9, %r9, {of}; atom.add.acq_rel.gpu.u32 %r10, [%x1], 1;\n\
         look{number}: atom.or.acquire.gpu.b32 %r10, [%x1], 0; setp.lt.u32 %p1, %r10, %r9; @%p1 bra look{number};\n\
         mov.u32 %r11, {CHUNK};\n\
         next{number}: mov.u32 %r1, 0; mov.u32 %r2, 0; {body}\n\
         st.u32 [%x4], %r1; st.u32 [%x4+4], %r2; add.u64 %x2, %x2, 4; add.u64 %x3, %x3, 4; add.u64 %x4, %x4, 8;\n\
         add.u32 %r8, %r8, 1; add.u32 %r11, %r11, -1; setp.ne.u32 %p2, %r11, 0; @%p2 bra next{number};\n\
         setp.lt.u32 %p3, %r8, {RUNS}; @%p3 bra meet{number}; ret;\n",
        words = RUNS * 4,
        result = number * RUNS * 8,
    )
}

/// How often the results of all parts, two of each, are those that `wanted` looks for. Each part is
/// a block.
fn count(parts: &[&str], wanted: impl Fn(&[[u32; 2]]) -> bool) -> usize {
    let all = parts.iter().enumerate().map(|(i, body)| {
        let statements = part(i, parts.len(), body);
        format!("{}{statements} }}\n", entry(&format!("k{i}")))
    });
    run(
        &all.collect::<String>(),
        parts.len(),
        (parts.len(), 1),
        wanted,
    )
}

/// The same with a warp of one block for each part.
fn count_in_block(parts: &[&str], wanted: impl Fn(&[[u32; 2]]) -> bool) -> usize {
    let all = parts.iter().enumerate().map(|(i, body)| {
        let statements = part(i, parts.len(), body);
        let warp = i * 32;
        format!(
            "mov.u32 %r15, %tid.x; setp.ne.u32 %p0, %r15, {warp}; @%p0 bra other{i};\n{statements} other{i}:\n"
        )
    });
    let text = format!("{}{} ret; }}\n", entry("k0"), all.collect::<String>());
    run(&text, parts.len(), (1, 32 * parts.len() as u32), wanted)
}

/// Runs so many blocks of so many threads: the kernels `k0`, `k1`, ...
fn run(
    kernels: &str,
    parts: usize,
    (blocks, threads): (usize, u32),
    wanted: impl Fn(&[[u32; 2]]) -> bool,
) -> usize {
    let text = format!(".version 8.6\n.target sm_100\n.address_size 64\n{kernels}");
    also_for_aarch64(&text);
    let module = parse("litmus.ptx", &text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let bytes = HEAD + RUNS * 8 + RUNS * 8 * parts;
    let memory = vec![0u64; bytes / 8 + 8192];
    let base = (memory.as_ptr() as u64).next_multiple_of(1 << 16);
    let program = Program::new(module, vec![], base, bytes as u64);
    std::thread::scope(|scope| {
        for i in 0..blocks {
            let kernel = program.kernel(&format!("k{i}")).unwrap();
            scope.spawn(move || {
                let shape = Shape {
                    grid: [1; 3],
                    block: [threads, 1, 1],
                    dynamic_shared: 0,
                };
                let mut block = Block::new(kernel, shape, Arc::new([u128::from(base)]));
                block.begin([0; 3]);
                let (stop, mut order) = (AtomicU32::new(0), Order::new(3));
                loop {
                    match block.step(&NoMemory, &NoTime, &stop, &mut order) {
                        Step::Done => break,
                        Step::Failed(fault) => panic!("{fault:?}"),
                        _ => std::thread::yield_now(),
                    }
                }
            });
        }
    });
    let results = base as usize + HEAD + RUNS * 8;
    let one = |part: usize, run: usize| {
        let at = (results + (part * RUNS + run) * 8) as *const [u32; 2];
        // SAFETY: inside of `memory`, which no thread accesses any more.
        #[allow(unsafe_code)]
        unsafe {
            at.read()
        }
    };
    let seen = (0..RUNS).filter(|run| {
        let each: Vec<[u32; 2]> = (0..parts).map(|i| one(i, *run)).collect();
        wanted(&each)
    });
    let seen = seen.count();
    drop(memory);
    seen
}

/// A value, and then a flag: who sees the flag sees the value.
#[test]
fn messages_are_passed() {
    for (writer, reader) in [
        (
            "st.u32 [%x2], 1; st.release.gpu.u32 [%x3], 1;",
            "ld.acquire.gpu.u32 %r1, [%x3]; ld.u32 %r2, [%x2];",
        ),
        (
            "st.relaxed.sys.u32 [%x2], 1; st.release.sys.u32 [%x3], 1;",
            "ld.acquire.sys.u32 %r1, [%x3]; ld.relaxed.sys.u32 %r2, [%x2];",
        ),
        (
            "st.u32 [%x2], 1; fence.acq_rel.gpu; st.relaxed.gpu.u32 [%x3], 1;",
            "ld.relaxed.gpu.u32 %r1, [%x3]; fence.acq_rel.gpu; ld.u32 %r2, [%x2];",
        ),
        (
            "st.volatile.u32 [%x2], 1; membar.gl; st.volatile.u32 [%x3], 1;",
            "ld.volatile.u32 %r1, [%x3]; membar.gl; ld.volatile.u32 %r2, [%x2];",
        ),
        (
            "st.u32 [%x2], 1; red.release.gpu.add.u32 [%x3], 1;",
            "atom.or.acquire.gpu.b32 %r1, [%x3], 0; ld.u32 %r2, [%x2];",
        ),
        (
            "st.u32 [%x2], 1; atom.exch.release.sys.b32 %r5, [%x3], 1;",
            "ld.relaxed.sys.u32 %r1, [%x3]; fence.acquire.sys; ld.u32 %r2, [%x2];",
        ),
    ] {
        let arrived = Cell::new(0);
        let lost = count(&[writer, reader], |r| {
            arrived.set(arrived.get() + usize::from(r[1] == [1, 1]));
            r[1] == [1, 0]
        });
        assert_eq!(lost, 0, "{reader}");
        assert!(arrived.get() > 0, "{reader}");
    }
}

/// Each stores, and then reads what the other stores: without a fence both may read the old value.
#[test]
fn stores_are_buffered_unless_there_is_a_fence() {
    let part = |mine: &str, other: &str, fence: &str| {
        format!("st.relaxed.gpu.u32 [{mine}], 1; {fence} ld.relaxed.gpu.u32 %r1, [{other}];")
    };
    let old = |fence: &str| {
        let (a, b) = (part("%x2", "%x3", fence), part("%x3", "%x2", fence));
        count(&[&a, &b], |r| r[0][0] == 0 && r[1][0] == 0)
    };
    for fence in ["fence.sc.gpu;", "membar.sys;", "fence.sc.sys;"] {
        assert_eq!(old(fence), 0, "{fence}");
    }
    // Release and acquire do not order a store before a load, nor does the host. Stores to lines
    // that the other writes too keep the host's buffer full for a while. A machine with one core
    // does not show it, and one whose cores are busy only seldom.
    let fill: String = (0..12)
        .map(|i| format!("st.u32 [%x1+{}], %r8; ", 512 + i * 64))
        .collect();
    let part = |mine: &str, other: &str| {
        format!(
            "{fill} st.relaxed.gpu.u32 [{mine}], 1; fence.acq_rel.gpu; ld.relaxed.gpu.u32 %r1, [{other}];"
        )
    };
    let (a, b) = (part("%x2", "%x3"), part("%x3", "%x2"));
    let seen = (0..40).any(|_| count(&[&a, &b], |r| r[0][0] == 0 && r[1][0] == 0) > 0);
    if !seen {
        // Whether a host shows it is a matter of its cores, and of what else runs on them.
        eprintln!(
            "SKIPPED {}: no store was buffered in 40 times {RUNS} runs",
            module_path!()
        );
    }
}

/// Two readers agree on the order of two stores by different threads.
#[test]
fn readers_with_fences_agree_on_the_order_of_stores() {
    let parts = [
        "st.relaxed.gpu.u32 [%x2], 1;",
        "st.relaxed.gpu.u32 [%x3], 1;",
        "ld.relaxed.gpu.u32 %r1, [%x2]; fence.sc.gpu; ld.relaxed.gpu.u32 %r2, [%x3];",
        "ld.relaxed.gpu.u32 %r1, [%x3]; fence.sc.gpu; ld.relaxed.gpu.u32 %r2, [%x2];",
    ];
    assert_eq!(count(&parts, |r| r[2] == [1, 0] && r[3] == [1, 0]), 0);
}

/// Of one location no reader sees an older value after a newer one, and 128 bits are never torn.
#[test]
fn a_location_has_one_order_and_wide_accesses_are_whole() {
    let writer = "add.u32 %r5, %r5, 1; st.relaxed.gpu.u32 [%x1+128], %r5;";
    let reader = "ld.relaxed.gpu.u32 %r1, [%x1+128]; ld.relaxed.gpu.u32 %r2, [%x1+128];";
    let begin = |body: &str| format!("setp.eq.u32 %p0, %r8, 0; @%p0 mov.u32 %r5, 0; {body}");
    assert_eq!(count(&[&begin(writer), reader], |r| r[1][1] < r[1][0]), 0);
    if cfg!(target_arch = "x86_64") {
        let writer = "add.u32 %r5, %r5, 1; mov.b64 %x8, {%r5, %r5}; mov.b128 %q1, {%x8, %x8}; st.relaxed.sys.b128 [%x1+128], %q1;";
        let reader = "ld.acquire.sys.b128 %q1, [%x1+128]; mov.b128 {%x8, %x9}, %q1; cvt.u32.u64 %r1, %x8; shr.u64 %x9, %x9, 32;\n\
             cvt.u32.u64 %r2, %x9;";
        assert_eq!(count(&[&begin(writer), reader], |r| r[1][1] != r[1][0]), 0);
    }
}

/// The scope of a block: what holds for blocks by `.gpu` holds for its warps by `.cta`.
#[test]
fn warps_of_a_block_are_ordered_by_its_scope() {
    for (writer, reader) in [
        (
            "st.u32 [%x2], 1; st.release.cta.u32 [%x3], 1;",
            "ld.acquire.cta.u32 %r1, [%x3]; ld.u32 %r2, [%x2];",
        ),
        (
            "st.u32 [%x2], 1; fence.acq_rel.cta; st.relaxed.cta.u32 [%x3], 1;",
            "ld.relaxed.cta.u32 %r1, [%x3]; fence.acq_rel.cta; ld.u32 %r2, [%x2];",
        ),
        (
            "st.volatile.u32 [%x2], 1; membar.cta; st.volatile.u32 [%x3], 1;",
            "ld.volatile.u32 %r1, [%x3]; membar.cta; ld.volatile.u32 %r2, [%x2];",
        ),
        (
            "st.u32 [%x2], 1; red.release.cta.add.u32 [%x3], 1;",
            "atom.or.acquire.cta.b32 %r1, [%x3], 0; ld.u32 %r2, [%x2];",
        ),
    ] {
        let arrived = Cell::new(0);
        let lost = count_in_block(&[writer, reader], |r| {
            arrived.set(arrived.get() + usize::from(r[1] == [1, 1]));
            r[1] == [1, 0]
        });
        assert_eq!(lost, 0, "{reader}");
        assert!(arrived.get() > 0, "{reader}");
    }
    let part = |mine: &str, other: &str| {
        format!("st.relaxed.cta.u32 [{mine}], 1; fence.sc.cta; ld.relaxed.cta.u32 %r1, [{other}];")
    };
    let (a, b) = (part("%x2", "%x3"), part("%x3", "%x2"));
    let both_old = count_in_block(&[&a, &b], |r| r[0][0] == 0 && r[1][0] == 0);
    assert_eq!(both_old, 0);
    let readers = ["%x2", "%x3"].map(|first| {
        let second = if first == "%x2" { "%x3" } else { "%x2" };
        format!(
            "ld.relaxed.cta.u32 %r1, [{first}]; fence.sc.cta; ld.relaxed.cta.u32 %r2, [{second}];"
        )
    });
    let parts = [
        "st.relaxed.cta.u32 [%x2], 1;",
        "st.relaxed.cta.u32 [%x3], 1;",
        &readers[0],
        &readers[1],
    ];
    let disagree = |r: &[[u32; 2]]| r[2] == [1, 0] && r[3] == [1, 0];
    assert_eq!(count_in_block(&parts, disagree), 0);
}
