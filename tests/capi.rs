//! The C API, from a program that gcc compiled as C99.
#![allow(clippy::disallowed_methods)] // Starts compilers and programs.

mod common;

use std::path::Path;
use std::process::Command;

use common::{folder, has, library_folder, succeed};

#[test]
fn a_c99_program_gets_what_the_header_promises() {
    if !has("gcc") {
        return;
    }
    let dir = folder("capi");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
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

    let program = dir.join("capi");
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic"])
        .args(["-D_POSIX_C_SOURCE=200809L", "-g", "-pthread", "-I"])
        .arg(root.join("cuda-kernels/include"))
        .arg(root.join("tests/capi/capi.c"))
        .arg("-L")
        .arg(&library)
        .arg("-lringbell")
        .arg(format!("-Wl,-rpath,{}", library.display()))
        .arg("-o")
        .arg(&program);
    succeed(&mut gcc);

    let meeting = dir.join("local");
    let said = succeed(Command::new(&program).arg(&meeting).arg(&module));
    assert!(said.contains("all checks passed"), "{said}");
}
