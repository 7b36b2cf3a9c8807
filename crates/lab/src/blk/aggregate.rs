//! `storage-aggregate`: twenty clients, each reading its own disk one request at a time.
//!
//! As clients and the storage process's threads grow, the total must grow or stay constant, never
//! fall.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use tempfile::TempDir;

use super::client::{self, Load, Pattern, Wait, Window};
use super::fleet::{BackendKind, Disk, Fleet};
use super::image;
use crate::experiment::{
    CellPlan, Comparison, Experiment, Figure, Options, PanelPlan, Plan, PlotPlan, PointPlan,
    Prepared, Sample, SeriesPlan,
};
use crate::host::{QSD, versions};

const CLIENTS: usize = 20;
const REACTORS: [u16; 5] = [1, 2, 4, 8, 16];
/// Least total rate over the best total with fewer reactors.
const BAR: f64 = 0.95;
const IMAGE_BYTES: u64 = 8 << 20;
const MAKERS: [BackendKind; 2] = [BackendKind::Ringway, BackendKind::Daemon];
/// Id and title of a cell.
const CASES: [(&str, &str); 2] = [("null", "null"), ("cached", "files in the page cache")];

/// The `storage-aggregate` experiment.
#[derive(Debug)]
pub struct StorageAggregate;

impl Experiment for StorageAggregate {
    fn name(&self) -> &'static str {
        "storage-aggregate"
    }

    fn summary(&self) -> &'static str {
        "20 clients with a disk each, 4 KiB sequential, depth 1: total rate by number of reactors"
    }

    fn prepare(&self, options: &Options) -> Result<Box<dyn Prepared>> {
        let wanted = |case: &(&str, &str)| options.selects(case.0);
        let cases: Vec<_> = CASES.into_iter().filter(wanted).collect();
        let versions = versions(&[QSD], (!options.control).then_some("ringway-io"))?;
        let systems = systems(options);
        let names: Vec<String> = systems
            .iter()
            .map(|(backend_kind, n)| name(*backend_kind, *n, options.control))
            .collect();
        let cell = |(id, title): &(&str, &str)| CellPlan {
            id: (*id).to_owned(),
            title: format!("{title}: {CLIENTS} clients, 4 KiB sequential, depth 1, all asleep"),
            systems: names.clone(),
        };
        let plan = Plan {
            cells: cases.iter().map(cell).collect(),
            paired: false,
            rounds: options.rounds.unwrap_or(if options.quick { 3 } else { 7 }),
            metric: "iops".into(),
            comparisons: cases
                .iter()
                .flat_map(|(id, _)| comparisons(id, &systems, options.control))
                .collect(),
            versions,
            notes: vec![
                "One ringway-io, one qemu-storage-daemon: as many reactors as iothreads. Clients \
                 sleep on their eventfds, as guests do; no thread is pinned. The slowest client's \
                 share of the mean shows how even the load was."
                    .to_owned(),
            ],
            plots: vec![plot(&cases, &systems, options.control)],
        };
        let scratch = options.scratch.clone().unwrap_or_else(|| PathBuf::from("/var/tmp"));
        let dir = image::dir_in(&scratch)?;
        let images: Vec<PathBuf> =
            (0..CLIENTS).map(|n| dir.path().join(format!("{n}.img"))).collect();
        if cases.iter().any(|(id, _)| *id == "cached") {
            images.iter().try_for_each(|path| image::create(path, IMAGE_BYTES))?;
        }
        let measure = Duration::from_millis(options.window_ms.unwrap_or(400));
        let (control, window) = (options.control, Window::of(measure));
        Ok(Box::new(PreparedExperiment { plan, systems, images, control, window, _dir: dir }))
    }
}

/// Returns every backend with every number of threads. A quick run uses only the lowest and
/// highest.
fn systems(options: &Options) -> Vec<(BackendKind, u16)> {
    let counts: &[u16] = if options.quick { &[1, 4, 16] } else { &REACTORS };
    MAKERS
        .into_iter()
        .flat_map(|backend_kind| counts.iter().map(move |n| (backend_kind, *n)))
        .collect()
}

fn name(backend_kind: BackendKind, threads: u16, control: bool) -> String {
    let ours = format!("ringway-io --reactors {threads}");
    match backend_kind {
        BackendKind::Ringway if control => format!("qsd in the place of {ours}"),
        BackendKind::Ringway => ours,
        BackendKind::Daemon => format!("qsd, iothreads: {threads}"),
    }
}

fn comparisons(cell: &str, systems: &[(BackendKind, u16)], control: bool) -> Vec<Comparison> {
    let ours: Vec<u16> = systems
        .iter()
        .filter(|(backend_kind, _)| *backend_kind == BackendKind::Ringway)
        .map(|(_, n)| *n)
        .collect();
    let of = |n: u16, peers: Vec<String>| Comparison {
        cell: cell.to_owned(),
        ours: name(BackendKind::Ringway, n, control),
        peers,
        ..Comparison::default()
    };
    let mut all = Vec::new();
    for (i, n) in ours.iter().enumerate().skip(1) {
        let fewer = ours.iter().take(i).map(|n| name(BackendKind::Ringway, *n, control));
        all.push(Comparison {
            figure: Figure::OverLeader,
            bar: (!control).then_some(BAR),
            spread_excuses: true,
            ..of(*n, fewer.collect())
        });
    }
    all.extend(ours.iter().map(|n| of(*n, vec![name(BackendKind::Daemon, *n, control)])));
    all
}

fn plot(cases: &[(&str, &str)], systems: &[(BackendKind, u16)], control: bool) -> PlotPlan {
    let mut counts: Vec<u16> = systems.iter().map(|(_, n)| *n).collect();
    counts.sort_unstable();
    counts.dedup();
    let line = |backend_kind: BackendKind, cell: &str| SeriesPlan {
        name: if backend_kind == BackendKind::Ringway {
            "ringway-io"
        } else {
            "qemu-storage-daemon"
        }
        .into(),
        points: counts
            .iter()
            .enumerate()
            .map(|(step, n)| PointPlan::new(step, cell, name(backend_kind, *n, control)))
            .collect(),
    };
    let panel = |(id, title): &(&str, &str), metric: &str| PanelPlan {
        title: (*title).to_owned(),
        x: "reactors, or iothreads".into(),
        steps: counts.iter().map(u16::to_string).collect(),
        metric: metric.into(),
        log: metric == "p99_us",
        series: MAKERS.map(|backend_kind| line(backend_kind, id)).into(),
    };
    let metrics = ["iops", "p99_us", "backend_cpus"];
    PlotPlan {
        name: "lines".into(),
        title: format!("storage-aggregate: {CLIENTS} clients, total rate by number of reactors"),
        columns: metrics.len(),
        panels: cases.iter().flat_map(|case| metrics.map(|metric| panel(case, metric))).collect(),
    }
}

struct PreparedExperiment {
    plan: Plan,
    systems: Vec<(BackendKind, u16)>,
    images: Vec<PathBuf>,
    control: bool,
    window: Window,
    _dir: TempDir,
}

impl Prepared for PreparedExperiment {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn measure(&mut self, cell: usize, system: usize) -> Result<Sample> {
        let (backend_kind, threads) = self.systems[system];
        let backend_kind = if self.control { BackendKind::Daemon } else { backend_kind };
        let cached = self.plan.cells[cell].id == "cached";
        if cached {
            self.images.iter().try_for_each(|path| image::warm(path))?;
        }
        let image = |path: &PathBuf| cached.then(|| path.clone());
        let disk = |path| Disk { queues: 1, image: image(path), words: Vec::new() };
        let disks: Vec<Disk> = self.images.iter().map(disk).collect();
        let fleet = Fleet::start(backend_kind, &disks, Some(threads))?;
        let (pattern, wait) = (Pattern::Sequential, Wait::Sleep);
        let load = Load { pattern, wait, sample_every: 4, ..Load::default() };
        let mut client_queues = Vec::new();
        for number in 0..disks.len() {
            client_queues.extend(client::seats(&fleet.socket(number), load, 1, None)?);
        }
        client::measure_all(client_queues, load, self.window, || fleet.time_s())
            .map(|(sample, _)| sample)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_of_reactors_is_held_against_all_lower_ones() {
        let systems = systems(&Options::default());
        let all = comparisons("null", &systems, false);
        let bars: Vec<_> = all.iter().filter(|c| c.bar.is_some()).collect();
        let lower: Vec<usize> = bars.iter().map(|c| c.peers.len()).collect();
        assert_eq!(lower, [1, 2, 3, 4]);
        assert!(bars.iter().all(|c| c.spread_excuses && c.figure == Figure::OverLeader));
        assert_eq!(bars[3].ours, "ringway-io --reactors 16");
        assert_eq!(bars[3].peers[3], "ringway-io --reactors 8");
        assert_eq!(all.len(), 4 + 5);
        assert!(comparisons("null", &systems, true).iter().all(|c| c.bar.is_none()));
        assert_eq!(plot(&CASES, &systems, false).panels.len(), 6);
    }
}
