//! One rank of NCCL's all-reduce: fill, run, verify, time, in the same steps as ours
//! (`collective/rank.rs`), so that the figures are comparable.
#![allow(unsafe_code)] // A C library works on our memory.
#![allow(clippy::disallowed_methods)] // Measuring needs the clock.

use std::time::{Duration, Instant};

use super::super::collective::Step;
use super::binding::{AllReduce, Communicator, Nccl, NcclError, UniqueId};
use super::device::{Device, DeviceError, Memory};
use super::order::{Event, Order, Timed};
use crate::report::Samples;
use ringbell_perf::collective::data::Shape;
use ringbell_perf::collective::rank::{pieces, CHUNK};

/// Why a rank cannot continue.
#[derive(Debug, thiserror::Error)]
pub(super) enum RankError {
    #[error(transparent)]
    Nccl(#[from] NcclError),
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error("{0}")]
    Order(String),
}

struct Rank<'a> {
    order: &'a Order,
    rank: u32,
    device: &'a Device,
    comm: Communicator<'a>,
    src: Memory<'a>,
    dst: Memory<'a>,
    /// Of the barrier.
    word: Memory<'a>,
}

/// Runs a rank to its end; `tell` sends its events.
pub(super) fn run(
    nccl: &Nccl,
    order: &Order,
    rank: u32,
    id: &UniqueId,
    tell: &dyn Fn(Event),
) -> Result<(), RankError> {
    let device = Device::open(order.device, Duration::from_secs(order.timeout_s))?;
    let largest = order.steps.iter().map(|s| s.bytes).max().unwrap_or(0);
    // Before any kernel runs, because an allocation might have to wait for it.
    let (src, dst, word) = (
        device.alloc(largest)?,
        device.alloc(largest)?,
        device.alloc(64)?,
    );
    let comm = nccl.init_rank(order.ranks, id, rank)?;
    tell(Event::Up { rank });
    let r = Rank {
        order,
        rank,
        device: &device,
        comm,
        src,
        dst,
        word,
    };
    r.word.write(0, &[0; 64])?;
    for step in &order.steps {
        for in_place in [false, true] {
            let timed = r.measure(step, in_place)?;
            tell(Event::Row {
                rank,
                bytes: step.bytes,
                in_place,
                timed,
            });
        }
    }
    tell(Event::Done { rank });
    r.comm.destroy()?;
    tell(Event::Ended { rank });
    Ok(())
}

impl Rank<'_> {
    fn post(&self, o: AllReduce) -> Result<(), RankError> {
        // SAFETY: our stream; our memory, of `count` elements at least, which lives as long as the
        // process.
        unsafe { self.comm.all_reduce(o, self.device.stream()) }?;
        Ok(())
    }

    fn wait(&self) -> Result<(), RankError> {
        self.device
            .wait("an all-reduce", || Ok(self.comm.later_error()?))
    }

    fn once(&self, o: AllReduce) -> Result<(), RankError> {
        self.post(o)?;
        self.wait()
    }

    fn fill(&self, s: &Shape, to: &Memory<'_>) -> Result<(), RankError> {
        let size = s.dtype.bytes();
        pieces(s.count, |from, end| {
            Ok(to.write(from * size, &s.source(from, end))?)
        })
    }

    /// Bytes of one value.
    fn paint(&self, s: &Shape, value: u8) -> Result<(), RankError> {
        let size = s.dtype.bytes();
        let bytes = vec![value; (CHUNK.min(s.count) * size) as usize];
        pieces(s.count, |from, end| {
            let n = ((end - from) * size) as usize;
            Ok(self.dst.write(from * size, &bytes[..n])?)
        })
    }

    /// Number of wrong elements in the result.
    fn wrong(&self, s: &Shape) -> Result<u64, RankError> {
        let size = s.dtype.bytes();
        let mut wrong = 0;
        pieces(s.count, |from, end| {
            let mut got = vec![0; ((end - from) * size) as usize];
            self.dst.read(from * size, &mut got)?;
            wrong += s.differences(from, end, &got);
            Ok::<_, RankError>(())
        })?;
        Ok(wrong)
    }

    /// All ranks have come here.
    fn barrier(&self) -> Result<(), RankError> {
        let s = self.order.shape(self.rank, 1).map_err(RankError::Order)?;
        let va = self.word.va();
        self.once(AllReduce {
            src: va,
            dst: va,
            count: 1,
            dtype: s.dtype,
            op: s.op,
        })
    }

    fn measure(&self, step: &Step, in_place: bool) -> Result<Timed, RankError> {
        let shape = self.order.shape(self.rank, step.count);
        let s = shape.map_err(RankError::Order)?;
        let source = if in_place { &self.dst } else { &self.src };
        let o = AllReduce {
            src: source.va(),
            dst: self.dst.va(),
            count: s.count,
            dtype: s.dtype,
            op: s.op,
        };
        let mut wrong = 0;
        if self.order.check {
            // Bytes that stay unwritten are detected.
            self.paint(&s, 0xa5)?;
            self.fill(&s, source)?;
            self.once(o)?;
            wrong += self.wrong(&s)?;
        }
        if in_place {
            // Repeated reductions leave these values unchanged.
            self.paint(&s, 0)?;
        } else if !self.order.check {
            self.fill(&s, source)?;
        }
        let mut samples = self.time(o, step)?;
        if self.order.check && !in_place {
            // The last of the timed ones as well.
            wrong += self.wrong(&s)?;
        }
        Ok(Timed {
            mean_us: samples.mean() / 1e3,
            p50_us: samples.median() / 1e3,
            p99_us: samples.percentile(99.0) / 1e3,
            wrong: self.order.check.then_some(wrong),
        })
    }

    fn time(&self, o: AllReduce, step: &Step) -> Result<Samples, RankError> {
        for _ in 0..step.warmup {
            self.once(o)?;
        }
        self.barrier()?;
        let mut samples = Samples::with_capacity(step.iters as usize);
        let mut last = Instant::now();
        for _ in 0..step.iters {
            self.once(o)?;
            let now = Instant::now();
            samples.push((now - last).as_nanos() as f64);
            last = now;
        }
        Ok(samples)
    }
}
