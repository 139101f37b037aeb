//! Secret of the UDP port, from a place that other users cannot read.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{Exit, Problem};

/// The variable that gives the secret when no file does.
const VARIABLE: &str = "RINGBELL_UDP_SECRET";

/// `--secret`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct SecretArgs {
    /// Port udp: peers that prove to know the number in this file are heard, without being listed.
    /// RINGBELL_UDP_SECRET may hold the number itself; arguments are there for every user to read
    #[arg(long = "secret", value_name = "FILE")]
    file: Option<PathBuf>,
}

impl SecretArgs {
    /// The number, if one is given.
    pub(crate) fn read(&self) -> Result<Option<u64>> {
        match &self.file {
            Some(path) => from_file(path).map(Some),
            None => match std::env::var(VARIABLE) {
                Ok(text) if !text.is_empty() => number(&text, VARIABLE).map(Some),
                _ => Ok(None),
            },
        }
    }
}

fn from_file(path: &Path) -> Result<u64> {
    let place = path.display().to_string();
    let text = std::fs::read_to_string(path).with_context(|| {
        Problem::new(
            Exit::Usage,
            format!("cannot read the secret from {place}"),
            format!("--secret takes a file with the number in it; or set {VARIABLE} to the number"),
        )
    })?;
    number(&text, &place)
}

/// Decimal, or hexadecimal behind 0x. No message repeats it.
fn number(text: &str, place: &str) -> Result<u64> {
    let text = text.trim();
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| {
        Problem::new(
            Exit::Usage,
            format!("what {place} holds is not a number of 64 bits"),
            "write one number, decimal or hexadecimal with 0x before it, for example from `od -An -N8 -tu8 /dev/urandom`",
        )
        .into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_read_from_a_file_and_never_repeated() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let at = |text: &str| {
            std::fs::write(file.path(), text).expect("written");
            from_file(file.path())
        };
        assert_eq!(at("4711\n").expect("a number"), 4711);
        assert_eq!(at("0xff00").expect("a number"), 0xff00);
        for wrong in ["", "swordfish", "0xswordfish", "18446744073709551616"] {
            let e = format!("{:#}", at(wrong).expect_err("no number"));
            assert!(!e.contains("sword") && !e.contains("184467"), "{e}");
        }
        let e = from_file(Path::new("/nowhere/4711")).expect_err("no file");
        assert!(e.to_string().contains("cannot read the secret"), "{e}");
    }
}
