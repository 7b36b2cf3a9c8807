//! Plots of results, as SVG.
//!
//! [`cells()`] draws every cell of a run: a row per system, a dot per round, the spread as a bar,
//! the median as a mark. [`lines()`] draws the plots of an experiment: panels that share their
//! series, and medians over steps (think times, reactors). Each point shows its spread as a bar.
//! All pictures show the verdict and the marks of the run (`quick`, `noisy host`, `control run`) and
//! say which way is better. A program has one colour in every picture; its settings have shades.
//! The files are self-contained: no script, no font, no link.

mod axis;
mod cells;
mod lines;
mod metrics;
mod svg;
mod systems;

use serde::{Deserialize, Serialize};

use crate::results::Results;
pub use cells::cells;
pub use lines::lines;
pub use metrics::Better;
use svg::Sheet;
pub use systems::has_fixed_colour;

/// Plot of several panels.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlotPlan {
    /// Part of the file's name.
    pub name: String,
    /// Title for the reader.
    pub title: String,
    /// Number of panels per row.
    pub columns: usize,
    /// Panels, row by row.
    pub panels: Vec<PanelPlan>,
}

/// Panel with one pair of axes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PanelPlan {
    /// Title above the panel.
    pub title: String,
    /// Quantity of the steps, with its unit.
    pub x: String,
    /// Labels of the steps.
    pub steps: Vec<String>,
    /// Metric over the steps.
    pub metric: String,
    /// True for a logarithmic scale. A linear scale starts at 0.
    pub log: bool,
    /// Lines of the panel. A series of the same name looks the same in every panel.
    pub series: Vec<SeriesPlan>,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SeriesPlan {
    /// Name for the reader.
    pub name: String,
    /// Points of the line. Points without a measurement are left out.
    pub points: Vec<PointPlan>,
}

/// Source of one point.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PointPlan {
    /// Index of the step.
    pub step: usize,
    /// Id of the cell.
    pub cell: String,
    /// Name of the system.
    pub system: String,
    /// Metric of this point. `None` means that of the panel, whose label and unit it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<String>,
}

impl PointPlan {
    /// Creates a point of the panel's metric.
    pub fn new(step: usize, cell: impl Into<String>, system: impl Into<String>) -> Self {
        Self { step, cell: cell.into(), system: system.into(), metric: None }
    }
}

/// Draws the verdict and the marks of a run, such as `quick`, so that they end at a point.
fn flags(sheet: &mut Sheet, (mut x, y): (f64, f64), results: &Results) {
    const SIZE: f64 = 13.0;
    let verdict = results.verdict.map(|verdict| (verdict.word(), verdict.colour()));
    let marks = results.marks().into_iter().map(|mark| (mark, "#222222"));
    for (words, colour) in verdict.into_iter().chain(marks).collect::<Vec<_>>().into_iter().rev() {
        sheet.flag((x, y), words, SIZE, colour);
        x -= svg::width_of(words, SIZE) + 16.0;
    }
}
