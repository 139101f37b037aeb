//! Common helpers for tests of the compiled library.
#![allow(dead_code, clippy::disallowed_methods)] // Each test uses a part; tests start programs.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Longest time that a program under test may take.
const LIMIT: Duration = Duration::from_secs(100);

/// The folder of the command and of libringbell.so. For a test cargo builds its package's
/// dependencies, and no shared library; so this builds both, unless `RINGBELL_TEST_BUILT` names the
/// folder of an earlier build.
pub(crate) fn built() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let build = || {
        if let Some(folder) = std::env::var_os("RINGBELL_TEST_BUILT") {
            return folder.into();
        }
        let test = std::env::current_exe().expect("a test has a path");
        let folder = test.ancestors().nth(2).expect("TARGET/PROFILE/deps/TEST");
        let profile = folder.file_name().expect("a name").to_string_lossy();
        let profile = if profile == "debug" { "dev" } else { &*profile };
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut cargo = Command::new(cargo);
        cargo.args(["build", "--quiet", "-p", "ringbell-cli", "-p", "ringbell-c"]);
        cargo.args(["--profile", profile]);
        let done = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).status();
        assert!(done.expect("cargo starts").success(), "{cargo:?}");
        folder.to_path_buf()
    };
    let folder = BUILT.get_or_init(build).clone();
    for product in ["ringbell", "libringbell.so"] {
        let path = folder.join(product);
        assert!(path.is_file(), "{} is missing", path.display());
    }
    folder
}

/// A library that cargo has put beside this test.
pub(crate) fn beside(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    test.with_file_name(name)
}

/// A folder of this test's own, empty.
pub(crate) fn folder(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).expect("the target directory can be written");
    dir
}

/// Whether a compiler is installed; prints it when the test is skipped without one.
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

/// Runs a program until it ends or the limit is over.
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

/// Runs a program that must succeed, and returns its output.
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
