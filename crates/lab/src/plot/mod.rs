//! Plots of results, as SVG.
//!
//! [`cells()`] draws every cell of a run: a row per system, a dot per round, the spread as a bar,
//! the median as a mark. [`lines()`] draws the plots of an experiment: panels that share their
//! series, and medians over steps (think times, reactors). Each point shows its spread as a bar.
//! The files are self-contained: no script, no font, no link.

mod axis;
mod cells;
mod lines;
mod svg;

use serde::{Deserialize, Serialize};

pub use cells::cells;
pub use lines::lines;

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
}

/// Colours that most readers can distinguish, including colour-blind ones (Okabe and Ito).
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#7f7f7f"];

fn colour(index: usize) -> &'static str {
    COLOURS[index % COLOURS.len()]
}

/// Returns a metric's label with its unit.
fn label(metric: &str) -> &str {
    match metric {
        "iops" => "requests a second",
        "mib_per_s" => "MiB/s",
        "p50_us" => "p50 latency, us",
        "p99_us" => "p99 latency, us",
        "backend_cpus" => "CPUs used by the backend",
        "cpu_percent" => "CPU, % of one core",
        "frames_per_s" => "frames a second",
        "frames_per_cpu_s" => "frames a CPU second",
        "gbit_per_s" => "Gb/s",
        "gbit_per_cpu_s" => "Gb a CPU second",
        "gbit_per_busy_s" => "Gb a CPU second of everything",
        "imbalance_worst" => "most loaded queue over the mean, worst draw",
        "1/percentile" => "1 / latency, 1/s",
        other => other,
    }
}
