//! Exit codes of the program, and its messages: what happened, where, and what to do.

use std::fmt;
use std::process::ExitCode;

use ringbell_perf::OperationFailed;

/// How the program ends; the numbers are part of the command line's contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Everything was done.
    Ok,
    /// The operation failed.
    Failed,
    /// The command line is invalid. (clap ends with the same number.)
    Usage,
    /// Everything ran, but data arrived wrong.
    WrongData,
    /// A requested resource is missing: a device, a right, a compiler.
    Environment,
    /// Ctrl-C, as shells number it.
    Interrupted,
    /// The exit code of the started program.
    Program(u8),
}

impl Exit {
    /// The end of a measurement in which so many bytes were wrong.
    pub(crate) fn of_data(wrong: u64) -> Exit {
        match wrong {
            0 => Exit::Ok,
            _ => Exit::WrongData,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(match exit {
            Exit::Ok => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::WrongData => 3,
            Exit::Environment => 4,
            Exit::Interrupted => 130,
            Exit::Program(code) => code,
        })
    }
}

/// An error with a remedy.
#[derive(Debug)]
pub(crate) struct Problem {
    what: String,
    advice: String,
    exit: Exit,
}

impl Problem {
    /// What happened (and where), the remedy, and the exit.
    pub(crate) fn new(exit: Exit, what: impl Into<String>, advice: impl Into<String>) -> Problem {
        Problem {
            what: what.into(),
            advice: advice.into(),
            exit,
        }
    }

    /// The exit of a program that ends with this error.
    pub(crate) fn exit_of(error: &anyhow::Error) -> Exit {
        let problem = error.downcast_ref::<Problem>();
        problem.map_or(Exit::Failed, |p| p.exit)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for Problem {}

/// Prints an error on standard error and returns the exit.
pub(crate) fn print(error: &anyhow::Error) -> Exit {
    super::stdio::note(text(error).trim_end());
    Problem::exit_of(error)
}

fn text(error: &anyhow::Error) -> String {
    let mut out = format!("ringbell: {error}\n");
    for cause in error.chain().skip(1) {
        out.push_str(&format!("  because: {cause}\n"));
    }
    let advice = error.downcast_ref::<Problem>().map(|p| p.advice.clone());
    let failed = || error.downcast_ref::<OperationFailed>();
    if let Some(advice) = advice.or_else(|| failed().map(OperationFailed::advice)) {
        out.push_str(&format!("  what to do: {advice}\n"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context as _;

    #[test]
    fn an_error_has_a_cause_a_place_and_a_remedy() {
        let io = std::io::Error::other("busy");
        let error = Err::<(), _>(io)
            .context(Problem::new(
                Exit::Environment,
                "cannot open TAP rb0",
                "choose another name",
            ))
            .expect_err("it is an error");
        assert_eq!(
            text(&error),
            "ringbell: cannot open TAP rb0\n  because: busy\n  what to do: choose another name\n"
        );
        assert_eq!(print(&error), Exit::Environment);
        assert_eq!(print(&anyhow::anyhow!("plain")), Exit::Failed);
    }
}
