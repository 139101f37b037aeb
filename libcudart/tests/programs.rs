//! Whole CUDA programs, host and device by clang, on the emulated GPU: no GPU, no NVIDIA library.
#![allow(clippy::disallowed_methods)] // Starts compilers and programs, with a deadline.

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

/// Compiles a program as `<<<>>>` needs: PTX, a fat binary of it, then the host's code with that inside.
fn compile(clang: &str, name: &str, folder: &Path, linked: &[&str]) -> PathBuf {
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
        .args(["-Xclang", "-target-sdk-version=12.3"]);
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

/// Compiles and runs a program. What it says, unless there is no clang.
fn output(name: &str, test: &str, linked: &[&str]) -> Option<String> {
    let Some(clang) = clang() else {
        println!("SKIPPED: no clang of version 19 or newer (apt-get install clang-19)");
        return None;
    };
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cudart-{test}"));
    libraries(&folder);
    let program = compile(&clang, name, &folder, linked);
    let mut run = Command::new(program);
    run.env("LD_LIBRARY_PATH", &folder)
        .env_remove("RINGBELL_MOCK_CUDA");
    Some(succeed(&mut run))
}

fn runs(name: &str) {
    if let Some(text) = output(name, name, &["-lcudart"]) {
        assert!(text.contains("ok"), "{text}");
    }
}

#[test]
fn vector_add() {
    runs("vector_add");
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
    let program = compile(&clang, "vector_add", &folder, &["-lcudart"]);
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
