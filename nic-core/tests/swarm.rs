//! A swarm: a seed chooses NICs, a wire, faults and operations, which run in virtual time against a
//! model.
//!
//! Every operation of every NIC ends once, with the model's bytes or an error that the plan
//! explains: one that names the NIC that was broken, or has it as its peer. One seed gives one
//! digest of all completions and memories. `cargo xtask swarm` runs seeds until time is up; a
//! failure is reduced to the operations that it needs.
#![allow(clippy::disallowed_methods)] // The time in which `at_random` runs, and new seeds.

mod clocks;
mod drawn;
mod failing;
mod groups;
mod merging;
mod model;
mod operations;
mod plan;
mod programs;
mod reduce;
mod returning;
mod run;
mod scenes;
mod wire;

use std::env;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::collective_support;
use plan::Plan;
use run::Outcome;

/// Runs a plan; a panic is a failure of it.
fn outcome(plan: &Plan) -> Result<Outcome, String> {
    let ran = catch_unwind(AssertUnwindSafe(|| run::run(plan)));
    ran.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
        Err(format!("panicked: {}", text.unwrap_or_default()))
    })
}

/// A plan's outcome. Panics with the shortest plan that fails, and the command that repeats it.
fn check(plan: &Plan) -> Outcome {
    let failure = match outcome(plan) {
        Ok(outcome) => return outcome,
        Err(failure) => failure,
    };
    eprintln!("seed {} fails, and is reduced: {failure}", plan.seed);
    let fails = |ids: &[usize]| outcome(&plan.only(ids)).is_err();
    let left = reduce::reduce(plan.ids(), fails);
    let short = plan.only(&left);
    let why = outcome(&short).err().unwrap_or(failure);
    let again = again(plan.seed, &left);
    panic!("{why}\n{short:#?}\nAgain: {again}");
}

/// The command that repeats a failure. A plan that fails without operations has no `--only`, which
/// takes at least one: it fails before its first, so the whole plan does too.
fn again(seed: u64, ids: &[usize]) -> String {
    let whole = format!("cargo xtask swarm --seed {seed}");
    let ids: Vec<String> = ids.iter().map(usize::to_string).collect();
    match ids.is_empty() {
        true => whole,
        false => format!("{whole} --only {}", ids.join(",")),
    }
}

#[test]
fn the_command_of_a_failure_names_its_operations_if_it_needs_any() {
    assert_eq!(again(7, &[3, 12]), "cargo xtask swarm --seed 7 --only 3,12");
    assert_eq!(again(7, &[]), "cargo xtask swarm --seed 7");
}

#[test]
fn operations_of_fixed_seeds_end_as_in_the_model() {
    for seed in 0..60 {
        check(&Plan::of(seed));
    }
}

/// Another each time: a failure prints the command that repeats it.
#[test]
fn operations_of_a_new_seed_end_as_in_the_model() {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let seed = since.map_or(1, |t| t.as_millis() as u64 % 1_000_000_000);
    println!("seed {seed}");
    check(&Plan::of(seed));
}

/// Eight NICs over a wire that damages, among others, an answer of ARP: one believed its wrong
/// address for so long that they did not meet.
#[test]
fn a_damaged_answer_of_arp_keeps_nobody_apart() {
    check(&Plan::of(700_001).by_plain_hosts());
}

#[test]
fn one_seed_ends_alike_twice() {
    for seed in 1000..1010 {
        let plan = Plan::of(seed);
        assert_eq!(check(&plan), check(&plan), "seed {seed}");
    }
}

/// `cargo xtask swarm`: one seed, or seeds from one on until time is up.
#[test]
#[ignore = "cargo xtask swarm runs it"]
fn at_random() {
    let number = |name: &str| env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    let first = number("RINGBELL_SWARM_SEED").expect("a seed");
    let seconds = number("RINGBELL_SWARM_SECONDS").unwrap_or(0);
    let only = env::var("RINGBELL_SWARM_ONLY").ok();
    let over = env::var("RINGBELL_SWARM_OVER").ok();
    let end = Instant::now() + Duration::from_secs(seconds);
    let (mut seed, mut plans, mut operations, mut failed) = (first, 0, 0, 0);
    loop {
        let mut plan = Plan::of(seed);
        if over.as_ref().is_some_and(|name| name != plan.net.name()) {
            seed += 1;
            continue;
        }
        plans += 1;
        if let Some(ids) = &only {
            let ids: Vec<usize> = ids.split(',').filter_map(|id| id.parse().ok()).collect();
            plan = plan.only(&ids);
        }
        let outcome = check(&plan);
        operations += outcome.operations;
        failed += outcome.failed;
        if seconds == 0 {
            println!("seed {seed}: digest {:016x}", outcome.hash);
        }
        seed += 1;
        if Instant::now() >= end {
            break;
        }
    }
    println!(
        "{plans} seeds from {first} to {}: {operations} operations, {failed} of them ended by a fault",
        seed - 1
    );
}
