//! `net-aggregate`: 1 to 20 pairs of NICs at once.
//!
//! What the documents measured: with more machines the sum of what they send must grow or stay, never
//! fall. Here a frame must cost as much with twenty pairs as with one.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use super::client::{self, FULL, Lane, tcp};
use super::systems::{System, versions};
use super::tso::BYTES;
use crate::blk::client::Window;
use crate::blk::systems::Poll;
use crate::cpu::Placement;
use crate::experiment::{
    CellPlan, Comparison, Experiment, Options, PanelPlan, Plan, PlotPlan, PointPlan, Prepared,
    Sample, SeriesPlan, Side,
};

const PAIRS: [u8; 5] = [1, 2, 5, 10, 20];
/// Frames on their way between each pair.
const DEPTH: u16 = 32;
/// CPU time of a frame with twenty pairs over that with one.
const BAR: f64 = 1.1;
const COST: &str = "backend_cpu_us_per_request";
/// Id of a cell, and bytes of its frames.
const CASES: [(&str, usize); 2] = [("pairs-1500", FULL), ("pairs-64k", BYTES)];
const OURS: System = System::Ringway(Poll::Auto);

/// The experiment.
#[derive(Debug)]
pub struct NetAggregate;

fn name(pairs: u8) -> String {
    if pairs == 1 { "1 pair of NICs".to_owned() } else { format!("{pairs} pairs of NICs") }
}

/// The buffers of twenty pairs with large frames are more than caches hold, those of one are not: no
/// switch can make up for that, and nothing was promised.
fn comparison(cell: &str, control: bool) -> Comparison {
    Comparison {
        cell: cell.to_owned(),
        ours: name(20),
        peers: vec![name(1)],
        metric: Some(COST.to_owned()),
        side: Side::AtMost,
        bar: (!control && cell == CASES[0].0).then_some(BAR),
        ..Comparison::default()
    }
}

impl Experiment for NetAggregate {
    fn name(&self) -> &'static str {
        "net-aggregate"
    }

    fn summary(&self) -> &'static str {
        "1 to 20 pairs of NICs at once: what all of them move, and CPU time of a frame"
    }

    fn prepare(&self, options: &Options) -> Result<Box<dyn Prepared>> {
        let placement = Placement::choose()?;
        let wanted = |case: &(&str, usize)| {
            options.only.as_ref().is_none_or(|o| case.0.contains(o.as_str()))
        };
        let cases: Vec<_> = CASES.into_iter().filter(wanted).collect();
        let pairs = if options.quick { vec![1, 20] } else { PAIRS.to_vec() };
        let cell = |(id, bytes): &(&str, usize)| CellPlan {
            id: (*id).to_owned(),
            title: format!("frames of {bytes} bytes, {DEPTH} on their way between each pair"),
            systems: pairs.iter().map(|pairs| name(*pairs)).collect(),
        };
        let system = if options.control { System::TestpmdWhole } else { OURS };
        let plan = Plan {
            cells: cases.iter().map(cell).collect(),
            rounds: options.rounds.unwrap_or(if options.quick { 3 } else { 10 }),
            metric: "gbit_per_s".to_owned(),
            comparisons: cases.iter().map(|(id, _)| comparison(id, options.control)).collect(),
            versions: versions(&[system], false)?,
            notes: vec![format!(
                "One {} on CPU {}; one thread on CPU {} has all NICs. With few pairs a switch waits for \
                 the client more often, and a frame costs it a part of each wait; with twenty and \
                 large frames their buffers (84 MB) are in no cache.",
                system.name(),
                placement.backend,
                placement.client
            )],
            plots: vec![plot(&cases, &pairs)],
            ..Plan::default()
        };
        let window = Window::of(Duration::from_millis(options.window_ms.unwrap_or(500)));
        Ok(Box::new(Ready { plan, cases, pairs, system, placement, window }))
    }
}

fn plot(cases: &[(&str, usize)], pairs: &[u8]) -> PlotPlan {
    let panel = |(id, bytes): &(&str, usize), metric: &str| PanelPlan {
        title: format!("frames of {bytes} bytes"),
        x: "pairs of NICs".to_owned(),
        steps: pairs.iter().map(u8::to_string).collect(),
        metric: metric.to_owned(),
        log: false,
        series: vec![SeriesPlan {
            name: "ringway-net".to_owned(),
            points: pairs
                .iter()
                .enumerate()
                .map(|(step, n)| PointPlan { step, cell: (*id).to_owned(), system: name(*n) })
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

struct Ready {
    plan: Plan,
    cases: Vec<(&'static str, usize)>,
    pairs: Vec<u8>,
    system: System,
    placement: Placement,
    window: Window,
}

impl Prepared for Ready {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn measure(&mut self, cell: usize, system: usize) -> Result<Sample> {
        let ((_, bytes), pairs) = (self.cases[cell], self.pairs[system]);
        let running = self.system.start(2 * usize::from(pairs), 1, self.placement)?;
        let mut lanes = Vec::new();
        for pair in 0..pairs {
            let ends = [2 * pair, 2 * pair + 1];
            let [a, b]: [PathBuf; 2] = ends.map(|end| running.socket(end.into()));
            let [from, to] = ends.map(|end| end + 1);
            let frames = vec![tcp(from, to, 40_000, bytes)];
            lanes.push(Lane::connect([&a, &b], [from, to], frames, (DEPTH, [1; 2]))?);
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
        let promised = comparison(CASES[0].0, false);
        assert_eq!((promised.bar, promised.side), (Some(1.1), Side::AtMost));
        assert_eq!((promised.ours, promised.peers), (name(20), vec![name(1)]));
        assert_eq!(comparison(CASES[0].0, true).bar, None);
        assert_eq!(comparison(CASES[1].0, false).bar, None);
        assert_eq!(plot(&CASES, &PAIRS).panels.len(), 4);
    }
}
