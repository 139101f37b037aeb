//! `ringbell cc`: builds a user's own kernels, with or without the program that launches them, by
//! clang.
//!
//! Sources of kernels alone become PTX: the host loads it (`Nic::module`, `rb_module_load`) and
//! launches its kernels by name. A source with a `main` becomes a program with its kernels in it.
//! It launches through `rb::launch` of `ringbell.hpp`, and is linked with libringbell.so; or it is
//! a CUDA program with `<<<>>>`, and contains the runtime library of ours.

mod args;
mod clang;
mod headers;
mod whole;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::{stdio, Exit, Problem};
use args::output;
pub(crate) use args::Args;
use clang::succeed;

/// Builds the kernels of a source as `ringbell cc` does without options, and returns their PTX.
///
/// # Errors
/// There is no such file, or clang refuses it.
pub(crate) fn ptx_of(source: &Path) -> Result<String> {
    if !source.is_file() {
        return Err(Problem::new(
            Exit::Usage,
            format!("there is no file {}", source.display()),
            "give the path of a .cu or .ptx file",
        )
        .into());
    }
    let line = [OsStr::new("cc"), source.as_os_str()];
    let given = <Args as clap::Args>::augment_args(clap::Command::new("cc"));
    let args =
        <Args as clap::FromArgMatches>::from_arg_matches(&given.try_get_matches_from(line)?)?;
    let headers = headers::Unpacked::new().context("cannot unpack the device headers")?;
    let out = headers.path().join("kernels.ptx");
    clang::compile(&args, headers.path(), &out)?;
    std::fs::read_to_string(&out).with_context(|| format!("cannot read {}", out.display()))
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
}
