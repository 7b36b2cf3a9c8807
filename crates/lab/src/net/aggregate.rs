//! `net-aggregate`: 1 to 20 pairs of NICs at once.
//!
//! As more guests send, the total must grow or stay constant, never fall. This experiment checks
//! that a frame costs as much with twenty pairs as with one.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use super::client::{self, FULL, Lane, Shape, tcp};
use super::systems::{System, versions};
use super::tso::BYTES;
use crate::blk::client::Window;
use crate::blk::systems::Poll;
use crate::cpu::Placement;
use crate::experiment::{
    CellPlan, Comparison, Experiment, Options, PanelPlan, Plan, PlotPlan, PointPlan, Prepared,
    Sample, SeriesPlan, Side,
};

/// Pairs of NICs at once, in ascending order.
const PAIRS: [u8; 5] = [1, 2, 5, 10, MOST];
const MOST: u8 = 20;
/// Frames in flight between each pair.
const DEPTH: u16 = 32;
/// Most CPU time of a frame with twenty pairs, over that with one pair that has as many buffers.
const BAR: f64 = 1.1;
const COST: &str = "backend_cpu_us_per_request";
/// Id of a cell, and size of its frames in bytes.
const CASES: [(&str, usize); 2] = [("pairs-1500", FULL), ("pairs-64k", BYTES)];
const OURS: System = System::Ringway(Poll::Auto);

/// The `net-aggregate` experiment.
#[derive(Debug)]
pub struct NetAggregate;

/// Pairs of NICs that the switch serves at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Row {
    /// This number of pairs, with as many buffers as frames in flight.
    Pairs(u8),
    /// One pair with all the buffers of twenty.
    Wide,
}

impl Row {
    fn all(quick: bool) -> Vec<Self> {
        let pairs = if quick { &[1, MOST][..] } else { &PAIRS };
        pairs.iter().copied().map(Self::Pairs).chain([Self::Wide]).collect()
    }

    fn pairs(self) -> u8 {
        match self {
            Self::Pairs(pairs) => pairs,
            Self::Wide => 1,
        }
    }

    fn name(self) -> String {
        match self {
            Self::Pairs(1) => "1 pair of NICs".to_owned(),
            Self::Pairs(pairs) => format!("{pairs} pairs of NICs"),
            Self::Wide => format!("1 pair of NICs, buffers of {MOST}"),
        }
    }

    fn shape(self) -> Shape {
        let shape = Shape::new(DEPTH, [1; 2]);
        match self {
            Self::Pairs(_) => shape,
            Self::Wide => shape.over(DEPTH * u16::from(MOST)),
        }
    }
}

/// Compares twenty pairs with one. The buffers of one pair fit in the CPU's own cache, those of
/// twenty do not, and no switch can compensate. So the bar compares with one pair that has as many
/// buffers. It applies to frames of one segment, because the large frames of twenty pairs fit in no
/// cache.
fn comparisons(cell: &str, control: bool) -> [Comparison; 2] {
    [Row::Wide, Row::Pairs(1)].map(|peer| Comparison {
        cell: cell.to_owned(),
        ours: Row::Pairs(MOST).name(),
        peers: vec![peer.name()],
        metric: Some(COST.to_owned()),
        side: Side::AtMost,
        bar: (!control && cell == CASES[0].0 && peer == Row::Wide).then_some(BAR),
        ..Comparison::default()
    })
}

impl Experiment for NetAggregate {
    fn name(&self) -> &'static str {
        "net-aggregate"
    }

    fn summary(&self) -> &'static str {
        "1 to 20 pairs of NICs at once: total rate, and CPU time of a frame"
    }

    fn prepare(&self, options: &Options) -> Result<Box<dyn Prepared>> {
        let placement = Placement::choose()?;
        let wanted = |case: &(&str, usize)| options.selects(case.0);
        let cases: Vec<_> = CASES.into_iter().filter(wanted).collect();
        let rows = Row::all(options.quick);
        let cell = |(id, bytes): &(&str, usize)| CellPlan {
            id: (*id).to_owned(),
            title: format!("frames of {bytes} bytes, {DEPTH} in flight between each pair"),
            systems: rows.iter().map(|row| row.name()).collect(),
        };
        let system = if options.control { System::TestpmdWhole } else { OURS };
        let plan = Plan {
            cells: cases.iter().map(cell).collect(),
            rounds: options.rounds.unwrap_or(if options.quick { 3 } else { 10 }),
            metric: "gbit_per_s".to_owned(),
            comparisons: cases
                .iter()
                .flat_map(|(id, _)| comparisons(id, options.control))
                .collect(),
            versions: versions(&[system], false)?,
            notes: vec![format!(
                "One {} on CPU {}; one thread on CPU {} drives all NICs. With few pairs a switch \
                 waits for the client more often, and each frame bears a part of that cost. The \
                 buffers of one pair fit the CPU's own cache, those of twenty do not. So twenty \
                 pairs are compared with one pair that uses as many buffers, {DEPTH} of them in \
                 flight.",
                system.name(),
                placement.backend,
                placement.client
            )],
            plots: vec![plot(&cases, &rows)],
            ..Plan::default()
        };
        let window = Window::of(Duration::from_millis(options.window_ms.unwrap_or(500)));
        Ok(Box::new(PreparedExperiment { plan, cases, rows, system, placement, window }))
    }
}

fn plot(cases: &[(&str, usize)], rows: &[Row]) -> PlotPlan {
    let grows: Vec<_> = rows.iter().filter(|row| **row != Row::Wide).collect();
    let panel = |(id, bytes): &(&str, usize), metric: &str| PanelPlan {
        title: format!("frames of {bytes} bytes"),
        x: "pairs of NICs".to_owned(),
        steps: grows.iter().map(|row| row.pairs().to_string()).collect(),
        metric: metric.to_owned(),
        log: false,
        series: vec![SeriesPlan {
            name: "ringway-net".to_owned(),
            points: grows
                .iter()
                .enumerate()
                .map(|(step, row)| PointPlan::new(step, *id, row.name()))
                .collect(),
        }],
    };
    let metrics = ["gbit_per_s", COST];
    PlotPlan {
        name: "lines".to_owned(),
        title: "net-aggregate: pairs of NICs at once".to_owned(),
        columns: metrics.len(),
        panels: cases.iter().flat_map(|case| metrics.map(|metric| panel(case, metric))).collect(),
    }
}

struct PreparedExperiment {
    plan: Plan,
    cases: Vec<(&'static str, usize)>,
    rows: Vec<Row>,
    system: System,
    placement: Placement,
    window: Window,
}

impl Prepared for PreparedExperiment {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn measure(&mut self, cell: usize, system: usize) -> Result<Sample> {
        let ((_, bytes), row) = (self.cases[cell], self.rows[system]);
        let pairs = row.pairs();
        let running = self.system.start(2 * usize::from(pairs), 1, self.placement)?;
        let mut lanes = Vec::new();
        for pair in 0..pairs {
            let ends = [2 * pair, 2 * pair + 1];
            let [a, b]: [PathBuf; 2] = ends.map(|end| running.socket(end.into()));
            let [from, to] = ends.map(|end| end + 1);
            let frames = vec![tcp(from, to, 40_000, bytes)];
            lanes.push(Lane::connect([&a, &b], [from, to], frames, row.shape())?);
        }
        let time = || running.time_s();
        let ran = client::run(&mut lanes, self.placement.client, self.window, &time)?;
        let each: Vec<u64> = ran.frames.iter().map(|queues| queues.iter().sum()).collect();
        let (all, slowest) = (ran.all() as f64, each.iter().min().copied().unwrap_or(0) as f64);
        let metrics = [
            ("requests", all),
            ("lost_frames", ran.lost as f64),
            ("frames_per_s", all / ran.seconds),
            ("gbit_per_s", all * bytes as f64 * 8.0 / 1e9 / ran.seconds),
            ("slowest_share", slowest * f64::from(pairs) / all),
            ("backend_cpus", ran.backend_s / ran.seconds),
            (COST, ran.backend_s * 1e6 / all),
            ("client_cpus", ran.client_s / ran.seconds),
            ("other_cpus", ran.other_s / ran.seconds),
        ];
        Ok(metrics.map(|(name, value)| (name.to_owned(), value)).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twenty_pairs_are_held_against_one() {
        let [promised, shown] = comparisons(CASES[0].0, false);
        assert_eq!((promised.bar, promised.side), (Some(1.1), Side::AtMost));
        assert_eq!(promised.ours, "20 pairs of NICs");
        assert_eq!(promised.peers, ["1 pair of NICs, buffers of 20"]);
        assert_eq!((shown.bar, &shown.peers[..]), (None, &["1 pair of NICs".to_owned()][..]));
        let none = [comparisons(CASES[0].0, true), comparisons(CASES[1].0, false)];
        assert!(none.iter().flatten().all(|c| c.bar.is_none()));
        let plot = plot(&CASES, &Row::all(false));
        assert_eq!((plot.panels.len(), plot.panels[0].steps.len()), (4, PAIRS.len()));
    }
}
