//! One side of a measurement: a NIC, a queue, and host-driven control messages on it.
#![allow(unsafe_code)] // Launches kernels.
#![allow(clippy::disallowed_methods)] // The program: waits with a deadline.

use std::net::{SocketAddr, SocketAddrV4};
use std::time::{Duration, Instant};

use anyhow::{anyhow, Context, Result};
use ringbell::abi::{Completion, Descriptor, Flags, Opcode, SessionId, Status};
use ringbell::gpu::GpuChoice;
use ringbell::nic::{PortSpec, ProgressMode};
use ringbell::{DeviceBuffer, HostQueue, KernelArg, Nic};

use crate::wire::{Plan, Verdict, MESSAGE_BYTES};
use crate::{datagrams, limits, machine, Meta, Payload, Report};

/// A NIC and the resources of a measurement on it.
pub struct Side {
    /// The NIC.
    pub nic: Nic,
    /// The queue that kernels and control messages share, one after the other.
    pub queue: HostQueue,
    control: DeviceBuffer,
    timeout_us: u32,
}

/// Result of a measuring kernel: `perf_result` of `kernels/common.cuh`.
#[derive(Debug, Clone, Copy, Default)]
pub struct KernelResult {
    /// Completion status code.
    pub status: u32,
    /// The status's detail.
    pub detail: u64,
    /// Messages that the status covers.
    pub messages: u64,
    /// Wrong words.
    pub wrong: u64,
    /// Timed part.
    pub elapsed_ns: u64,
}

/// Messages for which bandwidth is a question.
const LONG: u64 = 64 << 10;

/// Bytes of `perf_result`.
const RESULT_BYTES: usize = 48;

/// Progress of a NIC whose measurement does not choose: kernels of a selected real GPU cannot step
/// it, and its doorbells wake no thread, so a thread polls.
pub fn progress_for_gpu() -> ProgressMode {
    match GpuChoice::Auto.resolve() {
        Ok(GpuChoice::Cuda(_)) => ProgressMode::Dedicated,
        _ => ProgressMode::Waiter,
    }
}

impl Side {
    /// Makes the resources of a measurement on a NIC; `timeout` is that of each operation.
    ///
    /// # Errors
    /// No queue or no GPU memory is left.
    pub fn new(nic: Nic, timeout: Duration) -> Result<Side> {
        let queue = nic.create_queue().context("cannot create a queue")?;
        let control = nic
            .alloc::<u8>(4096)
            .context("cannot allocate a control buffer")?;
        let timeout_us = u32::try_from(timeout.as_micros()).unwrap_or(u32::MAX);
        Ok(Side {
            nic,
            queue,
            control,
            timeout_us,
        })
    }

    /// Time-out of each operation.
    pub fn timeout_us(&self) -> u32 {
        self.timeout_us
    }

    /// How long a kernel that moves `bytes` may take before it is called stuck: its own time-outs
    /// end it earlier.
    pub fn patience(&self) -> Duration {
        Duration::from_micros(u64::from(self.timeout_us)) * 3 + Duration::from_secs(60)
    }

    fn call(&self, what: &str, mut d: Descriptor) -> Result<Completion> {
        if d.timeout_us == 0 {
            d.timeout_us = self.timeout_us;
        }
        let c = self
            .queue
            .call(&d)
            .with_context(|| format!("{what}: no answer from the NIC"))?;
        if c.status != Status::Ok {
            return Err(failed(what, c.status, c.detail));
        }
        Ok(c)
    }

    /// Opens a listening socket.
    pub fn listen(&self, port: u16, backlog: u32) -> Result<SessionId> {
        let s = SessionId(self.call("socket", Descriptor::new(Opcode::Socket))?.detail as u32);
        let mut d = Descriptor::new(Opcode::Listen);
        d.session = s;
        d.imm = u32::from(port) | backlog << 16;
        self.call(&format!("listen on port {port}"), d)?;
        Ok(s)
    }

    /// Waits for a connection.
    pub fn accept(&self, listener: SessionId, timeout: Duration) -> Result<SessionId> {
        let mut d = Descriptor::new(Opcode::Accept);
        d.session = listener;
        d.timeout_us = u32::try_from(timeout.as_micros()).unwrap_or(u32::MAX);
        Ok(SessionId(self.call("accept", d)?.detail as u32))
    }

    /// The next connection, or `None` when none came within `timeout`.
    pub fn try_accept(&self, listener: SessionId, timeout: Duration) -> Result<Option<SessionId>> {
        let mut d = Descriptor::new(Opcode::Accept);
        d.session = listener;
        d.timeout_us = u32::try_from(timeout.as_micros()).unwrap_or(u32::MAX);
        let c = self
            .queue
            .call(&d)
            .context("accept: no answer from the NIC")?;
        match c.status {
            Status::Ok => Ok(Some(SessionId(c.detail as u32))),
            Status::TimedOut => Ok(None),
            status => Err(failed("accept", status, c.detail)),
        }
    }

    /// Connects, trying again until `patience` has passed: the server may still be starting. Ends
    /// earlier when the server has ended.
    pub fn connect(
        &self,
        to: SocketAddrV4,
        patience: Duration,
        goes_on: impl Fn() -> bool,
    ) -> Result<SessionId> {
        let start = Instant::now();
        loop {
            // Short: the request to an address without a NIC is repeated.
            match self.connect_within(to, 1_000_000) {
                Ok(s) => return Ok(s),
                Err(e) if start.elapsed() >= patience => {
                    return Err(e.context(format!("no connection within {patience:?}")))
                }
                Err(e) if !goes_on() => return Err(e),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    /// A peer's address as descriptors name it: one of IPv6 by a short name.
    ///
    /// # Errors
    /// The NIC has no port of IPv6.
    pub fn name(&self, to: SocketAddr) -> Result<SocketAddrV4> {
        match to {
            SocketAddr::V4(to) => Ok(to),
            SocketAddr::V6(to) => {
                let name = self.nic.short_name(*to.ip());
                let name = name.with_context(|| {
                    format!("{to} is reached by RDMA from an address of IPv6: give --port roce:[ADDR] with one of this host")
                })?;
                Ok(SocketAddrV4::new(name, to.port()))
            }
        }
    }

    /// Connects, or returns the reason why not.
    pub fn connect_once(&self, to: SocketAddrV4) -> Result<SessionId> {
        self.connect_within(to, self.timeout_us)
    }

    fn connect_within(&self, to: SocketAddrV4, timeout_us: u32) -> Result<SessionId> {
        let s = SessionId(self.call("socket", Descriptor::new(Opcode::Socket))?.detail as u32);
        let mut d = Descriptor::new(Opcode::Connect);
        d.session = s;
        d.operand = u64::from(u32::from(*to.ip()));
        d.imm = u32::from(to.port());
        d.timeout_us = timeout_us;
        self.call(&format!("connect to {to}"), d)
            .map(|_| s)
            .inspect_err(|_| self.abort(s))
    }

    /// Resets a session at once. One that is gone already is no error.
    pub fn abort(&self, s: SessionId) {
        let mut d = Descriptor::new(Opcode::Abort);
        d.session = s;
        if let Err(error) = self.queue.call(&d) {
            tracing::warn!(%error, "abort");
        }
    }

    /// Sends one control message.
    pub fn tell(&self, s: SessionId, message: &[u8; MESSAGE_BYTES]) -> Result<()> {
        let mut d = Descriptor::new(Opcode::Send);
        d.session = s;
        d.flags = Flags::INLINE.union(Flags::PUSH);
        d.inline_len = MESSAGE_BYTES as u8;
        d.len = MESSAGE_BYTES as u32;
        d.inline = *message;
        self.call("control message", d).map(|_| ())
    }

    /// Receives one control message.
    pub fn hear(&self, s: SessionId, timeout: Duration) -> Result<[u8; MESSAGE_BYTES]> {
        let mut d = Descriptor::new(Opcode::Recv);
        d.session = s;
        d.local_va = self.control.va();
        d.len = MESSAGE_BYTES as u32;
        d.timeout_us = u32::try_from(timeout.as_micros()).unwrap_or(u32::MAX);
        self.call("control message of the peer", d)?;
        let mut m = [0; MESSAGE_BYTES];
        self.control.read(0, &mut m)?;
        Ok(m)
    }

    /// Receives one of the 8-byte words with which measuring kernels begin and end their timed
    /// parts.
    pub fn hear_word(&self, s: SessionId) -> Result<()> {
        let mut d = Descriptor::new(Opcode::Recv);
        d.session = s;
        d.local_va = self.control.va();
        d.len = 8;
        self.call("the receiving kernel's word", d).map(|_| ())
    }

    /// The peer of a session, for messages.
    pub fn peer(&self, s: SessionId) -> String {
        let sessions = self.nic.sessions();
        let peer = sessions.iter().find(|i| i.id == s).and_then(|i| i.peer);
        peer.map_or_else(|| "a peer that is gone".into(), |p| p.to_string())
    }

    /// Closes a session and delivers what was sent on it.
    pub fn close(&self, s: SessionId) -> Result<()> {
        let mut d = Descriptor::new(Opcode::Close);
        d.session = s;
        self.call("close", d).map(|_| ())
    }

    /// Runs a measuring kernel of one block to its end; `args` without the last one, its result.
    pub fn run(&self, kernel: &str, args: &[KernelArg]) -> Result<KernelResult> {
        let at = 1024;
        let mut all = vec![KernelArg::from(self.queue.handle())];
        all.extend_from_slice(args);
        all.push(KernelArg::Ptr(ringbell::abi::GpuVa(
            self.control.va().0 + at,
        )));
        // SAFETY: the kernel's own parameters, and memory that outlives it.
        let launch = unsafe { self.nic.gpu().launch(kernel, 1, 1, &all) }?;
        launch.wait(self.patience())?;
        let mut raw = [0; RESULT_BYTES];
        self.control.read(at, &mut raw)?;
        let word = |i: usize| {
            let mut b = [0; 8];
            b.copy_from_slice(&raw[i..i + 8]);
            u64::from_ne_bytes(b)
        };
        Ok(KernelResult {
            status: word(0) as u32,
            detail: word(8),
            messages: word(16),
            wrong: word(32),
            elapsed_ns: word(40),
        })
    }
}

/// The measuring side and its connection to the server.
pub struct Pair {
    /// Our NIC.
    pub side: Side,
    /// The connection that is measured.
    pub session: SessionId,
    /// The server's NIC.
    pub server: SocketAddrV4,
}

impl Pair {
    /// An empty report about this pair, with the limits of this machine measured now.
    pub fn report(&self, benchmark: &str, sizes: &[u64]) -> Report {
        let mut meta = Meta::new(benchmark);
        meta.nic = self.side.nic.kind().to_string();
        meta.gpu = machine::gpu_name(self.side.nic.gpu());
        meta.transport = self.transport();
        meta.port = match meta.transport.as_str() {
            // The session does not use the port: print that, when one was set.
            "local" => match self.side.nic.port() {
                PortSpec::None | PortSpec::Mem => "none".into(),
                unused => format!("none ({unused} is not used)"),
            },
            _ => self.side.nic.port().to_string(),
        };
        meta.progress = match self.side.nic.progress() {
            ProgressMode::Dedicated => "dedicated",
            _ => "waiter",
        }
        .into();
        meta.limits = limits::measure(sizes);
        let port = self.side.nic.port();
        if let (PortSpec::Roce { mtu, .. }, "rdma") = (port, meta.transport.as_str()) {
            // What a packet of the NIC carries.
            let packet = mtu
                .map_or(60 << 10, |mtu| usize::from(mtu) - 48)
                .min(60 << 10);
            let long = sizes.iter().any(|&s| s >= LONG);
            if let Some(udp) = long.then(|| datagrams::bandwidth(packet)).flatten() {
                meta.limits.udp_gbs = Some(udp.one_way);
                meta.limits.udp_each_way_gbs = Some(udp.each_way);
                meta.limits.udp_by_packet_gbs = Some(udp.by_packet);
            }
            meta.limits.udp_pingpong_ns = datagrams::ping_pong_ns();
        }
        Report {
            meta,
            rows: Vec::new(),
        }
    }

    /// Waits for the server's result of a run.
    ///
    /// # Errors
    /// The error of the server's kernel, or a missing answer.
    pub fn verdict(&self) -> Result<Verdict> {
        let verdict = Verdict::decode(&self.side.hear(self.session, self.side.patience())?)?;
        match Status::from_code(verdict.status as u8) {
            Some(Status::Ok) => Ok(verdict),
            status => Err(failed(
                &format!("the receiving side, after {} messages,", verdict.messages),
                status.unwrap_or(Status::NicSilent),
                verdict.detail,
            )),
        }
    }

    /// Name of the transport that carries the session.
    pub fn transport(&self) -> String {
        let sessions = self.side.nic.sessions();
        let ours = sessions.iter().find(|s| s.id == self.session);
        ours.and_then(|s| s.transport).unwrap_or("none").into()
    }

    /// The payload's way so far; `None` when it left this machine.
    pub fn payload(&self) -> Option<Payload> {
        let nic = self.side.nic.backend();
        let counters = nic.counters();
        let (sent, staged) = (counters.tx_bytes, counters.staged_bytes);
        let mapped = self.side.nic.gpu().memory().window().is_some();
        let way = if mapped { "mapped" } else { "staged" };
        (self.transport() == "local").then(|| Payload {
            way: way.into(),
            sent_bytes: sent,
            staged_bytes: staged,
            direct_bytes: counters.direct_bytes,
        })
    }

    /// Tells the server that the measurement has ended, and closes the connection.
    ///
    /// # Errors
    /// The server is gone.
    pub fn end(&self) -> Result<()> {
        let told = self.side.tell(self.session, &Plan::END.encode());
        let told = told.and_then(|()| self.side.close(self.session));
        self.side.nic.flush(Duration::from_secs(2));
        told
    }
}

impl KernelResult {
    /// # Errors
    /// When the kernel's operations failed.
    pub fn ok(self, what: &str) -> Result<KernelResult> {
        match Status::from_code(self.status as u8) {
            Some(Status::Ok) => Ok(self),
            Some(status) => Err(failed(what, status, self.detail)
                .context(format!("after {} messages", self.messages))),
            None => Err(anyhow!(
                "{what}: the kernel wrote status {}, which is none",
                self.status
            )),
        }
    }
}

/// An operation that ended with another status than OK.
#[derive(Debug, thiserror::Error)]
#[error("{what} ended with {} (detail {detail:#x})", .status.name())]
pub struct OperationFailed {
    what: String,
    status: Status,
    detail: u64,
}

impl OperationFailed {
    /// What to do about it.
    pub fn advice(&self) -> String {
        self.status.with_detail(self.detail).to_string()
    }

    /// Whether it is a loss on the wire, and not the peer's end.
    pub fn is_loss(&self) -> bool {
        self.status == Status::ConnectionReset && self.detail != 0
    }
}

/// An operation's failure as an error for a person.
pub fn failed(what: &str, status: Status, detail: u64) -> anyhow::Error {
    let what = what.into();
    OperationFailed {
        what,
        status,
        detail,
    }
    .into()
}
