//! A kernel of one thread for each triple of inputs: three operands in, one result out.

use std::sync::atomic::AtomicU32;
use std::sync::Arc;

use ringbell_gpu::{parse, Block, Clock, Memory, Order, Program, Shape, Step};

use super::exact::Format;

pub(crate) struct NoTime;

impl Clock for NoTime {
    fn now_ns(&self) -> u64 {
        0
    }
}

pub(crate) struct NoMemory;

impl Memory for NoMemory {
    fn allows(&self, _: u64, _: u32) -> bool {
        false
    }
}

/// An opcode with its operands; `widths` has the bits of registers, 16 to 64, for each operand and
/// the result.
pub(crate) fn kernel(opcode: &str, widths: [u32; 4]) -> String {
    let d = widths[3];
    let setp = opcode.starts_with("setp");
    let op = if setp {
        format!("{opcode} %p0, %a, %b; selp.b{d} %d, 1, 0, %p0;")
    } else {
        let inputs = ["%a", "%b", "%c"];
        let n = widths[..3].iter().filter(|w| **w > 0).count();
        format!("{opcode} %d, {};", inputs[..n].join(", "))
    };
    kernel_of(&op, widths)
}

/// Statements that make `%d` of `%a`, `%b` and `%c`.
pub(crate) fn kernel_of(statements: &str, [a, b, c, d]: [u32; 4]) -> String {
    let reg = |name: &str, w: u32| format!(".reg .b{} %{name};", w.max(16));
    let load = |name: &str, w: u32, at: u32| match w {
        0 => String::new(),
        w => format!("ld.global.b{w} %{name}, [%at+{at}];"),
    };
    format!(
        ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 p) {{\n\
         .reg .b64 %at, %n; .reg .b32 %t; .reg .pred %p0, %p1, %p2; {} {} {} {}\n\
         ld.param.u64 %at, [p]; mov.u32 %t, %tid.x; mul.wide.u32 %n, %t, 32; add.s64 %at, %at, %n;\n\
         {} {} {}\n {statements}\n st.global.b{d} [%at+24], %d; ret; }}",
        reg("a", a),
        reg("b", b),
        reg("c", c),
        reg("d", d),
        load("a", a, 0),
        load("b", b, 8),
        load("c", c, 16),
    )
}

/// Runs the kernel on all inputs, 1,024 a block.
pub(crate) fn run(text: &str, inputs: &[[u64; 3]]) -> Vec<u64> {
    let module = parse("form.ptx", text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    also_for_aarch64(text);
    let memory = vec![[0u64; 4]; 64 * 1024];
    let base = (memory.as_ptr() as u64).next_multiple_of(4096);
    let program = Program::new(module, vec![], base, 32 << 15);
    let kernel = program.kernel("k").unwrap();
    let mut results = Vec::new();
    for chunk in inputs.chunks(1024) {
        for (i, [a, b, c]) in chunk.iter().enumerate() {
            let at = (base as usize + i * 32) as *mut [u64; 4];
            // SAFETY: inside `memory`, which is larger than 1,024 times 32 bytes by far.
            #[allow(unsafe_code)]
            unsafe {
                at.write_volatile([*a, *b, *c, 0]);
            }
        }
        let shape = Shape {
            grid: [1; 3],
            block: [chunk.len() as u32, 1, 1],
            dynamic_shared: 0,
        };
        let parameters: Arc<[u128]> = Arc::new([u128::from(base)]);
        let mut block = Block::new(kernel.clone(), shape, parameters);
        block.begin([0; 3]);
        let stop = AtomicU32::new(0);
        let mut order = Order::new(7);
        let mut step = Step::Running;
        // Each barrier that opens ends a step.
        for _ in 0..10_000 {
            step = block.step(&NoMemory, &NoTime, &stop, &mut order);
            if step != Step::Running {
                break;
            }
        }
        assert_eq!(step, Step::Done);
        for i in 0..chunk.len() {
            let at = (base as usize + i * 32 + 24) as *const u64;
            // SAFETY: as above.
            #[allow(unsafe_code)]
            results.push(unsafe { at.read_volatile() });
        }
    }
    drop(memory);
    results
}

/// Each text that a test runs is compiled for the other kind of host, if the back end is there.
pub(crate) fn also_for_aarch64(text: &str) {
    #[cfg(feature = "arm64")]
    match ringbell_gpu::assemble_for_aarch64(text) {
        Ok(bytes) => assert!(bytes > 0),
        // The one thing that is known to be missing.
        Err(e) if e.contains("128-bit") => {}
        Err(e) => panic!("for aarch64: {e}\n{text}"),
    }
    #[cfg(not(feature = "arm64"))]
    let _ = text;
}

/// xorshift64 (Marsaglia 2003).
pub(crate) fn random(seed: u64) -> impl FnMut() -> u64 {
    let mut x = seed | 0x2545_f491_0000_0000;
    move || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x
    }
}

/// Three numbers: of any exponent, of near ones, of few bits (which meet ties), next to each other,
/// or small.
pub(crate) fn floats(f: Format, next: &mut impl FnMut() -> u64) -> [u64; 3] {
    let mask = f.sign() | (f.sign() - 1);
    let kind = next() % 5;
    let mut one = || {
        let v = next();
        let near = f.one() ^ (v >> 3 & (f.nan() ^ f.infinity()));
        // At most 16 steps of the exponent away from 1.
        let step = f.nan() - f.infinity() + 1;
        let near = (near + step * (v % 16)).wrapping_sub(step * (v >> 58) % (step * 14));
        let sign = if v >> 57 & 1 == 1 { f.sign() } else { 0 };
        match kind {
            0 => v & mask,
            1 => sign | near,
            2 => sign | near & !(step / 16 - 1),
            3 => sign | (f.one() + v % 4),
            // Subnormal, or a factor that makes a subnormal of a small number.
            _ if v & 64 == 0 => sign | ((v >> 8) % (step * 3)),
            _ => sign | near,
        }
    };
    [one(), one(), one()]
}

/// The ends of a format's ranges, with both signs.
pub(crate) fn edges(f: Format) -> Vec<u64> {
    let step = f.nan() - f.infinity() + 1;
    let magnitudes = [
        0,
        1,
        2,
        step / 2,
        step - 1,
        step,
        step + 1,
        f.one() - 1,
        f.one(),
        f.one() + 1,
        f.one() + step / 2,
        f.infinity() - 1,
        f.infinity(),
        f.infinity() + 1,
        f.nan(),
    ];
    magnitudes.iter().flat_map(|m| [*m, m | f.sign()]).collect()
}

/// All pairs of edges with a third, and then 10,000 at random.
pub(crate) fn triples(f: Format, seed: u64) -> Vec<[u64; 3]> {
    let edges = edges(f);
    let mut all = Vec::new();
    for (i, a) in edges.iter().enumerate() {
        for (j, b) in edges.iter().enumerate() {
            all.push([*a, *b, edges[(i * 7 + j * 3) % edges.len()]]);
        }
    }
    let mut next = random(seed);
    all.extend((0..10_000).map(|_| floats(f, &mut next)));
    all
}

/// Runs a kernel on all inputs and compares the results with the reference's.
pub(crate) fn compare(text: &str, inputs: &[[u64; 3]], reference: impl Fn([u64; 3]) -> u64) {
    for (input, got) in inputs.iter().zip(run(text, inputs)) {
        let want = reference(*input);
        assert_eq!(got, want, "{input:#x?}: {got:#x}, not {want:#x}\n{text}");
    }
}

/// The text is refused with these words and the line of the kernel's statements.
pub(crate) fn refused(statement: &str, words: &str) {
    let text = kernel_of(statement, [32, 32, 32, 32]);
    match parse("form.ptx", &text) {
        Ok(_) => panic!("`{statement}` is not refused"),
        Err(e) => {
            assert!(e.what.contains(words), "{statement}: {e}");
            assert_eq!(
                (e.file.as_str(), e.line),
                ("form.ptx", 8),
                "{statement}: {e}"
            );
        }
    }
}
