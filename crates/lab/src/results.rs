//! Results of a run: one JSON file with all data, one Markdown file for the reader.

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
    /// Name of the experiment.
    pub experiment: String,
    /// Start time in UTC, as `20260131-235959`.
    pub started_utc: String,
    /// True for a quick run.
    pub quick: bool,
    /// True for a control run, in which peers take the place of our systems.
    pub control: bool,
    /// Number of rounds.
    pub rounds: usize,
    /// Default metric of the comparisons.
    pub metric: String,
    /// Facts about the host.
    pub host: Host,
    /// Versions of the measured programs.
    pub versions: BTreeMap<String, String>,
    /// Notes for the reader.
    pub notes: Vec<String>,
    /// Plots in addition to the plot of every cell.
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
    /// Name of the system.
    pub name: String,
    /// One sample per round, in order.
    pub samples: Vec<Sample>,
    /// Summary of every metric that all samples have.
    pub summary: BTreeMap<String, Summary>,
}

impl Series {
    /// Summarizes samples.
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

    /// Returns one metric's values, without rounds that lack it.
    #[must_use]
    pub fn values(&self, metric: &str) -> Vec<f64> {
        self.samples.iter().filter_map(|s| s.get(metric).copied()).collect()
    }

    /// Returns the median of a metric, or 0 if there is none.
    #[must_use]
    pub fn median(&self, metric: &str) -> f64 {
        self.summary.get(metric).map_or(0.0, |s| s.median)
    }
}

/// Results of one cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// Short name.
    pub id: String,
    /// Title for the reader.
    pub title: String,
    /// Results of the systems.
    pub systems: Vec<Series>,
}

/// Judged comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Compared {
    /// Title of the cell.
    pub cell: String,
    /// Name of our system.
    pub ours: String,
    /// Names of the peers.
    pub peers: Vec<String>,
    /// Compared metric.
    pub metric: String,
    /// Figure of a round.
    #[serde(default)]
    pub figure: Figure,
    /// Summary of the figure over the rounds. For most figures this is a ratio of ours over the
    /// peers.
    pub ratio: Summary,
    /// Verdict on the ratios.
    pub verdict: Verdict,
    /// Bar for the median, if one is promised.
    pub bar: Option<f64>,
    /// Side of the bar on which the median must be.
    #[serde(default)]
    pub side: Side,
    /// True if the bar or the alternative bar is met. `None` without a bar.
    pub passed: Option<bool>,
    /// Reason of the judgement where the figures alone do not show it.
    #[serde(default)]
    pub note: Option<String>,
    /// Alternative bar.
    #[serde(default)]
    pub bound: Option<ComparedBound>,
    /// CPUs of other work, median of the samples of the cell's most disturbed system.
    #[serde(default)]
    pub other_cpus: f64,
}

/// Comparison with the reply-only system, the upper bound for any server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ComparedBound {
    /// Name of the reply-only system.
    pub system: String,
    /// Ratios of ours over the reply-only system, per round.
    pub ratio: Summary,
    /// Least median ratio that passes.
    pub bar: f64,
    /// True if the reply-only system is itself near or above every peer. Otherwise it was disturbed
    /// and does not count.
    pub holds: bool,
}

/// Files of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// Path of the JSON file with all data.
    pub json: PathBuf,
    /// Path of the Markdown report.
    pub markdown: PathBuf,
    /// Paths of the plots.
    pub plots: Vec<PathBuf>,
}

/// Results of a whole run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// Circumstances of the run.
    pub run: Run,
    /// Results of the cells.
    pub cells: Vec<Cell>,
    /// Judged comparisons.
    pub compared: Vec<Compared>,
    /// Descriptions of bars without a figure.
    #[serde(default)]
    pub unjudged: Vec<String>,
}

impl Results {
    /// Returns whether all bars were met. A bar without a figure counts as missed.
    #[must_use]
    pub fn all_bars_passed(&self) -> bool {
        self.unjudged.is_empty() && self.compared.iter().all(|c| c.passed != Some(false))
    }

    /// Writes `EXPERIMENT-STAMP.json`, `.md` and `.svg` into a directory. Also writes
    /// `EXPERIMENT-STAMP-NAME.svg` for each additional plot of the experiment. Returns the paths.
    ///
    /// # Errors
    /// The directory cannot be written.
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

    /// Reads the newest results of an experiment, or of all experiments if `experiment` is `None`,
    /// sorted by name.
    ///
    /// # Errors
    /// The directory or a file in it cannot be read.
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

/// Returns the experiment of a file name `EXPERIMENT-STAMP.json`, or `None` for other files.
fn experiment_of(path: &Path) -> Option<String> {
    let stem = path.file_name()?.to_str()?.strip_suffix(".json")?;
    let (name, time) = stem.rsplit_once('-')?;
    let (name, date) = name.rsplit_once('-')?;
    let digits =
        |text: &str, count| text.len() == count && text.bytes().all(|b| b.is_ascii_digit());
    (digits(date, 8) && digits(time, 6)).then(|| name.to_owned())
}

/// Formats seconds since 1970 as `YYYYMMDD-HHMMSS`, with calendar arithmetic on eras of 400 years.
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
