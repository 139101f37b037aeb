//! Tests of `perf connections` and `perf slots`: every series runs, verifies its data, and draws.

use std::process::{Command, Output};

fn perf(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ringbell"))
        .arg("perf")
        .args(args)
        .env_remove("RINGBELL_DEBUG")
        .output()
        .unwrap_or_else(|e| panic!("the program does not start: {e}"))
}

fn rows(out: &Output) -> (serde_json::Value, Vec<serde_json::Value>) {
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    let json: serde_json::Value = serde_json::from_slice(&out.stdout).expect("one JSON object");
    let rows = json["rows"].as_array().expect("rows").clone();
    for row in &rows {
        assert_eq!(row["wrong"], 0, "{row}");
        assert!(row["algbw_gbs"].as_f64() > Some(0.0), "{row}");
    }
    (json, rows)
}

#[test]
fn connections_are_swept_over_every_transport() {
    for transport in ["local", "tcp", "rdma", "udp", "iwarp"] {
        let args = [
            "connections",
            "--transport",
            transport,
            "--connections",
            "1,7",
            "-b",
            "1000",
            "-n",
            "70",
            "--runs",
            "2",
            "--timeout",
            "60",
            "--json",
            "-",
        ];
        let (json, rows) = rows(&perf(&args));
        assert_eq!(json["meta"]["transport"], transport);
        assert_eq!(json["meta"]["parameter"], "connections");
        let seen: Vec<_> = rows
            .iter()
            .map(|r| {
                (
                    r["parameter"].as_f64(),
                    r["series"].as_str(),
                    r["count"].as_u64(),
                )
            })
            .collect();
        assert_eq!(
            seen,
            [
                (Some(1.0), Some("one"), Some(70)),
                (Some(7.0), Some("all"), Some(70)),
                (Some(7.0), Some("one"), Some(70)),
            ]
        );
    }
}

#[test]
fn one_sided_operations_are_verified_where_a_transport_has_them_and_refused_elsewhere() {
    for kind in [
        "write-lat",
        "put-signal-lat",
        "write-bw",
        "read-lat",
        "read-bw",
        "atomic-lat",
    ] {
        let sizes: &[&str] = match kind {
            "atomic-lat" => &[],
            _ => &["-b", "8", "-e", "70000", "-f", "93"],
        };
        let common = [&[kind, "-n", "20", "--json", "-"], sizes].concat();
        for transport in ["local", "rdma", "iwarp"] {
            let args = [&common[..], &["--transport", transport]].concat();
            let (json, rows) = rows(&perf(&args));
            assert_eq!(json["meta"]["transport"], transport);
            assert_eq!(rows.len(), if sizes.is_empty() { 1 } else { 3 }, "{kind}");
        }
        if kind.ends_with("-bw") {
            for wire in [&["local"][..], &["rdma", "--port", "roce"]] {
                let args = [&common[..], &["--bidirectional", "--transport"], wire].concat();
                for row in rows(&perf(&args)).1 {
                    let speed = |name: &str| row[name].as_f64().unwrap_or(0.0);
                    let both = speed("busbw_gbs") / speed("algbw_gbs");
                    assert!((both - 2.0).abs() < 1e-6, "{row}");
                }
            }
        } else {
            let out = perf(&[&common[..], &["--bidirectional"]].concat());
            assert_eq!(out.status.code(), Some(2), "{out:?}");
        }
        for transport in ["tcp", "udp"] {
            let out = perf(&[&common[..], &["--transport", transport]].concat());
            assert_eq!(out.status.code(), Some(2), "{out:?}");
            let said = String::from_utf8_lossy(&out.stderr);
            let both = said.contains("one-sided") && said.contains(transport);
            assert!(both, "{said}");
        }
    }
}

/// Receivers that lag close windows again and again: a stream must not stand still when they open.
#[test]
fn windows_that_close_and_open_stop_no_stream() {
    let args = [
        "connections",
        "--transport",
        "tcp",
        "--connections",
        "10",
        "-n",
        "8000",
        "--runs",
        "3",
        "--timeout",
        "60",
        "--tcp-buffer",
        "256K",
        "--threads",
        "--json",
        "-",
    ];
    let (_, rows) = rows(&perf(&args));
    assert_eq!(rows.len(), 2);
}

#[test]
fn slots_stand_beside_kernel_rung_and_host_launched_sends() {
    let svg = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("slots.svg");
    let svg_text = svg.display().to_string();
    let args = [
        "slots",
        "-b",
        "4K",
        "-e",
        "64K",
        "-f",
        "16",
        "-n",
        "20",
        "--bytes",
        "100K",
        "--exposed",
        "8",
        "--timeout",
        "60",
        "--json",
        "-",
        "--svg",
        &svg_text,
    ];
    let (_, rows) = rows(&perf(&args));
    let seen: Vec<_> = rows
        .iter()
        .map(|r| (r["series"].as_str(), r["size_bytes"].as_u64()))
        .collect();
    let mut expected = Vec::new();
    for series in ["slots", "kernel-rung", "host-launched"] {
        expected.extend([(Some(series), Some(4096)), (Some(series), Some(65536))]);
    }
    assert_eq!(seen, expected);
    assert!(std::fs::read_to_string(&svg)
        .expect("written")
        .contains("host-launched"));
}

#[test]
fn sizes_that_cannot_be_measured_are_refused() {
    for args in [
        &["slots", "-b", "100", "-e", "200"][..],
        &["slots", "-b", "64K", "-e", "64K", "--bytes", "32K"],
        &["connections", "-b", "4"],
        &["connections", "--connections", "0"],
    ] {
        let out = perf(args);
        assert_eq!(out.status.code(), Some(2), "{args:?}: {out:?}");
    }
}

#[test]
fn sums_by_the_nic_and_by_kernels_are_the_same() {
    let args = [
        "combine", "-b", "4004", "-e", "40K", "-f", "4", "-n", "3", "-w", "1", "--blocks", "1,3",
        "--lanes", "40", "--json", "-",
    ];
    let (_, rows) = rows(&perf(&args));
    let seen: Vec<_> = rows
        .iter()
        .map(|r| (r["size_bytes"].as_u64(), r["series"].as_str()))
        .collect();
    let series = ["nic", "gpu-1", "gpu-3"].map(Some);
    let want: Vec<_> = [4004, 16016]
        .into_iter()
        .flat_map(|size| series.map(|s| (Some(size), s)))
        .collect();
    assert_eq!(seen, want);
    for bad in [
        &["combine", "-b", "6", "-e", "6"][..],
        &["combine", "-n", "1000000"],
    ] {
        assert_eq!(perf(bad).status.code(), Some(2), "{bad:?}");
    }
}

#[test]
fn the_floor_has_flags_and_copies() {
    let args = [
        "floor", "-n", "50", "-w", "5", "--bytes", "100003", "--rounds", "2", "--json", "-",
    ];
    let out = perf(&args);
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    let json: serde_json::Value = serde_json::from_slice(&out.stdout).expect("one JSON object");
    let rows = json["rows"].as_array().expect("rows");
    let of = |series: &str| -> Vec<&serde_json::Value> {
        rows.iter().filter(|r| r["series"] == series).collect()
    };
    assert!(of("flag").iter().any(|r| r["parameter"] == 50.0));
    assert!(of("flag").iter().all(|r| r["p50_us"].as_f64() > Some(0.0)));
    for copy in ["host-to-device", "device-to-host"] {
        assert!(of(copy).iter().all(|r| r["algbw_gbs"].as_f64() > Some(0.0)));
        assert_eq!(of(copy).len(), 1);
    }
    assert_eq!(json["meta"]["nic"], "none");
}

#[test]
fn messages_are_measured_over_datagrams_with_every_crc_and_packet_size() {
    for (kind, more) in [
        ("send-lat", &[][..]),
        ("send-bw", &["--icrc", "on"]),
        ("send-bw", &["--icrc", "on", "--mtu", "4144", "--threads"]),
        ("send-bw", &["--icrc", "off", "--mtu", "576"]),
        ("send-bw", &["--loss", "0.01", "--reorder", "0.01"]),
    ] {
        let common = [
            kind,
            "-b",
            "8",
            "-e",
            "70000",
            "-f",
            "93",
            "-n",
            "20",
            "--json",
            "-",
            "--transport",
            "rdma",
            "--port",
            "roce",
        ];
        let (json, rows) = rows(&perf(&[&common, more].concat()));
        assert_eq!(json["meta"]["transport"], "rdma", "{more:?}");
        assert_eq!(rows.len(), 3);
    }
    let out = perf(&[
        "send-lat",
        "--transport",
        "tcp",
        "--port",
        "roce",
        "--threads",
    ]);
    assert_eq!(out.status.code(), Some(2), "{out:?}");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(said.contains("transport rdma"), "{said}");
}
