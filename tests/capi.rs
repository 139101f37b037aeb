//! The C API, from a program that gcc compiled as C99.
#![allow(clippy::disallowed_methods)] // Starts compilers and programs.

mod common;

use std::path::Path;
use std::process::Command;

use common::{compile_as, compile_c, folder, has, library_folder, succeed};

#[test]
fn communicators_in_c99_as_threads_and_as_processes_of_which_one_dies() {
    if !has("gcc") {
        return;
    }
    let dir = folder("capi-comm");
    let program = compile_c("comm", &dir, &library_folder());
    let said = succeed(Command::new(&program).arg(dir.join("local")));
    assert!(said.contains("all checks passed"), "{said}");
}

#[test]
fn kernels_streams_and_settings_in_c99_and_in_cpp() {
    if !has("gcc") || !has("g++") {
        return;
    }
    let dir = folder("capi-streams");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/capi/push_pop.cu");
    let module = dir.join("push_pop.so");
    let mut cc = Command::new(env!("CARGO_BIN_EXE_ringbell"));
    cc.args(["cc", "--emulate-only"]).arg(&source);
    succeed(cc.arg("-o").arg(&module));
    let library = library_folder();
    for program in [
        compile_c("streams", &dir, &library),
        compile_as(&["g++", "-std=c++17", "-xc++"], "streams", &dir, &library),
    ] {
        let said = succeed(Command::new(&program).arg(dir.join("local")).arg(&module));
        assert!(said.contains("all checks passed"), "{said}");
    }
}

/// Runs a program of `tests/capi/` that was compiled as C99, and as C++.
fn in_both_languages(name: &str) {
    if !has("gcc") || !has("g++") {
        return;
    }
    let dir = folder(&format!("capi-{name}"));
    let library = library_folder();
    for program in [
        compile_c(name, &dir, &library),
        compile_as(&["g++", "-std=c++17", "-xc++"], name, &dir, &library),
    ] {
        let said = succeed(Command::new(&program).arg(dir.join("local")));
        assert!(said.contains("all checks passed"), "{said}");
    }
}

#[test]
fn graphs_in_c99_and_in_cpp() {
    in_both_languages("graphs");
}

#[test]
fn engines_in_c99_and_in_cpp() {
    in_both_languages("engines");
}

#[test]
fn a_c99_program_gets_what_the_header_promises() {
    if !has("gcc") {
        return;
    }
    let dir = folder("capi");
    let library = library_folder();

    // A kernel of the program's own, as a module.
    let module = if has("g++") {
        let source = dir.join("twice.cu");
        let text = "#include \"ringbell.cuh\"\n\
            extern \"C\" __global__ void twice(rb_u64 *x) { *x *= 2; }\nRB_KERNEL(twice)\n";
        std::fs::write(&source, text).expect("written");
        let mut cc = Command::new(env!("CARGO_BIN_EXE_ringbell"));
        succeed(cc.args(["cc", "--no-nvcc"]).arg(&source));
        dir.join("twice.so").display().to_string()
    } else {
        "-".into()
    };

    let program = compile_c("capi", &dir, &library);
    let meeting = dir.join("local");
    let said = succeed(Command::new(&program).arg(&meeting).arg(&module));
    assert!(said.contains("all checks passed"), "{said}");
}
