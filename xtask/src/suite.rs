//! Tests that run on any available GPU, and the list of those that do not (ADR 25).
//!
//! `RINGBELL_TEST_GPU` names the GPU. `cargo xtask test` runs the suite on the emulated one, with
//! everything else, and once more over the mock driver, through the unmodified CUDA code; `cargo
//! xtask gpu` packs it for a machine with a real one.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{bail, Context, Result};
use fs_err as fs;

use crate::steps::{Outcome, Words as _};
use crate::workspace::{cu_files, entries, root, target};
use crate::{summary, workspace};

/// The example with buffers of `cust`, whose feature is off by default.
pub(crate) const CUST_EXAMPLE: &str = "20_cust_buffers";

/// The test programs of `ringbell-cuda-kernels` and `ringbell`; those of other packages are named
/// `all`.
pub(crate) const KERNELS_PROGRAM: &str = "kernels";
pub(crate) const SDK_PROGRAM: &str = "sdk";

/// The files of tests, in the suite and outside; its head says how they are written.
const FILES: &str = include_str!("../../cuda-kernels/tests/suite.txt");

/// A file of the suite: a module of its package's test program.
pub(crate) struct Program {
    /// The package's test program.
    pub(crate) binary: &'static str,
    pub(crate) module: &'static str,
    /// Whether the step `cuda` runs it over the mock driver.
    pub(crate) over_mock: bool,
}

/// All of them.
pub(crate) fn programs() -> Vec<Program> {
    let lines = FILES.lines().take_while(|l| !l.starts_with("- "));
    let words = lines
        .filter(|l| !l.starts_with('#'))
        .filter_map(|l| l.split_once(' '));
    let program = |(binary, rest): (&'static str, &'static str)| Program {
        binary,
        module: rest.trim_end_matches(" alone"),
        over_mock: !rest.ends_with(" alone"),
    };
    words.map(program).collect()
}

/// The files outside.
fn outside() -> impl Iterator<Item = &'static str> {
    FILES.lines().skip_while(|l| !l.starts_with("- "))
}

/// Kernels of tests, by the names that tests load them by, and where their sources are
/// (`cuda-kernels/tests/common/test_gpu.rs` has the same table).
pub(crate) const KERNELS: [(&str, &str); 5] = [
    ("selftest", "cuda-kernels/tests/kernels/selftest.cu"),
    ("count", "tests/engines_kernel/count.cu"),
    ("puts", "tests/one_sided/puts.cu"),
    ("tell", "tests/mailbox/tell.cu"),
    ("blocks", "tests/communicators/blocks.cu"),
];

/// Tests of the suite that skip themselves in the step `cuda`. A new one changes this number, and
/// its test says why; a test that comes to run on every GPU reduces it.
const SKIPPED: usize = 3;

/// Longest time that one example may take, cargo's compilation not counted. One that compiles CUDA
/// itself takes two minutes with all checks, beside other steps on two cores.
pub(crate) const EXAMPLE_LIMIT: Duration = Duration::from_secs(300);

/// Names of the examples that are programs of cargo.
pub(crate) fn example_programs() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for path in entries(&root().join("examples"))? {
        let is_program =
            path.extension().is_some_and(|e| e == "rs") || path.join("main.rs").exists();
        match path.file_stem().and_then(|n| n.to_str()) {
            // It links libcuda: the step `cuda` builds it.
            Some(CUST_EXAMPLE) => {}
            Some(name) if is_program => names.push(name.to_string()),
            _ => {}
        }
    }
    Ok(names)
}

/// Makes a folder with these links.
fn links(name: &str, links: &[(&str, PathBuf)]) -> Result<PathBuf> {
    let folder = target().join(name);
    fs::create_dir_all(&folder)?;
    for (name, to) in links {
        let _ = std::fs::remove_file(folder.join(name));
        fs_err::os::unix::fs::symlink(to, folder.join(name))?;
    }
    Ok(folder)
}

/// A folder in which the loader finds the mock driver, and the mock NCCL, under their real names.
fn mock_driver() -> Result<PathBuf> {
    // Beside the tests, where cargo updates it.
    let built = |name: &str| Path::new("../debug/deps").join(format!("libringbell_{name}.so"));
    let cuda = ["libcuda.so", "libcuda.so.1", "libnvrtc.so"].map(|name| (name, built("libcuda")));
    // The bundle measures it beside our all-reduce.
    let nccl = [("libnccl.so.2", built("mock_libnccl"))];
    links("mock-cuda", &[&cuda[..], &nccl].concat())
}

/// Variables with which a program finds the mock driver, and the tests use it.
pub(crate) fn use_mock(command: &mut Command) -> Result<()> {
    let mut paths = vec![mock_driver()?];
    let before = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    paths.extend(std::env::split_paths(&before));
    let paths = std::env::join_paths(paths).context("a colon in the checkout's path")?;
    command
        .env("LD_LIBRARY_PATH", paths)
        .env("RINGBELL_TEST_GPU", "cuda")
        .env("RINGBELL_GPU", "cuda")
        .env("RINGBELL_MOCK_CUDA", "")
        .env_remove("RINGBELL_MOCK_NCCL");
    Ok(())
}

/// The suite by CUDA, over the mock driver.
pub(crate) fn over_mock() -> Result<Outcome> {
    println!("no part of the suite:");
    outside().for_each(|line| println!("{line}"));
    let mut programs = programs();
    programs.retain(|p| p.over_mock);
    if workspace::has_nextest() {
        let of = |p: &Program| {
            let package = match p.binary {
                SDK_PROGRAM => "ringbell",
                _ => "ringbell-cuda-kernels",
            };
            format!(
                "(binary_id({package}::{}) & test(/^{}::/))",
                p.binary, p.module
            )
        };
        let filter: Vec<String> = programs.iter().map(of).collect();
        // Ten thousand communicators in turn are no matter of the GPU.
        let filter = format!("({}) & !test(ten_thousand)", filter.join(" | "));
        let mut tests = workspace::nextest();
        use_mock(tests.args(["-E", &filter]))?;
        let skipped = summary::counted(&mut tests)?;
        if skipped != SKIPPED {
            bail!("{skipped} tests of the suite skip themselves on CUDA, not {SKIPPED}: see xtask/src/suite.rs");
        }
    } else {
        // Names that contain one of these are of the suite too, or skip themselves.
        let mut command = workspace::cargo();
        command.words("test --workspace --no-fail-fast --test kernels --test sdk --");
        command.args(programs.iter().map(|p| format!("{}::", p.module)));
        use_mock(&mut command)?;
        crate::steps::command(&mut command)?;
    }
    by_nvcc()?;
    cust_example()?;
    Ok(Outcome::Passed)
}

/// The suite of the kernels' package once more with the PTX that nvcc makes of their sources, where
/// nvcc is at hand.
fn by_nvcc() -> Result<()> {
    let Some(nvcc) = crate::venv::nvcc_at_hand() else {
        println!("SKIPPED: the suite with nvcc's PTX: there is no nvcc (`cargo xtask kernels` installs one)");
        return Ok(());
    };
    let folder = target().join("nvcc-ptx");
    let _ = std::fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder)?;
    for source in cu_files(&root().join("cuda-kernels/kernels"))? {
        let name = source.file_stem().unwrap_or_default();
        let mut compile = Command::new(&nvcc);
        compile.words("--ptx -std=c++17 -arch=compute_90 -I");
        compile
            .arg(root().join("cuda-kernels/include"))
            .arg(&source);
        compile
            .arg("-o")
            .arg(folder.join(name).with_extension("ptx"));
        crate::steps::command(&mut compile)?;
    }
    let mut command = workspace::cargo();
    command.words("test --workspace --test kernels --");
    let of = |p: &Program| p.over_mock && p.binary == KERNELS_PROGRAM;
    let programs = programs().into_iter().filter(of);
    command.args(programs.map(|p| format!("{}::", p.module)));
    use_mock(&mut command)?;
    command.env("RINGBELL_MOCK_CUDA", format!("ptx={}", folder.display()));
    crate::steps::command(&mut command)
}

/// The example with buffers of `cust`, linked with the mock driver: `cust` looks for libcuda in a
/// folder `lib64`.
fn cust_example() -> Result<()> {
    let cuda = links("cust-cuda", &[("lib64", mock_driver()?)])?;
    let mut build = workspace::cargo();
    build.words("build --workspace --features ringbell/cust --example");
    crate::steps::command(build.arg(CUST_EXAMPLE).env("CUDA_LIBRARY_PATH", &cuda))?;
    let mut example = Command::new(workspace::built().join("examples").join(CUST_EXAMPLE));
    use_mock(&mut example)?;
    crate::steps::command_within(&mut example, EXAMPLE_LIMIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_test_file_is_in_the_suite_or_listed_with_a_reason() {
        let mut known = Vec::new();
        for line in FILES.lines().filter(|l| !l.starts_with(['#', '-'])) {
            let mut words = line.split(' ').filter(|w| *w != "alone");
            let tests = match words.next() {
                Some(SDK_PROGRAM) => "tests",
                _ => "cuda-kernels/tests",
            };
            known.extend(words.map(|w| root().join(tests).join(w).with_extension("rs")));
        }
        let mut there = Vec::new();
        for folder in ["tests", "cuda-kernels/tests"] {
            there.extend(entries(&root().join(folder)).expect("a folder"));
        }
        there.retain(|p| p.extension().is_some_and(|e| e == "rs") && !p.ends_with("main.rs"));
        known.sort();
        there.sort();
        // Each once: a file that is missing here goes into cuda-kernels/tests/suite.txt.
        assert_eq!(known, there);
    }

    #[test]
    fn the_tests_load_the_kernels_that_are_built_for_them() {
        let fixture = root().join("cuda-kernels/tests/common/test_gpu.rs");
        let text = std::fs::read_to_string(fixture).expect("the fixture");
        for (name, source) in KERNELS {
            assert!(
                text.contains(&format!("(\"{name}\", \"{source}\")")),
                "{name}"
            );
            assert!(root().join(source).is_file(), "{source}");
        }
        let others = text.matches("// For the emulated GPU alone.").count();
        let all = KERNELS.len() + others;
        let count = format!("const SOURCES: [(&str, &str); {all}]");
        assert!(text.contains(&count), "one of both has more");
    }
}
