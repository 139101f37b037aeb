//! Measurement on one rank: fill, run, verify, time.
#![allow(unsafe_code)] // Launches kernels.
#![allow(clippy::disallowed_methods)] // Measuring needs the clock.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ringbell::abi::{GpuVa, Status};
use ringbell::comm::{CollectiveKind, WireType};
use ringbell::gpu::GpuKind;
use ringbell::{
    CollectiveError, Communicator, DataType, DeviceBuffer, KernelArg, KernelStream, Operation,
    ReduceOp, Span,
};

use super::data::Shape;
use crate::Samples;

/// Elements that are made or checked together.
pub const CHUNK: u64 = 64 << 10;
/// How often a queue of operations is timed.
const ROUNDS: u64 = 5;
/// Bytes behind the buffers' data: the control words.
const CONTROL: u64 = 4096;

/// The plan of a run: the same on every rank.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// The operation.
    pub kind: CollectiveKind,
    /// Type of an element.
    pub dtype: DataType,
    /// Reduction, where the operation reduces.
    pub op: ReduceOp,
    /// Root, where the operation has one.
    pub root: u32,
    /// Verify results, in a run of their own.
    pub check: bool,
    /// Type of f32 elements on the wire.
    pub wire: WireType,
    /// Posted by a kernel instead of the host.
    pub gpu: bool,
    /// One behind the other in a stream of the GPU, instead of one at a time.
    pub queued: bool,
    /// Bytes of the rings when operands are kernels' streams.
    pub ring: Option<u64>,
    /// Time-out of each operation.
    pub timeout: Duration,
}

/// Times of one size, the slowest rank's, and wrong elements of all ranks.
#[derive(Debug, Clone, Copy)]
pub struct Measured {
    /// Mean, in microseconds.
    pub mean_us: f64,
    /// Median, in microseconds.
    pub p50_us: f64,
    /// 99th percentile, in microseconds.
    pub p99_us: f64,
    /// Wrong elements of all ranks.
    pub wrong: u64,
}

/// A rank with its buffers.
pub struct Rank {
    comm: Communicator,
    plan: Plan,
    src: DeviceBuffer,
    dst: DeviceBuffer,
    control: DeviceBuffer,
    times: DeviceBuffer,
    /// The streams that the kernel pushes to and pops from.
    streams: Option<[KernelStream; 2]>,
}

/// Place in the control words for the result of a kernel's popping block: `gpu_result`.
const POPPED: u64 = 256;
/// Lanes of a block that pushes or pops.
const LANES: u32 = 64;

/// Most iterations that a kernel times one by one.
const TIMES: u64 = 1 << 17;

impl Rank {
    /// Buffers of `bytes` each.
    pub fn new(comm: Communicator, plan: Plan, bytes: u64) -> Result<Rank> {
        let alloc = |n: u64| {
            comm.nic()
                .alloc::<u8>(n.max(64))
                .with_context(|| format!("cannot allocate {n} bytes of GPU memory"))
        };
        let ring = |bytes: u64| {
            let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
            comm.nic().kernel_stream(bytes)
        };
        let streams = match plan.ring {
            Some(bytes) => Some([ring(bytes)?, ring(bytes)?]),
            None => None,
        };
        let kernel_times = plan.gpu || plan.ring.is_some();
        Ok(Rank {
            streams,
            src: alloc(bytes)?,
            dst: alloc(bytes)?,
            control: alloc(CONTROL)?,
            times: alloc(if kernel_times { TIMES * 8 } else { 8 })?,
            comm,
            plan,
        })
    }

    fn shape(&self, count: u64) -> Shape {
        let p = &self.plan;
        Shape {
            kind: p.kind,
            dtype: p.dtype,
            op: p.op,
            narrow: p.dtype == DataType::Bf16 || p.wire == WireType::Bf16,
            ranks: self.comm.size(),
            rank: self.comm.rank(),
            root: p.root,
            count,
        }
    }

    /// Source and destination; `None`: the operation has no form in place.
    fn spans(&self, s: &Shape, in_place: bool) -> Option<(Span, Span)> {
        use CollectiveKind as K;
        let (src, dst) = (Span::from(&self.src), Span::from(&self.dst));
        if !in_place {
            return Some((src, dst));
        }
        if self.streams.is_some() {
            return None;
        }
        let block = u64::from(s.rank) * s.count * s.dtype.bytes();
        match s.kind {
            K::AllReduce | K::Broadcast | K::Reduce => Some((dst, dst)),
            K::AllGather => Some((self.dst.slice(block..), dst)),
            K::ReduceScatter => Some((dst, self.dst.slice(block..))),
            _ => None,
        }
    }

    /// Writes the operation's initial data.
    fn fill(&self, s: &Shape, in_place: bool) -> Result<()> {
        let (src, dst) = s.lengths();
        let size = s.dtype.bytes();
        let (buffer, at) = match (in_place, s.kind) {
            (false, _) => (&self.src, 0),
            (true, CollectiveKind::AllGather) => (&self.dst, u64::from(s.rank) * s.count * size),
            (true, _) => (&self.dst, 0),
        };
        if self.plan.kind != CollectiveKind::Barrier {
            // Bytes that stay unwritten are detected.
            let stale = vec![0xa5; (CHUNK * size) as usize];
            pieces(dst, |from, to| {
                self.dst
                    .write(from * size, &stale[..((to - from) * size) as usize])
            })?;
        }
        pieces(src, |from, to| {
            buffer.write(at + from * size, &s.source(from, to))
        })?;
        Ok(())
    }

    /// Number of wrong elements in the destination.
    fn wrong(&self, s: &Shape, in_place: bool) -> Result<u64> {
        let size = s.dtype.bytes();
        let at = match (in_place, s.kind) {
            (true, CollectiveKind::ReduceScatter) => u64::from(s.rank) * s.count * size,
            _ => 0,
        };
        let mut wrong = 0;
        pieces(s.lengths().1, |from, to| {
            let mut got = vec![0; ((to - from) * size) as usize];
            self.dst.read(at + from * size, &mut got)?;
            wrong += s.differences(from, to, &got);
            anyhow::Ok(())
        })?;
        Ok(wrong)
    }

    fn once(&self, s: &Shape, src: Span, dst: Span) -> Result<(), CollectiveError> {
        if s.kind == CollectiveKind::Send {
            let (n, me) = (s.ranks, s.rank);
            let by = |kind, peer| {
                Operation::by_kind(kind, s.dtype, s.op, src, dst, s.count, peer)
                    .timeout(self.plan.timeout)
            };
            let send = by(CollectiveKind::Send, (me + 1) % n);
            let recv = by(CollectiveKind::Recv, (me + n - 1) % n);
            let recv = self.comm.post(&recv)?;
            let send = self.comm.post(&send)?;
            let done = send.wait();
            recv.wait()?;
            return done.map(drop);
        }
        let o = Operation::by_kind(s.kind, s.dtype, s.op, src, dst, s.count, s.root);
        self.comm.run(&o.timeout(self.plan.timeout)).map(drop)
    }

    /// Measures one size in one way; `None` when the operation has no form in place.
    pub fn measure(
        &self,
        count: u64,
        in_place: bool,
        warmup: u64,
        iters: u64,
    ) -> Result<Option<Measured>> {
        let s = self.shape(count);
        let Some((src, dst)) = self.spans(&s, in_place) else {
            return Ok(None);
        };
        let mut wrong = 0;
        if self.plan.check {
            self.fill(&s, in_place)?;
            self.run_once(&s, src, dst)?;
            wrong += self.wrong(&s, in_place)?;
        }
        if in_place {
            // Repeated reductions leave these values unchanged.
            let size = s.dtype.bytes();
            let zeros = vec![0; (CHUNK * size) as usize];
            let (a, b) = s.lengths();
            pieces(a.max(b), |from, to| {
                self.dst
                    .write(from * size, &zeros[..((to - from) * size) as usize])
            })?;
        } else if !self.plan.check {
            self.fill(&s, false)?;
        }
        let mut samples = match (&self.streams, self.plan.gpu) {
            (Some(streams), _) => self.time_streamed(&s, streams, warmup, iters)?,
            (None, true) => self.time_kernel(&s, src, dst, warmup, iters)?,
            (None, false) if self.plan.queued => self.time_queued(&s, src, dst, warmup, iters)?,
            (None, false) => self.time_host(&s, src, dst, warmup, iters)?,
        };
        if self.plan.check && !in_place {
            // The last of the timed ones as well.
            wrong += self.wrong(&s, false)?;
        }
        let (mean, p50, p99) = (samples.mean(), samples.median(), samples.percentile(99.0));
        self.agree([mean / 1e3, p50 / 1e3, p99 / 1e3], wrong)
            .map(Some)
    }

    fn run_once(&self, s: &Shape, src: Span, dst: Span) -> Result<()> {
        if let Some(streams) = &self.streams {
            return self.time_streamed(s, streams, 0, 1).map(drop);
        }
        if self.plan.gpu {
            return self.time_kernel(s, src, dst, 0, 1).map(drop);
        }
        Ok(self.once(s, src, dst)?)
    }

    fn time_host(
        &self,
        s: &Shape,
        src: Span,
        dst: Span,
        warmup: u64,
        iters: u64,
    ) -> Result<Samples> {
        for _ in 0..warmup {
            self.once(s, src, dst)?;
        }
        self.comm.barrier()?;
        let mut samples = Samples::with_capacity(iters as usize);
        let mut last = Instant::now();
        for _ in 0..iters {
            self.once(s, src, dst)?;
            let now = Instant::now();
            samples.push((now - last).as_nanos() as f64);
            last = now;
        }
        Ok(samples)
    }

    /// Operations one behind the other in the stream: the time of all, divided by their number.
    fn time_queued(
        &self,
        s: &Shape,
        src: Span,
        dst: Span,
        warmup: u64,
        iters: u64,
    ) -> Result<Samples> {
        let stream = self.comm.nic().gpu().stream();
        let o = Operation::by_kind(s.kind, s.dtype, s.op, src, dst, s.count, s.root)
            .timeout(self.plan.timeout);
        // The last of them waits for all before it.
        let patience = self.plan.timeout.saturating_mul(2);
        let run = |n: u64| -> Result<()> {
            let queued = (0..n).map(|_| self.comm.enqueue(&o, &stream));
            let queued = queued.collect::<Result<Vec<_>, _>>()?;
            for operation in queued.iter().rev() {
                operation.wait(patience)?;
            }
            Ok(())
        };
        run(warmup)?;
        self.comm.barrier()?;
        let mut samples = Samples::with_capacity(ROUNDS as usize);
        for _ in 0..ROUNDS {
            let start = Instant::now();
            run(iters)?;
            samples.push(start.elapsed().as_nanos() as f64 / iters.max(1) as f64);
        }
        Ok(samples)
    }

    fn time_kernel(
        &self,
        s: &Shape,
        src: Span,
        dst: Span,
        warmup: u64,
        iters: u64,
    ) -> Result<Samples> {
        let iters = iters.min(TIMES);
        let timeout_us = u32::try_from(self.plan.timeout.as_micros()).unwrap_or(u32::MAX);
        let args: Vec<KernelArg> = vec![
            self.comm.handle().into(),
            u32::from(s.kind.code()).into(),
            src.va().into(),
            dst.va().into(),
            s.count.into(),
            u32::from(s.dtype.code()).into(),
            u32::from(s.op.code()).into(),
            s.root.into(),
            (warmup as u32).into(),
            (iters as u32).into(),
            0_u32.into(),
            0_u32.into(),
            timeout_us.into(),
            KernelArg::from(&self.times),
            KernelArg::from(&self.control),
        ];
        // Lanes copy the operands of small ones where the GPU has no quicker way to the NIC; an
        // emulated GPU's lanes would only take turns.
        let lanes = match self.comm.nic().gpu().kind() {
            GpuKind::Cuda => 512,
            _ => 1,
        };
        self.run_kernel("rb_perf_collective", 1, lanes, &args)?;
        self.kernel_samples(s, iters)
    }

    /// The kernel's first block pushes the elements at `src`, the second pops to `dst`.
    fn time_streamed(
        &self,
        s: &Shape,
        [to_nic, from_nic]: &[KernelStream; 2],
        warmup: u64,
        iters: u64,
    ) -> Result<Samples> {
        let iters = iters.min(TIMES);
        let timeout_us = u32::try_from(self.plan.timeout.as_micros()).unwrap_or(u32::MAX);
        let kind = match s.kind {
            CollectiveKind::Send => CollectiveKind::StreamSend,
            kind => kind,
        };
        let (push, pop) = s.lengths();
        let args: Vec<KernelArg> = vec![
            self.comm.handle().into(),
            u32::from(kind.code()).into(),
            to_nic.handle().into(),
            from_nic.handle().into(),
            u32::from(push > 0).into(),
            u32::from(pop > 0).into(),
            self.src.va().into(),
            self.dst.va().into(),
            s.count.into(),
            u32::from(s.dtype.code()).into(),
            (s.dtype.bytes() as u32).into(),
            u32::from(s.op.code()).into(),
            s.root.into(),
            (warmup as u32).into(),
            (iters as u32).into(),
            timeout_us.into(),
            KernelArg::from(&self.times),
            KernelArg::from(&self.control),
            GpuVa(self.control.va().0 + POPPED).into(),
        ];
        self.run_kernel("rb_perf_streamed", 2, LANES, &args)?;
        let samples = self.kernel_samples(s, iters)?;
        self.kernel_end(s, POPPED, POPPED + 16)?;
        Ok(samples)
    }

    fn run_kernel(&self, kernel: &str, grid: u32, block: u32, args: &[KernelArg]) -> Result<()> {
        self.comm.barrier()?;
        let gpu = self.comm.nic().gpu();
        // SAFETY: the kernel's own parameters, and memory that outlives it.
        let launch = unsafe { gpu.launch(kernel, grid, block, args) }?;
        // Its own time-outs end it earlier.
        launch.wait(self.plan.timeout * 2 + Duration::from_secs(120))?;
        Ok(())
    }

    /// Reads the kernel's result from two places of the control words.
    fn kernel_end(&self, s: &Shape, status: u64, detail: u64) -> Result<()> {
        let code = word(&self.control, status)? as u32 as u8;
        match Status::from_code(code).unwrap_or(Status::NicSilent) {
            Status::Ok => Ok(()),
            status => Err(CollectiveError::Failed {
                kind: s.kind,
                rank: s.rank,
                status,
                detail: word(&self.control, detail)?,
                why: None,
            }
            .into()),
        }
    }

    /// The kernel's times.
    fn kernel_samples(&self, s: &Shape, iters: u64) -> Result<Samples> {
        self.kernel_end(s, 0, 8)?;
        let mut samples = Samples::with_capacity(iters as usize);
        for i in 0..word(&self.control, 16)? {
            samples.push(word(&self.times, i * 8)? as f64);
        }
        Ok(samples)
    }

    /// The slowest rank's times, and the wrong elements of all.
    fn agree(&self, us: [f64; 3], wrong: u64) -> Result<Measured> {
        let c = &self.control;
        for (i, v) in us.iter().enumerate() {
            c.write(i as u64 * 8, &v.to_ne_bytes())?;
        }
        c.write(64, &wrong.to_ne_bytes())?;
        self.comm.all_reduce::<f64>(c, c, 3, ReduceOp::Max)?;
        let word = c.slice(64..);
        self.comm.all_reduce::<u64>(word, word, 1, ReduceOp::Sum)?;
        let read = |at: u64| -> Result<[u8; 8]> {
            let mut b = [0; 8];
            c.read(at, &mut b)?;
            Ok(b)
        };
        Ok(Measured {
            mean_us: f64::from_ne_bytes(read(0)?),
            p50_us: f64::from_ne_bytes(read(8)?),
            p99_us: f64::from_ne_bytes(read(16)?),
            wrong: u64::from_ne_bytes(read(64)?),
        })
    }

    /// Bytes that the ring of a kernel's stream holds, if there are streams.
    pub fn ring(&self) -> Option<u64> {
        Some(self.streams.as_ref()?[0].capacity())
    }

    /// The communicator.
    pub fn comm(&self) -> &Communicator {
        &self.comm
    }
}

fn word(buffer: &DeviceBuffer, at: u64) -> Result<u64> {
    let mut b = [0; 8];
    buffer.read(at, &mut b)?;
    Ok(u64::from_ne_bytes(b))
}

/// Calls `f` for chunk after chunk of `0..n`.
pub fn pieces<E>(n: u64, mut f: impl FnMut(u64, u64) -> Result<(), E>) -> Result<(), E> {
    let mut from = 0;
    while from < n {
        let to = n.min(from + CHUNK);
        f(from, to)?;
        from = to;
    }
    Ok(())
}
