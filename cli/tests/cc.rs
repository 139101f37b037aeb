//! `ringbell cc` with programs: kernels and the main that launches them, in one file.
#![allow(clippy::disallowed_methods)] // Starts compilers and programs.

use crate::common;

use std::path::Path;
use std::process::Command;

use common::{built, folder, has, run, succeed, text};

/// `ringbell cc` with the library that belongs to this test's build.
fn cc() -> Command {
    let mut cc = Command::new(env!("CARGO_BIN_EXE_ringbell"));
    cc.args(["cc", "--emulate-only", "--library"])
        .arg(built().join("libringbell.so"));
    cc
}

#[test]
fn a_program_launches_its_own_kernels() {
    if !has("g++") {
        return;
    }
    let dir = folder("cc-program");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cc/program.cu");
    let program = dir.join("program");
    let said = succeed(cc().arg(&source).arg("-o").arg(&program));
    assert!(said.contains("program, linked with"), "{said}");
    let said = succeed(Command::new(&program).arg(dir.join("local")));
    assert!(said.contains("all launches as they should be"), "{said}");
}

#[test]
fn flags_reach_the_compiler_and_the_default_output_has_no_ending() {
    if !has("g++") {
        return;
    }
    let dir = folder("cc-flags");
    let source = dir.join("answer.cu");
    std::fs::write(
        &source,
        "#include \"ringbell.hpp\"\n\
         __global__ void set(int *x, int v) { *x = v; }\n\
         int main() { int x = 0; if (rb::launch(set, 1, 1, &x, ANSWER).wait()) return 1; return x; }\n",
    )
    .expect("written");
    succeed(cc().arg(&source).args(["--", "-DANSWER=42"]));
    let out = run(&mut Command::new(dir.join("answer")));
    assert_eq!(out.status.code(), Some(42), "{}", text(&out));
}

#[test]
fn a_program_without_the_library_is_a_clear_error() {
    if !has("g++") {
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
    if !has("g++") {
        return;
    }
    let dir = folder("cc-arguments");
    let source = dir.join("wrong.cu");
    std::fs::write(
        &source,
        "#include \"ringbell.hpp\"\n__global__ void two(int, int) {}\n\
         int main() { return rb::launch(two, 1, 1, 1).wait(); }\n",
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
