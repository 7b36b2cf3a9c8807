//! `lun-scale`: one to a hundred disks on one storage.
//!
//! The total must not fall as disks are added, and each disk must get the same.

use std::time::Duration;

use anyhow::Result;

use super::files::{FILE_BYTES, Files};
use super::models::{MODEL_DISK_BYTES, Model};
use super::served::{DaemonStorage, Disk, Served, window};
use super::streams::Stream;
use crate::blk::client::{Access, Load, Pattern, Wait};
use crate::experiment::{
    CellPlan, Comparison, Experiment, Figure, Options, PanelPlan, Plan, PlotPlan, PointPlan,
    Prepared, Sample, SeriesPlan, Side,
};
use crate::host::{QSD, versions};

const COUNTS: [usize; 7] = [1, 2, 4, 8, 20, 50, 100];
const QUICK_COUNTS: [usize; 3] = [1, 4, 100];
/// Number of disks from which requests of 4 MiB at depth 1 keep the array busy.
const ENOUGH: usize = 4;
/// Number of disks from which a disk with one queue has enough in flight for its share, at depth 4 and
/// at depth 32.
const ENOUGH_OF_QUEUES: usize = 8;
const ENOUGH_OF_DEEP_QUEUES: usize = 2;
/// Least part of the array's limit.
const TOTAL_BAR: f64 = 0.95;
/// Most that the fastest disk gets over the slowest.
const SHARE_BAR: f64 = 1.05;
/// Least total over that without a profile, on files.
const FILE_BAR: f64 = 0.9;
/// Latency of the array in nanoseconds.
const LATENCY_NS: u64 = 300_000;
const MIB: usize = 1 << 20;

const SHARED: &str = "ringway-io";
const PLAIN: &str = "ringway-io without a profile";
const GROUP: &str = "qsd throttle-group";
const DAEMON: &str = "qsd";

/// Load on a storage.
#[derive(Debug, Clone, Copy)]
struct Case {
    id: &'static str,
    title: &'static str,
    /// Title of its panels, which have less room.
    panel: &'static str,
    /// Model of the storage. `None` for files.
    model: Option<Model>,
    load: Load,
    /// Numbers of queues, which disks have in turns.
    queues: &'static [usize],
    /// Number of disks from which shares have a bar.
    enough: usize,
}

impl Case {
    fn new(
        id: &'static str,
        (title, panel): (&'static str, &'static str),
        model: Option<Model>,
        load: Load,
    ) -> Self {
        let load = Load { wait: Wait::Sleep, ..load };
        Self { id, title, panel, model, load, queues: &[1], enough: ENOUGH }
    }

    fn all() -> Vec<Self> {
        let sequential =
            Load { pattern: Pattern::Sequential, bytes: 4 * MIB, depth: 1, ..Load::default() };
        let small = Load { depth: 4, ..Load::default() };
        let writes = Load { access: Access::Write, bytes: 64 << 10, depth: 4, ..Load::default() };
        let mixed = Load { bytes: 64 << 10, depth: 4, ..Load::default() };
        let deep = Load { depth: 32, ..mixed };
        let (array, slow) = (Some(Model::Array), Some(Model::SlowArray));
        let names = [
            ("array of 820 MB/s, 4 MiB sequential reads, depth 1", "4 MiB sequential reads"),
            ("array of 20,000 requests/s, 4 KiB random reads, depth 4", "4 KiB random reads"),
            ("array of 820 MB/s, 64 KiB random writes, depth 4", "64 KiB random writes"),
            (
                "array of 820 MB/s, 64 KiB random reads, depth 4 on each of 1, 2 or 4 queues",
                "64 KiB random reads, 1, 2 or 4 queues",
            ),
            (
                "array of 820 MB/s, 64 KiB random reads, depth 32 on each of 1 or 4 queues",
                "64 KiB random reads, 1 or 4 deep queues",
            ),
            ("files, 4 MiB sequential reads, depth 1", "files, 4 MiB sequential reads"),
        ];
        let queues = Self::new("array-queues", names[3], array, mixed);
        let deep_queues = Self::new("array-deep-queues", names[4], array, deep);
        vec![
            Self::new("array-4m", names[0], array, sequential),
            Self::new("array-4k", names[1], slow, small),
            Self::new("array-writes", names[2], array, writes),
            Self { queues: &[1, 2, 4], enough: ENOUGH_OF_QUEUES, ..queues },
            Self { queues: &[1, 4], enough: ENOUGH_OF_DEEP_QUEUES, ..deep_queues },
            Self::new("file-4m", names[5], None, sequential),
        ]
    }

    /// Returns the systems. A throttle group has no limit for files: nothing tells it one.
    fn systems(&self) -> [&'static str; 3] {
        [SHARED, PLAIN, if self.model.is_some() { GROUP } else { DAEMON }]
    }

    fn cell(&self, count: usize) -> CellPlan {
        let disks = if count == 1 { "1 disk".to_owned() } else { format!("{count} disks") };
        CellPlan {
            id: format!("{}-{count}", self.id),
            title: format!("{}: {disks}", self.title),
            systems: self.systems().map(str::to_owned).into(),
        }
    }

    /// Returns the bars of a cell, and what its systems are compared with.
    fn comparisons(&self, count: usize, control: bool) -> Vec<Comparison> {
        let (cell, ours) = (self.cell(count).id, SHARED.to_owned());
        let bar = |bar| (!control).then_some(bar);
        let of = |metric: &str| Comparison {
            cell: cell.clone(),
            ours: ours.clone(),
            metric: Some(metric.to_owned()),
            ..Comparison::default()
        };
        let others: Vec<String> = self.systems().into_iter().skip(1).map(str::to_owned).collect();
        let total = |peer: &String| Comparison { peers: vec![peer.clone()], ..of("mib_per_s") };
        let mut all: Vec<Comparison> = others.iter().map(total).collect();
        if self.model.is_none() {
            for comparison in all.iter_mut().take(1) {
                (comparison.bar, comparison.spread_excuses) = (bar(FILE_BAR), true);
            }
        }
        if self.id == "array-4m" && count >= ENOUGH {
            let figure = Figure::Alone;
            all.push(Comparison { figure, bar: bar(TOTAL_BAR), ..of("part_of_limit") });
        }
        if self.model.is_some() && count >= self.enough {
            let (figure, side) = (Figure::Alone, Side::AtMost);
            all.push(Comparison { figure, side, bar: bar(SHARE_BAR), ..of("max_over_min") });
        }
        all
    }
}

/// The `lun-scale` experiment.
#[derive(Debug)]
pub struct LunScale;

impl Experiment for LunScale {
    fn name(&self) -> &'static str {
        "lun-scale"
    }

    fn summary(&self) -> &'static str {
        "1 to 100 disks on one storage: total, and the fastest disk over the slowest"
    }

    fn prepare(&self, options: &Options) -> Result<Box<dyn Prepared>> {
        let counts: &[usize] = if options.quick { &QUICK_COUNTS } else { &COUNTS };
        // A quick run has no time to measure the host's storage.
        let wanted = |case: &Case| case.model.is_some() || !options.quick;
        let pairs = Case::all().into_iter().filter(wanted);
        let pairs = pairs.flat_map(|case| counts.iter().map(move |count| (case, *count)));
        let selected = |(case, count): &(Case, usize)| options.selects(&case.cell(*count).id);
        let pairs: Vec<(Case, usize)> = pairs.filter(selected).collect();
        let plan = Plan {
            cells: pairs.iter().map(|(case, count)| case.cell(*count)).collect(),
            rounds: options.rounds.unwrap_or(if options.quick { 1 } else { 3 }),
            metric: "mib_per_s".into(),
            comparisons: pairs
                .iter()
                .flat_map(|(case, count)| case.comparisons(*count, options.control))
                .collect(),
            versions: versions(&[QSD], Some("ringway-io"))?,
            notes: vec![
                "The array is a model in ringway-io. The throttle group of qemu-storage-daemon has the \
                 array's limit, over null disks with its latency. A disk's rate is that between its \
                 first and its last completion. All clients sleep; nothing is pinned."
                    .to_owned(),
            ],
            plots: vec![plot(&pairs, counts)],
            ..Plan::default()
        };
        let measure = Duration::from_millis(options.window_ms.unwrap_or(2000));
        let files = Files::new(options, FILE_BYTES);
        Ok(Box::new(PreparedScale { plan, pairs, files, measure, control: options.control }))
    }
}

fn plot(pairs: &[(Case, usize)], counts: &[usize]) -> PlotPlan {
    let mut cases: Vec<Case> = Vec::new();
    for (case, _) in pairs {
        if cases.iter().all(|other| other.id != case.id) {
            cases.push(*case);
        }
    }
    let line = |case: &Case, system: &str| SeriesPlan {
        name: system.to_owned(),
        points: (0..)
            .zip(counts)
            .map(|(step, count)| PointPlan::new(step, case.cell(*count).id, system))
            .collect(),
    };
    let panel = |case: &Case, metric: &str| PanelPlan {
        title: case.panel.to_owned(),
        x: "disks".into(),
        steps: counts.iter().map(usize::to_string).collect(),
        metric: metric.into(),
        log: metric == "max_over_min",
        series: case.systems().map(|system| line(case, system)).into(),
    };
    let metrics = ["mib_per_s", "max_over_min"];
    PlotPlan {
        name: "lines".into(),
        title: "lun-scale: total, and the fastest disk over the slowest".into(),
        columns: metrics.len(),
        panels: cases.iter().flat_map(|case| metrics.map(|metric| panel(case, metric))).collect(),
    }
}

struct PreparedScale {
    plan: Plan,
    pairs: Vec<(Case, usize)>,
    files: Files,
    measure: Duration,
    control: bool,
}

impl PreparedScale {
    fn serve(&mut self, case: &Case, count: usize, system: &str) -> Result<Served> {
        let profile = system == SHARED && !self.control;
        let disk = |number: usize, backend| Disk {
            backend,
            words: vec![format!("queues={}", case.queues[number % case.queues.len()])],
        };
        let Some(model) = case.model else {
            let paths = self.files.paths(count, profile)?;
            if system == DAEMON {
                return Served::daemon(count, &DaemonStorage::Files(paths), None);
            }
            let backend = |path| serde_json::json!({"file": path});
            let disks = paths.iter().enumerate().map(|(number, path)| disk(number, backend(path)));
            return Served::ringway(&disks.collect::<Vec<_>>());
        };
        if system == GROUP {
            let null = DaemonStorage::Null { bytes: MODEL_DISK_BYTES, latency_ns: LATENCY_NS };
            let limit = model.limit(case.load.bytes) as u64;
            return Served::daemon(count, &null, Some(limit));
        }
        let disks: Vec<Disk> =
            (0..count).map(|number| disk(number, model.backend(profile))).collect();
        Served::ringway(&disks)
    }
}

impl Prepared for PreparedScale {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn measure(&mut self, cell: usize, system: usize) -> Result<Sample> {
        let (case, count) = self.pairs[cell];
        let served = self.serve(&case, count, case.systems()[system])?;
        let streams = |disk: usize| {
            let queues = case.queues[disk % case.queues.len()];
            vec![Stream::new(disk, case.load); queues]
        };
        let disks: Vec<Vec<Stream>> = (0..count).map(streams).collect();
        // A hundred disks have two requests of 4 MiB a second each.
        let slow = case.load.bytes >= MIB && count > 20;
        let window = window(if slow { self.measure * 3 } else { self.measure });
        let (records, mut sample) = served.run(&disks, window, Vec::new())?;
        let worst = (0..count).map(|disk| records.percentile(disk, 99)).max().unwrap_or_default();
        sample.insert("max_over_min".into(), records.max_over_min(0..count));
        sample.insert("p99_ms".into(), worst.as_secs_f64() * 1e3);
        if let Some(model) = case.model {
            let limit = model.limit(case.load.bytes);
            sample.insert("part_of_limit".into(), records.total() / limit);
        }
        Ok(sample)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_and_the_shares_of_the_array_have_bars() {
        let case = Case::all()[0];
        let bars = |count| -> Vec<(String, Option<f64>)> {
            let all = case.comparisons(count, false).into_iter().filter(|it| it.bar.is_some());
            all.map(|it| (it.metric.unwrap(), it.bar)).collect()
        };
        let both = [("part_of_limit".into(), Some(0.95)), ("max_over_min".into(), Some(1.05))];
        assert_eq!((bars(1), bars(100)), (vec![], both.to_vec()));
        assert!(case.comparisons(100, true).iter().all(|it| it.bar.is_none()));
        let unequal = Case::all().into_iter().find(|case| case.id == "array-deep-queues").unwrap();
        let shares = unequal.comparisons(2, false).pop().unwrap();
        assert_eq!((shares.bar, shares.side), (Some(SHARE_BAR), Side::AtMost));
        let pairs: Vec<_> = Case::all().into_iter().map(|case| (case, 4)).collect();
        let plot = plot(&pairs, &COUNTS);
        assert_eq!((plot.panels.len(), plot.panels[0].series.len()), (12, 3));
    }
}
