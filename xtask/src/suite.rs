//! Tests that run on any available GPU, and the list of those that do not (ADR 25).
//!
//! `RINGBELL_TEST_GPU` names the GPU. `cargo xtask test` runs the suite on the emulated one, with everything else, and once
//! more over the mock driver, through the unmodified CUDA code; `cargo xtask gpu` packs it for a machine with a real one.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{bail, Context, Result};

use crate::steps::Outcome;
use crate::{root, target, test};

/// The example with buffers of `cust`, whose feature is off by default.
pub(crate) const CUST_EXAMPLE: &str = "20_cust_buffers";

/// A test program of the suite.
pub(crate) struct Program {
    pub(crate) package: &'static str,
    /// Its file, which is a module of the package's test program.
    pub(crate) module: &'static str,
    /// Its name in the bundle.
    pub(crate) name: &'static str,
    /// Whether the step `cuda` runs it over the mock driver. The others bring the mock themselves, or would measure it.
    pub(crate) over_mock: bool,
}

const GPU_SIDE: &str = "ringbell-cuda-kernels";
const ROOT: &str = "ringbell";
/// The test programs of the two packages; those of others are named `all`.
pub(crate) const KERNELS_PROGRAM: &str = "kernels";
pub(crate) const SDK_PROGRAM: &str = "sdk";

const fn program(package: &'static str, module: &'static str, over_mock: bool) -> Program {
    Program {
        package,
        module,
        name: module,
        over_mock,
    }
}

/// All of them, the path with the fewest layers first: an early failure explains later ones.
pub(crate) const PROGRAMS: [Program; 21] = [
    program(GPU_SIDE, "first_path", true),
    Program {
        package: GPU_SIDE,
        module: "cuda",
        name: "cuda_kernels",
        over_mock: false,
    },
    program(GPU_SIDE, "cuda_ipc", false),
    program(GPU_SIDE, "emulator", true),
    program(GPU_SIDE, "device_api", true),
    program(GPU_SIDE, "graphs", true),
    program(GPU_SIDE, "slots", true),
    program(GPU_SIDE, "sockets", true),
    program(GPU_SIDE, "streams", true),
    program(GPU_SIDE, "collectives", true),
    program(GPU_SIDE, "perf_kernels", true),
    program(GPU_SIDE, "reduce", true),
    program(GPU_SIDE, "hll", true),
    program(ROOT, "cuda", false),
    program(ROOT, "transports", true),
    Program {
        package: ROOT,
        module: "sockets",
        // Another package has a file of that name.
        name: "sdk_sockets",
        over_mock: true,
    },
    program(ROOT, "engines_kernel", true),
    program(ROOT, "mailbox", true),
    program(ROOT, "communicator_memory", true),
    program(ROOT, "communicator_queues", true),
    program(ROOT, "communicator", true),
];

/// Kernels of tests, by the names that tests load them by, and where their sources are
/// (`cuda-kernels/tests/common/test_gpu.rs` has the same table).
pub(crate) const KERNELS: [(&str, &str); 5] = [
    ("selftest", "cuda-kernels/tests/kernels/selftest.cu"),
    ("count", "tests/engines_kernel/count.cu"),
    ("puts", "tests/one_sided/puts.cu"),
    ("tell", "tests/mailbox/tell.cu"),
    ("blocks", "tests/communicators/blocks.cu"),
];

/// Test files of the two packages that are no part of the suite, with the reason. Tests of the command (`cli/`) and of the
/// C library (`bindings/c/`) are outside as a whole: they start programs and compilers.
const OUTSIDE: &[(&str, &str)] = &[
    (
        "tests/stream_sockets.rs",
        "brings the mock driver, with stream memory operations and without",
    ),
    (
        "cuda-kernels/tests/cuda_strict.rs",
        "asks the mock driver what it refuses",
    ),
    (
        "cuda-kernels/tests/cuda_errors.rs",
        "plants faults in the mock driver, and takes functions from it",
    ),
    (
        "tests/cuda_local.rs",
        "brings the mock driver, for processes beside one GPU",
    ),
    (
        "cuda-kernels/tests/bus_traffic.rs",
        "counts accesses by code that it puts into PTX",
    ),
    (
        "cuda-kernels/tests/dmabuf.rs",
        "brings the mock driver, whose dma-bufs the CPU can map",
    ),
    (
        "cuda-kernels/tests/cuda_functions.rs",
        "PTX of clang's with our headers; a real GPU's users have NVIDIA's",
    ),
    (
        "cuda-kernels/tests/cuda_threads.rs",
        "PTX of clang's with our headers; a real GPU's users have NVIDIA's",
    ),
    (
        "cuda-kernels/tests/cccl.rs",
        "CCCL with our headers; a real GPU's users have NVIDIA's",
    ),
    (
        "cuda-kernels/tests/cuda_patterns.rs",
        "PTX of clang's with our headers; a real GPU's users have NVIDIA's",
    ),
    (
        "cuda-kernels/tests/cuda_single.rs",
        "PTX of clang's with our headers; a real GPU's users have NVIDIA's",
    ),
    (
        "cuda-kernels/tests/cuda_math.rs",
        "mathematics of our headers; a real GPU's users have NVIDIA's",
    ),
    (
        "cuda-kernels/tests/debuggers.rs",
        "gdb and perf on the emulated GPU; a real one's kernels are for NVIDIA's tools",
    ),
    ("cuda-kernels/tests/ptx_files.rs", "helps tests of PTX"),
    (
        "cuda-kernels/tests/misuse.rs",
        "kernels with planted faults, for the checks of the emulated GPU",
    ),
    (
        "cuda-kernels/tests/ptx.rs",
        "PTX on the emulated GPU; a real one's driver compiles it by itself",
    ),
    ("cuda-kernels/tests/gdrcopy.rs", "brings a mock of GDRCopy"),
    (
        "cuda-kernels/tests/memory.rs",
        "the emulated GPU's own memory; the real one's is in `cuda`",
    ),
    (
        "cuda-kernels/tests/queue_races.rs",
        "checks are the emulated GPU's",
    ),
    (
        "tests/card.rs",
        "brings the mock driver, which takes or refuses I/O memory",
    ),
    (
        "tests/cuda_faults.rs",
        "stops and kills processes that use the mock driver",
    ),
    (
        "tests/progress.rs",
        "callers that post and stop, as threads and as processes",
    ),
    (
        "tests/one_sided.rs",
        "signals and atomics need memory that the target's CPU reaches, which a real GPU's without a window is not",
    ),
    (
        "tests/checked.rs",
        "kernels with planted faults, for the checks of the emulated GPU",
    ),
    (
        "tests/growth.rs",
        "ranks that join and end; `communicator` runs operations on every GPU",
    ),
    (
        "tests/strict.rs",
        "the order of sums, which programs decide and no GPU; `communicator` reduces on every GPU",
    ),
    (
        "tests/rtl.rs",
        "simulated hardware behind the NIC, by the step `hw`; the emulated GPU's kernels reach it",
    ),
];

/// Tests of the suite that skip themselves where the GPU is one by CUDA, though they plant no fault in a driver. A new one
/// changes this number, and its test says why; a test that comes to run on every GPU reduces it.
const SKIPPED: usize = 11;

/// A test that skips itself on a GPU by CUDA.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Skip {
    pub(crate) program: &'static str,
    pub(crate) test: String,
    pub(crate) why: String,
    /// It tests a fault in the mock driver.
    pub(crate) fault: bool,
}

impl Program {
    pub(crate) fn source(&self) -> PathBuf {
        let tests = if self.package == ROOT {
            "tests"
        } else {
            "cuda-kernels/tests"
        };
        root().join(tests).join(self.module).with_extension("rs")
    }

    /// The package's test program.
    pub(crate) fn binary(&self) -> &'static str {
        match self.package {
            ROOT => SDK_PROGRAM,
            _ => KERNELS_PROGRAM,
        }
    }

    /// Whether a test of the package's test program is one of this file.
    pub(crate) fn has(&self, test: &str) -> bool {
        let rest = test.strip_prefix(self.module);
        rest.is_some_and(|rest| rest.starts_with("::"))
    }
}

/// All tests of the suite that skip themselves, by their sources.
pub(crate) fn skips() -> Result<Vec<Skip>> {
    let mut all = Vec::new();
    for program in &PROGRAMS {
        let source = program.source();
        let text = std::fs::read_to_string(&source)
            .with_context(|| format!("cannot read {}", source.display()))?;
        all.extend(skips_in(program.name, &text));
    }
    Ok(all)
}

/// Each test that begins with `emulated_only`, or uses the mock driver on its own.
fn skips_in(program: &'static str, source: &str) -> Vec<Skip> {
    let tests = source.split("#[test]").skip(1).filter_map(|rest| {
        let (name, body) = rest.split_once("fn ")?.1.split_once('(')?;
        Some((name, body.split_once("\n}\n").map_or(body, |b| b.0)))
    });
    let skipped = tests.filter_map(|(name, body)| {
        let (fault, why) = if let Some((_, call)) = body.split_once("emulated_only(") {
            (false, call.split('"').nth(1).unwrap_or_default())
        } else if let Some((_, call)) = body.split_once("under_mock(") {
            // The words of the fault stand before the closure.
            let fault = call.split("||").next().is_some_and(|c| !c.contains("\"\""));
            let why = match fault {
                true => "it plants a fault in the mock driver",
                false => "it looks into the mock driver",
            };
            (fault, why)
        } else if body.contains("under_emulated_driver(") {
            (false, "only kernels of the emulated driver do this")
        } else if body.contains("under_driver(") {
            (true, "it brings a driver that lacks functions")
        } else {
            return None;
        };
        Some(Skip {
            program,
            test: name.to_owned(),
            why: why.to_owned(),
            fault,
        })
    });
    skipped.collect()
}

/// A folder in which the loader finds the mock driver, and the mock NCCL, under their real names.
fn mock_driver() -> Result<PathBuf> {
    let folder = target().join("mock-cuda");
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("cannot create {}", folder.display()))?;
    let (cuda, nccl) = ("libringbell_libcuda.so", "libringbell_mock_libnccl.so");
    for (name, library) in [
        ("libcuda.so", cuda),
        ("libcuda.so.1", cuda),
        ("libnvrtc.so", cuda),
        // The bundle measures it beside our all-reduce.
        ("libnccl.so.2", nccl),
    ] {
        let link = folder.join(name);
        let _ = std::fs::remove_file(&link);
        // Beside the tests, where cargo updates it.
        let library = Path::new("../debug/deps").join(library);
        std::os::unix::fs::symlink(library, &link)
            .with_context(|| format!("cannot link {}", link.display()))?;
    }
    Ok(folder)
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
    let skips = skips()?;
    for skip in &skips {
        println!("not on CUDA: {} {}: {}", skip.program, skip.test, skip.why);
    }
    let faults = skips.iter().filter(|s| s.fault).count();
    let others = skips.len() - faults;
    if others != SKIPPED {
        bail!("{others} tests of the suite skip themselves on CUDA, not {SKIPPED}: see xtask/src/suite.rs");
    }
    for (file, why) in OUTSIDE {
        println!("no part of the suite: {file}: {why}");
    }
    println!("skipped on CUDA: {others} tests, and {faults} that plant faults in the mock driver");
    let programs: Vec<&Program> = PROGRAMS.iter().filter(|p| p.over_mock).collect();
    let mut command = test::cargo();
    if test::has_nextest() {
        let filter: Vec<String> = programs
            .iter()
            .map(|p| {
                let (package, program, module) = (p.package, p.binary(), p.module);
                format!("(binary_id({package}::{program}) & test(/^{module}::/))")
            })
            .collect();
        command.args(["nextest", "run", "--workspace", "--no-fail-fast", "-E"]);
        // Ten thousand communicators in turn are no matter of the GPU.
        command.arg(format!("({}) & !test(ten_thousand)", filter.join(" | ")));
    } else {
        // Names that contain one of these are of the suite too, or skip themselves.
        command.args(["test", "--workspace"]);
        command.args([
            "--no-fail-fast",
            "--test",
            KERNELS_PROGRAM,
            "--test",
            SDK_PROGRAM,
            "--",
        ]);
        command.args(programs.iter().map(|p| format!("{}::", p.module)));
    }
    use_mock(&mut command)?;
    crate::steps::command(&mut command)?;
    by_nvcc()?;
    cust_example()?;
    Ok(Outcome::Passed)
}

/// The suite of the kernels' package once more with the PTX that nvcc makes of their sources, where nvcc is at hand.
fn by_nvcc() -> Result<()> {
    let Some(nvcc) = crate::venv::nvcc_at_hand() else {
        println!("SKIPPED: the suite with nvcc's PTX: there is no nvcc (`cargo xtask kernels` installs one)");
        return Ok(());
    };
    let folder = target().join("nvcc-ptx");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("cannot create {}", folder.display()))?;
    let sources = std::fs::read_dir(root().join("cuda-kernels/kernels"))?;
    for source in sources {
        let source = source?.path();
        if source.extension().is_none_or(|e| e != "cu") {
            continue;
        }
        let name = source.file_stem().unwrap_or_default();
        let mut compile = Command::new(&nvcc);
        compile
            .args(["--ptx", "-std=c++17", "-arch=compute_90", "-I"])
            .arg(root().join("cuda-kernels/include"))
            .arg(&source)
            .arg("-o")
            .arg(folder.join(name).with_extension("ptx"));
        crate::steps::command(&mut compile)?;
    }
    let mut command = test::cargo();
    command.args(["test", "-p", GPU_SIDE, "--test", KERNELS_PROGRAM, "--"]);
    let programs = PROGRAMS.iter().filter(|p| p.over_mock);
    let programs = programs.filter(|p| p.package == GPU_SIDE);
    command.args(programs.map(|p| format!("{}::", p.module)));
    use_mock(&mut command)?;
    command.env("RINGBELL_MOCK_CUDA", format!("ptx={}", folder.display()));
    crate::steps::command(&mut command)
}

/// The example with buffers of `cust`, linked with the mock driver: `cust` looks for libcuda in a folder `lib64`.
fn cust_example() -> Result<()> {
    let cuda = target().join("cust-cuda");
    std::fs::create_dir_all(&cuda).with_context(|| format!("cannot create {}", cuda.display()))?;
    let link = cuda.join("lib64");
    let _ = std::fs::remove_file(&link);
    std::os::unix::fs::symlink(mock_driver()?, &link)
        .with_context(|| format!("cannot link {}", link.display()))?;
    let mut build = test::cargo();
    build.args(["build", "--workspace", "--features", "ringbell/cust"]);
    build.args(["--example", CUST_EXAMPLE]);
    crate::steps::command(build.env("CUDA_LIBRARY_PATH", &cuda))?;
    let mut example = Command::new(test::built().join("examples").join(CUST_EXAMPLE));
    use_mock(&mut example)?;
    crate::steps::command_within(&mut example, test::EXAMPLE_LIMIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_test_file_is_in_the_suite_or_listed_with_a_reason() {
        let mut known: Vec<PathBuf> = PROGRAMS.iter().map(Program::source).collect();
        for (file, why) in OUTSIDE {
            assert!(!why.is_empty(), "{file}");
            known.push(root().join(file));
        }
        known.sort();
        let twice = known.windows(2).find(|w| w[0] == w[1]);
        assert_eq!(twice, None);
        let mut there = Vec::new();
        for folder in ["tests", "cuda-kernels/tests"] {
            let entries = std::fs::read_dir(root().join(folder)).expect("a folder");
            there.extend(entries.map(|e| e.expect("an entry").path()));
        }
        there.retain(|p| p.extension().is_some_and(|e| e == "rs") && !p.ends_with("main.rs"));
        there.sort();
        for file in &there {
            assert!(
                known.contains(file),
                "{}: put it into PROGRAMS, or into OUTSIDE with the reason",
                file.display()
            );
        }
        for program in &PROGRAMS {
            assert!(there.contains(&program.source()), "{}", program.name);
        }
        let mut names: Vec<&str> = PROGRAMS.iter().map(|p| p.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), PROGRAMS.len(), "two have one name");
    }

    #[test]
    fn tests_that_skip_themselves_are_counted_and_have_reasons() {
        let skips = skips().expect("sources");
        assert!(skips.iter().all(|s| s.why.len() > 10), "{skips:#?}");
        let others: Vec<_> = skips.iter().filter(|s| !s.fault).collect();
        assert_eq!(others.len(), SKIPPED, "{others:#?}");
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

    #[test]
    fn skips_are_found_in_the_test_that_has_them() {
        let source = r#"
fn helper() { under_mock("x") }
#[test]
fn runs() {
    on_any_driver("runs", "", || {});
}

fn other() { under_mock("y") }

#[test]
#[ignore] // A reason of its own.
fn skips() {
    if emulated_only(
        "a reason of its own",
    ) {
        return;
    }
}
#[test]
fn faults() {
    under_mock("faults", "x", || {});
}
#[test]
fn looks() {
    under_mock("looks", "", || assert!(text.contains("")));
}
"#;
        let found = skips_in("p", source);
        let names: Vec<_> = found.iter().map(|s| (s.test.as_str(), s.fault)).collect();
        assert_eq!(
            names,
            [("skips", false), ("faults", true), ("looks", false)]
        );
        assert_eq!(found[0].why, "a reason of its own");
    }
}
