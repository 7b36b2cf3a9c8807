//! Plot of the matrix.

use super::cases::{Case, StreamEnds};
use super::path::StreamPath;
use crate::experiment::{Options, PanelPlan, PlotPlan, PointPlan, SeriesPlan};

/// Plots streams on x, with a line for each number of pairs.
pub(super) fn plot(cases: &[Case], options: &Options) -> PlotPlan {
    let panel = |stream_ends: StreamEnds, metric: &str| {
        let here = cases.iter().filter(|case| case.stream_ends == stream_ends);
        let here: Vec<Case> = here.copied().collect();
        let mut ways = here.first().map(|case| case.ways(options)).unwrap_or_default();
        ways.retain(|stream_path| {
            !matches!(stream_path, StreamPath::OneOf(_) | StreamPath::Turns(_))
        });
        let title =
            if stream_ends == StreamEnds::Host { "guest and host" } else { "guest to guest" };
        let line = |stream_path: StreamPath| SeriesPlan {
            name: stream_path.name(),
            points: here
                .iter()
                .enumerate()
                .map(|(step, case)| PointPlan::new(step, case.id(), stream_path.name()))
                .collect(),
        };
        PanelPlan {
            title: title.to_owned(),
            x: "TCP streams".to_owned(),
            steps: here.iter().map(|case| case.streams.to_string()).collect(),
            metric: metric.to_owned(),
            log: false,
            series: ways.into_iter().map(line).collect(),
        }
    };
    let (both, metrics) = ([StreamEnds::Guests, StreamEnds::Host], ["gbit_per_s", "backend_cpus"]);
    PlotPlan {
        name: "lines".to_owned(),
        title: "net-queues: TCP streams over pairs of queues".to_owned(),
        columns: metrics.len(),
        panels: both.into_iter().flat_map(|who| metrics.map(|m| panel(who, m))).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_line_for_each_way_with_all_streams() {
        let options = Options::default();
        let all = plot(&Case::all(&options), &options);
        assert_eq!(
            all.panels.iter().map(|panel| panel.series.len()).collect::<Vec<_>>(),
            [8, 8, 10, 10]
        );
        assert!(all.panels[0].series.iter().all(|line| line.points.len() == 4));
    }
}
