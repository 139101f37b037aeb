//! `ringbell sim`: its table, its report as JSON, and what it refuses.

use std::process::{Command, Output};

use serde_json::Value;

use crate::net;

fn sim(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringbell"));
    let done = command.arg("sim").args(args).output();
    done.expect("the program starts")
}

#[test]
fn a_simulated_all_reduce_prints_the_columns_of_nccl_tests() {
    let out = sim(&["all-reduce", "-R", "4", "-b", "64K", "-e", "64K"]);
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let row = text.lines().find(|l| !l.starts_with('#')).expect("a row");
    let cells: Vec<_> = row.split_whitespace().collect();
    assert_eq!(cells[..4], ["65536", "16384", "f32", "sum"], "{text}");
    assert_eq!((cells.len(), cells[8]), (9, "0"), "{text}");
    let time: f64 = cells[4].parse().expect("a time");
    assert!(time > 10.0, "two hops of two links at least: {text}");
    assert!(text.contains("hash "), "{text}");
}

#[test]
fn a_simulation_with_loss_repeats_by_its_seed() {
    let run = |seed| {
        let args = [
            "all-gather",
            "-R",
            "3",
            "-b",
            "256K",
            "-e",
            "256K",
            "--loss",
        ];
        let out = sim(&[&args[..], &["0.02", "--seed", seed, "--json"]].concat());
        assert_eq!(out.status.code(), Some(0), "{out:?}");
        serde_json::from_slice::<Value>(&out.stdout).expect("JSON")
    };
    let first = run("3");
    assert_eq!(first["rows"][0]["wrong"], 0);
    assert!(first["lost"].as_u64() > Some(0), "{first}");
    assert_eq!(run("3")["hash"], first["hash"]);
    assert_ne!(run("4")["hash"], first["hash"]);
}

#[test]
fn memory_that_keeps_every_byte_changes_no_line_but_that_of_wall_clock_time() {
    let lines = |more: &[&str]| {
        let args = [
            "reduce", "-R", "5", "-b", "1M", "-e", "4M", "--loss", "0.001",
        ];
        let out = sim(&[&args[..], more].concat());
        assert_eq!(out.status.code(), Some(0), "{out:?}");
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let hash = text.split("hash ").last().map(str::to_owned);
        let rows = text.lines().filter(|l| !l.contains("hash "));
        (rows.map(str::to_owned).collect::<Vec<_>>(), hash)
    };
    assert_eq!(lines(&["--whole-memory"]), lines(&[]));
    // 64 GiB of operands: more than real ones may have.
    let large = ["all-reduce", "-b", "16G", "-e", "16G", "--whole-memory"];
    let refused = sim(&large);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("the 16 GiB that all may have"), "{said}");
}

#[test]
fn settings_of_the_communicator_are_given_by_name() {
    let args = "all-reduce -R 2 -b 512K -e 512K --algo ring --json";
    let run = |more: &[&str]| {
        let out = sim(&args
            .split(' ')
            .chain(more.iter().copied())
            .collect::<Vec<_>>());
        assert_eq!(out.status.code(), Some(0), "{out:?}");
        serde_json::from_slice::<Value>(&out.stdout).expect("JSON")
    };
    let (usual, cut) = (run(&[]), run(&["--set", "segment_bytes=16K"]));
    assert_eq!(usual["settings"], serde_json::json!({}));
    assert_eq!(
        cut["settings"],
        serde_json::json!({ "segment_bytes": 16384 })
    );
    assert_eq!(cut["rows"][0]["wrong"], 0);
    assert!(cut["frames"].as_u64() > usual["frames"].as_u64(), "{cut}");
    let out = sim(&[
        "all-reduce",
        "--set",
        "segment_bytes=16K",
        "--set",
        "scratch_bytes=16K",
    ]);
    assert_eq!(out.status.code(), Some(2), "{out:?}");
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(text.contains("no room for two segments"), "{text}");
}

#[test]
fn tshark_reads_the_capture_of_a_simulated_rank() {
    if !net::installed("tshark") {
        skip!("there is no tshark");
    }
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("rank1.pcapng");
    let capture = format!("1={}", file.display());
    let plan = ["all-reduce", "-R", "3", "--loss", "0.01", "--pcap"];
    let out = sim(&[&plan[..], &[&capture]].concat());
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    let mut shows = Command::new("tshark");
    // Payloads look like those of another protocol now and then.
    shows.args(["-n", "--disable-protocol", "rpcordma", "-T", "fields"]);
    shows.args(["-o", "ip.check_checksum:TRUE", "-e", "_ws.expert"]);
    shows.args(["-e", "infiniband.bth.opcode", "-e", "ip.src", "-r"]);
    let out = shows.arg(&file).output().expect("tshark starts");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let odd = text.lines().find(|l| !l.starts_with('\t'));
    assert_eq!(odd, None, "an expert's remark");
    for from in ["10.77.0.1", "10.77.0.2", "10.77.0.3"] {
        let sent = text.lines().filter(|l| l.ends_with(from));
        assert!(sent.count() > 10, "{from}: {text}");
    }
}

#[test]
fn a_timeline_is_written_for_perfetto() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("trace.json");
    let path = file.to_str().expect("text");
    let plan = ["broadcast", "-R", "3", "-b", "64K", "-e", "64K", "--json"];
    let out = sim(&[&plan[..], &["-", "--trace", path]].concat());
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    let report: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let trace = std::fs::read(&file).expect("a file");
    let trace: Value = serde_json::from_slice(&trace).expect("JSON");
    let entries = trace["traceEvents"].as_array().expect("a list");
    let count = |name: &str| entries.iter().filter(|e| e["name"] == name).count();
    assert_eq!(count("Broadcast, 65536 bytes"), 3);
    // Each frame crosses two links.
    assert!(count("frame") as u64 >= 2 * report["frames"].as_u64().expect("frames") - 10);

    let out = sim(&[&plan[..], &["-", "--trace", "/dev/full"]].concat());
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(said.contains("the timeline cannot be written"), "{said}");
}

#[test]
fn a_timeline_replaces_the_file_that_was_there_and_a_refused_plan_does_not() {
    let dir = tempfile::tempdir().expect("a folder");
    let old = vec![b'x'; 10 << 20];
    let [kept, replaced] = ["kept", "replaced"].map(|name| dir.path().join(name));
    for (file, ranks, code) in [(&kept, "1", 2), (&replaced, "2", 0)] {
        std::fs::write(file, &old).expect("written");
        let path = file.to_str().expect("text");
        let out = sim(&["broadcast", "-R", ranks, "-e", "1K", "--trace", path]);
        assert_eq!(out.status.code(), Some(code), "{out:?}");
    }
    assert!(std::fs::read(&kept).expect("a file") == old);
    let trace = std::fs::read(&replaced).expect("a file");
    serde_json::from_slice::<Value>(&trace).expect("JSON, with nothing behind it");
}

#[test]
fn a_capture_that_cannot_be_written_is_an_error() {
    for (capture, code, named) in [
        ("0=/dev/full", 1, "cannot write all of /dev/full"),
        ("0=/nowhere/a", 1, "cannot write /nowhere/a"),
        ("9=/dev/null", 2, "there is no rank 9 to capture"),
        ("a=/dev/null", 2, "write a rank and its file"),
    ] {
        let out = sim(&["all-reduce", "-b", "1K", "-e", "1K", "--pcap", capture]);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(code), "{capture}: {said}");
        assert!(said.contains(named), "{capture}: {said}");
    }
}

#[test]
fn a_profile_of_a_file_is_used_and_its_mistakes_have_a_place() {
    let shown = sim(&["--show-profile", "ideal"]);
    assert_eq!(shown.status.code(), Some(0), "{shown:?}");
    let ideal = String::from_utf8_lossy(&shown.stdout).into_owned();
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("slow.toml");
    let path = file.to_str().expect("text");
    let args = ["all-reduce", "-b", "1M", "-e", "1M", "--json", "--profile"];
    let time = |profile| {
        let out = sim(&[&args[..], &[profile]].concat());
        assert_eq!(out.status.code(), Some(0), "{out:?}");
        let report: Value = serde_json::from_slice(&out.stdout).expect("JSON");
        assert_eq!(report["profile"], profile);
        report["rows"][0]["time_us"].as_f64().expect("a time")
    };
    let write = |text: String| std::fs::write(&file, text).expect("a file");
    write(ideal.clone());
    assert_eq!(time(path), time("ideal"));
    write(ideal.replace("rate_gbps = 100", "rate_gbps = 10"));
    assert!(time(path) > 4.0 * time("ideal"));

    write(ideal.replace("rate_gbps", "rate_mbps"));
    for (profile, named) in [
        (path, "slow.toml:8:1: unknown field `rate_mbps`, expected"),
        ("fast.toml", "cannot read fast.toml: No such file"),
    ] {
        let out = sim(&[&args[..], &[profile]].concat());
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(2), "{said}");
        assert!(said.contains(named), "{said}");
    }
}

#[test]
fn a_topology_gives_the_ranks_and_the_switches() {
    let args = ["all-to-all", "-b", "64K", "-e", "64K", "--topology"];
    let out = sim(&[&args[..], &["fat-tree:2x2", "--hash-seed", "3", "--json"]].concat());
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    let report: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    assert_eq!(
        (&report["ranks"], &report["hash_seed"]),
        (&4.into(), &3.into())
    );
    assert_eq!(report["topology"], "fat-tree:2x2");
    let number = |value: &Value| value.as_f64().expect("a number");
    let row = &report["rows"][0];
    let share = number(&row["busbw_gbs"]) / number(&report["best_busbw_gbs"]);
    assert!(
        (number(&row["link_share"]) - share).abs() < 1e-9,
        "{report}"
    );
    // Its switches carry all that links of hosts do.
    let ratio = number(&report["best_busbw_gbs"]) / number(&report["payload_gbs"]);
    assert!((ratio - 1.0).abs() < 1e-9, "{report}");
    assert_eq!(report["rows"][0]["wrong"], 0);
    let out = sim(&[&args[..], &["fat-tree:2x3", "-R", "5"]].concat());
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(text.contains("5 ranks"), "{out:?}");
    assert!(
        text.contains("network fat-tree:2x3: 8 hosts, 12 switches, 24 wires"),
        "{text}"
    );

    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("broken.json");
    std::fs::write(&file, "{\"nodes\": [\"a\",\n \"a\"], \"wires\": []}").expect("a file");
    let file = file.to_str().expect("text");
    for (args, named) in [
        (
            &["all-reduce", "--topology", file][..],
            "broken.json:2:5: two nodes are named a",
        ),
        (
            &["all-reduce", "--topology", "ring:8", "-R", "4"],
            "the 8 NICs of ring:8 forward for each other, and each is a rank",
        ),
        (
            &["all-reduce", "--topology", "ring:8", "--spray"],
            "spraying is for switches, and ring:8 has none",
        ),
        (
            &["all-reduce", "--topology", "fat-tree:2x2", "-R", "5"],
            "fat-tree:2x2 has 4 hosts",
        ),
        (
            &["all-reduce", "--topology", "no-such-file"],
            "cannot read no-such-file",
        ),
    ] {
        let out = sim(args);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(named), "{args:?}: {said}");
    }
}

#[test]
fn nics_that_forward_take_other_ways_and_threads_change_nothing() {
    let args = ["all-reduce", "-b", "256K", "-e", "256K", "--topology"];
    let run = |more: &[&str]| {
        let out = sim(&[&args[..], &["torus:2x4", "--json"], more].concat());
        assert_eq!(out.status.code(), Some(0), "{out:?}");
        serde_json::from_slice::<Value>(&out.stdout).expect("JSON")
    };
    let whole = run(&[]);
    assert_eq!(
        (
            &whole["ranks"],
            &whole["rows"][0]["wrong"],
            &whole["wire_poll"]
        ),
        (&8.into(), &0.into(), &8.into())
    );
    assert_eq!(run(&["--threads", "2"])["hash"], whole["hash"]);
    let cut = run(&["--cut", "n0-n1@20us", "--wire-poll", "1"]);
    assert_eq!(
        (&cut["rows"][0]["wrong"], &cut["wire_poll"]),
        (&0.into(), &1.into())
    );
    assert_eq!(cut["faults"][0]["wire"], "n0:3 -- n1:2", "{cut}");

    let out = sim(&[&args[..], &["bus:3"]].concat());
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let network = "network bus:3: 3 NICs that forward for each other, 2 wires; R is 8";
    assert!(text.contains(network), "{text}");
}

#[test]
fn ranks_tell_which_one_was_killed() {
    let args = [
        "all-reduce",
        "-R",
        "8",
        "-b",
        "1M",
        "-e",
        "1M",
        "--algo",
        "ring",
    ];
    let kill = ["--kill", "3@50us"];
    let out = sim(&[&args[..], &kill, &["--json"]].concat());
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(said.contains("failed on 7 of 8 ranks"), "{said}");
    let report: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let fault = &report["faults"][0];
    assert_eq!((&fault["rank"], &fault["at_us"]), (&3.into(), &50.0.into()));
    let ranks = report["ended"]["ranks"].as_array().expect("ranks");
    for (rank, end) in ranks.iter().enumerate() {
        let (status, names) = match rank {
            3 => ("killed", Value::Null),
            _ => ("PeerFailed", 3.into()),
        };
        assert_eq!((&end["status"], &end["names"]), (&status.into(), &names));
        assert!(end["at_us"].as_f64() >= Some(50.0), "{end}");
    }

    let out = sim(&[&args[..], &kill].concat());
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(text.contains("# rank 3 killed at 50.000 us"), "{text}");
    let named = text.lines().filter(|l| l.contains(" PeerFailed      3 "));
    assert_eq!(named.count(), 7, "{text}");
}

#[test]
fn a_cut_wire_is_gone_around_and_a_wrong_name_refused() {
    let args = [
        "all-reduce",
        "--topology",
        "fat-tree:2x3",
        "-b",
        "1M",
        "-e",
        "1M",
    ];
    let out = sim(&[&args[..], &["--cut", "s4-s8@0.05ms"]].concat());
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    assert!(text.contains("# s4:0 -- s8:2 cut at 50.000 us"), "{text}");
    for (fault, named) in [
        (
            ["--cut", "s4-s5@1us"],
            "no wire of fat-tree:2x3 is named s4-s5",
        ),
        (
            ["--kill", "8@1us"],
            "rank 8 is to break, and there are 8 ranks",
        ),
        (["--kill", "3@50"], "a time in ns, us, ms or s"),
        (["--cut", "s8:2"], "a time in ns, us, ms or s"),
        (["--kill", "3@-1us"], "a time in ns, us, ms or s"),
    ] {
        let out = sim(&[&args[..], &fault].concat());
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(2), "{fault:?}: {said}");
        assert!(said.contains(named), "{fault:?}: {said}");
    }
}

#[test]
fn a_plan_runs_every_combination_of_its_lists() {
    let dir = tempfile::tempdir().expect("a folder");
    let (file, svg) = (dir.path().join("plan.toml"), dir.path().join("a.svg"));
    let path = file.to_str().expect("text");
    let plan = "collectives = [\"all-reduce\", \"broadcast\"]\nranks = [2, 3, 5000]\n\
                sizes = [\"4K\", \"64K\"]\nloss = [0, 0.001]\nseeds = [7]\n";
    std::fs::write(&file, plan).expect("a file");
    let out = sim(&[
        "--plan",
        path,
        "--json",
        "--svg",
        svg.to_str().expect("text"),
    ]);
    // So many ranks are refused.
    assert_eq!(out.status.code(), Some(1), "{out:?}");
    let whole: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let points = whole["points"].as_array().expect("a list");
    assert_eq!(points.len(), 24);
    for point in points {
        assert_eq!(point["failed"].is_null(), point["ranks"] != 5000, "{point}");
    }
    // A point is what a run of its own is.
    let of = |p: &&Value| {
        p["collective"] == "broadcast"
            && p["ranks"] == 3
            && p["size_bytes"] == 65_536
            && p["loss"] == 0.0
    };
    let point = points.iter().find(of).expect("there is one");
    let alone = ["broadcast", "-R", "3", "-b", "64K", "-e", "64K", "--seed"];
    let alone = sim(&[&alone[..], &["7", "--json"]].concat());
    let alone: Value = serde_json::from_slice(&alone.stdout).expect("JSON");
    assert_eq!(point["hash"], alone["hash"]);
    assert_eq!(point["time_us"], alone["rows"][0]["time_us"]);
    let drawn = std::fs::read_to_string(&svg).expect("a picture");
    assert!(drawn.contains("broadcast, ranks 3, loss 0"), "{drawn}");

    let out = sim(&["--plan", path]);
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let rows: Vec<_> = text.lines().filter(|l| !l.starts_with('#')).collect();
    assert_eq!(rows.len(), 24, "{text}");
    let failed = rows
        .iter()
        .filter(|r| r.contains("failed: 5000 ranks cannot"));
    assert_eq!(failed.count(), 8, "{text}");
    let common = "\n# network one switch, profile ideal, algorithm auto, spray false, \
                  congestion window, repeat selective, udp ports 1, seed 7\n";
    assert!(text.contains(common), "{text}");
}

#[test]
fn what_is_wrong_with_a_plan_has_its_place() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("plan.toml");
    let path = file.to_str().expect("text");
    for (plan, named) in [
        (
            "sizes = []\ncollectives = []",
            "plan.toml:1:1: the lists make 0 points",
        ),
        (
            "sizes = [\"1K\"]\ncollectives = [\"scan\"]",
            "plan.toml:2:16: `scan` is not",
        ),
        (
            "sizes = [\"1K\"]\ncolectives = []",
            "plan.toml:2:1: unknown field `colectives`",
        ),
        (
            "sizes = [\"1K\"]\ncollectives = [\"reduce\"]\nprofiles = [\"a\"]",
            "plan.toml:3:13: there is no profile `a`",
        ),
        (
            "sizes = [\"1K\"]\ncollectives = [\"reduce\"]\ncongestions = [\"a\"]",
            "plan.toml:3:16: `a` is no congestion control",
        ),
        (
            "sizes = [\"1K\"]\ncollectives = [\"reduce\"]\nrepeats = [\"a\"]",
            "plan.toml:3:12: `a` is not; write selective or go-back-n",
        ),
        (
            "sizes = [1]\ncollectives = []",
            "plan.toml:1:10: invalid type: integer `1`",
        ),
    ] {
        std::fs::write(&file, plan).expect("a file");
        let out = sim(&["--plan", path]);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(2), "{plan}: {said}");
        assert!(said.contains(named), "{plan}: {said}");
    }
    for args in [
        &["all-reduce", "--plan", path][..],
        &["--plan", path, "--loss", "0"],
        &["--plan", path, "--kill", "1@1us"],
        &["--plan", path, "--trace", "a"],
    ] {
        let out = sim(args);
        assert_eq!(out.status.code(), Some(2), "{args:?}: {out:?}");
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(said.contains("cannot be used with"), "{args:?}: {said}");
    }
}

#[test]
fn what_is_not_simulated_is_refused_by_name() {
    for (args, named) in [
        (&["scan"][..], "`scan` is not simulated"),
        (&["all-reduce", "--profile", "fast"], "write one of ideal"),
        (
            &["--show-profile", "fast"],
            "there is no profile `fast`; write one of ideal",
        ),
        (&["--profile", "ideal"], "<COLLECTIVE>"),
        (&["all-reduce", "-R", "0"], "0 ranks cannot be simulated"),
        (&["all-reduce", "--loss", "1.5"], "a loss of 1.5"),
        (
            &["all-reduce", "-R", "4", "--slow", "4:2"],
            "rank 4 is to be 2 times slower, and there are 4 ranks",
        ),
        (
            &["all-reduce", "-R", "4", "--slow", "1:0.5"],
            "give a factor of 1 or more",
        ),
        (
            &["all-reduce", "--slow", "3@2"],
            "write a rank and a factor",
        ),
        (&["all-reduce", "-b", "2", "-e", "2"], "2 bytes are less"),
    ] {
        let out = sim(args);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(named), "{args:?}: {said}");
    }
}

/// Seven ranks send to one at once, over a switch that marks.
#[test]
fn reports_say_what_switches_and_nics_did() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("marks.toml");
    let profile = "source = \"a test\"\n[link]\nrate_gbps = 100\ndelay_ns = 1000\n[switch]\n\
                   output_bytes = 16777216\nmark_min_bytes = 50000\nmark_max_bytes = 90000\n\
                   pause_bytes = 200000\nresume_bytes = 100000\n[nic]\nmtu_bytes = 9000\n";
    std::fs::write(&file, profile).expect("a file");
    let path = file.to_str().expect("text");
    let incast = [
        "reduce",
        "-R",
        "8",
        "-b",
        "1M",
        "-e",
        "1M",
        "--algo",
        "flat",
        "--profile",
        path,
    ];
    let out = sim(&[&incast[..], &["--congestion", "fixed", "--json"]].concat());
    let report: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    for count in ["marked", "pauses", "deepest_queue_bytes"] {
        assert!(report[count].as_u64() > Some(0), "{count}: {report}");
    }
    assert_eq!(report["congestion"], "fixed");
    let out = sim(&[
        &incast[..],
        &["--congestion", "dcqcn", "--repeat", "go-back-n"],
    ]
    .concat());
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(
        text.contains("congestion dcqcn, repeat go-back-n\n"),
        "{text}"
    );
    assert!(text.contains(" marked, "), "{text}");
}

#[test]
fn a_figure_has_the_papers_numbers_beside_ours_and_says_why_they_differ() {
    let dir = tempfile::tempdir().expect("a folder");
    let folder = dir.path().join("new/pictures");
    let path = folder.to_str().expect("text");
    let out = sim(&["figures", "fpganic-5a", "acclplus-13-8k", "--svg", path]);
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let rows: Vec<Vec<_>> = text
        .lines()
        .filter(|l| !l.starts_with('#'))
        .map(|l| l.split_whitespace().collect())
        .collect();
    assert_eq!(rows.len(), 6 + 7, "{text}");
    assert_eq!((rows[0][3], rows[3][3]), ("3.10", "-"), "{text}");
    let number = |cell: &str| cell.parse::<f64>().expect("a number");
    let ratio = number(rows[0][4]) / number(rows[0][3]);
    assert!((ratio - number(rows[0][5])).abs() < 0.02, "{text}");
    assert_eq!(text.matches("# differs by more than 15%").count(), 1);
    for name in ["fpganic-5a", "acclplus-13-8k"] {
        let svg = std::fs::read_to_string(folder.join(format!("{name}.svg"))).expect("a picture");
        let has_theirs = svg.contains(">\nstated\n<");
        assert_eq!(has_theirs, name == "fpganic-5a", "{svg}");
    }

    let out = sim(&["figures", "fpganic-5a", "--json"]);
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    let report: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let figure = &report["figures"][0];
    assert_eq!(
        (&figure["profile"], &figure["points"][0]["theirs"]),
        (&"fpganic".into(), &3.1.into())
    );
    assert!(figure["points"][3]["theirs"].is_null(), "{report}");
    assert!(figure["differs"].is_string(), "{report}");
}

#[test]
fn a_calibrated_profile_is_used_and_takes_as_long_as_what_was_measured() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("soft.toml");
    let path = file.to_str().expect("text");
    let out = sim(&["calibrate", "-n", "3", "--output", path]);
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let rows = text.lines().filter(|l| !l.starts_with('#'));
    let rows: Vec<Vec<_>> = rows.map(|l| l.split_whitespace().collect()).collect();
    let sizes: Vec<_> = rows.iter().map(|r| r[0]).collect();
    assert_eq!(sizes, ["8", "64K", "256K", "1M", "4M"], "{text}");
    assert!(text.contains("# from 64K on it "), "{text}");
    let ring = ["all-reduce", "--algo", "ring", "-b", "1M", "-e", "1M"];
    let out = sim(&[&ring[..], &["--json", "--profile", path]].concat());
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    let report: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let time = report["rows"][0]["time_us"].as_f64().expect("a time");
    assert_eq!(format!("{time:.2}"), rows[3][2], "{text}");
}

#[test]
fn figures_are_listed_and_unknown_ones_are_refused_with_the_list() {
    let out = sim(&["figures"]);
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    let list = String::from_utf8_lossy(&out.stdout).into_owned();
    for named in ["fpganic-8 ", "fpganic-3 ", "# not simulated, and why"] {
        assert!(list.contains(named), "{named}: {list}");
    }
    for (args, named) in [
        (&["figures", "fpganic-80"][..], "fpganic-8"),
        (&["figures", "fpganic-3"], "reads of registers over PCIe"),
        (&["figures", "--json"], "<NAME>"),
    ] {
        let out = sim(args);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(named), "{args:?}: {said}");
    }
}
