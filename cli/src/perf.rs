//! `ringbell perf`: the benchmarks.

mod collective;
mod combine;
mod compare;
mod connections;
mod device;
mod exchange;
mod floor;
mod hll;
mod limits;
pub(crate) mod memory;
#[cfg(feature = "cuda")]
mod nccl;
mod one_sided;
pub(super) mod pair;
mod receiver;
mod send;
mod slots;

use anyhow::Result;
use clap::Subcommand;
use ringbell::comm::CollectiveKind as Kind;

pub(super) use self::collective::args::{algo, setting, Setting};
use super::Exit;
use crate::report::begin;

/// Arguments of `ringbell perf`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// What this machine can do at best: memcpy by size, cache-line ping-pong between two cores
    Limits(limits::Args),
    /// What the machine takes without a NIC: a flag from a kernel to the host and back, a pinned
    /// copy
    Floor(floor::Args),
    /// Register reads, and commands rung by a kernel against commands launched by the host
    Doorbell(device::LatencyArgs),
    /// The sum of two arrays in GPU memory, by the NIC and by kernels on few or many SMs
    Combine(combine::Args),
    /// The empty command, from a kernel through the NIC and back
    Nop(device::LatencyArgs),
    /// The NIC copies inside GPU memory, in bursts of rising size
    Dma(device::DmaArgs),
    /// Bandwidth of messages from GPU memory to GPU memory, sent and received by kernels
    SendBw(send::Args),
    /// Latency of messages from GPU memory to GPU memory: half a round trip
    SendLat(send::Args),
    /// Rate of 8-byte messages
    SendRate(send::Args),
    /// Latency of a put with a signal from kernel to kernel: half a round trip
    #[command(visible_alias = "put-signal-lat")]
    WriteLat(one_sided::Args),
    /// Bandwidth of puts into the other side's GPU memory, where no kernel runs
    WriteBw(one_sided::Args),
    /// Latency of gets from the other side's GPU memory, where no kernel runs
    ReadLat(one_sided::Args),
    /// Bandwidth of such gets
    ReadBw(one_sided::Args),
    /// Latency of fetch-and-add and compare-and-swap on a word of the other side's
    AtomicLat(one_sided::Args),
    /// Slots of rising size, against zero-copy sends rung by a kernel and launched by the host
    Slots(slots::Args),
    /// A stream with and without HyperLogLog on its path, by payload size
    Hll(hll::Args),
    /// Many connections between two NICs, with all or one of them active
    Connections(connections::Args),
    /// All-reduce among ranks of this machine, by their NICs
    AllReduce(collective::Args),
    /// Reduce-scatter
    ReduceScatter(collective::Args),
    /// All-gather
    AllGather(collective::Args),
    /// Broadcast from --root
    Broadcast(collective::Args),
    /// Reduce to --root
    Reduce(collective::Args),
    /// All-to-all
    AllToAll(collective::Args),
    /// Gather to --root
    Gather(collective::Args),
    /// Scatter from --root
    Scatter(collective::Args),
    /// Barrier
    Barrier(collective::Args),
    /// Every rank sends to the next one, and receives from the one before
    SendRecv(collective::Args),
    /// The process that NCCL runs in; started by the program itself
    #[cfg(feature = "cuda")]
    #[command(hide = true)]
    NcclWorker,
    /// Reports of one benchmark side by side, with ratios: ours and those of `cargo xtask peers`
    Compare(compare::Args),
}

/// Runs a benchmark.
pub(crate) fn run(args: Args) -> Result<Exit> {
    begin();
    match args.bench {
        Bench::Limits(args) => limits::run(&args),
        Bench::Floor(args) => floor::run(&args),
        Bench::Doorbell(args) => device::doorbell(&args),
        Bench::Combine(args) => combine::run(&args),
        Bench::Nop(args) => device::nop(&args),
        Bench::Dma(args) => device::dma(&args),
        Bench::SendBw(args) => send::run(send::Kind::Bandwidth, &args),
        Bench::SendLat(args) => send::run(send::Kind::Latency, &args),
        Bench::SendRate(args) => send::run(send::Kind::Rate, &args),
        Bench::WriteLat(args) => one_sided::run(one_sided::Kind::WriteLatency, &args),
        Bench::WriteBw(args) => one_sided::run(one_sided::Kind::WriteBandwidth, &args),
        Bench::ReadLat(args) => one_sided::run(one_sided::Kind::ReadLatency, &args),
        Bench::ReadBw(args) => one_sided::run(one_sided::Kind::ReadBandwidth, &args),
        Bench::AtomicLat(args) => one_sided::run(one_sided::Kind::AtomicLatency, &args),
        Bench::Slots(args) => slots::run(&args),
        Bench::Hll(args) => hll::run(&args),
        Bench::Connections(args) => connections::run(&args),
        Bench::AllReduce(args) => collective(Kind::AllReduce, &args),
        Bench::ReduceScatter(args) => collective(Kind::ReduceScatter, &args),
        Bench::AllGather(args) => collective(Kind::AllGather, &args),
        Bench::Broadcast(args) => collective(Kind::Broadcast, &args),
        Bench::Reduce(args) => collective(Kind::Reduce, &args),
        Bench::AllToAll(args) => collective(Kind::AllToAll, &args),
        Bench::Gather(args) => collective(Kind::Gather, &args),
        Bench::Scatter(args) => collective(Kind::Scatter, &args),
        Bench::Barrier(args) => collective(Kind::Barrier, &args),
        Bench::SendRecv(args) => collective(Kind::Send, &args),
        #[cfg(feature = "cuda")]
        Bench::NcclWorker => nccl::work(),
        Bench::Compare(args) => compare::run(&args),
    }
}

/// Measures a collective, beside a peer if that is asked for.
fn collective(kind: Kind, args: &collective::Args) -> Result<Exit> {
    #[cfg(feature = "cuda")]
    if let Some(peer) = args.beside.peer() {
        return nccl::beside::run(kind, args, peer);
    }
    collective::run(kind, args)
}
