//! Programs of NVSHMEM and of NCCL's device API, compiled by `ringbell cc` with our headers, as
//! ranks of a job on the emulated GPU.
#![allow(clippy::disallowed_methods)] // Starts compilers and programs.

use crate::common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{beside, built, folder, has, run, succeed, text};

/// `ringbell cc` with the libraries of this test's build.
fn cc(source: &Path, program: &Path) -> Command {
    let mut cc = Command::new(env!("CARGO_BIN_EXE_ringbell"));
    cc.args(["cc", "--emulate-only", "--runtime"])
        .arg(beside("libringbell_cudart.a"))
        .arg("--library")
        .arg(built().join("libringbell.so"))
        .arg(source)
        .arg("-o")
        .arg(program);
    cc
}

/// A program of this folder, compiled; none where there is no compiler.
fn compiled(name: &str) -> Option<PathBuf> {
    if !has("clang-19") || !has("g++") {
        return None;
    }
    let dir = folder(&format!("shmem-{name}"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/shmem");
    let program = dir.join(name);
    succeed(&mut cc(&source.join(name).with_extension("cu"), &program));
    Some(program)
}

/// Starts ranks of a program.
fn ranks(count: u32, transport: &str, program: &Path) -> Command {
    let mut run = Command::new(env!("CARGO_BIN_EXE_ringbell"));
    run.args(["run", "--deadline", "90", "-R", &count.to_string()])
        .args(["--transport", transport, "--"])
        .arg(program);
    run
}

/// Runs a program over each transport that has one-sided operations; every rank says this.
fn over_each(name: &str, says: &str) {
    let Some(program) = compiled(name) else {
        return;
    };
    for (count, transport) in [(3, "local"), (2, "rdma"), (2, "iwarp")] {
        let id = program.with_extension(transport);
        let said = succeed(ranks(count, transport, &program).env("GIN_ID", id));
        let right = said.matches(says).count();
        assert_eq!(right, count as usize, "{transport}: {said}");
    }
}

#[test]
fn random_operations_of_every_pe_agree_with_a_model() {
    over_each("model", ": as the model");
}

#[test]
fn collectives_waits_and_calls_of_the_host_give_what_they_should() {
    over_each("collectives", ": all as they should be");
}

#[test]
fn waits_for_several_words_find_each_of_them() {
    over_each("waits", ": all as they should be");
}

#[test]
fn teams_have_numbers_and_collectives_of_their_own() {
    over_each("teams", ": all as they should be");
}

#[test]
fn kernels_put_signal_and_meet_by_gin() {
    over_each("gin", ": all as they should be");
}

#[test]
fn a_program_without_a_launcher_is_one_pe() {
    let Some(program) = compiled("alone") else {
        return;
    };
    assert_eq!(succeed(&mut Command::new(&program)).trim(), "PE 0 of 1: 41");
}

#[test]
fn an_operation_that_fails_ends_the_kernel_and_says_which() {
    let Some(program) = compiled("failing") else {
        return;
    };
    for (what, says) in [
        ("pe", "nvshmem_put, rank 7: status"),
        ("heap", "nvshmem_put, rank 1: status 8"),
        ("source", "nvshmem_put, rank 1: status 7"),
        (
            "wait",
            "nvshmem_signal_wait_until, rank 0: status 1, detail 0x0",
        ),
        ("any", "nvshmem_wait_until_any, rank 0: status 1"),
        ("inc", "nvshmem_atomic_inc, rank 1: status"),
        ("team", "nvshmem_team_sync, rank -1: status"),
    ] {
        let mut ranks = ranks(2, "local", &program);
        let out = run(ranks.arg(what).env("RINGBELL_SHMEM_TIMEOUT_MS", "2000"));
        let said = text(&out);
        assert!(!out.status.success(), "{what}: {said}");
        let line = format!("ringbell: rank 0, block (0,0,0), thread (0,0,0): {says}");
        assert!(said.contains(&line), "{what}: {said}");
    }
}

/// Calls that are not there, and what the compiler says of each.
const REFUSED: [(&str, &str); 4] = [
    (
        "nvshmemx_team_init(i, 0, 0, 2, 0)",
        "nvshmem_team_split_strided",
    ),
    ("nvshmemx_mc_ptr(0, i)", "nvshmem_broadcastmem"),
    ("nvshmemx_cumodule_init(i)", "by ringbell cc"),
    ("nvshmem_global_exit(1)", "the launcher ends"),
];

/// Compiles a kernel of these calls; what the compiler says.
fn refusals(name: &str, head: &str, calls: &mut dyn Iterator<Item = &str>) -> String {
    let dir = folder(name);
    let source = dir.join("refused.cu");
    let calls: String = calls.map(|call| format!("  {call};\n")).collect();
    let program = format!("{head} {{\n{calls}}}\nint main() {{}}\n");
    std::fs::write(&source, program).expect("a fresh folder");
    let out = run(cc(&source, &dir.join("refused")).args(["--", "-ferror-limit=0"]));
    assert!(!out.status.success(), "{}", text(&out));
    text(&out)
}

#[test]
fn what_is_not_there_is_refused_by_name_when_it_is_compiled() {
    if !has("clang-19") {
        return;
    }
    let head = "#include <nvshmem.h>\n#include <nvshmemx.h>\n__global__ void k(int *i)";
    let mut calls = REFUSED.iter().map(|(call, _)| *call);
    let said = refusals("shmem-refused", head, &mut calls);
    for (call, instead) in REFUSED {
        let name = call.split('(').next().expect("a name");
        let line = said
            .lines()
            .find(|l| l.contains(&format!("{name} is not there yet (docs/nvshmem.md): ")));
        assert!(line.is_some_and(|l| l.contains(instead)), "{call}: {said}");
    }
}

#[test]
fn values_of_gin_that_are_too_long_are_refused_when_they_are_compiled() {
    if !has("clang-19") {
        return;
    }
    let head =
        "#include <nccl_device.h>\n__global__ void k(ncclGin gin, ncclTeam t, ncclWindow_t w)";
    let call = "gin.putValue(t, 1, w, 0, make_int4(1, 2, 3, 4))";
    let said = refusals("gin-refused", head, &mut [call].into_iter());
    let says = "ncclGin::putValue takes at most 8 bytes; use put";
    assert!(said.contains(says), "{says}: {said}");
}
