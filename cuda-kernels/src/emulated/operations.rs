//! Entries of queues as the checks of kernels name them.

use ringbell_gpu::{Message, Operation};
use ringbell_gtlb::EntryPlace;
use ringbell_nic_abi::collective::{CollectiveKind, CollectiveSpec};
use ringbell_nic_abi::{Descriptor, Flags, Opcode, WorkQueueEntry};

/// The environment's number of this process among the job's, as `ringbell run` sets it.
const RANK: &str = "RINGBELL_RANK";

/// What an entry does in GPU memory; `None` if it is no descriptor. Of a collective the lengths are
/// at most `bytes(va)`, those of the allocation around an address.
pub(super) fn operation(
    entry: &WorkQueueEntry,
    place: EntryPlace,
    rest: impl Fn(u64) -> u64,
) -> Option<Operation> {
    let d = entry.decode().ok()?;
    let local = (d.local_va.0, u64::from(d.len));
    let inline = d.flags.contains(Flags::INLINE);
    let none = (0, 0);
    let (what, reads, writes) = match d.opcode {
        Opcode::Send if inline => ("a send", none, none),
        Opcode::Send => ("a send", local, none),
        Opcode::Recv => ("a receive", none, local),
        Opcode::Copy => ("a copy", local, (d.remote_va.0, local.1)),
        Opcode::Put if inline => ("a put", none, none),
        Opcode::Put => ("a put", local, none),
        Opcode::Get => ("a get", none, local),
        Opcode::FetchAdd | Opcode::CompareSwap => ("an atomic operation", none, none),
        Opcode::Collective => return collective(&d, place, rest),
        _ => return None,
    };
    let message = match d.opcode {
        Opcode::Send | Opcode::Put | Opcode::FetchAdd | Opcode::CompareSwap => Message::Sent,
        Opcode::Recv => Message::Received,
        _ => Message::Other,
    };
    Some(Operation {
        entry: place.entry,
        line: place.line,
        what,
        reads,
        writes,
        fed: false,
        message,
    })
}

fn collective(d: &Descriptor, place: EntryPlace, rest: impl Fn(u64) -> u64) -> Option<Operation> {
    use CollectiveKind as K;
    let spec = CollectiveSpec::decode(d.imm, d.len)?;
    let what = match spec.kind {
        K::Send | K::StreamSend => "a send of a communicator",
        K::Recv | K::StreamRecv => "a receive of a communicator",
        K::AllReduce => "an all-reduce",
        K::AllGather => "an all-gather",
        K::ReduceScatter => "a reduce-scatter",
        K::AllToAll => "an all-to-all",
        K::Broadcast => "a broadcast",
        _ => "a collective operation",
    };
    let one = d.operand.saturating_mul(spec.dtype.bytes());
    // One rank's part, or a part for each rank: no more than there is.
    let most = |va: u64, whole: bool| match whole {
        true => (va, rest(va)),
        false => (va, one.min(rest(va))),
    };
    let (many_in, many_out) = match spec.kind {
        K::AllReduce | K::Broadcast | K::Send | K::Recv => (false, false),
        K::AllGather => (false, true),
        K::ReduceScatter => (true, false),
        _ => (true, true),
    };
    let streamed = spec.from_stream || spec.to_stream || spec.streamed;
    Some(Operation {
        entry: place.entry,
        line: place.line,
        what,
        reads: match spec.kind {
            K::Recv | K::StreamRecv => (0, 0),
            _ if spec.from_stream => (0, 0),
            _ => most(d.local_va.0, many_in),
        },
        writes: match spec.kind {
            K::Send | K::StreamSend => (0, 0),
            _ if spec.to_stream => (0, 0),
            _ => most(d.remote_va.0, many_out),
        },
        fed: streamed || matches!(spec.kind, K::StreamSend | K::StreamRecv),
        message: match spec.kind {
            K::Send | K::StreamSend => Message::Sent,
            K::Recv | K::StreamRecv => Message::Received,
            _ => Message::Other,
        },
    })
}

/// Whose kernels those of a memory are, for what is said of them: the rank, and its NICs by their
/// addresses.
pub(super) fn owner(nics: &[String]) -> Option<String> {
    let rank = std::env::var(RANK).ok().map(|r| format!("rank {r}"));
    let nics = match nics {
        [] => None,
        [one] => Some(format!("NIC {one}")),
        more => Some(format!("NICs {}", more.join(", "))),
    };
    match (rank, nics) {
        (Some(rank), Some(nics)) => Some(format!("{rank}, {nics}")),
        (one, other) => one.or(other),
    }
}
