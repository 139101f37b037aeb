//! Table in the manner of nccl-tests.

use std::fmt::Write as _;

use super::{Report, Row};

/// Renders the header lines, the rows and the closing line.
pub(super) fn render(report: &Report) -> String {
    let m = &report.meta;
    let mut out = String::new();
    let _ = writeln!(
        out,
        "# ringbell {} ({}, profile {}) {}",
        m.version, m.commit, m.profile, m.benchmark
    );
    let _ = writeln!(out, "# machine: {}; {} core(s)", m.machine, m.cores);
    let _ = writeln!(
        out,
        "# nic: {}; gpu: {}; port: {}; transport: {}; progress: {}",
        m.nic, m.gpu, m.port, m.transport, m.progress
    );
    if let Some(p) = &m.payload {
        let _ = writeln!(
            out,
            "# payload: {}; {} B sent, {} B of them staged",
            p.way, p.sent_bytes, p.staged_bytes
        );
    }
    let mut limits = Vec::new();
    if let Some(gbs) = m.limits.memcpy_gbs {
        limits.push(format!("memcpy {gbs:.2} GB/s"));
    }
    if let Some(ns) = m.limits.cacheline_pingpong_ns {
        limits.push(format!("cache-line ping-pong {ns:.0} ns"));
    }
    if let Some(gbs) = m.limits.udp_gbs {
        limits.push(format!("plain UDP {gbs:.2} GB/s"));
    }
    if let Some(gbs) = m.limits.udp_each_way_gbs {
        limits.push(format!("both ways at once {gbs:.2} each"));
    }
    if let Some(gbs) = m.limits.udp_by_packet_gbs {
        limits.push(format!("without segmentation offload {gbs:.2}"));
    }
    if let Some(ns) = m.limits.udp_pingpong_ns {
        limits.push(format!("plain UDP ping-pong {ns:.0} ns"));
    }
    if !limits.is_empty() {
        let _ = writeln!(
            out,
            "# limits of this machine, same run: {}",
            limits.join("; ")
        );
    }
    for note in &m.notes {
        let _ = writeln!(out, "# {note}");
    }
    let series = report.rows.iter().any(|r| r.series.is_some());
    let parameter = m.parameter.as_deref();
    let mut names = String::from("#");
    let mut units = String::from("#");
    if series {
        let _ = write!(names, " {:>12}", "series");
        let _ = write!(units, " {:>12}", "");
    }
    if let Some(p) = parameter {
        let _ = write!(names, " {p:>12}");
        let _ = write!(units, " {:>12}", "");
    }
    for (name, unit, width) in COLUMNS {
        let _ = write!(names, " {name:>width$}");
        let _ = write!(units, " {unit:>width$}");
    }
    let _ = writeln!(out, "#\n{names}\n{units}");
    for row in &report.rows {
        line(&mut out, row, series, parameter.is_some());
    }
    let checked = report.rows.iter().any(|r| r.wrong.is_some());
    let _ = match (checked, report.wrong()) {
        (false, _) => writeln!(out, "# data was not verified"),
        (true, 0) => writeln!(out, "# out of bounds values: 0 OK"),
        (true, n) => writeln!(out, "# out of bounds values: {n} FAILED"),
    };
    out
}

const COLUMNS: [(&str, &str, usize); 8] = [
    ("size", "(B)", 12),
    ("count", "", 10),
    ("time", "(us)", 10),
    ("p50", "(us)", 10),
    ("p99", "(us)", 10),
    ("algbw", "(GB/s)", 8),
    ("busbw", "(GB/s)", 8),
    ("#wrong", "", 7),
];

fn line(out: &mut String, r: &Row, series: bool, parameter: bool) {
    out.push(' ');
    if series {
        let _ = write!(out, " {:>12}", r.series.as_deref().unwrap_or(""));
    }
    if parameter {
        let text = r.parameter.map_or(String::new(), |p| p.to_string());
        let _ = write!(out, " {text:>12}");
    }
    let wrong = r.wrong.map_or("N/A".to_string(), |w| w.to_string());
    let _ = writeln!(
        out,
        " {:>12} {:>10} {:>10} {:>10} {:>10} {:>8.2} {:>8.2} {wrong:>7}",
        r.size_bytes,
        r.count,
        time(r.time_us),
        time(r.p50_us),
        time(r.p99_us),
        r.algbw_gbs,
        r.busbw_gbs,
    );
}

/// Three decimals where they are significant, as nccl-tests prints.
fn time(us: f64) -> String {
    match us {
        t if t >= 10_000.0 => format!("{t:.0}"),
        t if t >= 100.0 => format!("{t:.1}"),
        t => format!("{t:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Meta;

    fn report(wrong: Option<u64>) -> Report {
        Report {
            meta: Meta::new("send-bw"),
            rows: vec![Row {
                size_bytes: 1 << 20,
                count: 20,
                time_us: 77.25,
                algbw_gbs: 13.573,
                busbw_gbs: 13.573,
                wrong,
                ..Row::default()
            }],
        }
    }

    #[test]
    fn columns_stand_below_their_names() {
        let text = render(&report(Some(0)));
        let lines: Vec<&str> = text.lines().collect();
        let names = lines
            .iter()
            .position(|l| l.contains("algbw"))
            .expect("a header");
        let end = |line: &str, word: &str| line.find(word).map(|i| i + word.len());
        assert_eq!(end(lines[names], "size"), end(lines[names + 2], "1048576"));
        assert_eq!(
            end(lines[names], "busbw"),
            lines[names + 2].rfind("13.57").map(|i| i + 5)
        );
        assert!(text.ends_with("# out of bounds values: 0 OK\n"));
    }

    #[test]
    fn wrong_and_unverified_data_are_reported_differently() {
        assert!(render(&report(Some(3))).contains("3 FAILED"));
        assert!(render(&report(None)).contains("not verified"));
    }

    #[test]
    fn a_parameter_gets_a_column() {
        let mut r = report(None);
        r.meta.parameter = Some("connections".into());
        r.rows[0].parameter = Some(1000.0);
        r.rows[0].series = Some("kernel".into());
        let text = render(&r);
        assert!(text.contains("connections") && text.contains(" 1000 ") && text.contains("kernel"));
    }
}
