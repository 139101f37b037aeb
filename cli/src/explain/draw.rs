//! Drawing of the state table: a cell for each NIC and step, an arrow for each message.

use anyhow::Result;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use ringbell::parts::onc_engines::program::{pretty, Cell, Table};

use crate::report::COLOURS;

/// Height of the gap below a cell, through which arrows run.
const GAP: i32 = 44;
/// Height of a cell without its lines, and of a line.
const PADDING: i32 = 22;
const LINE: i32 = 18;
/// Characters of a line, and lines of a cell; what does not fit ends with an ellipsis.
const CHARACTERS: usize = 30;
const LINES: usize = 3;
/// Height of the title and the heads of the columns.
const TOP: i32 = 64;
/// Width of the names of the rows.
const LEFT: i32 = 70;
const MARGIN: i32 = 8;
/// Height of the explanation below the cells.
const FOOT: i32 = 28;
const EXPLANATION: &str = "Time flows to the right. A cell: input / output of a NIC in a step; G GPU memory, E network, M NIC memory, S stream; subscript: chunk, superscript: contributions";
/// Width of a character of the cells' text.
const CHARACTER: i32 = 9;

/// Draws a table.
pub(super) fn svg(table: &Table, title: &str) -> Result<String> {
    let rows = table.rows.iter();
    let texts: Vec<Vec<Vec<String>>> = rows.map(|row| row.iter().map(lines).collect()).collect();
    let most = texts.iter().flatten().map(Vec::len).max().unwrap_or(1);
    let cell = PADDING + LINE * most as i32;
    let widths: Vec<i32> = (0..table.columns())
        .map(|t| {
            let lines = texts.iter().flat_map(|row| &row[t]);
            let longest = lines.map(|line| line.chars().count()).max();
            longest.unwrap_or(0) as i32 * CHARACTER + 4 * MARGIN
        })
        .collect();
    let left = |column: usize| LEFT + widths[..column].iter().sum::<i32>();
    let top = |row: usize| TOP + row as i32 * (cell + GAP);
    let size = (
        (left(widths.len()) + MARGIN).max(EXPLANATION.len() as i32 * 6) as u32,
        (top(texts.len()) + MARGIN + FOOT) as u32,
    );
    let mut out = String::new();
    {
        let area = SVGBackend::with_string(&mut out, size).into_drawing_area();
        area.fill(&WHITE)?;
        let style = |size: i32| ("sans-serif", size).into_font().color(&BLACK);
        let middle = style(15).pos(Pos::new(HPos::Center, VPos::Center));
        let at_left = style(15).pos(Pos::new(HPos::Left, VPos::Center));
        area.draw_text(title, &style(18), (MARGIN, MARGIN))?;
        let below = size.1 as i32 - FOOT;
        area.draw_text(EXPLANATION, &style(12), (MARGIN, below))?;
        for (t, width) in widths.iter().enumerate() {
            let head = pretty(&format!("t_{{{t}}}"));
            area.draw_text(&head, &middle, (left(t) + width / 2, TOP - 16))?;
        }
        // Below the cells, so that those between two ranks stay readable.
        for arrow in &table.arrows {
            let (from, to) = (arrow.from as usize, arrow.to as usize);
            let (out, into) = (arrow.out as usize, arrow.into as usize);
            let down = to > from;
            // From the border before the column that sends to the one after the column that receives; the two arrows of an
            // exchange stand beside each other.
            let beside = if down { -4 } else { 4 };
            let x0 = left(out) + beside;
            let x1 = (left(into + 1) + beside).max(x0);
            let y0 = top(from) + if down { cell } else { 0 };
            let y1 = top(to) + if down { 0 } else { cell };
            let colour = COLOURS[from % COLOURS.len()];
            area.draw(&PathElement::new(
                [(x0, y0), (x1, y1)],
                colour.stroke_width(1),
            ))?;
            area.draw(&Polygon::new(head((x0, y0), (x1, y1)), colour))?;
        }
        for (rank, row) in texts.iter().enumerate() {
            let name = format!("NIC {rank}");
            area.draw_text(&name, &at_left, (MARGIN, top(rank) + cell / 2))?;
            for (t, lines) in row.iter().enumerate() {
                let corner = (left(t) + MARGIN, top(rank));
                let end = (left(t) + widths[t] - MARGIN, top(rank) + cell);
                let fill = match lines[0] == "-/-" {
                    true => RGBColor(245, 245, 245),
                    false => RGBColor(226, 238, 250),
                };
                area.draw(&Rectangle::new([corner, end], fill.filled()))?;
                area.draw(&Rectangle::new([corner, end], BLACK.mix(0.4)))?;
                let x = left(t) + widths[t] / 2;
                let first = top(rank) + cell / 2 - LINE * (lines.len() as i32 - 1) / 2;
                for (i, line) in lines.iter().enumerate() {
                    area.draw_text(line, &middle, (x, first + LINE * i as i32))?;
                }
            }
        }
        area.present()?;
    }
    Ok(out)
}

/// A cell's text, broken at spaces.
fn lines(cell: &Cell) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in pretty(&cell.to_string()).split(' ') {
        let last = lines.len() - 1;
        let line = &mut lines[last];
        let length = line.chars().count();
        if length > 0 && length + 1 + word.chars().count() > CHARACTERS {
            if lines.len() == LINES {
                lines[last].push_str(" …");
                return lines;
            }
            lines.push(word.into());
        } else {
            let gap = if length == 0 { "" } else { " " };
            *line = format!("{line}{gap}{word}");
        }
    }
    lines
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
