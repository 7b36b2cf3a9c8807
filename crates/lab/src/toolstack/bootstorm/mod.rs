//! `bootstorm`: many real guests that start together from one golden image, a few of them in turn
//! and all at once, and guests that all fill their write caches.

mod full;
mod storm;
mod template;

use std::time::Duration;

use anyhow::Result;
use tempfile::NamedTempFile;
use testkit::guest::boot_config;

use storm::Storm;
use template::Load;

use crate::experiment::{
    CellPlan, Comparison, Experiment, Figure, Options, Plan, Prepared, Sample, Side,
};
use crate::host::versions;

/// Guests of a storm, with `--quick`, and with a short window, too.
const GUESTS: usize = 100;
const GUESTS_QUICK: usize = 16;
const GUESTS_LEAST: usize = 4;
/// Bar for the time of the last quarter of the guests over that of the first quarter.
const LAST_QUARTER: f64 = 1.5;
/// Bar for the 99th percentile of `xe vm-list` during the storm, in milliseconds.
const XE_P99_MS: f64 = 200.0;
/// Guests that fill their write caches, and with a short window.
const GUESTS_FULL: usize = 30;
const GUESTS_FULL_LEAST: usize = 2;
/// Bar for the 99th percentile of `xe vm-list` while they wait, in milliseconds.
const XE_FULL_P99_MS: f64 = 100.0;
/// Bar for the memory of a guest with its QEMU, in MiB: 64 MiB beside the guest's own.
const PSS_MIB: f64 = 160.0;
/// Number of guests that boot at a time where they all do.
const ALL: u16 = 1000;

const STORM: &str = "storm";
const ALL_AT_ONCE: &str = "all-at-once";
const FULL: &str = "full";
const SYSTEMS: [&str; 2] = ["in turn", "all at once"];

/// The `bootstorm` experiment.
#[derive(Debug)]
pub struct Bootstorm;

fn comparisons(cell: &str) -> Vec<Comparison> {
    let [ours, all] = SYSTEMS.map(str::to_owned);
    let at_most = |metric: &str, bar| Comparison {
        cell: cell.to_owned(),
        ours: ours.clone(),
        metric: Some(metric.to_owned()),
        figure: Figure::Worst,
        side: Side::AtMost,
        bar: Some(bar),
        ..Comparison::default()
    };
    let of_all = |metric: &str| Comparison {
        peers: vec![all.clone()],
        figure: Figure::OverBest,
        bar: None,
        ..at_most(metric, 0.0)
    };
    if cell == FULL {
        return vec![at_most("xe_p99_ms", XE_FULL_P99_MS)];
    }
    if cell == STORM {
        let bars =
            [("quarter_ratio", LAST_QUARTER), ("xe_p99_ms", XE_P99_MS), ("pss_mib", PSS_MIB)];
        return bars.map(|(metric, bar)| at_most(metric, bar)).into();
    }
    ["first_ready_s", "half_ready_s", "all_ready_s", "xe_p99_ms"].map(of_all).into()
}

impl Experiment for Bootstorm {
    fn name(&self) -> &'static str {
        "bootstorm"
    }

    fn summary(&self) -> &'static str {
        "a hundred real guests start from one golden image; a few in turn and all at once; thirty with full \
         write caches"
    }

    fn prepare(&self, options: &Options) -> Result<Box<dyn Prepared>> {
        let guests = match options {
            Options { quick: false, .. } => GUESTS,
            Options { window_ms: None, .. } => GUESTS_QUICK,
            _ => GUESTS_LEAST,
        };
        let full = if guests == GUESTS_LEAST { GUESTS_FULL_LEAST } else { GUESTS_FULL.min(guests) };
        let cells =
            [(STORM, guests, 1), (ALL_AT_ONCE, guests.min(GUESTS_QUICK), 2), (FULL, full, 1)];
        let cells = cells.into_iter().filter(|(id, ..)| options.selects(id)).collect::<Vec<_>>();
        let does = |id| if id == FULL { "fill their write caches" } else { "start together" };
        let cell = |(id, guests, systems): &(&'static str, usize, usize)| CellPlan {
            id: (*id).to_owned(),
            title: format!("{guests} guests of {} MiB {}", template::MEMORY_BYTES >> 20, does(*id)),
            systems: SYSTEMS.iter().take(*systems).map(|system| (*system).to_owned()).collect(),
        };
        let plan = Plan {
            cells: cells.iter().map(cell).collect(),
            rounds: options.rounds.unwrap_or(1),
            metric: "all_ready_s".into(),
            comparisons: cells.iter().flat_map(|(id, ..)| comparisons(id)).collect(),
            versions: versions(&[], Some("ringwayd"))?,
            notes: vec![
                "All starts are called at once. A guest is ready when its agent has answered \
                 (`boot-guest-ms` in `VM_metrics.other_config`). `quarter_ratio`: the time from the \
                 readiness of three quarters of the guests to that of all, over the time to that of \
                 the first quarter. `xe_p99_ms`: `xe vm-list` in a shell outside of all slices, from \
                 the first start to the last readiness. `pss_mib`: proportional memory of a guest's \
                 QEMU when all are ready, on average. `place_s` to `services_s`: parts of a \
                 guest's start, on average. `fetched`: blocks of 64 KiB that the source served for \
                 all guests together."
                    .to_owned(),
                "`full`: each guest writes more than memory and overflow file of its write cache \
                 take. `xe vm-list` is called while the writes of all wait for room. `waiting` and \
                 `running`: disks that still wait, and guests that run, after the calls."
                    .to_owned(),
            ],
            ..Plan::default()
        };
        let cells = cells.iter().map(|(id, guests, _)| (*id, *guests)).collect();
        let window = options.window_ms.map(Duration::from_millis);
        Ok(Box::new(PreparedExperiment { plan, cells, window, config: boot_config()? }))
    }
}

struct PreparedExperiment {
    plan: Plan,
    /// Name and guests of each cell.
    cells: Vec<(&'static str, usize)>,
    /// Longest time of calls while all guests wait.
    window: Option<Duration>,
    config: NamedTempFile,
}

impl Prepared for PreparedExperiment {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn measure(&mut self, cell: usize, system: usize) -> Result<Sample> {
        let (id, guests) = self.cells[cell];
        if id == FULL {
            return Storm::prepare(&self.config, guests, Load::Writes)?.fill(self.window);
        }
        let mut storm = Storm::prepare(&self.config, guests, Load::Idle)?;
        if system == 1 {
            storm.host.limit(&[("boots", ALL)])?;
        }
        storm.run()
    }
}
