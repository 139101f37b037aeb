//! `ringbell sim trace`: its report, what it refuses, and what a trace does wrong.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn ringbell(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringbell"));
    command.args(args).output().expect("the program starts")
}

fn trace(file: &Path, args: &[&str]) -> Output {
    let file = file.to_str().expect("text");
    ringbell(&[&["sim", "trace", file], args].concat())
}

/// A file in a folder that lives as long as this does.
fn written(text: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("t.goal");
    std::fs::write(&file, text).expect("written");
    (dir, file)
}

/// What it said in place of a report.
fn refused(text: &str, args: &[&str], code: i32) -> String {
    let (_dir, file) = written(text);
    let out = trace(&file, args);
    assert_eq!(out.status.code(), Some(code), "{out:?}");
    String::from_utf8_lossy(&out.stderr).into_owned()
}

const PING_PONG: &str = "num_ranks 2\nrank 0 {\nl1: calc 5000\nl2: send 65537b to 1 tag 3\n\
                         l2 requires l1\nl3: recv 8b from 1 tag 4\n}\nrank 1 {\n\
                         l1: recv 65537b from -1 tag -1\nl2: send 8b to 0 tag 4\nl2 requires l1\n}\n";

#[test]
fn a_trace_prints_the_ends_of_its_ranks_and_its_bytes() {
    let (_dir, file) = written(PING_PONG);
    let out = trace(&file, &[]);
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let rows: Vec<Vec<&str>> = text
        .lines()
        .filter(|l| !l.starts_with('#'))
        .map(|l| l.split_whitespace().collect())
        .collect();
    assert_eq!(rows.len(), 2, "{text}");
    assert_eq!(rows[0][..2], ["0", "3"], "{text}");
    assert!(text.contains("2 messages, 65545 bytes, 0 wrong"), "{text}");

    let out = trace(
        &file,
        &["--json", "--topology", "fat-tree:2x2", "--seed", "7"],
    );
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    let json: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    assert_eq!(
        (&json["messages"], &json["bytes"]),
        (&2.into(), &65_545.into())
    );
    assert_eq!(
        (&json["wrong"], &json["trouble"]),
        (&0.into(), &Value::Null)
    );
    let ends = json["ends_us"].as_array().expect("a list");
    assert_eq!((ends.len(), &ends[0]), (2, &json["time_us"]));
    // The calculation, and two messages over at least two links.
    assert!(json["time_us"].as_f64() > Some(9.0), "{json}");
}

#[test]
fn a_timeline_shows_the_operations_of_a_trace() {
    let (dir, file) = written(PING_PONG);
    let timeline = dir.path().join("timeline.json");
    let out = trace(&file, &["--trace", timeline.to_str().expect("text")]);
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    let text = std::fs::read(&timeline).expect("a file");
    let json: Value = serde_json::from_slice(&text).expect("JSON");
    let entries = json["traceEvents"].as_array().expect("a list");
    let named = |name: &str| entries.iter().find(|e| e["name"] == name).expect(name);
    assert_eq!(named("l1: calc 5000")["dur"], 5.0);
    let (send, receive) = (
        named("l2: send 65537b to 1 tag 3"),
        named("l3: recv 8b from 1 tag 4"),
    );
    // The receive is there from the begin on, beside the others.
    assert_ne!(send["tid"], receive["tid"]);
    let begin = |e: &Value| e["ts"].as_f64().expect("a time");
    assert!(begin(receive) + 4.9 < begin(send), "{receive} {send}");
}

#[test]
fn a_wrong_trace_is_refused_by_its_place() {
    let said = refused("num_ranks 2\nrank 0 {\nsend 5b too 1\n}\n", &[], 2);
    assert!(said.contains("t.goal:3:9: `too`, expected `to`"), "{said}");
    let said = refused("num_ranks 1\nrank 0 {\ncalc 5\n}\n", &[], 2);
    assert!(said.contains("1 ranks cannot be simulated"), "{said}");
    assert!(said.contains("give 2 to 4096"), "{said}");
    let huge = "num_ranks 2\nrank 0 {\nsend 99999999999b to 1\n}\n";
    assert!(refused(huge, &[], 2).contains("16 GiB"));
    let said = refused(PING_PONG, &["--kill", "2@5us"], 2);
    assert!(said.contains("rank 2 is to break"), "{said}");
    let none = ringbell(&["sim", "trace", "/nonexistent.goal"]);
    assert_eq!(none.status.code(), Some(2), "{none:?}");
}

#[test]
fn what_never_ends_is_named() {
    let text = "num_ranks 2\nrank 0 {\na: recv 8b from 1 tag 4\nb: calc 5\nb requires a\n}\n";
    let said = refused(text, &[], 1);
    let wanted = "rank 0, line 3: a: recv 8b from 1 tag 4: rank 1 has no send left for it";
    assert!(said.contains(wanted), "{said}");
    assert!(said.contains("1 behind them have not begun"), "{said}");

    let text = "num_ranks 2\nrank 0 {\nsend 8b to 1 tag 4\n}\n";
    let said = refused(text, &[], 1);
    assert!(
        said.contains("rank 0, line 3: send 8b to 1 tag 4: no receive has met it"),
        "{said}"
    );
}

#[test]
fn the_program_of_a_collective_is_written_as_a_trace_and_runs() {
    let collective = [
        "explain",
        "all-reduce",
        "-R",
        "4",
        "--algo",
        "ring",
        "--size",
        "4K",
    ];
    let out = ringbell(&[&collective[..], &["--goal"]].concat());
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    let (_dir, file) = written(&String::from_utf8_lossy(&out.stdout));
    let told = ringbell(&[&collective[..], &["--json"]].concat());
    let told: Value = serde_json::from_slice(&told.stdout).expect("JSON");
    let out = trace(&file, &["--json"]);
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    let json: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    assert_eq!(json["messages"], told["messages"]);
    // Each rank of a ring sends as much as the others.
    let of_one = told["bytes_per_rank"].as_u64().expect("bytes");
    assert_eq!(json["bytes"], 4 * of_one);

    let out = ringbell(&[
        "explain",
        "all-reduce",
        "-R",
        "4",
        "--algo",
        "direct",
        "--goal",
    ]);
    assert_eq!(out.status.code(), Some(2), "{out:?}");
}

#[test]
fn a_connection_matrix_runs_on_its_tree_and_says_what_its_flows_took() {
    let (dir, file) = written(
        "Nodes 4\nConnections 2\n0->3 id 1 start 0 size 70000\n1->3 start 5000000 size 8\n",
    );
    let tree = dir.path().join("four.topo");
    let text = "Nodes 4\nTiers 2\nPodsize 4\nTier 0\nDownlink_speed_Gbps 100\nRadix_Down 2\nRadix_Up 2\n\
                Downlink_Latency_ns 1000\nTier 1\nDownlink_speed_Gbps 100\nRadix_Down 2\nDownlink_Latency_ns 1000\n";
    std::fs::write(&tree, text).expect("written");
    let tree = tree.to_str().expect("text");
    let out = trace(&file, &["--topology", tree]);
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(
        text.contains("# network four: 4 hosts, 4 switches"),
        "{text}"
    );
    assert!(text.contains("# a message took 4."), "{text}");
    let out = trace(&file, &["--topology", tree, "--json"]);
    let json: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let flows = json["deliveries"].as_array().expect("a list");
    let late = flows.iter().find(|f| f["line"] == 4).expect("line 4");
    assert_eq!(
        (&late["from"], &late["to"]),
        (&Value::from(1), &Value::from(3))
    );
    assert_eq!(late["begin_us"], 5.0);
    let said = refused("Nodes 4\n0->4 start 0 size 8\n", &[], 2);
    assert!(said.contains("t.goal:2:1: `0->4`, expected"), "{said}");
}

#[test]
fn chakras_files_are_found_by_the_first_of_them() {
    let dir = tempfile::tempdir().expect("a folder");
    // An empty `GlobalMetadata`; then node 5, `sum`, a collective (7) with attributes comm_type 0
    // and comm_size 4096.
    let node = b"\x08\x05\x12\x03sum\x18\x07\x52\x0d\x0a\x09comm_type\x48\x00\x52\x0e\x0a\x09comm_size\x48\x80\x20";
    let mut bytes = vec![0, node.len() as u8];
    bytes.extend(node);
    for rank in 0..3 {
        let file = dir.path().join(format!("job.{rank}.et"));
        std::fs::write(file, &bytes).expect("written");
    }
    let first = dir.path().join("job.0.et");
    let out = trace(&first, &[]);
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(
        text.contains("0 messages, 0 bytes, 3 ends of collectives, 0 wrong"),
        "{text}"
    );
    std::fs::write(dir.path().join("job.2.et"), &bytes[..9]).expect("written");
    let out = trace(&first, &[]);
    assert_eq!(out.status.code(), Some(2), "{out:?}");
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(
        said.contains("job.2.et: no message at byte 1, or the file ends in it"),
        "{said}"
    );
    std::fs::remove_file(dir.path().join("job.1.et")).expect("removed");
    let out = trace(&first, &[]);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(said.contains("job.1.et"), "{said}");
}

#[test]
fn the_program_of_a_collective_is_written_for_other_simulators() {
    let dir = tempfile::tempdir().expect("a folder");
    let name = dir.path().join("ring");
    let name = name.to_str().expect("text");
    let collective = [
        "explain",
        "all-reduce",
        "-R",
        "3",
        "--algo",
        "ring",
        "--size",
        "6000",
    ];
    let out = ringbell(&[&collective[..], &["--chakra", name]].concat());
    assert_eq!(
        (out.status.code(), out.stdout.len()),
        (Some(0), 0),
        "{out:?}"
    );
    let report = |file: &Path| -> Value {
        let out = trace(file, &["--json"]);
        assert_eq!(out.status.code(), Some(0), "{out:?}");
        serde_json::from_slice(&out.stdout).expect("JSON")
    };
    let chakra = report(&PathBuf::from(format!("{name}.0.et")));
    let goal = ringbell(&[&collective[..], &["--goal"]].concat());
    let (_dir, file) = written(&String::from_utf8_lossy(&goal.stdout));
    let goal = report(&file);
    assert_eq!(
        (&chakra["hash"], &chakra["messages"]),
        (&goal["hash"], &Value::from(12))
    );

    let out = ringbell(&[&collective[..], &["--msccl"]].concat());
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(
        text.starts_with("<algo name=\"ringbell-ring\" proto=\"Simple\""),
        "{text}"
    );
    assert_eq!(text.matches("<gpu id=").count(), 3, "{text}");
    let out = ringbell(&["explain", "barrier", "--msccl"]);
    assert_eq!(out.status.code(), Some(2), "{out:?}");
}
