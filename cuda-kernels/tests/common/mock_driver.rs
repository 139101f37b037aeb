//! Runs a test again, in a process that finds the mock driver where libcuda would be.
#![allow(dead_code, unreachable_pub)] // Each test uses a part.
#![allow(clippy::disallowed_methods)] // At the edge: deadlines, so that a hang fails.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Set in the process that finds the mock.
const INSIDE: &str = "RINGBELL_TEST_UNDER_MOCK";
/// Longest run of such a process.
const PATIENCE: Duration = Duration::from_secs(120);

/// Names of the driver. The plain name too: it is asked for first, and a machine with a CUDA
/// toolkit has it.
const NAMES: [&str; 3] = ["libcuda.so", "libcuda.so.1", "libnvrtc.so"];

/// Where cargo put the mock: beside this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let beside = test.with_file_name("libringbell_libcuda.so");
    assert!(beside.is_file(), "{} was not built", beside.display());
    beside
}

/// A folder with links of these names to `library`.
fn folder(test: &str, names: &[&str], library: &Path) -> PathBuf {
    let name = format!("mock-{}-{test}", std::process::id());
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).expect("the target folder can be written");
    for name in names {
        std::os::unix::fs::symlink(library, dir.join(name)).expect("a fresh folder");
    }
    dir
}

/// Runs `body` as it is where the run asks for a GPU by CUDA (`RINGBELL_TEST_GPU`), else
/// [`under_mock`]: for tests that hold with any driver. Faults are those of the mock alone, and may
/// then only make things harder.
pub fn on_any_driver(test: &str, faults: &str, body: impl FnOnce()) {
    match asked_for_cuda() {
        true => body(),
        false => under_mock(test, faults, body),
    }
}

/// Whether the driver is there already, and is to be used.
pub fn asked_for_cuda() -> bool {
    std::env::var("RINGBELL_TEST_GPU").is_ok_and(|gpu| gpu == "cuda")
}

/// Says why a test does not run on the GPU that was asked for.
fn wants_the_mock() -> bool {
    let skip = asked_for_cuda();
    if skip {
        println!("SKIPPED on CUDA: it plants faults in the mock driver, or looks into it");
    }
    skip
}

/// Runs `body` of the test `test` with the mock as the driver and these faults in it. `body` runs
/// in another process: it shares nothing with what stands around it.
pub fn under_mock(test: &str, faults: &str, body: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return body();
    }
    if wants_the_mock() {
        return;
    }
    again(test, &folder(test, &NAMES, &library()), Some(faults));
}

/// As [`under_mock`], with the driver as programs of users have it: no test double.
pub fn under_emulated_driver(test: &str, body: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return body();
    }
    if wants_the_mock() {
        return;
    }
    again(test, &folder(test, &NAMES, &library()), None);
}

/// As [`under_mock`], with this shared object as the driver.
pub fn under_driver(test: &str, driver: impl FnOnce() -> PathBuf, body: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return body();
    }
    if wants_the_mock() {
        return;
    }
    again(test, &folder(test, &NAMES[..2], &driver()), Some(""));
}

/// As [`under_mock`], with a driver that lacks these functions.
pub fn under_mock_without(test: &str, symbols: &[&str], faults: &str, body: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return body();
    }
    if wants_the_mock() {
        return;
    }
    let copy = folder(&format!("{test}-driver"), &[], &library()).join("driver.so");
    let mut bytes = std::fs::read(library()).expect("the mock");
    for symbol in symbols {
        // Another name in the table of names: a look-up finds an entry of its hash, and that its
        // name differs.
        let name = format!("\0{symbol}\0").into_bytes();
        let found: Vec<usize> = bytes
            .windows(name.len())
            .enumerate()
            .filter_map(|(at, w)| (w == name).then_some(at))
            .collect();
        assert!(!found.is_empty(), "the mock has no {symbol}");
        for at in found {
            bytes[at + 1] = b'X';
        }
    }
    std::fs::write(&copy, bytes).expect("a fresh folder");
    again(test, &folder(test, &NAMES, &copy), Some(faults));
    let _ = std::fs::remove_dir_all(copy.parent().expect("in a folder"));
}

/// As [`under_mock`], for a body at which the mock ends the process; it has to say this before.
pub fn ends_under_mock(test: &str, faults: &str, said: &[&str], body: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return body();
    }
    if wants_the_mock() {
        return;
    }
    let (success, text) = run(test, &folder(test, &NAMES, &library()), Some(faults));
    let all = said.iter().all(|words| text.contains(words));
    assert!(!success && all, "{test} did not end with {said:?}:\n{text}");
}

/// The name of the test `test` in this program, with the module that it is in.
pub fn full_name(test: &str) -> String {
    let exe = std::env::current_exe().expect("a test has a path");
    let list = Command::new(exe)
        .args(["--list", "--format", "terse", "--include-ignored"])
        .output()
        .expect("the test itself starts");
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    let names = list.lines().filter_map(|l| l.strip_suffix(": test"));
    let named = |n: &&str| n.rsplit("::").next() == Some(test);
    let found: Vec<&str> = names.filter(named).collect();
    assert_eq!(
        found.len(),
        1,
        "one test is named {test}, not {found:?}: it is started again by that name"
    );
    found[0].to_owned()
}

fn again(test: &str, dir: &Path, faults: Option<&str>) {
    let (success, text) = run(test, dir, faults);
    assert!(
        success && text.contains("1 passed"),
        "{test} under the mock driver:\n{text}"
    );
}

/// Whether it ended well, and what it said. Without faults the driver is no mock.
fn run(test: &str, dir: &Path, faults: Option<&str>) -> (bool, String) {
    let exe = std::env::current_exe().expect("a test has a path");
    let log = dir.join("output");
    let out = std::fs::File::create(&log).expect("a fresh folder");
    let mut again = Command::new(exe);
    match faults {
        Some(faults) => again.env("RINGBELL_MOCK_CUDA", faults),
        None => again.env_remove("RINGBELL_MOCK_CUDA"),
    };
    let mut child = again
        .arg(full_name(test))
        .args(["--exact", "--nocapture", "--test-threads=1"])
        .env(INSIDE, "1")
        .env("LD_LIBRARY_PATH", dir)
        .stdin(Stdio::null())
        .stdout(out.try_clone().expect("a descriptor"))
        .stderr(out)
        .spawn()
        .expect("the test itself starts");
    let start = Instant::now();
    let status = loop {
        match child.try_wait().expect("a child of ours") {
            Some(status) => break Some(status),
            None if start.elapsed() > PATIENCE => {
                let _ = child.kill();
                let _ = child.wait();
                break None;
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let text = std::fs::read_to_string(&log).unwrap_or_default();
    let _ = std::fs::remove_dir_all(dir);
    let success = status.is_some_and(|s| s.success());
    (success, format!("{text}\n({status:?})"))
}
