//! `splitting`: so many bytes in flight, as one request that Ringway may split, and as 1 to 128
//! requests of a part each.

use std::time::Duration;

use anyhow::Result;

use super::files::Files;
use super::models::Model;
use super::served::{Disk, Served, window};
use super::streams::Stream;
use crate::blk::client::{Load, Wait};
use crate::experiment::{
    CellPlan, Comparison, Experiment, Options, PanelPlan, Plan, PlotPlan, PointPlan, Prepared,
    Sample, SeriesPlan,
};
use crate::host::versions;

/// Numbers of requests among which the bytes in flight are divided.
const PARTS: [u16; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
const QUICK_PARTS: [u16; 4] = [1, 4, 16, 64];
const KIB: usize = 1 << 10;
const SIZES: [usize; 3] = [64 * KIB, 512 * KIB, 4096 * KIB];
const QUICK_SIZES: [usize; 1] = [512 * KIB];
/// Size of the file on the host's storage, in bytes.
const FILE_BYTES: u64 = 1 << 30;
/// Least rate over the best number of requests, on storage that serves parts of a request side by side.
const BEST_BAR: f64 = 0.8;
/// Least rate over one request of all bytes, on other storage: independent requests are at several places
/// of it, and parts of one request are not.
const WHOLE_BAR: f64 = 0.95;

const OURS: &str = "ringway-io";

/// Storage, its name and title. `None` is a file.
const DEVICES: [(&str, &str, Option<Model>); 5] = [
    ("striped", "striped flash of 256 MB/s", Some(Model::Striped)),
    ("one-channel", "flash of 256 MB/s, a channel for each request", Some(Model::Unstriped)),
    ("spindle", "disk that spins", Some(Model::Spindle)),
    ("array", "array of 820 MB/s", Some(Model::Array)),
    ("file", "a file", None),
];

/// The `splitting` experiment.
#[derive(Debug)]
pub struct Splitting;

/// One storage with so many bytes in flight.
#[derive(Debug, Clone, Copy)]
struct Case {
    device: (&'static str, &'static str, Option<Model>),
    bytes: usize,
}

impl Case {
    fn id(&self) -> String {
        format!("{}-{}k", self.device.0, self.bytes / KIB)
    }

    fn cell(&self, parts: &[u16]) -> CellPlan {
        let (_, title, _) = self.device;
        let kib = self.bytes / KIB;
        CellPlan {
            id: self.id(),
            title: format!("{title}: random reads, {kib} KiB in flight"),
            systems: std::iter::once(OURS.to_owned())
                .chain(parts.iter().map(|parts| fixed(*parts)))
                .collect(),
        }
    }

    /// Returns what ours is compared with: one whole request, and the best of all.
    fn comparisons(&self, parts: &[u16], control: bool) -> [Comparison; 2] {
        let is_striped = self.device.2 == Some(Model::Striped);
        let of = |peers, bar: Option<f64>| Comparison {
            cell: self.id(),
            ours: OURS.to_owned(),
            peers,
            bar: bar.filter(|_| !control),
            spread_excuses: true,
            ..Comparison::default()
        };
        let all = parts.iter().map(|parts| fixed(*parts)).collect();
        // Parts of 64 KiB are smaller than the stripes.
        let best = (is_striped && self.bytes > 64 * KIB).then_some(BEST_BAR);
        [of(vec![fixed(1)], (!is_striped).then_some(WHOLE_BAR)), of(all, best)]
    }
}

/// Returns the name of a fixed number of requests.
fn fixed(parts: u16) -> String {
    let word = if parts == 1 { "request" } else { "requests" };
    format!("ringway-io without a profile, {parts} {word}")
}

impl Experiment for Splitting {
    fn name(&self) -> &'static str {
        "splitting"
    }

    fn summary(&self) -> &'static str {
        "one large request that is split, beside every fixed number of smaller ones"
    }

    fn prepare(&self, options: &Options) -> Result<Box<dyn Prepared>> {
        let (parts, sizes): (&[u16], &[usize]) =
            if options.quick { (&QUICK_PARTS, &QUICK_SIZES) } else { (&PARTS, &SIZES) };
        // A quick run has no time to measure the host's storage.
        let devices = DEVICES.into_iter().filter(|device| device.2.is_some() || !options.quick);
        let cases = devices
            .flat_map(|device| sizes.iter().map(move |bytes| Case { device, bytes: *bytes }));
        let cases: Vec<Case> = cases.filter(|case| options.selects(&case.id())).collect();
        let plan = Plan {
            cells: cases.iter().map(|case| case.cell(parts)).collect(),
            rounds: options.rounds.unwrap_or(3),
            metric: "mib_per_s".into(),
            comparisons: cases
                .iter()
                .flat_map(|case| case.comparisons(parts, options.control))
                .collect(),
            versions: versions(&[], Some("ringway-io"))?,
            notes: vec![
                "The requests of a fixed number are independent: each is followed by the next one. A \
                 request that is split waits for its slowest part."
                    .to_owned(),
            ],
            plots: vec![plot(&cases, parts)],
            ..Plan::default()
        };
        let measure = Duration::from_millis(options.window_ms.unwrap_or(1000));
        let (files, parts, control) =
            (Files::new(options, FILE_BYTES), parts.to_vec(), options.control);
        Ok(Box::new(PreparedSplitting { plan, cases, parts, files, measure, control }))
    }
}

fn plot(cases: &[Case], parts: &[u16]) -> PlotPlan {
    let point = |case: &Case, step, system: String| PointPlan::new(step, case.id(), system);
    let steps = || parts.iter().enumerate();
    let panel = |case: &Case| PanelPlan {
        title: format!("{}, {} KiB in flight", case.device.1, case.bytes / KIB),
        x: "requests, each of a part".into(),
        steps: parts.iter().map(u16::to_string).collect(),
        metric: "mib_per_s".into(),
        log: false,
        series: vec![
            SeriesPlan {
                name: OURS.into(),
                points: steps().map(|(step, _)| point(case, step, OURS.into())).collect(),
            },
            SeriesPlan {
                name: "ringway-io without a profile".into(),
                points: steps().map(|(step, n)| point(case, step, fixed(*n))).collect(),
            },
        ],
    };
    PlotPlan {
        name: "lines".into(),
        title: "splitting: one request that Ringway splits, and fixed numbers of requests".into(),
        columns: 3,
        panels: cases.iter().map(panel).collect(),
    }
}

struct PreparedSplitting {
    plan: Plan,
    cases: Vec<Case>,
    parts: Vec<u16>,
    files: Files,
    measure: Duration,
    control: bool,
}

impl Prepared for PreparedSplitting {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn measure(&mut self, cell: usize, system: usize) -> Result<Sample> {
        let case = self.cases[cell];
        // The first system is ours.
        let fixed = system.checked_sub(1).map(|at| self.parts[at]);
        let profile = fixed.is_none() && !self.control;
        let backend = match case.device.2 {
            Some(model) => model.backend(profile),
            None => serde_json::json!({"file": self.files.paths(1, profile)?[0]}),
        };
        let served = Served::ringway(&[Disk { backend, words: Vec::new() }])?;
        let depth = fixed.unwrap_or(1);
        let bytes = case.bytes / usize::from(depth);
        let load = Load { bytes, depth, wait: Wait::Sleep, ..Load::default() };
        let window = window(self.measure);
        let (records, mut sample) =
            served.run(&[vec![Stream::new(0, load)]], window, Vec::new())?;
        let p99 = records.percentile(0, 99);
        sample.insert("p99_ms".into(), p99.as_secs_f64() * 1e3);
        Ok(sample)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_request_is_compared_with_every_number_of_parts() {
        let case = Case { device: DEVICES[0], bytes: 512 * KIB };
        assert_eq!(case.id(), "striped-512k");
        let cell = case.cell(&PARTS);
        assert_eq!((cell.systems.len(), cell.systems[0].as_str()), (9, OURS));
        let [whole, best] = case.comparisons(&PARTS, false);
        assert_eq!((whole.bar, best.bar), (None, Some(BEST_BAR)));
        assert_eq!((&whole.peers[..], &best.peers[..]), (&cell.systems[1..2], &cell.systems[1..]));
        let other = Case { device: DEVICES[1], ..case };
        let bars = |control| other.comparisons(&PARTS, control).map(|it| it.bar);
        assert_eq!((bars(false), bars(true)), ([Some(WHOLE_BAR), None], [None, None]));
        // Every part is a whole number of blocks.
        for (bytes, parts) in SIZES.into_iter().flat_map(|bytes| PARTS.map(|parts| (bytes, parts)))
        {
            assert!(bytes / usize::from(parts) >= 512, "{bytes} in {parts}");
        }
    }
}
