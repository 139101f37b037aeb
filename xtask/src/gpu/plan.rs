//! What is run on the machine with the GPU: correctness first, then what issue 5 wants to know.

use std::path::{Path, PathBuf};

/// What a step is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Group {
    /// Whether it works.
    Correctness,
    /// Whether it works under a sanitizer; needs one.
    Sanitizer,
    /// How fast it is.
    Measurement,
}

/// One program to run.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) name: String,
    pub(super) group: Group,
    /// It is ended after this time; the next steps run all the same.
    pub(super) limit_s: u64,
    pub(super) program: PathBuf,
    pub(super) args: Vec<String>,
    pub(super) env: Vec<(&'static str, &'static str)>,
    /// Where it writes its report, when it does.
    pub(super) report: Option<PathBuf>,
}

/// Tests of the CUDA path that hold on any driver: those that plant faults in the mock driver stay at home.
const CUDA_TESTS: [&str; 4] = [
    "kernels_send_and_receive",
    "no_completion_overtakes_its_data",
    "memory_of_others_is_sent_from_and_pinned_memory_received_into",
    "ranks_reduce",
];
const CUDA_KERNELS_TESTS: [&str; 6] = [
    "the_copy_engine_passes_the_conformance_suite",
    "an_announcement_waits_for_the_copies_before_it",
    "pinned_memory_passes_the_conformance_suite_and_needs_no_copy_engine",
    "kernels_send_and_receive_over_a_nic_made_of_a_thread",
    "a_wrong_launch_is_refused_before_the_driver_sees_it",
    "a_cudarc_slice_is_adopted_with_what_its_stream_has_written",
];
/// Says to those tests that the driver is there already (tests/common/mock_driver.rs of cuda-kernels).
const DRIVER_IS_THERE: (&str, &str) = ("RINGBELL_TEST_UNDER_MOCK", "1");

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
        });
        let last = self.steps.len() - 1;
        &mut self.steps[last]
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

/// All steps, in their order. `real`: the GPU is one; `short`: small runs, which only show that all works.
pub(super) fn steps(real: bool, short: bool, bundle: &Path, out: &Path) -> Vec<Step> {
    let mut plan = Plan {
        bundle,
        out,
        steps: Vec::new(),
    };
    correctness(&mut plan, real);
    sanitizers(&mut plan);
    measurements(&mut plan, real, short);
    plan.steps
}

fn correctness(plan: &mut Plan<'_>, real: bool) {
    use Group::Correctness;
    plan.add("doctor", Correctness, 60, "bin/ringbell", "doctor");
    if real {
        // Each in a process of its own: a context that one has killed is not the next one's.
        let all = CUDA_TESTS.iter().map(|t| ("tests/cuda", t));
        let all = all.chain(CUDA_KERNELS_TESTS.iter().map(|t| ("tests/cuda_kernels", t)));
        for (binary, test) in all {
            let args = format!("{test} --exact --nocapture --test-threads=1");
            plan.add(test, Correctness, 60, binary, &args)
                .env
                .push(DRIVER_IS_THERE);
        }
    }
    for binary in ["communicator_memory", "communicator"] {
        plan.add(
            binary,
            Correctness,
            240,
            &format!("tests/{binary}"),
            "--test-threads=2",
        );
    }
}

fn sanitizers(plan: &mut Plan<'_>) {
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
            let step = plan.add(
                &format!("{tool}-{name}"),
                Group::Sanitizer,
                60,
                "bin/ringbell",
                &args,
            );
            // Where the tool is, its own words go in front.
            let before = ["--tool", tool, "--error-exitcode", "77"].map(str::to_owned);
            let program = step.program.display().to_string();
            step.args.splice(0..0, before.into_iter().chain([program]));
            step.program = "compute-sanitizer".into();
        }
    }
}

fn measurements(plan: &mut Plan<'_>, real: bool, short: bool) {
    // A real GPU's doorbell wakes no thread, so one polls. An emulated one shares the cores with everybody.
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
            let args = format!(
                "all-reduce -R {ranks} -b 1K -e 64K -f 64 -n 5 -w 1 --threads --no-limits {polls}"
            );
            plan.measure(&format!("all-reduce-{ranks}"), 40, &args);
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
    plan.measure("floor", 30, "floor");
    plan.measure("doorbell", 20, &format!("nop -n 20000 -w 1000 {polls}"));
    plan.measure(
        "send-lat",
        25,
        &format!("send-lat -b 8 -e 8 -n 10000 -w 500 {pair}"),
    );
    plan.measure(
        "send-bw",
        45,
        &format!("send-bw -b 64M -e 64M -n 20 -w 3 --window 2 {pair}"),
    );
    plan.measure(
        "slots",
        45,
        &format!("slots -b 64K -e 1M -f 4 --bytes 64M -n 5 -w 1 {pair}"),
    );
    for (ranks, limit_s) in [(2, 90), (4, 110)] {
        let args = format!(
            "all-reduce -R {ranks} -b 1K -e 256M -f 4 -n 10 -w 3 --threads --no-limits {polls}"
        );
        plan.measure(&format!("all-reduce-{ranks}"), limit_s, &args);
    }
    for sms in SMS {
        let args = format!("hll -b 16M -e 16M -n 10 -w 2 --gpu-kernel --blocks {sms} --lanes 512");
        plan.measure(&format!("hll-{sms}"), 25, &args);
    }
    plan.measure(
        "combine",
        15,
        "combine -b 64M -e 64M -n 10 --blocks 1,8,32,132",
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limits_of_all_measurements_fit_into_eight_minutes() {
        for (real, short) in [(true, false), (false, false), (false, true)] {
            let steps = steps(real, short, Path::new("/b"), Path::new("/o"));
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
    fn a_sanitizer_stands_before_the_command() {
        let steps = steps(true, false, Path::new("/b"), Path::new("/o"));
        let race = steps.iter().find(|s| s.name == "racecheck-nop");
        let words = race.map(|s| s.args.join(" ")).unwrap_or_default();
        assert!(
            words.starts_with("--tool racecheck --error-exitcode 77 /b/bin/ringbell perf nop"),
            "{words}"
        );
    }
}
