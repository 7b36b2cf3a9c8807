//! Results of a run: one JSON file with all data, one Markdown file for the reader.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::comparison::{Figure, Side};
use crate::experiment::{NOISY_CPUS, Options, Plan, Sample};
use crate::host::Host;
use crate::plot::{self, PlotPlan};
use crate::stats::{Difference, Summary};
use crate::verdict::Verdict;

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

impl Cell {
    /// Returns the CPUs of other work and of steal time: the median of the samples of the most
    /// disturbed system.
    #[must_use]
    pub fn foreign_cpus(&self) -> f64 {
        let of = |series: &Series| series.median("other_cpus") + series.median("steal_cpus");
        self.systems.iter().map(of).fold(0.0, f64::max)
    }
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
    /// Difference that the ratios show.
    #[serde(rename = "verdict")]
    pub difference: Difference,
    /// Bar for the median, if one is promised.
    pub bar: Option<f64>,
    /// Side of the bar on which the median must be.
    #[serde(default)]
    pub side: Side,
    /// True if the bar or the alternative bar is met. `None` without a bar. Results before
    /// `bar_verdict` also have true where the spread excused a miss.
    pub passed: Option<bool>,
    /// Verdict on the bar. `None` without a bar.
    #[serde(rename = "bar_verdict", default)]
    pub verdict: Option<Verdict>,
    /// Reason of the judgement where the figures alone do not show it.
    #[serde(default)]
    pub note: Option<String>,
    /// Alternative bar.
    #[serde(default)]
    pub bound: Option<ComparedBound>,
    /// See [`Cell::foreign_cpus`]. Older results leave out steal.
    #[serde(default)]
    pub other_cpus: f64,
}

impl Compared {
    /// Fills in the verdict of results that lack it.
    fn complete(&mut self) {
        if let (None, Some(bar), Some(passed)) = (self.verdict, self.bar, self.passed) {
            let met = self.side.is_met(self.ratio.median, bar)
                || self.bound.as_ref().is_some_and(ComparedBound::is_met);
            self.verdict = Some(match (passed, met) {
                (true, true) => Verdict::Pass,
                (true, false) => Verdict::Undecided,
                (false, _) => Verdict::Fail,
            });
        }
    }
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

impl ComparedBound {
    /// Returns whether ours is near enough to a reply-only system that counts.
    #[must_use]
    pub fn is_met(&self) -> bool {
        self.holds && self.ratio.median >= self.bar
    }
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
    /// Worst verdict of all bars. `None` if the run has no bar.
    #[serde(default)]
    pub verdict: Option<Verdict>,
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
    /// Assembles the results of a run. A bar without a figure counts as missed.
    #[must_use]
    pub fn new(run: Run, cells: Vec<Cell>, compared: Vec<Compared>, unjudged: Vec<String>) -> Self {
        let bars = compared.iter().filter_map(|c| c.verdict);
        let verdict = bars.chain(unjudged.iter().map(|_| Verdict::Fail)).max();
        Self { verdict, run, cells, compared, unjudged }
    }

    /// Returns the worst verdict on the bars of a cell. `None` if the cell has no bar.
    #[must_use]
    pub fn verdict_of(&self, cell: &str) -> Option<Verdict> {
        let bars = self.compared.iter().filter(|c| c.cell == cell).filter_map(|c| c.verdict);
        let unjudged = self
            .unjudged
            .iter()
            .filter(|what| what.strip_prefix(cell).is_some_and(|rest| rest.starts_with(", ")));
        bars.chain(unjudged.map(|_| Verdict::Fail)).max()
    }

    /// Returns the most CPUs that other work and steal took from a cell.
    #[must_use]
    pub fn foreign_cpus(&self) -> f64 {
        self.cells.iter().map(Cell::foreign_cpus).fold(0.0, f64::max)
    }

    /// Returns what a reader must know before the figures: `control run`, `quick`, `noisy host`.
    #[must_use]
    pub fn marks(&self) -> Vec<&'static str> {
        let noisy = self.foreign_cpus() > NOISY_CPUS;
        let marks =
            [(self.run.control, "control run"), (self.run.quick, "quick"), (noisy, "noisy host")];
        marks.into_iter().filter_map(|(is_set, mark)| is_set.then_some(mark)).collect()
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
            plots.push(write(format!("{stem}-{}.svg", plan.name), plot::lines(plan, self))?);
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
        Self::parse(&text)
            .with_context(|| format!("{} is not a result of this lab", path.display()))
    }

    /// Parses a JSON file of any version. Results before `bar_verdict` get their verdicts.
    fn parse(text: &str) -> Result<Self> {
        let Self { run, cells, mut compared, unjudged, .. } = serde_json::from_str(text)?;
        compared.iter_mut().for_each(Compared::complete);
        Ok(Self::new(run, cells, compared, unjudged))
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
pub(crate) mod tests {
    use super::*;

    /// Results of a version that counted an excused miss as passed.
    pub(crate) fn older() -> Results {
        Results::parse(include_str!("../tests/fixtures/results-1.json")).unwrap()
    }

    #[test]
    fn older_results_get_their_verdicts() {
        let results = older();
        let verdicts: Vec<_> = results.compared.iter().map(|c| (c.passed, c.verdict)).collect();
        assert_eq!(verdicts, [(None, None), (Some(true), Some(Verdict::Undecided))]);
        assert_eq!(results.verdict, Some(Verdict::Undecided));
        assert_eq!(results.verdict_of("direct-4k-d32-poll"), Some(Verdict::Undecided));
        assert_eq!(results.verdict_of("direct"), None);
        let with = |passed, median| {
            let mut one = Compared { verdict: None, passed, ..results.compared[1].clone() };
            one.ratio.median = median;
            one.complete();
            one.verdict
        };
        assert_eq!(with(Some(true), 0.95), Some(Verdict::Pass));
        assert_eq!((with(Some(false), 0.9), with(None, 0.9)), (Some(Verdict::Fail), None));
    }

    #[test]
    fn results_carry_their_verdicts_and_names_of_older_readers_stay() {
        let json = serde_json::to_value(older()).unwrap();
        assert_eq!(json["verdict"], "undecided");
        let bar = &json["compared"][1];
        assert_eq!(
            (&bar["bar_verdict"], &bar["verdict"]),
            (&"undecided".into(), &"no_difference_shown".into())
        );
        assert_eq!(Results::parse(&json.to_string()).unwrap(), older());
    }

    #[test]
    fn a_missed_bar_is_worse_than_an_undecided_one() {
        let Results { run, cells, mut compared, .. } = older();
        let unjudged = vec!["direct-4k-d32-poll, iops: a has no figure".to_owned()];
        let with = |compared: &[Compared], unjudged: &[String]| {
            let (run, cells) = (run.clone(), cells.clone());
            Results::new(run, cells, compared.to_vec(), unjudged.to_vec())
        };
        let all = with(&compared, &unjudged);
        assert_eq!(all.verdict, Some(Verdict::Fail));
        assert_eq!(all.verdict_of("direct-4k-d32-poll"), Some(Verdict::Fail));
        assert_eq!(with(&[], &[]).verdict, None);
        compared[0].verdict = Some(Verdict::Fail);
        assert_eq!(with(&compared, &[]).verdict, Some(Verdict::Fail));
        compared[0].verdict = Some(Verdict::Pass);
        assert_eq!(with(&compared, &[]).verdict, Some(Verdict::Undecided));
    }

    #[test]
    fn a_host_is_noisy_by_other_work_and_steal_of_its_most_disturbed_system() {
        let mut results = older();
        // qemu-storage-daemon: 0.2083 of other work and 0.1067 of steal.
        assert!((results.foreign_cpus() - 0.315).abs() < 0.0001, "{}", results.foreign_cpus());
        assert_eq!(results.marks(), ["quick", "noisy host"]);
        results.cells[0].systems.remove(1);
        results.run.control = true;
        assert_eq!(results.marks(), ["control run", "quick"]);
    }

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
