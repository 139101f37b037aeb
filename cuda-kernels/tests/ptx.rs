//! PTX on the emulated GPU: results of plain kernels bit for bit, waits between threads and blocks,
//! faults with their place.
#![allow(unsafe_code)] // Loads kernels.

use crate::common;

use std::path::{Path, PathBuf};

use common::test_gpu::emulated_only;
use common::PATIENCE;
use ringbell_cuda_kernels::{
    Dim3, Failure, Gpu, GpuBuffer, KernelArg, LaunchError, LaunchShape, ModuleError,
};
use ringbell_nic_abi::Status;
use rustix::time::{clock_gettime, ClockId};

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/kernels")
        .join(name)
}

fn with_ptx(name: &str) -> Gpu {
    let gpu = common::gpu();
    // SAFETY: the workspace's own kernels.
    unsafe { gpu.load_module(&file(name)) }.unwrap_or_else(|e| panic!("{e}"));
    gpu
}

fn run(
    gpu: &Gpu,
    kernel: &str,
    grid: impl Into<Dim3>,
    block: impl Into<Dim3>,
    args: &[KernelArg],
) -> Result<(), LaunchError> {
    // SAFETY: the kernel's own parameters, and memory that outlives it.
    unsafe { gpu.launch(kernel, grid, block, args) }?.wait(PATIENCE)
}

fn filled(gpu: &Gpu, words: &[u32]) -> GpuBuffer {
    let b = gpu.alloc(words.len() as u64 * 4).unwrap();
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    b.write(0, &bytes).unwrap();
    b
}

fn words(b: &GpuBuffer, n: usize) -> Vec<u32> {
    let mut bytes = vec![0; n * 4];
    b.read(0, &mut bytes).unwrap();
    let each = bytes.chunks_exact(4);
    each.map(|c| u32::from_le_bytes(c.try_into().unwrap()))
        .collect()
}

/// Numbers whose sums and products round.
fn numbers(n: usize, seed: u32) -> Vec<u32> {
    let mut x = seed;
    let mut next = || {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (f32::from_bits(0x3f80_0000 | x >> 9) - 1.5).to_bits()
    };
    (0..n).map(|_| next()).collect()
}

/// One of the five kernels, its launch, and what it leaves.
struct Case {
    kernel: &'static str,
    grid: Dim3,
    block: Dim3,
    n: u32,
    results: usize,
}

/// `n` elements for all but the matrices, whose side is `side`, a multiple of 16.
fn cases(n: u32, side: u32) -> [Case; 5] {
    let blocks = Dim3::x(n.div_ceil(256));
    let case = |kernel, grid, block, n, results| Case {
        kernel,
        grid,
        block,
        n,
        results,
    };
    let tiles = Dim3 {
        x: side / 16,
        y: side / 16,
        z: 1,
    };
    let tile = Dim3 { x: 16, y: 16, z: 1 };
    [
        case("p_saxpy", blocks, Dim3::x(256), n, n as usize),
        case("p_block_reduce", Dim3::x(64), Dim3::x(256), n, 64),
        case("p_gemm", tiles, tile, side, (side * side) as usize),
        case("p_histogram", Dim3::x(64), Dim3::x(256), n, 256),
        case("p_warp_scan", blocks, Dim3::x(256), n, n as usize),
    ]
}

impl Case {
    /// Launches it on fresh results; returns those.
    fn results(&self, gpu: &Gpu, inputs: &[GpuBuffer; 2], out: &GpuBuffer) -> Vec<u32> {
        self.launch(gpu, inputs, out);
        words(out, self.results)
    }

    fn launch(&self, gpu: &Gpu, [x, y]: &[GpuBuffer; 2], out: &GpuBuffer) {
        let n = KernelArg::I32(self.n as i32);
        let args: Vec<KernelArg> = match self.kernel {
            "p_saxpy" => vec![n, KernelArg::F32(2.7), x.into(), out.into()],
            "p_gemm" => vec![n, x.into(), y.into(), out.into()],
            _ => vec![n, x.into(), out.into()],
        };
        run(gpu, self.kernel, self.grid, self.block, &args).unwrap();
    }
}

/// What a kernel leaves, by its definition, in the order of its own sums.
fn expected(case: &Case, [x, y]: &[Vec<u32>; 2], out: &[u32]) -> Vec<u32> {
    let n = case.n as usize;
    let f = |bits: u32| f32::from_bits(bits);
    match case.kernel {
        "p_saxpy" => {
            let each = x.iter().zip(out);
            each.map(|(x, y)| (2.7 * f(*x) + f(*y)).to_bits()).collect()
        }
        "p_block_reduce" => {
            let (blocks, threads) = (case.grid.x as usize, case.block.x as usize);
            // A tree over the lanes of a warp, as `__shfl_down_sync` makes it.
            let tree = |mut lanes: Vec<f32>| {
                for d in [16, 8, 4, 2, 1] {
                    for i in 0..32 {
                        // A lane beyond the warp's end gives the own value.
                        let other = lanes[if i + d < 32 { i + d } else { i }];
                        lanes[i] += other;
                    }
                }
                lanes[0]
            };
            let sum = |first: usize| {
                let all = (first..n).step_by(blocks * threads);
                all.fold(0.0, |s, i| s + f(x[i]))
            };
            let of_block = |b: usize| {
                let warp =
                    |w: usize| tree((0..32).map(|l| sum(b * threads + w * 32 + l)).collect());
                let mut parts: Vec<f32> = (0..threads / 32).map(warp).collect();
                parts.resize(32, 0.0);
                tree(parts).to_bits()
            };
            (0..blocks).map(of_block).collect()
        }
        "p_gemm" => {
            let product = |i: usize| {
                let (row, column) = (i / n, i % n);
                let terms = (0..n).map(|k| f(x[row * n + k]) * f(y[k * n + column]));
                terms.fold(0.0, |s, t| s + t).to_bits()
            };
            (0..n * n).map(product).collect()
        }
        "p_histogram" => {
            let mut bins = out[..256].to_vec();
            for v in &x[..n] {
                let bin = &mut bins[(v & 255) as usize];
                *bin = bin.wrapping_add(1);
            }
            bins
        }
        "p_warp_scan" => {
            let mut sum = 0u32;
            let each = x.iter().enumerate().map(|(i, v)| {
                sum = if i % 32 == 0 {
                    *v
                } else {
                    sum.wrapping_add(*v)
                };
                sum
            });
            each.collect()
        }
        other => panic!("no definition of {other}"),
    }
}

#[test]
fn five_kernels_give_what_their_definitions_give_bit_for_bit() {
    if emulated_only("its PTX is compiled without fused multiply-add") {
        return;
    }
    let n = 10_007;
    let gpu = with_ptx("ptx_simple.ptx");
    for case in cases(n, 48) {
        let inputs = [1, 2].map(|seed| numbers(n as usize, seed));
        let before = numbers(n as usize, 3);
        let buffers = inputs.each_ref().map(|i| filled(&gpu, i));
        let out = filled(&gpu, &before);
        let got = case.results(&gpu, &buffers, &out);
        assert_eq!(got, expected(&case, &inputs, &before), "{}", case.kernel);
        assert!(got.iter().any(|w| *w != 0));
    }
}

/// `cargo test -p ringbell-cuda-kernels --test kernels measure_the_five -- --ignored --nocapture`
#[test]
#[ignore = "it measures"]
fn measure_the_five_kernels() {
    let n = 1 << 20;
    let gpu = with_ptx("ptx_simple.ptx");
    for case in cases(n, 256) {
        let inputs = [1, 2].map(|seed| filled(&gpu, &numbers(n as usize, seed)));
        let out = filled(&gpu, &numbers(n as usize, 3));
        // Processor time of all threads: beside other work, more threads get more of the machine.
        let now = || {
            let t = clock_gettime(ClockId::ProcessCPUTime);
            t.tv_sec as f64 * 1e3 + t.tv_nsec as f64 / 1e6
        };
        let timed = || {
            let start = now();
            case.launch(&gpu, &inputs, &out);
            now() - start
        };
        let first = timed();
        let mut times: Vec<f64> = (0..11).map(|_| timed()).collect();
        times.sort_by(f64::total_cmp);
        println!(
            "{}: processor time {:.2} ms; with compilation {first:.2} ms",
            case.kernel,
            times[times.len() / 2]
        );
    }
}

#[test]
fn calls_variables_and_shared_memory_of_a_launch_work() {
    if emulated_only("its PTX is for the emulated GPU") {
        return;
    }
    let gpu = with_ptx("ptx_faults.ptx");
    for (n, round) in [(5u32, 0), (20, 1)] {
        let mut memory = vec![0; 1024];
        (memory[1022], memory[1023]) = (100, 1000);
        let out = filled(&gpu, &memory);
        run(&gpu, "p_features", 1, 64, &[(&out).into(), n.into()]).unwrap();
        let got = words(&out, 1024);
        let table = [3, 1, 4, 1];
        // The last value that was written to the element.
        let own = |at: u32| (0..n).filter(|i| i & 7 == at).map(|i| i * n).next_back();
        for (i, got) in got.iter().enumerate().take(64) {
            let j = 63 - i;
            let shared = (j as u32 * 2 + 1000) + (table[j & 3] * 2 + 100);
            if let Some(own) = own(n & 7) {
                assert_eq!(*got, shared + own, "thread {i}");
            }
        }
        assert_eq!(got[1021], 5 + round);
    }
}

#[test]
fn threads_and_blocks_that_spin_let_others_run() {
    if emulated_only("a GPU has no budget") {
        return;
    }
    let gpu = with_ptx("ptx_faults.ptx");
    let b = filled(&gpu, &[0; 32]);
    let lock = KernelArg::U64(b.va().0 + 64);
    run(&gpu, "p_lock", 3, 128, &[(&b).into(), lock]).unwrap();
    assert_eq!(words(&b, 1), [384]);
    let flags = filled(&gpu, &[0; 300]);
    run(&gpu, "p_chain", 300, 32, &[(&flags).into()]).unwrap();
    assert_eq!(words(&flags, 300), [1; 300]);
    let slept = filled(&gpu, &[0; 64]);
    run(&gpu, "p_sleep", 1, 4, &[(&slept).into()]).unwrap();
    assert!(slept.load_u64(0).unwrap() >= 200_000);
}

/// Doorbells, system-scope fences, 128-bit acquire loads, sleeps and the clock of the device
/// header, against a NIC of the tests.
#[test]
fn a_block_of_ptx_sends_and_receives_by_the_device_header() {
    if emulated_only("`device_api` runs the header on every GPU") {
        return;
    }
    let gpu = with_ptx("ptx_queue.ptx");
    // Its first ticket is near the wrap past 2^32.
    let queue = common::Queue::new(&gpu, 3, u32::MAX - 2, 60_000_000, 1_000_000);
    let nic = common::MockNic::start(&gpu, queue);
    for threads in [1u32, 40, 256] {
        let data = gpu.alloc(2 << 16).unwrap();
        let out = gpu.alloc(u64::from(threads) * 64).unwrap();
        for bytes in [8u64, 1000, 1 << 16] {
            let sent = common::pattern(bytes as usize, threads as u8);
            data.write(0, &sent).unwrap();
            let args = [
                nic.handle(),
                (&data).into(),
                KernelArg::U64(bytes),
                (&out).into(),
            ];
            run(&gpu, "p_loop_back", 1, threads, &args).unwrap();
            for i in 0..2 * u64::from(threads) {
                let r = common::result(&out, i);
                assert_eq!((r.status, r.bytes), (Status::Ok, bytes), "{i}: {r:?}");
            }
            let mut got = vec![0; bytes as usize];
            data.read(bytes, &mut got).unwrap();
            assert!(got == sent, "{bytes} bytes, {threads} threads");
        }
    }
}

#[track_caller]
fn fails(gpu: &Gpu, kernel: &str, threads: u32, args: &[KernelArg], want: &[&str]) {
    match run(gpu, kernel, 2, threads, args) {
        Err(LaunchError::Failed {
            kernel: k, reason, ..
        }) => {
            assert_eq!(k, kernel);
            for w in want {
                assert!(reason.contains(w), "`{reason}` lacks `{w}`");
            }
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_fault_ends_the_launch_with_its_place_and_not_the_process() {
    if emulated_only("a fault costs a GPU's context") {
        return;
    }
    let gpu = with_ptx("ptx_faults.ptx");
    let b = filled(&gpu, &[0; 1024]);
    let p = KernelArg::from(&b);
    let index = |n: u64| KernelArg::U64(n);
    // 400 MB beyond, a null pointer, one word below the memory, and not aligned.
    let beyond = [p.clone(), index(100_000_000)];
    let place = [
        "thread (3,0,0)",
        "ptx_faults.cu:5",
        "store of 4 bytes",
        "outside of GPU memory",
    ];
    fails(&gpu, "p_store_at", 32, &beyond, &place);
    let address = format!("{:#x}", b.va().0 + 400_000_000);
    let near = format!(
        "399,995,904 bytes behind the 4,096 bytes allocated at {:#x}",
        b.va().0
    );
    fails(&gpu, "p_store_at", 32, &beyond, &[&address, &near]);
    fails(&gpu, "p_store_at", 32, &[index(0), index(0)], &["at 0x0,"]);
    fails(
        &gpu,
        "p_store_at",
        32,
        &[index(b.va().0 + 1), index(0)],
        &["not aligned in GPU memory"],
    );
    let shared = |n: u32| [p.clone(), KernelArg::U32(n)];
    fails(
        &gpu,
        "p_shared_beyond",
        32,
        &shared(16),
        &[
            "load of 4 bytes at 0x40, outside of shared memory",
            "ptx_faults.cu:12",
        ],
    );
    run(&gpu, "p_shared_beyond", 1, 32, &shared(15)).unwrap();
    let seven = filled(&gpu, &[7]);
    fails(
        &gpu,
        "p_trap",
        32,
        &[(&seven).into()],
        &["thread (7,0,0)", "__trap"],
    );
    fails(
        &gpu,
        "p_divergent",
        64,
        std::slice::from_ref(&p),
        &["2 wait at a barrier, 30 at a warp operation"],
    );
    // The GPU is fit for the next.
    run(&gpu, "p_store_at", 1, 32, &[p, index(1023)]).unwrap();
    assert_eq!(words(&b, 1024)[1023], 7);
}

#[test]
fn wrong_launches_and_modules_are_refused_with_their_place() {
    if emulated_only("its PTX is for the emulated GPU") {
        return;
    }
    let gpu = with_ptx("ptx_faults.ptx");
    let b = filled(&gpu, &[0; 8]);
    let one = [KernelArg::from(&b)];
    let refused = run(&gpu, "p_store_at", 1, 32, &one);
    assert!(matches!(
        refused,
        Err(LaunchError::ArgumentCount { expected: 2, .. })
    ));
    let refused = run(&gpu, "p_trap", 1, 32, &[KernelArg::U32(0)]);
    assert!(matches!(
        refused,
        Err(LaunchError::ArgumentSize { expected: 8, .. })
    ));
    let refused = run(&gpu, "p_trap", 1, 2000, &one);
    assert!(matches!(refused, Err(LaunchError::Shape { .. })));

    let head = ".version 8.0\n.target sm_90\n.address_size 64\n";
    let path = common::test_gpu::files().join(format!("refused-{}.ptx", std::process::id()));
    for (text, line, words) in [
        (
            ".visible .entry k() {\n wgmma.fence.sync.aligned;\n ret; }",
            5,
            "`wgmma.fence.sync.aligned`",
        ),
        (
            ".visible .entry k() {\n .reg .f16 %h<3>;\n add.rz.f16 %h0, %h1, %h2;\n}",
            6,
            "`add.rz.f16`",
        ),
        (
            ".visible .entry k() {\n bra nowhere;\n}",
            5,
            "no such label",
        ),
        (".visible .entry k() {\n", 4, "the text ends"),
        (".global .texref t;", 4, "`.texref`"),
    ] {
        std::fs::write(&path, format!("{head}{text}")).unwrap();
        // SAFETY: nothing is run.
        match unsafe { gpu.load_module(&path) } {
            Err(ModuleError::Ptx(e)) => {
                assert_eq!(e.line, line, "{e}");
                assert!(e.what.contains(words), "{e}");
            }
            other => panic!("{text}: {other:?}"),
        }
    }
    let _ = std::fs::remove_file(&path);
}

/// Two modules of one text: a kernel that adds what dynamic shared memory was given to a variable
/// of its module.
const COUNTER: &str = "
.version 7.0
.target sm_80
.address_size 64
.visible .global .align 4 .u32 total = 5;
.extern .shared .align 4 .b32 words[];
.visible .entry count(.param .u32 count_0)
{
  .reg .b32 %r<6>;
  .reg .b64 %rd<3>;
  ld.param.u32 %r1, [count_0];
  mov.u32 %r2, %tid.x;
  shl.b32 %r3, %r2, 2;
  mov.u32 %r4, words;
  add.s32 %r3, %r3, %r4;
  st.shared.u32 [%r3], %r1;
  ld.shared.u32 %r5, [%r3];
  mov.u64 %rd1, total;
  red.global.add.u32 [%rd1], %r5;
  ret;
}
";

#[test]
fn a_loaded_module_is_a_value_with_variables_of_its_own() {
    if emulated_only("it loads PTX as values of the emulated GPU") {
        return;
    }
    let gpu = ringbell_cuda_kernels::EmulatedGpu::new(Default::default()).unwrap();
    let modules = ["one.ptx", "two.ptx"].map(|name| gpu.load_ptx(name, COUNTER).unwrap());
    let stream = gpu.stream();
    let run = |i: usize, threads: u32, dynamic_shared| {
        let kernel = modules[i].kernel("count").unwrap();
        assert_eq!(kernel.needs().unwrap().shared_bytes, 0);
        let shape = LaunchShape {
            grid: Dim3::ONE,
            block: Dim3::x(threads),
            dynamic_shared: Some(dynamic_shared),
        };
        // SAFETY: the kernel's own parameter.
        let launch = unsafe { kernel.launch(&stream, shape, &[3u32.into()]) };
        launch.unwrap().wait(PATIENCE)
    };
    run(0, 32, 128).unwrap();
    run(1, 100, 400).unwrap();
    let total = |i: usize| {
        let (va, bytes) = modules[i].variable("total").unwrap();
        let mut word = [0; 4];
        assert_eq!(bytes, 4);
        gpu.read(va, &mut word).unwrap();
        u32::from_le_bytes(word)
    };
    assert_eq!([total(0), total(1)], [5 + 32 * 3, 5 + 100 * 3]);
    assert!(gpu.find_kernel("count").is_err() && modules[0].variable("words").is_none());
    // A thread more than there is dynamic shared memory for.
    match run(0, 33, 128) {
        Err(LaunchError::Failed {
            failure: Failure::Access,
            reason,
            ..
        }) => assert!(reason.contains("thread (32,0,0)"), "{reason}"),
        other => panic!("{other:?}"),
    }
}
