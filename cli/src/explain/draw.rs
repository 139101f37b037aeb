//! Drawing of the state table: a cell for each NIC and step, an arrow for each message.

use anyhow::Result;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use ringbell::parts::onc_engines::program::{pretty, Cell, Table};

/// Height of a row, and the part of it that the cell fills; arrows run between the cells.
const ROW: i32 = 84;
const CELL: i32 = 40;
/// Height of the title and the heads of the columns.
const TOP: i32 = 64;
/// Width of the names of the rows.
const LEFT: i32 = 70;
const MARGIN: i32 = 8;
/// Width of a character of the cells' text.
const CHARACTER: i32 = 9;

/// Draws a table.
pub(super) fn svg(table: &Table, title: &str) -> Result<String> {
    let texts: Vec<Vec<String>> = table.rows.iter().map(|row| texts(row)).collect();
    let widths: Vec<i32> = (0..table.columns())
        .map(|t| {
            let longest = texts.iter().map(|row| row[t].chars().count()).max();
            longest.unwrap_or(0) as i32 * CHARACTER + 4 * MARGIN
        })
        .collect();
    let left = |column: usize| LEFT + widths[..column].iter().sum::<i32>();
    let top = |row: usize| TOP + row as i32 * ROW;
    let size = (
        (left(widths.len()) + MARGIN) as u32,
        (top(texts.len()) + MARGIN) as u32,
    );
    let mut out = String::new();
    {
        let area = SVGBackend::with_string(&mut out, size).into_drawing_area();
        area.fill(&WHITE)?;
        let style = |size: i32| ("sans-serif", size).into_font().color(&BLACK);
        let middle = style(15).pos(Pos::new(HPos::Center, VPos::Center));
        let at_left = style(15).pos(Pos::new(HPos::Left, VPos::Center));
        area.draw_text(title, &style(18), (MARGIN, MARGIN))?;
        for (t, width) in widths.iter().enumerate() {
            let head = pretty(&format!("t_{{{t}}}"));
            area.draw_text(&head, &middle, (left(t) + width / 2, TOP - 16))?;
        }
        // Below the cells, so that those between two ranks stay readable.
        for arrow in &table.arrows {
            let (from, to) = (arrow.from as usize, arrow.to as usize);
            let (out, into) = (arrow.out as usize, arrow.into as usize);
            // From the right side of one cell to the left side of another: they may be above each other.
            let x0 = left(out) + widths[out] * 3 / 4;
            let x1 = left(into) + widths[into] / 4;
            let down = to > from;
            let y0 = top(from) + if down { CELL } else { 0 };
            let y1 = top(to) + if down { 0 } else { CELL };
            let colour = Palette99::pick(from).to_rgba().mix(0.8);
            area.draw(&PathElement::new(
                [(x0, y0), (x1, y1)],
                colour.stroke_width(1),
            ))?;
            area.draw(&Polygon::new(head((x0, y0), (x1, y1)), colour))?;
        }
        for (rank, row) in texts.iter().enumerate() {
            let name = format!("NIC {rank}");
            area.draw_text(&name, &at_left, (MARGIN, top(rank) + CELL / 2))?;
            for (t, text) in row.iter().enumerate() {
                let corner = (left(t) + MARGIN, top(rank));
                let end = (left(t) + widths[t] - MARGIN, top(rank) + CELL);
                let fill = if text == "-/-" {
                    RGBColor(245, 245, 245)
                } else {
                    RGBColor(226, 238, 250)
                };
                area.draw(&Rectangle::new([corner, end], fill.filled()))?;
                area.draw(&Rectangle::new([corner, end], BLACK.mix(0.4)))?;
                let centre = (left(t) + widths[t] / 2, top(rank) + CELL / 2);
                area.draw_text(text, &middle, centre)?;
            }
        }
        area.present()?;
    }
    Ok(out)
}

fn texts(row: &[Cell]) -> Vec<String> {
    row.iter().map(|c| pretty(&c.to_string())).collect()
}

/// The head of an arrow: a triangle that ends at `b`.
fn head(a: (i32, i32), b: (i32, i32)) -> Vec<(i32, i32)> {
    let (dx, dy) = (f64::from(b.0 - a.0), f64::from(b.1 - a.1));
    let length = dx.hypot(dy).max(1.0);
    let (ux, uy) = (dx / length * 7.0, dy / length * 7.0);
    let side = |sign: f64| {
        let x = f64::from(b.0) - ux - sign * uy / 2.0;
        let y = f64::from(b.1) - uy + sign * ux / 2.0;
        (x.round() as i32, y.round() as i32)
    };
    vec![b, side(1.0), side(-1.0)]
}
