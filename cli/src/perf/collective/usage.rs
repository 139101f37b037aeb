//! Checks of a measurement's arguments before it starts.

use anyhow::Result;
use ringbell::abi::kernel_stream::MAX_LOG2;
use ringbell::comm::{CollectiveKind, CollectiveSettings, WireType};
use ringbell::job::JobSource;
use ringbell::nic::{descriptors, PortSpec, TransportSpec};
use ringbell::parts::onc_engines::program::algorithms;
use ringbell::{Algorithm, CollectiveError, DataType, Job, Nic, NicBuilder};

use super::args::{name, spelled, Args};
use crate::perf::memory;
use crate::report::size_text;
use crate::{Exit, Problem};

/// A number of ranks that is not what a launcher has started.
pub(super) fn ranks(args: &Args, job: &Job) -> Result<()> {
    match args.ranks {
        Some(asked) if asked != job.size() => Err(Problem::new(
            Exit::Usage,
            format!(
                "-R {asked} asks for {asked} rank(s), and the launcher has started {}",
                job.size()
            ),
            "leave -R away under a launcher and tell it how many, or run the command without one",
        )
        .into()),
        _ => Ok(()),
    }
}

/// Refuses arguments that contradict each other, or that this collective does not support among so
/// many ranks.
pub(crate) fn check(kind: CollectiveKind, args: &Args, ranks: u32) -> Result<()> {
    let usage = |what: String, advice: &str| Err(Problem::new(Exit::Usage, what, advice).into());
    if kind == CollectiveKind::Send && ranks < 2 {
        return usage("send-recv needs two ranks".into(), "give -R 2 or more");
    }
    if args.root >= ranks {
        return usage(
            format!("there is no rank {} among {ranks}", args.root),
            "give --root a rank from 0 to below -R",
        );
    }
    if args.from_kernel && kind == CollectiveKind::Send {
        return usage(
            "send-recv is two operations at once, and --from-kernel times one".into(),
            "leave --from-kernel away, or give --streams, or measure `perf send-bw`, which kernels drive",
        );
    }
    check_streams(kind, args)?;
    check_algorithm(kind, args)?;
    let host_ranks = settings(args)?.host_ranks;
    if host_ranks.each() != Some(0) && !host_ranks.fits(ranks) {
        let what = match host_ranks.each() {
            Some(each) => format!("host_ranks={each} does not divide {ranks} ranks"),
            None => host_ranks.why_not(ranks),
        };
        return usage(
            what,
            "give -R as many, or another --set host_ranks=N or N,N,...",
        );
    }
    Ok(())
}

/// Refuses an algorithm or wire type that the collective or its elements' type does not support.
fn check_algorithm(kind: CollectiveKind, args: &Args) -> Result<()> {
    let all = algorithms(kind);
    if args.algo != Algorithm::Auto && !all.contains(&args.algo) {
        let names: Vec<String> = all.iter().map(|a| spelled(a.name())).collect();
        let advice = match names.is_empty() {
            true => "leave --algo away".to_string(),
            false => format!("give --algo one of auto, {}", names.join(", ")),
        };
        let what = format!(
            "{} has no algorithm {}",
            name(kind),
            spelled(args.algo.name())
        );
        return Err(Problem::new(Exit::Usage, what, advice).into());
    }
    if kind.reduces() && !args.op.takes(args.datatype) {
        let (op, dtype) = (spelled(args.op.name()), spelled(args.datatype.name()));
        return Err(Problem::new(
            Exit::Usage,
            format!("--op {op} works on the bits of integers, and these elements are {dtype}"),
            "give integers by -d, such as -d u32, or another --op",
        )
        .into());
    }
    if args.wire != WireType::Same && args.datatype != DataType::F32 {
        let dtype = spelled(args.datatype.name());
        return Err(Problem::new(
            Exit::Usage,
            format!("--wire is for f32 elements, and these are {dtype}"),
            "leave --wire away, or give -d f32",
        )
        .into());
    }
    Ok(())
}

/// Which operations can have streams for all their operands.
fn check_streams(kind: CollectiveKind, args: &Args) -> Result<()> {
    use CollectiveKind as K;
    if !args.streams {
        return Ok(());
    }
    let window = settings(args)?.stream_bytes;
    if !(window..=1 << MAX_LOG2).contains(&args.ring) {
        return Err(Problem::new(
            Exit::Usage,
            format!(
                "a ring of {} bytes cannot hold the {} that a communicator moves at once",
                size_text(args.ring),
                size_text(window)
            ),
            format!(
                "give --ring {} to {}, or a smaller window with --set stream_bytes=SIZE",
                size_text(window),
                size_text(1 << MAX_LOG2)
            ),
        )
        .into());
    }
    if matches!(kind, K::AllReduce | K::Broadcast | K::Reduce | K::Send) {
        return Ok(());
    }
    Err(Problem::new(
        Exit::Usage,
        format!(
            "{} has operands with a block for each rank, and a stream stands for one block",
            name(kind)
        ),
        "measure all-reduce, broadcast, reduce or send-recv with --streams",
    )
    .into())
}

/// Refuses at once a number of ranks for which the descriptors do not suffice.
pub(super) fn enough_descriptors(ranks: u32, transport: TransportSpec) -> Result<()> {
    let (Some(limit), true) = (descriptors::limit(), !transport.needs_port()) else {
        return Ok(());
    };
    let needed = descriptors::needed_in_one_process(ranks);
    if needed <= limit {
        return Ok(());
    }
    Err(Problem::new(
        Exit::Environment,
        format!("{ranks} ranks in one process need about {needed} file descriptors, and this process may have {limit}"),
        format!("raise the limit (`ulimit -n {needed}`, or its hard limit in /etc/security/limits.conf), or leave --threads away: ranks that are processes need few"),
    )
    .into())
}

/// Bytes of a rank besides its buffers.
const RANK_BYTES: u64 = 24 << 20;
/// Bytes that each pair of ranks shares: rings, and a page where each keeps heads.
const PAIR_BYTES: u64 = 128 << 10;
/// Messages of a pair that may wait for their receives, eight each way, and the longest such.
const EARLY: (u64, u64) = (16, 64 << 10);
/// Bytes of mapped memory for each byte of page tables.
const PAGE_TABLES: u64 = 512;

/// Refuses at once a measurement for which the system would kill a rank for lack of memory; all of
/// `ranks` are here.
pub(super) fn enough_memory(kind: CollectiveKind, ranks: u32, largest: u64) -> Result<()> {
    if kind == CollectiveKind::Send {
        memory::one_descriptor(largest)?;
    }
    let n = u64::from(ranks);
    let buffers = largest.saturating_mul(2);
    let needed = n
        .saturating_mul(buffers.saturating_add(RANK_BYTES))
        .saturating_add(n * (n - 1) / 2 * (PAIR_BYTES + EARLY.0 * largest.min(EARLY.1)))
        // Each maps the memory of all.
        .saturating_add((n * n).saturating_mul(buffers / PAGE_TABLES));
    let what = format!(
        "{} of {} bytes among {ranks} rank(s)",
        name(kind),
        size_text(largest)
    );
    let advice = "give a smaller -e (each rank has a source and a destination of that size), or fewer ranks with -R";
    memory::enough(&what, needed, advice)
}

/// Ranks that could not be connected: a resource that this machine lacks is not the ranks' failure.
pub(super) fn unconnected(error: CollectiveError) -> anyhow::Error {
    use CollectiveError as E;
    let lacks = matches!(
        error,
        E::Descriptors { .. } | E::NoRoomToMap { .. } | E::Thread(_)
    );
    let error = anyhow::Error::new(error);
    if !lacks {
        return error;
    }
    error.context(Problem::new(
        Exit::Environment,
        "the ranks cannot be connected",
        "read the cause above: it names what is short, and what needs less of it",
    ))
}

/// The rank's NIC by its launcher's settings, unless the command line overrides them.
pub(super) fn attached(args: &Args, job: &Job) -> Result<NicBuilder> {
    let transport = Some(args.transport).filter(|t| *t != TransportSpec::Auto);
    // Ranks started by `run` and by this command have their own part of the port already.
    let launched = job.source() == JobSource::Ringbell;
    let own = args.port.clone().filter(|_| !launched);
    let port = own.map(|p| p.or_mtu(args.mtu));
    // A text that cannot be read is reported when the NIC is opened.
    let needs_port = transport
        .or(job.transport().and_then(|t| t.parse().ok()))
        .is_some_and(TransportSpec::needs_port);
    let missing = match port.clone().or(job.port().and_then(|p| p.parse().ok())) {
        None | Some(PortSpec::None) => needs_port,
        Some(PortSpec::Mem) => job.switch().is_none(),
        _ => false,
    };
    if missing {
        return Err(Problem::new(
            Exit::Usage,
            format!("{} has started the ranks, and they have no port to carry frames: only `ringbell run` makes one", job.source()),
            "give --port roce, or each rank RINGBELL_PORT=udp:OWN_ADDRESS:PORT,PEER:PORT,...; or leave --transport and --port away",
        )
        .into());
    }
    let nic = Nic::builder().job(job).icrc(args.icrc);
    Ok(nic
        .when(transport, NicBuilder::transport)
        .when(port, NicBuilder::port))
}

/// The communicator's settings.
pub(super) fn settings(args: &Args) -> Result<CollectiveSettings> {
    let mut settings = CollectiveSettings::default();
    for s in &args.settings {
        s.apply(&mut settings)?;
    }
    settings.validate().map_err(|e| {
        Problem::new(
            Exit::Usage,
            format!("{}: {}", e.setting, e.why),
            "change one of them with --set",
        )
    })?;
    Ok(settings)
}
