//! Engines at a communicator: distinct users of three machines, counted by their NICs while they
//! gather.
//!
//! Three ranks, each with a GPU and a NIC of its own, have seen users; many of them on more than
//! one. A kernel of each puts a HyperLogLog engine at the results of its communicator, gathers all
//! ranks' users with one call, and asks its NIC how many different ones they are: no thread reads
//! them (`gather.cu`; on-path model, FpgaNIC §3.5, at a collective as ACCL+'s unary plug-ins, §4).
//! The hosts have put checksums at the messages between ranks: each message arrives as it was sent.
//!
//! Run: `cargo run -p ringbell --example 15_engines_at_a_communicator`
//!
//! Prints `N users on 3 machines; every NIC estimates ...`; ends with an error when the estimate is
//! further off than four standard errors, ranks differ, or a message is not what was sent.
#![allow(unsafe_code)] // Runs kernels.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{anyhow, Error};
use ringbell::abi::EngineId;
use ringbell::engines::checksum::{Checksum, ChecksumEngine};
use ringbell::engines::hll::{HllConfig, HllEngine, HllSummary};
use ringbell::engines::{read_result, Place, StreamEngine};
use ringbell::{CommOptions, Communicator, GpuResult, Nic};

#[path = "../support/kernels.rs"]
mod kernels;

const RANKS: u32 = 3;
/// Visits at each machine.
const COUNT: u64 = 70_001;
/// Number under which kernels ask for the engine.
const KIND: u16 = 1;
const PRECISION: u64 = 14;

/// The user of a visit: some come back, and some go from machine to machine.
fn user(rank: u32, visit: u64) -> u32 {
    let n = visit as u32 % 40_000;
    let shared = n.is_multiple_of(3);
    (n + if shared { 0 } else { rank * 40_000 }).wrapping_mul(2_654_435_761)
}

/// The engine for a kernel that asks for `KIND`; `None` refuses the parameter.
fn counter(precision: u64) -> Option<Box<dyn StreamEngine>> {
    let config = HllConfig {
        precision: u8::try_from(precision).ok()?,
        width: 4,
        image: false,
        ..HllConfig::default()
    };
    Some(Box::new(HllEngine::new(config).ok()?))
}

/// A rank with checksums at its messages.
struct Machine {
    comm: Communicator,
    sent: EngineId,
    received: EngineId,
}

impl Machine {
    fn new(comm: Communicator) -> Result<Machine, Error> {
        comm.nic().register_engine_kind(KIND, counter)?;
        // A state for each peer.
        let checksum = || Box::new(ChecksumEngine::new()) as Box<dyn StreamEngine>;
        Ok(Machine {
            sent: comm.attach_engines(Place::Sent, checksum)?,
            received: comm.attach_engines(Place::Received, checksum)?,
            comm,
        })
    }

    /// Starts its kernel, and reads the NIC's count.
    fn count(&self, module: &Path) -> Result<HllSummary, Error> {
        let nic = self.comm.nic();
        let rank = self.comm.rank();
        let visits: Vec<u32> = (0..COUNT).map(|i| user(rank, i)).collect();
        let users = nic.alloc(COUNT)?;
        users.write(0, &visits)?;
        let all = nic.alloc::<u32>(COUNT * u64::from(RANKS))?;
        let (result, end) = (nic.alloc::<HllSummary>(1)?, nic.alloc::<GpuResult>(1)?);
        end.write(0, &[GpuResult::UNWRITTEN])?;
        let (kind, room) = (u32::from(KIND), result.bytes() as u32);
        let (comm, result, end) = (&self.comm, &result, &end);
        let args = (
            comm, kind, PRECISION, &users, &all, COUNT, result, room, end,
        );
        // SAFETY: gather.cu is ours, and the arguments have the types of its parameters.
        let launch = unsafe {
            let kernel = nic.module(module)?.kernel("gather_and_count")?;
            kernel.launch(1, 32, args)?
        };
        launch.wait(Duration::from_secs(60))?;
        end.to_vec()?[0].check("count")?;
        Ok(result.to_vec()?[0])
    }
}

fn main() -> Result<(), Error> {
    let module = kernels::of("15_engines_at_a_communicator/gather.cu");
    let nics: Vec<Nic> = (0..RANKS)
        .map(|rank| {
            let ip = format!("10.77.115.{}/24", rank + 1);
            Ok(Nic::builder().ip(ip).gpu_memory(16 << 20).open()?)
        })
        .collect::<Result<_, Error>>()?;
    let comms = Communicator::init_all(&nics, &CommOptions::default())?;
    let machines: Vec<Machine> = comms
        .into_iter()
        .map(Machine::new)
        .collect::<Result<_, _>>()?;
    let counted: Vec<HllSummary> = std::thread::scope(|scope| {
        let module = &module;
        let start = |m| scope.spawn(move || Machine::count(m, module));
        let ranks: Vec<_> = machines.iter().map(start).collect();
        ranks
            .into_iter()
            .map(|r| r.join().map_err(|_| anyhow!("a rank panicked"))?)
            .collect::<Result<_, Error>>()
    })?;

    let visits = (0..RANKS).flat_map(|r| (0..COUNT).map(move |i| user(r, i)));
    let exact = visits.collect::<HashSet<_>>().len();
    let (first, error) = (counted[0].estimate, counted[0].relative_error);
    for (rank, c) in counted.iter().enumerate() {
        if c.items != COUNT * u64::from(RANKS) || c.estimate != first {
            return Err(anyhow!("rank {rank} has seen {c:?}"));
        }
    }
    if (first / exact as f64 - 1.0).abs() > 4.0 * error {
        return Err(anyhow!("{first:.0} is too far from {exact}"));
    }
    let mut bytes = 0;
    for from in &machines {
        for to in &machines {
            let (a, b) = (from.comm.rank(), to.comm.rank());
            if a == b {
                continue;
            }
            let left = from.comm.nic().engine_result_of_rank(from.sent, b)?;
            let came = to.comm.nic().engine_result_of_rank(to.received, a)?;
            if left != came {
                return Err(anyhow!("what rank {a} sent is not what rank {b} got"));
            }
            let checksum: Checksum =
                read_result(&left.bytes).ok_or_else(|| anyhow!("no checksum"))?;
            bytes += checksum.bytes;
        }
    }
    println!(
        "{exact} users on {RANKS} machines; every NIC estimates {first:.0} (within {:.2}%)",
        error * 100.0
    );
    println!("{bytes} bytes went from rank to rank, each with the checksum that it was sent with");
    Ok(())
}
