//! `api-scale`: a pool of a thousand VMs with fifteen disks each, as its clients see it.

mod cases;
mod pool;

use std::collections::BTreeMap;

use anyhow::Result;

use super::raw::Dialect;
use crate::experiment::{CellPlan, Experiment, Options, Plan, Prepared, Sample};
use crate::host::versions;
use cases::{What, cells};
use pool::{AT_ONCE, CALLS, CHANGES, Pool};

/// The `api-scale` experiment.
#[derive(Debug)]
pub struct ApiScale;

impl Experiment for ApiScale {
    fn name(&self) -> &'static str {
        "api-scale"
    }

    fn summary(&self) -> &'static str {
        "a thousand machines with 15 disks each: records, events, xe vm-list, shutdowns"
    }

    fn prepare(&self, options: &Options) -> Result<Box<dyn Prepared>> {
        let cells = cells(options);
        let plan = Plan {
            cells: cells
                .iter()
                .map(|(machines, what)| CellPlan {
                    id: what.cell(*machines),
                    title: what.title(*machines),
                    systems: what.systems(),
                })
                .collect(),
            rounds: options.rounds.unwrap_or(if options.quick { 2 } else { 5 }),
            metric: "server_ms".into(),
            comparisons: cells.iter().flat_map(|(n, what)| what.comparisons(*n)).collect(),
            versions: versions(&[], Some("ringwayd"))?,
            notes: vec![
                format!(
                    "Machines are simulated. {AT_ONCE} of them run. A figure of a sample is the \
                     median of {CALLS} calls, of events the 99th percentile of {CHANGES}. `cold` \
                     is the call after a change of one record; `first` is the first call of all, \
                     which serializes each record."
                ),
                "`disks_per_s` is the rate at which eight clients create machines with their \
                 disks; `slowing` is the time of the last tenth of them over that of the first."
                    .to_owned(),
            ],
            ..Plan::default()
        };
        Ok(Box::new(PreparedExperiment { plan, cells, pools: BTreeMap::new() }))
    }
}

struct PreparedExperiment {
    plan: Plan,
    cells: Vec<(usize, What)>,
    pools: BTreeMap<usize, Pool>,
}

impl Prepared for PreparedExperiment {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn measure(&mut self, cell: usize, system: usize) -> Result<Sample> {
        let (machines, what) = self.cells[cell];
        let pool = match self.pools.entry(machines) {
            std::collections::btree_map::Entry::Occupied(pool) => pool.into_mut(),
            std::collections::btree_map::Entry::Vacant(place) => {
                place.insert(Pool::make(machines)?)
            }
        };
        match (what, system) {
            (What::Records, 0) => pool.records(Dialect::Json),
            (What::Records, _) => pool.records(Dialect::Xml),
            (What::Wake, _) => pool.wake(),
            (What::List, _) => pool.list(),
            (What::Shutdown, 0) => pool.shutdown(AT_ONCE),
            (What::Shutdown, _) => pool.shutdown(1),
        }
    }
}
