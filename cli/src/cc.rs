//! `ringbell cc`: builds a user's own kernels, with or without the program that launches them.
//!
//! A source with a `main` becomes a program that is linked with libringbell.so and launches through `rb::launch` of
//! `ringbell.hpp`. Sources without one become a shared object: the host loads it (`EmulatedGpu::load_module`, `rb_module_load`)
//! and launches its kernels by name.
#![allow(unsafe_code)] // Loads kernels.

mod headers;
mod link;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use ringbell::parts::cuda_kernels::{EmulatedGpu, EmulatedGpuConfig};

use super::{stdio, Exit, Problem};

/// Arguments of `ringbell cc`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A program with its kernels (includes ringbell.hpp, has a main), or sources of kernels alone
    /// (include ringbell.cuh and name each kernel in RB_KERNEL)
    #[arg(required = true, value_name = "FILE.cu")]
    sources: Vec<PathBuf>,
    /// What to write [default: the first source without .cu for a program, with .so for kernels alone]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Library that a program is linked with [default: the one beside this command, built when first used]
    #[arg(long, env = "RINGBELL_LIBRARY", value_name = "libringbell.so")]
    library: Option<PathBuf>,
    /// Compiler for the emulated GPU
    #[arg(long, env = "CXX", default_value = "g++", value_name = "PROGRAM")]
    cxx: String,
    /// Compiler for real GPUs; without one only the shared object is built [default: nvcc, where there is one]
    #[arg(long, value_name = "PROGRAM", conflicts_with = "no_nvcc")]
    nvcc: Option<PathBuf>,
    /// Build no fat binary, even where nvcc is
    #[arg(long, visible_alias = "emulate-only")]
    no_nvcc: bool,
    /// Architectures of the fat binary
    #[arg(
        long,
        value_name = "SM",
        value_delimiter = ',',
        default_value = "80,90"
    )]
    arch: Vec<u32>,
    /// Further flags for both compilers, such as -DNAME or -Ifolder
    #[arg(last = true, value_name = "FLAGS")]
    flags: Vec<String>,
}

/// Advice for a host compiler that does not start.
const COMPILER: &str = "install g++, or name another C++20 compiler with --cxx or CXX";

/// Builds, loads the result, and lists its kernels.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    for source in &args.sources {
        if !source.is_file() {
            return Err(Problem::new(
                Exit::Usage,
                format!("there is no file {}", source.display()),
                "give the path of a .cu file",
            )
            .into());
        }
    }
    let headers = headers::Unpacked::new().context("cannot unpack the device headers")?;
    let object = compile(args, headers.path())?;
    let output = if link::has_main(&object)? {
        let output = output(args, "");
        let library = link::find_library(args.library.as_deref())?;
        link::program(&args.cxx, &args.flags, &object, &library, &output)?;
        stdio::line(format_args!(
            "{}: program, linked with {}",
            output.display(),
            library.display()
        ))?;
        output
    } else {
        let output = output(args, "so");
        link::module(&args.cxx, &args.flags, &object, &output)?;
        let kernels = kernels_of(&output)?.join(", ");
        stdio::line(format_args!("{}: {kernels}", output.display()))?;
        output
    };
    match find_nvcc(args) {
        Some(nvcc) => {
            for source in &args.sources {
                let fatbin = output.with_file_name(fatbin_name(source, &output, args.sources.len()));
                compile_fatbin(args, &nvcc, headers.path(), source, &fatbin)?;
                let arch = arch_list(&args.arch);
                stdio::line(format_args!("{}: for {arch}", fatbin.display()))?;
            }
        }
        None if args.no_nvcc => {}
        None => stdio::note("note: no nvcc, so no fat binary for real GPUs (`ringbell doctor` says where it was looked for)"),
    }
    Ok(Exit::Ok)
}

/// The named output, or the first source with another ending.
fn output(args: &Args, ending: &str) -> PathBuf {
    match &args.output {
        Some(output) => output.clone(),
        None => args.sources[0].with_extension(ending),
    }
}

/// All sources, for the emulated GPU, in one object file.
fn compile(args: &Args, headers: &Path) -> Result<PathBuf> {
    let mut cxx = Command::new(&args.cxx);
    cxx.args([
        "-std=c++20",
        "-O2",
        "-g",
        "-fPIC",
        "-c",
        "-pthread",
        "-Wall",
    ])
    .args(["-Wno-unknown-pragmas", "-fvisibility=hidden", "-I"])
    .arg(headers);
    // A module is one translation unit: its kernels register themselves in one list.
    let mut unit = String::new();
    for source in &args.sources {
        let whole = source
            .canonicalize()
            .with_context(|| format!("cannot resolve {}", source.display()))?;
        let text = whole
            .to_string_lossy()
            .replace('\\', "\\\\")
            .replace('"', "\\\"");
        unit.push_str(&format!("#include \"{text}\"\n"));
    }
    let file = headers.join("module.cpp");
    std::fs::write(&file, unit).with_context(|| format!("cannot write {}", file.display()))?;
    let object = headers.join("module.o");
    cxx.args(&args.flags).arg(&file).arg("-o").arg(&object);
    succeed(&mut cxx, COMPILER)?;
    Ok(object)
}

fn compile_fatbin(
    args: &Args,
    nvcc: &Path,
    headers: &Path,
    source: &Path,
    out: &Path,
) -> Result<()> {
    let mut command = Command::new(nvcc);
    command.args(["--fatbin", "-std=c++17", "-I"]).arg(headers);
    for arch in &args.arch {
        command.arg(format!("-gencode=arch=compute_{arch},code=sm_{arch}"));
    }
    command.args(&args.flags).arg(source).arg("-o").arg(out);
    succeed(
        &mut command,
        "mend the error above, or build only for the emulated GPU with --no-nvcc",
    )
}

/// Runs a compiler; its messages go to the user.
fn succeed(command: &mut Command, advice: &str) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| {
        Problem::new(Exit::Environment, format!("cannot start {program}"), advice)
    })?;
    if status.success() {
        return Ok(());
    }
    Err(Problem::new(
        Exit::Failed,
        format!("{program} refused the source ({status})"),
        "its messages are above",
    )
    .into())
}

/// The kernels of a shared object, as the emulated GPU sees them.
fn kernels_of(module: &Path) -> Result<Vec<String>> {
    let gpu = EmulatedGpu::new(EmulatedGpuConfig {
        memory_bytes: 1,
        scatter: 0.0,
        ..EmulatedGpuConfig::default()
    })
    .context("cannot make an emulated GPU to load the module")?;
    let builtin = gpu.kernels();
    let path = module
        .canonicalize()
        .with_context(|| format!("the compiler has not written {}", module.display()))?;
    // SAFETY: built from the user's sources a moment ago, to be run.
    unsafe { gpu.load_module(&path) }.context("what was built cannot be loaded")?;
    let mut kernels = gpu.kernels();
    kernels.retain(|k| !builtin.contains(k));
    if kernels.is_empty() {
        return Err(Problem::new(
            Exit::Failed,
            format!("{} registers no kernel of its own", module.display()),
            "write RB_KERNEL(name) after each `extern \"C\" __global__ void name(...) {...}`, with a name that the SDK's kernels do not use",
        )
        .into());
    }
    Ok(kernels)
}

/// The named nvcc, or the one in its usual place.
fn find_nvcc(args: &Args) -> Option<PathBuf> {
    if args.no_nvcc {
        return None;
    }
    if args.nvcc.is_some() {
        return args.nvcc.clone();
    }
    super::doctor::nvcc_path()
}

/// `NAME.fatbin` beside the output: of the output when there is one source, else of the source.
fn fatbin_name(source: &Path, output: &Path, sources: usize) -> PathBuf {
    let stem = if sources == 1 { output } else { source };
    Path::new(stem.file_name().unwrap_or(OsStr::new("kernels"))).with_extension("fatbin")
}

fn arch_list(arch: &[u32]) -> String {
    let names: Vec<String> = arch.iter().map(|a| format!("sm_{a}")).collect();
    names.join(", ")
}
