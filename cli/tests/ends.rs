//! Tests of a job's processes that end too early or cannot start, and of their leftovers.
#![allow(clippy::disallowed_methods)] // Tests at the edge.

use crate::common;

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{folder, run, text};
use rustix::process::Signal;

const RINGBELL: &str = env!("CARGO_BIN_EXE_ringbell");
/// Long enough for any machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// A bandwidth measurement longer than any test, with a longer time-out still.
const ENDLESS: [&str; 11] = [
    "perf",
    "send-bw",
    "--procs",
    "-b",
    "32K",
    "-e",
    "32K",
    "-n",
    "4000000",
    "--timeout",
    "3000",
];

/// A short path: names of sockets are short.
fn temporary(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("rb-ends-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir(&path).expect("a folder");
    path
}

/// The command with its temporary files in a folder of the test's own.
fn ringbell(args: &[&str], temporary: &Path) -> Command {
    let mut command = Command::new(RINGBELL);
    command.args(args);
    at(&mut command, temporary);
    command
}

fn at(command: &mut Command, temporary: &Path) {
    command
        .env("TMPDIR", temporary)
        .env("RINGBELL_GPU", "emulated")
        .env_remove("XDG_RUNTIME_DIR");
}

fn start(command: &mut Command) -> Child {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts")
}

/// Fields of /proc/PID/stat behind the name: state, parent, ..., times at 11 and 12.
fn stat(pid: u32) -> Option<Vec<String>> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    Some(fields.split_whitespace().map(str::to_owned).collect())
}

/// Whether a process runs; one that only waits to be reaped does not.
fn lives(pid: u32) -> bool {
    stat(pid).is_some_and(|s| s[0] != "Z" && s[0] != "X")
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < PATIENCE, "timed out: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The first child of a process, after so many ticks of work.
fn working_child(parent: u32, ticks: u64) -> u32 {
    let mut found = 0;
    until("a child that works", || {
        let all = std::fs::read_dir("/proc").expect("/proc").flatten();
        let pids = all.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
        let child = |pid: &u32| {
            stat(*pid).is_some_and(|s| {
                let time = |i: usize| s[i].parse::<u64>().unwrap_or(0);
                s[1] == parent.to_string() && time(11) + time(12) >= ticks
            })
        };
        let child = pids.into_iter().find(child);
        found = child.unwrap_or(0);
        child.is_some()
    });
    found
}

fn kill(pid: u32) {
    signal(pid, Signal::KILL);
}

fn signal(pid: u32, signal: Signal) {
    let pid = rustix::process::Pid::from_raw(pid as i32).expect("a number");
    rustix::process::kill_process(pid, signal).expect("it runs");
}

fn entries(dir: &Path) -> Vec<String> {
    let all = std::fs::read_dir(dir).expect("the folder").flatten();
    all.map(|e| e.file_name().to_string_lossy().into_owned())
        .collect()
}

/// Over TCP only the process's end shows the failure: the time-out is an hour.
#[test]
fn a_receiver_that_is_killed_is_named() {
    let tmp = temporary("receiver");
    for transport in ["tcp", "local"] {
        let mut args = ENDLESS.to_vec();
        args.extend(["--transport", transport]);
        let sender = start(&mut ringbell(&args, &tmp));
        let receiver = working_child(sender.id(), 20);
        kill(receiver);
        let pid = sender.id();
        until("the sender ends", || !lives(pid));
        let out = sender.wait_with_output().expect("ended");
        let said = text(&out);
        assert_eq!(out.status.code(), Some(1), "{said}");
        let named = format!("the receiving process ({receiver}) was ended by signal 9");
        assert!(said.contains(&named), "{said}");
    }
    assert_eq!(entries(&tmp), [""; 0], "nothing is left");
    let _ = std::fs::remove_dir_all(&tmp);
}

#[test]
fn files_of_a_killed_process_are_removed_by_the_next_run() {
    let tmp = temporary("left");
    let launched = [
        "run",
        "-n",
        "2",
        "--",
        RINGBELL,
        "perf",
        "all-reduce",
        "-b",
        "1K",
        "-e",
        "1K",
        "-n",
        "100000000",
        "--no-limits",
    ];
    for (args, kind) in [(&ENDLESS[..], "perf"), (&launched, "job")] {
        let mut parent = start(&mut ringbell(args, &tmp));
        let child = working_child(parent.id(), 20);
        let prefix = format!("ringbell-{kind}-");
        let here = || entries(&tmp).iter().any(|e| e.starts_with(&prefix));
        until("a directory", here);
        parent.kill().expect("it runs");
        parent.wait().expect("killed");
        // The process that it has started does not outlive it.
        until("the child ends", || !lives(child));
        assert!(here(), "{:?}", entries(&tmp));
    }
    // Leftovers of killed compiler runs, and one file that is not of this program.
    for name in ["ringbell-cc-aB3dE6gH9jK2", "ringbell-cc-mine"] {
        std::fs::create_dir(tmp.join(name)).expect("made");
        std::fs::write(tmp.join(name).join("ringbell.h"), "x").expect("written");
    }
    // Ranks of a killed job may take a moment to end.
    until("all is removed", || {
        let args = ["perf", "barrier", "-n", "1", "--no-limits"];
        let out = run(&mut ringbell(&args, &tmp));
        assert!(out.status.success(), "{}", text(&out));
        entries(&tmp) == ["ringbell-cc-mine"]
    });
    let _ = std::fs::remove_dir_all(&tmp);
}

/// A link of another user under the name that was once made of the process's number.
#[test]
fn a_link_in_the_temporary_files_is_not_followed() {
    let tmp = temporary("link");
    let target = tmp.join("target");
    std::fs::create_dir(&target).expect("made");
    std::fs::set_permissions(&target, Permissions::from_mode(0o755)).expect("ours");
    for (kind, args) in [
        ("perf", "perf send-bw --threads -b 8 -e 8 -n 100"),
        ("perf", "perf nop -n 10"),
        ("hll", "hll Cargo.toml"),
    ] {
        // The program keeps the shell's process number.
        let script = format!(
            "ln -s {} $TMPDIR/ringbell-{kind}-$$ && exec {RINGBELL} {args}",
            target.display()
        );
        let mut command = Command::new("sh");
        command.args(["-c", &script]);
        at(&mut command, &tmp);
        let out = run(&mut command);
        assert!(out.status.success(), "{args}: {}", text(&out));
        let mode = target.metadata().expect("there").permissions().mode();
        assert_eq!(
            mode & 0o777,
            0o755,
            "{args} has changed the folder behind the link"
        );
        assert_eq!(entries(&target), [""; 0], "{args}");
    }
    let _ = std::fs::remove_dir_all(&tmp);
}

/// The program under a limit, by util-linux.
fn limited(limit: &str, args: &str, program: &str, tmp: &Path) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("exec prlimit {limit} {program} {args}")]);
    at(&mut command, tmp);
    command
}

/// Ranks wait for each other for minutes: an immediate error comes within the limit of `run`.
#[test]
fn ranks_without_descriptors_report_it_at_once() {
    if !common::has("prlimit") {
        return;
    }
    let tmp = temporary("files");
    for limit in 22..=29 {
        for threads in ["", " --threads"] {
            let args =
                format!("perf all-reduce -R 4 -b 1K -e 1K -n 3 --no-limits --timeout 3{threads}");
            let out = run(&mut limited(
                &format!("--nofile={limit}:{limit}"),
                &args,
                RINGBELL,
                &tmp,
            ));
            let said = text(&out);
            assert!(!said.contains("panicked"), "{limit}{threads}: {said}");
            if !out.status.success() {
                let words = ["file descriptor", "ulimit -n", "open files"];
                assert!(
                    words.iter().any(|w| said.contains(w)),
                    "{limit}{threads}: {said}"
                );
            }
        }
    }
    let _ = std::fs::remove_dir_all(&tmp);
}

#[test]
fn ranks_without_threads_report_it_at_once() {
    if !rustix::process::getuid().is_root() || !common::has("setpriv") || !common::has("prlimit") {
        eprintln!("SKIPPED: only root can become a user without other processes");
        return;
    }
    let tmp = temporary("threads");
    std::fs::set_permissions(&tmp, Permissions::from_mode(0o777)).expect("ours");
    // A place that any user reaches.
    let program = tmp.join("ringbell");
    std::fs::copy(RINGBELL, &program).expect("copied");
    // A user of this test alone: the system counts the processes of a user.
    let user = 200_000 + std::process::id();
    let program = format!(
        "setpriv --reuid={user} --regid={user} --clear-groups {}",
        program.display()
    );
    for limit in [3, 6, 10, 16] {
        for threads in ["", " --threads"] {
            let args =
                format!("perf all-reduce -R 4 -b 1K -e 1K -n 3 --no-limits --timeout 3{threads}");
            let mut command = limited(&format!("--nproc={limit}:{limit}"), &args, &program, &tmp);
            let out = run(command.current_dir(&tmp));
            let said = text(&out);
            assert!(!said.contains("panicked"), "{limit}{threads}: {said}");
            if !out.status.success() {
                let words = ["thread", "Resource temporarily unavailable", "os error 11"];
                assert!(
                    words.iter().any(|w| said.contains(w)),
                    "{limit}{threads}: {said}"
                );
            }
        }
    }
    let _ = std::fs::remove_dir_all(&tmp);
}

/// At each limit another allocation fails first: the GPU's memory, a NIC's, or another rank's.
#[test]
fn ranks_without_addresses_report_it_at_once() {
    if !common::has("prlimit") {
        return;
    }
    let tmp = temporary("addresses");
    for mib in [60, 600, 1200, 1500] {
        for threads in ["", " --threads"] {
            let args =
                format!("perf all-reduce -R 4 -b 1K -e 1K -n 3 --no-limits --timeout 3{threads}");
            let limit = format!("--as={0}:{0}", mib << 20);
            let out = run(&mut limited(&limit, &args, RINGBELL, &tmp));
            let said = text(&out);
            assert!(!said.contains("panicked"), "{mib}{threads}: {said}");
            if !out.status.success() {
                assert_eq!(out.status.code(), Some(4), "{mib}{threads}: {said}");
                assert!(said.contains("ulimit -v"), "{mib}{threads}: {said}");
            }
        }
    }
    assert_eq!(entries(&tmp), [""; 0], "nothing is left");
    let _ = std::fs::remove_dir_all(&tmp);
}

#[test]
fn a_run_without_enough_memory_is_refused_before_it_starts() {
    let tmp = temporary("memory");
    for args in [
        &["perf", "all-reduce", "-b", "1T", "-e", "1T"][..],
        &["perf", "all-reduce", "-R", "64", "-e", "1T", "--threads"],
        &["perf", "send-bw", "-b", "2G", "-e", "2G", "-w", "1000"],
    ] {
        let out = run(&mut ringbell(args, &tmp));
        let said = text(&out);
        assert_eq!(out.status.code(), Some(4), "{args:?}: {said}");
        assert!(
            said.contains("bytes of memory") && said.contains("are free"),
            "{said}"
        );
    }
    let _ = std::fs::remove_dir_all(&tmp);
}

/// With any amount of memory.
#[test]
fn messages_that_no_descriptor_holds_are_wrong_usage() {
    let tmp = temporary("long");
    for name in ["send-bw", "send-lat", "send-recv"] {
        let args = ["perf", name, "-b", "4G", "-e", "8G"];
        let out = run(&mut ringbell(&args, &tmp));
        let said = text(&out);
        assert_eq!(out.status.code(), Some(2), "{name}: {said}");
        assert!(said.contains("a message of 8G is too long"), "{said}");
        assert!(said.contains("at most 4294901760 bytes"), "{said}");
    }
    let _ = std::fs::remove_dir_all(&tmp);
}

#[test]
fn a_rank_that_ends_before_it_joins_is_not_waited_for() {
    let tmp = temporary("early");
    let script =
        format!("[ $RINGBELL_RANK = 1 ] && exit 7; exec {RINGBELL} perf barrier --no-limits");
    let args = ["run", "-n", "3", "--keep-going", "--", "sh", "-c", &script];
    let out = run(&mut ringbell(&args, &tmp));
    let said = text(&out);
    assert_eq!(out.status.code(), Some(7), "{said}");
    for rank in [0, 2] {
        // Rank 2 may come after rank 0 has ended as well.
        let told = format!("[{rank}] ringbell: rank(s) ");
        let line = said.lines().find(|l| l.starts_with(&told));
        let line = line.unwrap_or_else(|| panic!("{told} is not in {said}"));
        assert!(line.contains("rank 1 ended with status 7"), "{line}");
    }
    let _ = std::fs::remove_dir_all(&tmp);
}

#[test]
fn the_secret_of_a_port_comes_from_a_file() {
    let dir = folder("secret");
    let tmp = temporary("secret");
    let out = run(&mut ringbell(
        &["nc", "-l", "7", "--ip", "10.9.3.1/24", "--secret", "4711"],
        &tmp,
    ));
    let said = text(&out);
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(said.contains("--secret takes a file"), "{said}");
    let file = dir.join("secret");
    std::fs::write(&file, "swordfish").expect("written");
    let file = file.to_string_lossy();
    let out = run(&mut ringbell(
        &["nc", "-l", "7", "--ip", "10.9.3.1/24", "--secret", &file],
        &tmp,
    ));
    let said = text(&out);
    assert!(
        out.status.code() == Some(2) && !said.contains("swordfish"),
        "{said}"
    );
    let _ = std::fs::remove_dir_all(&tmp);
}

/// The process of a rank below a launcher, after it has started.
fn rank_process(launcher: u32, rank: u32) -> u32 {
    let mut found = None;
    let wanted = format!("RINGBELL_RANK={rank}");
    until("the rank's process", || {
        let all = std::fs::read_dir("/proc").expect("/proc").flatten();
        let mut pids = all.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
        found = pids.find(|pid| {
            let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let mut words = environ.split(|b| *b == 0);
            stat(*pid).is_some_and(|s| s[1] == launcher.to_string())
                && words.any(|w| w == wanted.as_bytes())
        });
        found.is_some()
    });
    found.expect("found above")
}

fn ticks(pid: u32) -> u64 {
    let time = |s: &[String], i: usize| s[i].parse::<u64>().unwrap_or(0);
    stat(pid).map_or(0, |s| time(&s, 11) + time(&s, 12))
}

/// Over UDP no connection of the kernel's ends with the process: its host refuses the frames. The
/// time-out is 50 minutes.
#[test]
fn a_rank_that_is_killed_over_udp_is_named_and_one_that_is_stopped_is_not() {
    let tmp = temporary("udp-rank");
    let mut args = vec![
        "run",
        "-n",
        "3",
        "--keep-going",
        "--port",
        "udp",
        "--",
        RINGBELL,
    ];
    args.extend([
        "perf",
        "all-reduce",
        "-b",
        "1K",
        "-e",
        "1K",
        "-n",
        "100000000",
    ]);
    args.extend(["--timeout", "3000", "--no-limits", "--transport", "tcp"]);
    let launcher = start(&mut ringbell(&args, &tmp));
    let ranks: Vec<u32> = (0..3).map(|r| rank_process(launcher.id(), r)).collect();
    until("all work", || ranks.iter().all(|r| ticks(*r) >= 50));
    signal(ranks[2], Signal::STOP);
    std::thread::sleep(Duration::from_secs(4));
    let before = ticks(ranks[2]);
    signal(ranks[2], Signal::CONT);
    until("the stopped rank works again", || {
        ticks(ranks[2]) >= before + 50
    });
    assert!(ranks.iter().all(|r| lives(*r)), "none was given up");
    signal(ranks[1], Signal::KILL);
    until("the others end", || !ranks.iter().any(|r| lives(*r)));
    let out = launcher.wait_with_output().expect("ended");
    let said = text(&out);
    assert!(said.contains("rank 1 was ended by signal 9"), "{said}");
    for rank in [0, 2] {
        let told = |l: &str| l.starts_with(&format!("[{rank}]")) && l.contains("rank 1");
        assert!(said.lines().any(told), "{said}");
    }
}
