//! Whole CUDA programs, host and device by clang, on the emulated GPU: no GPU, no NVIDIA library.
#![allow(clippy::disallowed_methods)] // Starts compilers and programs, with a deadline.

use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(120);

/// A clang that knows CUDA without a toolkit: 19 or newer.
fn clang() -> Option<String> {
    let names = std::env::var("RINGBELL_CLANG").into_iter();
    let names = names.chain(["clang-19", "clang-20", "clang-21", "clang"].map(str::to_owned));
    names.into_iter().find(|name| {
        let out = Command::new(name).arg("-dumpversion").output();
        let version = out.map(|o| String::from_utf8_lossy(&o.stdout).into_owned());
        let major = version
            .ok()
            .and_then(|v| v.split('.').next()?.trim().parse::<u32>().ok());
        major.is_some_and(|m| m >= 19)
    })
}

fn here(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// A library that cargo has put beside this test.
fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let beside = test.with_file_name(name);
    assert!(beside.is_file(), "{} was not built", beside.display());
    beside
}

/// Runs a command to its end, or ends it.
fn run(command: &mut Command) -> Output {
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = child.spawn().expect("the program starts");
    let start = Instant::now();
    // What it says is short, and fits into the pipes.
    while child.try_wait().expect("a child of ours").is_none() {
        if start.elapsed() > PATIENCE {
            let _ = child.kill();
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    child.wait_with_output().expect("a child of ours")
}

#[track_caller]
fn succeed(command: &mut Command) -> String {
    let out = run(command);
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let errors = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(
        out.status.success(),
        "{command:?}: {}\n{text}{errors}",
        out.status
    );
    text + &errors
}

/// A folder with the libraries by the names under which programs look for them.
fn libraries(folder: &Path) {
    let _ = std::fs::remove_dir_all(folder);
    std::fs::create_dir_all(folder.join("static")).expect("the target folder can be written");
    let links = [
        ("libringbell_cudart.so", "libcudart.so"),
        ("libringbell_cudart.so", "libcudart.so.13"),
        ("libringbell_cudart.so", "libcudart.so.12"),
        ("libringbell_libcuda.so", "libcuda.so.1"),
        ("libringbell_cudart.a", "static/libcudart_static.a"),
    ];
    for (library, name) in links {
        std::os::unix::fs::symlink(built(library), folder.join(name)).expect("a fresh folder");
    }
}

/// Compiles a program as `<<<>>>` needs: PTX, a fat binary of it, then the host's code with that
/// inside.
fn compile(clang: &str, name: &str, folder: &Path, linked: &[&str], more: &[&str]) -> PathBuf {
    let source = here("tests/programs").join(name).with_extension("cu");
    let include = here("../cuda-kernels/include/cuda");
    let common = |c: &mut Command| {
        c.args([
            "-x",
            "cuda",
            "-nocudainc",
            "-nocudalib",
            "-std=c++17",
            "-O2",
            "-I",
        ])
        .arg(&include)
        .args(["-Xclang", "-target-sdk-version=12.3"])
        .args(more);
    };
    let at = |ending: &str| folder.join(name).with_extension(ending);
    let mut device = Command::new(clang);
    common(&mut device);
    device
        .args([
            "--cuda-device-only",
            "-S",
            "--cuda-gpu-arch=sm_80",
            "--cuda-feature=+ptx70",
        ])
        .arg(&source)
        .arg("-o")
        .arg(at("ptx"));
    succeed(&mut device);
    let ptx = std::fs::read_to_string(at("ptx")).expect("written just now");
    std::fs::write(at("fatbin"), ringbell_fatbin::of_ptx(&[(80, &ptx)])).expect("our folder");
    let mut host = Command::new(clang);
    common(&mut host);
    host.args([
        "--cuda-host-only",
        "-c",
        "-Xclang",
        "-fcuda-include-gpubinary",
        "-Xclang",
    ])
    .arg(at("fatbin"))
    .arg(&source)
    .arg("-o")
    .arg(at("o"));
    succeed(&mut host);
    let program = at("program");
    let mut link = Command::new(clang);
    link.arg(at("o")).arg("-L").arg(folder).args(linked);
    link.args(["-lstdc++", "-lpthread", "-ldl", "-lm"])
        .arg("-o")
        .arg(&program);
    succeed(&mut link);
    program
}

/// A compiled program in a folder with the libraries, and that folder, unless there is no clang.
fn compiled(name: &str, test: &str, linked: &[&str], more: &[&str]) -> Option<(PathBuf, PathBuf)> {
    let Some(clang) = clang() else {
        println!("SKIPPED: no clang of version 19 or newer (apt-get install clang-19)");
        return None;
    };
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cudart-{test}"));
    libraries(&folder);
    let program = compile(&clang, name, &folder, linked, more);
    Some((program, folder))
}

/// A program with the libraries of a folder, and checks.
fn checked(program: &Path, folder: &Path, checks: &str) -> Command {
    let mut checked = Command::new(program);
    checked.env("LD_LIBRARY_PATH", folder);
    checked.env_remove("RINGBELL_MOCK_CUDA");
    checked.env("RINGBELL_CHECK", checks);
    checked
}

/// Compiles and runs a program. What it says, unless there is no clang.
fn output(name: &str, test: &str, linked: &[&str]) -> Option<String> {
    output_with(name, test, linked, &[])
}

/// With further flags of the compiler.
fn output_with(name: &str, test: &str, linked: &[&str], more: &[&str]) -> Option<String> {
    let (program, folder) = compiled(name, test, linked, more)?;
    let mut run = Command::new(program);
    run.env("LD_LIBRARY_PATH", &folder)
        .env_remove("RINGBELL_MOCK_CUDA");
    Some(succeed(&mut run))
}

/// A program without a fault: the checks say nothing of it.
fn runs(name: &str) {
    if let Some(text) = output(name, name, &["-lcudart"]) {
        assert!(text.contains("ok"), "{text}");
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cudart-{name}"));
        let program = folder.join(name).with_extension("program");
        let text = succeed(&mut checked(&program, &folder, "all"));
        assert!(text.contains("ok"), "checked: {text}");
    }
}

/// Programs with a fault each, which checks name with the line.
#[test]
fn checks_name_faults_of_whole_programs() {
    let lines = ["-gline-tables-only"];
    let Some((program, folder)) = compiled("faults", "faults", &["-lcudart"], &lines) else {
        return;
    };
    let source = std::fs::read_to_string(here("tests/programs/faults.cu")).expect("it is there");
    for (fault, says) in [
        ("beyond", "0 bytes behind the 400 bytes allocated at"),
        ("freed", "outside of allocated GPU memory"),
        ("unwritten", "never written"),
        ("copied", "race"),
    ] {
        let line = source
            .lines()
            .position(|l| l.ends_with(&format!("// {fault}")));
        let line = format!("faults.cu:{}", line.expect("its line is marked") + 1);
        let out = run(checked(&program, &folder, "all").arg(fault));
        let text = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{fault}: {text}");
        assert!(
            text.contains(&line) && text.contains(says),
            "{fault}: {text}"
        );
    }
}

#[test]
fn vector_add() {
    runs("vector_add");
}

/// The program's first call fails, and the reason names the variable.
#[test]
fn an_unknown_check_is_an_error_of_the_first_call() {
    let name = "vector_add";
    let Some((program, folder)) = compiled(name, "unknown-check", &["-lcudart"], &[]) else {
        return;
    };
    let out = run(&mut checked(&program, &folder, "race"));
    let text = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{text}");
    let reason = "RINGBELL_CHECK: there is no check `race`; there are memcheck";
    assert!(
        text.contains(reason) && !text.contains("panicked"),
        "{text}"
    );
}

#[test]
fn streams_events_and_graphs() {
    runs("streams");
}

#[test]
fn managed_memory() {
    runs("managed");
}

#[test]
fn constants_and_symbols() {
    runs("symbols");
}

#[test]
fn cooperative_grids_and_attributes() {
    runs("cooperative");
}

#[test]
fn cooperative_groups() {
    runs("grid_sync");
}

#[test]
fn boxes_pools_and_graphs() {
    runs("boxes_and_graphs");
}

/// A program with CCCL, whose headers `CCCL` names, or which are in `target/venv`
/// (`pip install cuda-cccl`).
fn runs_with_cccl(name: &str) {
    let named = std::env::var_os("CCCL").map(PathBuf::from);
    let pythons = std::fs::read_dir(here("../target/venv/lib")).into_iter();
    let pythons = pythons.flatten().flatten();
    let installed = pythons.map(|p| p.path().join("site-packages/cuda/cccl/headers/include"));
    let mut all = named.into_iter().chain(installed);
    let Some(headers) = all.find(|f| f.join("cub/cub.cuh").is_file()) else {
        println!(
            "SKIPPED: no CCCL. `pip install cuda-cccl` in target/venv, or name its headers in CCCL"
        );
        return;
    };
    let headers = headers.to_str().expect("a plain name");
    let more = [
        "-isystem",
        headers,
        "-include",
        "cuda_runtime.h",
        "-Xclang",
        "-fcuda-allow-variadic-functions",
    ];
    if let Some(text) = output_with(name, name, &["-lcudart"], &more) {
        assert!(text.contains("ok"), "{text}");
    }
}

#[test]
fn cub_over_the_whole_device_and_thrust() {
    runs_with_cccl("cub_thrust");
}

#[test]
fn pipelines_and_barriers_with_asynchronous_copies() {
    runs_with_cccl("pipeline");
}

/// Programs that nvcc compiles from the same sources with NVIDIA's headers, and links with our
/// runtime as a shared library; some with it inside. The step `kernels` has nvcc, and names it in
/// `RINGBELL_NVCC`.
#[test]
fn programs_by_nvcc_run_unchanged() {
    let Some(nvcc) = std::env::var_os("RINGBELL_NVCC").map(PathBuf::from) else {
        println!("SKIPPED: no nvcc (`cargo xtask kernels` runs this with one)");
        return;
    };
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cudart-nvcc");
    libraries(&folder);
    // The wheels have NVIDIA's libraries elsewhere than nvcc looks for them.
    let own = nvcc.parent().and_then(Path::parent).expect("bin/nvcc");
    let shared = [
        "vector_add",
        "streams",
        "symbols",
        "managed_variables",
        "cooperative",
        "grid_sync",
        "errors",
        "boxes_and_graphs",
        "pipeline",
    ];
    let kinds = [("shared", &shared[..]), ("static", &shared[..2])];
    for (kind, names) in kinds {
        for name in names {
            let program = folder.join(format!("{name}-{kind}"));
            let mut compile = Command::new(&nvcc);
            compile
                .args(["-std=c++17", "-gencode", "arch=compute_80,code=compute_80"])
                .args(["-cudart", kind, "-L"])
                .arg(match kind {
                    "static" => folder.join("static"),
                    _ => folder.clone(),
                })
                .arg("-L")
                .arg(own.join("lib"))
                .arg(here("tests/programs").join(name).with_extension("cu"))
                .arg("-o")
                .arg(&program);
            succeed(&mut compile);
            let mut run = Command::new(program);
            run.env("LD_LIBRARY_PATH", &folder)
                .env_remove("RINGBELL_MOCK_CUDA");
            let text = succeed(&mut run);
            assert!(text.contains("ok"), "{name}, {kind}: {text}");
        }
    }
}

/// `cudaGetDeviceProperties` has one structure for each version of CUDA, and the library's name
/// says which is meant.
#[test]
#[allow(unsafe_code)] // Calls functions of a library by their names.
fn properties_have_the_layout_of_each_version() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cudart-properties");
    libraries(&folder);
    // A copy, because the loader takes links of one file for one library.
    let thirteen = folder.join("libcudart.so.13");
    std::fs::remove_file(&thirteen).expect("made just now");
    std::fs::copy(built("libringbell_cudart.so"), &thirteen).expect("our folder");
    let get = |library: &str, name: &str| {
        let path = folder.join(library);
        let path = CString::new(path.to_str().expect("a plain name")).expect("no zero");
        let name = CString::new(name).expect("no zero");
        let mut bytes = vec![0xee_u8; 1100];
        // SAFETY: the library's function of this name takes a structure of at most 1,032 bytes.
        unsafe {
            let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
            assert!(!library.is_null(), "{path:?}");
            let found = libc::dlsym(library, name.as_ptr());
            assert!(!found.is_null(), "{name:?}");
            let call: unsafe extern "C" fn(*mut u8, i32) -> i32 = std::mem::transmute(found);
            assert_eq!(call(bytes.as_mut_ptr(), 0), 0);
            assert_eq!(call(bytes.as_mut_ptr(), 7), 101);
            assert_eq!(call(std::ptr::null_mut(), 0), 1);
        }
        bytes
    };
    let plain = "cudaGetDeviceProperties";
    // Bytes of the structure; warpSize, multiProcessorCount, maxThreadsPerMultiProcessor,
    // managedMemory, maxBlocksPerMultiProcessor; sharedMemPerBlockOptin, reservedSharedMemPerBlock.
    for (library, name, end, ints, sizes) in [
        (
            "libcudart.so.12",
            plain,
            728,
            [308, 388, 624, 652, 712],
            [696, 720],
        ),
        (
            "libcudart.so.12",
            "cudaGetDeviceProperties_v2",
            1032,
            [308, 388, 624, 652, 712],
            [696, 720],
        ),
        (
            "libcudart.so.13",
            plain,
            1008,
            [308, 384, 604, 636, 688],
            [672, 696],
        ),
        (
            "libcudart.so.13",
            "cudaGetDeviceProperties_v2",
            1032,
            [308, 388, 624, 652, 712],
            [696, 720],
        ),
    ] {
        let bytes = get(library, name);
        let int = |at: usize| i32::from_le_bytes(bytes[at..at + 4].try_into().expect("four"));
        let size = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight"));
        assert_eq!(ints.map(int), [32, 16, 2048, 1, 32], "{library} {name}");
        assert_eq!(sizes.map(size), [227 << 10, 1024], "{library} {name}");
        assert_ne!(bytes[end - 1], 0xee, "{library} {name}: the end is written");
        assert!(
            bytes[end..].iter().all(|b| *b == 0xee),
            "{library} {name}: more than its bytes"
        );
    }
}

#[test]
fn errors_and_where_a_kernel_failed() {
    if let Some(text) = output("errors", "errors", &["-lcudart"]) {
        assert!(text.contains("ok"), "{text}");
        // The driver says what the error's number does not.
        assert!(text.contains("a store of 4 bytes at 0x40"), "{text}");
    }
}

#[test]
fn a_program_with_the_runtime_inside_runs_too() {
    let linked = ["-Wl,--as-needed", "static/libcudart_static.a"];
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cudart-inside");
    let library = folder.join(linked[1]);
    let linked = [linked[0], library.to_str().expect("a plain name")];
    if let Some(text) = output("vector_add", "inside", &linked) {
        assert!(text.contains("ok: Ringbell emulated GPU"), "{text}");
        let mut needed = Command::new("readelf");
        needed.arg("-d").arg(folder.join("vector_add.program"));
        match needed.output() {
            Ok(out) => assert!(!String::from_utf8_lossy(&out.stdout).contains("libcuda")),
            Err(_) => println!("no readelf: what the program needs was not looked at"),
        }
    }
}

#[test]
fn without_a_driver_each_call_says_so() {
    let Some(clang) = clang() else {
        println!("SKIPPED: no clang of version 19 or newer (apt-get install clang-19)");
        return;
    };
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cudart-alone");
    libraries(&folder);
    std::fs::remove_file(folder.join("libcuda.so.1")).expect("made just now");
    let program = compile(&clang, "vector_add", &folder, &["-lcudart"], &[]);
    if Path::new("/usr/lib/x86_64-linux-gnu/libcuda.so.1").exists() {
        println!("SKIPPED: this machine has a driver");
        return;
    }
    let out = run(Command::new(program).env("LD_LIBRARY_PATH", &folder));
    let text = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{text}");
    assert!(
        text.contains("there is no CUDA driver") && text.contains("ringbell gpu"),
        "{text}"
    );
}
