//! Standard output and standard error of the program.
//!
//! A reader may close the pipe before everything is printed: `ringbell regs | head -1`. Then the
//! rest is dropped, and the program ends with its usual exit code. `print!` and its kin panic
//! there, which is why clippy refuses them in this program (`main.rs`). Any other failure, for
//! example a full disk, is an error.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

use anyhow::{Context, Result};

/// Prints on standard output.
///
/// # Errors
/// When the text cannot be written for another reason than a closed pipe.
pub(crate) fn out(text: impl Display) -> Result<()> {
    written(write(&mut io::stdout().lock(), text))
}

/// Prints a line on standard output.
///
/// # Errors
/// As [`out`].
pub(crate) fn line(text: impl Display) -> Result<()> {
    out(format_args!("{text}\n"))
}

/// Prints a line on standard error. A failure to do so cannot be reported.
pub(crate) fn note(text: impl Display) {
    let _ = write(&mut io::stderr().lock(), format_args!("{text}\n"));
}

/// Result of a write to standard output.
///
/// # Errors
/// As [`out`].
pub(crate) fn written(result: io::Result<()>) -> Result<()> {
    match result {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => {
            Err(e).context("cannot write standard output; check where it leads to")
        }
        _ => Ok(()),
    }
}

/// One write for each text, so that lines of several threads do not mix.
fn write(to: &mut impl Write, text: impl Display) -> io::Result<()> {
    to.write_all(text.to_string().as_bytes())?;
    to.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_pipe_is_no_error_and_a_full_disk_is() {
        assert!(written(Err(ErrorKind::BrokenPipe.into())).is_ok());
        let full = written(Err(ErrorKind::StorageFull.into())).expect_err("an error");
        assert!(format!("{full:#}").contains("standard output"));
    }
}
