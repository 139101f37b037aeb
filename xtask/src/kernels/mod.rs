//! Compilation of the device code: by clang, compared with the PTX in the repository; and by nvcc,
//! for real GPUs.

mod resources;
mod shmem;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{bail, Context, Result};
use fs_err as fs;

use self::resources::Resources;
use crate::steps::{at_once, Outcome, Words as _};
use crate::workspace::{cu_files, entries, root, target};
use crate::{gen, pages, venv, workspace};

/// Architectures of the SDK's kernels: A100, A10, L4 and RTX 40, H100 and H200, B200.
const ARCHITECTURES: [u32; 5] = [80, 86, 89, 90, 100];

/// Architectures of examples and the tutorial: they only show that the headers work.
const EXAMPLE_ARCHITECTURES: [u32; 2] = [80, 90];

/// The page whose kernels are compiled too.
const TUTORIAL: &str = "docs/tutorial.md";

/// Compilers at a time.
const AT_ONCE: usize = 2;

/// One file to compile.
struct Job {
    source: PathBuf,
    architectures: &'static [u32],
    /// Whether its kernels are in the report.
    ours: bool,
}

/// Compiles every `cuda-kernels/kernels/*.cu`, `examples/*/*.cu` and the bare ABI header; any
/// warning is an error, and so is local memory in a hot kernel. The report is in `target/kernels`.
pub(crate) fn compile() -> Result<Outcome> {
    gen::compare()?;
    let nvcc = match venv::nvcc() {
        Ok(nvcc) => nvcc,
        Err(error) => return Ok(Outcome::Skipped(format!("no nvcc: {error:#}"))),
    };
    let out = target().join("kernels");
    fs::create_dir_all(&out)?;
    let jobs = jobs(&out)?;
    let count = jobs.len();
    let mut resources = Resources::default();
    for of_file in at_once(AT_ONCE, &jobs, |job| compile_one(&nvcc, job, &out))? {
        resources.absorb(of_file);
    }
    let table = resources.table();
    fs::write(out.join("resources.md"), &table)?;
    println!("{table}\n* hot: no stack and no spills allowed");
    let names = ARCHITECTURES.map(|a| format!("sm_{a}"));
    println!(
        "{count} file(s) compiled; the SDK's kernels for {}",
        names.join(", ")
    );
    match resources.faults() {
        faults if faults.is_empty() => {}
        faults => bail!("{}", faults.join("\n")),
    }
    shmem::compile(&nvcc, &out, AT_ONCE)?;
    programs(&nvcc)?;
    Ok(Outcome::Passed)
}

/// Whole programs that nvcc compiles with NVIDIA's headers run on the emulated GPU, with our
/// runtime. The selection is that of the build: another would write other libraries under the names
/// of those that tests load at that time.
fn programs(nvcc: &Path) -> Result<()> {
    let mut tests = workspace::cargo();
    tests.words("test --workspace --test programs -- programs_by_nvcc");
    crate::steps::command(tests.env("RINGBELL_NVCC", nvcc))
}

/// All files for nvcc, the largest first, so that it is not left alone at the end.
fn jobs(out: &Path) -> Result<Vec<Job>> {
    let job = |source, ours| Job {
        source,
        architectures: match ours {
            true => &ARCHITECTURES,
            false => &EXAMPLE_ARCHITECTURES,
        },
        ours,
    };
    let kernels = root().join("cuda-kernels/kernels");
    let mut jobs = Vec::new();
    for source in sources()? {
        let ours = source.starts_with(&kernels);
        jobs.push(job(source, ours));
    }
    let abi = "#include \"ringbell_abi.h\"\n__global__ void abi(const char **text) { *text = rb_status_text(RB_STATUS_OK); }\n";
    let tutorial = pages::blocks(TUTORIAL, "cuda")?.into_iter().enumerate();
    let named = tutorial.map(|(i, block)| (format!("tutorial_{i}.cu"), block));
    for (name, text) in named.chain([("abi_header.cu".into(), abi.into())]) {
        let file = out.join(name);
        fs::write(&file, text)?;
        jobs.push(job(file, false));
    }
    jobs.sort_by_key(|job| (!job.source.ends_with("reduce.cu"), !job.ours));
    Ok(jobs)
}

fn compile_one(nvcc: &Path, job: &Job, out: &Path) -> Result<Resources> {
    let name = job.source.file_stem().unwrap_or_default();
    let mut command = Command::new(nvcc);
    command
        .words("--fatbin -std=c++17 -Werror all-warnings -Xptxas -v -Xfatbin=-compress-all -I")
        .arg(root().join("cuda-kernels/include"));
    for arch in job.architectures {
        // No source asks for what 8.6 and 8.9 have beyond 8.0: their PTX is compiled once.
        let ptx = if *arch < 90 { 80 } else { *arch };
        command.arg(format!("-gencode=arch=compute_{ptx},code=sm_{arch}"));
    }
    let shown = job.source.display();
    let ended = command
        .arg(&job.source)
        .arg("-o")
        .arg(out.join(name).with_extension("fatbin"))
        .output()
        .with_context(|| format!("cannot start {}", nvcc.display()))?;
    let said = String::from_utf8_lossy(&ended.stderr).into_owned()
        + &String::from_utf8_lossy(&ended.stdout);
    if !ended.status.success() {
        bail!("{} failed on {shown}:\n{said}", nvcc.display());
    }
    let mut resources = Resources::default();
    if job.ours {
        resources.read(&said);
    }
    Ok(resources)
}

/// The SDK's kernels, and those of the examples that need no headers but `ringbell.cuh`.
fn sources() -> Result<Vec<PathBuf>> {
    let mut folders = vec![root().join("cuda-kernels/kernels")];
    let others = shmem::FOLDERS.map(|f| root().join(f));
    let examples = entries(&root().join("examples"))?.into_iter();
    folders.extend(examples.filter(|p| p.is_dir() && !others.contains(p)));
    let mut sources = Vec::new();
    for folder in folders {
        sources.extend(cu_files(&folder)?);
    }
    sources.sort();
    Ok(sources)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tutorial's code compiles by clang. (nvcc reads the same blocks in `cargo xtask
    /// kernels`.)
    #[test]
    fn kernels_of_the_tutorial_compile_with_clang() {
        let blocks = pages::blocks(TUTORIAL, "cuda").expect(TUTORIAL);
        assert!(!blocks.is_empty());
        let Some(clang) = gen::clang() else {
            println!("SKIPPED: no clang 19. Debian: apt-get install clang-19");
            return;
        };
        let dir = target().join("tutorial");
        std::fs::create_dir_all(&dir).expect("a folder");
        for (i, block) in blocks.iter().enumerate() {
            let file = dir.join(format!("block_{i}.cu"));
            std::fs::write(&file, block).expect("written");
            let text = gen::ptx_of(&file, &clang);
            let text = text.unwrap_or_else(|e| panic!("{e:#}"));
            assert!(text.contains(".entry "), "block {i} has no kernel");
        }
    }
}
