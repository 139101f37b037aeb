//! Streams between two NICs of this process: from GPU memory, past an engine, to GPU memory.
#![allow(clippy::disallowed_methods)] // A program at the edge: streams are timed.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{anyhow, Context, Result};
use ringbell::abi::{Completion, Descriptor, EngineId, GpuVa, Opcode, SessionId, Status};
use ringbell::engines::{Direction, StreamEngine};
use ringbell::nic::{Cidr, EngineThread, TransportSpec};
use ringbell::parts::nic_core::port::Checksums;
use ringbell::{DeviceBuffer, Gpu, Nic};

use crate::open;
use crate::scratch::Folder;
use ringbell_perf::hardware::Hardware;
use ringbell_perf::side::{failed, progress_for_gpu, Side};

/// Messages that can be under way.
pub(crate) const WINDOW: u64 = 8;
/// How long an operation may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
const IPS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 77, 0, 1), Ipv4Addr::new(10, 77, 0, 2)];
const PORT: u16 = 18_516;

/// Bytes of the widest item: slots of its multiples are cut between items, of every width.
pub(super) const WIDEST_ITEM: u64 = 16;

/// Bytes that the kernel receives at once, for messages of `message` bytes. It receives a stream,
/// so it need not cut it as the sender did.
pub(super) fn slot_bytes(message: u64) -> u64 {
    message.next_multiple_of(WIDEST_ITEM)
}

/// Two NICs with a ring of messages in the GPU memory of each.
pub(crate) struct Path {
    tx: Side,
    pub(super) rx: Side,
    from: DeviceBuffer,
    pub(super) to: DeviceBuffer,
    listener: SessionId,
    _folder: Folder,
    /// Largest message.
    size: u64,
}

/// Result of a stream.
pub(crate) struct Flow {
    /// Bytes that arrived in GPU memory.
    pub(crate) bytes: u64,
    /// From the first send to the last receive.
    pub(crate) elapsed: Duration,
    /// The engine's result, when there was one.
    pub(crate) result: Option<Vec<u8>>,
    /// Bytes of an item that the end of the stream has cut.
    pub(crate) cut: Option<usize>,
    /// Name of the transport.
    pub(crate) transport: &'static str,
}

impl Flow {
    /// 10^9 bytes per second.
    pub(crate) fn gbs(&self) -> f64 {
        self.bytes as f64 / self.elapsed.as_secs_f64().max(1e-9) / 1e9
    }
}

impl Path {
    /// The NICs' implementation.
    pub(crate) fn nic(&self) -> ringbell::nic::NicKind {
        self.rx.nic.kind()
    }

    /// Counts of the receiver's hardware, where it has some.
    pub(crate) fn hardware(&self) -> Option<Hardware> {
        Hardware::of(&self.rx.nic)
    }

    /// What it has done since, as a line.
    pub(crate) fn did(&self, hardware: &mut Hardware) -> Option<String> {
        hardware.part(&self.rx.nic, "which receives")
    }

    /// The receiver's GPU.
    pub(crate) fn gpu(&self) -> &Gpu {
        self.rx.nic.gpu()
    }

    /// Opens both NICs, for messages of up to `size` bytes.
    pub(crate) fn open(
        transport: TransportSpec,
        size: u64,
        engine_thread: EngineThread,
    ) -> Result<Path> {
        let folder = Folder::new("hll")?;
        // Both ends share memory: no bit can flip.
        let switch = match transport {
            TransportSpec::Local => None,
            _ => Some(Arc::new(open::switch(2, None, Checksums::Omitted)?)),
        };
        let side = |i: usize| {
            let nic = Nic::builder()
                .ip(Cidr {
                    ip: IPS[i],
                    prefix: 24,
                })
                .transport(transport)
                .when(switch.clone(), |nic, switch| nic.switch(switch, i))
                .tcp_rto_min(Duration::from_millis(20))
                .progress(progress_for_gpu())
                .engine_thread(engine_thread)
                .gpu_memory(WINDOW * slot_bytes(size) + (64 << 20))
                .directory(folder.path());
            Side::new(open::nic(nic)?, PATIENCE)
        };
        let (tx, rx) = (side(0)?, side(1)?);
        let listener = rx.listen(PORT, 4)?;
        Ok(Path {
            from: tx.nic.alloc::<u8>(WINDOW * size)?,
            to: rx.nic.alloc::<u8>(WINDOW * slot_bytes(size))?,
            tx,
            rx,
            listener,
            _folder: folder,
            size,
        })
    }

    /// Writes to the sender's ring.
    pub(crate) fn fill(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        Ok(self.from.write(offset, bytes)?)
    }

    /// Reads the receiver's ring.
    pub(crate) fn arrived(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        Ok(self.to.read(offset, into)?)
    }

    /// Streams until `next` returns a message of 0 bytes. `next` gets the next message's place in
    /// the sender's ring, and fills it. An engine, if any, sits between network and receiving GPU
    /// memory.
    pub(crate) fn stream(
        &self,
        size: u64,
        engine: Option<Box<dyn StreamEngine>>,
        next: impl FnMut(u64) -> Result<u64>,
    ) -> Result<Flow> {
        let size = size.min(self.size);
        self.carry(size, engine, next, |r| self.receive(r, size))
    }

    /// As [`stream`](Path::stream), with a receiver of the caller's, which returns how many bytes
    /// came. `next` is dropped when it has given the last message, or the sender has failed.
    pub(super) fn carry(
        &self,
        size: u64,
        engine: Option<Box<dyn StreamEngine>>,
        mut next: impl FnMut(u64) -> Result<u64>,
        receive: impl FnOnce(SessionId) -> Result<u64> + Send,
    ) -> Result<Flow> {
        let s = self.tx.connect_once(SocketAddrV4::new(IPS[1], PORT))?;
        let r = self.rx.try_accept(self.listener, PATIENCE)?;
        let r = r.ok_or_else(|| anyhow!("the receiving NIC saw no connection"))?;
        let sessions = self.rx.nic.sessions();
        let session = sessions.iter().find(|x| x.id == r);
        let transport = session.and_then(|x| x.transport).unwrap_or("none");
        let engine = engine
            .map(|e| self.rx.nic.attach_engine(r, Direction::Receive, e))
            .transpose()?;
        let start = Instant::now();
        let received = std::thread::scope(|scope| {
            let receiver = std::thread::Builder::new()
                .spawn_scoped(scope, move || receive(r))
                .context("cannot start the receiving thread")?;
            let sent = self.send(s, size, &mut next);
            drop(next);
            if sent.is_err() {
                // The receiver must not wait for messages that will never come.
                self.tx.abort(s);
            }
            let received = receiver.join().map_err(|_| anyhow!("the receiver failed"));
            sent.and(received?)
        });
        let elapsed = start.elapsed();
        let (result, cut) = self.end(engine)?;
        let bytes = received?;
        self.rx.close(r)?;
        self.tx.close(s)?;
        Ok(Flow {
            bytes,
            elapsed,
            result,
            cut,
            transport,
        })
    }

    fn end(&self, engine: Option<EngineId>) -> Result<(Option<Vec<u8>>, Option<usize>)> {
        let Some(id) = engine else {
            return Ok((None, None));
        };
        let result = self.rx.nic.detach_engine(id)?;
        Ok((Some(result.bytes), result.cut))
    }

    fn send(
        &self,
        s: SessionId,
        size: u64,
        next: &mut impl FnMut(u64) -> Result<u64>,
    ) -> Result<()> {
        let mut out = VecDeque::new();
        for slot in (0..WINDOW).cycle() {
            if out.len() as u64 == WINDOW {
                wait(&self.tx, &mut out)?.ok_or_else(|| anyhow!("the stream ended early"))?;
            }
            let n = next(slot * size)?;
            if n == 0 {
                break;
            }
            let d = message(Opcode::Send, s, GpuVa(self.from.va().0 + slot * size), n);
            out.push_back(self.tx.queue.post(&d, PATIENCE)?);
        }
        while !out.is_empty() {
            wait(&self.tx, &mut out)?;
        }
        let mut d = Descriptor::new(Opcode::Shutdown);
        d.session = s;
        self.tx.queue.call(&d).context("shutdown")?;
        Ok(())
    }

    fn receive(&self, r: SessionId, size: u64) -> Result<u64> {
        let (mut out, mut total) = (VecDeque::new(), 0);
        for slot in (0..WINDOW).cycle() {
            if out.len() as u64 == WINDOW {
                match wait(&self.rx, &mut out)? {
                    Some(c) if c.status == Status::Ok => total += c.bytes,
                    // The last message may be a short one; those behind it find nothing.
                    Some(c) => {
                        total += c.bytes;
                        break;
                    }
                    None => break,
                }
            }
            let d = message(Opcode::Recv, r, GpuVa(self.to.va().0 + slot * size), size);
            out.push_back(self.rx.queue.post(&d, PATIENCE)?);
        }
        while !out.is_empty() {
            wait(&self.rx, &mut out)?;
        }
        Ok(total)
    }
}

fn message(opcode: Opcode, session: SessionId, va: GpuVa, len: u64) -> Descriptor {
    Descriptor {
        session,
        local_va: va,
        len: u32::try_from(len).unwrap_or(u32::MAX),
        timeout_us: PATIENCE.as_micros() as u32,
        ..Descriptor::new(opcode)
    }
}

/// Waits for the oldest of the messages under way.
fn wait(side: &Side, out: &mut VecDeque<u32>) -> Result<Option<Completion>> {
    let Some(ticket) = out.pop_front() else {
        return Ok(None);
    };
    let c = side.queue.wait(ticket, PATIENCE * 2)?;
    match c.status {
        Status::Ok | Status::EndOfStream => Ok(Some(c)),
        status => Err(failed("a message of the stream", status, c.detail)),
    }
}
