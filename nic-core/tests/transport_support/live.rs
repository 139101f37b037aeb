//! A transport in real time, over a TAP device whose kernel end is alone in a network namespace.
#![allow(clippy::disallowed_methods)] // Real time at the edge.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ringbell_nic_abi::Status;
use ringbell_nic_core::port::tap::{TapConfig, TapPort};
use ringbell_nic_core::port::{MacAddr, Port};
use ringbell_nic_core::transport::tcp::TcpConfig;
use ringbell_nic_core::transport::{Close, Transport, TransportEvent};
use ringbell_nic_core::types::{ConnId, NicTime};

use super::Side;

pub const NIC: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
pub const HOST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Prints why a test does not run here, and ends it.
#[macro_export]
macro_rules! need {
    ($($tool:expr),*) => {
        if let Some(why) = missing(&[$($tool),*]) {
            eprintln!("SKIPPED {}:{}: {why}", file!(), line!());
            return;
        }
    };
}

pub fn run(program: &str, args: &[&str]) -> Option<Output> {
    Command::new(program).args(args).output().ok()
}

pub fn ok(program: &str, args: &[&str]) {
    let out = run(program, args).unwrap_or_else(|| panic!("cannot start {program}"));
    let err = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{program} {args:?}: {err}");
}

/// Why these tests cannot run here.
pub fn missing(tools: &[&str]) -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("it needs root (network namespaces, TAP)".into());
    }
    if !std::path::Path::new("/dev/net/tun").exists() {
        return Some("there is no /dev/net/tun".into());
    }
    let absent = |t: &&&str| run(t, &["--version"]).or_else(|| run(t, &["-V"])).is_none();
    if let Some(t) = tools.iter().find(absent) {
        return Some(format!("{t} is not installed"));
    }
    let probe = unique("rbprobe");
    match run("ip", &["netns", "add", &probe]) {
        Some(o) if o.status.success() => {
            let _ = run("ip", &["netns", "del", &probe]);
            None
        }
        _ => Some("network namespaces cannot be made here".into()),
    }
}

/// A name that no other test uses, short enough for an interface with a letter in front.
fn unique(prefix: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{prefix}{}x{n}", std::process::id() % 100_000)
}

/// A network namespace that goes away with the test.
pub struct Namespace(pub String);

impl Namespace {
    pub fn new() -> Namespace {
        let name = unique("rb");
        ok("ip", &["netns", "add", &name]);
        ok("ip", &["-n", &name, "link", "set", "lo", "up"]);
        Namespace(name)
    }
    pub fn python(&self, script: &str, args: &[&str]) -> Child {
        Command::new("ip")
            .args(["netns", "exec", &self.0, "python3", "-c", script])
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("ip is installed")
    }
    /// Moves this thread into the namespace: sockets that it makes live there.
    pub fn enter(&self) {
        let fd = File::open(format!("/var/run/netns/{}", self.0)).expect("the namespace exists");
        rustix::thread::move_into_link_name_space(
            std::os::fd::AsFd::as_fd(&fd),
            Some(rustix::thread::LinkNameSpaceType::Network),
        )
        .expect("root may enter");
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = run("ip", &["netns", "del", &self.0]);
    }
}

/// A TAP device whose kernel end is alone in a namespace.
pub fn tap(ns: &Namespace, offloads: bool) -> TapPort {
    let name = format!("t{}", ns.0);
    let config = TapConfig {
        name: name.clone(),
        mac: MacAddr::local(77),
        host: None,
        mtu: None,
        offloads,
    };
    let port = TapPort::open(&config).expect("root may open a TAP device");
    ok("ip", &["link", "set", &name, "netns", &ns.0]);
    ok(
        "ip",
        &[
            "-n",
            &ns.0,
            "addr",
            "add",
            &format!("{HOST}/24"),
            "dev",
            &name,
        ],
    );
    ok("ip", &["-n", &ns.0, "link", "set", &name, "up"]);
    port
}

/// A transport in real time.
pub struct Live {
    pub side: Side,
    start: Instant,
}

impl Live {
    pub fn new(port: Box<dyn Port>, ip: Ipv4Addr) -> Live {
        let config = TcpConfig {
            seed: 1,
            ..TcpConfig::default()
        };
        Live {
            side: Side::new(port, ip, config),
            start: Instant::now(),
        }
    }
    pub fn now(&self) -> NicTime {
        NicTime(self.start.elapsed().as_nanos() as u64)
    }
    /// Steps until `f` gives something; sleeps while nothing moves.
    #[track_caller]
    pub fn until<R>(&mut self, mut f: impl FnMut(&mut Live) -> Option<R>) -> R {
        let end = Instant::now() + PATIENCE;
        loop {
            let now = self.now();
            let moved = self.side.step(now);
            if let Some(r) = f(self) {
                return r;
            }
            assert!(
                Instant::now() < end,
                "nothing in {PATIENCE:?}: {:?}",
                self.side.transport
            );
            if !moved {
                let (fds, _) = self.side.net.poll_fds();
                let mut fds: Vec<_> = fds
                    .iter()
                    .map(|fd| rustix::event::PollFd::new(fd, rustix::event::PollFlags::IN))
                    .collect();
                let nap = rustix::event::Timespec {
                    tv_sec: 0,
                    tv_nsec: 1_000_000,
                };
                rustix::event::poll(&mut fds, Some(&nap)).expect("valid arguments");
            }
        }
    }
    pub fn accept(&mut self) -> ConnId {
        self.until(|l| l.side.incoming())
    }
    pub fn connect(&mut self, to: SocketAddrV4) -> ConnId {
        let deadline = self.now().plus(PATIENCE);
        let now = self.now();
        let conn = self
            .side
            .transport
            .connect(now, to, deadline)
            .expect("on the network");
        self.until(|l| l.side.has(TransportEvent::Connected { conn }));
        conn
    }
    pub fn send_all(&mut self, conn: ConnId, data: Vec<u8>) {
        let len = data.len() as u64;
        let b = self.side.dma.region(data);
        self.side.send(conn, 1, b);
        assert_eq!(self.until(|l| l.side.sent(1)), (Status::Ok, len));
    }
    /// Receives until the peer's end.
    pub fn read_to_end(&mut self, conn: ConnId, most: usize) -> Vec<u8> {
        let b = self.side.dma.region(vec![0; most]);
        self.side.recv(conn, 2, b, false);
        let (status, bytes) = self.until(|l| l.side.received(2));
        assert!(
            status == Status::EndOfStream || bytes == most as u64,
            "{status}"
        );
        self.side.dma.bytes(b)[..bytes as usize].to_vec()
    }
    pub fn close(&mut self, conn: ConnId) {
        self.side.transport.close(conn, Close::Gracefully);
        self.until(|l| l.side.has(TransportEvent::Closed { conn }));
    }
    /// Keeps answering (acknowledgements, FIN) until the other program has ended.
    pub fn wait_for(&mut self, mut child: Child) -> String {
        self.until(|_| child.try_wait().expect("our child"));
        let out = child.wait_with_output().expect("our child");
        let err = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "the peer failed: {err}");
        String::from_utf8_lossy(&out.stdout).into_owned()
    }
}
