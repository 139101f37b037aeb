//! Compiles the tests' programs against libringbell.so.
#![allow(dead_code, clippy::disallowed_methods)] // Each test uses a part; tests start programs.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{built, succeed};

/// Compiles a program of `tests/programs/` as strictly as C99 can be compiled.
pub(crate) fn c99(name: &str, dir: &Path) -> PathBuf {
    compile(&["gcc", "-std=c99", "-pedantic"], name, dir)
}

/// The same by another compiler and for another language.
pub(crate) fn compile(compiler: &[&str], name: &str, dir: &Path) -> PathBuf {
    let library = built();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = dir.join(format!("{name}-{}", compiler[0]));
    let mut gcc = Command::new(compiler[0]);
    gcc.args(&compiler[1..])
        .args(["-Wall", "-Wextra", "-Werror"])
        .args(["-D_DEFAULT_SOURCE", "-g", "-pthread", "-I"])
        .arg(root.join("../../cuda-kernels/include"))
        .arg(root.join("tests/programs").join(name).with_extension("c"))
        .arg("-L")
        .arg(&library)
        .arg("-lringbell")
        .arg(format!("-Wl,-rpath,{}", library.display()))
        .arg("-o")
        .arg(&program);
    succeed(&mut gcc);
    program
}
