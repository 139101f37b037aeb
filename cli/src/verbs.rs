//! `ringbell verbs`: a program of ibverbs, unmodified, on this NIC.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use ringbell::nic::PortSpec;

use super::{Exit, Problem};

const LIBRARY: &str = "libringbell_verbs.so";

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
    /// Packets of 4,096 bytes at most, and with the invariant CRC, also between programs of this host
    #[arg(long)]
    standard: bool,
    /// Say on stderr why a call is refused
    #[arg(long)]
    explain: bool,
    /// The library that answers the program's calls [default: the one beside this command]
    #[arg(long, env = "RINGBELL_VERBS_LIBRARY", value_name = LIBRARY)]
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
    let library = find(args.library.as_deref())?;
    let mut preloaded = library.into_os_string();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|o| !o.is_empty()) {
        preloaded.push(":");
        preloaded.push(others);
    }
    let mut command = Command::new(&args.program[0]);
    command
        .args(&args.program[1..])
        .env("LD_PRELOAD", preloaded)
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

/// The named library, or the one that came with this command.
fn find(named: Option<&Path>) -> Result<PathBuf> {
    let places = match named {
        Some(named) => vec![named.to_owned()],
        None => {
            let command = std::env::current_exe().context("cannot tell where this command lies")?;
            let folder = command.parent().unwrap_or(Path::new("."));
            // cargo puts it beside the command; an installation has bin/ and lib/.
            vec![folder.join(LIBRARY), folder.join("../lib").join(LIBRARY)]
        }
    };
    let found = places.iter().find(|p| p.is_file()).ok_or_else(|| {
        Problem::new(
            Exit::Environment,
            format!("there is no file {}", places[0].display()),
            "run `cargo build` (with --release for a release build), which puts it beside the command, or name it in --library",
        )
    })?;
    found
        .canonicalize()
        .with_context(|| format!("cannot resolve {}", found.display()))
}
