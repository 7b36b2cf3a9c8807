//! Pictures of results, as SVG.
//!
//! [`cells()`] draws every cell of a run: one row a system, a dot for every round, the spread as a bar,
//! the median as a mark. [`lines()`] draws what an experiment plans: panels that share their series,
//! medians over steps of something (think times, reactors), the spread as a bar at each point.
//! Files are complete as they stand: no script, no font, no link.

mod axis;
mod cells;
mod lines;
mod svg;

use serde::{Deserialize, Serialize};

pub use cells::cells;
pub use lines::lines;

/// One picture of several panels.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlotPlan {
    /// Part of the file's name.
    pub name: String,
    /// What a reader calls it.
    pub title: String,
    /// Panels beside each other.
    pub columns: usize,
    /// The panels, row by row.
    pub panels: Vec<PanelPlan>,
}

/// One pair of axes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PanelPlan {
    /// Above it.
    pub title: String,
    /// What the steps are steps of, with the unit.
    pub x: String,
    /// The steps.
    pub steps: Vec<String>,
    /// What is drawn over them.
    pub metric: String,
    /// A logarithmic scale; without it the scale begins at 0.
    pub log: bool,
    /// One line each; a series of the same name looks the same in every panel.
    pub series: Vec<SeriesPlan>,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SeriesPlan {
    /// What a reader calls it.
    pub name: String,
    /// Its points; those that were not measured are left out.
    pub points: Vec<PointPlan>,
}

/// Where one point comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PointPlan {
    /// The step's place among the steps.
    pub step: usize,
    /// The cell's id.
    pub cell: String,
    /// The system.
    pub system: String,
}

/// Colours that can be told apart by most, also those who see fewer of them (Okabe and Ito).
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#7f7f7f"];

fn colour(index: usize) -> &'static str {
    COLOURS[index % COLOURS.len()]
}

/// A metric as a reader knows it, with its unit.
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
