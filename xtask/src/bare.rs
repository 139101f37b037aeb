//! Kernels and the test command on a bare machine: a minimal Debian with Rust, clang, g++ and
//! python3, as a user without rights.
//!
//! mmdebstrap makes the system below `target/bare`. In a mount namespace the checkout, this Rust
//! and the downloaded crates lie in it at their own places, so that what is built is not built
//! again. The user has the checkout's files and no right besides.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{ensure, Context as _, Result};
use fs_err as fs;

use crate::steps::{command_within, output, succeeds, Outcome, Words as _};
use crate::summary::{failed_tests, SKIPPED_TEST};
use crate::tools;
use crate::workspace::{entries, root, target};

/// What the README and the tutorial ask for, besides Rust. Git has made the checkout.
const PACKAGES: &str = "clang-19,g++,python3,git,ca-certificates";
/// Longest time of making the system, and of the tests in it.
const MAKING: Duration = Duration::from_secs(600);
const TESTS: Duration = Duration::from_secs(2300);

/// Mounts what the system needs and becomes the user. `$1`: the system; `$2`: the checkout; `$3`:
/// cargo's target folder; `$4`: Rust; `$5`: the home of cargo; `$6`: the folder of the step.
const ENTER: &str = r#"
system=$1 checkout=$2 target=$3 rust=$4 crates=$5 step=$6
mount --make-rprivate /
mount --bind "$system" "$system"
mount -t tmpfs -o mode=1777 tmpfs "$system/tmp"
for place in "$checkout" "$target" "$rust" "$crates"; do
  mkdir -p "$system$place"; mount --rbind "$place" "$system$place"
done
for own in tmp steps; do mkdir -p "$step/$own" "$target/$own"; mount --bind "$step/$own" "$system$target/$own"; done
mount --rbind /dev "$system/dev"; mount -t proc proc "$system/proc"; mount --rbind /sys "$system/sys"
mkdir -p "$system/home/user" "$system/outside"
# An installed Debian has this file.
[ -e "$system/etc/hosts" ] || printf '127.0.0.1 localhost\n::1 localhost\n' > "$system/etc/hosts"
# A process in a chroot may make no user namespace.
cd "$system"; pivot_root . outside; cd /; umount -l /outside
exec unshare --user --map-user=1000 --map-group=1000 \
  env -i PATH="$rust/bin:/usr/bin:/bin" HOME=/home/user LANG=C.UTF-8 CARGO_HOME="$crates" CARGO_TARGET_DIR="$target" \
  CARGO_NET_OFFLINE=true CARGO_TERM_COLOR=never sh -c 'cd "$1" && cargo xtask gen --compare && exec cargo xtask test' sh "$checkout"
"#;

/// As a step of `--all`: skipped where no such system can be made.
pub(crate) fn step() -> Result<Outcome> {
    let skipped = |why: String| Ok(Outcome::Skipped(why));
    if tools::find("mmdebstrap").is_none() {
        tools::install(&["mmdebstrap"]);
    }
    if let Some(tool) = tools::missing(&["mmdebstrap", "unshare"]) {
        return skipped(format!(
            "no {tool}. Debian: apt-get install mmdebstrap util-linux"
        ));
    }
    if !has_namespaces() {
        return skipped(
            "this machine lets no process make a user namespace in a mount namespace".into(),
        );
    }
    let folder = target().join("bare");
    let system = folder.join("system");
    if let Err(why) = make(&system) {
        let _ = fs::remove_dir_all(&system);
        return skipped(format!("no minimal Debian can be made here: {why:#}"));
    }
    let _ = fs::remove_file(log());
    let mut unshare = outer();
    unshare.args(["sh", "-euc", ENTER, "sh"]);
    let places = [system, root(), target(), rust()?, crates()?, folder];
    command_within(unshare.args(places).stdin(Stdio::null()), TESTS)?;
    println!("not run on aarch64: there is no such machine, and no emulator of one in this step");
    Ok(Outcome::Passed)
}

/// What its step `tests` has printed.
fn log() -> PathBuf {
    target().join("bare/steps/tests.log")
}

/// The tests that skipped themselves there, or failed, by their names.
pub(crate) fn left_over() -> Result<BTreeSet<String>> {
    let said = fs::read_to_string(log())?;
    let skipped = said.lines().filter_map(|l| l.strip_prefix(SKIPPED_TEST));
    let skipped = skipped.filter_map(|t| Some(t.split_once(": ")?.0.to_owned()));
    Ok(skipped.chain(failed_tests(&said)).collect())
}

/// The namespaces of the system, in which the mounts are made.
fn outer() -> Command {
    let mut unshare = Command::new("unshare");
    unshare.words("--mount --pid --fork --kill-child");
    if !tools::is_root() {
        unshare.arg("--map-root-user");
    }
    unshare
}

/// Whether these namespaces can be made, and the user's within them.
fn has_namespaces() -> bool {
    let mut probe = outer();
    probe.args([
        "sh",
        "-c",
        "mount --make-rprivate / && unshare --user --map-user=1000 --map-group=1000 true",
    ]);
    succeeds(&mut probe)
}

/// Makes the system, unless it is there.
fn make(system: &Path) -> Result<()> {
    let there = |name: &str| system.join("usr/bin").join(name).exists();
    if ["clang-19", "g++", "python3"].into_iter().all(there) {
        return Ok(());
    }
    // One of an earlier list of packages.
    let _ = fs::remove_dir_all(system);
    fs::create_dir_all(system.parent().context("a folder")?)?;
    let about = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let suite = about
        .lines()
        .find_map(|l| l.strip_prefix("VERSION_CODENAME="));
    let suite = suite.context("/etc/os-release names no release of Debian")?;
    ensure!(about.contains("\nID=debian"), "this is no Debian");
    let mut make = Command::new("mmdebstrap");
    make.args(["--quiet", "--variant=minbase"])
        .arg(format!("--include={PACKAGES}"));
    // This machine's sources and the settings of its network.
    for own in files("/etc/apt/apt.conf.d") {
        if fs::read_to_string(&own).is_ok_and(|text| text.contains("Acquire")) {
            make.arg(format!("--aptopt={}", own.display()));
        }
    }
    make.arg(suite).arg(system);
    let mut sources = files("/etc/apt/sources.list.d");
    sources.retain(|s| s.extension().is_some_and(|e| e == "list" || e == "sources"));
    sources.push("/etc/apt/sources.list".into());
    make.args(
        sources
            .iter()
            .filter(|s| fs::metadata(s).is_ok_and(|m| m.len() > 0)),
    );
    command_within(&mut make, MAKING)
}

/// None where the folder is not there.
fn files(folder: &str) -> Vec<PathBuf> {
    entries(Path::new(folder)).unwrap_or_default()
}

/// The folder of this Rust: its programs without rustup and without what was installed beside them.
fn rust() -> Result<PathBuf> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let told = output(Command::new(rustc).words("--print sysroot"))?;
    Ok(told.trim().into())
}

/// Where cargo keeps downloaded crates.
fn crates() -> Result<PathBuf> {
    if let Some(home) = std::env::var_os("CARGO_HOME") {
        return Ok(home.into());
    }
    let home = std::env::var_os("HOME").context("HOME is not set")?;
    Ok(PathBuf::from(home).join(".cargo"))
}
