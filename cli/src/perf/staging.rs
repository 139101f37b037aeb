//! `perf staging`: messages between memories of every kind, and the size of the pieces in which the NIC stages memory that a peer
//! cannot map (in the manner of OSU's `H` and `D` flags).
#![allow(clippy::disallowed_methods)] // Transfers are timed with the host's clock.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use clap::ValueEnum;
use ringbell::abi::{Completion, Descriptor, GpuVa, Opcode, SessionId, Status};
use ringbell::nic::{NicConfig, StagingConfig};
use ringbell::{DeviceBuffer, HostBuffer, HostQueue, Nic, NicBuffer};

use crate::report::{
    emit, limits, machine, parse_size, size_text, Axis, OutputArgs, Plot, Progress, Report, Row,
    Samples,
};
use crate::scratch::Folder;
use crate::{open, Exit, Problem};

/// Messages in flight.
const WINDOW: usize = 4;
/// Repetitions of each point; the median counts.
const RUNS: usize = 5;
/// Limit of one operation.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A kind of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Memory {
    /// GPU memory
    #[value(name = "gpu", alias = "d")]
    Gpu,
    /// Host memory that the NIC allocated: local peers map it
    #[value(name = "host", alias = "h")]
    Host,
    /// Host memory that the program had: no peer can map it
    #[value(name = "own", alias = "p")]
    Own,
    /// Memory of the NIC
    #[value(name = "nic", alias = "n")]
    Nic,
}

impl Memory {
    fn letter(self) -> char {
        match self {
            Memory::Gpu => 'D',
            Memory::Host => 'H',
            Memory::Own => 'P',
            Memory::Nic => 'N',
        }
    }
}

/// Arguments of `perf staging`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// Smallest message in bytes; K, M and G are powers of 1,024
    #[arg(short = 'b', long = "minbytes", value_name = "SIZE", default_value = "4K", value_parser = parse_size)]
    min: u64,
    /// Largest message, at most 64M
    #[arg(short = 'e', long = "maxbytes", value_name = "SIZE", default_value = "16M", value_parser = parse_size)]
    max: u64,
    /// Factor between two sizes
    #[arg(short = 'f', long = "stepfactor", value_name = "FACTOR", default_value_t = 8,
          value_parser = clap::value_parser!(u64).range(2..))]
    factor: u64,
    /// Messages of each run [default: by size]
    #[arg(short = 'n', long = "iters", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    iters: Option<u32>,
    /// Send from these only
    #[arg(
        long,
        value_name = "KIND",
        value_delimiter = ',',
        default_value = "host,gpu,own,nic"
    )]
    from: Vec<Memory>,
    /// Receive into these only
    #[arg(
        long,
        value_name = "KIND",
        value_delimiter = ',',
        default_value = "host,gpu"
    )]
    to: Vec<Memory>,
    /// Bytes of a staged piece. Several values are a sweep: it sends memory of the program's own, at the
    /// largest size
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = parse_size)]
    chunk: Vec<u64>,
    /// Pieces that a connection may have in NIC memory
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=64))]
    depth: u32,
    #[command(flatten)]
    output: OutputArgs,
}

/// A buffer of one of the kinds, with room for the window.
enum Buffer {
    Gpu(DeviceBuffer),
    Host(HostBuffer),
    Nic(NicBuffer),
}

impl Buffer {
    fn new(nic: &Nic, kind: Memory, len: usize) -> Result<Buffer> {
        Ok(match kind {
            Memory::Gpu => Buffer::Gpu(nic.alloc::<u8>(len as u64)?),
            Memory::Host => Buffer::Host(nic.alloc_host(len)?),
            Memory::Own => Buffer::Host(nic.adopt_host(vec![0; len])?),
            Memory::Nic => Buffer::Nic(nic.alloc_on_nic(len as u64)?),
        })
    }

    fn va(&self) -> GpuVa {
        match self {
            Buffer::Gpu(b) => b.va(),
            Buffer::Host(b) => b.va(),
            Buffer::Nic(b) => b.va(),
        }
    }

    fn write(&self, bytes: &[u8]) -> Result<()> {
        match self {
            Buffer::Gpu(b) => b.write(0, bytes)?,
            Buffer::Host(b) => b.write(0, bytes)?,
            Buffer::Nic(b) => b.write(0, bytes)?,
        }
        Ok(())
    }

    fn read(&self, into: &mut [u8]) -> Result<()> {
        match self {
            Buffer::Gpu(b) => b.read(0, into)?,
            Buffer::Host(b) => b.read(0, into)?,
            Buffer::Nic(b) => b.read(0, into)?,
        }
        Ok(())
    }
}

/// One end of the connection.
struct End {
    nic: Nic,
    queue: HostQueue,
    session: SessionId,
}

fn good(c: Completion) -> Result<Completion> {
    ensure!(
        c.status == Status::Ok,
        "the NIC answers {} ({:#x})",
        c.status,
        c.detail
    );
    Ok(c)
}

fn on(opcode: Opcode, session: SessionId) -> Descriptor {
    Descriptor {
        session,
        ..Descriptor::new(opcode)
    }
}

impl End {
    /// Moves `count` messages of `len` bytes, `WINDOW` at a time, through places one after another.
    fn stream(&self, opcode: Opcode, at: GpuVa, len: u64, count: u32) -> Result<()> {
        let mut tickets = std::collections::VecDeque::new();
        for i in 0..count {
            if tickets.len() == WINDOW {
                let ticket = tickets.pop_front().context("a window is not empty")?;
                good(self.queue.wait(ticket, TIMEOUT)?)?;
            }
            let d = Descriptor {
                local_va: GpuVa(at.0 + u64::from(i) % WINDOW as u64 * len),
                len: u32::try_from(len)?,
                ..on(opcode, self.session)
            };
            tickets.push_back(self.queue.post(&d, TIMEOUT)?);
        }
        for ticket in tickets {
            good(self.queue.wait(ticket, TIMEOUT)?)?;
        }
        Ok(())
    }
}

/// Two NICs that no other NIC finds, connected.
struct Pair {
    ends: [End; 2],
    _folder: Folder,
}

impl Pair {
    fn open(args: &Args, chunk: Option<u64>) -> Result<Pair> {
        let folder = Folder::new("perf")?;
        let room = args.max * WINDOW as u64 + (4 << 20);
        let open = |n: u8| -> Result<(Nic, HostQueue)> {
            let mut staging = StagingConfig {
                depth: args.depth,
                ..StagingConfig::default()
            };
            if let Some(chunk) = chunk {
                staging.chunk = u32::try_from(chunk).unwrap_or(u32::MAX);
            }
            let limits = NicConfig {
                nic_memory_bytes: (2 * room).next_multiple_of(4096) + (256 << 20),
                ..NicConfig::default()
            };
            let nic = Nic::builder()
                .ip(format!("10.77.9.{n}/24"))
                .transport("local")
                .directory(folder.path())
                .staging(staging)
                .limits(limits)
                .gpu_memory((2 * room).next_multiple_of(2 << 20) + (64 << 20));
            let nic = open::nic(nic)?;
            let queue = nic.create_queue()?;
            Ok((nic, queue))
        };
        let ((a, qa), (b, qb)) = (open(1)?, open(2)?);
        let session = |c: Completion| SessionId(c.detail as u32);
        let listener = session(good(qb.call(&Descriptor::new(Opcode::Socket))?)?);
        let listen = Descriptor {
            imm: 7,
            ..on(Opcode::Listen, listener)
        };
        good(qb.call(&listen)?)?;
        let accept = qb.post(&on(Opcode::Accept, listener), TIMEOUT)?;
        let s = session(good(qa.call(&Descriptor::new(Opcode::Socket))?)?);
        let connect = Descriptor {
            operand: u32::from(b.ip().ip).into(),
            imm: 7,
            ..on(Opcode::Connect, s)
        };
        good(qa.call(&connect)?)?;
        let r = session(good(qb.wait(accept, TIMEOUT)?)?);
        let end = |nic, queue, session| End {
            nic,
            queue,
            session,
        };
        Ok(Pair {
            ends: [end(a, qa, s), end(b, qb, r)],
            _folder: folder,
        })
    }

    /// One point: the row without its series.
    fn measure(&self, from: Memory, to: Memory, len: u64, iters: Option<u32>) -> Result<Row> {
        let [a, b] = &self.ends;
        let room = usize::try_from(len)? * WINDOW;
        let (src, dst) = (
            Buffer::new(&a.nic, from, room)?,
            Buffer::new(&b.nic, to, room)?,
        );
        let mut x = len ^ 0x9e37_79b9_7f4a_7c15;
        let data: Vec<u8> = std::iter::repeat_with(|| {
            x = x
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (x >> 56) as u8
        })
        .take(room)
        .collect();
        src.write(&data)?;
        let count = iters.unwrap_or_else(|| ((64 << 20) / len.max(1)).clamp(16, 2000) as u32);
        let count = count.max(WINDOW as u32);
        let mut samples = Samples::with_capacity(RUNS);
        let mut wrong = 0;
        let mut got = vec![0; room];
        // The first run warms up.
        for run in 0..=RUNS {
            dst.write(&vec![!data[0]; room])?;
            let start = Barrier::new(2);
            let ns = std::thread::scope(|scope| -> Result<f64> {
                let sender = std::thread::Builder::new().spawn_scoped(scope, || {
                    start.wait();
                    a.stream(Opcode::Send, src.va(), len, count)
                });
                let sender = sender.context("cannot start the sending thread")?;
                start.wait();
                let began = Instant::now();
                b.stream(Opcode::Recv, dst.va(), len, count)?;
                let took = began.elapsed().as_nanos() as f64;
                let Ok(sent) = sender.join() else {
                    bail!("the sender panicked");
                };
                sent?;
                Ok(took / f64::from(count))
            })?;
            dst.read(&mut got)?;
            wrong += got.iter().zip(&data).filter(|(a, b)| a != b).count() as u64;
            if run > 0 {
                samples.push(ns);
            }
        }
        let time_us = samples.median() / 1e3;
        let gbs = len as f64 / 1e3 / time_us.max(1e-9);
        Ok(Row {
            size_bytes: len,
            count: count.into(),
            time_us,
            p50_us: time_us,
            p99_us: samples.percentile(99.0) / 1e3,
            algbw_gbs: gbs,
            busbw_gbs: gbs,
            wrong: Some(wrong),
            ..Row::default()
        })
    }
}

/// Measures and prints.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    if args.min == 0 || args.min > args.max || args.max > 64 << 20 {
        return Err(Problem::new(
            Exit::Usage,
            format!(
                "there is no size from {} to {}",
                size_text(args.min),
                size_text(args.max)
            ),
            "give -b at least 1, and -e at least as much as -b and at most 64M",
        )
        .into());
    }
    let sweep = args.chunk.len() > 1;
    let mut report = Report::new("staging");
    report.meta.nic = "soft".into();
    report.meta.transport = "local".into();
    report.meta.progress = "waiter".into();
    report.meta.limits = limits::measure(&[args.max]);
    if sweep {
        report.meta.parameter = Some("chunk".into());
        let progress = Progress::new("staging", args.chunk.len() as u64);
        for &chunk in &args.chunk {
            progress.message(format!("pieces of {}", size_text(chunk)));
            let pair = Pair::open(args, Some(chunk))?;
            report.meta.gpu = machine::gpu_name(pair.ends[0].nic.gpu());
            for &to in &args.to {
                let row = pair.measure(Memory::Own, to, args.max, args.iters)?;
                report.rows.push(Row {
                    series: Some(format!("P-{}", to.letter())),
                    parameter: Some(chunk as f64),
                    ..row
                });
            }
            progress.step();
        }
    } else {
        let sizes: Vec<u64> = std::iter::successors(Some(args.min), |s| s.checked_mul(args.factor))
            .take_while(|s| *s <= args.max)
            .collect();
        let progress = Progress::new("staging", (sizes.len() * args.from.len()) as u64);
        let pair = Pair::open(args, args.chunk.first().copied())?;
        report.meta.gpu = machine::gpu_name(pair.ends[0].nic.gpu());
        for &from in &args.from {
            for &to in &args.to {
                for &size in &sizes {
                    let row = pair.measure(from, to, size, args.iters)?;
                    report.rows.push(Row {
                        series: Some(format!("{}-{}", from.letter(), to.letter())),
                        ..row
                    });
                }
            }
            progress.message(format!("from {} memory", from.letter()));
            (0..sizes.len()).for_each(|_| progress.step());
        }
    }
    emit(
        &report,
        &args.output,
        &Plot {
            title: match sweep {
                true => format!("staged messages of {} by piece", size_text(args.max)),
                false => {
                    "messages between memories (H host, D GPU, N NIC, P the program's own)".into()
                }
            },
            x: if sweep { Axis::Parameter } else { Axis::Size },
            y: Axis::Bandwidth,
        },
    )?;
    Ok(Exit::of_data(report.wrong()))
}
