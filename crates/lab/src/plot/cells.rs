//! Plot of every cell of a run, with a row for each system.

use super::axis::{Scale, short};
use super::flags;
use super::metrics::label;
use super::svg::{Anchor, Sheet, width_of};
use super::systems::Systems;
use crate::results::{Cell, Results};
use crate::stats::Summary;
use crate::verdict::Verdict;

const WIDTH: f64 = 900.0;
const MARGIN: f64 = 16.0;
const ROW: f64 = 22.0;
/// Height of a cell's title, and of its axis with the unit below.
const HEAD: f64 = 26.0;
const FOOT: f64 = 48.0;
/// Width at the right for the median's number.
const NUMBER: f64 = 70.0;
const NAME_SIZE: f64 = 12.0;
/// Length at which names continue in another line.
const NAME_LETTERS_MAX: usize = 48;
const NAME_LINE: f64 = 14.0;

/// Draws all cells of a run below each other, each with its own scale.
#[must_use]
pub fn cells(results: &Results) -> String {
    let systems = Systems::of(results);
    let drawn: Vec<Drawn<'_>> =
        results.cells.iter().map(|cell| Drawn::new(results, cell, &systems)).collect();
    let top = 76.0;
    let mut sheet = Sheet::new(WIDTH, top + drawn.iter().map(Drawn::height).sum::<f64>());
    let run = &results.run;
    let title = format!("{}, {} UTC, {} rounds", run.experiment, run.started_utc, run.rounds);
    sheet.bold((MARGIN, 26.0), &title, 16.0);
    flags(&mut sheet, (WIDTH - MARGIN, 26.0), results);
    let host = &run.host;
    let host = format!("{}, {} CPUs, Linux {}", host.cpu_model, host.cpus, host.kernel);
    sheet.text((MARGIN, 44.0), &host, 11.0, Anchor::Start);
    let key =
        "mark: median; band: spread (middle half of 8 rounds or more, else all); dots: rounds";
    sheet.text((MARGIN, 60.0), key, 11.0, Anchor::Start);
    let mut y = top;
    for cell in drawn {
        cell.draw(&mut sheet, y);
        y += cell.height();
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

/// Cell with what its picture shows.
struct Drawn<'a> {
    cell: &'a Cell,
    metric: String,
    verdict: Option<Verdict>,
    /// Colour, and lines of the name, of each system.
    rows: Vec<(&'static str, Vec<String>)>,
}

impl<'a> Drawn<'a> {
    fn new(results: &Results, cell: &'a Cell, systems: &Systems<'_>) -> Self {
        let row = |name: &str| (systems.colour(name), lines(&systems.full_name(name)));
        Self {
            cell,
            metric: metric(results, cell),
            verdict: results.verdict_of(&cell.id),
            rows: cell.systems.iter().map(|system| row(&system.name)).collect(),
        }
    }

    fn height(&self) -> f64 {
        HEAD + self.rows.iter().map(|(_, name)| row_height(name)).sum::<f64>() + FOOT
    }

    fn draw(&self, sheet: &mut Sheet, top: f64) {
        let widths = self.rows.iter().flat_map(|(_, name)| name).map(|n| width_of(n, NAME_SIZE));
        let longest = widths.fold(0.0, f64::max);
        let (left, right) = (MARGIN + longest + 10.0, WIDTH - MARGIN - NUMBER);
        let values: Vec<f64> =
            self.cell.systems.iter().flat_map(|s| s.values(&self.metric)).collect();
        let scale = Scale::holding(&values, false);
        let x = |value: f64| left + scale.part(value) * (right - left);
        let bottom = top + self.height() - FOOT;
        sheet.bold((MARGIN, top + 16.0), &self.cell.title, 13.0);
        if let Some(verdict) = self.verdict {
            sheet.flag((WIDTH - MARGIN, top + 16.0), verdict.word(), 11.0, verdict.colour());
        }
        for tick in &scale.ticks {
            sheet.line((x(*tick), top + HEAD), (x(*tick), bottom), "#dddddd", 1.0);
            sheet.text((x(*tick), bottom + 14.0), &short(*tick), 11.0, Anchor::Middle);
        }
        sheet.line((left, bottom), (right, bottom), "#888888", 1.0);
        let middle = (left + right) / 2.0;
        sheet.text((middle, bottom + 29.0), &label(&self.metric), 11.0, Anchor::Middle);
        let mut y = top + HEAD;
        for (series, (colour, name)) in self.cell.systems.iter().zip(&self.rows) {
            y += row_height(name) / 2.0;
            let first = y + 4.0 - NAME_LINE * (name.len() as f64 - 1.0) / 2.0;
            for (i, line) in name.iter().enumerate() {
                let at = (left - 10.0, first + NAME_LINE * i as f64);
                sheet.text(at, line, NAME_SIZE, Anchor::End);
            }
            let values = series.values(&self.metric);
            if let Some(summary) = Summary::of(&values) {
                sheet.band((x(summary.low), y), (x(summary.high), y), colour, 10.0);
                for value in &values {
                    sheet.dot((x(*value), y), 2.2, colour, 0.55);
                }
                let at = x(summary.median);
                sheet.line((at, y - 8.0), (at, y + 8.0), colour, 3.0);
                let number = short(summary.median);
                sheet.text((right + 8.0, y + 4.0), &number, NAME_SIZE, Anchor::Start);
            }
            y += row_height(name) / 2.0;
        }
    }
}

fn row_height(name: &[String]) -> f64 {
    ROW + NAME_LINE * (name.len() as f64 - 1.0)
}

/// Splits a name into lines between words.
fn lines(name: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in name.split(' ') {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= NAME_LETTERS_MAX => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_continue_in_another_line() {
        assert_eq!(lines("qemu-storage-daemon 7.2.22"), ["qemu-storage-daemon 7.2.22"]);
        let long = "qemu-storage-daemon 7.2.22 poll-max-ns=0 direct in the place of ringway-blk";
        let halves =
            ["qemu-storage-daemon 7.2.22 poll-max-ns=0 direct", "in the place of ringway-blk"];
        assert_eq!(lines(long), halves);
    }

    #[test]
    fn a_picture_shows_verdict_marks_direction_and_full_names() {
        let svg = cells(&crate::results::tests::older());
        for text in [
            ">requests a second (higher is better)<",
            ">qemu-storage-daemon 7.2.22 direct<",
            ">ringway-blk 0.1.0 --poll auto --cache none<",
            ">quick<",
            ">noisy host<",
        ] {
            assert_eq!(svg.matches(text).count(), 1, "{text} in {svg}");
        }
        // One for the run, one for the cell.
        assert_eq!(svg.matches(r##"fill="#9a6700">UNDECIDED<"##).count(), 2, "{svg}");
        assert!(!svg.contains(">qsd"), "{svg}");
    }
}
