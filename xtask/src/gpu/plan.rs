//! Plan of the run on the machine with the GPU: correctness first, then the measurements of issue 5.

use std::path::{Path, PathBuf};

use super::suite::{self, Tests};
use crate::suite::PROGRAMS;

/// What a step is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Group {
    /// Whether it works.
    Correctness,
    /// Whether it works under a sanitizer; needs one.
    Sanitizer,
    /// How fast it is.
    Measurement,
}

impl Group {
    /// Its name on the command line and in results.
    pub(super) fn name(self) -> &'static str {
        match self {
            Group::Correctness => "correctness",
            Group::Sanitizer => "sanitizer",
            Group::Measurement => "measurement",
        }
    }
}

/// One program to run.
#[derive(Debug, Clone)]
pub(super) struct Step {
    pub(super) name: String,
    pub(super) group: Group,
    /// It is ended after this time; the next steps still run.
    pub(super) limit_s: u64,
    pub(super) program: PathBuf,
    pub(super) args: Vec<String>,
    pub(super) env: Vec<(&'static str, String)>,
    /// File of its report, when it writes one.
    pub(super) report: Option<PathBuf>,
    /// The tests of a program of the suite: each is run on its own, within the limit.
    pub(super) tests: Vec<String>,
}

/// Small runs of the suite's tests under sanitizers: program, test, and the tools that can check it. `synccheck` needs barriers
/// and masks, `racecheck` shared memory, `initcheck` kernels that read only written memory.
const SANITIZED: [(&str, &str, &[&str]); 7] = [
    (
        "first_path",
        "nop_send_and_receive",
        &["initcheck", "synccheck"],
    ),
    (
        "emulator",
        "barriers_shuffles_and_votes_agree_with_cuda_for_full_and_partial_warps",
        &["memcheck", "racecheck", "synccheck"],
    ),
    (
        "device_api",
        "every_call_of_the_device_api_works",
        &["memcheck", "initcheck"],
    ),
    (
        "device_api",
        "warp_and_block_scope_at_every_size",
        &["memcheck", "racecheck", "synccheck"],
    ),
    (
        "streams",
        "a_wait_ends_with_its_time_out_or_the_nics_status",
        &["memcheck", "synccheck"],
    ),
    (
        "collectives",
        "a_warp_and_a_block_post_once_and_every_lane_gets_the_result",
        &["racecheck", "synccheck"],
    ),
    (
        "reduce",
        "few_elements_one_operand_and_many",
        &["memcheck", "initcheck"],
    ),
];

/// Streaming multiprocessors that a HyperLogLog kernel gets, as in the paper's comparison; an H200 has 132.
const SMS: [u32; 4] = [1, 8, 32, 132];

struct Plan<'a> {
    bundle: &'a Path,
    out: &'a Path,
    steps: Vec<Step>,
}

impl Plan<'_> {
    fn add(
        &mut self,
        name: &str,
        group: Group,
        limit_s: u64,
        program: &str,
        args: &str,
    ) -> &mut Step {
        self.steps.push(Step {
            name: name.into(),
            group,
            limit_s,
            program: self.bundle.join(program),
            args: args.split_whitespace().map(str::to_owned).collect(),
            env: Vec::new(),
            report: None,
            tests: Vec::new(),
        });
        let last = self.steps.len() - 1;
        &mut self.steps[last]
    }

    /// All-reduce with NCCL beside it, over shared memory and over sockets: each of the three has its `--limit`, and the
    /// step a little more. The ranks are threads, or processes where NCCL is older than 2.30.
    fn beside_nccl(&mut self, name: &str, limit_s: u64, args: &str) {
        let args = format!("all-reduce --beside nccl-if-found --mps --no-limits {args}");
        self.measure(name, limit_s, &args);
    }

    /// `ringbell perf ...` with a report.
    fn measure(&mut self, name: &str, limit_s: u64, args: &str) {
        let report = self.out.join(format!("{name}.json"));
        let step = self.add(
            name,
            Group::Measurement,
            limit_s,
            "bin/ringbell",
            &format!("perf {args}"),
        );
        step.args.push("--json".into());
        step.args.push(report.display().to_string());
        step.report = Some(report);
    }
}

/// All steps, in their order. `real`: the GPU is one by CUDA; `short`: small runs, which only show that all works; `tests`: those
/// of the suite.
pub(super) fn steps(
    real: bool,
    short: bool,
    bundle: &Path,
    out: &Path,
    tests: &Tests,
) -> Vec<Step> {
    let mut plan = Plan {
        bundle,
        out,
        steps: Vec::new(),
    };
    correctness(&mut plan, real, short, tests);
    sanitizers(&mut plan, real);
    measurements(&mut plan, real, short);
    plan.steps
}

/// Variables for a test of the suite on a machine without a checkout.
fn environment(plan: &Plan<'_>, real: bool) -> Vec<(&'static str, String)> {
    let shown = |path: PathBuf| path.display().to_string();
    vec![
        (
            "RINGBELL_TEST_GPU",
            if real { "cuda" } else { "emulated" }.into(),
        ),
        (
            "RINGBELL_TEST_KERNELS",
            shown(plan.bundle.join("tests/kernels")),
        ),
        ("RINGBELL_TEST_TMPDIR", shown(plan.out.join("files"))),
    ]
}

fn correctness(plan: &mut Plan<'_>, real: bool, short: bool, tests: &Tests) {
    use Group::Correctness;
    plan.add("doctor", Correctness, 60, "bin/ringbell", "doctor");
    // Programs that bring the mock driver do not test the emulated GPU.
    for program in PROGRAMS.iter().filter(|p| real || p.over_mock) {
        let Some(all) = tests.get(program.name) else {
            continue;
        };
        let (name, path) = (program.name, format!("tests/{}", program.package));
        let env = environment(plan, real);
        let step = plan.add(&format!("suite-{name}"), Correctness, 120, &path, "");
        step.tests = suite::sample(all, short);
        step.env = env;
    }
}

fn sanitizers(plan: &mut Plan<'_>, real: bool) {
    let pair = "--transport local --threads --timeout 60";
    for tool in ["memcheck", "racecheck"] {
        for (name, args) in [
            ("nop", "perf nop -n 20 -w 2".to_owned()),
            (
                "send",
                format!("perf send-bw -b 4K -e 64K -f 16 -n 4 -w 1 {pair}"),
            ),
            (
                "slots",
                format!("perf slots -b 4K -e 4K --bytes 64K -n 2 -w 1 {pair}"),
            ),
            (
                "hll",
                "perf hll -b 64K -e 64K -n 2 -w 1 --gpu-kernel --blocks 2 --lanes 64".into(),
            ),
        ] {
            sanitize(plan, tool, name, "bin/ringbell", &args, Vec::new());
        }
    }
    for (program, test, tools) in SANITIZED {
        for tool in tools {
            let name = format!("{program}-{test}");
            let of = PROGRAMS.iter().find(|p| p.name == program);
            let path = format!("tests/{}", of.map_or(program, |p| p.package));
            let args = format!("{program}::{test} --exact --nocapture --test-threads=1");
            let env = environment(plan, real);
            sanitize(plan, tool, &name, &path, &args, env);
        }
    }
}

fn sanitize(
    plan: &mut Plan<'_>,
    tool: &str,
    name: &str,
    program: &str,
    args: &str,
    env: Vec<(&'static str, String)>,
) {
    let step = plan.add(
        &format!("{tool}-{name}"),
        Group::Sanitizer,
        120,
        program,
        args,
    );
    step.env = env;
    // Where the tool is installed, its command goes in front.
    let before = ["--tool", tool, "--error-exitcode", "77"].map(str::to_owned);
    let program = step.program.display().to_string();
    step.args.splice(0..0, before.into_iter().chain([program]));
    step.program = "compute-sanitizer".into();
}

fn measurements(plan: &mut Plan<'_>, real: bool, short: bool) {
    // A real GPU's doorbell wakes no thread, so one polls. An emulated one shares the cores with all other threads.
    let (polls, pair_polls) = if real {
        ("--dedicated", "--progress dedicated")
    } else {
        ("", "")
    };
    let pair = format!("--transport local --threads {pair_polls}");
    if short {
        plan.measure("floor", 30, "floor -n 200 -w 20 --bytes 1M --rounds 2");
        plan.measure("doorbell", 30, &format!("nop -n 200 -w 20 {polls}"));
        plan.measure(
            "send-lat",
            30,
            &format!("send-lat -b 8 -e 8 -n 100 -w 10 {pair}"),
        );
        plan.measure(
            "send-bw",
            30,
            &format!("send-bw -b 1M -e 1M -n 4 -w 1 --window 2 {pair}"),
        );
        for ranks in [2, 4] {
            let args = format!("-R {ranks} -b 1K -e 64K -f 64 -n 5 -w 1 --limit 30 {polls}");
            plan.beside_nccl(&format!("all-reduce-{ranks}"), 95, &args);
        }
        for sms in &SMS[..2] {
            let args =
                format!("hll -b 64K -e 64K -n 2 -w 1 --gpu-kernel --blocks {sms} --lanes 32");
            plan.measure(&format!("hll-{sms}"), 30, &args);
        }
        plan.measure(
            "combine",
            30,
            "combine -b 64K -e 64K -n 2 -w 1 --blocks 1,2 --lanes 32",
        );
        return;
    }
    plan.measure("floor", 25, "floor");
    plan.measure("doorbell", 15, &format!("nop -n 20000 -w 1000 {polls}"));
    plan.measure(
        "send-lat",
        20,
        &format!("send-lat -b 8 -e 8 -n 10000 -w 500 {pair}"),
    );
    plan.measure(
        "send-bw",
        35,
        &format!("send-bw -b 64M -e 64M -n 20 -w 3 --window 2 {pair}"),
    );
    plan.measure(
        "slots",
        35,
        &format!("slots -b 64K -e 1M -f 4 --bytes 64M -n 5 -w 1 {pair}"),
    );
    for (ranks, large_s, small_s) in [(2, 30, 10), (4, 36, 11)] {
        let large = format!("-R {ranks} -b 1M -e 256M -f 4 -n 10 -w 3 --limit {large_s} {polls}");
        plan.beside_nccl(&format!("all-reduce-{ranks}"), 3 * large_s + 5, &large);
        let small = format!("-R {ranks} -b 1K -e 256K -f 4 -n 500 -w 50 --limit {small_s} {polls}");
        plan.beside_nccl(
            &format!("all-reduce-small-{ranks}"),
            3 * small_s + 4,
            &small,
        );
    }
    for sms in SMS {
        let args = format!("hll -b 16M -e 16M -n 10 -w 2 --gpu-kernel --blocks {sms} --lanes 512");
        plan.measure(&format!("hll-{sms}"), 14, &args);
    }
    plan.measure(
        "combine",
        14,
        "combine -b 64M -e 64M -n 10 --blocks 1,8,32,132",
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limits_of_all_measurements_fit_into_eight_minutes() {
        for (real, short) in [(true, false), (false, false), (false, true)] {
            let steps = steps(real, short, Path::new("/b"), Path::new("/o"), &Tests::new());
            let measured = steps.iter().filter(|s| s.group == Group::Measurement);
            let all: u64 = measured.map(|s| s.limit_s).sum();
            assert!(all <= super::super::run::BUDGET_S, "{all} s");
            let mut names: Vec<_> = steps.iter().map(|s| &s.name).collect();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), steps.len(), "each step has a log of its own");
        }
    }

    #[test]
    fn a_side_that_hangs_leaves_the_others_their_time() {
        for short in [true, false] {
            let steps = steps(true, short, Path::new("/b"), Path::new("/o"), &Tests::new());
            let beside = steps
                .iter()
                .filter(|s| s.args.iter().any(|a| a == "--beside"));
            let mut seen = 0;
            for step in beside {
                let at = step.args.iter().position(|a| a == "--limit");
                let limit: u64 = at
                    .and_then(|at| step.args[at + 1].parse().ok())
                    .unwrap_or(u64::MAX);
                // Ours, and NCCL over two transports.
                assert!(limit.saturating_mul(3) < step.limit_s, "{}", step.name);
                seen += 1;
            }
            assert!(seen >= 2);
        }
    }

    #[test]
    fn a_sanitizer_stands_before_the_command() {
        let steps = steps(true, false, Path::new("/b"), Path::new("/o"), &Tests::new());
        let race = steps.iter().find(|s| s.name == "racecheck-nop");
        let words = race.map(|s| s.args.join(" ")).unwrap_or_default();
        assert!(
            words.starts_with("--tool racecheck --error-exitcode 77 /b/bin/ringbell perf nop"),
            "{words}"
        );
    }

    #[test]
    fn every_program_of_the_suite_is_a_step_and_a_short_run_takes_a_sample() {
        let names = ["a", "b", "c"].map(str::to_owned).to_vec();
        let tests: Tests = PROGRAMS
            .iter()
            .map(|p| (p.name.to_owned(), names.clone()))
            .collect();
        for (short, most) in [(false, 3), (true, 2)] {
            let steps = steps(true, short, Path::new("/b"), Path::new("/o"), &tests);
            let suite: Vec<_> = steps.iter().filter(|s| !s.tests.is_empty()).collect();
            assert_eq!(suite.len(), PROGRAMS.len());
            assert!(suite.iter().all(|s| s.tests.len() == most));
            let env = &suite[0].env;
            assert!(env.contains(&("RINGBELL_TEST_GPU", "cuda".into())));
        }
    }

    #[test]
    fn every_sanitized_test_is_in_the_suite() {
        for (program, test, tools) in SANITIZED {
            let of = PROGRAMS.iter().find(|p| p.name == program);
            let of = of.expect("a program of the suite");
            let source = std::fs::read_to_string(of.source()).expect("its source");
            assert!(source.contains(&format!("fn {test}() {{")), "{test}");
            let known = ["memcheck", "racecheck", "synccheck", "initcheck"];
            assert!(tools.iter().all(|t| known.contains(t)), "{test}");
        }
    }
}
