//! `fairness`: weights, floors and caps of disks that share a storage, and what a disk that asks for
//! little gets beside those that ask for much.

mod kernel;

use std::time::Duration;

use anyhow::Result;

use super::files::{FILE_BYTES, Files};
use super::models::Model;
use super::rates::{BINS, bin_metric, rates_plot};
use super::records::{Records, error_percent};
use super::served::{Disk, Served, window};
use super::streams::{Event, Stream};
use crate::blk::client::{Load, Pattern, Wait, Window};
use crate::experiment::{
    CellPlan, Comparison, Experiment, Figure, Options, Plan, PlotPlan, Prepared, Sample, Side,
};
use crate::host::{FIO, versions};
use kernel::KernelScheduler;

const SHARED: &str = "ringway-io";
const PLAIN: &str = "ringway-io without a profile";
/// Schedulers of the kernel on a loop device, as systems.
const KERNELS: [(&str, &str); 2] = [
    ("kernel, bfq on a loop device", "bfq"),
    ("kernel, mq-deadline on a loop device", "mq-deadline"),
];

const WEIGHTS: [u16; 4] = [100, 200, 400, 800];
/// Weights after the change of the live case.
const LIVE_WEIGHTS: [u16; 4] = [100, 100, 100, 400];
/// Requests a second of the disk with a floor.
const FLOOR_IOPS: u64 = 1000;
/// Bytes a second of the disk with a cap.
const CAP: u64 = 50_000_000;
/// Most that a rate may be off its weight, in percent.
const WEIGHT_BAR: f64 = 5.0;
/// Least part of the array's limit, of a floor.
const PART_BAR: f64 = 0.95;
/// Most that a disk gets over its cap.
const CAP_BAR: f64 = 1.05;
/// Most that the fastest of equal disks gets over the slowest.
const SHARE_BAR: f64 = 1.05;
/// Least gain of 1 / p99 beside other disks, over that without a profile.
const NEIGHBOUR_BAR: f64 = 3.0;

/// Large requests, many at a time.
const HOG: Load = Load { bytes: 64 << 10, depth: 8, wait: Wait::Sleep, ..LOAD };
/// As many as keep files busy, whose storage may take more at a time.
const FILE_HOG: Load = Load { depth: 32, ..HOG };
/// One small request at a time.
const SMALL: Load = Load { bytes: 4096, depth: 1, wait: Wait::Sleep, ..LOAD };
const LOAD: Load = Load {
    access: crate::blk::client::Access::Read,
    pattern: Pattern::Random,
    bytes: 4096,
    depth: 1,
    wait: Wait::Sleep,
    sample_every: 1,
    arrivals: crate::blk::client::Arrivals::Next,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Case {
    Weights,
    WeightsOfFiles,
    Floor,
    Cap,
    Neighbour,
    Sparse,
    ComeAndGo,
    Live,
}

impl Case {
    const ALL: [Self; 8] = [
        Self::Weights,
        Self::WeightsOfFiles,
        Self::Floor,
        Self::Cap,
        Self::Neighbour,
        Self::Sparse,
        Self::ComeAndGo,
        Self::Live,
    ];

    fn id(self) -> &'static str {
        match self {
            Self::Weights => "weights",
            Self::WeightsOfFiles => "file-weights",
            Self::Floor => "floor",
            Self::Cap => "cap",
            Self::Neighbour => "neighbour",
            Self::Sparse => "sparse",
            Self::ComeAndGo => "come-and-go",
            Self::Live => "live",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Weights => "weights 100, 200, 400, 800, 64 KiB at depth 8 each",
            Self::WeightsOfFiles => {
                "weights 100, 200, 400, 800 on files of the host's storage, 64 KiB at depth 32 each"
            }
            Self::Floor => {
                "a disk of weight 1 with a floor of 1,000 requests/s beside 19 of weight 100"
            }
            Self::Cap => "a disk with a cap of 50 MB/s beside 3 without",
            Self::Neighbour => "4 KiB at depth 1 beside a disk with 4 MiB at depth 16",
            Self::Sparse => "4 KiB every 10 ms beside 99 disks with 64 KiB at depth 8",
            Self::ComeAndGo => "8 disks of which 4 pause every second half of a second",
            Self::Live => "4 disks, the weight of the last goes from 100 to 400 half-way",
        }
    }

    fn systems(self, kernel: bool) -> Vec<String> {
        let ours: &[&str] = if matches!(self, Self::Live) { &[SHARED] } else { &[SHARED, PLAIN] };
        let has_kernels = kernel && matches!(self, Self::WeightsOfFiles);
        let kernels = KERNELS.iter().map(|(name, _)| *name).filter(|_| has_kernels);
        ours.iter().copied().chain(kernels).map(str::to_owned).collect()
    }

    /// Returns the streams of each disk.
    fn streams(self) -> Vec<Vec<Stream>> {
        let hogs = |count, load| (0..count).map(|disk| vec![Stream::new(disk, load)]).collect();
        match self {
            Self::Weights | Self::Cap | Self::Live => hogs(4, HOG),
            Self::WeightsOfFiles => hogs(4, FILE_HOG),
            Self::Floor => hogs(20, HOG),
            Self::Neighbour => {
                let large = Load { bytes: 4 << 20, depth: 16, ..HOG };
                vec![vec![Stream::new(0, SMALL)], vec![Stream::new(1, large)]]
            }
            Self::Sparse => {
                let think = Duration::from_millis(10);
                let mut all: Vec<Vec<Stream>> = hogs(100, HOG);
                all[0] = vec![Stream { think, ..Stream::new(0, SMALL) }];
                all
            }
            Self::ComeAndGo => {
                let turns = |disk: usize| (disk >= 4).then_some(Duration::from_millis(500));
                let stream = |disk| Stream { turns: turns(disk), ..Stream::new(disk, HOG) };
                (0..8).map(|disk| vec![stream(disk)]).collect()
            }
        }
    }

    /// Returns parameters of `disk.attach`.
    fn words(self, disk: usize) -> Vec<String> {
        match (self, disk) {
            (Self::Weights | Self::WeightsOfFiles, _) => {
                vec![format!("share.weight={}", WEIGHTS[disk])]
            }
            (Self::Floor, 0) => {
                vec!["share.weight=1".into(), format!("share.floor_iops={FLOOR_IOPS}")]
            }
            (Self::Cap, 0) => vec![format!("caps.bytes_per_second={CAP}")],
            _ => Vec::new(),
        }
    }

    fn comparisons(self, control: bool) -> Vec<Comparison> {
        let bar = |bar| (!control).then_some(bar);
        let of = |metric: &str| Comparison {
            cell: self.id().to_owned(),
            ours: SHARED.to_owned(),
            metric: Some(metric.to_owned()),
            ..Comparison::default()
        };
        let alone = |metric: &str, side, value| Comparison {
            figure: Figure::Alone,
            side,
            bar: bar(value),
            ..of(metric)
        };
        let total = || alone("part_of_limit", Side::AtLeast, PART_BAR);
        match self {
            Self::Weights | Self::Live => {
                vec![alone("weights_error_percent", Side::AtMost, WEIGHT_BAR), total()]
            }
            // The profile is that of one moment of the storage.
            Self::WeightsOfFiles => Vec::new(),
            Self::Floor => vec![alone("floor_part", Side::AtLeast, PART_BAR), total()],
            Self::Cap => vec![alone("cap_part", Side::AtMost, CAP_BAR), total()],
            Self::Neighbour | Self::Sparse => {
                let peers = vec![PLAIN.to_owned()];
                vec![Comparison { peers, bar: bar(NEIGHBOUR_BAR), ..of("1/percentile") }, total()]
            }
            Self::ComeAndGo => vec![alone("max_over_min", Side::AtMost, SHARE_BAR), total()],
        }
    }

    /// Computes the figures of a run.
    fn figures(self, records: &Records, sample: &mut Sample) {
        let mut figure = |name: &str, value: f64| {
            sample.insert(name.to_owned(), value);
        };
        if self != Self::WeightsOfFiles {
            // Requests of different sizes have different limits; that of the largest is the highest.
            let largest = records.all.iter().map(|record| record.bytes).max().unwrap_or(1);
            figure("part_of_limit", records.total() / Model::Array.limit(largest));
        }
        match self {
            Self::Weights | Self::WeightsOfFiles => {
                let rates = [0, 1, 2, 3].map(|disk| records.rate(disk));
                figure("weights_error_percent", error_percent(&rates, &WEIGHTS));
            }
            Self::Floor => {
                let floor = FLOOR_IOPS as f64 * HOG.bytes as f64;
                figure("floor_part", records.rate(0) / floor);
            }
            Self::Cap => figure("cap_part", records.rate(0) / CAP as f64),
            Self::Neighbour | Self::Sparse => {
                let p99 = records.percentile(0, 99).as_secs_f64();
                figure("p50_ms", records.percentile(0, 50).as_secs_f64() * 1e3);
                figure("p99_ms", p99 * 1e3);
                figure("1/percentile", 1.0 / p99.max(1e-9));
            }
            Self::ComeAndGo => figure("max_over_min", records.max_over_min(0..4)),
            Self::Live => {
                let (from, until) = records.window;
                let length = until - from;
                // The call takes a moment.
                let second_half = (from + length * 6 / 10, until);
                let rates = [0, 1, 2, 3].map(|disk| records.bytes(disk, second_half));
                figure("weights_error_percent", error_percent(&rates, &LIVE_WEIGHTS));
                for (disk, bin) in (0..4).flat_map(|disk| (0..BINS).map(move |bin| (disk, bin))) {
                    let at = |bin: usize| from + length * bin as u64 / BINS as u64;
                    let bytes = records.bytes(disk, (at(bin), at(bin + 1)));
                    let seconds = length as f64 / 1e9 / BINS as f64;
                    figure(&bin_metric(disk, bin), bytes / seconds / 1048576.0);
                }
            }
        }
    }
}

/// The `fairness` experiment.
#[derive(Debug)]
pub struct Fairness;

impl Experiment for Fairness {
    fn name(&self) -> &'static str {
        "fairness"
    }

    fn summary(&self) -> &'static str {
        "weights, floors, caps, noisy neighbours, and disks that come and go, on one storage"
    }

    fn prepare(&self, options: &Options) -> Result<Box<dyn Prepared>> {
        let kernel = KernelScheduler::check();
        let has_kernel = kernel.is_ok();
        let wanted = |case: &Case| {
            // A quick run has no time to measure the host's storage.
            let files = *case == Case::WeightsOfFiles;
            options.selects(case.id()) && !(options.quick && files)
        };
        let cases: Vec<Case> = Case::ALL.into_iter().filter(wanted).collect();
        let cell = |case: &Case| CellPlan {
            id: case.id().to_owned(),
            title: case.title().to_owned(),
            systems: case.systems(has_kernel),
        };
        let mut notes = vec![
            "All cells but file-weights are on the model of an array of 820 MB/s in ringway-io. \
             Clients sleep; nothing is pinned."
                .to_owned(),
        ];
        let tools = if has_kernel { &[FIO][..] } else { &[] };
        let why = kernel.err();
        notes.extend(why.map(|why| format!("The kernel's schedulers are no peers here: {why}.")));
        let plan = Plan {
            cells: cases.iter().map(cell).collect(),
            rounds: options.rounds.unwrap_or(if options.quick { 2 } else { 5 }),
            metric: "mib_per_s".into(),
            comparisons: cases.iter().flat_map(|case| case.comparisons(options.control)).collect(),
            versions: versions(tools, Some("ringway-io"))?,
            notes,
            plots: cases.contains(&Case::Live).then(plot).into_iter().collect(),
            ..Plan::default()
        };
        let measure = Duration::from_millis(options.window_ms.unwrap_or(3000));
        let (files, control) = (Files::new(options, FILE_BYTES * 8), options.control);
        Ok(Box::new(PreparedFairness { plan, cases, files, measure, control }))
    }
}

/// Draws the rates of the disks while a weight changes.
fn plot() -> PlotPlan {
    let title = "fairness: half-way, disk.weight gives disk 4 a weight of 400".into();
    let panel = "four disks on an array of 820 MB/s".into();
    rates_plot(title, panel, (Case::Live.id(), SHARED), 4)
}

struct PreparedFairness {
    plan: Plan,
    cases: Vec<Case>,
    files: Files,
    measure: Duration,
    control: bool,
}

impl Prepared for PreparedFairness {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn measure(&mut self, cell: usize, system: usize) -> Result<Sample> {
        let case = self.cases[cell];
        let system = self.plan.cells[cell].systems[system].clone();
        let window = window(self.measure);
        if let Some((_, scheduler)) = KERNELS.iter().find(|(name, _)| *name == system) {
            let device = KernelScheduler::new(&self.files.paths(1, false)?[0], scheduler)?;
            let rates = device.rates(WEIGHTS, FILE_HOG, window)?;
            let total: f64 = rates.iter().sum();
            let error = error_percent(&rates, &WEIGHTS);
            let figures = [("mib_per_s", total / 1048576.0), ("weights_error_percent", error)];
            return Ok(figures.map(|(name, value)| (name.to_owned(), value)).into());
        }
        let profile = system == SHARED && !self.control;
        let streams = case.streams();
        let paths = match case {
            Case::WeightsOfFiles => self.files.paths(streams.len(), profile)?,
            _ => Vec::new(),
        };
        let disk = |number: usize| Disk {
            backend: match paths.get(number) {
                Some(path) => serde_json::json!({"file": path}),
                None => Model::Array.backend(profile),
            },
            words: case.words(number),
        };
        let disks: Vec<Disk> = (0..streams.len()).map(disk).collect();
        let served = Served::ringway(&disks)?;
        let (records, mut sample) = served.run(&streams, window, events(case, &served, window))?;
        case.figures(&records, &mut sample);
        Ok(sample)
    }
}

/// Returns what happens during a run.
fn events<'a>(case: Case, served: &'a Served, window: Window) -> Vec<Event<'a>> {
    if case != Case::Live {
        return Vec::new();
    }
    let weight = format!("weight={}", LIVE_WEIGHTS[3]);
    let change = move || served.call(&["io", "disk.weight", "id=3", &weight]);
    vec![(window.warm + window.measure / 2, Box::new(change))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_has_its_disks_and_words() {
        let disks = Case::ALL.map(|case| case.streams().len());
        assert_eq!(disks, [4, 4, 20, 4, 2, 100, 8, 4]);
        assert_eq!(Case::Weights.words(3), ["share.weight=800"]);
        assert_eq!(Case::Floor.words(0), ["share.weight=1", "share.floor_iops=1000"]);
        assert!(Case::Floor.words(1).is_empty() && Case::Live.words(3).is_empty());
        let bars =
            |case: Case| case.comparisons(false).iter().filter(|it| it.bar.is_some()).count();
        assert_eq!(Case::ALL.map(bars), [2, 0, 2, 2, 2, 2, 2, 2]);
        let control = Case::ALL.iter().flat_map(|case| case.comparisons(true));
        assert!(control.into_iter().all(|it| it.bar.is_none()));
        assert_eq!(Case::Live.systems(true), [SHARED]);
        assert_eq!(plot().panels[0].series.len(), 4);
    }
}
