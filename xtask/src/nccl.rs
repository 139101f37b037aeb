//! NCCL's network plug-in: C drivers that call its two interfaces as NCCL does, between processes;
//! NCCL itself as far as it goes without a GPU; and the program of docs/nccl.md.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{anyhow, ensure, Context, Result};
use fs_err as fs;

use crate::steps::{command, output_within, shown, Outcome, Words as _};
use crate::workspace::{root, target};
use crate::{pages, tools, venv, workspace};

/// Arguments of `cargo xtask nccl`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only measure the network plug-in by the profile `dist`, beside TCP over loopback, in turn
    #[arg(long)]
    measure: bool,
}

/// Longest time of one scenario.
const LIMIT: Duration = Duration::from_secs(60);

/// What the driver does, for each version of the interface.
const SCENARIOS: [&str; 8] = [
    "loopback", "random", "threads", "overlaps", "close", "large", "killed", "wrong",
];

/// Scenarios over RDMA, which a process does not use to itself.
const OVER_RDMA: [&str; 6] = ["random", "threads", "overlaps", "close", "large", "killed"];

/// What the driver of collectives does, with the version of the interface and the number of ranks.
const COLLECTIVES: [(&str, &str, u32); 15] = [
    ("12", "support", 3),
    ("12", "random", 2),
    ("12", "random", 3),
    ("12", "random", 5),
    ("12", "threads", 3),
    ("12", "overlaps", 4),
    ("12", "close", 3),
    ("12", "killed", 4),
    ("12", "missing", 3),
    ("12", "mismatch", 3),
    ("12", "wrong", 2),
    ("12", "many", 2),
    ("11", "random", 3),
    ("11", "wrong", 2),
    ("10", "random", 2),
];

/// Collectives over RDMA.
const COLLECTIVES_OVER_RDMA: [(&str, u32); 6] = [
    ("random", 3),
    ("threads", 2),
    ("overlaps", 2),
    ("close", 3),
    ("killed", 3),
    ("stopped", 3),
];

/// NCCL, whose internal functions `bindings/nccl/tests/nccl.c` calls: it knows this version alone.
const WHEEL: &str = "nvidia-nccl-cu12==2.32.3";

/// Variables that a user may have set.
const SETTINGS: [&str; 6] = [
    "RINGBELL_PORT",
    "RINGBELL_TRANSPORT",
    "RINGBELL_NCCL_ADDR",
    "RINGBELL_NCCL_SPEED",
    "RINGBELL_NCCL_TIMEOUT",
    "RINGBELL_NCCL_PEER_TIMEOUT",
];

/// Over the network, as between hosts.
const RDMA: [(&str, &str); 2] = [
    ("RINGBELL_NCCL_ADDR", "127.0.0.1"),
    ("RINGBELL_TRANSPORT", "rdma"),
];

/// Measures, or runs the step of the tests.
pub(crate) fn run(args: &Args) -> Result<bool> {
    match args.measure {
        true => measure(&workspace::dist(&["ringbell-nccl", "ringbell-cli"])?).map(|()| true),
        false => crate::steps::told("nccl", step()?),
    }
}

/// As a step of the tests.
pub(crate) fn step() -> Result<Outcome> {
    workspace::build()?;
    tests(&workspace::built())
}

fn tests(built: &Path) -> Result<Outcome> {
    let Some(bench) = Bench::new(built)? else {
        return Ok(Outcome::Skipped("no cc for the driver".into()));
    };
    let driver = bench.compile("driver")?;
    let collnet = bench.compile("collnet")?;
    // A peer of RDMA that says nothing is given up after 30 s: beside the others.
    std::thread::scope(|scope| {
        let stopped = scope.spawn(|| bench.drive(&driver, "12", "stopped", 1, &RDMA));
        let others = bench.scenarios(&driver);
        let others = others.and_then(|()| bench.collectives(&collnet));
        let others = others.and_then(|()| bench.beyond());
        let stopped = stopped.join().map_err(|_| anyhow!("a test has panicked"))?;
        let others = others?;
        stopped.map(|()| others)
    })
}

/// Times that each takes its turn in a measurement.
const TURNS: u32 = 7;

/// Times and rates between two processes of this host, over memory and over RDMA.
fn measure(built: &Path) -> Result<()> {
    let bench = Bench::new(built)?.context("no cc for the program that measures")?;
    let program = bench.compile("measure")?;
    for (over, env) in [("memory", &[][..]), ("RDMA", &RDMA)] {
        println!("\nover {over}, medians of {TURNS} turns");
        let mut c = Command::new(&program);
        c.arg(bench.plugin()).arg("12").arg(TURNS.to_string());
        clear(&mut c);
        command(c.envs(env.iter().copied()))?;
    }
    Ok(())
}

/// NCCL's library, from PyPI.
///
/// # Errors
/// When it cannot be installed.
pub(crate) fn library() -> Result<PathBuf> {
    let environment = venv::environment("venv-nccl", &[WHEEL])?;
    venv::package_file(&environment, "nvidia/nccl/lib/libnccl.so.2")
}

/// Leaves the user's settings out.
fn clear(command: &mut Command) {
    for name in SETTINGS {
        command.env_remove(name);
    }
}

/// Runs a program without the user's settings, which must say these lines.
fn says(c: &mut Command, env: &[(&str, &str)], lines: &[String]) -> Result<()> {
    clear(c);
    let ended = output_within(c.envs(env.iter().copied()), LIMIT)?;
    let said = String::from_utf8_lossy(&ended.stdout);
    let missing = lines.iter().find(|l| !said.contains(l.as_str()));
    ensure!(
        ended.status.success() && missing.is_none(),
        "{}, {env:?}: {}, and no line `{}` in {said}{}",
        shown(c),
        ended.status,
        missing.map_or("", String::as_str),
        String::from_utf8_lossy(&ended.stderr)
    );
    Ok(())
}

/// A compiler, a folder for programs, and where the plug-in lies.
struct Bench {
    cc: PathBuf,
    folder: PathBuf,
    built: PathBuf,
}

impl Bench {
    /// `None` without a compiler.
    fn new(built: &Path) -> Result<Option<Bench>> {
        let Some(cc) = tools::find("cc") else {
            return Ok(None);
        };
        let folder = target().join("nccl");
        fs::create_dir_all(&folder)?;
        let built = built.to_owned();
        Ok(Some(Bench { cc, folder, built }))
    }

    /// What the driver does, with each version of the interface and over RDMA.
    fn scenarios(&self, driver: &Path) -> Result<()> {
        for (version, seed) in [("12", 1), ("11", 2)] {
            for scenario in SCENARIOS {
                self.drive(driver, version, scenario, seed, &[])?;
            }
        }
        for scenario in ["loopback", "random"] {
            self.drive(driver, "10", scenario, 4, &[])?;
        }
        let limit = ("DRIVER_KILL_LIMIT", "20");
        let rdma = [&RDMA[..], &[limit]].concat();
        for scenario in OVER_RDMA {
            self.drive(driver, "12", scenario, 3, &rdma)?;
        }
        Ok(())
    }

    /// What the driver of collectives does, with each version of the interface and over RDMA.
    fn collectives(&self, driver: &Path) -> Result<()> {
        let ends = [("DRIVER_CALLS", "40"), ("DRIVER_KILL_LIMIT", "20")];
        let rdma = [&RDMA[..], &ends].concat();
        let far = COLLECTIVES_OVER_RDMA.map(|(scenario, ranks)| ("12", scenario, ranks));
        let all = COLLECTIVES.iter().map(|c| (*c, &[][..]));
        let all = all.chain(far.iter().map(|c| (*c, &rdma[..])));
        for (seed, ((version, scenario, ranks), env)) in (1..).zip(all) {
            let mut c = Command::new(driver);
            c.arg(self.plugin()).args([version, scenario]);
            c.arg(ranks.to_string()).arg(seed.to_string());
            let line = format!("{scenario} of {ranks} ranks, v{version}: as it should");
            says(&mut c, env, &[line])?;
        }
        Ok(())
    }

    /// The documented program, and NCCL itself.
    fn beyond(&self) -> Result<Outcome> {
        self.documented()?;
        match library() {
            Ok(library) => self.nccl(&library),
            Err(why) => Ok(Outcome::Skipped(format!(
                "no NCCL to load the plug-in: {why:#}"
            ))),
        }
    }

    fn plugin(&self) -> PathBuf {
        self.built.join("libnccl_net_ringbell.so")
    }

    /// Compiles a program of the plug-in's tests.
    fn compile(&self, name: &str) -> Result<PathBuf> {
        let program = self.folder.join(name);
        let mut c = Command::new(&self.cc);
        c.words("-std=gnu11 -O1 -g -Wall -Wextra -Werror")
            .arg(root().join(format!("bindings/nccl/tests/{name}.c")))
            .arg("-o")
            .arg(&program);
        command(c.words("-ldl -lpthread"))?;
        Ok(program)
    }

    fn drive(
        &self,
        driver: &Path,
        version: &str,
        scenario: &str,
        seed: u32,
        env: &[(&str, &str)],
    ) -> Result<()> {
        let mut c = Command::new(driver);
        c.arg(self.plugin()).args([version, scenario]);
        let line = format!("{scenario} v{version}: as it should");
        says(c.arg(seed.to_string()), env, &[line])
    }

    /// NCCL loads the plug-in, chooses both of its tables, and gathers over one; the other reduces.
    fn nccl(&self, library: &Path) -> Result<Outcome> {
        let program = self.compile("nccl")?;
        for (ranks, env) in [(2, &[][..]), (4, &[]), (3, &RDMA)] {
            let mut c = Command::new(&program);
            c.arg(library).arg(ranks.to_string());
            c.env("NCCL_NET_PLUGIN", self.plugin())
                .env("NCCL_DEBUG", "INFO")
                // Its bootstrap uses the network that was chosen, and its own monitoring is left
                // out.
                .env("NCCL_OOB_NET_ENABLE", "1")
                .env("NCCL_RAS_ENABLE", "0");
            let round = |n| {
                format!("round {n}: {ranks} ranks gathered over Ringbell, and reduced by Ringbell")
            };
            let lines = [
                "NET/Plugin: Loaded net plugin Ringbell (v12)".into(),
                "NET/Plugin: Loaded collnet plugin Ringbell (v12)".into(),
                "Assigned NET plugin Ringbell to comm".into(),
                round(0),
                round(1),
            ];
            says(&mut c, env, &lines)?;
        }
        Ok(Outcome::Passed)
    }

    /// The program of docs/nccl.md, by the commands there.
    fn documented(&self) -> Result<()> {
        let page = "docs/nccl.md";
        let commands = pages::program(page, "sh")?;
        fs::write(self.folder.join("devices.c"), pages::program(page, "c")?)?;
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::iter::once(self.built.clone()).chain(std::env::split_paths(&path));
        let mut sh = Command::new("sh");
        sh.args(["-e", "-c", &commands])
            .current_dir(&self.folder)
            .env("PATH", std::env::join_paths(folders)?);
        says(&mut sh, &[], &["ringbell0, 100000 Mb/s".into()])
    }
}
