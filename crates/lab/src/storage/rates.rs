//! Picture of the rates of disks over a run in which a weight changes.

use crate::experiment::{PanelPlan, PlotPlan, PointPlan, SeriesPlan};

/// Points of a line.
pub(super) const BINS: usize = 24;

/// Returns the metric with the rate of a disk at a point, in MiB/s.
pub(super) fn bin_metric(disk: usize, bin: usize) -> String {
    format!("mib_per_s_d{disk}_t{bin}")
}

/// Draws a line for each of `disks`, from the samples of a system in a cell.
pub(super) fn rates_plot(
    title: String,
    panel: String,
    (cell, system): (&str, &str),
    disks: usize,
) -> PlotPlan {
    let point = |disk, bin| PointPlan {
        metric: Some(bin_metric(disk, bin)),
        ..PointPlan::new(bin, cell, system)
    };
    let series = |disk| SeriesPlan {
        name: format!("ringway-io, disk {}", disk + 1),
        points: (0..BINS).map(|bin| point(disk, bin)).collect(),
    };
    // Every sixth point is labelled with the part of the run that has passed.
    let label = |bin: usize| match bin * 100 / BINS {
        percent if bin.is_multiple_of(6) => format!("{percent} %"),
        _ => String::new(),
    };
    PlotPlan {
        name: "lines".into(),
        title,
        columns: 1,
        panels: vec![PanelPlan {
            title: panel,
            x: "part of the run".into(),
            steps: (0..BINS).map(label).collect(),
            metric: "mib_per_s".into(),
            log: false,
            series: (0..disks).map(series).collect(),
        }],
    }
}
