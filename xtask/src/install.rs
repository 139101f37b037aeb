//! Installation: `bin/ringbell`, `lib/libringbell.so`, `lib/libringbell_verbs.so`, `lib/libringbell_mpi.so`, `lib/libnccl-net-ringbell.so`, the libraries of CUDA programs, the headers and a pkg-config file of each library below a prefix.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{ensure, Context, Result};

use crate::steps::{command, Outcome};
use crate::{root, target, test, tools};

/// Arguments of `cargo xtask install`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folder below which bin/, lib/ and include/ are filled, such as ~/.local or /usr/local
    #[arg(long, value_name = "FOLDER")]
    prefix: PathBuf,
}

/// Builds what is published, and installs it.
pub(crate) fn run(args: &Args) -> Result<()> {
    let packages = [
        "-p",
        "ringbell-cli",
        "-p",
        "ringbell-c",
        "-p",
        "ringbell-verbs",
        "-p",
        "ringbell-mpi",
        "-p",
        "ringbell-nccl",
        "-p",
        "ringbell-libcuda",
        "-p",
        "ringbell-libcudart",
    ];
    command(
        test::cargo()
            .args(["build", "--profile", "dist"])
            .args(packages),
    )?;
    place(&target().join("dist"), &args.prefix)?;
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
    test::build()?;
    let prefix = target().join("installed");
    if prefix.exists() {
        fs::remove_dir_all(&prefix)
            .with_context(|| format!("cannot remove {}", prefix.display()))?;
    }
    place(&test::built(), &prefix)?;
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
    let mut header = Command::new("gcc");
    header.args(["-include", "infiniband/verbs.h", "-fsyntax-only", "-x", "c"]);
    let found = header.arg("/dev/null").stderr(Stdio::null()).status();
    if !found.context("cannot start gcc")?.success() {
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
    let flags = Command::new("pkg-config")
        .args(["--cflags", "--libs", package])
        .env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"))
        .output()
        .context("cannot start pkg-config")?;
    ensure!(
        flags.status.success(),
        "pkg-config does not find {package}: {}",
        String::from_utf8_lossy(&flags.stderr)
    );
    let flags = String::from_utf8_lossy(&flags.stdout).into_owned();
    let program = prefix.join(package);
    command(
        Command::new("gcc")
            .arg(format!("-std={standard}"))
            .args(["-Wall", "-Werror"])
            .arg(source)
            .args(flags.split_whitespace())
            .arg("-o")
            .arg(&program),
    )?;
    // Without a library path: the flags alone must suffice.
    command(Command::new(&program).env_remove("LD_LIBRARY_PATH"))
}

/// Copies the products of `from`, the headers and the pkg-config file below `prefix`.
fn place(from: &Path, prefix: &Path) -> Result<()> {
    for folder in ["bin", "lib/pkgconfig", "include"] {
        let folder = prefix.join(folder);
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    copy(&from.join("ringbell"), &prefix.join("bin/ringbell"), 0o755)?;
    let library = prefix.join("lib/libringbell.so");
    copy(&from.join("libringbell.so"), &library, 0o755)?;
    for preloaded in ["libringbell_verbs.so", "libringbell_mpi.so"] {
        let to = prefix.join("lib").join(preloaded);
        copy(&from.join(preloaded), &to, 0o755)?;
    }
    // NCCL looks for this name, which no crate can have.
    let to = prefix.join("lib/libnccl-net-ringbell.so");
    copy(&from.join("libnccl_net_ringbell.so"), &to, 0o755)?;
    cuda(from, &prefix.join("lib"))?;
    let headers = root().join("cuda-kernels/include");
    headers_below(&headers, &prefix.join("include"))?;
    for (name, description) in PACKAGES {
        let file = prefix.join(format!("lib/pkgconfig/{name}.pc"));
        fs::write(&file, package(&absolute(prefix)?, name, description))
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

/// The driver and the runtime of CUDA programs, and a folder with links of the names that the loader looks for, as
/// `ringbell gpu` makes it.
fn cuda(from: &Path, lib: &Path) -> Result<()> {
    let (driver, runtime) = ("libringbell_libcuda.so", "libringbell_cudart.so");
    for file in [driver, runtime, "libringbell_cudart.a"] {
        copy(&from.join(file), &lib.join(file), 0o755)?;
    }
    let links = lib.join("ringbell-cuda");
    fs::create_dir_all(&links).with_context(|| format!("cannot make {}", links.display()))?;
    for (name, to) in [
        ("libcuda.so.1", driver),
        ("libcudart.so.13", runtime),
        ("libcudart.so.12", runtime),
    ] {
        let link = links.join(name);
        let _ = fs::remove_file(&link);
        std::os::unix::fs::symlink(absolute(&lib.join(to))?, &link)
            .with_context(|| format!("cannot make the link {}", link.display()))?;
    }
    Ok(())
}

/// Copies headers with the folders that they are in.
fn headers_below(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
    let entries = fs::read_dir(from);
    for entry in entries.with_context(|| format!("cannot read {}", from.display()))? {
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
        .and_then(|_| fs::set_permissions(&part, fs::Permissions::from_mode(mode)))
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
