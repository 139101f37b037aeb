//! `ringbell gpu`: a CUDA program, unmodified, on the emulated GPU.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::library::Library;
use super::{Exit, Problem};

pub(crate) const DRIVER: Library = Library {
    package: "ringbell-libcuda",
    names: &["libringbell_libcuda.so"],
};

const RUNTIME: Library = Library {
    package: "ringbell-libcudart",
    names: &["libringbell_cudart.so"],
};

/// Folder of links, beside the libraries.
const FOLDER: &str = "ringbell-cuda";

const AFTER: &str = "\
The program's runtime library is shared (nvcc -cudart shared, or `ringbell cc`), and its kernels are there as PTX (nvcc -gencode \
arch=compute_80,code=compute_80). NVIDIA's own runtime library refuses this driver, so programs and libraries that carry it do not run. \
docs/emulated-gpu.md has what runs and what does not.";

/// Arguments of `ringbell gpu`.
#[derive(clap::Args)]
#[command(after_help = AFTER)]
pub(crate) struct Args {
    /// Memory of the GPU, such as 512M or 8G; the host gives what is allocated [default: 4G]
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    memory: Option<u64>,
    /// Multiprocessors that the program is told. At most 32 blocks are on each at once [default:
    /// 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16))]
    sms: Option<u32>,
    /// Compute capability that the program is told, as 80 or 90: PTX for a newer one is refused
    /// [default: 90]
    #[arg(long, value_name = "CC", value_parser = clap::value_parser!(u32).range(50..=129))]
    capability: Option<u32>,
    /// The driver [default: the one beside this command, built when first used]
    #[arg(long, value_name = DRIVER.names[0])]
    driver: Option<PathBuf>,
    /// The runtime library [default: the one beside this command, built when first used]
    #[arg(long, value_name = RUNTIME.names[0])]
    runtime: Option<PathBuf>,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// A number of bytes with a unit of 1,024.
fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(['k', 'K', 'm', 'M', 'g', 'G']);
    let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        _ => return Err(format!("`{text}` has more than one unit; write 512M or 8G")),
    };
    let number = digits.parse::<u64>().ok().filter(|n| *n > 0);
    number
        .and_then(|n| n.checked_mul(1 << shift))
        .ok_or_else(|| format!("`{text}` is no number of bytes; write 512M or 8G"))
}

/// Becomes the program.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    let driver = DRIVER.find(args.driver.as_deref())?;
    let runtime = RUNTIME.find(args.runtime.as_deref())?;
    let folder = links(&driver, &runtime)?;
    let mut command = Command::new(&args.program[0]);
    command
        .args(&args.program[1..])
        .env("LD_LIBRARY_PATH", in_front(&folder))
        .env_remove("RINGBELL_MOCK_CUDA");
    let settings = [
        ("memory", args.memory),
        ("sms", args.sms.map(u64::from)),
        ("capability", args.capability.map(u64::from)),
    ];
    let given = settings.iter().filter_map(|(name, value)| {
        let value = (*value)?;
        Some(format!("{name}={value}"))
    });
    let given: Vec<String> = given.collect();
    if !given.is_empty() {
        command.env("RINGBELL_CUDA", given.join(","));
    }
    let error = command.exec();
    Err(Problem::new(
        Exit::Environment,
        format!(
            "cannot start {}: {error}",
            Path::new(&args.program[0]).display()
        ),
        "give the program and its arguments after --",
    )
    .into())
}

/// The loader's path, with a folder before those of the environment.
fn in_front(folder: &Path) -> OsString {
    let mut path = folder.as_os_str().to_owned();
    if let Some(before) = std::env::var_os("LD_LIBRARY_PATH").filter(|p| !p.is_empty()) {
        path.push(":");
        path.push(before);
    }
    path
}

/// A folder in which the loader finds the libraries under the names that programs ask for. It
/// stays, because this process becomes the program.
fn links(driver: &Path, runtime: &Path) -> Result<PathBuf> {
    let folder = driver.with_file_name(FOLDER);
    let names = [
        ("libcuda.so.1", driver),
        ("libcudart.so.13", runtime),
        ("libcudart.so.12", runtime),
    ];
    let there = |(name, library): &(&str, &Path)| {
        std::fs::read_link(folder.join(name)).is_ok_and(|to| to == **library)
    };
    if names.iter().all(there) {
        return Ok(folder);
    }
    let advice = "make it writable, or run this once as the user who may write there";
    let refused = || {
        let what = format!("cannot make links to libraries in {}", folder.display());
        Problem::new(Exit::Environment, what, advice)
    };
    std::fs::create_dir_all(&folder).with_context(refused)?;
    for (name, library) in names {
        // Under another name first, so that a program which starts meanwhile finds the old link or
        // the new one.
        let mut fresh = OsStr::new(name).to_owned();
        fresh.push(format!(".{}", std::process::id()));
        let fresh = folder.join(fresh);
        let _ = std::fs::remove_file(&fresh);
        std::os::unix::fs::symlink(library, &fresh).with_context(refused)?;
        std::fs::rename(&fresh, folder.join(name)).with_context(refused)?;
    }
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_has_a_unit_or_none() {
        assert_eq!(bytes("123"), Ok(123));
        assert_eq!(bytes("512M"), Ok(512 << 20));
        assert_eq!(bytes("8g"), Ok(8 << 30));
        for wrong in ["", "0", "G", "4GB", "1.5G", "99999999999G", "1MM"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }
}
