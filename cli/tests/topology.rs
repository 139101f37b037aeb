//! Tests of `--topology`: jobs over NICs that forward for each other, in processes.
#![allow(clippy::disallowed_methods)] // Tests at the edge.

use crate::common;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use common::{run, text};

fn ringbell(args: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringbell"));
    let out = run(command.env("RINGBELL_GPU", "emulated").args(args));
    (out.status.code(), text(&out))
}

/// Both kinds of wires, `rdma` by default, and other transports by name.
#[test]
fn collectives_run_over_processes_that_forward() {
    for args in [
        &["-R", "8", "--topology", "torus:2x4"][..],
        &["-R", "4", "--topology", "bus:4", "--port", "udp"],
        &["-R", "3", "--topology", "ring:3", "--transport", "tcp"],
        &["-R", "3", "--port", "mesh:bus:3"],
        // The command forwards for the switches.
        &["-R", "4", "--topology", "fat-tree:2x2"],
    ] {
        let sizes = [
            "-b",
            "8",
            "-e",
            "100K",
            "-f",
            "100",
            "--iters",
            "3",
            "--no-limits",
        ];
        let all = [&["perf", "all-reduce"], args, &sizes].concat();
        let (code, said) = ringbell(&all);
        assert!(code == Some(0) && said.contains("0 OK"), "{args:?}: {said}");
        let transport = match args.contains(&"tcp") {
            true => "transport: tcp",
            false => "transport: rdma",
        };
        assert!(said.contains(transport), "{args:?}: {said}");
    }
}

#[test]
fn a_network_that_does_not_suit_the_job_is_refused_with_the_reason() {
    for (args, why) in [
        (
            &["--topology", "torus:2x4"][..],
            "torus:2x4 has 8 nodes with a rank, and there are 4 ranks",
        ),
        (&["--topology", "star:4"], "cannot read star:4"),
        (
            &["--topology", "ring:4", "--transport", "local"],
            "transport local does not use the wires",
        ),
        (
            &["--topology", "ring:4", "--port", "roce"],
            "port roce carries no wires",
        ),
        (
            &["--topology", "ring:4", "--wire-poll", "0"],
            "0 is not in 1..=4096",
        ),
        (&["--wire-poll", "2"], "--topology"),
    ] {
        let all = [&["run", "-R", "4"], args, &["--", "true"]].concat();
        let (code, said) = ringbell(&all);
        assert!(
            code == Some(2) && said.contains(why),
            "{args:?}: {code:?} {said}"
        );
    }
}

/// Tables of a file are checked before a rank starts; all ranks have them, or none is started.
#[test]
fn ranks_forward_by_the_tables_of_a_file() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("tables.json");
    let path = file.to_string_lossy().into_owned();
    let (code, said) = ringbell(&["routes", "ring:4", "--without", "n3:0", "--json", &path]);
    assert_eq!(code, Some(0), "{said}");
    let job = |command: &[&str]| {
        let network = ["-R", "4", "--topology", "ring:4", "--routes", &path];
        let (first, rest) = command.split_at(command.len().min(2));
        ringbell(&[first, &network, rest].concat())
    };
    let perf = [
        "perf",
        "all-reduce",
        "-b",
        "8",
        "-e",
        "64K",
        "-f",
        "8192",
        "--no-limits",
    ];
    let (code, said) = job(&perf);
    assert!(code == Some(0) && said.contains("0 OK"), "{said}");
    // The command forwards for switches. Ends of a wire with different tables refuse each other, so
    // the ranks have those of the file as well.
    let tree = folder
        .path()
        .join("tree.json")
        .to_string_lossy()
        .into_owned();
    let make = [
        "routes",
        "fat-tree:2x2",
        "--algorithm",
        "nue",
        "--json",
        &tree,
    ];
    assert_eq!(ringbell(&make).0, Some(0));
    let network = ["-R", "4", "--topology", "fat-tree:2x2", "--routes", &tree];
    let (code, said) = ringbell(&[&perf[..], &network].concat());
    assert!(code == Some(0) && said.contains("0 OK"), "{said}");
    let good = std::fs::read_to_string(&file).expect("there");
    let text: String = good.split_whitespace().collect();
    let bad = text.replacen("\"next\":[[null,1", "\"next\":[[null,0", 1);
    assert_ne!(text, bad);
    std::fs::write(&file, bad).expect("room");
    let (code, said) = job(&perf);
    assert!(
        code == Some(2) && said.contains("tables.json: "),
        "{code:?} {said}"
    );
    assert!(said.contains("do not load these tables"), "{said}");
    std::fs::write(&file, "{").expect("room");
    let (code, said) = job(&perf);
    assert!(
        code == Some(2) && said.contains("tables.json:1:"),
        "{code:?} {said}"
    );
    let (code, said) = ringbell(&["run", "-R", "2", "--routes", &path, "--", "true"]);
    assert!(
        code == Some(2) && said.contains("--topology"),
        "{code:?} {said}"
    );
}

/// The file of a job's tables is written anew while the job runs: all ranks forward by what holds,
/// and what does not is refused.
#[test]
fn tables_of_a_running_job_are_replaced_by_writing_their_file_anew() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("tables.json");
    let path = file.to_string_lossy().into_owned();
    let write = |more: &[&str]| {
        let (code, said) = ringbell(&[&["routes", "ring:4", "--json", &path], more].concat());
        assert_eq!(code, Some(0), "{said}");
    };
    write(&[]);
    let mut child = Command::new(env!("CARGO_BIN_EXE_ringbell"))
        .args(["perf", "all-reduce", "-R", "4", "--topology", "ring:4"])
        .args(["--routes", &path, "-b", "8", "-e", "8", "--no-limits"])
        .args(["--iters", "1000000000"])
        .env("RINGBELL_GPU", "emulated")
        .env("RINGBELL_DEBUG", "INFO")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let (to, lines) = mpsc::channel();
    let said = BufReader::new(child.stderr.take().expect("piped"));
    let reader = std::thread::spawn(move || {
        let lines = said.lines().map_while(Result::ok);
        lines.for_each(|line| drop(to.send(line)));
    });
    let mut all = Vec::new();
    let mut comes = |what: &str| {
        let end = Instant::now() + Duration::from_secs(60);
        while !all.iter().any(|line: &String| line.contains(what)) {
            let left = end.saturating_duration_since(Instant::now());
            match lines.recv_timeout(left) {
                Ok(line) => all.push(line),
                Err(why) => return Err(format!("{what}: {why}: {all:#?}")),
            }
        }
        Ok(())
    };
    let done = comes("connected").and_then(|()| {
        write(&["--without", "n3:0"]);
        comes("all nodes forward by the tables of the file")?;
        let good = std::fs::read_to_string(&file).expect("there");
        let text: String = good.split_whitespace().collect();
        let bad = text.replacen("\"next\":[[null,1", "\"next\":[[null,0", 1);
        assert_ne!(text, bad);
        std::fs::write(&file, bad).expect("room");
        comes("the tables of the file are not used")
    });
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("our own child");
    child.wait().expect("our own child");
    reader.join().expect("no panic");
    assert_eq!(done, Ok(()));
}

/// A rank is killed in the middle: the others' operations end with a reason, and so does the job.
#[test]
fn a_killed_rank_is_named_and_the_job_ends() {
    let script = "if [ $RINGBELL_RANK = 1 ]; then (sleep 2; kill -9 $$) & fi; \
        exec $0 perf all-reduce -b 64K -e 64K --iters 200000 --no-limits";
    let program = env!("CARGO_BIN_EXE_ringbell");
    let (code, said) = ringbell(&[
        "run",
        "-R",
        "4",
        "--topology",
        "ring:4",
        "--deadline",
        "40",
        "--",
        "sh",
        "-c",
        script,
        program,
    ]);
    assert_ne!(code, Some(0), "{said}");
    assert!(said.contains("rank 1"), "{said}");
    assert!(!said.contains("had not ended"), "{said}");
}
