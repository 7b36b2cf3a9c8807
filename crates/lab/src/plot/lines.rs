//! Panels of lines over steps.

use super::axis::{Scale, short};
use super::metrics::label;
use super::svg::{Anchor, Sheet, width_of};
use super::systems::Systems;
use super::{PanelPlan, PlotPlan, PointPlan, SeriesPlan, flags};
use crate::results::{Cell, Results};
use crate::stats::Summary;

const PANEL: (f64, f64) = (340.0, 270.0);
/// Margins of a panel: left for numbers and unit, top for the title, right, bottom for steps and
/// unit.
const INSETS: (f64, f64, f64, f64) = (64.0, 30.0, 14.0, 52.0);
const MARGIN: f64 = 12.0;
const LEGEND_ROW: f64 = 20.0;
const SIZE: f64 = 12.0;
/// Total horizontal spread of the points of different series at one step.
const ABREAST: f64 = 22.0;
/// Position of the legend's first row.
const LEGEND_TOP: f64 = 70.0;

/// Draws a plot that an experiment planned.
#[must_use]
pub fn lines(plan: &PlotPlan, results: &Results) -> String {
    let (systems, run) = (Systems::of(results), &results.run);
    let columns = plan.columns.clamp(1, plan.panels.len().max(1));
    let rows = plan.panels.len().div_ceil(columns);
    let names = names(plan);
    let width = 2.0 * MARGIN + PANEL.0 * columns.max(2) as f64;
    let full: Vec<String> = names.iter().map(|name| systems.full_name(name)).collect();
    let (places, bottom) = legend(&full, width);
    let top = bottom + 14.0;
    let mut sheet = Sheet::new(width, top + PANEL.1 * rows as f64 + MARGIN);
    sheet.bold((MARGIN, 26.0), &plan.title, 16.0);
    let about = format!("{} UTC, {} rounds", run.started_utc, run.rounds);
    sheet.text((MARGIN, 46.0), &about, 11.0, Anchor::Start);
    flags(&mut sheet, (width - MARGIN, 46.0), results);
    for ((x, y), (i, name)) in places.into_iter().zip(names.iter().enumerate()) {
        let colour = systems.colour(name);
        sheet.path(&[(x, y), (x + 26.0, y)], colour, Systems::is_dashed(name));
        sheet.mark((x + 13.0, y), i, colour);
        sheet.text((x + 32.0, y + 4.0), &full[i], SIZE, Anchor::Start);
    }
    for (i, panel) in plan.panels.iter().enumerate() {
        let (column, row) = ((i % columns) as f64, (i / columns) as f64);
        let origin = (MARGIN + column * PANEL.0, top + row * PANEL.1);
        Drawn::new(panel, &results.cells, origin, names.len()).draw(&mut sheet, &names, &systems);
    }
    sheet.finish()
}

/// Returns the name of every series once, in order.
fn names(plan: &PlotPlan) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for series in plan.panels.iter().flat_map(|panel| &panel.series) {
        if !names.contains(&series.name.as_str()) {
            names.push(&series.name);
        }
    }
    names
}

/// Returns the positions in the legend, in as many rows as needed, and its lower end.
fn legend(names: &[String], width: f64) -> (Vec<(f64, f64)>, f64) {
    let (mut x, mut y) = (MARGIN, LEGEND_TOP);
    let mut places = Vec::new();
    for name in names {
        let needs = 32.0 + width_of(name, SIZE) + 18.0;
        if x > MARGIN && x + needs > width - MARGIN {
            (x, y) = (MARGIN, y + LEGEND_ROW);
        }
        places.push((x, y));
        x += needs;
    }
    (places, y + 4.0)
}

/// Panel with its measured values.
struct Drawn<'a> {
    plan: &'a PanelPlan,
    points: Vec<(&'a str, Vec<(usize, Summary)>)>,
    scale: Scale,
    /// Left, top, right and bottom of the axes.
    frame: (f64, f64, f64, f64),
    abreast: usize,
}

impl<'a> Drawn<'a> {
    fn new(plan: &'a PanelPlan, cells: &'a [Cell], origin: (f64, f64), abreast: usize) -> Self {
        let summary = |point: &PointPlan| {
            let cell = cells.iter().find(|cell| cell.id == point.cell)?;
            let series = cell.systems.iter().find(|series| series.name == point.system)?;
            let metric = point.metric.as_ref().unwrap_or(&plan.metric);
            Some((point.step, *series.summary.get(metric)?))
        };
        let of = |series: &'a SeriesPlan| {
            (series.name.as_str(), series.points.iter().filter_map(summary).collect::<Vec<_>>())
        };
        let points: Vec<_> = plan.series.iter().map(of).collect();
        let all = points.iter().flat_map(|(_, points)| points);
        let values: Vec<f64> = all.flat_map(|(_, s)| [s.low, s.median, s.high]).collect();
        let (left, top, right, bottom) = INSETS;
        let frame = (
            origin.0 + left,
            origin.1 + top,
            origin.0 + PANEL.0 - right,
            origin.1 + PANEL.1 - bottom,
        );
        Self { plan, points, scale: Scale::holding(&values, plan.log), frame, abreast }
    }

    fn x(&self, step: usize, beside: usize) -> f64 {
        let (left, _, right, _) = self.frame;
        let each = (right - left) / self.plan.steps.len().max(1) as f64;
        let room = ABREAST.min(each * 0.6);
        let middle = (self.abreast.max(1) - 1) as f64 / 2.0;
        let shift = (beside as f64 - middle) * room / self.abreast.max(1) as f64;
        left + each * (step as f64 + 0.5) + shift
    }

    fn y(&self, value: f64) -> f64 {
        let (_, top, _, bottom) = self.frame;
        bottom - self.scale.part(value) * (bottom - top)
    }

    fn draw(&self, sheet: &mut Sheet, names: &[&str], systems: &Systems<'_>) {
        let (left, top, right, bottom) = self.frame;
        sheet.bold((left - 40.0, top - 12.0), &self.plan.title, 13.0);
        for tick in &self.scale.ticks {
            let y = self.y(*tick);
            sheet.line((left, y), (right, y), "#dddddd", 1.0);
            sheet.text((left - 6.0, y + 4.0), &short(*tick), 11.0, Anchor::End);
        }
        sheet.line((left, bottom), (right, bottom), "#888888", 1.0);
        sheet.line((left, top), (left, bottom), "#888888", 1.0);
        for (i, step) in self.plan.steps.iter().enumerate() {
            let each = (right - left) / self.plan.steps.len().max(1) as f64;
            let x = left + each * (i as f64 + 0.5);
            sheet.text((x, bottom + 15.0), step, 11.0, Anchor::Middle);
        }
        sheet.text(((left + right) / 2.0, bottom + 32.0), &self.plan.x, 11.0, Anchor::Middle);
        sheet.upright((left - 50.0, (top + bottom) / 2.0), &label(&self.plan.metric), 11.0);
        for (name, points) in &self.points {
            let index = names.iter().position(|n| n == name).unwrap_or_default();
            let at = |(step, s): &(usize, Summary)| (self.x(*step, index), self.y(s.median));
            let path: Vec<_> = points.iter().map(at).collect();
            let colour = systems.colour(name);
            sheet.path(&path, colour, Systems::is_dashed(name));
            for (step, summary) in points {
                let x = self.x(*step, index);
                let (low, high) = (self.y(summary.low), self.y(summary.high));
                sheet.band((x, low), (x, high), colour, 5.0);
                sheet.mark((x, self.y(summary.median)), index, colour);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::results::Series;

    fn cell(id: &str, value: f64) -> Cell {
        let sample = |value| BTreeMap::from([("iops".to_owned(), value)]);
        let samples = [0.9, 1.0, 1.2].map(|part| sample(part * value)).into();
        let systems = vec![Series::new("a".into(), samples)];
        Cell { id: id.into(), title: id.into(), systems }
    }

    #[test]
    fn what_was_measured_is_drawn_and_the_rest_is_left_out() {
        let point = |step, cell: &str| PointPlan::new(step, cell, "a");
        let points = vec![point(0, "c0"), point(1, "c1"), point(2, "not measured")];
        let panel = |title: &str, metric: &str| PanelPlan {
            title: title.into(),
            x: "think time, us".into(),
            steps: ["0", "10", "50"].map(Into::into).into(),
            metric: metric.into(),
            log: metric == "iops",
            series: vec![SeriesPlan { name: "auto & co".into(), points: points.clone() }],
        };
        let plan = PlotPlan {
            name: "n".into(),
            title: "A title".into(),
            columns: 2,
            panels: vec![panel("null", "iops"), panel("empty", "p50_us"), panel("more", "iops")],
        };
        let mut results = crate::results::tests::older();
        results.cells = vec![cell("c0", 100.0), cell("c1", 2000.0)];
        let svg = lines(&plan, &results);
        let words = ["A title", "requests a second (higher is better)", "think time, us"];
        for text in [&words[..], &["auto &amp; co", ">1000<", ">UNDECIDED<", ">quick<"]].concat() {
            assert!(svg.contains(text), "{text} in {svg}");
        }
        // Two panels with two points each, one panel without points, and a mark in the legend.
        assert_eq!(svg.matches("<circle").count(), 5);
        assert_eq!(svg.matches("stroke-opacity").count(), 4);
        assert_eq!(svg.matches("p50 latency, us (lower is better)").count(), 1);
    }
}
