//! Kernels as PTX, by clang: so that neither a compiler nor CUDA is needed to run them.
//!
//! Each file begins with a hash of what it is made of. A file whose hash is another is made anew
//! where clang is at hand; elsewhere it is as stale as it looks.

use std::collections::hash_map::DefaultHasher;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use fs_err as fs;

use crate::steps::output;
use crate::tools;
use crate::workspace::{entries, root};

/// Kernels of a folder that stand as PTX.
struct Group {
    folder: &'static str,
    /// Names without `.cu`; none: all of the folder.
    only: &'static [&'static str],
    /// Where the PTX stands, if not beside the source.
    out: Option<&'static str>,
    /// Whether it matters that its text is small, not that it is fast.
    small: bool,
}

/// Kernels beside their sources, in small text.
const fn beside(folder: &'static str, only: &'static [&'static str]) -> Group {
    Group {
        folder,
        only,
        out: None,
        small: true,
    }
}

/// The SDK's kernels, those of the examples, and those that tests launch by name. `examples/05_cpp`
/// is a program.
const GROUPS: [Group; 23] = [
    Group {
        folder: "cuda-kernels/kernels",
        only: &[],
        out: Some("cuda-kernels/ptx"),
        small: false,
    },
    beside("examples/02_sockets_in_kernels", &[]),
    beside("examples/03_echo_server_100_connections", &[]),
    beside("examples/07_distinct_words", &[]),
    beside("examples/11_kernel_stream", &[]),
    beside("examples/14_resident_server", &[]),
    beside("examples/15_engines_at_a_communicator", &[]),
    beside("examples/16_halo_exchange", &[]),
    beside("examples/17_key_value_store", &[]),
    beside("examples/21_ring_all_gather", &[]),
    beside("examples/22_tensor_and_experts", &[]),
    beside("examples/24_smi_gesummv", &[]),
    beside("examples/25_smi_stencil", &[]),
    beside("examples/26_smi_k_means", &[]),
    beside("examples/28_recommendation", &[]),
    beside("examples/29_smi_ports", &[]),
    beside("examples/30_simulated_kernel", &[]),
    beside("tests/communicators", &[]),
    beside("tests/engines_kernel", &[]),
    beside("tests/mailbox", &[]),
    beside("tests/one_sided", &[]),
    beside("bindings/c/tests/programs", &[]),
    beside("cuda-kernels/tests/kernels", &["bus_traffic", "selftest"]),
];

/// The compiler's arguments beside those that every file has. Loads of 128 bits with an order are
/// of PTX 8.3 and `sm_70`; results equal those of other compilers where nothing is contracted.
const FLAGS: [&str; 10] = [
    "-x",
    "cuda",
    "--cuda-device-only",
    "-S",
    "-nocudainc",
    "-nocudalib",
    "-std=c++17",
    "-ffp-contract=off",
    "--cuda-gpu-arch=sm_90",
    "--cuda-feature=+ptx83",
];

/// How text becomes fast, and how it becomes small: calls in place of copies
/// (`ringbell_platform.h`).
const FAST: &[&str] = &["-O2"];
const SMALL: &[&str] = &["-Os", "-DRB_SMALL_CODE"];

/// A kernel's source and its PTX.
pub(super) struct File {
    source: PathBuf,
    pub(super) ptx: PathBuf,
    flags: &'static [&'static str],
}

/// All of them.
pub(super) fn files() -> Result<Vec<File>> {
    let mut all = Vec::new();
    for group in &GROUPS {
        let folder = root().join(group.folder);
        for source in entries(&folder)? {
            let stem = source.file_stem().unwrap_or_default().to_string_lossy();
            let named = group.only.is_empty() || group.only.contains(&&*stem);
            if named && source.extension().is_some_and(|e| e == "cu") {
                let out = group.out.map_or(folder.clone(), |o| root().join(o));
                let ptx = out.join(&*stem).with_extension("ptx");
                let flags = if group.small { SMALL } else { FAST };
                all.push(File { source, ptx, flags });
            }
        }
    }
    all.sort_by(|a, b| a.source.cmp(&b.source));
    Ok(all)
}

/// A source, and the headers that it includes, wherever its text does.
fn inputs(source: &Path) -> Result<BTreeSet<PathBuf>> {
    let include = root().join("cuda-kernels/include");
    let folders = [include.join("cuda"), include];
    let mut left = vec![source.to_owned()];
    let mut all = BTreeSet::new();
    while let Some(path) = left.pop() {
        let text = fs::read_to_string(&path)?;
        let beside = path.parent().context("a file in a folder")?;
        for line in text.lines() {
            let Some(rest) = line.trim_start().strip_prefix("#include ") else {
                continue;
            };
            let name = rest.trim().trim_start_matches(['"', '<']);
            let name = name.split(['"', '>']).next().unwrap_or_default();
            let mut places = std::iter::once(beside).chain(folders.iter().map(PathBuf::as_path));
            // Headers of the compiler are not ours.
            let found = places.find_map(|p| Some(p.join(name)).filter(|f| f.is_file()));
            left.extend(found.filter(|f| !all.contains(f)));
        }
        all.insert(path);
    }
    Ok(all)
}

/// The first line: what the file is made of.
fn head(source: &Path, flags: &[&str]) -> Result<String> {
    let mut hash = DefaultHasher::new();
    (FLAGS, flags).hash(&mut hash);
    for input in inputs(source)? {
        fs::read(&input)?.hash(&mut hash);
    }
    Ok(format!(
        "// Made by `cargo xtask gen` of {:016x}.",
        hash.finish()
    ))
}

impl File {
    /// Of a source that has no place in the repository.
    #[cfg(test)]
    pub(super) fn of(source: &Path) -> File {
        File {
            source: source.to_owned(),
            ptx: source.with_extension("ptx"),
            flags: SMALL,
        }
    }

    /// Whether its hash is that of its sources.
    pub(super) fn is_fresh(&self) -> Result<bool> {
        let old = std::fs::read_to_string(&self.ptx).unwrap_or_default();
        Ok(old.lines().next() == Some(head(&self.source, self.flags)?.as_str()))
    }

    /// What clang makes of the source.
    pub(super) fn make(&self, clang: &Path) -> Result<String> {
        let include = root().join("cuda-kernels/include");
        let mut run = Command::new(clang);
        run.args(FLAGS).args(self.flags);
        // `assert` writes the file's name, which may not hold the place of the checkout.
        run.arg(format!("-ffile-prefix-map={}/=", root().display()));
        run.arg("-isystem").arg(include.join("cuda"));
        run.arg("-I").arg(include).arg(&self.source);
        let text = output(run.args(["-o", "-"]))?;
        Ok(head(&self.source, self.flags)? + "\n" + &without_notes(&text))
    }
}

/// The text without comments and indents, a third of it.
fn without_notes(text: &str) -> String {
    let mut short = String::new();
    for line in text.lines() {
        let line = line.split("//").next().unwrap_or_default().trim();
        if !line.is_empty() {
            let _ = writeln!(short, "{}", line.replace('\t', " "));
        }
    }
    short
}

/// clang 19 or newer: `CLANG`, or what the path has.
pub(super) fn clang() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("CLANG") {
        return Some(named.into());
    }
    (19..30).find_map(|n| tools::find(&format!("clang-{n}")))
}
