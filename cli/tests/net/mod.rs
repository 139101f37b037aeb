//! Helpers for tests against Linux programs: network namespaces of their own, files, and visible
//! skipping.
//!
//! Every test works in a namespace of its own processes: devices and addresses cannot collide with
//! another test's, and everything vanishes with the test, in any case.
#![allow(dead_code)] // Each test program uses its part.
#![allow(clippy::disallowed_methods)] // Tests of programs wait for programs.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Longest time that one program of a test may take.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// Skips the test, and prints it where `cargo test` shows it.
#[macro_export]
macro_rules! skip {
    ($($why:tt)*) => {{
        eprintln!("SKIPPED {}: {}", module_path!(), format!($($why)*));
        return;
    }};
}

/// A network namespace. It lives as long as a process in it: ours, which ends when this is dropped
/// or the test's process dies.
pub(crate) struct Namespace {
    holder: Child,
    /// Closing it ends the holder.
    _input: Option<ChildStdin>,
    user: bool,
    /// Discovery folder of this namespace's NICs. Not below `target`: the name of a Unix socket is
    /// short.
    runtime: PathBuf,
}

impl Namespace {
    /// A new namespace, by right as root, else inside a new user namespace.
    ///
    /// # Errors
    /// Why this machine grants none.
    pub(crate) fn new() -> Result<Namespace, String> {
        let user = !rustix::process::geteuid().is_root();
        let mut unshare = Command::new("unshare");
        if user {
            unshare.arg("-r");
        }
        unshare.arg("-n");
        let n = Namespace::hold(unshare, user)?;
        n.ip("link set lo up")?;
        Ok(n)
    }

    /// A new namespace in which this user can make a TAP device: `/dev/net/tun` may be there, and
    /// closed.
    ///
    /// # Errors
    /// Why this machine grants none.
    pub(crate) fn with_tap() -> Result<Namespace, String> {
        let n = Namespace::new()?;
        n.ip("tuntap add dev probe mode tap")
            .map_err(|e| format!("no TAP device: {e}"))?;
        n.ip("link del probe")?;
        Ok(n)
    }

    fn ip(&self, args: &str) -> Result<(), String> {
        match self.command("ip").args(args.split(' ')).output() {
            Ok(out) if out.status.success() => Ok(()),
            Ok(out) => {
                let said = String::from_utf8_lossy(&out.stderr);
                Err(format!("ip {args}: {}", said.trim()))
            }
            Err(e) => Err(format!("`ip` (package iproute2) does not start: {e}")),
        }
    }

    /// A second namespace, joined with this one by a cable: `a` is this one's address, `b` the
    /// other's.
    pub(crate) fn joined(&self, a: &str, b: &str) -> Result<Namespace, String> {
        let mut unshare = self.command("unshare");
        unshare.arg("-n");
        let other = Namespace::hold(unshare, self.user)?;
        let pid = other.holder.id().to_string();
        let steps: [(&Namespace, &[&str]); 6] = [
            (
                self,
                &[
                    "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", &pid,
                ],
            ),
            (self, &["addr", "add", a, "dev", "cable"]),
            (self, &["link", "set", "cable", "up"]),
            (&other, &["addr", "add", b, "dev", "cable"]),
            (&other, &["link", "set", "cable", "up"]),
            (&other, &["link", "set", "lo", "up"]),
        ];
        for (n, args) in steps {
            let out = n
                .command("ip")
                .args(args)
                .output()
                .map_err(|e| e.to_string())?;
            if !out.status.success() {
                return Err(format!(
                    "ip {}: {}",
                    args.join(" "),
                    String::from_utf8_lossy(&out.stderr)
                ));
            }
        }
        Ok(other)
    }

    /// So many namespaces joined by a bridge, numbered from 1: number n has the address 10.60.0.n
    /// on its `cable`, whose MTU is `mtu(n)`. The first of the result is the bridge's.
    pub(crate) fn bridged(count: u32, mtu: impl Fn(u32) -> u32) -> Result<Vec<Namespace>, String> {
        let bridge = Namespace::new()?;
        bridge.ip("link add hub type bridge")?;
        bridge.ip("link set hub up")?;
        let mut all = vec![bridge];
        for n in 1..=count {
            let mut unshare = all[0].command("unshare");
            unshare.arg("-n");
            let host = Namespace::hold(unshare, all[0].user)?;
            let (pid, mtu) = (host.holder.id(), mtu(n));
            all[0].ip(&format!(
                "link add port{n} mtu {mtu} type veth peer name cable mtu {mtu} netns {pid}"
            ))?;
            all[0].ip(&format!("link set port{n} master hub up"))?;
            host.ip(&format!("addr add 10.60.0.{n}/24 dev cable"))?;
            host.ip("link set cable up")?;
            host.ip("link set lo up")?;
            all.push(host);
        }
        Ok(all)
    }

    fn hold(mut unshare: Command, user: bool) -> Result<Namespace, String> {
        let net = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/net")).ok();
        let mut holder = unshare
            .arg("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| format!("`unshare` (package util-linux) does not start: {e}"))?;
        let input = holder.stdin.take();
        let start = Instant::now();
        let comm = format!("/proc/{}/comm", holder.id());
        while start.elapsed() < Duration::from_secs(10) {
            let held = net(&holder.id().to_string());
            let ready = std::fs::read_to_string(&comm).is_ok_and(|c| c.trim() == "cat");
            if ready && held.is_some() && held != net("self") {
                let runtime = std::env::temp_dir().join(format!("ringbell-test-{}", holder.id()));
                std::fs::create_dir_all(&runtime).map_err(|e| e.to_string())?;
                return Ok(Namespace {
                    runtime,
                    holder,
                    _input: input,
                    user,
                });
            }
            if holder.try_wait().is_ok_and(|s| s.is_some()) {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = holder.kill();
        let mut why = String::new();
        if let Some(mut e) = holder.stderr.take() {
            let _ = e.read_to_string(&mut why);
        }
        let _ = holder.wait();
        Err(format!(
            "no network namespace without root or user namespaces: {}",
            why.trim()
        ))
    }

    /// A program inside the namespace.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut c = Command::new("nsenter");
        c.args(["-t", &self.holder.id().to_string(), "-n"]);
        if self.user {
            c.args(["-U", "--preserve-credentials"]);
        }
        c.arg("--")
            .arg(program)
            .env_remove("RINGBELL_DEBUG")
            .env("XDG_RUNTIME_DIR", &self.runtime);
        c
    }

    /// `ringbell` inside the namespace.
    pub(crate) fn ringbell(&self, args: &[&str]) -> Command {
        let mut c = self.command(env!("CARGO_BIN_EXE_ringbell"));
        c.args(args);
        c
    }

    /// A Python program inside the namespace.
    pub(crate) fn python(&self, script: &str, args: &[&str]) -> Command {
        let mut c = self.command("python3");
        c.arg("-c").arg(script).args(args);
        c
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
        let _ = std::fs::remove_dir_all(&self.runtime);
    }
}

/// A program that is ended when the test leaves it.
pub(crate) struct Running {
    child: Child,
    name: String,
    stderr: std::sync::mpsc::Receiver<String>,
    said: String,
}

/// Starts a program; its standard error is kept, to be waited for and shown.
pub(crate) fn start(mut command: Command) -> Running {
    let name = format!("{command:?}");
    let mut child = command
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("{name} does not start: {e}"));
    let stderr = child.stderr.take().expect("piped");
    let (to, from) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            let _ = to.send(line);
        }
    });
    Running {
        child,
        name,
        stderr: from,
        said: String::new(),
    }
}

impl Running {
    /// Number of the process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The process.
    pub(crate) fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Waits until the program has printed a line that contains `text` on standard error.
    pub(crate) fn says(&mut self, text: &str) -> String {
        let end = Instant::now() + LIMIT;
        while let Ok(line) = self
            .stderr
            .recv_timeout(end.saturating_duration_since(Instant::now()))
        {
            self.said.push_str(&line);
            self.said.push('\n');
            if line.contains(text) {
                return line;
            }
        }
        panic!("{} did not say `{text}`, but:\n{}", self.name, self.said);
    }

    /// Waits for the end; returns the exit code and the standard error.
    pub(crate) fn ends(self) -> (Option<i32>, String) {
        self.ends_within(LIMIT)
    }

    /// As [`Running::ends`]; a program that still runs after `limit` fails the test.
    pub(crate) fn ends_within(mut self, limit: Duration) -> (Option<i32>, String) {
        let end = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait().expect("it can be waited for") {
                while let Ok(line) = self.stderr.recv_timeout(Duration::from_secs(5)) {
                    self.said.push_str(&line);
                    self.said.push('\n');
                }
                return (status.code(), std::mem::take(&mut self.said));
            }
            if Instant::now() >= end {
                self.said.extend(self.stderr.try_iter());
                panic!(
                    "{} still runs after {limit:?}; it said:\n{}",
                    self.name, self.said
                );
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for an end with exit code 0.
    pub(crate) fn succeeds(self) -> String {
        let name = self.name.clone();
        let (code, said) = self.ends();
        assert_eq!(code, Some(0), "{name}:\n{said}");
        said
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether a program is installed.
pub(crate) fn installed(program: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|p| {
        std::env::split_paths(&p).any(|dir| {
            let file = dir.join(program);
            file.is_file()
        })
    })
}

/// Runs a command to its end.
pub(crate) fn output(mut command: Command) -> Output {
    command
        .output()
        .unwrap_or_else(|e| panic!("{command:?} does not start: {e}"))
}

/// A folder of one test, removed with what is in it.
pub(crate) struct Folder(PathBuf);

/// A folder of this test's own, empty.
pub(crate) fn folder(name: &str) -> Folder {
    let path =
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).expect("a folder can be made");
    Folder(path)
}

impl std::ops::Deref for Folder {
    type Target = Path;
    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Bytes of the files that are sent: 16 MiB.
pub(crate) const FILE_BYTES: usize = 16 << 20;

/// Writes a file of pseudo-random bytes, other ones for each seed, and a length that nothing
/// divides.
pub(crate) fn random_file(path: &Path, bytes: usize, seed: u64) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut data = Vec::with_capacity(bytes + 8);
    while data.len() < bytes + 5 {
        // xorshift64*: fast, and no block repeats.
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        data.extend_from_slice(&state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes());
    }
    data.truncate(bytes + 5);
    std::fs::write(path, data).expect("a file can be written");
}

/// The file's SHA-256.
pub(crate) fn sha256(path: &Path) -> String {
    let mut c = Command::new("sha256sum");
    c.arg(path);
    let out = output(c);
    assert!(out.status.success(), "sha256sum {}", path.display());
    let text = String::from_utf8_lossy(&out.stdout);
    text.split_whitespace().next().expect("a sum").to_string()
}
