//! What tests of the compiled library share.
#![allow(dead_code, clippy::disallowed_methods)] // Each test uses a part; tests start programs.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Longest time that a program under test may take.
const LIMIT: Duration = Duration::from_secs(100);

/// The folder of libringbell.so. `cargo test` renews only the one in `deps`; beside the command lies what
/// the last `cargo build` left.
pub(crate) fn library_folder() -> PathBuf {
    let command = Path::new(env!("CARGO_BIN_EXE_ringbell"));
    let beside = command.parent().expect("a program lies in a folder");
    let folders = [beside.join("deps"), beside.to_path_buf()];
    folders
        .iter()
        .find(|f| f.join("libringbell.so").is_file())
        .cloned()
        .unwrap_or_else(|| {
            panic!("libringbell.so is in none of {folders:?}; cargo builds it with the package")
        })
}

/// A folder of this test's own, empty.
pub(crate) fn folder(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).expect("the target directory can be written");
    dir
}

/// Whether a compiler is there; says so when the test is skipped for the lack of it.
pub(crate) fn has(compiler: &str) -> bool {
    let there = Command::new(compiler)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success());
    if !there {
        eprintln!("SKIPPED: no {compiler} on this machine");
    }
    there
}

/// Runs a program to its end, or ends it after the limit.
pub(crate) fn run(command: &mut Command) -> Output {
    // cargo names its folders there, the one with the older library first; the rpath is to decide.
    let mut child = command
        .env_remove("LD_LIBRARY_PATH")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("cannot start {command:?}: {e}"));
    let deadline = Instant::now() + LIMIT;
    while child.try_wait().expect("our own child").is_none() {
        if Instant::now() > deadline {
            child.kill().expect("our own child");
            let out = child.wait_with_output().expect("our own child");
            panic!("{command:?} had not ended after {LIMIT:?}: {}", text(&out));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().expect("our own child")
}

/// Everything that it printed.
pub(crate) fn text(out: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    )
}

/// Runs a program that must succeed, and gives what it printed.
pub(crate) fn succeed(command: &mut Command) -> String {
    let out = run(command);
    assert!(
        out.status.success(),
        "{command:?}: {}\n{}",
        out.status,
        text(&out)
    );
    text(&out)
}

/// Compiles a program of `tests/capi/` as strictly as C99 can be compiled.
pub(crate) fn compile_c(name: &str, dir: &Path, library: &Path) -> PathBuf {
    compile_as(&["gcc", "-std=c99", "-pedantic"], name, dir, library)
}

/// The same by another compiler and for another language.
pub(crate) fn compile_as(compiler: &[&str], name: &str, dir: &Path, library: &Path) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = dir.join(format!("{name}-{}", compiler[0]));
    let mut gcc = Command::new(compiler[0]);
    gcc.args(&compiler[1..])
        .args(["-Wall", "-Wextra", "-Werror"])
        .args(["-D_DEFAULT_SOURCE", "-g", "-pthread", "-I"])
        .arg(root.join("cuda-kernels/include"))
        .arg(root.join("tests/capi").join(name).with_extension("c"))
        .arg("-L")
        .arg(library)
        .arg("-lringbell")
        .arg(format!("-Wl,-rpath,{}", library.display()))
        .arg("-o")
        .arg(&program);
    succeed(&mut gcc);
    program
}
