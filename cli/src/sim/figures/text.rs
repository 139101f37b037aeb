//! A figure's points as a table, as JSON and as a picture.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use ringbell_sim::Profile;
use serde_json::{json, Value};

use super::measure::Measured;
use super::papers::{Figure, Left, Point, Work};
use crate::report::{draw, size_text, Axis, Meta, Plot, Report, Row};
use crate::sim::fault::us;

/// What is above the table.
pub(super) fn head(figure: &Figure, profile: &Profile) -> String {
    let mut out = format!("# ringbell sim figures {}\n", figure.name);
    let _ = writeln!(out, "# {}, {}", figure.paper, figure.title);
    let _ = writeln!(
        out,
        "# profile {}: {} Gb/s, {} ns a link; {}",
        profile.name, profile.link_gbps, profile.link_delay_ns, profile.source
    );
    let _ = writeln!(out, "# stated, {}", figure.stated);
    let _ = writeln!(out, "# theirs and ours: {}", figure.work.quantity());
    let network = column(figure, "network");
    let _ = writeln!(
        out,
        "#{:>6}{network} {:>9} {:>12} {:>9} {:>9} {:>7} {:>7}",
        "ranks", "size", "time (us)", "theirs", "ours", "ratio", "#wrong"
    );
    out
}

/// The network of a point, and to which rank its messages go.
fn place(figure: &Figure, point: Point) -> Option<String> {
    let topology = point.topology?;
    Some(match figure.work {
        Work::BusBandwidth(..) | Work::Time(..) => topology.into(),
        Work::Message | Work::RoundTrip | Work::Latency => format!("{topology} to {}", point.to),
    })
}

/// A cell that says where it is, in a figure whose points are over other networks than a switch.
fn column(figure: &Figure, text: &str) -> String {
    let has_places = figure.points.iter().any(|p| p.topology.is_some());
    match has_places {
        true => format!(" {text:>12}"),
        false => String::new(),
    }
}

/// A line of the table.
pub(super) fn line(figure: &Figure, m: &Measured) -> String {
    let place = place(figure, m.point).unwrap_or_default();
    let number = |n: Option<f64>| n.map_or_else(|| "-".into(), |n| format!("{n:.2}"));
    format!(
        " {:>6}{} {:>9} {:>12.2} {:>9} {:>9.2} {:>7} {:>7}",
        m.point.ranks,
        column(figure, &place),
        size_text(m.point.bytes),
        us(m.time_ns),
        number(m.point.theirs),
        m.value,
        number(m.ratio()),
        m.wrong
    )
}

/// Why points differ from the paper's, where some do.
pub(super) fn differs<'a>(figure: &'a Figure, points: &[Measured]) -> Option<&'a str> {
    points
        .iter()
        .any(Measured::is_wide)
        .then_some(match figure.differs {
            "" => "no reason is known",
            why => why,
        })
}

/// A figure as JSON.
pub(super) fn json(figure: &Figure, points: &[Measured]) -> Value {
    let rows = points.iter().map(|m| {
        json!({
            "ranks": m.point.ranks,
            "topology": m.point.topology,
            "to": m.point.topology.map(|_| m.point.to),
            "size_bytes": m.point.bytes,
            "time_us": us(m.time_ns),
            "theirs": m.point.theirs,
            "ours": m.value,
            "ratio": m.ratio(),
            "wrong": m.wrong,
        })
    });
    json!({
        "name": figure.name,
        "paper": figure.paper,
        "title": figure.title,
        "profile": figure.profile,
        "quantity": figure.work.quantity(),
        "stated": figure.stated,
        "points": rows.collect::<Vec<_>>(),
        "differs": differs(figure, points),
    })
}

/// Whether a number differs among a figure's points.
fn differ<T: PartialEq>(figure: &Figure, of: impl Fn(&Point) -> T) -> bool {
    let mut all = figure.points.iter().map(of);
    let first = all.next();
    all.any(|n| Some(n) != first)
}

/// The paper's points beside ours: by size where that differs, else by ranks or hops.
pub(super) fn picture(figure: &Figure, points: &[Measured]) -> Result<String> {
    let by_size = differ(figure, |p| p.bytes);
    let by_ranks = differ(figure, |p| p.ranks);
    let parameter = |p: Point| match by_ranks {
        true => p.ranks as f64,
        false => p.to as f64,
    };
    let mut meta = Meta::new("sim figures");
    meta.nic = "simulated".into();
    meta.transport = "rdma".into();
    let name = if by_ranks { "ranks" } else { "hops" };
    meta.parameter = (!by_size).then(|| name.into());
    let row = |series: &str, m: &Measured, value: f64| Row {
        series: Some(match place(figure, m.point).filter(|_| by_size) {
            Some(place) => format!("{series}, {place}"),
            None => series.into(),
        }),
        parameter: (!by_size).then(|| parameter(m.point)),
        size_bytes: m.point.bytes,
        time_us: value,
        algbw_gbs: value,
        busbw_gbs: value,
        ..Row::default()
    };
    let ours = points.iter().map(|m| row("ours", m, m.value));
    let papers = points
        .iter()
        .filter_map(|m| Some(row("stated", m, m.point.theirs?)));
    let rows = ours.chain(papers).collect();
    let plot = Plot {
        title: format!("{}, {}", figure.paper, figure.title),
        x: match by_size {
            true => Axis::Size,
            false => Axis::Parameter,
        },
        y: figure.work.axis(),
    };
    draw(&Report { meta, rows }, &plot).with_context(|| format!("cannot draw {}", figure.name))
}

/// All figures by name, and those that are not repeated.
pub(super) fn list(figures: &[Figure], left: &[Left]) -> String {
    let names = figures
        .iter()
        .map(|f| f.name)
        .chain(left.iter().map(|l| l.name));
    let width = names.map(str::len).max().unwrap_or(0);
    let mut out =
        "# figures that `ringbell sim figures NAME` simulates; `all` takes all\n".to_string();
    for f in figures {
        let _ = writeln!(out, "{:<width$}  {}, {}", f.name, f.paper, f.title);
    }
    out += "# not simulated, and why\n";
    for l in left {
        let _ = writeln!(out, "{:<width$}  {}", l.name, l.why);
    }
    out
}

#[cfg(test)]
mod tests {
    use ringbell::comm::CollectiveKind;
    use ringbell::Algorithm;

    use super::*;

    const FIGURE: Figure = Figure {
        name: "x-1",
        paper: "X",
        title: "Figure 1",
        profile: "ideal",
        work: Work::BusBandwidth(CollectiveKind::AllReduce, Algorithm::Ring),
        points: &[],
        stated: "",
        differs: "it is far",
    };

    fn at(value: f64, theirs: Option<f64>) -> Measured {
        Measured {
            point: Point {
                ranks: 2,
                topology: None,
                to: 1,
                bytes: 65_536,
                theirs,
            },
            time_ns: 12_345,
            value,
            wrong: 0,
        }
    }

    #[test]
    fn a_reason_stands_only_where_a_point_differs() {
        let near = [at(9.0, Some(10.0)), at(1.0, None)];
        assert_eq!(differs(&FIGURE, &near), None);
        let far = [at(8.0, Some(10.0)), at(10.0, Some(10.0))];
        assert_eq!(differs(&FIGURE, &far), Some("it is far"));
        assert_eq!(json(&FIGURE, &far)["differs"], "it is far");
        assert_eq!(json(&FIGURE, &near)["points"][0]["ratio"], 0.9);
        let unknown = Figure {
            differs: "",
            ..FIGURE
        };
        assert_eq!(differs(&unknown, &far), Some("no reason is known"));
    }

    #[test]
    fn a_point_without_a_number_has_dashes() {
        let cells = |m: &Measured| {
            line(&FIGURE, m)
                .split_whitespace()
                .map(String::from)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            cells(&at(1.0, None)),
            ["2", "64K", "12.35", "-", "1.00", "-", "0"]
        );
        assert_eq!(
            cells(&at(9.0, Some(10.0))),
            ["2", "64K", "12.35", "10.00", "9.00", "0.90", "0"]
        );
    }
}
