//! Tests of `ringbell run`: variables, output, signals, exit codes.
#![allow(clippy::disallowed_methods)] // Tests at the edge.

use crate::common;

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{run, text};

fn launcher(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringbell"));
    command.arg("run").args(args);
    command
}

fn shell(args: &[&str], script: &str) -> Command {
    let mut command = launcher(args);
    command.args(["--", "sh", "-c", script]);
    command
}

#[test]
fn every_rank_gets_its_number_and_its_lines_show_it() {
    let script =
        "echo $RINGBELL_RANK/$RINGBELL_SIZE $RINGBELL_ID; echo no newline at the end | tr -d '\\n'";
    let out = run(&mut shell(&["-n", "3"], script));
    assert_eq!(out.status.code(), Some(0), "{}", text(&out));
    let stdout = String::from_utf8_lossy(&out.stdout);
    let mut ids = Vec::new();
    for rank in 0..3 {
        let start = format!("[{rank}] {rank}/3 rb1-");
        let line = stdout.lines().find(|l| l.starts_with(&start));
        let line = line.unwrap_or_else(|| panic!("{start} is not in {stdout}"));
        ids.push(line.rsplit(' ').next().map(str::to_owned));
        assert!(stdout.contains(&format!("[{rank}] no newline at the end\n")));
    }
    assert!(ids[0] == ids[1] && ids[1] == ids[2]);
    let again = run(&mut shell(&["-n", "1", "--no-prefix"], "echo $RINGBELL_ID"));
    let other = String::from_utf8_lossy(&again.stdout).trim().to_owned();
    assert!(other.starts_with("rb1-") && Some(other) != ids[0]);
}

#[test]
fn each_rank_is_bound_to_a_core_of_its_own_or_refused() {
    let cores = |args: &[&str]| {
        let args = [args, &["--no-prefix"]].concat();
        let script = "sed -n 's/^Cpus_allowed_list:.//p' /proc/self/status";
        let out = run(&mut shell(&args, script));
        assert_eq!(out.status.code(), Some(0), "{}", text(&out));
        let said = String::from_utf8_lossy(&out.stdout);
        said.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let set = rustix::thread::sched_getaffinity(None).expect("cores");
    let here = set.count() as usize;
    let ranks = here.min(4).to_string();
    let mut bound = cores(&["-n", &ranks, "--bind-to", "core"]);
    assert!(bound.iter().all(|c| c.parse::<u32>().is_ok()), "{bound:?}");
    bound.sort_unstable();
    bound.dedup();
    assert_eq!(bound.len().to_string(), ranks, "{bound:?}");
    let free = cores(&["-n", "1", "--bind-to", "none"]);
    assert_eq!(free, cores(&["-n", "1"]));
    let more = (here + 1).to_string();
    let commands = [
        (&["run", "-n"][..], 256),
        (&["perf", "all-reduce", "-R"], 64),
    ];
    for (command, most) in commands {
        if here >= most {
            continue;
        }
        let mut c = Command::new(env!("CARGO_BIN_EXE_ringbell"));
        c.args(command).args([&more, "--bind-to", "core"]);
        let out = run(c.args(["true"].iter().filter(|_| command[0] == "run")));
        assert_eq!(out.status.code(), Some(2), "{}", text(&out));
        let want = format!("a core for each of {more} ranks, and this process may run on {here}");
        assert!(text(&out).contains(&want), "{}", text(&out));
    }
}

#[test]
fn ranks_run_the_programs_of_a_file() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("programs");
    let started = |lines: &str, ranks: &str| {
        std::fs::write(&file, lines).expect("room");
        let path = file.to_string_lossy();
        run(&mut launcher(&["-n", ranks, "--multi-prog", &path]))
    };
    let lines = "1 sh -c 'echo leader $RINGBELL_RANK'\n# the others\n* echo worker %t, %o of 2\n";
    let out = started(lines, "3");
    let mut said: Vec<_> = std::str::from_utf8(&out.stdout)
        .expect("text")
        .lines()
        .collect();
    said.sort_unstable();
    let want = [
        "[0] worker 0, 0 of 2",
        "[1] leader 1",
        "[2] worker 2, 1 of 2",
    ];
    assert_eq!((out.status.code(), &said[..]), (Some(0), &want[..]));
    let out = started("0 true\n0 true\n", "2");
    assert_eq!(out.status.code(), Some(2), "{}", text(&out));
    assert!(
        text(&out).contains("programs, line 2: rank 0 has a command already"),
        "{}",
        text(&out)
    );
    let out = started("0 true\n1 /no/such/program\n", "2");
    assert!(
        text(&out).contains("cannot start /no/such/program as rank 1"),
        "{}",
        text(&out)
    );
}

#[test]
fn checks_are_handed_to_the_ranks_and_other_names_refused() {
    let told = |args: &[&str]| {
        let args = [&["-n", "1", "--no-prefix"], args].concat();
        let out = run(shell(&args, "echo [$RINGBELL_CHECK]").env_remove("RINGBELL_CHECK"));
        (out.status.code(), text(&out))
    };
    for (args, want) in [
        (&[][..], "[]"),
        (&["--check"], "[all]"),
        (&["--check=memcheck,synccheck"], "[memcheck,synccheck]"),
    ] {
        let (code, said) = told(args);
        assert!(code == Some(0) && said.contains(want), "{args:?}: {said}");
    }
    let (code, said) = told(&["--check=lintcheck"]);
    assert!(code == Some(2) && said.contains("racecheck"), "{said}");
}

#[test]
fn a_failed_rank_ends_all_and_is_named() {
    let script = "if [ $RINGBELL_RANK = 1 ]; then exit 42; fi; sleep 60";
    let start = Instant::now();
    let out = run(&mut shell(&["-n", "3"], script));
    assert_eq!(out.status.code(), Some(42), "{}", text(&out));
    let said = text(&out);
    assert!(said.contains("rank 1 ended with status 42"), "{said}");
    assert!(said.contains("ending the other 2 rank(s)"), "{said}");
    // Not a measurement: the others were not waited for.
    assert!(start.elapsed() < Duration::from_secs(50));
    let out = run(&mut shell(
        &["-n", "2", "--keep-going"],
        "[ $RINGBELL_RANK = 0 ] && kill -9 $$; sleep 0.1; echo still here",
    ));
    assert_eq!(out.status.code(), Some(137), "{}", text(&out));
    let said = text(&out);
    assert!(
        said.contains("[1] still here") && said.contains("rank 0 was ended by signal 9"),
        "{said}"
    );
}

#[test]
fn a_signal_reaches_the_ranks_and_nothing_is_left_behind() {
    let script = "trap 'echo asked; exit 7' TERM; echo pid $$; while :; do sleep 0.02; done";
    let mut child = shell(&["-n", "2"], script)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut pids = Vec::new();
    while pids.len() < 2 {
        let line = lines.next().expect("both say their number").expect("text");
        pids.push(line.rsplit(' ').next().expect("a number").to_owned());
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("our own child");
    let rest: Vec<String> = lines.map_while(Result::ok).collect();
    assert_eq!(
        rest.iter().filter(|l| l.ends_with("asked")).count(),
        2,
        "{rest:?}"
    );
    let status = child.wait().expect("our own child");
    assert_eq!(status.code(), Some(128 + 15));
    for pid in pids {
        assert!(
            !std::path::Path::new("/proc").join(&pid).exists(),
            "{pid} is left"
        );
    }
}

#[test]
fn a_rank_that_does_not_end_is_ended_at_the_deadline() {
    let out = run(&mut shell(
        &["-n", "2", "--deadline", "1"],
        "[ $RINGBELL_RANK = 0 ] || sleep 60",
    ));
    assert_eq!(out.status.code(), Some(1), "{}", text(&out));
    assert!(
        text(&out).contains("rank(s) 1 had not ended after 1s"),
        "{}",
        text(&out)
    );
}

#[test]
fn a_missing_program_and_an_impossible_wiring_are_refused() {
    let out = run(launcher(&["-n", "2", "--", "/no/such/program"]).stdin(Stdio::null()));
    assert_eq!(out.status.code(), Some(4));
    assert!(
        text(&out).contains("/no/such/program as rank 0"),
        "{}",
        text(&out)
    );
    for args in [
        &["-n", "0", "--", "true"][..],
        &["-n", "2"],
        &["-n", "2", "--port", "tap:x", "--", "true"],
        &[
            "-n",
            "2",
            "--transport",
            "tcp",
            "--port",
            "none",
            "--",
            "true",
        ],
    ] {
        assert_eq!(run(&mut launcher(args)).status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn ports_are_passed_to_the_ranks() {
    let script = "echo port=$RINGBELL_PORT switch=$RINGBELL_SWITCH; [ -z \"$RINGBELL_SWITCH\" ] || [ -e \"$RINGBELL_SWITCH\" ]";
    let out = run(&mut shell(&["-n", "2", "--transport", "tcp"], script));
    assert_eq!(out.status.code(), Some(0), "{}", text(&out));
    assert!(text(&out).contains("port=mem switch=/proc/"));
    let udp = ["-n", "3", "--port", "udp", "--mtu", "1400"];
    let out = run(&mut shell(&udp, script));
    let said = text(&out);
    let line = said
        .lines()
        .find(|l| l.starts_with("[1]"))
        .expect("rank 1 has written");
    assert_eq!(line.matches("127.0.0.1:").count(), 3, "{line}");
    assert!(line.contains(",mtu=1400 "), "{line}");
    let roce = ["-n", "3", "--port", "roce"];
    let out = run(&mut shell(&roce, script));
    let said = text(&out);
    let line = said.lines().find(|l| l.starts_with("[1]"));
    let line = line.expect("rank 1 has written");
    assert!(line.contains("port=roce:127.0.0.1:"), "{line}");
    for other in [",10.77.0.1=127.0.0.1:", ",10.77.0.3=127.0.0.1:"] {
        assert!(line.contains(other), "{line}");
    }
}
