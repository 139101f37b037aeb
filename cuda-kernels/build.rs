//! Tables of the kernels: as PTX for the emulated GPU, and by nvcc for real ones if it is
//! installed.
//!
//! An nvcc that fails is an error, so that device code stays valid.

use std::env;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

/// Real architectures of the fat binaries: A100 (whose code also runs on 8.6 and 8.9) and H100.
/// Later ones get the PTX of the last, which their driver compiles; `cargo xtask kernels` compiles
/// for five.
const ARCHITECTURES: [u32; 2] = [80, 90];

fn main() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    for path in ["include", "kernels", "ptx", "build.rs"] {
        println!("cargo:rerun-if-changed={path}");
    }
    for name in ["NVCC", "CUDA_HOME"] {
        println!("cargo:rerun-if-env-changed={name}");
    }

    std::fs::write(out.join("ptx.rs"), ptx(&root)).expect("OUT_DIR can be written");

    let fatbins = match find_nvcc(&out) {
        Some(nvcc) => compile_fatbins(&nvcc, &root, &out),
        None => Vec::new(),
    };
    let mut table = String::from("&[\n");
    for (name, path) in &fatbins {
        writeln!(
            table,
            "    Fatbin {{ name: {name:?}, image: include_bytes!({path:?}) }},"
        )
        .expect("writing to a string");
    }
    table.push_str("]\n");
    std::fs::write(out.join("fatbins.rs"), table).expect("OUT_DIR can be written");
    std::fs::write(out.join("sources.rs"), sources(&root)).expect("OUT_DIR can be written");
}

/// The kernels as PTX: each file with its hash, and the names of its kernels.
fn ptx(root: &Path) -> String {
    let files = std::fs::read_dir(root.join("ptx")).expect("part of the crate");
    let mut paths: Vec<PathBuf> = files
        .map(|e| e.expect("part of the crate").path())
        .filter(|p| p.extension().is_some_and(|e| e == "ptx"))
        .collect();
    paths.sort();
    let mut table = String::from("&[\n");
    for path in paths {
        let text = std::fs::read_to_string(&path).expect("part of the crate");
        let kernels = kernels(&text);
        assert!(!kernels.is_empty(), "{} has no kernel", path.display());
        let name = path
            .file_name()
            .expect("a file has a name")
            .to_string_lossy();
        let hash: [u8; 32] = Sha256::digest(&text).into();
        writeln!(
            table,
            "    BuiltinFile {{ name: {name:?}, text: include_str!({path:?}), hash: {hash:?}, kernels: &[{kernels}] }},"
        )
        .expect("writing to a string");
    }
    table + "]\n"
}

/// Names, bytes of parameters and most threads of a block of the kernels in a text of clang's, as
/// Rust.
fn kernels(text: &str) -> String {
    let mut table = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some(name) = line.strip_prefix(".visible .entry ") else {
            continue;
        };
        let name = name.split('(').next().unwrap_or_default();
        let (mut bytes, mut most) = (Vec::new(), 1024);
        for line in lines.by_ref().take_while(|l| *l != "{") {
            if let Some(param) = line.strip_prefix(".param ") {
                bytes.push(parameter_bytes(param));
            } else if let Some(n) = line.strip_prefix(".maxntid ") {
                let dims = n.split(',').map(|n| n.trim().parse::<u32>());
                most = dims.map(|n| n.expect("a number of threads")).product();
            }
        }
        writeln!(
            table,
            "BuiltinKernel {{ name: {name:?}, arg_bytes: &{bytes:?}, max_threads: {most} }},"
        )
        .expect("writing to a string");
    }
    table
}

/// Of `.u64 name,` or `.align 8 .b8 name[96],`.
fn parameter_bytes(param: &str) -> u32 {
    if let Some((_, count)) = param.split_once('[') {
        let count = count.split(']').next().unwrap_or_default();
        return count.parse().expect("bytes of a structure");
    }
    let ty = param.split(' ').next().unwrap_or_default();
    let bits: u32 = ty
        .trim_start_matches(|c: char| !c.is_ascii_digit())
        .parse()
        .unwrap_or_else(|_| panic!("no type: {param}"));
    bits / 8
}

/// The kernels and the headers they include as text, for NVRTC.
fn sources(root: &Path) -> String {
    let mut text = String::new();
    for (table, dirs, extensions) in [
        ("KERNELS", &["kernels"][..], &["cu"][..]),
        ("HEADERS", &["include", "kernels"], &["cuh", "h"]),
    ] {
        let mut paths: Vec<PathBuf> = dirs
            .iter()
            .flat_map(|d| std::fs::read_dir(root.join(d)).expect("part of the crate"))
            .filter_map(Result::ok)
            .map(|e| e.path())
            .filter(|p| extensions.iter().any(|e| p.extension() == Some(e.as_ref())))
            .collect();
        paths.sort();
        writeln!(text, "const {table}: &[Source] = &[").expect("writing to a string");
        for path in paths {
            let name = match table {
                "KERNELS" => path.file_stem(),
                _ => path.file_name(),
            };
            let name = name.expect("a file has a name").to_string_lossy();
            writeln!(
                text,
                "    Source {{ name: {name:?}, text: include_str!({path:?}) }},"
            )
            .expect("writing to a string");
        }
        text.push_str("];\n");
    }
    text
}

/// `NVCC`, then `CUDA_HOME`, then the path, then what `cargo xtask kernels` installed from PyPI.
fn find_nvcc(out: &Path) -> Option<PathBuf> {
    if let Some(named) = env::var_os("NVCC") {
        let named = PathBuf::from(named);
        assert!(
            named.is_file(),
            "NVCC names {}, which is no file; correct or unset it",
            named.display()
        );
        return Some(named);
    }
    let home = env::var_os("CUDA_HOME").map(|h| PathBuf::from(h).join("bin"));
    let path = env::var_os("PATH").unwrap_or_default();
    home.into_iter()
        .chain(env::split_paths(&path))
        .map(|dir| dir.join("nvcc"))
        .chain(venv_nvcc(out))
        .find(|p| p.is_file())
}

/// In `<target directory>/venv`, above OUT_DIR.
fn venv_nvcc(out: &Path) -> Option<PathBuf> {
    let lib = out
        .ancestors()
        .map(|a| a.join("venv/lib"))
        .find(|l| l.is_dir())?;
    let nvcc = std::fs::read_dir(lib)
        .ok()?
        .filter_map(Result::ok)
        .map(|python| python.path().join("site-packages/nvidia/cu13/bin/nvcc"))
        .find(|p| p.is_file())?;
    println!("cargo:rerun-if-changed={}", nvcc.display());
    Some(nvcc)
}

fn compile_fatbins(nvcc: &Path, root: &Path, out: &Path) -> Vec<(String, PathBuf)> {
    let mut sources: Vec<PathBuf> = std::fs::read_dir(root.join("kernels"))
        .expect("kernels/ is part of the crate")
        .filter_map(Result::ok)
        .map(|e| e.path())
        .filter(|p| p.extension().is_some_and(|e| e == "cu"))
        .collect();
    sources.sort();
    let mut fatbins = Vec::new();
    for source in sources {
        let name = source
            .file_stem()
            .expect("a .cu file has a stem")
            .to_string_lossy()
            .into_owned();
        let image = out.join(&name).with_extension("fatbin");
        let mut command = Command::new(nvcc);
        command
            // A quarter of the size; drivers unpack it themselves.
            .args(["--fatbin", "-Xfatbin=-compress-all", "-std=c++17", "-I"])
            .arg(root.join("include"));
        for arch in ARCHITECTURES {
            command.arg(format!("-gencode=arch=compute_{arch},code=sm_{arch}"));
        }
        let newest = ARCHITECTURES[ARCHITECTURES.len() - 1];
        command.arg(format!(
            "-gencode=arch=compute_{newest},code=compute_{newest}"
        ));
        let run = command.arg(&source).arg("-o").arg(&image).output();
        let run = run.unwrap_or_else(|e| panic!("cannot run {}: {e}", nvcc.display()));
        assert!(
            run.status.success(),
            "{} failed on {}:\n{}{}",
            nvcc.display(),
            source.display(),
            String::from_utf8_lossy(&run.stdout),
            String::from_utf8_lossy(&run.stderr)
        );
        fatbins.push((name, image));
    }
    fatbins
}
