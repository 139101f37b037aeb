//! Builds the tests' kernels as a user's shared object.
#![allow(unreachable_pub)] // Shared by several test programs, each of which uses a part.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles `tests/kernels/selftest.cu`; each test binary has a file of its own.
pub fn build(name: &str, flags: &[&str]) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let out = folder.join(format!("{name}.so"));
    // Tests run as processes side by side: nobody may load what another is still writing.
    let own = folder.join(format!("{name}.{}.so", std::process::id()));
    let run = Command::new("g++")
        .args([
            "-std=c++20",
            "-O1",
            "-fPIC",
            "-shared",
            "-fvisibility=hidden",
        ])
        .args([
            "-fno-exceptions",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-Wno-unknown-pragmas",
            "-x",
            "c++",
        ])
        .args(flags)
        .arg("-I")
        .arg(root.join("include"))
        .arg(root.join("tests/kernels/selftest.cu"))
        .arg("-o")
        .arg(&own)
        .output()
        .expect("g++ is what builds this crate");
    assert!(
        run.status.success(),
        "{}",
        String::from_utf8_lossy(&run.stderr)
    );
    std::fs::rename(&own, &out).expect("moved to its place");
    out
}
