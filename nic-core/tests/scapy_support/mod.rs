//! The Python whose scapy judges packets.

use std::path::PathBuf;
use std::process::Command;

/// A Python that finds scapy: the one below `target/`, or the system's. `cargo xtask test` installs
/// it below `target/venv`.
pub(crate) fn python() -> Option<PathBuf> {
    let here = std::env::current_exe().ok()?;
    let ours = here.ancestors().map(|a| a.join("venv/bin/python3"));
    let mut candidates = ours.filter(|p| p.exists()).chain(["python3".into()]);
    candidates.find(|p| {
        let tried = Command::new(p).args(["-c", "import scapy"]).output();
        tried.is_ok_and(|o| o.status.success())
    })
}
