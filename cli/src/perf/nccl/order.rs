//! Messages between this command and NCCL's process: a line of JSON each way. NCCL has a process of
//! its own, so that its environment is set before it is loaded, and so that it can be ended when it
//! hangs.

use std::path::PathBuf;

use ringbell::comm::CollectiveKind;
use ringbell::{DataType, ReduceOp};
use serde::{Deserialize, Serialize};

use super::super::collective::args::{dtype, redop, spelled};
use super::super::collective::Step;
use ringbell_perf::collective::data::Shape;

/// First line to a worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Order {
    /// The library, as the dynamic loader takes it.
    pub(super) library: PathBuf,
    /// Number of the GPU.
    pub(super) device: usize,
    /// Number of ranks; 0: the worker only checks whether library and GPU are there.
    pub(super) ranks: u32,
    /// Names, as on the command line.
    pub(super) dtype: String,
    pub(super) op: String,
    pub(super) steps: Vec<Step>,
    /// Whether results are verified.
    pub(super) check: bool,
    /// Longest that an operation may take.
    pub(super) timeout_s: u64,
}

impl Order {
    /// An order that only checks.
    pub(super) fn look(library: PathBuf, device: usize) -> Order {
        Order {
            library,
            device,
            ranks: 0,
            dtype: spelled(DataType::F32.name()),
            op: spelled(ReduceOp::Sum.name()),
            steps: Vec::new(),
            check: false,
            timeout_s: 30,
        }
    }

    /// The data of a rank: the same that verifies our own all-reduce.
    pub(super) fn shape(&self, rank: u32, count: u64) -> Result<Shape, String> {
        let dtype: DataType = dtype(&self.dtype)?;
        Ok(Shape {
            kind: CollectiveKind::AllReduce,
            dtype,
            op: redop(&self.op)?,
            narrow: dtype == DataType::Bf16,
            ranks: self.ranks,
            rank,
            root: 0,
            count,
        })
    }
}

/// Times of one size on one rank, in microseconds, and what was wrong.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Timed {
    pub(super) mean_us: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    /// Wrong elements; none when data was not checked.
    pub(super) wrong: Option<u64>,
}

/// Lines of a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub(super) enum Event {
    /// Library and GPU are there.
    Loaded { version: i32, sms: i32 },
    /// There is no GPU to run any library on.
    NoGpu { why: String },
    /// A communicator has come up.
    Up { rank: u32 },
    /// A size is done.
    Row {
        rank: u32,
        bytes: u64,
        in_place: bool,
        timed: Timed,
    },
    /// A rank has its numbers.
    Done { rank: u32 },
    /// Its communicator is destroyed, too.
    Ended { rank: u32 },
    /// It cannot continue.
    Failed { rank: Option<u32>, why: String },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_survive_their_lines() {
        let row = Event::Row {
            rank: 1,
            bytes: 4096,
            in_place: true,
            timed: Timed {
                mean_us: 1.5,
                p50_us: 1.25,
                p99_us: 9.0,
                wrong: Some(0),
            },
        };
        for event in [row, Event::Ended { rank: 3 }] {
            let line = serde_json::to_string(&event).expect("plain values");
            assert!(!line.contains('\n'));
            let back: Event = serde_json::from_str(&line).expect("what was written");
            assert_eq!(back, event);
        }
        let order = Order::look("libnccl.so.2".into(), 0);
        assert!(order.shape(0, 8).is_ok());
    }
}
