//! Advice for a command that is one of another command: `ringbell allreduce` is
//! `ringbell perf all-reduce`.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// What to write instead of an unknown command, where a benchmark has its name; hyphens and case do
/// not count.
pub(crate) fn elsewhere(command: &clap::Command, error: &clap::Error) -> Option<String> {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return None;
    }
    let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidSubcommand) else {
        return None;
    };
    let letters = |name: &str| name.replace(['-', '_'], "").to_ascii_lowercase();
    let is_meant = |name: &str| letters(name) == letters(given);
    let perf = command.find_subcommand("perf")?;
    let bench = perf
        .get_subcommands()
        .filter(|c| !c.is_hide_set())
        .find(|c| is_meant(c.get_name()) || c.get_all_aliases().any(is_meant))?;
    Some(format!(
        "  tip: `ringbell perf {}` is a benchmark; `ringbell perf --help` lists all",
        bench.get_name()
    ))
}
