//! PTX files of the tests: made by clang from `kernels/*.cu`, kept in the repository.
#![allow(clippy::disallowed_methods)] // Starts a compiler.
#![allow(unsafe_code)] // Loads kernels.

use crate::common;

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::PATIENCE;
use ringbell_cuda_kernels::{Dim3, Gpu, GpuBuffer, KernelArg, LaunchError};

/// A file of the tests' kernels.
pub(crate) fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/kernels")
        .join(name)
}

/// A GPU with the kernels of a PTX file.
pub(crate) fn with_ptx(name: &str) -> Gpu {
    let gpu = common::gpu();
    // SAFETY: the workspace's own kernels.
    unsafe { gpu.load_module(&file(name)) }.unwrap_or_else(|e| panic!("{e}"));
    gpu
}

/// A GPU with the kernels of a module that was compiled a moment ago.
pub(crate) fn with_module(path: &Path) -> Gpu {
    let gpu = common::gpu();
    // SAFETY: the workspace's own kernels.
    unsafe { gpu.load_module(path) }.unwrap_or_else(|e| panic!("{e}"));
    gpu
}

/// clang for CUDA, where there is one: `CLANG`, or the one that the kept files were made by.
pub(crate) fn clang() -> Option<String> {
    let name = std::env::var("CLANG").unwrap_or_else(|_| "clang-19".to_owned());
    let there = Command::new(&name).arg("--version").output();
    if !there.is_ok_and(|o| o.status.success()) {
        println!("SKIPPED: no {name} on this machine. Debian: apt-get install clang-19");
        return None;
    }
    Some(name)
}

/// `kernels/NAME.cu` as PTX, compiled now; nothing where there is no clang, which it says.
pub(crate) fn compiled(name: &str) -> Option<PathBuf> {
    compiled_with(name, &[])
}

/// With further flags.
pub(crate) fn compiled_with(name: &str, flags: &[&str]) -> Option<PathBuf> {
    let clang = clang()?;
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    // Tests that compile the same file run beside each other.
    let thread = format!("{:?}", std::thread::current().id());
    let own: String = thread.chars().filter(char::is_ascii_digit).collect();
    let out = common::test_gpu::files().join(format!("{name}-{}-{own}.ptx", std::process::id()));
    let mut command = Command::new(clang);
    command
        .args([
            "-x",
            "cuda",
            "--cuda-device-only",
            "-S",
            "-nocudainc",
            "-nocudalib",
        ])
        .args([
            "--cuda-gpu-arch=sm_90",
            "--cuda-feature=+ptx83",
            "-std=c++17",
            "-O2",
        ])
        .arg("-isystem")
        .arg(include.join("cuda"))
        .arg("-I")
        .arg(include)
        .args(["-include", "cuda_runtime.h"])
        .args(flags)
        .arg(file(&format!("{name}.cu")))
        .arg("-o")
        .arg(&out);
    let said = command.output().expect("clang starts");
    let messages = String::from_utf8_lossy(&said.stderr);
    assert!(said.status.success(), "{name}: {messages}");
    Some(out)
}

/// Runs a kernel to its end.
pub(crate) fn launch(
    gpu: &Gpu,
    kernel: &str,
    grid: impl Into<Dim3>,
    block: impl Into<Dim3>,
    args: &[KernelArg],
) -> Result<(), LaunchError> {
    // SAFETY: the kernel's own parameters, and memory that outlives it.
    unsafe { gpu.launch(kernel, grid, block, args) }?.wait(PATIENCE)
}

/// Numbers that a buffer can hold.
pub(crate) trait Number: Copy {
    fn bytes(self) -> Vec<u8>;
}

macro_rules! numbers {
    ($($type:ty),*) => {
        $(impl Number for $type {
            fn bytes(self) -> Vec<u8> {
                self.to_le_bytes().to_vec()
            }
        })*
    };
}
numbers!(u8, u16, u32, i32, u64, f32, f64);

/// A buffer with these numbers.
pub(crate) fn filled<T: Number>(gpu: &Gpu, numbers: &[T]) -> GpuBuffer {
    let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.bytes()).collect();
    let b = gpu.alloc(bytes.len().max(8) as u64).unwrap();
    b.write(0, &bytes).unwrap();
    b
}

/// The 64-bit words of a buffer.
pub(crate) fn words(b: &GpuBuffer, n: usize) -> Vec<u64> {
    let mut bytes = vec![0; n * 8];
    b.read(0, &mut bytes).unwrap();
    let each = bytes.chunks_exact(8);
    each.map(|c| u64::from_le_bytes(c.try_into().unwrap()))
        .collect()
}

/// The 32-bit words of a buffer.
pub(crate) fn halves(b: &GpuBuffer, n: usize) -> Vec<u32> {
    let mut bytes = vec![0; n * 4];
    b.read(0, &mut bytes).unwrap();
    let each = bytes.chunks_exact(4);
    each.map(|c| u32::from_le_bytes(c.try_into().unwrap()))
        .collect()
}

/// The input and the output of a kernel `(in, out)`.
pub(crate) struct Io {
    input: GpuBuffer,
    output: GpuBuffer,
    bytes: usize,
}

impl Io {
    /// An output of `bytes`, all 0.
    pub(crate) fn new<T: Number>(gpu: &Gpu, input: &[T], bytes: usize) -> Io {
        Io {
            input: filled(gpu, input),
            output: filled(gpu, &vec![0u8; bytes]),
            bytes,
        }
    }

    pub(crate) fn args(&self) -> [KernelArg; 2] {
        [(&self.input).into(), (&self.output).into()]
    }

    pub(crate) fn words(&self) -> Vec<u64> {
        words(&self.output, self.bytes / 8)
    }

    pub(crate) fn halves(&self) -> Vec<u32> {
        halves(&self.output, self.bytes / 4)
    }
}

/// Reproducible numbers, with the ends of their range among them.
pub(crate) fn numbers(n: usize, seed: u64) -> Vec<u64> {
    let mut x = seed;
    let ends = [
        0,
        1,
        2,
        31,
        0x7fff_ffff,
        0x8000_0000,
        0xffff_ffff,
        0x7f80_0000,
        0xff80_0000,
        0x7fc0_0000,
        0x3f80_0000,
        0xbf80_0000,
        0x4f00_0000,
        0x0000_0001_0000_0000,
        0x8000_0000_0000_0000,
        u64::MAX,
        0x7ff0_0000_0000_0000,
        0x3ff8_0000_0000_0000,
        0xc1e0_0000_0020_0000,
    ];
    (0..n)
        .map(|i| {
            x = x
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let v = x ^ x >> 29;
            match v % 5 {
                0 => ends[(v / 5) as usize % ends.len()],
                // Floating-point numbers of moderate size.
                1 => (f64::from((v >> 40) as i32 - (1 << 23)) / 1024.0).to_bits(),
                2 => u64::from(((v >> 40) as f32 / 65_536.0 - 100.0).to_bits()),
                3 => v >> (i % 64),
                _ => v,
            }
        })
        .collect()
}

/// Names of what a PTX file has, so that a kernel without a check of its results fails.
pub(crate) struct Seen(Cell<usize>, Vec<String>);

impl Seen {
    pub(crate) fn of(gpu: &Gpu, prefix: &str) -> Seen {
        let all = gpu.kernels();
        let mine = all.iter().filter(|k| k.starts_with(prefix));
        Seen(Cell::new(0), mine.cloned().collect())
    }

    pub(crate) fn mark(&self, kernel: &str) {
        assert!(self.1.iter().any(|k| k == kernel), "no kernel {kernel}");
        self.0.set(self.0.get() + 1);
    }
}

impl Drop for Seen {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(self.0.get(), self.1.len(), "of {:?}", self.1);
        }
    }
}

/// How files begin that `cargo xtask gen` makes, and compares itself.
const GENERATED: &str = "// Made by `cargo xtask gen`";

/// The kept files are what the sources make. Another version of clang writes other text.
#[test]
fn kept_files_are_what_clang_makes_of_their_sources() {
    let Some(clang) = clang() else {
        return;
    };
    let version = Command::new(&clang).arg("--version").output().unwrap();
    if !String::from_utf8_lossy(&version.stdout).contains("clang version 19.") {
        println!("SKIPPED: {clang} is not clang 19, which the kept files were made by");
        return;
    }
    let folder = common::test_gpu::files().join(format!("ptx-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let made = Command::new("sh").arg(file("ptx.sh")).arg(&folder).output();
    let made = made.expect("a shell");
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
    let mut files = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let new = entry.unwrap().path();
        let name = new.file_name().unwrap().to_string_lossy().into_owned();
        let same = std::fs::read(&new).unwrap() == std::fs::read(file(&name)).unwrap();
        assert!(
            same,
            "{name} is stale: run cuda-kernels/tests/kernels/ptx.sh"
        );
        files += 1;
    }
    let kept = std::fs::read_dir(file("")).unwrap();
    let kept = kept.map(|e| e.unwrap().path()).filter(|path| {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        path.extension().is_some_and(|x| x == "ptx") && !text.starts_with(GENERATED)
    });
    let ours = "ptx.sh makes each kept file that `cargo xtask gen` does not";
    assert_eq!(files, kept.count(), "{ours}");
    let _ = std::fs::remove_dir_all(&folder);
}
