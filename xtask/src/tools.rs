//! Which tools the tests can use here. A test that lacks one skips itself; this says so beforehand.

use std::path::{Path, PathBuf};

/// A tool, what needs it, and the Debian package that brings it.
const TOOLS: [(&str, &str, &str); 8] = [
    ("g++", "the emulated GPU (nothing works without it)", "g++"),
    (
        "python3",
        "nvcc from PyPI, Python TCP peers",
        "python3-venv",
    ),
    ("ip", "network namespaces, TAP", "iproute2"),
    ("nc", "Linux TCP peers over TAP", "netcat-openbsd"),
    ("curl", "Linux TCP peers over TAP", "curl"),
    ("tshark", "verification of captures", "tshark"),
    ("valgrind", "instruction counts", "valgrind"),
    ("git", "the commit in reports", "git"),
];

/// Where `name` lies on PATH (and in the sbin folders, which a user's PATH often lacks).
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}

/// Prints what is missing, and what is skipped without it.
pub(crate) fn report() {
    for (name, needed_by, package) in TOOLS {
        match find(name) {
            Some(path) => println!("found   {name:<8} {}", path.display()),
            None => println!(
                "MISSING {name:<8} skipped without it: {needed_by}. Debian: apt-get install {package}"
            ),
        }
    }
    let root = is_root();
    let tun = Path::new("/dev/net/tun").exists();
    match (root, tun) {
        (true, true) => println!("found   root and /dev/net/tun: TAP and namespace tests run"),
        (false, _) => println!("SKIPPED tests with TAP and network namespaces: they need root"),
        (true, false) => println!("SKIPPED tests with TAP: there is no /dev/net/tun"),
    }
}

/// Whether this process has the effective user id 0, as /proc tells.
fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    effective_uid(&status) == Some(0)
}

/// The second number of the `Uid:` line.
fn effective_uid(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|l| l.strip_prefix("Uid:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_is_there_and_nothing_else() {
        assert!(find("sh").is_some());
        assert!(find("no-such-program-as-this").is_none());
    }

    #[test]
    fn reads_the_effective_user() {
        assert_eq!(
            effective_uid("Name:\tx\nUid:\t1000\t0\t1000\t1000\n"),
            Some(0)
        );
        assert_eq!(effective_uid("Uid:\t0\t1000\t0\t0\n"), Some(1000));
        assert_eq!(effective_uid(""), None);
    }
}
