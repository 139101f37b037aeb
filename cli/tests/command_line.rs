//! Tests of the command line's contract: how commands end, and that every accepted option has an
//! effect.

use std::io::{pipe, Read as _};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringbell"));
    command
        .args(args)
        .env_remove("RINGBELL_DEBUG")
        .stdin(Stdio::null());
    command
}

fn ringbell(args: &[&str]) -> Output {
    command(args)
        .output()
        .unwrap_or_else(|e| panic!("the program does not start: {e}"))
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn temporary(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn json(output: &Output) -> serde_json::Value {
    assert_eq!(output.status.code(), Some(0), "{}", stderr(output));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

#[test]
fn every_command_takes_the_name_of_a_nic_and_refuses_an_unknown_one() {
    for command in [
        "nc -l 7 --ip 10.0.0.1",
        "hll Cargo.toml",
        "perf nop -n 10",
        "perf send-bw",
        "doctor",
        "run -R 1 -- true",
    ] {
        let wrong = [
            &["--nic", "copper"][..],
            &command.split(' ').collect::<Vec<_>>(),
        ]
        .concat();
        let refused = ringbell(&wrong);
        assert_eq!(refused.status.code(), Some(2), "{command}");
        let text = stderr(&refused);
        assert!(text.contains("there is soft"), "{command}: {text}");
    }
    let named = ringbell(&["perf", "nop", "-n", "10", "--nic", "soft", "--json", "-"]);
    assert_eq!(json(&named)["meta"]["nic"], "soft");
    let variable = command(&["perf", "nop", "-n", "10"])
        .env("RINGBELL_NIC", "copper")
        .output()
        .expect("the program starts");
    assert_eq!(variable.status.code(), Some(2));
    assert!(stderr(&variable).contains("copper"));
}

/// Every command that prints, at its smallest.
fn printing() -> Vec<Vec<String>> {
    let sketch = temporary("pipe.sketch").display().to_string();
    let made = ringbell(&["hll", "Cargo.toml", "--sketch", &sketch]);
    assert_eq!(made.status.code(), Some(0), "{}", stderr(&made));
    let report = temporary("pipe.json").display().to_string();
    let small = ["perf", "limits", "-b", "4K", "-e", "4K", "--json", &report];
    assert_eq!(ringbell(&small).status.code(), Some(0));
    let mut all: Vec<Vec<String>> = [
        "--help",
        "regs",
        "regs --json",
        "doctor --json",
        "explain all-reduce -R 40",
        "explain all-reduce -R 4096",
        "explain all-reduce --json",
        "explain all-reduce --text",
        "explain broadcast --transport mesh",
        "routes torus:4x4",
        "routes torus:4x4 --json",
        "routes torus:4x4 --tree n5",
        "hll Cargo.toml",
        "hll Cargo.toml --json",
        "run -R 2 -- echo hello",
        "perf limits -b 4K -e 4K",
        "perf limits -b 4K -e 4K --json -",
        "perf nop -n 10",
        "perf all-reduce -b 1K -e 1K -n 2 -w 0 --no-limits",
        "perf send-lat -b 8 -e 8 -n 10 --threads",
        "perf hll -b 4K -e 4K -n 10",
    ]
    .iter()
    .map(|line| line.split(' ').map(str::to_owned).collect())
    .collect();
    all.push(vec!["hll".into(), "merge".into(), sketch]);
    all.push(
        ["perf", "compare", &report, &report]
            .map(str::to_owned)
            .to_vec(),
    );
    all
}

#[test]
fn a_closed_pipe_ends_no_command_otherwise_than_an_open_one() {
    for line in printing() {
        let args: Vec<&str> = line.iter().map(String::as_str).collect();
        for both in [false, true] {
            let (reader, writer) = pipe().expect("a pipe");
            drop(reader);
            let mut command = command(&args);
            command.stdout(writer.try_clone().expect("a duplicate"));
            match both {
                true => command.stderr(writer),
                false => command.stderr(Stdio::piped()),
            };
            let out = command.output().expect("the program starts");
            assert_eq!(out.status.code(), Some(0), "{args:?}: {}", stderr(&out));
            assert!(
                !stderr(&out).contains("panicked"),
                "{args:?}: {}",
                stderr(&out)
            );
        }
    }
    // The cause of a failure stays the exit code.
    let (reader, writer) = pipe().expect("a pipe");
    drop(reader);
    let out = command(&["perf", "limits", "-b", "8X"])
        .stderr(writer)
        .output();
    assert_eq!(out.expect("the program starts").status.code(), Some(2));
}

#[test]
fn a_full_disk_is_an_error_that_names_standard_output() {
    for args in [
        &["regs"][..],
        &["explain", "barrier"],
        &["hll", "Cargo.toml"],
    ] {
        let full = std::fs::File::options().write(true).open("/dev/full");
        let out = command(args).stdout(full.expect("/dev/full")).output();
        let out = out.expect("the program starts");
        assert_eq!(out.status.code(), Some(1), "{args:?}: {}", stderr(&out));
        assert!(
            stderr(&out).contains("cannot write standard output"),
            "{}",
            stderr(&out)
        );
    }
}

#[test]
fn a_command_line_that_no_machine_could_run_ends_with_2() {
    for (line, says) in [
        ("perf all-reduce -b 4M -e 1K", "-b 4M is larger than -e 1K"),
        ("perf all-reduce --mtu 1", "576 to 9216"),
        ("perf send-bw --mtu 1", "576 to 9216"),
        ("run -R 2 --mtu 1 -- true", "576 to 9216"),
        ("perf send-bw --tcp-buffer 0", "4K to 1G"),
        ("perf all-reduce --streams --ring 3", "--ring 4K to 1G"),
        ("perf send-bw --connect 10.0.0.1:0", "no port 0"),
        ("perf send-bw --listen 10.0.0.1:0", "no port 0"),
        ("perf send-bw --connect nowhere", "A.B.C.D"),
        ("nc --transport tcp --ip 10.0.0.1/24 -l 4", "needs a port"),
        ("nc --loss 0.5 --ip 10.0.0.1/24 -l 4", "needs a port"),
        (
            "nc --route 10.0.1.0/24=1 --ip 10.0.0.1/24 -l 4",
            "the NIC has no port",
        ),
        (
            "nc --port udp:127.0.0.1:0 --route 10.0.1.0/24=1 --ip 10.0.0.1/24 -l 4",
            "the NIC has port 0 alone",
        ),
        (
            "nc --port udp:127.0.0.1:0 --route 10.0.1.0/24=0 --route 10.0.1.0/24=0 --ip 10.0.0.1/24 -l 4",
            "cannot be given twice",
        ),
        (
            "nc --port none --port udp:127.0.0.1:0 --ip 10.0.0.1/24 -l 4",
            "port 0 is none",
        ),
        ("nc --route 10.0.1.0=1 --ip 10.0.0.1/24 -l 4", "is not a route"),
        (
            "perf send-bw --port mem --port mem",
            "for a NIC of --listen or --connect",
        ),
        (
            "nc --loss 0.5 --transport local --ip 10.0.0.1/24 -l 4",
            "act on frames",
        ),
        ("perf send-bw --pcap x --transport local", "act on frames"),
        ("perf all-reduce -R 33 --transport tcp", "2 to 32 ports"),
        ("perf send-rate -b 8", "-b would change nothing"),
        ("perf send-rate -e 8", "-e would change nothing"),
        ("perf barrier -b 8", "-b would change nothing"),
        ("perf barrier -f 3", "-f would change nothing"),
        ("perf send-lat --window 4", "--window would change nothing"),
        ("explain all-reduce -R 4097", "1..=4096"),
        ("explain all-reduce -R 257 --goal", "programs of all"),
        ("explain all-reduce -R 257 --rank 257", "from 0 to 256"),
        (
            "explain all-reduce -R 257 --transport local",
            "up to 256 ranks",
        ),
        ("explain all-reduce --root 1", "has no root"),
        ("explain all-reduce --rank 4", "from 0 to 3"),
        ("explain --program /nowhere", "cannot read /nowhere"),
        ("routes /nowhere", "cannot read /nowhere"),
        ("routes tree:4", "or a network by name: bus, ring"),
        ("routes ring:1", "at least 2"),
        ("routes ring:5 --channels 0", "a number from 1 to 128"),
        ("routes ring:5 --channels 1", "the NIC has 1"),
        ("routes ring:5 --algorithm lash", "the algorithms are layered"),
        ("routes ring:5 --without n9:0", "no wire ends at n9:0"),
        ("routes bus:3 --without n0:1", "not connected: 1 of 3 nodes"),
        ("routes mesh:3x3 --algorithm bubble", "a ring or a torus"),
        ("routes ring:5 --algorithm shortest", "n0:1#0 -> n1:1#0"),
        ("routes ring:5 --table /nowhere", "cannot read /nowhere"),
        ("routes ring:5 --tree n7", "no NIC of ring:5 is named n7"),
        ("routes fat-tree:2x2 --tree s1", "no NIC of fat-tree:2x2 is named s1"),
        ("routes ring:5 --members n1", "--tree <NODE>"),
        ("routes torus:8x8 --tree n0", "bubble channels take no trees"),
        ("routes ring:5 --channels 5 --tree n0", "trees 2 or more"),
        ("perf compare /nowhere /nowhere", "cannot read /nowhere"),
        ("perf floor --bytes 1T", "1 byte to 4G"),
        ("regs no-such-register", "no register's name contains"),
        ("perf limits -f 1", "1 is not in 2.."),
    ] {
        let args: Vec<&str> = line.split(' ').collect();
        let out = ringbell(&args);
        assert_eq!(out.status.code(), Some(2), "{line}: {}", stderr(&out));
        assert!(stderr(&out).contains(says), "{line}: {}", stderr(&out));
    }
}

#[test]
fn a_gpu_that_is_not_there_ends_every_command_with_4() {
    for line in [
        "hll Cargo.toml",
        "nc --ip 10.0.0.1/24 -l 4",
        "perf floor -n 1",
        "perf nop -n 1",
        "perf combine -b 4K -e 4K -n 1",
        "perf send-bw -b 1K -e 1K -n 1",
        "perf send-bw -b 1K -e 1K -n 1 --threads",
        "perf all-reduce -b 1K -e 1K -n 1 --no-limits",
        "perf all-reduce -b 1K -e 1K -n 1 --no-limits --threads",
    ] {
        let args: Vec<&str> = line.split(' ').collect();
        // The mock driver of the workspace may come first in the loader's path: no machine has a
        // hundredth GPU.
        let out = command(&args).env("RINGBELL_GPU", "cuda:99").output();
        let out = out.expect("the program starts");
        assert_eq!(out.status.code(), Some(4), "{line}: {}", stderr(&out));
        assert!(
            !stderr(&out).contains("within 20s"),
            "{line}: {}",
            stderr(&out)
        );
    }
}

#[test]
fn connecting_and_listening_end_with_their_time_out() {
    for side in ["--connect", "--listen"] {
        let args = ["perf", "send-bw", side, "10.99.0.9:7", "--timeout", "1"];
        // By default one would wait for 20 seconds, the other for an hour.
        let mut child = command(&[&args[..], &["-b", "1K", "-e", "1K"]].concat())
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("the program starts");
        let mut said = String::new();
        let mut pipe = child.stderr.take().expect("piped");
        pipe.read_to_string(&mut said).expect("text");
        assert_eq!(child.wait().expect("ends").code(), Some(1), "{said}");
        let says = match side {
            "--connect" => "no connection within 1s",
            _ => "no client came",
        };
        assert!(said.contains(says), "{said}");
    }
}

#[test]
fn faults_and_captures_mean_tcp_where_the_transport_is_free() {
    let capture = temporary("auto.pcapng");
    let name = capture.display().to_string();
    let line = [
        "perf",
        "send-bw",
        "-b",
        "1K",
        "-e",
        "1K",
        "-n",
        "20",
        "--threads",
    ];
    let out = json(&ringbell(
        &[&line[..], &["--pcap", &name, "--json", "-"]].concat(),
    ));
    assert_eq!(out["meta"]["transport"], "tcp");
    assert!(std::fs::metadata(&capture).expect("written").len() > 1000);
    let out = json(&ringbell(
        &[&line[..], &["--reorder", "0.01", "--json", "-"]].concat(),
    ));
    assert_eq!(out["meta"]["transport"], "tcp");
}

#[test]
fn data_is_left_unverified_where_that_is_asked_for() {
    for line in [
        "perf slots -b 4K -e 4K -n 2 --bytes 64K -c 0 --json -",
        "perf combine -b 4K -e 4K -n 2 -c 0 --json -",
        "perf send-bw -b 4K -e 4K -n 40 -c 0 --json -",
        "perf all-reduce -b 4K -e 4K -n 2 -c 0 --no-limits --json -",
    ] {
        let args: Vec<&str> = line.split(' ').collect();
        let out = json(&ringbell(&args));
        let rows = out["rows"].as_array().expect("rows");
        assert!(!rows.is_empty());
        assert!(
            rows.iter().all(|r| r["wrong"].is_null()),
            "{line}: {rows:?}"
        );
    }
}

#[test]
fn ranks_are_named_alike_by_all_commands() {
    for args in [
        &["explain", "barrier"][..],
        &["explain", "barrier", "-R", "4"],
        &["explain", "barrier", "-n", "4"],
    ] {
        let out = ringbell(args);
        assert!(
            stdout(&out).contains("4 ranks"),
            "{args:?}: {}",
            stderr(&out)
        );
    }
    for flag in ["-R", "-n", "--ranks"] {
        let out = ringbell(&["run", flag, "3", "--", "echo", "here"]);
        assert_eq!(stdout(&out).matches("here").count(), 3, "{}", stderr(&out));
    }
    for args in [
        &["run", "--help"][..],
        &["explain", "--help"],
        &["perf", "all-reduce", "--help"],
    ] {
        assert!(stdout(&ringbell(args)).contains("-R, --ranks"), "{args:?}");
    }
}

#[test]
fn help_leaves_out_flags_that_a_benchmark_refuses() {
    for (benchmark, flag, shown) in [
        ("send-bw", "--minbytes", true),
        ("send-rate", "--minbytes", false),
        ("barrier", "--stepbytes", false),
        ("send-bw", "--window", true),
        ("send-lat", "--window", false),
    ] {
        let help = ringbell(&["perf", benchmark, "--help"]);
        assert_eq!(stdout(&help).contains(flag), shown, "{benchmark} {flag}");
    }
}

#[test]
fn the_elements_of_json_are_those_of_the_table() {
    let file = temporary("elements.json").display().to_string();
    let line = "perf all-gather -R 2 -b 4K -e 4K -n 3 --no-limits --threads --json";
    let mut args: Vec<&str> = line.split(' ').collect();
    args.push(&file);
    let out = ringbell(&args);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&file).expect("written")).expect("JSON");
    let row = &report["rows"][0];
    // 4 KiB of f32 in two blocks; three calls were timed.
    assert_eq!(
        (row["elements"].as_u64(), row["count"].as_u64()),
        (Some(512), Some(3))
    );
    let table = stdout(&out);
    let column = |line: &str| {
        line.trim_start_matches('#')
            .split_whitespace()
            .nth(1)
            .map(str::to_owned)
    };
    let names = table.lines().find(|l| l.contains("redop")).expect("a head");
    assert_eq!(column(names).as_deref(), Some("elements"));
    let row = table
        .lines()
        .find(|l| l.trim_start().starts_with("4096"))
        .expect("a row");
    assert_eq!(column(row).as_deref(), Some("512"));
}

/// The times of all messages in flight add up to no more than the window times the whole run, so
/// that the mean of the shares is at most `time_us`, and half of the shares are at most twice that.
#[test]
fn percentiles_of_a_stream_are_those_of_one_message() {
    let line = "perf send-bw -b 64K -e 64K -n 400 --window 64 --threads --json -";
    let args: Vec<&str> = line.split(' ').collect();
    let out = json(&ringbell(&args));
    let row = &out["rows"][0];
    let of = |key: &str| row[key].as_f64().expect("a number");
    assert!(of("p50_us") <= 2.0 * of("time_us") + 0.01, "{row}");
    assert!(of("p50_us") > 0.0 && of("p50_us") <= of("p99_us"), "{row}");
}

/// Programs that compute beside a benchmark, one for each core; they end with this value.
struct Neighbours(Vec<std::process::Child>);

impl Neighbours {
    fn start() -> Neighbours {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let spin = |_| {
            let mut c = Command::new("sh");
            c.args(["-c", "while :; do :; done"]);
            c.spawn().expect("there is a shell")
        };
        Neighbours((0..cores).map(spin).collect())
    }
}

impl Drop for Neighbours {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn a_benchmark_says_that_others_used_the_cores_meanwhile() {
    let report = temporary("busy.json").display().to_string();
    let line = [
        "perf", "limits", "-b", "1M", "-e", "64M", "-f", "2", "--json", &report,
    ];
    let out = {
        let _neighbours = Neighbours::start();
        ringbell(&line)
    };
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    let text = stdout(&out);
    assert!(text.contains("the machine was busy"), "{text}");
    let written = std::fs::read_to_string(&report).expect("written");
    let json: serde_json::Value = serde_json::from_str(&written).expect("JSON");
    let busy = &json["meta"]["busy"];
    let share = |name: &str| busy[name].as_f64().expect("a share");
    assert!(share("own") > 0.0 && share("others") > 0.05, "{busy}");
    // A comparison says it too.
    let compared = ringbell(&["perf", "compare", &report, &report]);
    assert!(
        stdout(&compared).contains("on a busy machine"),
        "{}",
        stdout(&compared)
    );
}

#[test]
fn a_benchmark_without_perf_before_it_is_named_as_one() {
    for (given, meant) in [
        ("allreduce", "ringbell perf all-reduce"),
        ("Send_BW", "ringbell perf send-bw"),
        ("put-signal-lat", "ringbell perf write-lat"),
    ] {
        let out = ringbell(&[given]);
        assert_eq!(out.status.code(), Some(2));
        let said = stderr(&out);
        assert!(said.contains(meant), "{given}: {said}");
    }
    for other in [&["pigeon"][..], &["perf", "pigeon"], &["nccl-worker"]] {
        let said = stderr(&ringbell(other));
        assert!(
            said.contains("unrecognized subcommand") && !said.contains("is a benchmark"),
            "{said}"
        );
    }
}

/// A command as cargo lays it out after a build of it alone, with a cargo that builds an empty
/// library when it is called.
struct Fresh {
    dir: PathBuf,
}

impl Fresh {
    fn new(name: &str, profile: &str) -> Fresh {
        let dir = temporary(name);
        let _ = std::fs::remove_dir_all(&dir);
        let products = dir.join(profile);
        std::fs::create_dir_all(products.join(".fingerprint")).expect("a folder");
        std::fs::write(dir.join("CACHEDIR.TAG"), "").expect("a file");
        let command = products.join("ringbell");
        std::fs::copy(env!("CARGO_BIN_EXE_ringbell"), command).expect("copied");
        Fresh { dir }
    }

    fn cargo(&self, script: &str) {
        use std::os::unix::fs::PermissionsExt as _;
        let cargo = self.dir.join("cargo");
        std::fs::write(&cargo, format!("#!/bin/sh\n{script}\n")).expect("a file");
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(cargo, mode).expect("its mode");
    }

    fn run(&self, profile: &str, arguments: &[&str]) -> (Option<i32>, String) {
        let mut command = Command::new(self.dir.join(profile).join("ringbell"));
        command
            .args(arguments)
            .env("CARGO", self.dir.join("cargo"))
            .env("CALLS", self.dir.join("calls"));
        let out = command.output().expect("the program starts");
        (out.status.code(), stderr(&out))
    }

    fn calls(&self) -> String {
        std::fs::read_to_string(self.dir.join("calls")).unwrap_or_default()
    }
}

#[test]
fn a_library_that_cargo_run_has_not_built_is_built_when_first_used() {
    let programs = [
        ("verbs", "ringbell-verbs", "libringbell_verbs.so"),
        ("mpi", "ringbell-mpi", "libringbell_mpi.so"),
        ("nccl", "ringbell-nccl", "libnccl_net_ringbell.so"),
    ];
    for (command, package, library) in programs {
        for (folder, profile) in [("release", "release"), ("debug", "dev")] {
            let fresh = Fresh::new(&format!("on-demand-{command}"), folder);
            fresh.cargo(&format!(
                "echo \"$@\" >> \"$CALLS\"; : > {}/{folder}/{library}",
                fresh.dir.display()
            ));
            let (code, said) = fresh.run(folder, &[command, "--", "true"]);
            assert_eq!(code, Some(0), "{command}: {said}");
            assert!(
                said.contains(&format!("{library} is not built yet")),
                "{said}"
            );
            let (calls, target) = (fresh.calls(), fresh.dir.display());
            let wanted = format!("--profile {profile} -p ringbell-cli -p {package}");
            assert!(calls.contains(&wanted), "{calls}");
            assert!(calls.contains(&format!("--target-dir {target}")), "{calls}");
            let (code, said) = fresh.run(folder, &[command, "--", "true"]);
            assert_eq!(
                (code, fresh.calls()),
                (Some(0), calls),
                "built once: {said}"
            );
        }
    }
}

#[test]
fn a_library_that_cannot_be_built_is_an_error_that_says_what_to_do() {
    let fresh = Fresh::new("on-demand-fails", "release");
    fresh.cargo("echo no network >&2; exit 101");
    let (code, said) = fresh.run("release", &["verbs", "--", "true"]);
    assert_eq!(code, Some(4), "{said}");
    assert!(
        said.contains("no network") && said.contains("--library"),
        "{said}"
    );

    // Installed elsewhere, without its library: nothing is built.
    std::fs::remove_dir(fresh.dir.join("release/.fingerprint")).expect("removed");
    let (code, said) = fresh.run("release", &["mpi", "--", "true"]);
    assert_eq!(code, Some(4), "{said}");
    assert!(
        said.contains("cargo xtask install") && !said.contains("not built yet"),
        "{said}"
    );
}
