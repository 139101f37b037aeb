//! `ringbell verbs`: a program of ibverbs, unmodified, on this NIC.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;

use anyhow::Result;
use ringbell::nic::PortSpec;

use super::library::Library;
use super::{preload, Exit, Problem};

const LIBRARY: Library = Library {
    package: "ringbell-verbs",
    names: &["libringbell_verbs.so"],
};

/// Arguments of `ringbell verbs`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Address of this host for the program's packets, of IPv4 or IPv6 (a link-local one with its interface: fe80::1%eth0); peers on other
    /// hosts need one that they can reach
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS", value_parser = host)]
    addr: SocketAddr,
    /// UDP port: 0 for a free one, which peers learn with the address; 4791 for peers that are other RoCEv2 NICs. An address of IPv6 that is
    /// neither ::1 nor link-local has port 4791
    #[arg(long, default_value_t = 0, value_name = "PORT")]
    port: u16,
    /// Largest IP packet in bytes [default: what the way to each peer carries]
    #[arg(long, value_name = "BYTES")]
    mtu: Option<u16>,
    /// What any other NIC gets, between programs of Ringbell as well: packets of 4,096 bytes at most with the invariant CRC, and no selective
    /// repeat
    #[arg(long)]
    standard: bool,
    /// Say on stderr why a call is refused
    #[arg(long)]
    explain: bool,
    /// The library that answers the program's calls [default: the one beside this command, built when first used]
    #[arg(long, env = "RINGBELL_VERBS_LIBRARY", value_name = LIBRARY.names[0])]
    library: Option<PathBuf>,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

fn host(text: &str) -> Result<SocketAddr, String> {
    PortSpec::parse_host(text, 0).map_err(|why| why.to_string())
}

/// Becomes the program.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    let mut command = preload::command(&args.program, &LIBRARY, args.library.as_deref())?;
    command
        .env("RINGBELL_VERBS_ADDR", args.addr.ip().to_string())
        .env("RINGBELL_VERBS_PORT", args.port.to_string())
        .env(
            "RINGBELL_VERBS_STANDARD",
            u8::from(args.standard).to_string(),
        );
    if let SocketAddr::V6(at) = args.addr {
        command.env("RINGBELL_VERBS_SCOPE", at.scope_id().to_string());
    }
    if let Some(mtu) = args.mtu {
        command.env("RINGBELL_VERBS_MTU", mtu.to_string());
    }
    if args.explain {
        command.env("RINGBELL_VERBS_TRACE", "1");
    }
    // It returns only when the program cannot be started.
    let error = command.exec();
    Err(Problem::new(
        Exit::Environment,
        format!("cannot start {}: {error}", args.program[0].display()),
        "give the program's path; Debian has ibv_rc_pingpong in ibverbs-utils and ib_write_bw in perftest",
    )
    .into())
}
