//! `ringbell nccl`: a program of NCCL, unmodified, with its network traffic on this NIC.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;
use ringbell::nic::TransportSpec;

use super::library::Library;
use super::{Exit, Problem};

/// As cargo names it, and as it is installed, where NCCL looks for it.
const LIBRARY: Library = Library {
    package: "ringbell-nccl",
    names: &["libnccl_net_ringbell.so", "libnccl-net-ringbell.so"],
};

const AFTER: &str = "\
Each rank is started so, by any launcher. NCCL uses a network between hosts; on one host with NCCL_P2P_DISABLE=1 and NCCL_SHM_DISABLE=1.
Memory of GPUs goes through host memory, by NCCL. docs/nccl.md has the details.";

/// Arguments of `ringbell nccl`.
#[derive(clap::Args)]
#[command(after_help = AFTER)]
pub(crate) struct Args {
    /// Addresses of this host with commas between, of IPv4 or IPv6: a device for each [default:
    /// that of the default route]
    #[arg(long, value_name = "ADDRESS[,...]")]
    addr: Option<String>,
    /// What carries connections: auto, local, rdma [default: auto, memory between processes of a
    /// host, iWARP over TCP to others]
    #[arg(long)]
    transport: Option<TransportSpec>,
    /// Speed of a device that NCCL is told, in Mb/s [default: 100000]
    #[arg(long, value_name = "MBITS", value_parser = clap::value_parser!(u32).range(1..=i64::from(i32::MAX)))]
    speed: Option<u32>,
    /// Longest time until a connection is made, in seconds [default: 60]
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<f64>,
    /// How long a peer over a network may say nothing before it counts as gone, in seconds
    /// [default: 5]
    #[arg(long, value_name = "SECONDS")]
    peer_timeout: Option<f64>,
    /// Let NCCL give whole all-reduces, all-gathers and reduce-scatters between hosts to the NIC
    /// (NCCL_COLLNET_ENABLE=1)
    #[arg(long)]
    collnet: bool,
    /// Let NCCL say on stdout which network it has chosen, and what carries each connection
    #[arg(long)]
    explain: bool,
    /// The plug-in [default: the one beside this command, built when first used]
    #[arg(long, value_name = LIBRARY.names[1])]
    library: Option<PathBuf>,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Becomes the program.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    let plugin = LIBRARY.find(args.library.as_deref())?;
    let mut command = Command::new(&args.program[0]);
    command
        .args(&args.program[1..])
        .env("NCCL_NET_PLUGIN", plugin);
    let settings = [
        ("RINGBELL_NCCL_ADDR", args.addr.clone()),
        ("RINGBELL_TRANSPORT", args.transport.map(|t| t.to_string())),
        ("RINGBELL_NCCL_SPEED", args.speed.map(|s| s.to_string())),
        ("RINGBELL_NCCL_TIMEOUT", args.timeout.map(|s| s.to_string())),
        (
            "RINGBELL_NCCL_PEER_TIMEOUT",
            args.peer_timeout.map(|s| s.to_string()),
        ),
    ];
    for (name, value) in settings {
        if let Some(value) = value {
            command.env(name, value);
        }
    }
    if args.collnet {
        command.env("NCCL_COLLNET_ENABLE", "1");
    }
    if args.explain {
        command
            .env("NCCL_DEBUG", "INFO")
            .env("NCCL_DEBUG_SUBSYS", "INIT,NET");
    }
    // It returns only when the program cannot be started.
    let error = command.exec();
    Err(Problem::new(
        Exit::Environment,
        format!("cannot start {}: {error}", args.program[0].display()),
        "give the program's path, or a name that is in PATH",
    )
    .into())
}
