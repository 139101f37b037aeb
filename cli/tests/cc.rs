//! `ringbell cc`: kernels to PTX, and programs of kernels and the main that launches them, in one
//! file.
#![allow(clippy::disallowed_methods)] // Starts compilers and programs.

use crate::common;

use std::path::Path;
use std::process::Command;

use common::{beside, built, folder, has, run, succeed, text};

/// `ringbell cc` with the library that belongs to this test's build.
fn cc() -> Command {
    let mut cc = Command::new(env!("CARGO_BIN_EXE_ringbell"));
    cc.args(["cc", "--emulate-only", "--library"])
        .arg(built().join("libringbell.so"));
    cc
}

#[test]
fn a_program_launches_its_own_kernels() {
    if !has("clang-19") {
        return;
    }
    let dir = folder("cc-program");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cc/program.cu");
    let program = dir.join("program");
    let said = succeed(cc().arg(&source).arg("-o").arg(&program));
    assert!(
        said.contains("program with ") && said.contains(", linked with"),
        "{said}"
    );
    let said = succeed(Command::new(&program).arg(dir.join("local")));
    assert!(said.contains("all launches as they should be"), "{said}");
}

#[test]
fn flags_reach_the_compiler_and_the_default_output_has_no_ending() {
    if !has("clang-19") {
        return;
    }
    let dir = folder("cc-flags");
    let source = dir.join("answer.cu");
    let program = r#"
#include "ringbell.hpp"
__global__ void set(int *x, int v) { *x = v; }
int main(int, char **argv) {
  rb_nic_config config{};
  config.size = sizeof config;
  config.ip = "10.6.1.7";
  config.local_directory = argv[1];
  rb_nic *nic;
  void *x;
  int got = 0;
  if (rb_nic_open(&config, &nic) || rb_mem_alloc(nic, sizeof(int), &x)) return 1;
  if (rb::launch(nic, set, 1, 1, (int *)x, ANSWER).wait() || rb_mem_read(nic, &got, x, sizeof(int))) return 2;
  rb_nic_close(nic);
  return got;
}
"#;
    std::fs::write(&source, program).expect("written");
    succeed(cc().arg(&source).args(["--", "-DANSWER=42"]));
    let out = run(Command::new(dir.join("answer")).arg(dir.join("local")));
    assert_eq!(out.status.code(), Some(42), "{}", text(&out));
}

#[test]
fn a_program_without_the_library_is_a_clear_error() {
    if !has("clang-19") {
        return;
    }
    let dir = folder("cc-library");
    let source = dir.join("empty.cu");
    std::fs::write(&source, "int main() {}\n").expect("written");

    let mut named = Command::new(env!("CARGO_BIN_EXE_ringbell"));
    named.args([
        "cc",
        "--emulate-only",
        "--library",
        "/no/such/libringbell.so",
    ]);
    let out = run(named.arg(&source));
    assert_eq!(out.status.code(), Some(2), "{}", text(&out));
    assert!(text(&out).contains("/no/such/libringbell.so") && text(&out).contains("--library"));

    // The command alone, as if only it had been copied somewhere.
    let alone = dir.join("ringbell");
    std::fs::copy(env!("CARGO_BIN_EXE_ringbell"), &alone).expect("copied");
    let out = run(Command::new(&alone)
        .args(["cc", "--emulate-only"])
        .arg(&source));
    assert_eq!(out.status.code(), Some(4), "{}", text(&out));
    assert!(text(&out).contains("cargo build"), "{}", text(&out));
}

#[test]
fn a_wrong_argument_of_launch_is_a_compile_error() {
    if !has("clang-19") {
        return;
    }
    let dir = folder("cc-arguments");
    let source = dir.join("wrong.cu");
    std::fs::write(
        &source,
        "#include \"ringbell.hpp\"\n__global__ void two(int, int) {}\n\
         int main() { return rb::launch(nullptr, two, 1, 1, 1).wait(); }\n",
    )
    .expect("written");
    let out = run(cc().arg(&source));
    assert_eq!(out.status.code(), Some(1), "{}", text(&out));
    assert!(
        text(&out).contains("another number of arguments"),
        "{}",
        text(&out)
    );
}

/// `ringbell cc` for kernels, in a folder of its own with one source.
fn kernels(name: &str, source: &str) -> (std::path::PathBuf, Command) {
    let dir = folder(name);
    std::fs::write(dir.join("mine.cu"), source).expect("written");
    let mut cc = Command::new(env!("CARGO_BIN_EXE_ringbell"));
    cc.args(["cc", "--no-nvcc", "mine.cu"]).current_dir(&dir);
    (dir, cc)
}

#[test]
fn kernels_become_ptx_with_lines_and_without_a_line_of_ours_in_the_source() {
    if !has("clang-19") {
        return;
    }
    let (dir, mut cc) = kernels(
        "cc-ptx",
        "template <class T> __device__ int any(...); template <class T> __global__ void scale(T *x, T by) { x[threadIdx.x] *= by * T(FACTOR) + rsqrtf(2.0f); }\n\
         template __global__ void scale<float>(float *, float);\n\
         extern \"C\" __global__ void count(unsigned *n) { atomicAdd(n, __popc(__ballot_sync(~0u, *n))); }\n\
         void host() { scale<<<1, 32>>>((double *)nullptr, 2.0); }\n",
    );
    let said = succeed(cc.args(["-D", "FACTOR=3", "-O3", "--arch", "sm_80"]));
    assert_eq!(
        said.trim(),
        "mine.ptx: _Z5scaleIfEvPT_S0_, count, _Z5scaleIdEvPT_S0_"
    );
    let ptx = std::fs::read_to_string(dir.join("mine.ptx")).expect("written");
    assert!(ptx.contains(".target sm_80") && ptx.contains(".loc\t1 1 "));
}

#[test]
fn errors_of_a_kernel_are_told_with_their_place() {
    if !has("clang-19") {
        return;
    }
    let source = "__global__ void k(int *p) {\n  *p = no_such_function(1);\n}\n";
    let (_, mut cc) = kernels("cc-error", source);
    let out = run(&mut cc);
    assert_eq!(out.status.code(), Some(1), "{}", text(&out));
    assert!(text(&out).contains("mine.cu:2:8: error:"), "{}", text(&out));

    let (_, mut cc) = kernels("cc-none", "__device__ int f() { return 1; }\n");
    let out = run(&mut cc);
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out).contains("has no kernel") && text(&out).contains("__global__"));
}

#[test]
fn without_clang_the_error_has_the_line_that_installs_it() {
    let (_, mut cc) = kernels("cc-without", "extern \"C\" __global__ void k() {}\n");
    let out = run(cc.env("PATH", "/nowhere"));
    assert_eq!(out.status.code(), Some(4), "{}", text(&out));
    assert!(
        text(&out).contains("apt-get install clang-19"),
        "{}",
        text(&out)
    );
    let out = run(cc.env("CLANG", "/no/such/clang"));
    assert_eq!(out.status.code(), Some(4), "{}", text(&out));
    assert!(text(&out).contains("/no/such/clang"), "{}", text(&out));
}

#[test]
fn a_cuda_program_runs_by_itself_and_by_ringbell_gpu() {
    if !has("clang-19") {
        return;
    }
    let dir = folder("cc-cuda");
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../libcudart/tests/programs");
    let program = dir.join("symbols");
    let mut cc = Command::new(env!("CARGO_BIN_EXE_ringbell"));
    cc.args(["cc", "--runtime"])
        .arg(beside("libringbell_cudart.a"))
        .arg(programs.join("symbols.cu"))
        .arg("-o")
        .arg(&program);
    let said = succeed(&mut cc);
    assert!(
        said.contains("symbols: program, with ") && said.contains("fill_table"),
        "{said}"
    );
    // Beside the runtime lies the driver, which the program finds.
    assert_eq!(succeed(&mut Command::new(&program)).trim(), "ok");
    let gpu = |more: &[&str]| {
        let mut gpu = Command::new(env!("CARGO_BIN_EXE_ringbell"));
        gpu.args(["gpu", "--driver"])
            .arg(beside("libringbell_libcuda.so"))
            .arg("--runtime")
            .arg(beside("libringbell_cudart.so"))
            .args(more)
            .arg("--")
            .arg(&program);
        gpu
    };
    assert_eq!(succeed(&mut gpu(&["--memory", "16M"])).trim(), "ok");
    let out = run(&mut gpu(&["--capability", "70"]));
    assert_eq!(out.status.code(), Some(1), "{}", text(&out));
    assert!(
        text(&out).contains("has PTX for sm_90 and newer; this GPU is sm_70"),
        "{}",
        text(&out)
    );
    let out = run(&mut gpu(&["--memory", "16MB"]));
    assert_eq!(out.status.code(), Some(2), "{}", text(&out));
}
