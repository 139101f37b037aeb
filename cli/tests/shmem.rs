//! Programs of NVSHMEM and of NCCL's device API, compiled by `ringbell cc` with our headers, as ranks of a job on the emulated GPU.
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

/// Runs a program over both transports; every rank says this.
fn over_both(name: &str, says: &str) {
    let Some(program) = compiled(name) else {
        return;
    };
    for (count, transport) in [(3, "local"), (2, "rdma")] {
        let id = program.with_extension(transport);
        let said = succeed(ranks(count, transport, &program).env("GIN_ID", id));
        let right = said.matches(says).count();
        assert_eq!(right, count as usize, "{transport}: {said}");
    }
}

#[test]
fn random_operations_of_every_pe_agree_with_a_model() {
    over_both("model", ": as the model");
}

#[test]
fn collectives_waits_and_calls_of_the_host_give_what_they_should() {
    over_both("collectives", ": all as they should be");
}

#[test]
fn kernels_put_signal_and_meet_by_gin() {
    over_both("gin", ": all as they should be");
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
const REFUSED: [(&str, &str); 16] = [
    ("nvshmem_int_atomic_add(i, 1, 0)", "atomics have 64 bits"),
    (
        "nvshmem_uint32_atomic_fetch_xor(i, 1, 0)",
        "nvshmem_uint64_atomic_fetch_xor",
    ),
    (
        "nvshmem_float_atomic_swap(i, 1, 0)",
        "nvshmem_uint64_atomic_swap",
    ),
    (
        "nvshmem_uint64_wait_until_all(i, 2, i, 0, 1)",
        "nvshmem_uint64_wait_until",
    ),
    (
        "nvshmem_int_wait_until_any(i, 2, i, 0, 1)",
        "nvshmem_int_test",
    ),
    (
        "nvshmem_long_wait_until_some(i, 2, i, i, 0, 1)",
        "nvshmem_long_test",
    ),
    (
        "nvshmem_int_test_any_vector(i, 2, i, 0, i)",
        "nvshmem_int_test",
    ),
    (
        "nvshmem_short_wait_until(i, 0, 1)",
        "a word of 32 or 64 bits",
    ),
    (
        "nvshmem_float_iput(i, i, 1, 2, 3, 0)",
        "nvshmem_float_put_nbi",
    ),
    ("nvshmem_iget64(i, i, 1, 2, 3, 0)", "nvshmem_get64_nbi"),
    (
        "nvshmemx_double_iput_block(i, i, 1, 2, 3, 0)",
        "nvshmemx_double_put_nbi_block",
    ),
    (
        "nvshmem_uint_xor_reduce(0, i, i, 1)",
        "nvshmem_uint_fcollect",
    ),
    (
        "nvshmem_short_sum_reduce(0, i, i, 1)",
        "nvshmem_int_sum_reduce",
    ),
    (
        "nvshmem_team_split_strided(0, 0, 1, 2, i, 0, i)",
        "NVSHMEM_TEAM_WORLD",
    ),
    ("nvshmemx_mc_ptr(0, i)", "nvshmem_broadcastmem"),
    ("nvshmemx_cumodule_init(i)", "by ringbell cc"),
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
fn counters_of_gin_are_refused_when_they_are_compiled() {
    if !has("clang-19") {
        return;
    }
    let head =
        "#include <nccl_device.h>\n__global__ void k(ncclGin gin, ncclTeam t, ncclWindow_t w)";
    let calls = [
        "gin.put(t, 1, w, 0, w, 0, 8, ncclGin_None{}, ncclGin_CounterInc{0})",
        "gin.readCounter(0u)",
        "gin.waitCounter(ncclCoopCta(), 0u, 1)",
        "gin.putValue(t, 1, w, 0, make_int4(1, 2, 3, 4))",
    ];
    let said = refusals("gin-refused", head, &mut calls.into_iter());
    for says in [
        "ncclGin_CounterInc is not there yet (docs/gin.md): flush",
        "counters of ncclGin are not there yet (docs/gin.md): flush",
        "ncclGin::putValue takes at most 8 bytes; use put",
    ] {
        assert!(said.contains(says), "{says}: {said}");
    }
}
