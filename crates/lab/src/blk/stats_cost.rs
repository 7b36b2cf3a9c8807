//! `stats-cost`: what recording the times of requests costs, on a disk that does nothing else.
//!
//! The same program with `--record on` and `--record off`, turn by turn. On any disk that stores
//! something the share is smaller.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use testkit::process::{Backend, find_binary};

use super::client::{self, Load, Window};
use super::systems::DISK_BYTES;
use crate::cpu::{self, Placement};
use crate::experiment::{CellPlan, Comparison, Experiment, Options, Plan, Prepared, Sample};
use crate::host::version_of;

/// Recording on may cost this much.
const BAR: f64 = 0.98;
const RECORD: [&str; 2] = ["on", "off"];

/// The experiment.
#[derive(Debug)]
pub struct StatsCost;

/// What the client asks for, and how the backend waits.
#[derive(Clone, Copy, Debug)]
struct Case {
    depth: u16,
    poll: &'static str,
    bar: Option<f64>,
}

/// The promise is about requests a second, so about a backend that has no time to sleep.
const CASES: [Case; 3] = [
    Case { depth: 32, poll: "always", bar: Some(BAR) },
    Case { depth: 32, poll: "off", bar: Some(BAR) },
    Case { depth: 1, poll: "always", bar: None },
];

impl Case {
    fn id(&self) -> String {
        format!("null-4k-d{}-poll-{}", self.depth, self.poll)
    }

    fn plan(&self) -> CellPlan {
        let title = format!("null disk, 4 KiB, depth {}, --poll {}", self.depth, self.poll);
        CellPlan { id: self.id(), title, systems: RECORD.map(system).into() }
    }

    fn comparison(&self, control: bool) -> Comparison {
        let [on, off] = RECORD.map(system);
        let bar = self.bar.filter(|_| !control);
        Comparison { cell: self.id(), ours: on, peers: vec![off], bar, ..Comparison::default() }
    }
}

fn system(record: &str) -> String {
    format!("--record {record}")
}

impl Experiment for StatsCost {
    fn name(&self) -> &'static str {
        "stats-cost"
    }

    fn summary(&self) -> &'static str {
        "what recording latencies costs: ringway-blk on a null disk, --record on against off"
    }

    fn prepare(&self, options: &Options) -> Result<Box<dyn Prepared>> {
        let placement = Placement::choose()?;
        let wanted = |case: &&Case| options.only.as_ref().is_none_or(|o| case.id().contains(o));
        let cases: Vec<_> = CASES.iter().filter(wanted).copied().collect();
        let ours = find_binary("ringway-blk")?;
        let plan = Plan {
            cells: cases.iter().map(Case::plan).collect(),
            rounds: options.rounds.unwrap_or(if options.quick { 9 } else { 25 }),
            metric: "iops".into(),
            comparisons: cases.iter().map(|case| case.comparison(options.control)).collect(),
            versions: BTreeMap::from([("ringway-blk".to_owned(), version_of(&ours))]),
            notes: vec![format!(
                "Client on CPU {}, backend on CPU {}; both poll. A null disk moves no data, so \
                 nothing hides the cost of recording.",
                placement.client, placement.backend
            )],
            ..Plan::default()
        };
        Ok(Box::new(Ready { plan, cases, placement, options: options.clone() }))
    }
}

struct Ready {
    plan: Plan,
    cases: Vec<Case>,
    placement: Placement,
    options: Options,
}

impl Prepared for Ready {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn measure(&mut self, cell: usize, system: usize) -> Result<Sample> {
        let (case, record) = (self.cases[cell], RECORD[system]);
        // A control run measures the same program twice.
        let record = if self.options.control { "off" } else { record };
        let size = DISK_BYTES.to_string();
        let options = ["--null", &size, "--poll", case.poll, "--record", record];
        let start = || Ok(Backend::ringway_blk(&options)?);
        let backend = cpu::started_on(self.placement.backend, start)?;
        let measure = Duration::from_millis(self.options.window_ms.unwrap_or(400));
        let window = Window { warm: measure / 4, measure };
        let load = Load { depth: case.depth, ..Load::default() };
        let pid = backend.process.id();
        let time = || cpu::process_time_s(pid);
        client::measure(backend.socket(), load, window, self.placement.client, time)
    }
}
