//! Second run of the tests that can depend on rights, as an unprivileged user.
//!
//! All of it runs in a mount namespace of the step's own: there `/etc/passwd` has one user more,
//! `/dev/net/tun` is closed to it, and a folder of its own lies where tests write. The machine
//! stays unchanged. The tests are those that were built before, and the test runner reads their
//! list: the user needs neither cargo nor a Rust compiler.

use std::ffi::OsString;
use std::fs::Permissions;
use std::os::unix::fs::{chown, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};
use fs_err as fs;

use crate::steps::{command, output, Outcome, Words as _};
use crate::tools;
use crate::workspace::{built as folder_of_builds, cargo, has_nextest, root, target};

/// The user's number: one that neither Debian nor systemd assigns.
const USER: u32 = 60_999;

/// The tests, as the runner's filter: those of devices, namespaces, files, sockets, limits and
/// processes. The rest computes, and needs no right of the system.
const WANTED: &str = "(package(ringbell) & (test(/^(card|communicator_memory|progress|sockets)::/) | binary(ringbell))) \
    | (package(ringbell-cli) & (test(/^(nc|udp|hosts|run|cli|command_line|descriptors|faults|regs_live|tutorial|ends)::/) | binary(ringbell))) \
    | (package(ringbell-nic-core) & (test(/^(tcp_linux|tcp_scapy|networks)::/) | test(cache) | test(shmem) | test(port::))) \
    | package(ringbell-card) | package(ringbell-job)";

/// Shell script with the mounts for the user, written to a file of the step. `$1`: the step's
/// folder; `$2`: cargo's; `$3`: the user's number. Folders that others cannot enter follow, up to
/// `--`: an accessible overlay covers each. The remaining words are the command.
const ENTER: &str = r#"
step=$1 target=$2 user=$3; shift 3
covers=0
while [ "$1" != -- ]; do
  # An overlay's upper folder must not lie on an overlay, so it gets a file system of its own.
  if [ $covers = 0 ]; then mount -t tmpfs -o mode=755 tmpfs /mnt; fi
  covers=$((covers + 1)); cover=/mnt/$covers
  mkdir -m 755 "$cover" "$cover/upper"; mkdir "$cover/work"
  mount -t overlay -o "lowerdir=$1,upperdir=$cover/upper,workdir=$cover/work" overlay "$1"
  shift
done
shift
mount --bind "$step/tmp" "$target/tmp"
mount --bind "$step/passwd" /etc/passwd
if [ -e /dev/net/tun ]; then mount --bind "$step/tun" /dev/net/tun; fi
# Through the covers: what this shell has open is the folder below them.
cd "$PWD"
exec setpriv --reuid "$user" --regid "$user" --clear-groups --bounding-set=-all --inh-caps=-all --no-new-privs \
  env -i PATH=/usr/local/bin:/usr/bin:/bin HOME="$step/home" LANG=C.UTF-8 "$@"
"#;

/// Checks that the script runs as the user, with the needed access and nothing else.
const PROBE: &str = r#"
[ "$(id -u)" != 0 ] || { echo "the user is still root" >&2; exit 1; }
for file in "$@"; do [ -r "$file" ] || { echo "the user cannot read $file" >&2; exit 1; }; done
[ ! -w /dev/net/tun ] || { echo "/dev/net/tun is open to the user" >&2; exit 1; }
"#;

/// As a step of CI: skipped by a user, whose tests have run without rights already, and where root
/// lacks rights itself.
pub(crate) fn tests() -> Result<Outcome> {
    let skipped = |why: &str| Ok(Outcome::Skipped(why.to_owned()));
    if !tools::is_root() {
        return skipped("the tests have just run as a user; only root can become another one");
    }
    if !has_nextest() {
        return skipped("cargo-nextest is not installed, which runs tests that were built before");
    }
    if let Some(tool) = tools::missing(&["unshare", "setpriv"]) {
        return skipped(&format!("no {tool} (Debian: util-linux)"));
    }
    let step = Step::prepare()?;
    let probe = step
        .enter()
        .args(["sh", "-euc", PROBE, "sh"])
        .args([
            &step.file(BINARIES),
            &step.file(METADATA),
            &step.file(RUNNER),
        ])
        .stdout(Stdio::null())
        .output()
        .context("cannot start unshare")?;
    if !probe.status.success() {
        let why = String::from_utf8_lossy(&probe.stderr);
        return skipped(&format!(
            "no user without rights can be had here: {}",
            why.trim()
        ));
    }
    let mut built = OsString::from("RINGBELL_TEST_BUILT=");
    built.push(folder_of_builds());
    let mut run = step.enter();
    run.arg("env").arg(built).arg(step.file(RUNNER));
    run.words("nextest run --no-fail-fast --binaries-metadata");
    run.arg(step.file(BINARIES)).arg("--cargo-metadata");
    command(run.arg(step.file(METADATA)).args(["-E", WANTED]))?;
    Ok(Outcome::Passed)
}

/// Files of the step.
const BINARIES: &str = "binaries.json";
const METADATA: &str = "metadata.json";
const RUNNER: &str = "cargo-nextest";

/// The step's folders, and cargo's.
struct Step {
    folder: PathBuf,
    target: PathBuf,
}

impl Step {
    /// Lists the built tests, and makes the user's folders.
    fn prepare() -> Result<Step> {
        let metadata = output(cargo().words("metadata --format-version 1 --locked"))?;
        let step = Step {
            folder: target().join("unprivileged"),
            target: target(),
        };
        let old = &step.folder;
        if old.exists() {
            fs::remove_dir_all(old)?;
        }
        fs::create_dir_all(old)?;
        fs::set_permissions(old, Permissions::from_mode(0o755))?;
        for own in ["tmp", "home"] {
            let own = step.folder.join(own);
            fs::create_dir(&own)?;
            chown(&own, Some(USER), Some(USER))?;
        }
        fs::create_dir_all(step.target.join("tmp"))?;
        let mut users = fs::read_to_string("/etc/passwd")?;
        let home = step.folder.join("home");
        users += &format!(
            "ringbell-test:x:{USER}:{USER}::{}:/bin/sh\n",
            home.display()
        );
        step.write("passwd", &users, 0o644)?;
        step.write("tun", "", 0o600)?;
        step.write("enter.sh", ENTER, 0o644)?;
        let list = "nextest list --workspace --list-type binaries-only --message-format json";
        let binaries = output(cargo().words(list))?;
        step.write(BINARIES, &binaries, 0o644)?;
        step.write(METADATA, &metadata, 0o644)?;
        // It lies in a home of root's, which the user cannot enter.
        let runner = tools::find("cargo-nextest").context("cargo-nextest is not on PATH")?;
        fs::copy(runner, step.file(RUNNER))?;
        Ok(step)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn write(&self, name: &str, text: &str, mode: u32) -> Result<()> {
        let path = self.file(name);
        fs::write(&path, text)?;
        fs::set_permissions(&path, Permissions::from_mode(mode))?;
        Ok(())
    }

    /// Commands after this one run as the user.
    fn enter(&self) -> Command {
        let mut closed = closed_to_others(&root());
        closed.extend(closed_to_others(&self.target));
        closed.sort();
        closed.dedup();
        let mut enter = Command::new("unshare");
        enter
            .current_dir(root())
            .args(["--mount", "--propagation", "private", "sh", "-eu"])
            .arg(self.file("enter.sh"))
            .args([&self.folder, &self.target])
            .arg(USER.to_string())
            .args(closed)
            .arg("--");
        enter
    }
}

/// The folder and those above it that only their owner can enter, the outermost first.
fn closed_to_others(folder: &Path) -> Vec<PathBuf> {
    let is_closed = |f: &&Path| fs::metadata(f).is_ok_and(|m| m.permissions().mode() & 0o001 == 0);
    let mut closed: Vec<PathBuf> = folder
        .ancestors()
        .filter(is_closed)
        .map(Path::to_owned)
        .collect();
    closed.reverse();
    closed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_that_others_cannot_enter_are_found_from_the_outside_in() {
        let base = root().join(format!("target/closed-{}", std::process::id()));
        let inner = base.join("open/closed/inner");
        fs::create_dir_all(&inner).expect("folders");
        let close =
            |f: &Path, mode| fs::set_permissions(f, Permissions::from_mode(mode)).expect("mode");
        let (outer, middle) = (base.clone(), base.join("open/closed"));
        let found = |f: &Path| {
            let all = closed_to_others(f);
            all.into_iter()
                .filter(|f| f.starts_with(&base))
                .collect::<Vec<_>>()
        };
        for folder in [&outer, &base.join("open"), &middle, &inner] {
            close(folder, 0o755);
        }
        assert_eq!(found(&inner), Vec::<PathBuf>::new());
        close(&middle, 0o750);
        close(&outer, 0o700);
        assert_eq!(found(&inner), [outer.clone(), middle]);
        fs::remove_dir_all(&base).expect("removed");
    }
}
