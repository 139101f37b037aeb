//! Timelines: their order, their sums, and that they change nothing.

use std::collections::BTreeMap;

use ringbell_nic_abi::CollectiveKind;
use ringbell_routes::generate::generate;
use ringbell_sim::{
    run, run_watched, Breaks, Cluster, Failure, Fault, Plan, Profile, Report, Watch,
};
use serde_json::Value;

use crate::bytes::Bytes;

fn plan() -> Plan {
    let profile = Profile::by_name("ideal").expect("it exists");
    let cluster = Cluster {
        loss: 0.01,
        seed: 5,
        ..Cluster::new(4, profile)
    };
    Plan {
        sizes: vec![1 << 10, 256 << 10],
        ..Plan::new(CollectiveKind::AllToAll, cluster, 0)
    }
}

/// The report, and the entries of the timeline.
fn watched(plan: &Plan) -> (Report, Vec<Value>) {
    let file = Bytes::default();
    let report = run_watched(plan, Watch::default().timeline(file.clone()));
    let trace: Value = serde_json::from_slice(&file.all()).expect("JSON");
    let entries = trace["traceEvents"].as_array().expect("a list").clone();
    (report.expect("it ends"), entries)
}

fn number(entry: &Value, key: &str) -> f64 {
    entry[key].as_f64().expect("a number")
}

fn bytes(entry: &Value) -> u64 {
    entry["args"]["bytes"].as_u64().expect("bytes")
}

/// Names of tracks of a group.
fn tracks(entries: &[Value], pid: u64) -> BTreeMap<u64, String> {
    let named = entries
        .iter()
        .filter(|e| e["name"] == "thread_name" && e["pid"] == pid);
    let name = |e: &Value| e["args"]["name"].as_str().expect("a name").to_owned();
    named
        .map(|e| (e["tid"].as_u64().expect("a track"), name(e)))
        .collect()
}

#[test]
fn a_timeline_has_every_frame_and_changes_nothing() {
    let (report, entries) = watched(&plan());
    assert_eq!(watched(&plan()), (report.clone(), entries.clone()));
    assert_eq!(run(&plan()).expect("it ends"), report);
    assert!(report.counts.lost > 0, "{report:?}");

    let times: Vec<_> = entries.iter().map(|e| number(e, "ts")).collect();
    assert!(times.is_sorted());
    let links = tracks(&entries, 2);
    let of_nic = |e: &&Value| links[&e["tid"].as_u64().expect("a link")].ends_with("to switch");
    let sent = entries.iter().filter(|e| e["name"] == "frame");
    let sent: Vec<_> = sent.filter(of_nic).map(bytes).collect();
    assert_eq!(sent.len() as u64, report.counts.packets);
    assert_eq!(sent.iter().sum::<u64>(), report.counts.bytes);
    let lost = entries.iter().filter(|e| e["name"] == "lost");
    assert_eq!(lost.count() as u64, report.counts.lost);
}

#[test]
fn frames_of_a_link_follow_each_other_and_operations_take_as_reported() {
    let (report, entries) = watched(&plan());
    let lasting = entries.iter().filter(|e| e["ph"] == "X");
    let mut free: BTreeMap<(u64, u64), f64> = BTreeMap::new();
    let mut longest: BTreeMap<String, f64> = BTreeMap::new();
    for entry in lasting {
        let track = ["pid", "tid"].map(|k| entry[k].as_u64().expect("a track"));
        let (begin, took) = (number(entry, "ts"), number(entry, "dur"));
        let free = free.entry(track.into()).or_default();
        // Microseconds are floating-point numbers.
        assert!(begin >= *free - 1e-6, "{entry}");
        *free = begin + took;
        if track[0] == 1 {
            let name = entry["name"].as_str().expect("a name").to_owned();
            let longest = longest.entry(name).or_default();
            *longest = longest.max(took);
        }
    }
    for size in &report.sizes {
        let took = longest[&format!("AllToAll, {} bytes", size.bytes)];
        let reported = size.time_ns as f64 / 1e3;
        assert!((took - reported).abs() < 2e-3, "{took}, not {reported}");
    }
    assert!(longest["meet"] > 0.0);
}

#[test]
fn what_waits_at_an_output_is_counted_until_it_has_left() {
    // At times several ranks send to one.
    let mut plan = plan();
    plan.kind = CollectiveKind::Reduce;
    let (_, entries) = watched(&plan);
    let mut waiting: BTreeMap<&str, u64> = BTreeMap::new();
    let mut most = 0;
    for entry in entries.iter().filter(|e| e["ph"] == "C") {
        let name = entry["name"].as_str().expect("a name");
        waiting.insert(name, bytes(entry));
        most = most.max(bytes(entry));
    }
    assert!(most > 4_000, "a long frame at least: {most}");
    assert!(waiting.values().all(|b| *b == 0), "{waiting:?}");
    assert!(waiting.keys().all(|n| n.starts_with("switch to rank ")));
}

#[test]
fn links_of_a_topology_have_the_names_of_its_nodes() {
    let mut plan = plan();
    let topology = generate("fat-tree:2x2").expect("a network");
    let other = topology.nodes().last().expect("a switch").name.clone();
    let wires = topology.wires().len();
    plan.cluster.network.topology = Some(topology);
    let (_, entries) = watched(&plan);
    let links: Vec<_> = tracks(&entries, 2).into_values().collect();
    assert_eq!(links.len(), 2 * wires);
    let mut once = links.clone();
    once.sort();
    once.dedup();
    assert_eq!(once.len(), links.len(), "{links:?}");
    assert!(links.iter().any(|l| l.starts_with("rank 3 to ")));
    assert!(links.iter().any(|l| l.ends_with(&format!(" to {other}"))));
}

#[test]
fn operations_that_fail_say_how() {
    let mut plan = plan();
    plan.cluster.loss = 0.0;
    plan.cluster.faults = vec![Fault {
        what: Breaks::Rank(2),
        at_ns: 20_000,
    }];
    let (report, entries) = watched(&plan);
    let bytes = report.ended.expect("it fails").bytes;
    let count = |how: &str| {
        let name = format!("AllToAll, {bytes} bytes: {how}");
        entries.iter().filter(|e| e["name"] == name).count()
    };
    assert_eq!((count("killed"), count("PeerFailed")), (1, 3));
    let lost = entries.iter().filter(|e| e["name"] == "lost");
    assert_eq!(lost.count() as u64, report.counts.lost);
}

#[test]
fn operations_that_hang_are_shown_to_the_end() {
    let mut plan = plan();
    // A doorbell that takes longer than an operation may.
    plan.cluster.profile.host.doorbell_ns = 61_000_000_000;
    let file = Bytes::default();
    let done = run_watched(&plan, Watch::default().timeline(file.clone()));
    assert!(matches!(done, Err(Failure::Hung { .. })), "{done:?}");
    let trace: Value = serde_json::from_slice(&file.all()).expect("JSON");
    let entries = trace["traceEvents"].as_array().expect("a list");
    let open = entries
        .iter()
        .filter(|e| e["name"] == "AllToAll, 1024 bytes: has not ended");
    let open: Vec<_> = open.map(|e| number(e, "dur")).collect();
    assert_eq!(open.len(), 4, "one for each rank");
    assert!(open.iter().all(|us| *us >= 60e6), "{open:?}");
}
