//! What a run leaves behind: one JSON file with everything, one Markdown file to read.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::comparison::{Figure, Side};
use crate::experiment::{Options, Plan, Sample};
use crate::host::Host;
use crate::plot::{self, PlotPlan};
use crate::stats::{Summary, Verdict};

/// Circumstances of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// The experiment.
    pub experiment: String,
    /// When it started, UTC, as `20260131-235959`.
    pub started_utc: String,
    /// A quick run.
    pub quick: bool,
    /// A control run: peers against themselves.
    pub control: bool,
    /// Rounds.
    pub rounds: usize,
    /// The metric that comparisons are about.
    pub metric: String,
    /// The host.
    pub host: Host,
    /// Versions of what was measured.
    pub versions: BTreeMap<String, String>,
    /// What a reader must know.
    pub notes: Vec<String>,
    /// What is drawn beside the picture of every cell.
    #[serde(default)]
    pub plots: Vec<PlotPlan>,
}

impl Run {
    pub(crate) fn new(
        experiment: &str,
        started: SystemTime,
        options: &Options,
        plan: &Plan,
        host: Host,
    ) -> Self {
        let seconds = started.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        Self {
            experiment: experiment.to_owned(),
            started_utc: utc_stamp(seconds),
            quick: options.quick,
            control: options.control,
            rounds: plan.rounds,
            metric: plan.metric.clone(),
            host,
            versions: plan.versions.clone(),
            notes: plan.notes.clone(),
            plots: plan.plots.clone(),
        }
    }
}

/// All samples of one system in one cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// The system.
    pub name: String,
    /// One sample per round, in order.
    pub samples: Vec<Sample>,
    /// Summary of every metric that every sample has.
    pub summary: BTreeMap<String, Summary>,
}

impl Series {
    /// Summarises samples.
    #[must_use]
    pub fn new(name: String, samples: Vec<Sample>) -> Self {
        let names: BTreeSet<String> = samples.iter().flat_map(|s| s.keys().cloned()).collect();
        let of = |metric: &String| {
            let values: Option<Vec<f64>> = samples.iter().map(|s| s.get(metric).copied()).collect();
            Summary::of(&values?)
        };
        let summary = names.iter().filter_map(|m| Some((m.clone(), of(m)?))).collect();
        Self { name, samples, summary }
    }

    /// One metric's values, a round that lacks it left out.
    #[must_use]
    pub fn values(&self, metric: &str) -> Vec<f64> {
        self.samples.iter().filter_map(|s| s.get(metric).copied()).collect()
    }

    /// Median of a metric, 0 if there is none.
    #[must_use]
    pub fn median(&self, metric: &str) -> f64 {
        self.summary.get(metric).map_or(0.0, |s| s.median)
    }
}

/// One cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// Short name.
    pub id: String,
    /// Name to read.
    pub title: String,
    /// The systems.
    pub systems: Vec<Series>,
}

/// One judged comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Compared {
    /// Title of the cell.
    pub cell: String,
    /// Our system.
    pub ours: String,
    /// The peers.
    pub peers: Vec<String>,
    /// The metric.
    pub metric: String,
    /// What becomes of a round's samples.
    #[serde(default)]
    pub figure: Figure,
    /// That figure, round by round; for most a ratio of ours over theirs.
    pub ratio: Summary,
    /// What they show.
    pub verdict: Verdict,
    /// What was promised.
    pub bar: Option<f64>,
    /// On which side of it the median must be.
    #[serde(default)]
    pub side: Side,
    /// Whether the promise was kept, in one way or the other.
    pub passed: Option<bool>,
    /// Why it was judged so, where that is not plain.
    #[serde(default)]
    pub note: Option<String>,
    /// The other way.
    #[serde(default)]
    pub bound: Option<ComparedBound>,
    /// CPUs that foreign work took in the cell's most disturbed system, median of its samples.
    #[serde(default)]
    pub other_cpus: f64,
}

/// How near a system came to what its client can get at all.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ComparedBound {
    /// The system that does nothing but answer.
    pub system: String,
    /// Ratios of ours over its, pairwise per round.
    pub ratio: Summary,
    /// How near is near enough.
    pub bar: f64,
    /// It came near to every peer itself; otherwise it was disturbed and counts for nothing.
    pub holds: bool,
}

/// The files of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// Everything.
    pub json: PathBuf,
    /// What a person reads.
    pub markdown: PathBuf,
    /// What a person looks at.
    pub plots: Vec<PathBuf>,
}

/// A whole run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// Circumstances.
    pub run: Run,
    /// Figures.
    pub cells: Vec<Cell>,
    /// Judgements.
    pub compared: Vec<Compared>,
    /// Bars for which there is no figure, in words.
    #[serde(default)]
    pub unjudged: Vec<String>,
}

impl Results {
    /// True unless a bar was missed, or could not be judged.
    #[must_use]
    pub fn all_bars_passed(&self) -> bool {
        self.unjudged.is_empty() && self.compared.iter().all(|c| c.passed != Some(false))
    }

    /// Writes `EXPERIMENT-STAMP.json`, `.md` and `.svg` into a directory, and one more picture
    /// `EXPERIMENT-STAMP-NAME.svg` for each that the experiment wants; gives their paths.
    ///
    /// # Errors
    /// If the directory cannot be written.
    pub fn write(&self, dir: &Path) -> Result<Written> {
        fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        let stem = format!("{}-{}", self.run.experiment, self.run.started_utc);
        let write = |name: String, text: String| -> Result<PathBuf> {
            let path = dir.join(name);
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
            Ok(path)
        };
        let text = serde_json::to_string_pretty(self).context("cannot encode the results")?;
        let json = write(format!("{stem}.json"), text + "\n")?;
        let markdown = write(format!("{stem}.md"), crate::table::markdown(self))?;
        let mut plots = vec![write(format!("{stem}.svg"), plot::cells(self))?];
        for plan in &self.run.plots {
            plots.push(write(format!("{stem}-{}.svg", plan.name), plot::lines(plan, &self.cells))?);
        }
        Ok(Written { json, markdown, plots })
    }

    /// Reads the newest results of an experiment, or of each if none is named, oldest name first.
    ///
    /// # Errors
    /// If the directory or a file in it cannot be read.
    pub fn newest(dir: &Path, experiment: Option<&str>) -> Result<Vec<Self>> {
        let entries = fs::read_dir(dir)
            .with_context(|| format!("cannot read {}; run an experiment first", dir.display()))?;
        let mut paths: Vec<PathBuf> = entries.filter_map(|e| Some(e.ok()?.path())).collect();
        paths.sort();
        // The stamp sorts by time, so the last of each experiment stays.
        let named = |path: PathBuf| experiment_of(&path).map(|name| (name, path));
        let mut newest: BTreeMap<String, PathBuf> = paths.into_iter().filter_map(named).collect();
        newest.retain(|name, _| experiment.is_none_or(|wanted| wanted == name));
        newest.values().map(|path| Self::read(path)).collect()
    }

    fn read(path: &Path) -> Result<Self> {
        let text =
            fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_str(&text)
            .with_context(|| format!("{} is not a result of this lab", path.display()))
    }
}

/// The experiment in a file name `EXPERIMENT-STAMP.json`; `None` for other files.
fn experiment_of(path: &Path) -> Option<String> {
    let stem = path.file_name()?.to_str()?.strip_suffix(".json")?;
    let (name, time) = stem.rsplit_once('-')?;
    let (name, date) = name.rsplit_once('-')?;
    let digits =
        |text: &str, count| text.len() == count && text.bytes().all(|b| b.is_ascii_digit());
    (digits(date, 8) && digits(time, 6)).then(|| name.to_owned())
}

/// Seconds since 1970 as `YYYYMMDD-HHMMSS`, by the usual calendar arithmetic on eras of 400 years.
fn utc_stamp(seconds: u64) -> String {
    let (days, second) = (seconds / 86400, seconds % 86400);
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}{month:02}{day:02}-{hour:02}{minute:02}{second:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_dates() {
        assert_eq!(utc_stamp(0), "19700101-000000");
        assert_eq!(utc_stamp(951_782_400), "20000229-000000");
        assert_eq!(utc_stamp(1_767_225_599), "20251231-235959");
    }

    #[test]
    fn file_names_tell_the_experiment() {
        let of = |name: &str| experiment_of(Path::new(name));
        assert_eq!(of("/r/blk-baseline-20260131-235959.json").as_deref(), Some("blk-baseline"));
        assert_eq!(of("/r/blk-baseline-20260131-235959.md"), None);
        assert_eq!(of("/r/other.json"), None);
    }

    #[test]
    fn a_metric_that_a_sample_lacks_has_no_summary() {
        let full = Sample::from([("iops".into(), 1.0), ("extra".into(), 2.0)]);
        let poor = Sample::from([("iops".into(), 3.0)]);
        let series = Series::new("s".into(), vec![full, poor]);
        assert_eq!(series.median("iops"), 2.0);
        assert!(!series.summary.contains_key("extra"));
        assert_eq!(series.values("extra"), [2.0]);
    }
}
