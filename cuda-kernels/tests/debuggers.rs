//! gdb and perf on kernels of PTX. gdb itself runs this program, and is asked where it stands.
#![allow(unsafe_code)] // Loads kernels.
#![allow(clippy::disallowed_methods)] // Starts gdb, with a deadline of its own in `timeout`.

use crate::common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::PATIENCE;
use ringbell_cuda_kernels::KernelArg;

/// Set in the process that is debugged.
const INSIDE: &str = "RINGBELL_TEST_DEBUGGED";

fn source(name: &str) -> PathBuf {
    let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernels");
    kernels.join(name)
}

/// The number of the first line of a file that has this text, at or behind another.
fn line(file: &str, behind: &str, text: &str) -> usize {
    let all = std::fs::read_to_string(source(file)).unwrap();
    let mut lines = all.lines().enumerate();
    lines.find(|(_, l)| l.contains(behind)).unwrap();
    lines.find(|(_, l)| l.contains(text)).unwrap().0 + 1
}

/// Three blocks of eight threads of `p_saxpy`, then one of `p_block_reduce`, and of a kernel
/// without lines of its source.
fn launch_kernels() {
    let gpu = common::gpu();
    for module in ["ptx_simple.ptx", "selftest.ptx"] {
        // SAFETY: the workspace's own kernels.
        unsafe { gpu.load_module(&source(module)) }.unwrap();
    }
    let [from, to] = [1024, 1024].map(|bytes| gpu.alloc(bytes).unwrap());
    let saxpy = [24i32.into(), 2.0f32.into(), (&from).into(), (&to).into()];
    let reduce = [24i32.into(), (&from).into(), (&to).into()];
    let launch = |kernel, (grid, block): (u32, u32), args: &[KernelArg]| {
        // SAFETY: the kernels' own parameters, and memory that outlives them.
        let launch = unsafe { gpu.launch(kernel, grid, block, args) };
        launch.unwrap().wait(PATIENCE).unwrap();
    };
    launch("p_saxpy", (3, 8), &saxpy);
    launch("p_block_reduce", (1, 32), &reduce);
    launch("t_indices", (1, 8), &[(&to).into()]);
}

/// Runs this test in another process; the kernels are kept in `cache`.
fn again(test: &str, debug: &str, cache: &Path, mut program: Command) -> Command {
    program
        .args(["--exact", &format!("debuggers::{test}"), "--nocapture"])
        .env(INSIDE, "1")
        .env("RINGBELL_DEBUG", debug)
        .env("RINGBELL_KERNEL_CACHE", cache);
    program
}

fn folder(name: &str) -> PathBuf {
    let name = format!("debuggers-{name}-{}", std::process::id());
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

#[test]
fn gdb_stops_at_lines_and_knows_kernel_block_and_thread() {
    if std::env::var_os(INSIDE).is_some() {
        return launch_kernels();
    }
    if Command::new("gdb").arg("--version").output().is_err() {
        println!("SKIPPED: no gdb. Debian: apt-get install gdb");
        return;
    }
    let dir = folder("gdb");
    let (saxpy, barrier) = (
        line("ptx_simple.cu", "p_saxpy", "y[i] ="),
        line("ptx_simple.cu", "p_block_reduce", "__syncthreads"),
    );
    let store = line("selftest.ptx", ".entry t_indices(", "st.global");
    // The ends of threads would be printed into the middle of the test's own lines.
    let script = format!(
        "set pagination off\nset breakpoint pending on\nset confirm off\n\
         set print thread-events off\n\
         break ptx_simple.cu:{saxpy} if blockIdx.x == 2 && threadIdx.x == 5\nrun\nbt\n\
         print threadIdx\nprint blockIdx\nprint blockDim\nprint gridDim\ndelete\n\
         tbreak p_block_reduce\ncontinue\nprint threadIdx.x\n\
         tbreak ptx_simple.cu:{barrier}\ncontinue\nbt 1\n\
         tbreak selftest.ptx:{store}\ncontinue\nbt 1\ncontinue\n"
    );
    let commands = dir.join("commands");
    std::fs::write(&commands, script).unwrap();
    // The second process reads the kernels from the disk.
    for round in ["compiled", "kept"] {
        let mut gdb = Command::new("timeout");
        gdb.args(["120", "gdb", "-nx", "-batch", "-x"]);
        gdb.arg(&commands).arg("--args");
        gdb.arg(std::env::current_exe().unwrap());
        let cache = dir.join("kernels");
        let test = "gdb_stops_at_lines_and_knows_kernel_block_and_thread";
        let said = again(test, "gdb", &cache, gdb).output().unwrap();
        let (out, err) = (
            String::from_utf8_lossy(&said.stdout),
            String::from_utf8_lossy(&said.stderr),
        );
        for expected in [
            format!("p_saxpy () at ./ptx_simple.cu:{saxpy}"),
            "in run_warp ()".to_owned(),
            "$1 = {x = 5, y = 0, z = 0}".to_owned(),
            "$2 = {x = 2, y = 0, z = 0}".to_owned(),
            "$3 = {x = 8, y = 1, z = 1}".to_owned(),
            "$4 = {x = 3, y = 1, z = 1}".to_owned(),
            "p_block_reduce () at ./ptx_simple.cu:".to_owned(),
            "$5 = 0".to_owned(),
            format!("p_block_reduce () at ./ptx_simple.cu:{barrier}"),
            format!("selftest.ptx:{store}"),
            "test result: ok. 1 passed".to_owned(),
        ] {
            assert!(
                out.contains(&expected),
                "{round}: no `{expected}` in\n{out}\n{err}"
            );
        }
        assert_eq!(std::fs::read_dir(&cache).unwrap().count(), 3, "{round}");
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn perf_finds_the_names_of_kernels() {
    if std::env::var_os(INSIDE).is_some() {
        return launch_kernels();
    }
    let dir = folder("perf");
    let program = Command::new(std::env::current_exe().unwrap());
    let mut program = again("perf_finds_the_names_of_kernels", "perf", &dir, program);
    let mut child = program.spawn().unwrap();
    assert!(child.wait().unwrap().success());
    let map = PathBuf::from(format!("/tmp/perf-{}.map", child.id()));
    let text = std::fs::read_to_string(&map).unwrap();
    let mut last = 0;
    let mut entries: Vec<(u64, u64, &str)> = text
        .lines()
        .map(|l| {
            let mut words = l.splitn(3, ' ');
            let mut hex = || u64::from_str_radix(words.next().unwrap(), 16).unwrap();
            (hex(), hex(), words.next().unwrap())
        })
        .collect();
    entries.sort_unstable();
    for (at, bytes, name) in &entries {
        assert!(*at >= last && *bytes > 0, "{name} in {text}");
        last = at + bytes;
    }
    let mut names: Vec<&str> = entries.iter().map(|e| e.2).collect();
    names.sort_unstable();
    assert_eq!(names, ["p_block_reduce", "p_saxpy", "t_indices"]);
    std::fs::remove_file(map).unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
}
