//! Plot of every cell of a run, with a row for each system.

use super::axis::{Scale, short};
use super::svg::{Anchor, Sheet, width_of};
use super::{colour, label};
use crate::results::{Cell, Results};
use crate::stats::Summary;

const WIDTH: f64 = 900.0;
const MARGIN: f64 = 16.0;
const ROW: f64 = 22.0;
/// Height of a cell's title, and of its axis with the unit below.
const HEAD: f64 = 26.0;
const FOOT: f64 = 48.0;
/// Width at the right for the median's number.
const NUMBER: f64 = 70.0;
const NAME_SIZE: f64 = 12.0;
/// Length at which names are cut.
const NAME_LETTERS_MAX: usize = 52;

/// Draws all cells of a run below each other, each with its own scale.
#[must_use]
pub fn cells(results: &Results) -> String {
    let drawn: Vec<(&Cell, String)> =
        results.cells.iter().map(|cell| (cell, metric(results, cell))).collect();
    let height_of = |cell: &Cell| HEAD + ROW * cell.systems.len() as f64 + FOOT;
    let top = 76.0;
    let height = top + drawn.iter().map(|(cell, _)| height_of(cell)).sum::<f64>();
    let mut sheet = Sheet::new(WIDTH, height);
    let run = &results.run;
    let title = format!("{}, {} UTC, {} rounds", run.experiment, run.started_utc, run.rounds);
    sheet.bold((MARGIN, 26.0), &title, 16.0);
    let host = &run.host;
    let host = format!("{}, {} CPUs, Linux {}", host.cpu_model, host.cpus, host.kernel);
    sheet.text((MARGIN, 44.0), &host, 11.0, Anchor::Start);
    let key =
        "mark: median; band: spread (middle half of 8 rounds or more, else all); dots: rounds";
    sheet.text((MARGIN, 60.0), key, 11.0, Anchor::Start);
    let mut y = top;
    for (cell, metric) in drawn {
        draw(&mut sheet, cell, &metric, y);
        y += height_of(cell);
    }
    sheet.finish()
}

/// Returns the metric to draw: that of the cell's first bar or comparison, else the run's metric,
/// else any that its systems have.
fn metric(results: &Results, cell: &Cell) -> String {
    let mut judged: Vec<_> = results.compared.iter().filter(|c| c.cell == cell.id).collect();
    judged.sort_by_key(|c| c.bar.is_none());
    let has = |metric: &&str| cell.systems.iter().any(|s| s.summary.contains_key(*metric));
    let first = judged.first().map(|c| c.metric.as_str());
    let all = first.into_iter().chain([results.run.metric.as_str(), "iops", "p50_us"]);
    all.into_iter().find(has).unwrap_or_default().to_owned()
}

fn draw(sheet: &mut Sheet, cell: &Cell, metric: &str, top: f64) {
    let name = |name: &str| match name.char_indices().nth(NAME_LETTERS_MAX) {
        Some((at, _)) => format!("{}...", name.get(..at).unwrap_or(name)),
        None => name.to_owned(),
    };
    let names: Vec<String> = cell.systems.iter().map(|s| name(&s.name)).collect();
    let longest = names.iter().map(|n| width_of(n, NAME_SIZE)).fold(0.0, f64::max);
    let (left, right) = (MARGIN + longest + 10.0, WIDTH - MARGIN - NUMBER);
    let values: Vec<f64> = cell.systems.iter().flat_map(|s| s.values(metric)).collect();
    let scale = Scale::holding(&values, false);
    let x = |value: f64| left + scale.part(value) * (right - left);
    let bottom = top + HEAD + ROW * cell.systems.len() as f64;
    sheet.bold((MARGIN, top + 16.0), &cell.title, 13.0);
    for tick in &scale.ticks {
        sheet.line((x(*tick), top + HEAD), (x(*tick), bottom), "#dddddd", 1.0);
        sheet.text((x(*tick), bottom + 14.0), &short(*tick), 11.0, Anchor::Middle);
    }
    sheet.line((left, bottom), (right, bottom), "#888888", 1.0);
    sheet.text(((left + right) / 2.0, bottom + 29.0), label(metric), 11.0, Anchor::Middle);
    for (i, (series, name)) in cell.systems.iter().zip(&names).enumerate() {
        let y = top + HEAD + ROW * (i as f64 + 0.5);
        sheet.text((left - 10.0, y + 4.0), name, NAME_SIZE, Anchor::End);
        let values = series.values(metric);
        let Some(summary) = Summary::of(&values) else { continue };
        sheet.band((x(summary.low), y), (x(summary.high), y), colour(i), 10.0);
        for value in &values {
            sheet.dot((x(*value), y), 2.2, colour(i), 0.55);
        }
        let at = x(summary.median);
        sheet.line((at, y - 8.0), (at, y + 8.0), colour(i), 3.0);
        sheet.text((right + 8.0, y + 4.0), &short(summary.median), NAME_SIZE, Anchor::Start);
    }
}
