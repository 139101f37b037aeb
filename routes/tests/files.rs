//! Topology files: SMI's and ours, and what is refused, with its line.

use ringbell_routes::file::{parse, SMI_PORTS};
use ringbell_routes::route::{route, route_by, Algorithm};
use ringbell_routes::topology::{NodeId, Role, Topology};

/// The four hosts with two FPGAs each of SC'19 §5.1, in the form of SMI's own files.
const SMI: &str = r#"{
  "fpgas": {
    "node-6:acl0": "stencil", "node-6:acl1": "stencil", "node-7:acl0": "stencil", "node-7:acl1": "stencil",
    "node-8:acl0": "stencil", "node-8:acl1": "stencil", "node-9:acl0": "stencil", "node-9:acl1": "stencil"
  },
  "connections": {
    "node-6:acl0:ch2": "node-6:acl1:ch3", "node-6:acl0:ch3": "node-6:acl1:ch2",
    "node-7:acl0:ch2": "node-7:acl1:ch3", "node-7:acl0:ch3": "node-7:acl1:ch2",
    "node-8:acl0:ch2": "node-8:acl1:ch3", "node-8:acl0:ch3": "node-8:acl1:ch2",
    "node-9:acl0:ch2": "node-9:acl1:ch3", "node-9:acl0:ch3": "node-9:acl1:ch2",
    "node-6:acl0:ch1": "node-7:acl0:ch0", "node-7:acl0:ch1": "node-8:acl0:ch0",
    "node-8:acl0:ch1": "node-9:acl0:ch0", "node-9:acl0:ch1": "node-6:acl0:ch0",
    "node-6:acl1:ch1": "node-7:acl1:ch0", "node-7:acl1:ch1": "node-8:acl1:ch0",
    "node-8:acl1:ch1": "node-9:acl1:ch0", "node-9:acl1:ch1": "node-6:acl1:ch0"
  }
}"#;

fn names(t: &Topology) -> Vec<&str> {
    t.nodes().iter().map(|n| n.name.as_str()).collect()
}

#[test]
fn smis_files_are_read_as_they_are() {
    let t = parse("cluster", SMI).expect("SMI's torus");
    assert_eq!(t.wires().len(), 16);
    assert_eq!(t.degree(), 4);
    // Ranks by node, then device.
    assert_eq!(
        names(&t)[..3],
        ["node-6:acl0", "node-6:acl1", "node-7:acl0"]
    );
    let link = t.link(NodeId(0), 1).expect("a wire");
    assert_eq!(t.link_text(link), "node-6:acl0:1 -> node-7:acl0:0");
    assert!(route(&t, 8).is_ok());
    // The plain list, whose nodes are those that it names; the order is that of the names.
    let plain = parse("plain", r#"{"b:0": "a:1", "c:0": "b:1", "c:p1": "a:p0"}"#);
    assert_eq!(names(&plain.expect("a ring")), ["a", "b", "c"]);
}

#[test]
fn ours_names_ranks_switches_rates_and_delays() {
    let text = r#"{"name": "lab", "nodes": ["z", {"name": "s", "switch": true}, {"name": "a"}],
        "wires": [{"ends": ["z:0", "s:63"], "gbps": 40.5, "delay_ns": 0},
                  {"ends": ["s:1", "a:1"], "delay_ns": 120}]}"#;
    let t = parse("file.json", text).expect("a star");
    assert_eq!(t.name(), "lab");
    assert_eq!(names(&t), ["z", "s", "a"]);
    assert_eq!(t.nodes()[1].role, Role::Switch);
    assert_eq!(t.ends().collect::<Vec<_>>(), [NodeId(0), NodeId(2)]);
    assert_eq!(t.wires()[0].gbps, Some(40.5));
    assert_eq!(t.wires()[1].delay_ns, Some(120.0));
}

#[test]
fn a_torus_that_a_file_claims_is_checked() {
    let ring = |grid: &str| {
        format!(
            r#"{{"nodes": ["a", "b", "c"], {grid}, "wires": [{{"ends": ["a:1", "b:0"]}},
            {{"ends": ["b:1", "c:0"]}}, {{"ends": ["c:1", "a:0"]}}]}}"#
        )
    };
    let t = parse("ring", &ring(r#""torus": [3]"#)).expect("a ring");
    assert!(route_by(&t, 2, Algorithm::Bubble).is_ok());
    for (grid, part) in [
        (r#""torus": [4]"#, "the file has 3 nodes, and ring:4 has 4"),
        (
            r#""mesh": [3]"#,
            "no bus:3: a:0 leads to c:1, and in a bus nowhere",
        ),
        (r#""torus": []"#, "write `torus:AxB"),
        (r#""torus": [1, 3]"#, "no torus:1x3: a:0 leads to c:1"),
        (r#""torus": [3, 0]"#, "each dimension"),
    ] {
        let refused = parse("ring", &ring(grid)).expect_err(grid).to_string();
        assert!(refused.contains(part), "{grid}: {refused}");
    }
}

#[test]
fn what_is_wrong_is_named_with_its_line() {
    for (text, line, part) in [
        ("", 1, "EOF"),
        ("[]", 1, "invalid type: sequence, expected an object: SMI's wires"),
        ("{\"a:0\": \"b:0\",\n\"a:1\": }", 2, "expected value"),
        ("{\"a:0\": \"b:0\",\n\"c:0\":\n\"b:0\"}", 3, "port 0 of b is used twice: by the wires to a:0 and to c:0"),
        // The same key twice, which most readers of JSON pass over.
        ("{\"a:0\": \"b:0\",\n\"a:0\": \"b:1\"}", 2, "port 0 of a is used twice"),
        ("{\"a:0\": \"a:0\"}", 1, "joins port 0 of a to itself"),
        ("{\"a:0\": \"a:1\"}", 1, "joins two ports of a: 0 and 1"),
        ("{\"a:8\": \"b:0\"}", 1, "a has no port 8: ports count from 0 to 7"),
        ("{\"a:99999999999999999999\": \"b:0\"}", 1, "a has no port 18446744073709551615"),
        ("{\"a:x\": \"b:0\"}", 1, "`a:x`: write a wire's end as NODE:PORT"),
        ("{\":0\": \"b:0\"}", 1, "`` is no name of a node"),
        ("{\"a\\n:0\": \"b:0\"}", 1, "`a\\n` is no name"),
        ("{\"a:0\": 7}", 1, "invalid type: integer"),
        ("{\"cables\": {}}", 1, "`cables` is no key of a topology"),
        ("{\"a:0\": \"b:0\",\n\"wires\": []}", 2, "`wires` among keys of the other form"),
        ("{\"wires\": [\n{\"ends\": [\"a:64\", \"b:0\"]}]}", 2, "a has no port 64: ports count from 0 to 63"),
        ("{\"wires\": [{\"ends\": [\"a:0\", \"b:0\"], \"rate\": 3}]}", 1, "unknown field `rate`"),
        ("{\"wires\": [{\"ends\": [\"a:0\"]}]}", 1, "invalid length 1"),
        ("{\"wires\": [{\"ends\": [\"a:0\", \"b:0\"], \"gbps\": 0}]}", 1, "gbps of 0"),
        ("{\"wires\": [{\"ends\": [\"a:0\", \"b:0\"], \"delay_ns\": -1}]}", 1, "delay_ns of -1"),
        ("{\"nodes\": [\"a\", \"a\"]}", 1, "two nodes are named a"),
        ("{\"nodes\": [\"a\", 5]}", 1, "a node: its name"),
        ("{\"nodes\": [\"a\"],\n\"wires\": [{\"ends\": [\"a:0\", \"b:0\"]}]}", 2, "no node is named b"),
        ("{\"wires\": [{\"ends\": [\"a:0\", \"b:0\"]}],\n\"nodes\": [\"a\"]}", 2, "put it before"),
        ("{\"a:0\": \"b:0\"} x", 1, "trailing characters"),
        // Known when everything has been read.
        ("{}", 0, "0 node(s) with a rank"),
        ("{\"a:0\": \"b:0\", \"c:0\": \"d:0\"}", 0, "not connected: 2 of 4 nodes reach each other (a, b), and 2 do not (c, d)"),
        ("{\"fpgas\": {\"a\": \"p\", \"b\": \"p\", \"c\": \"p\"}, \"a:0\": \"b:0\"}", 0, "and 1 do not (c)"),
        ("{\"a:0\": \"b:0\", \"fpgas\": {\"a\": \"p\"}}", 0, "no node is named b in `fpgas`"),
        ("{\"nodes\": [\"a\", {\"name\": \"b\", \"switch\": true}], \"wires\": [{\"ends\": [\"a:0\", \"b:0\"]}]}", 0, "1 node(s) with a rank"),
    ] {
        let refused = parse("file", text).expect_err(text);
        assert!(refused.why.contains(part), "{text}: {refused}");
        assert_eq!(refused.line, line, "{text}: {refused}");
        assert!(refused.line == 0 || !refused.why.contains(" at line "), "{refused}");
    }
    assert_eq!(SMI_PORTS, 8);
}

#[test]
fn a_large_file_ends_at_the_limit() {
    let wires: Vec<String> = (0..16_384)
        .map(|n| format!("\"a{n}:0\": \"a{}:1\"", n + 1))
        .collect();
    let refused = parse("file", &format!("{{{}}}", wires.join(","))).expect_err("too many");
    assert!(refused.why.contains("more than 16384 nodes"), "{refused}");
    let deep = "[".repeat(100_000);
    assert!(parse("file", &format!("{{\"torus\": {deep}")).is_err());
}
