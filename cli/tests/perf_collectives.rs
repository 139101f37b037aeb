//! Tests of `ringbell perf all-reduce` and the other collectives: each verified, with every kind of
//! rank.

use crate::common;

use std::process::Command;

use common::{run, text};

fn perf(args: &[&str]) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_ringbell"));
    c.arg("perf").args(args).env_remove("RINGBELL_RANK");
    c
}

/// Small, odd and few: this tests the report, not the speed.
const QUICK: [&str; 11] = [
    "-b",
    "4",
    "-e",
    "4K",
    "-f",
    "32",
    "-n",
    "2",
    "-w",
    "1",
    "--no-limits",
];

#[test]
fn every_collective_moves_the_right_data_among_three_threads() {
    for kind in [
        "all-reduce",
        "reduce-scatter",
        "all-gather",
        "broadcast",
        "reduce",
        "all-to-all",
        "gather",
        "scatter",
        "barrier",
        "send-recv",
    ] {
        let flags = match kind {
            // It has no sizes, and refuses them.
            "barrier" => &QUICK[6..],
            _ => &QUICK[..],
        };
        let out = run(perf(&[kind, "-R", "3", "--threads"]).args(flags));
        let said = text(&out);
        assert_eq!(out.status.code(), Some(0), "{kind}: {said}");
        assert!(said.contains("busbw"), "{kind}: {said}");
        assert!(said.contains("0 OK"), "{kind}: {said}");
    }
}

/// The same default for the operations that a measurement needs besides the one it measures.
#[test]
fn algorithms_and_wire_types_run_where_they_exist_and_are_refused_elsewhere() {
    for args in [
        &["all-reduce", "--algo", "tree"][..],
        &["all-reduce", "--algo", "ring", "--from-kernel"],
        &["gather", "--algo", "tree", "--transport", "tcp"],
        &["all-reduce", "--transport", "rdma"],
        &["all-reduce", "--transport", "rdma", "--port", "roce"],
        &["all-to-all", "--transport", "rdma", "--from-kernel"],
        &["all-reduce", "--transport", "iwarp"],
        &["all-reduce", "--transport", "udp"],
        &["all-reduce", "--transport", "udp", "--port", "roce"],
        &["broadcast", "--algo", "chain"],
        &["all-reduce", "--algo", "all-gather-reduce"],
        &["all-reduce", "--algo", "recursive-doubling", "-d", "i32"],
        &["all-reduce", "--wire", "bf16"],
        &["reduce-scatter", "--wire", "f16", "-o", "prod"],
        &["all-reduce", "--wire", "bf16", "--from-kernel"],
    ] {
        let out = run(perf(args).args(["-R", "3", "--threads"]).args(QUICK));
        let said = text(&out);
        assert_eq!(out.status.code(), Some(0), "{args:?}: {said}");
        assert!(said.contains("0 OK"), "{args:?}: {said}");
    }
    let by_hosts = ["--algo", "hierarchical", "--set", "host_ranks=2"];
    for (kind, ranks, code) in [
        ("all-reduce", "4", 0),
        ("all-reduce", "3", 2),
        ("all-gather", "4", 0),
        ("reduce-scatter", "4", 0),
        ("broadcast", "4", 0),
        ("reduce", "4", 0),
        ("reduce", "3", 2),
        ("all-to-all", "4", 2),
    ] {
        let mut collective = perf(&[kind, "-R", ranks, "--threads"]);
        let out = run(collective.args(by_hosts).args(QUICK));
        assert_eq!(out.status.code(), Some(code), "{kind}: {}", text(&out));
    }
    for (args, why) in [
        (
            ["all-reduce", "--algo", "chain"],
            "all-reduce has no algorithm chain",
        ),
        (["all-reduce", "--wire", "f16"], "--wire is for f32"),
        (["send-recv", "--algo", "ring"], "leave --algo away"),
    ] {
        let out = run(perf(&args).args(["-d", "i32"]).args(QUICK));
        let said = text(&out);
        assert_eq!(out.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(why), "{args:?}: {said}");
    }
}

/// The thresholds lie where the transports and the settings have them.
#[test]
fn the_protocol_of_each_size_is_explained() {
    let sizes = ["-b", "16K", "-e", "80K", "-i", "32K", "-n", "2", "-w", "1"];
    let explained = |args: &[&str]| {
        let out = run(perf(args)
            .args(["-R", "2", "--threads", "--no-limits", "--explain-protocol"])
            .args(sizes));
        let said = text(&out);
        assert_eq!(out.status.code(), Some(0), "{args:?}: {said}");
        let of = |line: &str| {
            let mut words = line.strip_prefix("# ")?.split_whitespace();
            let (bytes, unit) = (words.next()?, words.next()?);
            let is_line = unit == "B" && bytes.parse::<u64>().is_ok();
            is_line.then(|| words.next().unwrap_or("").to_owned())
        };
        let chosen: Vec<String> = said.lines().filter_map(of).collect();
        (chosen, said)
    };
    for (args, expected, why) in [
        (
            &["all-reduce", "--transport", "rdma", "--algo", "ring"][..],
            ["eager", "written", "written"],
            "announcing a receive costs 32768",
        ),
        (
            &["send-recv", "--transport", "rdma"],
            ["eager", "eager", "rendezvous"],
            "receives of any message are not announced",
        ),
        (
            &["send-recv", "--transport", "tcp", "--set", "eager_max=20K"],
            ["eager", "rendezvous", "rendezvous"],
            "The peer's buffers have 20480 bytes",
        ),
        (
            &["send-recv", "--transport", "local"],
            ["rendezvous", "rendezvous", "rendezvous"],
            "asking for a receive costs 8192",
        ),
    ] {
        let (chosen, said) = explained(args);
        assert_eq!(chosen, expected, "{args:?}: {said}");
        assert!(said.contains(why), "{args:?}: {said}");
    }
}

#[test]
fn kernels_streams_carry_every_operation_that_can_have_them() {
    for (kind, more) in [
        ("all-reduce", ["-d", "bf16"]),
        ("broadcast", ["-r", "1"]),
        ("reduce", ["-d", "u8"]),
        ("send-recv", ["-d", "f64"]),
    ] {
        // Several windows with a shorter last one, and several rings.
        let out = run(
            perf(&[kind, "-R", "3", "--threads", "--streams", "--ring", "4K"])
                .args(more)
                .args(["--set", "stream_bytes=1K"])
                .args([
                    "-b", "8", "-e", "20008", "-i", "20000", "-n", "2", "-w", "1",
                ])
                .arg("--no-limits"),
        );
        let said = text(&out);
        assert_eq!(out.status.code(), Some(0), "{kind}: {said}");
        for word in [
            "kernels' streams, 4096 bytes of ring each, windows of 1024 bytes",
            "0 OK",
            " 20008 ",
        ] {
            assert!(said.contains(word), "{kind}: {word}: {said}");
        }
    }
}

#[test]
fn settings_of_a_communicator_are_set_by_name_and_held_against_each_other() {
    let over = ["all-reduce", "--threads", "--transport", "tcp"];
    let out = run(perf(&over).args(QUICK).args(["--set", "whole_sources=0"]));
    let said = text(&out);
    assert_eq!(out.status.code(), Some(0), "{said}");
    assert!(said.contains("pairwise"), "not by whole sources: {said}");
    for (setting, why) in [
        (
            "whole_sources=1M",
            "all_reduce_ring is 262144 bytes, below whole_sources",
        ),
        ("segment=1", "segment_bytes"),
        ("segment_bytes=65", "multiple of 64"),
    ] {
        let out = run(perf(&over).args(QUICK).args(["--set", setting]));
        let said = text(&out);
        assert_eq!(out.status.code(), Some(2), "{setting}: {said}");
        assert!(said.contains(why), "{setting}: {said}");
    }
    let out = run(perf(&["all-gather", "--streams"]).args(QUICK));
    let said = text(&out);
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(said.contains("a stream stands for one block"), "{said}");
}

#[test]
fn processes_types_reductions_and_kernels_are_in_the_report() {
    let out = run(perf(&[
        "all-reduce",
        "-d",
        "bf16",
        "-o",
        "prod",
        "--from-kernel",
        "--dedicated",
        "--json",
        "-",
    ])
    .args(QUICK));
    assert_eq!(out.status.code(), Some(0), "{}", text(&out));
    let json: serde_json::Value = serde_json::from_slice(&out.stdout).expect("one JSON object");
    let meta = &json["meta"];
    assert_eq!(meta["benchmark"], "all-reduce");
    assert_eq!(
        (&meta["transport"], &meta["progress"]),
        (&"local".into(), &"dedicated".into())
    );
    assert_eq!(meta["ranks"], 2);
    let notes = meta["notes"].to_string();
    assert!(
        notes.contains("a kernel posts") && notes.contains("bytes of NIC memory"),
        "{notes}"
    );
    // The thread of the NIC works; a waiting thread only polls.
    assert!(notes.contains(" 0 steps by waiting threads"), "{notes}");
    let rows = json["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 6, "three sizes, out of place and in place");
    assert!(rows.iter().all(|r| r["wrong"] == 0));
}

#[test]
fn ranks_of_a_launcher_measure_over_tcp_and_one_of_them_reports() {
    let mut c = Command::new(env!("CARGO_BIN_EXE_ringbell"));
    c.args([
        "run",
        "-n",
        "2",
        "--transport",
        "tcp",
        "--",
        env!("CARGO_BIN_EXE_ringbell"),
    ])
    .args(["perf", "all-gather"])
    .args(QUICK);
    let out = run(&mut c);
    let said = text(&out);
    assert_eq!(out.status.code(), Some(0), "{said}");
    assert_eq!(said.matches("busbw").count(), 2, "one table: {said}");
    assert!(said.contains("transport: tcp"), "{said}");
}

#[test]
fn a_launcher_with_another_number_of_ranks_is_refused() {
    let ranks = |asked: &str| {
        let program = env!("CARGO_BIN_EXE_ringbell");
        let mut c = Command::new(program);
        c.args(["run", "-n", "2", "--", program, "perf", "barrier"]);
        run(c.args(["-R", asked]).args(&QUICK[6..]))
    };
    let out = ranks("3");
    let said = text(&out);
    assert_ne!(out.status.code(), Some(0), "{said}");
    assert!(said.contains("-R 3 asks for 3 rank(s)"), "{said}");
    assert!(said.contains("the launcher has started 2"), "{said}");
    let out = ranks("2");
    assert_eq!(out.status.code(), Some(0), "{}", text(&out));
}

#[test]
fn impossible_measurements_are_refused_with_advice() {
    for args in [
        &["all-reduce", "-d", "f8"][..],
        &["all-reduce", "-o", "avg"],
        &["broadcast", "--root", "2"],
        &["send-recv", "-R", "1"],
        &["all-reduce", "--algo", "magic"],
    ] {
        let out = run(&mut perf(args));
        assert_eq!(out.status.code(), Some(2), "{args:?}: {}", text(&out));
    }
}

/// Parts of 16 KiB and more go to receives that the peer has exposed.
#[test]
fn long_messages_over_the_kernels_tcp_arrive() {
    let args = ["all-reduce", "--transport", "iwarp", "-R", "3", "--threads"];
    let sizes = [
        "-b",
        "3000",
        "-e",
        "2M",
        "-f",
        "20",
        "-n",
        "3",
        "-w",
        "1",
        "--no-limits",
    ];
    let out = run(perf(&args).args(sizes));
    let said = text(&out);
    assert_eq!(out.status.code(), Some(0), "{said}");
    assert!(said.contains("0 OK"), "{said}");
}
