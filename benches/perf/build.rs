//! Tells the library which commit it was built from, and by which profile, for the reports.

mod profile;

use std::path::Path;
use std::process::Command;

fn git(args: &[&str]) -> Option<String> {
    let out = Command::new("git").args(args).output().ok()?;
    if !out.status.success() {
        return None;
    }
    Some(String::from_utf8(out.stdout).ok()?.trim().to_string())
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=profile.rs");
    let commit = git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_else(|| "unknown".into());
    // The log of HEAD grows with each commit and checkout; without one cargo would rebuild each
    // time.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        if Path::new(&log).exists() {
            println!("cargo::rerun-if-changed={log}");
        }
    }
    println!("cargo::rustc-env=RINGBELL_COMMIT={commit}");
    profile::tell();
}
