//! Results of a run: one JSON object, and the table of issue 5 with every ratio against the same run's measurements.

use serde_json::{json, Value};

use super::plan::Group;
use super::run::{Done, End};

/// Kernels whose registers and shared memory are listed: those that are resident while a call is active.
const COMMUNICATION: [&str; 4] = ["rb_nop", "rb_send_all", "rb_recv_all", "rb_collective"];

/// Everything, as one object.
pub(super) fn results(
    done: &[Done],
    about: &Value,
    machine: &Value,
    gpu: &str,
    short: bool,
) -> Value {
    let steps: Vec<Value> = done
        .iter()
        .map(|d| {
            let (end, why) = match &d.end {
                End::Passed => ("passed", None),
                End::Failed(why) => ("failed", Some(why)),
                End::Skipped(why) => ("not run", Some(why)),
            };
            json!({
                "name": d.name,
                "group": match d.group {
                    Group::Correctness => "correctness",
                    Group::Sanitizer => "sanitizer",
                    Group::Measurement => "measurement",
                },
                "end": end,
                "why": why,
                "seconds": d.seconds,
            })
        })
        .collect();
    let reports: serde_json::Map<String, Value> = done
        .iter()
        .filter(|d| !d.report.is_null())
        .map(|d| (d.name.clone(), d.report.clone()))
        .collect();
    let reports = Value::Object(reports);
    let comparisons = comparisons(&reports, &about["kernels"]);
    let remarks = remarks(&reports);
    json!({
        "commit": about["commit"],
        "profile": about["profile"],
        "machine": machine,
        "gpu": gpu,
        "short": short,
        "steps": steps,
        "comparisons": comparisons,
        "remarks": remarks,
        "reports": reports,
    })
}

/// The first row that fits.
fn row(report: &Value, series: Option<&str>, percentile: Option<f64>) -> Option<Value> {
    let rows = report["rows"].as_array()?;
    let fits = |r: &&Value| {
        series.is_none_or(|s| r["series"] == s)
            && percentile.is_none_or(|p| r["parameter"].as_f64() == Some(p))
    };
    rows.iter().find(fits).cloned()
}

fn number(row: Option<&Value>, field: &str) -> Option<f64> {
    // The speed of a wrong result does not count.
    let row = row.filter(|r| r["wrong"].as_u64().unwrap_or(0) == 0)?;
    row[field].as_f64().filter(|v| v.is_finite() && *v > 0.0)
}

fn shown(value: Option<f64>, unit: &str) -> String {
    match value {
        Some(v) if v < 10.0 => format!("{v:.2} {unit}"),
        Some(v) => format!("{v:.1} {unit}"),
        None => "not measured".into(),
    }
}

/// One line of the table.
fn line(
    what: &str,
    value: Option<f64>,
    against: &str,
    limit: Option<f64>,
    unit: &str,
    target: &str,
) -> Value {
    let ratio = value.zip(limit).map(|(v, l)| v / l);
    json!({
        "what": what,
        "measured": shown(value, unit),
        "against": format!("{against}: {}", shown(limit, unit)),
        "ratio": ratio,
        "target": target,
    })
}

fn comparisons(reports: &Value, kernels: &Value) -> Vec<Value> {
    let mut lines = Vec::new();
    let median = row(&reports["floor"], Some("flag"), Some(50.0));
    let flag = |field| number(median.as_ref(), field);
    let nop = row(&reports["doorbell"], None, Some(50.0));
    for (what, field) in [("median", "p50_us"), ("p99", "p99_us")] {
        lines.push(line(
            &format!("doorbell → NIC → status back in the kernel, {what}"),
            number(nop.as_ref(), field),
            "flag GPU ↔ CPU",
            flag(field),
            "µs",
            "≤ 1.3×",
        ));
    }
    let lat = row(&reports["send-lat"], None, None);
    lines.push(line(
        "gpu_send/gpu_recv 8 B, half round trip, median",
        number(lat.as_ref(), "p50_us"),
        "flag GPU ↔ CPU",
        flag("p50_us"),
        "µs",
        "≤ 3×",
    ));
    let copies = ["host-to-device", "device-to-host"]
        .map(|s| number(row(&reports["floor"], Some(s), None).as_ref(), "algbw_gbs"));
    let slower = copies[0].zip(copies[1]).map(|(a, b)| a.min(b));
    let bw = row(&reports["send-bw"], None, None);
    let size = bw
        .as_ref()
        .and_then(|r| r["size_bytes"].as_u64())
        .unwrap_or(64 << 20);
    lines.push(line(
        &format!("gpu_send {} KiB one way", size >> 10),
        number(bw.as_ref(), "algbw_gbs"),
        "pinned copy, the slower way",
        slower,
        "GB/s",
        "≥ 0.85×",
    ));
    for ranks in [2, 4] {
        all_reduce(&mut lines, reports, ranks);
    }
    for sms in [1, 8, 32, 132] {
        let hll = row(&reports[format!("hll-{sms}")], None, None);
        lines.push(line(
            "HyperLogLog on the path",
            number(hll.as_ref(), "busbw_gbs"),
            &format!("CUDA kernel on {sms} SMs"),
            number(hll.as_ref(), "kernel_gbs"),
            "GB/s",
            "the SMs it frees",
        ));
    }
    for kernel in COMMUNICATION {
        let most = |field: &str| {
            let archs = kernels[kernel].as_object()?.values();
            archs.filter_map(|u| u[field].as_u64()).max()
        };
        let told = |v: Option<u64>| v.map_or_else(|| "not reported".into(), |v| v.to_string());
        lines.push(json!({
            "what": format!("{kernel}: registers of a lane, shared bytes"),
            "measured": format!("{}, {}; one block, 0 SMs between calls", told(most("registers")), told(most("shared_bytes"))),
            "against": "NVSHMEM: not measured",
            "ratio": null,
            "target": "≤ 1 SM",
        }));
    }
    lines
}

/// Reports of all-reduce among so many ranks, small sizes first.
fn all_reduces(reports: &Value, ranks: u32) -> [&Value; 2] {
    ["all-reduce-small", "all-reduce"].map(|name| &reports[format!("{name}-{ranks}")])
}

fn list(v: &Value) -> &[Value] {
    v.as_array().map_or(&[], Vec::as_slice)
}

/// A peer's name, version and transport.
fn peer_name(peer: &Value) -> String {
    let words = ["name", "version", "transport"].map(|f| peer[f].as_str().unwrap_or(""));
    let words: Vec<&str> = words.into_iter().filter(|w| !w.is_empty()).collect();
    words.join(" ")
}

fn all_reduce(lines: &mut Vec<Value>, reports: &Value, ranks: u32) {
    let target = |small| match small {
        true => ("p50_us", "µs", "≤ 0.5× time"),
        false => ("busbw_gbs", "GB/s", "≥ 1.5× busbw"),
    };
    let reports = all_reduces(reports, ranks);
    if reports.iter().all(|r| list(&r["rows"]).is_empty()) {
        let what = format!("all-reduce f32, {ranks} ranks");
        lines.push(line(&what, None, "NCCL", None, "GB/s", "≥ 1.5× busbw"));
    }
    for report in reports {
        for r in list(&report["rows"]) {
            let size = r["size_bytes"].as_u64().unwrap_or(0);
            let form = r["series"].as_str().unwrap_or("form not said");
            let what = format!("all-reduce f32, {ranks} ranks, {} KiB, {form}", size >> 10);
            let (field, unit, wanted) = target(size < 64 << 10);
            let own = number(Some(r), field);
            let peers = list(&report["meta"]["peers"]);
            if peers.is_empty() {
                lines.push(line(&what, own, "NCCL", None, unit, wanted));
            }
            for peer in peers {
                let same =
                    |p: &&Value| p["size_bytes"] == r["size_bytes"] && p["series"] == r["series"];
                let its = number(list(&peer["rows"]).iter().find(same), field);
                lines.push(line(&what, own, &peer_name(peer), its, unit, wanted));
            }
        }
        // NCCL's own description; registers need a profiler.
        for peer in list(&report["meta"]["peers"]) {
            if let Some(blocks) = peer["blocks"].as_u64() {
                lines.push(json!({
                    "what": format!("SMs of an all-reduce while it runs, {ranks} ranks"),
                    "measured": "none: no kernel runs",
                    "against": format!("{}: up to {blocks} block(s) on each rank, by its log; registers not measured", peer_name(peer)),
                    "ratio": null,
                    "target": "0 SMs",
                }));
            }
        }
    }
}

/// Placement of the ranks, NCCL's version and settings, and the reasons for missing figures.
fn remarks(reports: &Value) -> Vec<String> {
    let mut remarks = Vec::new();
    for ranks in [2, 4] {
        for report in all_reduces(reports, ranks) {
            let meta = &report["meta"];
            if let Some(place) = meta["placement"].as_str() {
                remarks.push(format!("All-reduce, {ranks} ranks: {place}."));
            }
            for peer in list(&meta["peers"]) {
                let mut text = format!("{}, {ranks} ranks", peer_name(peer));
                if let Some(library) = peer["library"].as_str() {
                    text += &format!(": {library}");
                }
                let by: Vec<&str> = list(&peer["carriers"])
                    .iter()
                    .filter_map(Value::as_str)
                    .collect();
                if !by.is_empty() {
                    text += &format!(", via {} as it says", by.join(", "));
                }
                let set = peer["settings"].as_object().into_iter().flatten();
                let set: Vec<String> = set
                    .map(|(n, v)| format!("`{n}={}`", v.as_str().unwrap_or("")))
                    .collect();
                if !set.is_empty() {
                    text += &format!(", with {}", set.join(" "));
                }
                text += ".";
                if let Some(why) = peer["why"].as_str() {
                    text += &format!(" Not as asked: {why}.");
                }
                remarks.push(text);
            }
        }
    }
    // Small and large sizes mostly have the same remarks.
    let mut said = Vec::new();
    for remark in remarks {
        if !said.contains(&remark) {
            said.push(remark);
        }
    }
    said
}

/// The table for docs/results.
pub(super) fn table(results: &Value) -> String {
    let text = |v: &Value| v.as_str().unwrap_or("unknown").to_owned();
    let machine = &results["machine"];
    let mut out = format!(
        "Commit {}, profile {}, {}. CPU {} ({} cores), {}. GPU: {}{}.\n\n",
        text(&results["commit"]),
        text(&results["profile"]),
        text(&machine["date"]),
        text(&machine["cpu"]),
        machine["cores"],
        text(&machine["kernel"]),
        text(&results["gpu"]),
        match machine["gpus"].as_str() {
            Some(gpus) => format!(" ({})", gpus.replace('\n', "; ")),
            None => String::new(),
        }
    );
    let emulated = results["gpu"] == "emulated";
    if emulated || results["short"] == true {
        out += "This run shows that everything works. **No figure below is one of a GPU**: ";
        out += if emulated {
            "kernels ran on host threads.\n\n"
        } else {
            "runs were short.\n\n"
        };
    }
    out +=
        "| what | measured | against, in the same run | ratio | wanted |\n|---|---|---|---|---|\n";
    for l in results["comparisons"].as_array().into_iter().flatten() {
        let ratio = l["ratio"]
            .as_f64()
            .map_or_else(|| "–".into(), |r| format!("{r:.2}×"));
        out += &format!(
            "| {} | {} | {} | {ratio} | {} |\n",
            text(&l["what"]),
            text(&l["measured"]),
            text(&l["against"]),
            text(&l["target"])
        );
    }
    out.push('\n');
    for remark in list(&results["remarks"]) {
        out += &format!("- {}\n", text(remark));
    }
    out += "\n| step | end | s |\n|---|---|---|\n";
    for s in results["steps"].as_array().into_iter().flatten() {
        let why = s["why"]
            .as_str()
            .map_or_else(String::new, |w| format!(": {w}"));
        out += &format!(
            "| {} | {}{why} | {:.1} |\n",
            text(&s["name"]),
            text(&s["end"]),
            s["seconds"].as_f64().unwrap_or(0.0)
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(name: &str, end: End, report: Value) -> Done {
        Done {
            name: name.into(),
            group: Group::Measurement,
            end,
            seconds: 1.5,
            report,
        }
    }

    #[test]
    fn nccl_stands_beside_ours_by_size_form_and_transport() {
        let row = |size: u64, p50: f64, bus: f64, wrong: u64| json!({"series": "in place", "size_bytes": size, "p50_us": p50, "busbw_gbs": bus, "wrong": wrong});
        let peer = |transport: &str, rows: Vec<Value>| {
            json!({"name": "NCCL", "version": "2.30.7", "transport": transport, "rows": rows,
                "library": "/x/libnccl.so.2", "settings": {"NCCL_P2P_DISABLE": "1"}})
        };
        let mut shm = peer("shm", vec![row(1024, 20.0, 1.0, 0)]);
        shm["blocks"] = 4.into();
        shm["carriers"] = json!(["SHM/direct"]);
        let small = json!({
            "meta": {"placement": "threads of one process", "peers": [shm]},
            "rows": [row(1024, 5.0, 1.0, 0)],
        });
        let mut socket = peer("socket", vec![row(1 << 20, 9.0, 2.0, 7)]);
        socket["why"] = "it hung".into();
        let large = json!({
            "meta": {"placement": "threads of one process", "peers": [socket, peer("shm", vec![row(1 << 20, 9.0, 4.0, 0)])]},
            "rows": [row(1 << 20, 8.0, 10.0, 0)],
        });
        let all = [
            done("all-reduce-small-2", End::Passed, small),
            // Wrong sums of NCCL fail the step, and its figures do not count.
            done("all-reduce-2", End::Failed("wrong".into()), large),
        ];
        let results = results(&all, &json!({}), &json!({}), "cuda", false);
        let table = table(&results);
        for want in [
            "1 KiB, in place | 5.00 µs | NCCL 2.30.7 shm: 20.0 µs | 0.25× | ≤ 0.5× time |",
            "1024 KiB, in place | 10.0 GB/s | NCCL 2.30.7 socket: not measured | – |",
            "1024 KiB, in place | 10.0 GB/s | NCCL 2.30.7 shm: 4.00 GB/s | 2.50× | ≥ 1.5× busbw |",
            "none: no kernel runs | NCCL 2.30.7 shm: up to 4 block(s) on each rank",
            "- All-reduce, 2 ranks: threads of one process.",
            "via SHM/direct as it says, with `NCCL_P2P_DISABLE=1`.",
            "NCCL 2.30.7 socket, 2 ranks: /x/libnccl.so.2, with `NCCL_P2P_DISABLE=1`. Not as asked: it hung.",
            "all-reduce f32, 4 ranks | not measured | NCCL: not measured |",
        ] {
            assert!(table.contains(want), "no `{want}` in\n{table}");
        }
        let place = "- All-reduce, 2 ranks: threads";
        assert_eq!(table.matches(place).count(), 1, "said once: {table}");
    }

    #[test]
    fn ratios_are_of_the_same_run_and_gaps_are_reported() {
        let floor = json!({"rows": [
            {"series": "flag", "parameter": 1.0, "p50_us": 9.0, "p99_us": 9.0},
            {"series": "flag", "parameter": 50.0, "p50_us": 2.0, "p99_us": 3.0},
            {"series": "host-to-device", "algbw_gbs": 50.0},
            {"series": "device-to-host", "algbw_gbs": 40.0},
        ]});
        let nop =
            json!({"rows": [{"series": "empty", "parameter": 50.0, "p50_us": 2.4, "p99_us": 6.0}]});
        let bw = json!({"rows": [{"size_bytes": 64 << 20, "algbw_gbs": 36.0}]});
        let reduced = json!({"rows": [
            {"series": "in place", "size_bytes": 1024, "p50_us": 7.5},
            {"series": "out of place", "size_bytes": 1 << 20, "busbw_gbs": 21.5, "wrong": 0},
        ]});
        let all = [
            done("floor", End::Passed, floor),
            done("doorbell", End::Passed, nop),
            done("send-bw", End::Passed, bw),
            done("all-reduce-2", End::Passed, reduced),
            done("hll-1", End::Failed("too slow".into()), Value::Null),
        ];
        let kernels = json!({"rb_nop": {"sm_90": {"registers": 30, "shared_bytes": 0}}});
        let about = json!({"commit": "abc", "profile": "release", "kernels": kernels});
        let results = results(&all, &about, &json!({"cores": 4}), "cuda", false);
        let table = table(&results);
        for want in [
            "| 2.40 µs | flag GPU ↔ CPU: 2.00 µs | 1.20× | ≤ 1.3× |",
            "| 6.00 µs | flag GPU ↔ CPU: 3.00 µs | 2.00× |",
            "| not measured | flag GPU ↔ CPU: 2.00 µs | – | ≤ 3× |",
            "gpu_send 65536 KiB one way | 36.0 GB/s | pinned copy, the slower way: 40.0 GB/s | 0.90× |",
            "all-reduce f32, 2 ranks, 1 KiB, in place | 7.50 µs | NCCL: not measured | – |",
            "all-reduce f32, 2 ranks, 1024 KiB, out of place | 21.5 GB/s |",
            "all-reduce f32, 4 ranks | not measured |",
            "rb_nop: registers of a lane, shared bytes | 30, 0;",
            "| hll-1 | failed: too slow | 1.5 |",
        ] {
            assert!(table.contains(want), "no `{want}` in\n{table}");
        }
        assert!(!table.contains("No figure"));
        let results = super::results(&all, &about, &json!({}), "emulated", true);
        assert!(super::table(&results).contains("No figure below is one of a GPU"));
    }
}
