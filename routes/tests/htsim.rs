//! Fat trees of htsim: the wires that htsim itself makes of its files, and what is refused.
//!
//! `htsim/*.topo` are examples of htsim (github.com/Broadcom/csg-htsim, 841d9e7, with its licence
//! beside them). `*.wires` lists the nodes, Gb/s and nanoseconds of each pipe of the
//! `FatTreeTopology` that its `load` makes of them, sorted.

use ringbell_routes::file::{parse, FileError};
use ringbell_routes::route::{route, RouteError};
use ringbell_routes::topology::Topology;

const THREE_TIERS: &str = include_str!("htsim/test.topo");
const TWO_TIERS: &str = include_str!("htsim/leaf_spine_tiny.topo");

/// The wires as the lists have them.
fn wires(t: &Topology) -> Vec<String> {
    let wire = |w: &ringbell_routes::topology::Wire| {
        let [below, above] = w.ends.map(|e| t.nodes()[e.node.index()].name.as_str());
        let [gbps, delay] = [w.gbps, w.delay_ns].map(|n| n.expect("a number"));
        format!("{below} {above} {gbps} {delay}")
    };
    let mut all: Vec<_> = t.wires().iter().map(wire).collect();
    all.sort();
    all
}

#[test]
fn wires_are_those_that_htsim_makes() {
    let lists = [
        (THREE_TIERS, include_str!("htsim/test.wires")),
        (TWO_TIERS, include_str!("htsim/leaf_spine_tiny.wires")),
    ];
    for (text, list) in lists {
        let t = parse("tree", text).expect(text);
        let mut wanted: Vec<_> = list.lines().map(str::to_owned).collect();
        wanted.sort();
        assert_eq!(wires(&t), wanted);
    }
}

/// htsim's `fat_tree_1024.topo`, with latencies of switches.
const LARGE: &str =
    "nodes 1024\nTIERS 3\npodsize 64\n\n# from below\nTier 0\nDownlink_speed_Gbps 100\n\
    Radix_Down 8\nRadix_Up 8\nDownlink_Latency_ns 1000\nSwitch_Latency_ns 10\nTier 1\n\
    Downlink_speed_Gbps 100\nRadix_Down 8\nRadix_Up 8\nDownlink_Latency_ns 1000\n\
    Switch_Latency_ns 20\nTier 2\nDownlink_speed_Gbps 100\nRadix_Down 16\n\
    Downlink_Latency_ns 1000\nSwitch_Latency_ns 41\n";

#[test]
fn a_large_tree_is_a_network_without_routes() {
    let t = parse("large", LARGE).expect("a tree");
    assert_eq!(
        (t.nodes().len(), t.ends().count()),
        (1024 + 128 + 128 + 64, 1024)
    );
    assert_eq!((t.wires().len(), t.degree()), (3072, 16));
    let nodes = t.nodes().len();
    assert_eq!(route(&t, 8), Err(RouteError::TooManyNodes { nodes }));
    // From the first host to the last and through a core: six wires, and each switch once.
    let delay = |below: &str, above: &str| {
        let is = |w: &&ringbell_routes::topology::Wire| {
            w.ends.map(|e| t.nodes()[e.node.index()].name.as_str()) == [below, above]
        };
        let wire = t.wires().iter().find(is).expect("joined");
        wire.delay_ns.expect("a delay")
    };
    let up = delay("n0", "tor0") + delay("tor0", "agg0") + delay("agg0", "core0");
    let down = delay("agg120", "core0") + delay("tor127", "agg120") + delay("n1023", "tor127");
    assert_eq!(up + down, 6.0 * 1000.0 + 2.0 * (10.0 + 20.0) + 41.0);
}

/// A file with one line in another form, and what is said of it.
fn refused(text: &str, line: &str, other: &str) -> FileError {
    let changed = text.replacen(line, other, 1);
    assert_ne!(changed, text, "{line}");
    parse("file", &changed).expect_err(&changed)
}

#[test]
fn what_gives_no_tree_is_refused_by_place_and_reason() {
    for (line, other, place, part) in [
        (
            "nodes 1024",
            "nodes many",
            (1, 7),
            "`nodes` takes a whole number",
        ),
        (
            "nodes 1024",
            "nodes",
            (1, 1),
            "`nodes` takes a whole number",
        ),
        ("podsize 64", "pods 16", (3, 1), "`pods`, expected `Nodes`"),
        (
            "podsize 64",
            "podsize 64\npodsize 64",
            (4, 1),
            "`podsize` is there twice",
        ),
        ("Tier 1", "Tier 3", (12, 1), "tiers count from 0 to 2"),
        ("Tier 1", "Tier 0", (12, 1), "tier 0 is there twice"),
        (
            "Switch_Latency_ns 20",
            "Latency 20",
            (17, 1),
            "`Latency`, expected `Downlink",
        ),
        (
            "Switch_Latency_ns 20",
            "  Queue_Up 9",
            (17, 3),
            "switch.output_bytes",
        ),
        ("nodes 1024", "", (0, 0), "`Nodes` is missing"),
        (
            "TIERS 3",
            "TIERS 4",
            (2, 1),
            "`TIERS` is 4: htsim's trees have 2 or 3",
        ),
        ("TIERS 3", "TIERS 0", (2, 1), "2 or 3"),
        (
            "TIERS 3",
            "TIERS 2",
            (18, 1),
            "tier 2: tiers count from 0 to 1",
        ),
        (
            "Downlink_Latency_ns 1000",
            "",
            (0, 0),
            "`Downlink_Latency_ns` of tier 0 is missing",
        ),
        (
            "Radix_Up 8",
            "Radix_Up 0",
            (0, 0),
            "`Radix_Up` of tier 0 is 0",
        ),
        (
            "Radix_Down 16",
            "Radix_Up 16",
            (0, 0),
            "nothing is above the top",
        ),
        (
            "podsize 64",
            "podsize 60",
            (0, 0),
            "no multiple of `Podsize`, 60",
        ),
        ("podsize 64", "podsize 128", (0, 0), "give 16"),
        (
            "Radix_Down 8",
            "Radix_Down 7",
            (0, 0),
            "no multiple of `Radix_Down`",
        ),
        ("Radix_Down 16", "Radix_Down 15", (0, 0), "give 16"),
        (
            "Radix_Up 8",
            "Radix_Up 4",
            (0, 0),
            "`Oversubscribed` of tier 0 is 1: its switches have 800",
        ),
        (
            "Radix_Up 8",
            "Radix_Up 8\nBundle 2",
            (0, 0),
            "a host has one wire",
        ),
        (
            "nodes 1024",
            "nodes 18446744073709551552",
            (0, 0),
            "give 288230376151711743",
        ),
    ] {
        let error = refused(LARGE, line, other);
        assert!(error.why.contains(part), "{line} -> {other}: {error}");
        assert_eq!(
            (error.line, error.column),
            place,
            "{line} -> {other}: {error}"
        );
    }
    let pods = refused(TWO_TIERS, "Podsize 32", "Podsize 16");
    assert!(pods.why.contains("two tiers are one pod"), "{pods}");
    let ports = "Nodes 130\nTiers 2\nPodsize 130\nTier 0\nDownlink_speed_Gbps 1\nRadix_Down 65\n\
        Radix_Up 65\nDownlink_Latency_ns 1\nTier 1\nDownlink_speed_Gbps 1\nRadix_Down 2\n\
        Downlink_Latency_ns 1\n";
    let ports = parse("file", ports).expect_err("too many");
    assert!(ports.why.contains("tor0 has no port 64"), "{ports}");
    let huge =
        "Nodes 1099511627776\nTiers 2\nPodsize 1099511627776\nTier 0\nDownlink_speed_Gbps 1\n\
        Radix_Down 1\nRadix_Up 1\nDownlink_Latency_ns 1\nTier 1\nDownlink_speed_Gbps 1\n\
        Radix_Down 1099511627776\nDownlink_Latency_ns 1\n";
    let huge = parse("file", huge).expect_err("too many");
    assert!(huge.why.contains("more than 16384 nodes"), "{huge}");
}
