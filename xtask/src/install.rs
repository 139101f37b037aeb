//! Installation: `bin/ringbell`, `lib/libringbell.so`, `lib/libringbell_verbs.so`,
//! `lib/libringbell_mpi.so`, `lib/libnccl-net-ringbell.so`, the libraries of CUDA programs, the
//! headers and a pkg-config file of each library below a prefix.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use fs_err as fs;

use crate::steps::{command, output, succeeds, Outcome, Words as _};
use crate::workspace::{root, target};
use crate::{tools, workspace};

/// Arguments of `cargo xtask install`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folder below which bin/, lib/ and include/ are filled, such as ~/.local or /usr/local
    #[arg(long, value_name = "FOLDER")]
    prefix: PathBuf,
}

/// Builds what is published, and installs it.
pub(crate) fn run(args: &Args) -> Result<()> {
    let packages = ["cli", "c", "verbs", "mpi", "nccl", "libcuda", "libcudart"];
    let built = workspace::dist(&packages.map(|p| format!("ringbell-{p}")))?;
    place(&built, &args.prefix)?;
    let prefix = absolute(&args.prefix)?;
    println!("installed below {}", prefix.display());
    println!(
        "for C programs: PKG_CONFIG_PATH={}/lib/pkgconfig pkg-config --cflags --libs ringbell",
        prefix.display()
    );
    Ok(())
}

/// As a step of the tests: installs the tests' build, and compiles C against it by pkg-config.
pub(crate) fn step() -> Result<Outcome> {
    workspace::build()?;
    let prefix = target().join("installed");
    if prefix.exists() {
        fs::remove_dir_all(&prefix)?;
    }
    place(&workspace::built(), &prefix)?;
    command(Command::new(prefix.join("bin/ringbell")).arg("--version"))?;
    if let Some(tool) = ["gcc", "pkg-config"]
        .into_iter()
        .find(|t| tools::find(t).is_none())
    {
        return Ok(Outcome::Skipped(format!(
            "no {tool}: no program was compiled against what was installed"
        )));
    }
    let text = "#include <ringbell.h>\n#include <stdio.h>\n\
        int main(void) { return puts(rb_version()) < 0; }\n";
    let source = prefix.join("version.c");
    fs::write(&source, text)?;
    compile_and_run(&prefix, "ringbell", "c99", &source)?;
    let header = "-include infiniband/verbs.h -fsyntax-only -x c /dev/null";
    if !succeeds(Command::new("gcc").words(header)) {
        println!(
            "SKIPPED ringbell_verbs: no infiniband/verbs.h. Debian: apt-get install libibverbs-dev"
        );
        return Ok(Outcome::Passed);
    }
    let source = root().join("examples/18_verbs_c/verbs.c");
    compile_and_run(&prefix, "ringbell_verbs", "gnu11", &source)?;
    Ok(Outcome::Passed)
}

/// Compiles a program by the flags that pkg-config gives for a package, and runs it.
fn compile_and_run(prefix: &Path, package: &str, standard: &str, source: &Path) -> Result<()> {
    let mut flags = Command::new("pkg-config");
    flags.words("--cflags --libs").arg(package);
    let flags = output(flags.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")))?;
    let program = prefix.join(package);
    let mut gcc = Command::new("gcc");
    gcc.arg(format!("-std={standard}")).words("-Wall -Werror");
    command(gcc.arg(source).words(&flags).arg("-o").arg(&program))?;
    // Without a library path: the flags alone must suffice.
    command(Command::new(&program).env_remove("LD_LIBRARY_PATH"))
}

/// Copies the products of `from`, the headers and the pkg-config file below `prefix`.
fn place(from: &Path, prefix: &Path) -> Result<()> {
    for folder in ["bin", "lib/pkgconfig", "include"] {
        fs::create_dir_all(prefix.join(folder))?;
    }
    for (built, placed) in [
        ("ringbell", "bin/ringbell"),
        ("libringbell.so", "lib/libringbell.so"),
        ("libringbell_verbs.so", "lib/libringbell_verbs.so"),
        ("libringbell_mpi.so", "lib/libringbell_mpi.so"),
        // NCCL looks for this name, which no crate can have.
        ("libnccl_net_ringbell.so", "lib/libnccl-net-ringbell.so"),
    ] {
        copy(&from.join(built), &prefix.join(placed), 0o755)?;
    }
    cuda(from, &prefix.join("lib"))?;
    let headers = root().join("cuda-kernels/include");
    headers_below(&headers, &prefix.join("include"))?;
    for (name, description) in PACKAGES {
        let file = prefix.join(format!("lib/pkgconfig/{name}.pc"));
        fs::write(&file, package(&absolute(prefix)?, name, description))?;
    }
    Ok(())
}

/// The driver and the runtime of CUDA programs, and a folder with links of the names that the
/// loader looks for, as `ringbell gpu` makes it.
fn cuda(from: &Path, lib: &Path) -> Result<()> {
    let (driver, runtime) = ("libringbell_libcuda.so", "libringbell_cudart.so");
    for file in [driver, runtime, "libringbell_cudart.a"] {
        copy(&from.join(file), &lib.join(file), 0o755)?;
    }
    let links = lib.join("ringbell-cuda");
    fs::create_dir_all(&links)?;
    for (name, to) in [
        ("libcuda.so.1", driver),
        ("libcudart.so.13", runtime),
        ("libcudart.so.12", runtime),
    ] {
        let link = links.join(name);
        let _ = fs::remove_file(&link);
        fs_err::os::unix::fs::symlink(absolute(&lib.join(to))?, &link)?;
    }
    Ok(())
}

/// Copies headers with the folders that they are in.
fn headers_below(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        match entry.path().is_dir() {
            true => headers_below(&entry.path(), &to)?,
            false => copy(&entry.path(), &to, 0o644)?,
        }
    }
    Ok(())
}

/// Replaces a file as a whole: a program that runs from it keeps the old one.
fn copy(from: &Path, to: &Path, mode: u32) -> Result<()> {
    let part = to.with_extension("part");
    let copied = fs::copy(from, &part)
        .and_then(|_| fs::set_permissions(&part, Permissions::from_mode(mode)))
        .and_then(|()| fs::rename(&part, to));
    copied.with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
}

fn absolute(path: &Path) -> Result<PathBuf> {
    path.canonicalize()
        .with_context(|| format!("cannot resolve {}", path.display()))
}

/// Libraries with a pkg-config file, and what they are. The header of the second is rdma-core's.
const PACKAGES: [(&str, &str); 2] = [
    (
        "ringbell",
        "GPU kernels send, receive and reduce over a NIC",
    ),
    (
        "ringbell_verbs",
        "The calls of libibverbs over plain UDP sockets",
    ),
];

/// The text of a pkg-config file.
fn package(prefix: &Path, name: &str, description: &str) -> String {
    format!(
        "prefix={}\n\
         includedir=${{prefix}}/include\n\
         libdir=${{prefix}}/lib\n\
         \n\
         Name: {name}\n\
         Description: {description}\n\
         Version: {}\n\
         Cflags: -I${{includedir}}\n\
         Libs: -L${{libdir}} -l{name} -Wl,-rpath,${{libdir}}\n",
        prefix.display(),
        env!("CARGO_PKG_VERSION"),
    )
}
