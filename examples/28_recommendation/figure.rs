//! The figure: the share of requests that are answered within a time, a curve for each way.

use anyhow::Error;
use plotters::prelude::*;
use ringbell_perf::Row;

/// Colours that colour-blind people can tell apart (Okabe and Ito's).
const COLOURS: [RGBColor; 3] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
];

/// Draws rows that have a percentile.
pub(crate) fn svg(ways: &[(String, Vec<Row>)]) -> Result<String, Error> {
    let points = |rows: &[Row]| -> Vec<(f64, f64)> {
        let points = rows.iter().map(|r| Some((r.time_us / 1e3, r.parameter?)));
        points.flatten().collect()
    };
    let times = ways.iter().flat_map(|(_, rows)| points(rows));
    let (low, high) = times.fold((f64::MAX, f64::MIN), |(low, high), (ms, _)| {
        (low.min(ms), high.max(ms))
    });
    let mut out = String::new();
    {
        let area = SVGBackend::with_string(&mut out, (760, 420)).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .margin(16)
            .caption("Recommendations at half load", ("sans-serif", 18))
            .x_label_area_size(40)
            .y_label_area_size(50)
            .build_cartesian_2d((low / 1.3..high * 1.3).log_scale(), 0.0..100.0)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .x_desc("from arrival to answer, ms")
            .y_desc("percent of the requests")
            .draw()?;
        for ((name, rows), colour) in ways.iter().zip(COLOURS) {
            chart
                .draw_series(LineSeries::new(points(rows), colour.stroke_width(2)))?
                .label(name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour));
        }
        chart
            .configure_series_labels()
            .border_style(BLACK.mix(0.3))
            .background_style(WHITE)
            .position(SeriesLabelPosition::LowerRight)
            .draw()?;
        area.present()?;
    }
    Ok(out)
}
