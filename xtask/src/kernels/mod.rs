//! Compilation of the device code: by clang, compared with the PTX in the repository; and by nvcc, for real GPUs.

mod resources;
mod shmem;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{bail, Context, Result};

use self::resources::Resources;
use crate::gen;
use crate::steps::Outcome;
use crate::venv;
use crate::{root, target};

/// Architectures of the SDK's kernels: A100, A10, L4 and RTX 40, H100 and H200, B200.
const ARCHITECTURES: [u32; 5] = [80, 86, 89, 90, 100];

/// Architectures of examples and the tutorial: they only show that the headers work.
const EXAMPLE_ARCHITECTURES: [u32; 2] = [80, 90];

/// Compilers at a time.
const AT_ONCE: usize = 2;

/// One file to compile.
struct Job {
    source: PathBuf,
    architectures: &'static [u32],
    /// Whether its kernels are in the report.
    ours: bool,
}

/// Compiles every `cuda-kernels/kernels/*.cu`, `examples/*/*.cu` and the bare ABI header; any warning is an error,
/// and so is local memory in a hot kernel. The report is in `target/kernels`.
pub(crate) fn compile() -> Result<Outcome> {
    gen::compare()?;
    let nvcc = match venv::nvcc() {
        Ok(nvcc) => nvcc,
        Err(error) => return Ok(Outcome::Skipped(format!("no nvcc: {error:#}"))),
    };
    let out = target().join("kernels");
    std::fs::create_dir_all(&out).with_context(|| format!("cannot create {}", out.display()))?;
    let jobs = jobs(&out)?;
    let count = jobs.len();
    let mut resources = Resources::default();
    for of_file in in_parallel(jobs, |job| compile_one(&nvcc, job, &out))? {
        resources.absorb(of_file);
    }
    let table = resources.table();
    write(&out.join("resources.md"), &table)?;
    write(&out.join("resources.json"), &resources.json()?)?;
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
    shmem::compile(&nvcc, &out)?;
    programs(&nvcc)?;
    Ok(Outcome::Passed)
}

/// Does all jobs, the last first, and returns what they give, or what all that failed say.
fn in_parallel<J: Send, R: Send>(
    jobs: Vec<J>,
    each: impl Fn(&J) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let queue = Mutex::new(jobs);
    let results = Mutex::new(Vec::new());
    std::thread::scope(|threads| {
        for _ in 0..AT_ONCE {
            threads.spawn(|| loop {
                let next = lock(&queue).pop();
                let Some(job) = next else { break };
                let result = each(&job);
                lock(&results).push(result);
            });
        }
    });
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    for result in results.into_inner().unwrap_or_default() {
        match result {
            Ok(r) => done.push(r),
            Err(error) => failed.push(format!("{error:#}")),
        }
    }
    if !failed.is_empty() {
        bail!("{}", failed.join("\n"));
    }
    Ok(done)
}

/// Whole programs that nvcc compiles with NVIDIA's headers run on the emulated GPU, with our runtime. The selection is that
/// of the build: another would write other libraries under the names of those that tests load at that time.
fn programs(nvcc: &Path) -> Result<()> {
    let mut command = crate::test::cargo();
    command
        .args(["test", "--workspace", "--test", "programs"])
        .args(["--", "programs_by_nvcc"])
        .env("RINGBELL_NVCC", nvcc);
    crate::steps::command(&mut command)
}

/// A panic leaves the data consistent: no update under the lock is partial.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn write(file: &Path, text: &str) -> Result<()> {
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

/// All files for nvcc, the largest last, so that it is the first and none is left alone at the end.
fn jobs(out: &Path) -> Result<Vec<Job>> {
    let kernels = root().join("cuda-kernels/kernels");
    let mut jobs = Vec::new();
    for source in sources()? {
        let ours = source.starts_with(&kernels);
        let architectures: &[u32] = if ours {
            &ARCHITECTURES
        } else {
            &EXAMPLE_ARCHITECTURES
        };
        jobs.push(Job {
            source,
            architectures,
            ours,
        });
    }
    let abi = out.join("abi_header.cu");
    write(&abi, "#include \"ringbell_abi.h\"\n__global__ void abi(const char **text) { *text = rb_status_text(RB_STATUS_OK); }\n")?;
    let mut extra = vec![abi];
    for (i, block) in blocks(&read_tutorial()?).into_iter().enumerate() {
        let file = out.join(format!("tutorial_{i}.cu"));
        write(&file, &block)?;
        extra.push(file);
    }
    jobs.extend(extra.into_iter().map(|source| Job {
        source,
        architectures: &EXAMPLE_ARCHITECTURES,
        ours: false,
    }));
    jobs.sort_by_key(|job| (job.ours, job.source.ends_with("reduce.cu")));
    Ok(jobs)
}

fn compile_one(nvcc: &Path, job: &Job, out: &Path) -> Result<Resources> {
    let name = job.source.file_stem().unwrap_or_default();
    let mut command = Command::new(nvcc);
    command
        .args([
            "--fatbin",
            "-std=c++17",
            "-Werror",
            "all-warnings",
            "-Xptxas",
            "-v",
        ])
        .args(["-Xfatbin=-compress-all", "-I"])
        .arg(root().join("cuda-kernels/include"));
    for arch in job.architectures {
        command.arg(format!("-gencode=arch=compute_{arch},code=sm_{arch}"));
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

/// The CUDA sources of a folder.
fn cu_files(folder: &Path) -> Result<impl Iterator<Item = PathBuf>> {
    let files = entries(folder)?.into_iter();
    Ok(files.filter(|p| p.extension().is_some_and(|e| e == "cu")))
}

fn entries(dir: &Path) -> Result<Vec<PathBuf>> {
    let unreadable = || format!("cannot read {}", dir.display());
    let entries = std::fs::read_dir(dir).with_context(unreadable)?;
    entries
        .map(|e| e.map(|e| e.path()).with_context(unreadable))
        .collect()
}

fn read_tutorial() -> Result<String> {
    let file = root().join("docs/tutorial.md");
    std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))
}

/// The code between "```cuda" and "```".
fn blocks(markdown: &str) -> Vec<String> {
    markdown
        .split("```cuda\n")
        .skip(1)
        .filter_map(|rest| Some(rest.split_once("\n```")?.0.to_string() + "\n"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tutorial's code compiles by clang. (nvcc reads the same blocks in `cargo xtask kernels`.)
    #[test]
    fn kernels_of_the_tutorial_compile_with_clang() {
        let tutorial = read_tutorial().expect("docs/tutorial.md");
        let blocks = blocks(&tutorial);
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

    #[test]
    fn blocks_are_cut_at_their_fences() {
        assert_eq!(
            blocks("a\n```cuda\nx\ny\n```\nb\n```sh\nz\n```\n"),
            ["x\ny\n"]
        );
        assert!(blocks("```cuda\nno end").is_empty());
    }
}
