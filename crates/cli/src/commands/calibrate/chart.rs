//! Result of `ringway calibrate` as a picture: a table of each direction, in the colours of the
//! throughput.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use model::calibration::{Calibration, CellReport};

use super::text::{rate_text, short_size};

/// Width and height of a cell; space around the tables, in pixels.
const CELL: (u32, u32) = (54, 22);
const LEFT: u32 = 90;
const RIGHT: u32 = 20;
const TOP: u32 = 64;
const GAP: u32 = 24;
/// Width of the title.
const TITLE: u32 = 540;

/// Returns the picture.
pub(super) fn svg(found: &Calibration) -> String {
    let directions: Vec<_> = [("reads", false), ("writes", true)]
        .into_iter()
        .map(|(name, write)| {
            (name, found.cells.iter().filter(|cell| cell.write == write).collect())
        })
        .filter(|(_, cells): &(_, Vec<&CellReport>)| !cells.is_empty())
        .collect();
    let most = directions.iter().map(|(_, cells)| totals(cells).len()).max().unwrap_or(0) as u32;
    let widest = directions.iter().map(|(_, cells)| sizes(cells).len()).max().unwrap_or(0) as u32;
    let width = (LEFT + widest * CELL.0 + RIGHT).max(TITLE);
    let each = TOP + most * CELL.1 + GAP;
    let mut body = String::new();
    for ((name, cells), at) in directions.iter().zip(0..) {
        body += &table(name, cells, at * each);
    }
    let height = each * directions.len() as u32;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" \
         fill=\"#ffffff\"/>\n{body}</svg>\n"
    )
}

fn sizes(cells: &[&CellReport]) -> BTreeSet<u32> {
    cells.iter().map(|cell| cell.bytes).collect()
}

fn totals(cells: &[&CellReport]) -> BTreeSet<u32> {
    cells.iter().map(|cell| cell.bytes * cell.depth).collect()
}

/// Returns the table of one direction, `top` pixels from the upper edge.
fn table(name: &str, cells: &[&CellReport], top: u32) -> String {
    let sizes: Vec<u32> = sizes(cells).into_iter().collect();
    let totals: Vec<u32> = totals(cells).into_iter().collect();
    let best = cells.iter().map(|cell| cell.bytes_per_second).max().unwrap_or(1).max(1);
    let mut text = String::new();
    let mut label = |x: u32, y: u32, anchor: &str, fill: &str, what: &str| {
        let _ = writeln!(
            text,
            "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\" fill=\"{fill}\">{what}</text>"
        );
    };
    let place = |column: usize, row: usize| {
        (LEFT + column as u32 * CELL.0, top + TOP + row as u32 * CELL.1)
    };
    let title = format!("Random {name} in MB/s: bytes of a request across, bytes at a time down");
    label(LEFT, top + 24, "start", "#000000", &title);
    for (column, size) in sizes.iter().enumerate() {
        label(
            place(column, 0).0 + CELL.0 / 2,
            top + TOP - 8,
            "middle",
            "#444444",
            &short_size(*size),
        );
    }
    for (row, total) in totals.iter().enumerate() {
        label(LEFT - 10, place(0, row).1 + 15, "end", "#444444", &short_size(*total));
    }
    let mut boxes = String::new();
    for cell in cells {
        let column = sizes.iter().position(|size| *size == cell.bytes);
        let row = totals.iter().position(|total| *total == cell.bytes * cell.depth);
        let (Some(column), Some(row)) = (column, row) else { continue };
        let (x, y) = place(column, row);
        let share = cell.bytes_per_second as f64 / best as f64;
        let _ = writeln!(
            boxes,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{}\" height=\"{}\" fill=\"{}\"/>",
            CELL.0 - 2,
            CELL.1 - 2,
            colour(share)
        );
        let fill = if share > 0.55 { "#ffffff" } else { "#000000" };
        label(x + CELL.0 / 2 - 1, y + 14, "middle", fill, &rate_text(cell.bytes_per_second));
    }
    boxes + &text
}

/// Returns the colour of a share of the best throughput: white to dark blue.
fn colour(share: f64) -> String {
    let mix = |from: f64, to: f64| (from + (to - from) * share.clamp(0.0, 1.0)).round() as u8;
    format!("#{:02x}{:02x}{:02x}", mix(245.0, 20.0), mix(248.0, 70.0), mix(252.0, 140.0))
}
