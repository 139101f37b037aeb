//! `ringbell cc`: builds a user's own kernels, with or without the program that launches them, by clang.
//!
//! Sources of kernels alone become PTX: the host loads it (`Nic::module`, `rb_module_load`) and launches its kernels by name.
//! A source with a `main` becomes a program with its kernels in it. It launches through `rb::launch` of `ringbell.hpp`, and
//! is linked with libringbell.so; or it is a CUDA program with `<<<>>>`, and contains the runtime library of ours.

mod clang;
mod headers;
mod whole;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::{stdio, Exit, Problem};

/// Arguments of `ringbell cc`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Sources of CUDA kernels; a CUDA program (a main and <<<>>>); or a program with its kernels that includes
    /// ringbell.hpp
    #[arg(required = true, value_name = "FILE.cu")]
    sources: Vec<PathBuf>,
    /// What to write [default: the first source without .cu for a program, with .ptx for kernels alone]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Library that a program is linked with [default: the one beside this command, built when first used]
    #[arg(long, env = "RINGBELL_LIBRARY", value_name = "libringbell.so")]
    library: Option<PathBuf>,
    /// Runtime library that a CUDA program contains [default: the one beside this command, built when first used]
    #[arg(long, value_name = "libringbell_cudart.a")]
    runtime: Option<PathBuf>,
    /// Folder of headers
    #[arg(short = 'I', value_name = "FOLDER")]
    include: Vec<PathBuf>,
    /// Macro
    #[arg(short = 'D', value_name = "NAME[=VALUE]")]
    define: Vec<String>,
    /// Optimisation
    #[arg(short = 'O', default_value = "2", value_name = "LEVEL")]
    optimise: String,
    /// Language of the sources
    #[arg(long, default_value = "c++17", value_name = "STANDARD")]
    std: String,
    /// Compiler for real GPUs; without one no fat binary is built [default: nvcc, where there is one]
    #[arg(long, value_name = "PROGRAM", conflicts_with = "no_nvcc")]
    nvcc: Option<PathBuf>,
    /// Build no fat binary, even where nvcc is
    #[arg(long, visible_alias = "emulate-only")]
    no_nvcc: bool,
    /// Architectures of the fat binary, such as sm_90; PTX is for the newest, up to 90
    #[arg(
        long,
        value_name = "SM",
        value_delimiter = ',',
        value_parser = architecture,
        default_value = "80,90"
    )]
    arch: Vec<u32>,
    /// Further flags for the compilers
    #[arg(last = true, value_name = "FLAGS")]
    flags: Vec<String>,
}

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
    let output = match kind(args)? {
        Kind::Ptx => {
            let output = output(args, "ptx");
            let kernels = clang::compile(args, headers.path(), &output)?.join(", ");
            stdio::line(format_args!("{}: {kernels}", output.display()))?;
            output
        }
        Kind::Ringbell => whole::of_ringbell(args, headers.path())?,
        Kind::Cuda => {
            whole::of_cuda(args, headers.path())?;
            return Ok(Exit::Ok);
        }
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

/// What the sources are.
#[derive(Debug, PartialEq, Eq)]
enum Kind {
    /// Kernels.
    Ptx,
    /// A program that launches by `rb::launch`, or has no kernels.
    Ringbell,
    /// A program with `<<<>>>`.
    Cuda,
}

/// What the sources are, unless the output's name says it.
fn kind(args: &Args) -> Result<Kind> {
    match args.output.as_ref().and_then(|o| o.extension()) {
        Some(ending) if ending == "ptx" => return Ok(Kind::Ptx),
        Some(ending) if ending == "so" => {
            let advice = "leave -o out, or give it a name that ends in .ptx: the host loads that, on every GPU";
            return Err(Problem::new(
                Exit::Usage,
                "kernels become PTX, and no shared object",
                advice,
            )
            .into());
        }
        _ => {}
    }
    for source in &args.sources {
        let text =
            std::fs::read(source).with_context(|| format!("cannot read {}", source.display()))?;
        let text = String::from_utf8_lossy(&text);
        if defines_main(&text) {
            return Ok(match whole::is_one(&text) {
                true => Kind::Cuda,
                false => Kind::Ringbell,
            });
        }
    }
    Ok(Kind::Ptx)
}

/// Whether a source has `int main(`, outside of comments and strings.
fn defines_main(text: &str) -> bool {
    let mut code = String::new();
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match (c, rest.peek()) {
            ('/', Some('/')) => {
                rest.by_ref().take_while(|c| *c != '\n').for_each(drop);
                code.push('\n');
            }
            ('/', Some('*')) => {
                let mut before = ' ';
                rest.next();
                rest.by_ref()
                    .take_while(|c| !(std::mem::replace(&mut before, *c) == '*' && *c == '/'))
                    .for_each(drop);
                code.push(' ');
            }
            ('"', _) => {
                while let Some(c) = rest.next() {
                    match c {
                        '\\' => drop(rest.next()),
                        '"' | '\n' => break,
                        _ => {}
                    }
                }
                code.push('"');
            }
            _ => code.push(c),
        }
    }
    let spaced = code.replace('(', " ( ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    words
        .windows(3)
        .any(|w| matches!(w[0], "int" | "auto" | "signed") && w[1] == "main" && w[2] == "(")
}

/// `90`, `sm_90` or `compute_90`.
fn architecture(text: &str) -> Result<u32, String> {
    let digits = text
        .strip_prefix("sm_")
        .or(text.strip_prefix("compute_"))
        .unwrap_or(text);
    digits
        .trim_end_matches(['a', 'f'])
        .parse()
        .map_err(|_| format!("`{text}` is no architecture; write sm_90, for example"))
}

/// The named output, or the first source with another ending.
fn output(args: &Args, ending: &str) -> PathBuf {
    match &args.output {
        Some(output) => output.clone(),
        None => args.sources[0].with_extension(ending),
    }
}

/// A file that includes all sources.
fn unit(sources: &[PathBuf], folder: &Path, name: &str) -> Result<PathBuf> {
    let mut unit = String::new();
    for source in sources {
        let whole = source
            .canonicalize()
            .with_context(|| format!("cannot resolve {}", source.display()))?;
        let text = whole
            .to_string_lossy()
            .replace('\\', "\\\\")
            .replace('"', "\\\"");
        unit.push_str(&format!("#include \"{text}\"\n"));
    }
    let file = folder.join(name);
    std::fs::write(&file, unit).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(file)
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
    for folder in &args.include {
        command.arg("-I").arg(folder);
    }
    command.args(args.define.iter().map(|d| format!("-D{d}")));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_main_counts_outside_of_comments_and_strings() {
        for yes in [
            "int main() {}",
            "x;\nint\nmain (int argc, char **argv) {",
            "/* int */ auto main() -> int {",
            "\"//\"; int main() {",
        ] {
            assert!(defines_main(yes), "{yes}");
        }
        for no in [
            "// int main() {\nvoid f();",
            "/* int main() */",
            "\"int main()\"",
            "int mainly(); void main_loop();",
            "int domain();",
        ] {
            assert!(!defines_main(no), "{no}");
        }
    }

    #[test]
    fn architectures_have_several_spellings() {
        for text in ["90", "sm_90", "compute_90", "sm_90a"] {
            assert_eq!(architecture(text), Ok(90));
        }
        assert!(architecture("hopper").unwrap_err().contains("sm_90"));
    }
}
