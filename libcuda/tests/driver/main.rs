//! The driver as programs of users find it: modules of PTX, what it refuses, and what a fault does.
#![allow(unsafe_code)] // Calls the C interface of a driver.
#![allow(clippy::disallowed_methods)] // Starts itself again, with a deadline.

mod graphs;
mod linking;
mod virtual_memory;

use std::ffi::{c_void, CStr, CString};
use std::process::Command;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use ringbell_fatbin::of_ptx;
use ringbell_libcuda::context::*;
use ringbell_libcuda::copy::*;
use ringbell_libcuda::device::*;
use ringbell_libcuda::fill::*;
use ringbell_libcuda::function::*;
use ringbell_libcuda::launch::*;
use ringbell_libcuda::library::*;
use ringbell_libcuda::memory::*;
use ringbell_libcuda::module::*;
use ringbell_libcuda::stream::*;

/// Kernels for these tests: `scale` multiplies each element of an array by a constant, `spin` waits
/// for a word, `wild` stores at an address, `shared` fills dynamic shared memory and copies it out.
const TEXT: &str = "
.version 7.0
.target sm_80
.address_size 64
.visible .const .align 4 .u32 factor = 3;
.visible .global .align 8 .u64 launches = 0;
.extern .shared .align 4 .b32 room[];
.visible .entry scale(.param .u64 p, .param .u32 n)
{
  .reg .pred %p1;
  .reg .b32 %r<8>;
  .reg .b64 %rd<6>;
  ld.param.u64 %rd1, [p];
  ld.param.u32 %r1, [n];
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, %tid.x;
  mad.lo.s32 %r5, %r2, %r3, %r4;
  setp.ge.u32 %p1, %r5, %r1;
  @%p1 bra end;
  mul.wide.u32 %rd2, %r5, 4;
  add.s64 %rd3, %rd1, %rd2;
  ld.global.u32 %r6, [%rd3];
  ld.const.u32 %r7, [factor];
  mul.lo.s32 %r6, %r6, %r7;
  st.global.u32 [%rd3], %r6;
end:
  ret;
}
.visible .entry count()
{
  .reg .b64 %rd<3>;
  mov.u64 %rd1, launches;
  mov.u64 %rd2, 1;
  red.global.add.u64 [%rd1], %rd2;
  ret;
}
.visible .entry spin(.param .u64 p)
{
  .reg .pred %p1;
  .reg .b32 %r<2>;
  .reg .b64 %rd<2>;
  ld.param.u64 %rd1, [p];
again:
  ld.acquire.sys.global.u32 %r1, [%rd1];
  setp.eq.u32 %p1, %r1, 0;
  @%p1 bra again;
  ret;
}
.visible .entry wild(.param .u64 p)
{
  .reg .b32 %r<2>;
  .reg .b64 %rd<2>;
  ld.param.u64 %rd1, [p];
  mov.u32 %r1, 7;
  st.global.u32 [%rd1], %r1;
  ret;
}
.visible .entry fault()
{
  trap;
}
.visible .entry shared(.param .u64 p)
.maxntid 256, 1, 1
{
  .reg .b32 %r<5>;
  .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [p];
  mov.u32 %r1, %tid.x;
  shl.b32 %r2, %r1, 2;
  mov.u32 %r3, room;
  add.s32 %r3, %r3, %r2;
  st.shared.u32 [%r3], %r1;
  bar.sync 0;
  ld.shared.u32 %r4, [%r3];
  mul.wide.u32 %rd2, %r1, 4;
  add.s64 %rd3, %rd1, %rd2;
  st.global.u32 [%rd3], %r4;
  ret;
}
";

/// Runs a test in a process of its own: the driver has one context in a process, and a fault takes
/// it.
fn alone(test: &str, body: impl FnOnce()) {
    const INSIDE: &str = "RINGBELL_TEST_INSIDE";
    if std::env::var_os(INSIDE).is_some() {
        return body();
    }
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(INSIDE, "1")
        .env_remove("RINGBELL_MOCK_CUDA")
        .spawn()
        .unwrap();
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success(), "{test}: {status}");
            return;
        }
        if start.elapsed() > Duration::from_secs(120) {
            let _ = child.kill();
            panic!("{test} has not ended");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[track_caller]
fn ok(code: u32) {
    assert_eq!(code, 0);
}

/// A context, and the module of the text.
fn start() -> *mut c_void {
    let (mut ctx, mut module) = (null_mut(), null_mut());
    let text = CString::new(TEXT).unwrap();
    // SAFETY: live pointers and a terminated text.
    unsafe {
        ok(cuInit(0));
        ok(cuDevicePrimaryCtxRetain(&mut ctx, 0));
        ok(cuCtxSetCurrent(ctx));
        ok(cuModuleLoadData(&mut module, text.as_ptr().cast()));
    }
    module
}

fn kernel(module: *mut c_void, name: &CStr) -> *mut c_void {
    let mut f = null_mut();
    // SAFETY: a live pointer and a terminated name.
    ok(unsafe { cuModuleGetFunction(&mut f, module, name.as_ptr()) });
    f
}

fn alloc(bytes: usize) -> u64 {
    let mut va = 0;
    // SAFETY: a live pointer.
    ok(unsafe { cuMemAlloc_v2(&mut va, bytes) });
    va
}

/// Launches with pointers to these words as parameters.
fn launch(f: *mut c_void, grid: [u32; 3], block: [u32; 3], shared: u32, words: &[u64]) -> u32 {
    let mut words = words.to_vec();
    let mut params: Vec<*mut c_void> = words
        .iter_mut()
        .map(|w| std::ptr::from_mut(w).cast())
        .collect();
    let ([gx, gy, gz], [bx, by, bz]) = (grid, block);
    let params = params.as_mut_ptr();
    // SAFETY: a pointer for each parameter of the kernel.
    unsafe {
        cuLaunchKernel(
            f,
            gx,
            gy,
            gz,
            bx,
            by,
            bz,
            shared,
            null_mut(),
            params,
            null_mut(),
        )
    }
}

#[test]
fn kernels_of_ptx_text_run_with_constants_globals_and_any_copy() {
    alone(
        "kernels_of_ptx_text_run_with_constants_globals_and_any_copy",
        || {
            let module = start();
            let n = 1000_u32;
            let mut host: Vec<u32> = (0..n).collect();
            let va = alloc(n as usize * 4);
            let at = host.as_mut_ptr() as u64;
            // SAFETY: memory of these sizes, and live pointers.
            unsafe {
                ok(cuMemcpy(va, at, n as usize * 4));
                let scale = kernel(module, c"scale");
                ok(launch(scale, [4, 1, 1], [256, 1, 1], 0, &[va, n.into()]));
                let (mut factor, mut bytes) = (0, 0);
                ok(cuModuleGetGlobal_v2(
                    &mut factor,
                    &mut bytes,
                    module,
                    c"factor".as_ptr(),
                ));
                assert_eq!(bytes, 4);
                ok(cuMemsetD32_v2(factor, 5, 1));
                ok(launch(scale, [4, 1, 1], [256, 1, 1], 0, &[va, n.into()]));
                ok(cuMemcpy(at, va, n as usize * 4));
                let mut none = 0;
                assert_eq!(
                    cuModuleGetGlobal_v2(&mut none, &mut bytes, module, c"room".as_ptr()),
                    500
                );
            }
            assert!(
                host.iter().zip(0..).all(|(v, i)| *v == i * 15),
                "{:?}",
                &host[..8]
            );
            // By a buffer with all parameters at their offsets.
            let mut buffer = [va, n.into()];
            let mut bytes = 12_usize;
            let (one, two) = (
                std::ptr::without_provenance_mut(1),
                std::ptr::without_provenance_mut(2),
            );
            let list = |bytes: &mut usize, buffer: &mut [u64; 2]| {
                [
                    one,
                    buffer.as_mut_ptr().cast(),
                    two,
                    std::ptr::from_mut(bytes).cast(),
                    null_mut(),
                ]
            };
            let scale = kernel(module, c"scale");
            // SAFETY: lists of names and values, ended by 0.
            let by = |list: &mut [*mut c_void; 5]| unsafe {
                cuLaunchKernel(
                    scale,
                    4,
                    1,
                    1,
                    256,
                    1,
                    1,
                    0,
                    null_mut(),
                    null_mut(),
                    list.as_mut_ptr(),
                )
            };
            ok(by(&mut list(&mut bytes, &mut buffer)));
            bytes = 8;
            assert_eq!(by(&mut list(&mut bytes, &mut buffer)), 1);
            // SAFETY: as above.
            ok(unsafe { cuMemcpy(at, va, n as usize * 4) });
            assert_eq!(host[7], 7 * 75);
        },
    );
}

#[test]
fn fat_binaries_and_libraries_load_and_machine_code_is_refused_by_name() {
    alone(
        "fat_binaries_and_libraries_load_and_machine_code_is_refused_by_name",
        || {
            start();
            let image = of_ptx(&[(80, TEXT), (120, "not for this one")]);
            let (mut module, mut library, mut f) = (null_mut(), null_mut(), null_mut());
            let none = null_mut;
            // SAFETY: a whole fat binary, and live pointers.
            unsafe {
                ok(cuModuleLoadData(&mut module, image.as_ptr().cast()));
                ok(cuLibraryLoadData(
                    &mut library,
                    image.as_ptr().cast(),
                    null_mut(),
                    none(),
                    0,
                    null_mut(),
                    none(),
                    0,
                ));
                ok(cuLibraryGetKernel(&mut f, library, c"count".as_ptr()));
            }
            // Each module has variables of its own.
            ok(launch(f, [3, 1, 1], [2, 1, 1], 0, &[]));
            ok(launch(
                kernel(module, c"count"),
                [1, 1, 1],
                [1, 1, 1],
                0,
                &[],
            ));
            for (m, want) in [(library, 6), (module, 1)] {
                let (mut va, mut word) = (0, 0_u64);
                // SAFETY: live pointers.
                unsafe {
                    ok(cuModuleGetGlobal_v2(
                        &mut va,
                        null_mut(),
                        m,
                        c"launches".as_ptr(),
                    ));
                    ok(cuMemcpyDtoH_v2(std::ptr::from_mut(&mut word).cast(), va, 8));
                }
                assert_eq!(word, want);
            }
            // A handle of a module that is gone.
            // SAFETY: live pointers.
            unsafe {
                ok(cuModuleUnload(module));
                assert_eq!(cuModuleUnload(module), 400);
                assert_eq!(cuModuleGetFunction(&mut f, module, c"count".as_ptr()), 400);
            }
            // Images that it cannot run, with the reason in the log.
            let cubin = |arch: u8| {
                let mut elf = [0u8; 64];
                elf[..4].copy_from_slice(b"\x7fELF");
                elf[18] = 190;
                elf[48] = arch;
                elf.to_vec()
            };
            let mut sass = of_ptx(&[(90, "")]);
            sass[16] = 2;
            let cases: [(Vec<u8>, u32, &str); 5] = [
                (cubin(90), 209, "has only SASS for sm_90: build with PTX"),
                (sass, 209, "has only SASS for sm_90: build with PTX"),
                (
                    of_ptx(&[(100, TEXT)]),
                    209,
                    "has PTX for sm_100 and newer; this GPU is sm_90",
                ),
                (
                    b"no image\0".to_vec(),
                    200,
                    "no fat binary, cubin or PTX text",
                ),
                (TEXT.replace("trap;", "frob.u32;").into_bytes(), 218, "frob"),
            ];
            for (mut image, code, words) in cases {
                image.push(0);
                let mut log = [0u8; 512];
                let mut options = [5, 6];
                let mut values = [
                    log.as_mut_ptr().cast(),
                    std::ptr::without_provenance_mut(log.len()),
                ];
                // SAFETY: a whole image, two options with a buffer of that size.
                let got = unsafe {
                    cuModuleLoadDataEx(
                        &mut module,
                        image.as_ptr().cast(),
                        2,
                        options.as_mut_ptr(),
                        values.as_mut_ptr(),
                    )
                };
                let log = CStr::from_bytes_until_nul(&log).unwrap().to_string_lossy();
                assert_eq!((got, log.contains(words)), (code, true), "{words}: {log}");
            }
        },
    );
}

#[test]
fn wrong_launches_get_the_errors_of_a_driver() {
    alone("wrong_launches_get_the_errors_of_a_driver", || {
        let module = start();
        let (count, shared) = (kernel(module, c"count"), kernel(module, c"shared"));
        let va = alloc(64 << 10);
        let one = [1, 1, 1];
        for (grid, block) in [
            ([0, 1, 1], one),
            (one, [0, 1, 1]),
            (one, [2000, 1, 1]),
            (one, [32, 33, 1]),
            (one, [1, 1, 65]),
            ([1, 65_536, 1], one),
        ] {
            assert_eq!(launch(count, grid, block, 0, &[]), 1, "{grid:?} {block:?}");
        }
        assert_eq!(
            launch(shared, one, [257, 1, 1], 2000, &[va]),
            1,
            "more than .maxntid"
        );
        assert_eq!(
            launch(shared, one, one, 49_153, &[va]),
            1,
            "more than 48 KiB"
        );
        let none = std::ptr::without_provenance_mut(0x1234);
        assert_eq!(launch(none, one, one, 0, &[]), 400);
        // SAFETY: no parameters where one is needed.
        let got = unsafe {
            cuLaunchKernel(
                shared,
                1,
                1,
                1,
                1,
                1,
                1,
                0,
                null_mut(),
                null_mut(),
                null_mut(),
            )
        };
        assert_eq!(got, 1, "no parameters");
        // SAFETY: live pointers.
        unsafe {
            assert_eq!(cuFuncSetAttribute(shared, 8, 228 << 10), 1);
            ok(cuFuncSetAttribute(shared, 8, 100 << 10));
            // The architecture of the text, and that of the GPU.
            let (mut text, mut gpu) = (0, 0);
            ok(cuFuncGetAttribute(&mut text, 5, shared));
            ok(cuFuncGetAttribute(&mut gpu, 6, shared));
            assert_eq!((text, gpu), (80, 90));
            let (mut most, mut threads, mut blocks) = (0, 0, 0);
            ok(cuFuncGetAttribute(&mut most, 8, shared));
            ok(cuFuncGetAttribute(&mut threads, 0, shared));
            assert_eq!((most, threads), (100 << 10, 256));
            ok(cuOccupancyMaxActiveBlocksPerMultiprocessor(
                &mut blocks,
                shared,
                256,
                100 << 10,
            ));
            assert_eq!(blocks, 2, "by shared memory");
            ok(cuOccupancyMaxActiveBlocksPerMultiprocessor(
                &mut blocks,
                shared,
                256,
                0,
            ));
            assert_eq!(blocks, 8, "by threads");
            let (mut grid, mut block) = (0, 0);
            ok(cuOccupancyMaxPotentialBlockSize(
                &mut grid, &mut block, shared, None, 0, 0,
            ));
            assert_eq!((grid, block), (8 * 16, 256));
            let mut params = [std::ptr::from_ref(&va).cast_mut().cast()];
            let together = |n: u32, params: &mut [*mut c_void; 1]| {
                cuLaunchCooperativeKernel(
                    shared,
                    n,
                    1,
                    1,
                    256,
                    1,
                    1,
                    1024,
                    null_mut(),
                    params.as_mut_ptr(),
                )
            };
            assert_eq!(together(8 * 16 + 1, &mut params), 720);
            ok(together(8 * 16, &mut params));
        }
        ok(launch(shared, one, [256, 1, 1], 100 << 10, &[va]));
        let mut out = vec![0u32; 256];
        // SAFETY: memory of this size.
        ok(unsafe { cuMemcpyDtoH_v2(out.as_mut_ptr().cast(), va, 1024) });
        assert!(out.iter().zip(0..).all(|(v, i)| *v == i));
        // More memory than there is.
        let mut va = 0;
        // SAFETY: a live pointer.
        assert_eq!(unsafe { cuMemAlloc_v2(&mut va, 1 << 40) }, 2);
    });
}

#[test]
fn a_fault_takes_the_context_with_the_error_of_its_kind() {
    if std::env::var_os("RINGBELL_TEST_CASE").is_none() {
        for case in ["wild", "misaligned", "trap"] {
            let test = "a_fault_takes_the_context_with_the_error_of_its_kind";
            let out = Command::new(std::env::current_exe().unwrap())
                .args([test, "--exact", "--nocapture"])
                .env("RINGBELL_TEST_CASE", case)
                .env_remove("RINGBELL_MOCK_CUDA")
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&out.stderr);
            assert!(out.status.success(), "{case}: {text}");
            // What the number does not say: kernel, block, thread, line.
            let kernel = if case == "trap" { "fault" } else { "wild" };
            for words in [
                &format!("kernel `{kernel}` failed"),
                "block (0,0,0), thread (0,0,0)",
            ] {
                assert!(text.contains(words), "{case}: no `{words}` in: {text}");
            }
        }
        return;
    }
    let module = start();
    let va = alloc(64);
    let case = std::env::var("RINGBELL_TEST_CASE").unwrap();
    let (name, address, code) = match case.as_str() {
        "wild" => (c"wild", 0x10, 700),
        "misaligned" => (c"wild", va + 2, 716),
        _ => (c"fault", 0, 719),
    };
    let parameters: &[u64] = if name == c"fault" { &[] } else { &[address] };
    ok(launch(
        kernel(module, name),
        [1, 1, 1],
        [1, 1, 1],
        0,
        parameters,
    ));
    // SAFETY: no pointers but live ones.
    unsafe {
        assert_eq!(cuCtxSynchronize(), code);
        // And so does each call from then on.
        let mut va = 0;
        assert_eq!(cuMemAlloc_v2(&mut va, 64), code);
        assert_eq!(cuCtxSynchronize(), code);
    }
}

#[test]
fn what_a_running_kernel_uses_outlives_its_handles() {
    alone("what_a_running_kernel_uses_outlives_its_handles", || {
        let module = start();
        let (mut word, mut s, mut device) = (null_mut(), null_mut(), 0);
        // SAFETY: live pointers; pinned memory that the kernel reads.
        unsafe {
            ok(cuMemHostAlloc(&mut word, 4096, 0));
            let word = word.cast::<u32>();
            word.write_volatile(0);
            ok(cuMemHostGetDevicePointer_v2(&mut device, word.cast(), 0));
            assert_eq!(device, word as u64, "unified addresses");
            ok(cuStreamCreate(&mut s, 1));
            let f = kernel(module, c"spin");
            let mut params = [std::ptr::from_mut(&mut device).cast()];
            ok(cuLaunchKernel(
                f,
                1,
                1,
                1,
                1,
                1,
                1,
                0,
                s,
                params.as_mut_ptr(),
                null_mut(),
            ));
            assert_eq!(cuStreamQuery(s), 600);
            // The module and the stream go while it runs.
            ok(cuModuleUnload(module));
            ok(cuStreamDestroy_v2(s));
            assert_eq!(cuStreamQuery(s), 400);
            // What waits for all work waits for that of a destroyed stream too.
            let (at, begun) = (word as usize, Instant::now());
            let later = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(50));
                (at as *mut u32).write_volatile(1);
            });
            ok(cuCtxSynchronize());
            assert!(begun.elapsed() >= Duration::from_millis(40));
            later.join().unwrap();
            // Another runs for ever: the program ends all the same.
            let again = start();
            word.write_volatile(0);
            let f = kernel(again, c"spin");
            ok(cuLaunchKernel(
                f,
                1,
                1,
                1,
                1,
                1,
                1,
                0,
                null_mut(),
                params.as_mut_ptr(),
                null_mut(),
            ));
        }
    });
}

#[test]
fn functions_are_found_by_their_names() {
    alone("functions_are_found_by_their_names", || {
        start();
        let (mut f, mut status) = (null_mut(), 5);
        // SAFETY: terminated names and live pointers.
        unsafe {
            let unknown = cuGetProcAddress_v2(c"cuFrob".as_ptr(), &mut f, 13_000, 0, &mut status);
            assert_eq!((unknown, status, f.is_null()), (500, 1, true));
        }
    });
}
