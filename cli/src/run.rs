//! `ringbell run`: starts the ranks of a job on this machine, and ends them together.
#![allow(clippy::disallowed_methods)] // The program: waits for its ranks, with deadlines.

pub(crate) mod binding;
pub(crate) mod carriers;
mod forward;
pub(crate) mod mesh;
pub(crate) mod programs;
pub(crate) mod ranks;
pub(crate) mod wiring;

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ringbell::job::BootstrapServer;
use ringbell::nic::{PortSpec, TransportSpec};
use ringbell::parts::nic_core::scratch;
use rustix::process::Signal;

use self::binding::{BindTo, Binding};
use self::mesh::NetworkArgs;
use self::programs::Programs;
use self::ranks::Ranks;
use self::wiring::Wiring;
use super::child::End;
use super::report::ranges;
use super::{stdio, Exit};

/// Longest time for ranks to end after a signal.
const GRACE: Duration = Duration::from_secs(5);
/// Interval between two checks of the ranks.
const LOOK: Duration = Duration::from_millis(5);

/// The names of the checks, as the emulated GPU reads them from the environment.
const CHECKS: [&str; 5] = ["all", "memcheck", "initcheck", "racecheck", "synccheck"];

/// Arguments of `ringbell run`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Ranks to start
    #[arg(short = 'R', visible_short_alias = 'n', long = "ranks", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    ranks: u32,
    /// End all ranks when they have not ended after so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    deadline: Option<u64>,
    /// Let the other ranks go on when one fails: for programs that shrink their communicators
    #[arg(long)]
    keep_going: bool,
    /// Transport of the ranks' NICs: `local` from memory to memory, `tcp`, `rdma` or `udp` over the
    /// port, `iwarp` over the kernel's TCP, `auto` local first, then over port roce `rdma` on
    /// one host and `iwarp` to another host, and `tcp` over other ports
    #[arg(
        long,
        default_value = "auto",
        value_name = "auto|local|tcp|rdma|udp|iwarp"
    )]
    transport: TransportSpec,
    /// What carries the packets between the ranks: `mem` an in-memory switch, `udp` VXLAN over UDP,
    /// `roce` the host's UDP, for rdma and udp, or its TCP, for iwarp, `none` [default: none; with
    /// --transport tcp, rdma or udp: mem; with iwarp: roce]
    #[arg(long, value_name = "none|mem|udp|roce")]
    port: Option<PortSpec>,
    #[command(flatten)]
    network: NetworkArgs,
    /// IP MTU of the port, in bytes [default: mem 9000; udp and roce what the ways to the other
    /// ranks carry]
    #[arg(long, value_name = "BYTES", value_parser = PortSpec::parse_mtu)]
    mtu: Option<u16>,
    /// What each rank is bound to: `core` gives it a core of its own, for all its threads. Ranks
    /// that wake each other then never share one; threads that compute should have more
    #[arg(long, value_enum, default_value_t, value_name = "none|core")]
    bind_to: BindTo,
    /// Print what the ranks print without the rank before each line
    #[arg(long)]
    no_prefix: bool,
    /// Check kernels on the emulated GPU while they run: accesses (`memcheck`), memory that was
    /// never written (`initcheck`), data races (`racecheck`), barriers (`synccheck`), or all of it
    #[arg(long, value_name = "CHECKS", num_args = 0..=1, require_equals = true, value_delimiter = ',', default_missing_value = "all", value_parser = CHECKS)]
    check: Vec<String>,
    /// Take the program of each rank from a file, as srun does: lines of ranks and a command, such
    /// as `0 leader` and `1,3-5 worker %t`; `*` means all other ranks, `%t` the rank, `%o` its
    /// place in the line
    #[arg(long, value_name = "FILE", conflicts_with = "program")]
    multi_prog: Option<PathBuf>,
    /// The program, and its arguments
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required_unless_present = "multi_prog",
        value_name = "PROGRAM"
    )]
    program: Vec<String>,
}

/// Starts the ranks and waits for them.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    let programs = match &args.multi_prog {
        Some(path) => Programs::read(path, args.ranks)?,
        None => Programs::same(&args.program, args.ranks),
    };
    scratch::sweep();
    let server = BootstrapServer::start((Ipv4Addr::LOCALHOST, 0).into(), Some(args.ranks))?;
    let wiring = Wiring::new(
        args.ranks,
        args.transport,
        args.port.as_ref(),
        args.mtu,
        &args.network,
    )?;
    let binding = Binding::new(args.bind_to, args.ranks)?;
    let signal = Arc::new(AtomicUsize::new(0));
    for s in [
        signal_hook::consts::SIGINT,
        signal_hook::consts::SIGTERM,
        signal_hook::consts::SIGHUP,
    ] {
        signal_hook::flag::register_usize(s, signal.clone(), s as usize)
            .with_context(|| format!("cannot watch for signal {s}"))?;
    }
    let id = server.id();
    let switches = wiring.switches(&id)?;
    let variables = |rank| {
        let mut variables = wiring.environment(rank, args.ranks, args.transport, &id);
        if !args.check.is_empty() {
            variables.push(("RINGBELL_CHECK", args.check.join(",")));
        }
        variables
    };
    let ranks = 0..args.ranks;
    let done = Ranks::start(ranks, &programs, args.no_prefix, &binding, variables)
        .and_then(|ranks| supervise(args, ranks, &server, &wiring, &signal));
    drop(switches);
    // Killed ranks leave their sockets in it.
    let _ = std::fs::remove_dir_all(id.local_directory());
    done
}

/// Why the ranks are being ended.
enum Cause {
    Signal(Signal),
    Deadline,
    Rank,
}

fn supervise(
    args: &Args,
    mut ranks: Ranks,
    server: &BootstrapServer,
    wiring: &Wiring,
    signal: &AtomicUsize,
) -> Result<Exit> {
    let mut forwarders = Vec::new();
    let start = Instant::now();
    let deadline = args.deadline.map(Duration::from_secs);
    let mut first: Option<(u32, End)> = None;
    let mut ending: Option<(Cause, Instant)> = None;
    loop {
        let mut failed: Vec<(End, Vec<u32>)> = Vec::new();
        for ended in ranks.reap()? {
            let (rank, end) = (ended.rank, ended.end);
            // The others stop waiting for a rank that ended before it joined.
            server.rank_ended(rank, &ended.brief());
            // The others' ways may lead through its node.
            if end.is_success() && ending.is_none() && ranks.left() > 0 {
                match wiring.instead_of(rank, &server.id()) {
                    Ok(forwarder) => forwarders.extend(forwarder),
                    Err(why) => stdio::note(format_args!("ringbell: {why:#}")),
                }
            }
            if end.is_success() || (ending.is_some() && end.was_asked()) {
                continue;
            }
            first.get_or_insert((rank, end));
            match failed.iter_mut().find(|f| f.0 == end) {
                Some((_, ranks)) => ranks.push(rank),
                None => failed.push((end, vec![rank])),
            }
        }
        for (end, ranks) in &failed {
            let many = if ranks.len() > 1 { "s" } else { "" };
            let ranks = ranges(ranks.iter().map(|r| *r as usize));
            stdio::note(format_args!("ringbell: rank{many} {ranks} {end}"));
        }
        if !failed.is_empty() && !args.keep_going && ending.is_none() && ranks.left() > 0 {
            stdio::note(format_args!(
                "ringbell: ending the other {} rank(s)",
                ranks.left()
            ));
            ranks.signal(Signal::TERM);
            ending = Some((Cause::Rank, Instant::now()));
        }
        if ranks.left() == 0 {
            break;
        }
        let seen = signal.swap(0, Ordering::Relaxed);
        if let Some(s) = i32::try_from(seen).ok().and_then(Signal::from_named_raw) {
            ranks.signal(s);
            ending.get_or_insert((Cause::Signal(s), Instant::now()));
        }
        if let Some(limit) = deadline.filter(|d| start.elapsed() > *d) {
            if ending.is_none() {
                stdio::note(format_args!(
                    "ringbell: rank(s) {} had not ended after {limit:?}; ending them",
                    ranks.names()
                ));
                ranks.signal(Signal::TERM);
                ending = Some((Cause::Deadline, Instant::now()));
            }
        }
        if let Some((_, since)) = &ending {
            if since.elapsed() > GRACE {
                stdio::note(format_args!(
                    "ringbell: rank(s) {} do not end; killing them",
                    ranks.names()
                ));
                ranks.signal(Signal::KILL);
            }
        }
        std::thread::sleep(LOOK);
    }
    ranks.finish_output();
    Ok(match (ending, first) {
        (Some((Cause::Signal(s), _)), _) => Exit::Program(128 + s.as_raw() as u8),
        (Some((Cause::Deadline, _)), _) => Exit::Failed,
        (Some((Cause::Rank, _)) | None, Some((_, end))) => Exit::Program(end.code()),
        (_, None) => Exit::Ok,
    })
}
