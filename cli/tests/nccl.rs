//! Tests of NCCL measured beside our all-reduce: the whole way, with a mock driver in place of
//! libcuda and a mock NCCL in place of `libnccl.so.2`. The mock really sums, and has faults that a
//! test sets.
#![cfg(feature = "cuda")]
#![allow(clippy::disallowed_methods)] // Tests at the edge.

use crate::common;

use std::io::Write as _;
use std::os::unix::fs::{symlink, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::{run, text};
use serde_json::Value;

/// A folder with the libraries of a machine with GPU and NCCL, and the command that finds them
/// there.
struct Machine {
    folder: PathBuf,
}

impl Machine {
    fn new(test: &str) -> Machine {
        let name = format!("nccl-{test}-{}", std::process::id());
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = std::fs::remove_dir_all(&folder);
        for sub in ["lib", "bin"] {
            std::fs::create_dir_all(folder.join(sub)).expect("the target folder can be written");
        }
        let m = Machine { folder };
        for name in ["libcuda.so", "libcuda.so.1", "libnvrtc.so"] {
            m.link("libringbell_libcuda.so", &format!("lib/{name}"));
        }
        m
    }

    fn with_nccl(test: &str) -> Machine {
        let m = Machine::new(test);
        m.link("libringbell_mock_libnccl.so", "lib/libnccl.so.2");
        m
    }

    /// A link to a library that cargo has put beside this test.
    fn link(&self, library: &str, name: &str) {
        let test = std::env::current_exe().expect("a test has a path");
        let beside = test.with_file_name(library);
        assert!(beside.is_file(), "{} was not built", beside.display());
        symlink(beside, self.folder.join(name)).expect("a fresh folder");
    }

    fn script(&self, name: &str, body: &str) {
        let file = self.folder.join("bin").join(name);
        std::fs::write(&file, format!("#!/bin/sh\n{body}\n")).expect("a fresh folder");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755))
            .expect("our own file");
    }

    /// `ringbell --gpu cuda perf ...` on this machine, on which NCCL has these faults.
    fn perf(&self, faults: &str, args: &str) -> Command {
        // By `env`: the loader's path is this program's alone, and not its parent's.
        let mut c = Command::new("env");
        let path = std::env::var("PATH").unwrap_or_default();
        c.arg(format!("LD_LIBRARY_PATH={}/lib", self.folder.display()))
            .arg(env!("CARGO_BIN_EXE_ringbell"))
            .args(["--gpu", "cuda", "perf"])
            .args(args.split_whitespace())
            .env("PATH", format!("{}/bin:{path}", self.folder.display()))
            .env("RINGBELL_MOCK_CUDA", "")
            .env("RINGBELL_MOCK_NCCL", faults)
            .env("TMPDIR", &self.folder)
            .env_remove("RINGBELL_RANK")
            .env_remove("RINGBELL_NCCL");
        c
    }

    /// Runs it, with a report.
    fn report(&self, faults: &str, args: &str) -> (Output, Value) {
        let json = self.folder.join("report.json");
        let _ = std::fs::remove_file(&json);
        let out = run(self.perf(faults, args).arg("--json").arg(&json));
        let report = std::fs::read_to_string(&json).unwrap_or_default();
        (out, serde_json::from_str(&report).unwrap_or(Value::Null))
    }

    /// Whether no file of the command is left.
    fn is_clean(&self) -> bool {
        let left = std::fs::read_dir(&self.folder).expect("our folder");
        let names = left
            .flatten()
            .map(|e| e.file_name().to_string_lossy().into_owned());
        names.filter(|n| n.starts_with("ringbell-")).count() == 0
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Small, odd and few.
const QUICK: &str = "-b 4 -e 40004 -i 20000 -n 2 -w 1";

fn beside(more: &str) -> String {
    format!("all-reduce --beside nccl --no-limits {QUICK} {more}")
}

fn rows(peer: &Value) -> usize {
    peer["rows"].as_array().map_or(0, Vec::len)
}

/// NCCL's part of a report.
fn peer(report: &Value) -> &Value {
    &report["meta"]["peers"][0]
}

#[test]
fn both_sides_are_measured_and_verified() {
    let m = Machine::with_nccl("threads");
    let (out, report) = m.report("", &beside("-R 3"));
    let said = text(&out);
    assert_eq!(out.status.code(), Some(0), "{said}");
    let meta = &report["meta"];
    assert!(meta["gpu"].as_str().is_some_and(|g| g.contains("Mock GPU")));
    assert_eq!(report["rows"].as_array().map(Vec::len), Some(6), "{said}");
    assert_eq!(meta["peers"].as_array().map(Vec::len), Some(1), "{said}");
    let peer = peer(&report);
    assert_eq!(peer["version"], "2.30.3");
    assert_eq!(peer["settings"]["NCCL_P2P_DISABLE"], "1");
    assert_eq!(peer["settings"]["NCCL_MULTI_RANK_GPU_ENABLE"], "1");
    assert_eq!(peer["why"], Value::Null, "{said}");
    assert_eq!(rows(peer), 6, "{said}");
    for row in peer["rows"].as_array().expect("rows") {
        assert_eq!(row["wrong"], 0, "{said}");
    }
    for word in ["NCCL", "40004 ", "time ratio = ringbell / best peer"] {
        assert!(said.contains(word), "{word}: {said}");
    }
    let (out, report) = m.report("", &beside("-d i32 -o max"));
    let said = text(&out);
    assert_eq!(out.status.code(), Some(0), "{said}");
    assert_eq!(rows(self::peer(&report)), 6, "{said}");
    assert!(m.is_clean());
}

#[test]
fn a_nccl_that_allows_one_rank_on_a_gpu_is_refused_by_its_version() {
    let m = Machine::with_nccl("older");
    let (out, report) = m.report("version=22809", &beside(""));
    let said = text(&out);
    assert_eq!(out.status.code(), Some(4), "{said}");
    assert!(said.contains("NCCL 2.28.9 allows one rank"), "{said}");
    assert_eq!(report, Value::Null, "nothing was measured");
}

/// The mock is as strict as NCCL: without our environment, the same ranks are refused.
#[test]
fn without_permission_two_ranks_on_a_gpu_are_refused() {
    let m = Machine::with_nccl("refused");
    let order = r#"{"library": "libnccl.so.2", "device": 0, "ranks": 2, "dtype": "f32", "op": "sum", "steps": [], "check": true, "timeout_s": 20}"#;
    for (version, why) in [
        ("version=22809", "Duplicate GPU detected"),
        ("version=23007", "Set NCCL_MULTI_RANK_GPU_ENABLE=1"),
    ] {
        let mut worker = m
            .perf(version, "nccl-worker")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut stdin = worker.stdin.take().expect("a pipe");
        writeln!(stdin, "{order}").expect("it listens");
        let out = worker.wait_with_output().expect("it ends");
        let said = text(&out);
        assert_eq!(out.status.code(), Some(1), "{said}");
        assert!(said.contains(why), "{said}");
        assert!(said.contains("invalid usage (5)"), "{said}");
    }
}

#[test]
fn a_missing_nccl_is_an_error_with_the_searched_places_or_a_remark() {
    let m = Machine::new("missing");
    m.script("python3", &format!("echo {}/nothing", m.folder.display()));
    let (out, report) = m.report("", &beside(""));
    let said = text(&out);
    assert_eq!(out.status.code(), Some(4), "{said}");
    assert_eq!(report, Value::Null, "nothing was measured");
    for word in [
        "libnccl.so.2 of the dynamic loader",
        "packages of python3",
        "pip install nvidia-nccl-cu13",
        "RINGBELL_NCCL",
    ] {
        assert!(said.contains(word), "{word}: {said}");
    }
    let asked = beside("").replace("nccl", "nccl-if-found");
    let (out, report) = m.report("", &asked);
    let said = text(&out);
    assert_eq!(out.status.code(), Some(0), "{said}");
    assert_eq!(report["rows"].as_array().map(Vec::len), Some(6), "{said}");
    let why = peer(&report)["why"].as_str().unwrap_or("");
    assert!(why.contains("no usable NCCL was found"), "{why}");
}

#[test]
fn nccl_is_found_where_it_is_named_and_in_pythons_packages() {
    let m = Machine::new("found");
    let nccl = beside("");
    // A wheel of PyPI.
    let packages = m.folder.join("site-packages");
    std::fs::create_dir_all(packages.join("nvidia/nccl/lib")).expect("a fresh folder");
    m.link(
        "libringbell_mock_libnccl.so",
        "site-packages/nvidia/nccl/lib/libnccl.so.2",
    );
    m.script("python3", &format!("echo {}", packages.display()));
    let (out, report) = m.report("", &nccl);
    let said = text(&out);
    assert_eq!(out.status.code(), Some(0), "{said}");
    let library = peer(&report)["library"].as_str().unwrap_or("");
    assert!(Path::new(library).starts_with(&packages), "{library}");
    // A named library is the only candidate.
    m.link("libringbell_libcuda.so", "lib/other.so");
    let out = run(m
        .perf("", &nccl)
        .env("RINGBELL_NCCL", m.folder.join("lib/other.so")));
    let said = text(&out);
    assert_eq!(out.status.code(), Some(4), "{said}");
    assert!(said.contains("no function ncclGetVersion"), "{said}");
    let folder = packages.join("nvidia/nccl/lib");
    let out = run(m.perf("", &nccl).arg("--nccl").arg(folder));
    assert_eq!(out.status.code(), Some(0), "{}", text(&out));
}

/// Longest operation where one hangs: long enough for communicators to come up on a busy machine.
const PATIENCE: &str = "--timeout 4";

/// Checks the rows that are left, and the output. A rank that is ended may have owed the row
/// before.
fn assert_rows(m: &Machine, faults: &str, more: &str, most: usize, why: &str) {
    let (out, report) = m.report(faults, &beside(more));
    let said = text(&out);
    assert_eq!(out.status.code(), Some(1), "{faults} {more}: {said}");
    assert_eq!(report["rows"].as_array().map(Vec::len), Some(6), "{said}");
    let rows = rows(peer(&report));
    assert!(
        (most.saturating_sub(1)..=most).contains(&rows),
        "{faults} {more}: {rows} rows: {said}"
    );
    // One of these: any rank may report first.
    assert!(
        why.split('|').any(|why| said.contains(why)),
        "{faults} {more}: {said}"
    );
}

#[test]
fn when_nccl_fails_rows_stay_and_the_reason_is_reported() {
    let m = Machine::with_nccl("fails");
    for (faults, most, why) in [
        ("init-error=2", 0, "unhandled system error (2)"),
        ("op-error=3:20000", 2, "internal error"),
        ("async-error=6:40000", 4, "remote process exited"),
        (
            "die=40000",
            4,
            "was ended by signal 6|remote process exited",
        ),
    ] {
        assert_rows(&m, faults, "", most, why);
    }
    assert!(m.is_clean());
}

#[test]
fn a_nccl_that_hangs_is_ended() {
    let m = Machine::with_nccl("hangs");
    assert_rows(&m, "init-hang", PATIENCE, 0, "rank(s) 0, 1 are missing");
    let late = "an all-reduce has not ended after 4 s";
    assert_rows(&m, "op-hang=40000", PATIENCE, 4, late);
    // And one that does not come to its own deadline.
    let all = "--timeout 60 --limit 4";
    assert_rows(
        &m,
        "op-hang=20000",
        all,
        2,
        "ended after 4 s: 20004 bytes, out of place",
    );
    assert!(m.is_clean());
}

/// As the runner of the bundle does when a step takes too long.
#[test]
fn a_killed_command_has_written_the_rows_so_far() {
    let m = Machine::with_nccl("ended");
    let json = m.folder.join("report.json");
    let args = beside("--timeout 60 --limit 100");
    let mut command = m.perf("op-hang=40000", &args);
    command.arg("--json").arg(&json).stdout(Stdio::null());
    let mut child = command.spawn().expect("it starts");
    let deadline = Instant::now() + Duration::from_secs(60);
    while !json.exists() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill().expect("our own child");
    child.wait().expect("it has ended");
    let text = std::fs::read_to_string(&json).expect("our side was written");
    let report: Value = serde_json::from_str(&text).expect("whole");
    assert_eq!(report["rows"].as_array().map(Vec::len), Some(6));
    assert_eq!(report["meta"]["peers"], Value::Null);
}

#[test]
fn sizes_stay_when_only_the_end_hangs() {
    let m = Machine::with_nccl("end-hangs");
    let (out, report) = m.report("destroy-hang", &beside(""));
    let said = text(&out);
    assert_eq!(out.status.code(), Some(0), "{said}");
    assert_eq!(rows(peer(&report)), 6, "{said}");
    assert!(said.contains("communicator is not destroyed"), "{said}");
}

#[test]
fn wrong_sums_are_detected() {
    let m = Machine::with_nccl("wrong");
    let (out, report) = m.report("wrong=40000", &beside("-R 3"));
    let said = text(&out);
    assert_eq!(out.status.code(), Some(3), "{said}");
    let rows = peer(&report)["rows"].as_array().expect("rows");
    let wrong: Vec<u64> = rows.iter().filter_map(|r| r["wrong"].as_u64()).collect();
    // One element of the last rank, seen after the first and after the last run out of place.
    assert_eq!(wrong, [0, 0, 0, 0, 2, 1], "{said}");
}

#[test]
fn impossible_comparisons_are_refused_before_the_run() {
    let m = Machine::with_nccl("usage");
    for (args, exit, why) in [
        (
            "all-gather --beside nccl",
            2,
            "measures all-reduce, not all-gather",
        ),
        (
            "all-reduce --beside nccl --streams",
            2,
            "ask for what NCCL has not",
        ),
        (
            "all-reduce --beside nccl --procs",
            2,
            "ranks that are threads",
        ),
        ("all-reduce --beside mpi", 2, "nccl-if-found"),
    ] {
        let out = run(&mut m.perf("", args));
        let said = text(&out);
        assert_eq!(out.status.code(), Some(exit), "{args}: {said}");
        assert!(said.contains(why), "{args}: {said}");
    }
    let mut emulated = Command::new(env!("CARGO_BIN_EXE_ringbell"));
    emulated.args(["--gpu", "emulated", "perf", "all-reduce"]);
    emulated.args(["--beside", "nccl"]);
    let out = run(&mut emulated);
    let said = text(&out);
    assert_eq!(out.status.code(), Some(4), "{said}");
    assert!(said.contains("NCCL needs a real GPU"), "{said}");
}
