//! Results of a run: one JSON object, and a table with every ratio against the same run's
//! measurements.
//!
//! What a measurement prints stands below the table as it is: all-reduce prints NCCL beside ours,
//! with ratios.

use std::collections::BTreeMap;

use serde_json::{json, Map, Value};

use super::plan::{Group, Step};
use crate::summary::End;

/// A step that was run, or not.
pub(super) struct Done {
    pub(super) step: Step,
    pub(super) end: End,
    pub(super) seconds: f64,
    /// What it printed.
    pub(super) said: String,
    /// Its report, if it wrote one: wrong values of a step that failed are marked in it.
    pub(super) report: Value,
}

/// A value of a report: of its first row with this series and parameter.
struct At {
    report: &'static str,
    series: Option<&'static str>,
    parameter: Option<f64>,
    field: &'static str,
}

/// A line of the table. The ratio is against the least of the other values.
struct Line {
    what: &'static str,
    own: At,
    against: &'static str,
    others: &'static [At],
    unit: &'static str,
    target: &'static str,
}

const fn at(report: &'static str, field: &'static str) -> At {
    At {
        report,
        series: None,
        parameter: None,
        field,
    }
}

/// Of rows by percentile: that of the median, which has the 99th beside it.
const fn median(report: &'static str, series: Option<&'static str>, field: &'static str) -> At {
    At {
        series,
        parameter: Some(50.0),
        ..at(report, field)
    }
}

const fn copied(series: &'static str) -> At {
    At {
        series: Some(series),
        ..at("floor", "algbw_gbs")
    }
}

const fn hll(report: &'static str, others: &'static [At]) -> Line {
    Line {
        what: "HyperLogLog on the path",
        own: at(report, "busbw_gbs"),
        against: report,
        others,
        unit: "GB/s",
        target: "the SMs of the kernel",
    }
}

const LINES: [Line; 8] = [
    Line {
        what: "doorbell → NIC → status back in the kernel, median",
        own: median("doorbell", None, "p50_us"),
        against: "flag GPU ↔ CPU",
        others: &[median("floor", Some("flag"), "p50_us")],
        unit: "µs",
        target: "≤ 1.3×",
    },
    Line {
        what: "doorbell → NIC → status back in the kernel, p99",
        own: median("doorbell", None, "p99_us"),
        against: "flag GPU ↔ CPU",
        others: &[median("floor", Some("flag"), "p99_us")],
        unit: "µs",
        target: "≤ 1.3×",
    },
    Line {
        what: "gpu_send/gpu_recv 8 B, half round trip, median",
        own: at("send-lat", "p50_us"),
        against: "flag GPU ↔ CPU",
        others: &[median("floor", Some("flag"), "p50_us")],
        unit: "µs",
        target: "≤ 3×",
    },
    Line {
        what: "gpu_send one way",
        own: at("send-bw", "algbw_gbs"),
        against: "pinned copy, the slower way",
        others: &[copied("host-to-device"), copied("device-to-host")],
        unit: "GB/s",
        target: "≥ 0.85×",
    },
    hll("hll-1", &[at("hll-1", "kernel_gbs")]),
    hll("hll-8", &[at("hll-8", "kernel_gbs")]),
    hll("hll-32", &[at("hll-32", "kernel_gbs")]),
    hll("hll-132", &[at("hll-132", "kernel_gbs")]),
];

impl At {
    fn of(&self, reports: &Value) -> Option<f64> {
        let fits = |r: &&Value| {
            self.series.is_none_or(|s| r["series"] == s)
                && self
                    .parameter
                    .is_none_or(|p| r["parameter"].as_f64() == Some(p))
        };
        let row = reports[self.report]["rows"].as_array()?.iter().find(fits);
        // The speed of a wrong result does not count.
        let row = row.filter(|r| r["wrong"].as_u64().unwrap_or(0) == 0)?;
        let value = row[self.field].as_f64();
        value.filter(|v| v.is_finite() && *v > 0.0)
    }
}

fn shown(value: Option<f64>, unit: &str) -> String {
    match value {
        Some(v) if v < 10.0 => format!("{v:.2} {unit}"),
        Some(v) => format!("{v:.1} {unit}"),
        None => "not measured".into(),
    }
}

/// Everything, as one object.
pub(super) fn results(
    done: &[Done],
    about: &Value,
    machine: &Value,
    gpu: &str,
    short: bool,
) -> Value {
    let steps = done.iter().map(|d| {
        let (end, why) = d.end.in_words();
        json!({ "name": d.step.name, "end": end, "why": why, "seconds": d.seconds })
    });
    let steps: Vec<Value> = steps.collect();
    let reports = done.iter().filter(|d| !d.report.is_null());
    let reports: Map<_, _> = reports
        .map(|d| (d.step.name.clone(), d.report.clone()))
        .collect();
    json!({
        "commit": about["commit"],
        "profile": about["profile"],
        "machine": machine,
        "gpu": gpu,
        "short": short,
        "steps": steps,
        "reports": reports,
    })
}

/// The table for docs/results.
pub(super) fn table(results: &Value, done: &[Done]) -> String {
    let text = |v: &Value| v.as_str().unwrap_or("unknown").to_owned();
    let machine = &results["machine"];
    let mut out = format!(
        "Commit {}, profile {}, {}. CPU {} ({} cores), {}. GPU: {} ({}).\n\n",
        text(&results["commit"]),
        text(&results["profile"]),
        text(&machine["date"]),
        text(&machine["cpu"]),
        machine["cores"],
        text(&machine["kernel"]),
        text(&results["gpu"]),
        text(&machine["gpus"]).replace('\n', "; "),
    );
    if results["gpu"] == "emulated" || results["short"] == true {
        out += "This run shows that everything works: it is short, or kernels ran on host threads. **No figure below is one of a GPU.**\n\n";
    }
    out +=
        "| what | measured | against, in the same run | ratio | wanted |\n|---|---|---|---|---|\n";
    for line in &LINES {
        let own = line.own.of(&results["reports"]);
        let others = line.others.iter().map(|o| o.of(&results["reports"]));
        let least = others.reduce(|a, b| Some(a?.min(b?))).flatten();
        let ratio = own.zip(least).map(|(own, least)| own / least);
        out += &format!(
            "| {} | {} | {}: {} | {} | {} |\n",
            line.what,
            shown(own, line.unit),
            line.against,
            shown(least, line.unit),
            ratio.map_or_else(|| "–".into(), |r| format!("{r:.2}×")),
            line.target
        );
    }
    out += &suite(done);
    out += "\n| step | end | s |\n|---|---|---|\n";
    for d in done.iter().filter(|d| d.step.of.is_none()) {
        let (end, why) = d.end.in_words();
        out += &format!("| {} | {end} {why} | {:.1} |\n", d.step.name, d.seconds);
    }
    for d in done.iter().filter(|d| d.step.group == Group::Measurement) {
        out += &format!("\n{}:\n\n```text\n{}\n```\n", d.step.name, d.said.trim());
    }
    out
}

/// The tests by program, and the reasons of those that failed or were skipped.
fn suite(done: &[Done]) -> String {
    let mut counts: BTreeMap<&str, [u32; 3]> = BTreeMap::new();
    let (mut failed, mut skipped) = (String::new(), String::new());
    for d in done {
        let Some(program) = d.step.of.as_deref() else {
            continue;
        };
        let (_, why) = d.end.in_words();
        let line = format!("- {program}, `{}`: {why}\n", d.step.name);
        let which = match &d.end {
            End::Passed => 0,
            End::Failed(_) => 1,
            End::Skipped(_) => 2,
        };
        match which {
            1 => failed += &line,
            2 => skipped += &line,
            _ => {}
        }
        for of in [program, "all"] {
            counts.entry(of).or_default()[which] += 1;
        }
    }
    let mut out = "\n| tests of | passed | failed | skipped |\n|---|---|---|---|\n".to_owned();
    for (program, [passed, failed, skipped]) in counts {
        out += &format!("| {program} | {passed} | {failed} | {skipped} |\n");
    }
    for (what, lines) in [("Failed", failed), ("Skipped", skipped)] {
        if !lines.is_empty() {
            out += &format!("\n{what} tests, and why:\n\n{lines}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let wrong = json!({"rows": [{"busbw_gbs": 1.0, "kernel_gbs": 2.0, "wrong": 1}]});
        let reports = json!({"floor": floor, "doorbell": nop, "send-bw": bw, "hll-1": wrong});
        let results = json!({"commit": "abc", "gpu": "cuda", "short": false, "reports": reports});
        let table = table(&results, &[]);
        for want in [
            "| 2.40 µs | flag GPU ↔ CPU: 2.00 µs | 1.20× | ≤ 1.3× |",
            "| 6.00 µs | flag GPU ↔ CPU: 3.00 µs | 2.00× |",
            "| not measured | flag GPU ↔ CPU: 2.00 µs | – | ≤ 3× |",
            "gpu_send one way | 36.0 GB/s | pinned copy, the slower way: 40.0 GB/s | 0.90× |",
            "path | not measured | hll-1: not measured | – |",
        ] {
            assert!(table.contains(want), "no `{want}` in\n{table}");
        }
        assert!(!table.contains("No figure"));
        let mut emulated = results;
        emulated["gpu"] = "emulated".into();
        assert!(super::table(&emulated, &[]).contains("No figure below is one of a GPU"));
    }
}
