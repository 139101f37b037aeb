//! Plan of the run on the machine with the GPU: correctness first, then what sanitizers find, then
//! measurements.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::suite::{Program, PROGRAMS};

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

/// One program to run.
#[derive(Debug, Clone)]
pub(super) struct Step {
    pub(super) name: String,
    pub(super) group: Group,
    /// It is ended after this time; the next steps still run.
    pub(super) limit: Duration,
    pub(super) program: PathBuf,
    pub(super) args: Vec<String>,
    pub(super) env: Vec<(&'static str, String)>,
    /// The program of the suite that it is a test of.
    pub(super) of: Option<String>,
}

/// Small runs of the suite's tests under sanitizers: the tools that can check it, its program, and
/// the test. `synccheck` needs barriers and masks, `racecheck` shared memory, `initcheck` kernels
/// that read only written memory.
const SANITIZED: [&str; 9] = [
    "memcheck,racecheck,initcheck,synccheck first_path nop_send_and_receive",
    "memcheck,racecheck,synccheck emulator barriers_shuffles_and_votes_agree_with_cuda_for_full_and_partial_warps",
    "memcheck,initcheck device_api every_call_of_the_device_api_works",
    "memcheck,racecheck,synccheck device_api warp_and_block_scope_at_every_size",
    "memcheck,synccheck streams a_wait_ends_with_its_time_out_or_the_nics_status",
    "memcheck,racecheck slots a_stream_that_ends_early_gives_its_bytes_and_leaves_nothing_under_way",
    "racecheck,synccheck collectives a_warp_and_a_block_post_once_and_every_lane_gets_the_result",
    "memcheck,initcheck reduce few_elements_one_operand_and_many",
    "memcheck,racecheck hll a_received_stream_is_counted_chunk_by_chunk",
];

/// What is measured: the name, the limit in seconds, and the arguments of `ringbell perf`.
/// All-reduce has NCCL beside it: each of the two has its `--limit`, and the step a little more.
/// HyperLogLog's kernel gets as many streaming multiprocessors as in the paper's comparison; an
/// H200 has 132.
const MEASURED: [&str; 14] = [
    "floor 25 floor",
    "doorbell 15 nop -n 20000 -w 1000 POLLS",
    "send-lat 20 send-lat -b 8 -e 8 -n 10000 -w 500 PAIR",
    "send-bw 35 send-bw -b 64M -e 64M -n 20 -w 3 --window 2 PAIR",
    "slots 35 slots -b 64K -e 1M -f 4 --bytes 64M -n 5 -w 1 PAIR",
    "all-reduce-2 95 BESIDE -R 2 -b 1M -e 256M -f 4 -n 10 -w 3 --limit 30 POLLS",
    "all-reduce-small-2 34 BESIDE -R 2 -b 1K -e 256K -f 4 -n 500 -w 50 --limit 10 POLLS",
    "all-reduce-4 113 BESIDE -R 4 -b 1M -e 256M -f 4 -n 10 -w 3 --limit 36 POLLS",
    "all-reduce-small-4 37 BESIDE -R 4 -b 1K -e 256K -f 4 -n 500 -w 50 --limit 11 POLLS",
    "hll-1 14 hll -b 16M -e 16M -n 10 -w 2 --gpu-kernel --blocks 1 --lanes 512",
    "hll-8 14 hll -b 16M -e 16M -n 10 -w 2 --gpu-kernel --blocks 8 --lanes 512",
    "hll-32 14 hll -b 16M -e 16M -n 10 -w 2 --gpu-kernel --blocks 32 --lanes 512",
    "hll-132 14 hll -b 16M -e 16M -n 10 -w 2 --gpu-kernel --blocks 132 --lanes 512",
    "combine 14 combine -b 64M -e 64M -n 10 --blocks 1,8,32,132",
];

/// The same in a short run, which only shows that all works.
const SHORT: [&str; 9] = [
    "floor 30 floor -n 200 -w 20 --bytes 1M --rounds 2",
    "doorbell 30 nop -n 200 -w 20 POLLS",
    "send-lat 30 send-lat -b 8 -e 8 -n 100 -w 10 PAIR",
    "send-bw 30 send-bw -b 1M -e 1M -n 4 -w 1 --window 2 PAIR",
    "all-reduce-2 95 BESIDE -R 2 -b 1K -e 64K -f 64 -n 5 -w 1 --limit 30 POLLS",
    "all-reduce-4 95 BESIDE -R 4 -b 1K -e 64K -f 64 -n 5 -w 1 --limit 30 POLLS",
    "hll-1 30 hll -b 64K -e 64K -n 2 -w 1 --gpu-kernel --blocks 1 --lanes 32",
    "hll-8 30 hll -b 64K -e 64K -n 2 -w 1 --gpu-kernel --blocks 8 --lanes 32",
    "combine 30 combine -b 64K -e 64K -n 2 -w 1 --blocks 1,2 --lanes 32",
];

/// How many tests of each program a short run takes.
const SAMPLE: usize = 2;

/// What differs between runs.
pub(super) struct Plan<'a> {
    pub(super) bundle: &'a Path,
    pub(super) out: &'a Path,
    /// Whether the GPU is one by CUDA.
    pub(super) real: bool,
    pub(super) short: bool,
}

impl Plan<'_> {
    /// All steps, in their order. `tests` gives those of a program of the suite.
    pub(super) fn steps(&self, tests: impl Fn(&Program) -> Vec<String>) -> Vec<Step> {
        let doctor = self.step("doctor", Group::Correctness, 60, "bin/ringbell", "doctor");
        let mut steps = vec![doctor];
        // Programs that bring the mock driver do not test the emulated GPU.
        for program in PROGRAMS.iter().filter(|p| self.real || p.over_mock) {
            let most = if self.short { SAMPLE } else { usize::MAX };
            for test in tests(program).iter().take(most) {
                let name = format!("suite-{}--{}", program.binary, test.replace("::", "--"));
                let mut step = self.test(&name, Group::Correctness, program.binary, test);
                step.of = Some(format!("{}::{}", program.binary, program.module));
                steps.push(step);
            }
        }
        for line in SANITIZED {
            let words: Vec<&str> = line.split(' ').collect();
            let (of, test) = (words[1], words[2]);
            let program = PROGRAMS.iter().find(|p| p.module == of);
            let binary = program.map_or(of, |p| p.binary);
            for tool in words[0].split(',') {
                let name = format!("{tool}-{of}-{test}");
                let test = format!("{of}::{test}");
                let mut step = self.test(&name, Group::Sanitizer, binary, &test);
                // The tool's command goes in front.
                let before = ["--tool", tool, "--error-exitcode", "77"].map(str::to_owned);
                let program = step.program.display().to_string();
                step.args.splice(0..0, before.into_iter().chain([program]));
                step.program = "compute-sanitizer".into();
                steps.push(step);
            }
        }
        let measured: &[&str] = if self.short { &SHORT } else { &MEASURED };
        steps.extend(measured.iter().map(|line| self.measurement(line)));
        steps
    }

    fn step(&self, name: &str, group: Group, limit_s: u64, program: &str, args: &str) -> Step {
        Step {
            name: name.into(),
            group,
            limit: Duration::from_secs(limit_s),
            program: self.bundle.join(program),
            args: args.split_whitespace().map(str::to_owned).collect(),
            env: Vec::new(),
            of: None,
        }
    }

    /// A test of the suite, on a machine without a checkout.
    fn test(&self, name: &str, group: Group, binary: &str, test: &str) -> Step {
        let args = format!("{test} --exact --nocapture --test-threads=1");
        let shown = |path: PathBuf| path.display().to_string();
        let gpu = if self.real { "cuda" } else { "emulated" };
        let mut step = self.step(name, group, 120, &format!("tests/{binary}"), &args);
        step.env = vec![
            ("RINGBELL_TEST_GPU", gpu.into()),
            (
                "RINGBELL_TEST_KERNELS",
                shown(self.bundle.join("tests/modules")),
            ),
            ("RINGBELL_TEST_TMPDIR", shown(self.out.join("files"))),
        ];
        step
    }

    /// `ringbell perf ...`, with a report.
    fn measurement(&self, line: &str) -> Step {
        // A real GPU's doorbell wakes no thread, so one polls. An emulated one shares the cores
        // with all other threads.
        let (polls, progress) = match self.real {
            true => ("--dedicated", "--progress dedicated"),
            false => ("", ""),
        };
        let pair = format!("--transport local --threads {progress}");
        let beside = "all-reduce --beside nccl-if-found --no-limits";
        let mut words = line.splitn(3, ' ');
        let mut word = || words.next().unwrap_or_default();
        let (name, limit, args) = (word(), word().parse().unwrap_or(0), word());
        let args = args.replace("POLLS", polls).replace("PAIR", &pair);
        let args = format!("perf {}", args.replace("BESIDE", beside));
        let mut step = self.step(name, Group::Measurement, limit, "bin/ringbell", &args);
        step.args.push("--json".into());
        let report = self.out.join(format!("{name}.json"));
        step.args.push(report.display().to_string());
        step
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(real: bool, short: bool) -> Vec<Step> {
        let plan = Plan {
            bundle: Path::new("/b"),
            out: Path::new("/o"),
            real,
            short,
        };
        plan.steps(|p| {
            ["b", "c", "d"]
                .map(|t| format!("{}::{t}", p.module))
                .to_vec()
        })
    }

    #[test]
    fn limits_of_all_measurements_fit_into_eight_minutes_and_names_are_unique() {
        for (real, short) in [(true, false), (false, false), (false, true)] {
            let steps = steps(real, short);
            let measured = steps.iter().filter(|s| s.group == Group::Measurement);
            let all: Duration = measured.clone().map(|s| s.limit).sum();
            assert!(all <= super::super::run::MEASURING, "{all:?}");
            assert!(measured.clone().all(|s| !s.limit.is_zero()));
            let mut names: Vec<_> = steps.iter().map(|s| &s.name).collect();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), steps.len(), "each step has a log of its own");
        }
    }

    #[test]
    fn a_side_that_hangs_leaves_the_others_their_time() {
        for short in [true, false] {
            let steps = steps(true, short);
            let beside = |s: &&Step| s.args.iter().any(|a| a == "--beside");
            let limits: Vec<_> = steps.iter().filter(beside).collect();
            assert!(limits.len() >= 2);
            for step in limits {
                let at = step.args.iter().position(|a| a == "--limit");
                let limit = at.and_then(|at| step.args[at + 1].parse().ok());
                let limit = Duration::from_secs(limit.expect("a limit"));
                // Ours, and NCCL's.
                assert!(limit * 2 < step.limit, "{}", step.name);
            }
        }
    }

    #[test]
    fn every_program_of_the_suite_has_steps_and_a_short_run_takes_a_sample() {
        for (short, most) in [(false, 3), (true, 2)] {
            let steps = steps(true, short);
            let suite: Vec<_> = steps.iter().filter(|s| s.of.is_some()).collect();
            assert_eq!(suite.len(), most * PROGRAMS.len());
            let env = &suite[0].env;
            assert!(env.contains(&("RINGBELL_TEST_GPU", "cuda".into())));
        }
    }

    #[test]
    fn every_sanitized_test_is_in_the_suite_and_the_tool_stands_before_it() {
        for line in SANITIZED {
            let words: Vec<&str> = line.split(' ').collect();
            let of = PROGRAMS.iter().find(|p| p.module == words[1]);
            let source = of.expect("a program of the suite").source();
            let source = std::fs::read_to_string(source).expect("its source");
            assert!(source.contains(&format!("fn {}() {{", words[2])), "{line}");
            let known = ["memcheck", "racecheck", "synccheck", "initcheck"];
            assert!(words[0].split(',').all(|t| known.contains(&t)), "{line}");
        }
        let steps = steps(true, false);
        let race = steps.iter().find(|s| s.name.starts_with("racecheck-hll"));
        let words = race.map(|s| s.args.join(" ")).unwrap_or_default();
        let start = "--tool racecheck --error-exitcode 77 /b/tests/kernels hll::a_received";
        assert!(words.starts_with(start), "{words}");
    }
}
