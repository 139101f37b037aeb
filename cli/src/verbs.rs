//! `ringbell verbs`: a program of ibverbs, unmodified, on this NIC.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;

use anyhow::Result;
use ringbell::nic::PortSpec;
use ringbell::verbs::faults;

use super::library::Library;
use super::{preload, Exit, Problem};

const LIBRARY: Library = Library {
    package: "ringbell-verbs",
    names: &["libringbell_verbs.so"],
};

/// Arguments of `ringbell verbs`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Address of this host for the program's packets, of IPv4 or IPv6 (a link-local one with its
    /// interface: fe80::1%eth0); peers on other hosts need one that they can reach
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS", value_parser = host)]
    addr: SocketAddr,
    /// UDP port: 0 for a free one, which peers learn with the address; 4791 for peers that are
    /// other RoCEv2 NICs. An address of IPv6 that is neither ::1 nor link-local has port 4791
    #[arg(long, default_value_t = 0, value_name = "PORT")]
    port: u16,
    /// Largest IP packet in bytes [default: what the way to each peer carries]
    #[arg(long, value_name = "BYTES")]
    mtu: Option<u16>,
    /// What any other NIC gets, between programs of Ringbell as well: packets of 4,096 bytes at
    /// most with the invariant CRC, and no selective repeat
    #[arg(long)]
    standard: bool,
    /// Calls that fail, to test the program: the second ibv_create_cq and the fifth ibv_reg_mr by
    /// create_cq@2,reg_mr@5, the first after a time by reg_mr@3s or reg_mr@300ms. An unknown name
    /// is answered with those that there are
    #[arg(long, value_name = "CALL@WHEN,...", value_parser = checked(faults::failures))]
    fail: Option<String>,
    /// Asynchronous events to raise: port-err@3s,port-active@5s, or of a queue pair
    /// qp-fatal:qp1@3s; @1000 is at the 1000th completion of all
    #[arg(long, value_name = "EVENT@WHEN,...", value_parser = checked(faults::events))]
    event: Option<String>,
    /// Statuses of completions, after which the queue pair is in ERR: retry-exc:qp3@1000 is the
    /// 1000th completion of the third queue pair that the program makes; without :qp3 of any
    #[arg(long, value_name = "STATUS[:qpN]@WHEN,...", value_parser = checked(faults::completions))]
    wc: Option<String>,
    /// Say on stderr why a call is refused
    #[arg(long)]
    explain: bool,
    /// The library that answers the program's calls [default: the one beside this command, built
    /// when first used]
    #[arg(long, env = "RINGBELL_VERBS_LIBRARY", value_name = LIBRARY.names[0])]
    library: Option<PathBuf>,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

type Faults = Result<Vec<faults::Fault>, faults::FaultError>;

/// Takes a text that names faults as it is: the library reads it once more.
fn checked(
    read: fn(&str) -> Faults,
) -> impl Fn(&str) -> Result<String, faults::FaultError> + Clone + Send + Sync + 'static {
    move |text| read(text).map(|_| text.to_string())
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
    for (name, faults) in [
        ("RINGBELL_VERBS_FAIL", &args.fail),
        ("RINGBELL_VERBS_EVENT", &args.event),
        ("RINGBELL_VERBS_WC", &args.wc),
    ] {
        if let Some(faults) = faults {
            command.env(name, faults);
        }
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
