//! `ringbell routes`: what it prints, writes and refuses, over files.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

fn routes(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringbell"));
    let done = command.arg("routes").args(args).output();
    done.expect("the program starts")
}

/// Standard output of a success.
fn printed(args: &[&str]) -> String {
    let out = routes(args);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(0), "{args:?}: {said}");
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// Standard error of a refusal.
fn refused(args: &[&str]) -> String {
    let out = routes(args);
    assert_eq!(out.status.code(), Some(2), "{args:?}");
    String::from_utf8_lossy(&out.stderr).into_owned()
}

fn file(name: &str, content: &str) -> String {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, content).expect("a file");
    path.display().to_string()
}

#[test]
fn routes_are_printed_with_hops_channels_loads_and_the_proof() {
    let text = printed(&["ring:5"]);
    for part in [
        "ring:5: 5 NICs, 5 wires, 2 at a node at most",
        "1.50 on average, 2 at most (pairs by hops: 1: 10, 2: 10)",
        "4 of 8 a wire: requests 0, 1; acknowledgements 2, 3",
        "3 pairs on the busiest link",
        "no circle: each of 28 channels",
        "n4:1 -- n0:0         3         3",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let few = printed(&["ring:5", "--channels", "2", "--check"]);
    for part in [
        "bubble: shortest",
        "4 rings",
        "20 pairs walked",
        "n0:1#0 n1:1#0 n2:1#0",
    ] {
        assert!(few.contains(part), "{part}: {few}");
    }
    let cut = printed(&["ring:5", "--without", "n0:0"]);
    assert!(cut.contains("14 of 20 pairs have the same path"), "{cut}");
}

#[test]
fn a_tree_is_printed_with_its_wires_channels_and_the_proof() {
    let text = printed(&["ring:5", "--tree", "n0"]);
    for part in [
        "of n0 to 4 members in channel 4: 4 wires, each once, 2 deep; 6 when each member",
        "channels 4, 5 for 5 roots; no circle: each of 14 channels",
        "a place for each of 32 segments of each neighbour, so that none waits in a channel; no circle with 60",
        "\n    n1  by n0:1 -> n1:0\n      n2  by n1:1 -> n2:0\n",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let picture = file("tree.svg", "");
    let some = printed(&[
        "torus:4x4",
        "--tree",
        "n5",
        "--members",
        "n0,n3",
        "--json",
        "--svg",
        &picture,
    ]);
    let json: Value = serde_json::from_str(&some).expect("JSON");
    let tree = &json["tree"];
    assert_eq!(tree["root"], "n5");
    assert_eq!(tree["members"], serde_json::json!(["n0", "n3"]));
    let links = tree["links"].as_array().expect("a list");
    assert!(links.iter().any(|l| l[1] == "n3:3"), "{tree}");
    assert_eq!(tree["singly"], 5);
    assert_eq!(links.len(), 3);
    assert_eq!(tree["order"].as_array().map(Vec::len), Some(124));
    // Each link of each tree has three.
    assert_eq!(tree["sum_dependencies"], 3 * 16 * 15);
    let svg = std::fs::read_to_string(&picture).expect("it was drawn");
    assert_eq!(svg.matches("stroke=\"#1E8246\"").count(), links.len());
    assert!(printed(&["torus:4x4", "--json"]).find("\"tree\"").is_none());
}

#[test]
fn tables_are_written_read_again_and_refused_when_they_were_changed() {
    let path = file("routes.json", "");
    let picture = file("routes.svg", "");
    printed(&["torus:3x4", "--json", &path, "--svg", &picture]);
    let text = std::fs::read_to_string(&path).expect("it was written");
    let read = printed(&["torus:3x4", "--table", &path]);
    let mut document: Value = serde_json::from_str(&text).expect("JSON");
    assert!(
        read.contains(document["digest"].as_str().expect("a digest")),
        "{read}"
    );
    let again: Value =
        serde_json::from_str(&printed(&["torus:3x4", "--table", &path, "--json"])).expect("JSON");
    assert_eq!(again["next"], document["next"]);
    assert_eq!(again["proof"], document["proof"]);
    let svg = std::fs::read_to_string(&picture).expect("it was drawn");
    assert_eq!(svg.matches("<polyline").count(), 24);
    assert!(svg.contains("n11"), "{svg}");

    // Another network; a node without a route; acknowledgements on the requests' channel.
    let other = refused(&["torus:4x3", "--channels", "1", "--table", &path]);
    assert!(other.contains("the tables name"), "{other}");
    let other = refused(&["ring:5", "--table", &path]);
    assert!(other.contains("other ones than those of ring:5"), "{other}");
    let sound = document.clone();
    document["next"][1][0] = Value::Null;
    let back = file("back.json", &document.to_string());
    let said = refused(&["torus:3x4", "--table", &back]);
    assert!(
        said.contains("from n1 to n0: n1 has no route there"),
        "{said}"
    );
    document = sound;
    document["channels"]["acknowledgements"] = document["channels"]["requests"].clone();
    let shared = file("shared.json", &document.to_string());
    let said = refused(&["torus:3x4", "--table", &shared]);
    assert!(said.contains("depend on each other in a circle"), "{said}");
    document["next"] = Value::Array(Vec::new());
    let short = file("short.json", &document.to_string());
    let said = refused(&["torus:3x4", "--table", &short]);
    assert!(said.contains("`next` has 0 rows for 12 nodes"), "{said}");
    let cut = file("cut.json", &text[..text.len() / 2]);
    assert!(refused(&["torus:3x4", "--table", &cut]).contains("cut.json:1:"));
}

#[test]
fn files_have_names_rates_and_delays_and_errors_their_line() {
    let ours = file(
        "lab.json",
        r#"{"name": "lab", "nodes": ["a", "b", {"name": "middle", "switch": true}],
            "wires": [{"ends": ["a:0", "middle:0"], "gbps": 40, "delay_ns": 120},
                      {"ends": ["b:0", "middle:1"], "gbps": 10, "delay_ns": 100}]}"#,
    );
    let text = printed(&[&ours]);
    for part in [
        "lab: 2 NICs and 1 switch,",
        "wires delay 220 ns at most",
        "10.00",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let smi = file(
        "smi.json",
        r#"{"connections": {"x:acl0:ch0": "y:acl0:ch1"}}"#,
    );
    assert!(printed(&[&smi]).contains("x:acl0:0 -- y:acl0:1"));
    let twice = file("twice.json", "{\"a:0\": \"b:0\",\n \"c:0\": \"b:0\"}");
    let said = refused(&[&twice]);
    assert!(
        said.contains("twice.json:2:14: port 0 of b is used twice"),
        "{said}"
    );
}
