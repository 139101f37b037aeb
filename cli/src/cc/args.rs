//! Arguments of `ringbell cc`.

use std::path::PathBuf;

/// Arguments of `ringbell cc`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Sources of CUDA kernels; a CUDA program (a main and <<<>>>); or a program with its kernels
    /// that includes ringbell.hpp
    #[arg(required = true, value_name = "FILE.cu")]
    pub(super) sources: Vec<PathBuf>,
    /// What to write [default: the first source without .cu for a program, with .ptx for kernels
    /// alone]
    #[arg(short, long, value_name = "FILE")]
    pub(super) output: Option<PathBuf>,
    /// Library that a program is linked with [default: the one beside this command, built when
    /// first used]
    #[arg(long, env = "RINGBELL_LIBRARY", value_name = "libringbell.so")]
    pub(super) library: Option<PathBuf>,
    /// Runtime library that a CUDA program contains [default: the one beside this command, built
    /// when first used]
    #[arg(long, value_name = "libringbell_cudart.a")]
    pub(super) runtime: Option<PathBuf>,
    /// Folder of headers
    #[arg(short = 'I', value_name = "FOLDER")]
    pub(super) include: Vec<PathBuf>,
    /// Macro
    #[arg(short = 'D', value_name = "NAME[=VALUE]")]
    pub(super) define: Vec<String>,
    /// Optimisation
    #[arg(short = 'O', default_value = "2", value_name = "LEVEL")]
    pub(super) optimise: String,
    /// Language of the sources
    #[arg(long, default_value = "c++17", value_name = "STANDARD")]
    pub(super) std: String,
    /// Compiler for real GPUs; without one no fat binary is built [default: nvcc, where there is
    /// one]
    #[arg(long, value_name = "PROGRAM", conflicts_with = "no_nvcc")]
    pub(super) nvcc: Option<PathBuf>,
    /// Build no fat binary, even where nvcc is
    #[arg(long, visible_alias = "emulate-only")]
    pub(super) no_nvcc: bool,
    /// Architectures of the fat binary, such as sm_90; PTX is for the newest, up to 90
    #[arg(
        long,
        value_name = "SM",
        value_delimiter = ',',
        value_parser = architecture,
        default_value = "80,90"
    )]
    pub(super) arch: Vec<u32>,
    /// Further flags for the compilers
    #[arg(last = true, value_name = "FLAGS")]
    pub(super) flags: Vec<String>,
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
pub(super) fn output(args: &Args, ending: &str) -> PathBuf {
    match &args.output {
        Some(output) => output.clone(),
        None => args.sources[0].with_extension(ending),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn architectures_have_several_spellings() {
        for text in ["90", "sm_90", "compute_90", "sm_90a"] {
            assert_eq!(architecture(text), Ok(90));
        }
        assert!(architecture("hopper").unwrap_err().contains("sm_90"));
    }
}
