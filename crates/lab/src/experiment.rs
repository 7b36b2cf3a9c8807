//! Framework of all experiments: cells, systems, rounds, samples.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};

pub use crate::comparison::{Bound, Comparison, Figure, Side};
use crate::comparison::{compare, unjudged};
use crate::host::{Host, HostTime, load};
use crate::interrupted::Interrupted;
use crate::peer::PeerArgument;
pub use crate::plot::{PanelPlan, PlotPlan, PointPlan, SeriesPlan};
use crate::progress::Progress;
use crate::results::{Cell, Results, Run, Series};

/// Values of one sample by metric. The name of a metric ends with its unit, for example `p50_us`.
pub type Sample = BTreeMap<String, f64>;

/// Setup in which systems are compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CellPlan {
    /// Short name, unique in the plan.
    pub id: String,
    /// Title for the reader.
    pub title: String,
    /// Systems in the order in which they run. The next round runs them backwards.
    pub systems: Vec<String>,
}

/// Plan of one run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    /// Cells of the run.
    pub cells: Vec<CellPlan>,
    /// Rounds: samples of every system in every cell.
    pub rounds: usize,
    /// True if samples are short and only compare with their neighbours. All rounds of a cell then
    /// precede the next cell, and no sample is repeated.
    pub paired: bool,
    /// Default metric of the comparisons.
    pub metric: String,
    /// Comparisons to judge after the run.
    pub comparisons: Vec<Comparison>,
    /// Versions of all measured programs.
    pub versions: BTreeMap<String, String>,
    /// Notes that a reader needs to understand the figures. Samples may add some.
    pub notes: Vec<String>,
    /// Plots in addition to the plot of every cell.
    pub plots: Vec<PlotPlan>,
}

/// Options of a run.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// True for a run of less than a minute: fewer cells, short windows.
    pub quick: bool,
    /// Number of rounds. `None` means the experiment's default.
    pub rounds: Option<usize>,
    /// Window of one sample in milliseconds. `None` means the experiment's default.
    pub window_ms: Option<u64>,
    /// Only cells whose id contains this text.
    pub only: Option<String>,
    /// True for a control run, in which peers take the place of our systems. Ratios other than 1
    /// are the noise of the method on this host.
    pub control: bool,
    /// Directory for images, on a file system with direct I/O.
    pub scratch: Option<std::path::PathBuf>,
    /// Backends that the user has started, as additional peers.
    pub peers: Vec<PeerArgument>,
    /// Another build of the measured program, as an additional system.
    pub other_binary: Option<std::path::PathBuf>,
}

impl Options {
    /// Returns whether the options select a cell.
    #[must_use]
    pub fn selects(&self, cell: &str) -> bool {
        self.only.as_ref().is_none_or(|only| cell.contains(only.as_str()))
    }
}

/// Experiment that can be prepared and run.
pub trait Experiment {
    /// Returns the name on the command line and in file names.
    fn name(&self) -> &'static str;

    /// Returns a summary of one line.
    fn summary(&self) -> &'static str;

    /// Returns whether backends that the user has started can take part.
    fn takes_peers(&self) -> bool {
        false
    }

    /// Returns whether another build of the measured program can take part.
    fn takes_other_binary(&self) -> bool {
        false
    }

    /// Creates images, finds programs and makes the plan.
    ///
    /// # Errors
    /// A requirement is missing. The error names the remedy.
    fn prepare(&self, options: &Options) -> Result<Box<dyn Prepared>>;
}

/// Prepared experiment. Dropping it removes its files.
pub trait Prepared {
    /// Returns the plan.
    fn plan(&self) -> &Plan;

    /// Measures one system of one cell once. Nothing of the sample runs afterwards.
    ///
    /// # Errors
    /// The system does not start, or the sample contains errors.
    fn measure(&mut self, cell: usize, system: usize) -> Result<Sample>;
}

/// Most CPUs of other work and of steal time in a good sample. A noisier sample is repeated while
/// the budget lasts. The values of the sample play no part in this decision.
pub(crate) const NOISY_CPUS: f64 = 0.25;

/// Divisor of the budget: at most one repeated sample for this number of samples.
const REPEATS_ONE_IN: usize = 4;

/// Most repetitions of one sample.
const REPEATS_PER_TURN: usize = 2;

/// Runs an experiment to its end. Checks `stop` between samples.
///
/// # Errors
/// The experiment fails, or the run is interrupted.
pub fn run(
    experiment: &dyn Experiment,
    options: &Options,
    progress: &mut dyn Progress,
    stop: &Arc<AtomicBool>,
) -> Result<Results> {
    if !options.peers.is_empty() && !experiment.takes_peers() {
        bail!("no peer can join {}: it starts its systems in its own way", experiment.name());
    }
    if options.other_binary.is_some() && !experiment.takes_other_binary() {
        bail!("{} has no place for --other-binary; `sleeping` has", experiment.name());
    }
    let mut host = Host::read();
    let started = std::time::SystemTime::now();
    let mut prepared = experiment.prepare(options)?;
    let mut plan = prepared.plan().clone();
    if plan.cells.is_empty() || plan.rounds == 0 {
        bail!("nothing to measure; see `ringway-lab list`, or drop --only");
    }
    let turns: usize = plan.cells.iter().map(|cell| cell.systems.len()).sum();
    progress.start(turns * plan.rounds);
    let mut budget = if plan.paired { 0 } else { turns * plan.rounds / REPEATS_ONE_IN };
    let mut samples: Vec<Vec<Vec<Sample>>> =
        plan.cells.iter().map(|cell| vec![Vec::new(); cell.systems.len()]).collect();
    for (round, c) in order(&plan) {
        let cell = &plan.cells[c];
        for s in turns_of(round, cell.systems.len()) {
            let system = &cell.systems[s];
            progress.turn(&format!("{}: {system}", cell.title));
            let measure = || observed(|| prepared.measure(c, s));
            let sample = quietest(measure, &mut budget);
            if stop.load(Ordering::Relaxed) {
                // A signal to the process group also ends child processes, so the sample may have
                // failed for that reason.
                return Err(Interrupted.into());
            }
            let sample =
                sample.with_context(|| format!("{}: {system}, round {}", cell.title, round + 1))?;
            samples[c][s].push(sample);
        }
    }
    progress.finish();
    plan.notes.clone_from(&prepared.plan().notes);
    host.load_after = load();
    let run = Run::new(experiment.name(), started, options, &plan, host);
    let cells = plan.cells.iter().zip(samples).map(|(cell, samples)| to_cell(cell, samples));
    let cells: Vec<Cell> = cells.collect();
    let compared = plan.comparisons.iter().filter_map(|c| compare(c, &plan, &cells)).collect();
    let unjudged = plan.comparisons.iter().filter_map(|c| unjudged(c, &plan, &cells)).collect();
    Ok(Results::new(run, cells, compared, unjudged))
}

/// Returns pairs of round and cell in the order of the run.
fn order(plan: &Plan) -> Vec<(usize, usize)> {
    let (rounds, cells) = (0..plan.rounds, 0..plan.cells.len());
    if plan.paired {
        return cells.flat_map(|cell| rounds.clone().map(move |round| (round, cell))).collect();
    }
    rounds.flat_map(|round| cells.clone().map(move |cell| (round, cell))).collect()
}

/// Returns the order of the systems in a round: A B, then B A, so that no system always runs last.
fn turns_of(round: usize, systems: usize) -> Vec<usize> {
    if round.is_multiple_of(2) { (0..systems).collect() } else { (0..systems).rev().collect() }
}

/// Measures, and repeats while other work disturbed the sample. Returns the least disturbed sample.
fn quietest(mut measure: impl FnMut() -> Result<Sample>, budget: &mut usize) -> Result<Sample> {
    let noise = |sample: &Sample| {
        let cpus = |metric| sample.get(metric).copied().unwrap_or(0.0);
        cpus("other_cpus") + cpus("steal_cpus")
    };
    let mut best = measure()?;
    let mut repeats = 0;
    while noise(&best) > NOISY_CPUS && repeats < REPEATS_PER_TURN && *budget > 0 {
        *budget -= 1;
        repeats += 1;
        let again = measure()?;
        if noise(&again) < noise(&best) {
            best = again;
        }
    }
    best.insert("repeats".into(), repeats as f64);
    Ok(best)
}

/// Measures a sample and adds the steal time.
fn observed(measure: impl FnOnce() -> Result<Sample>) -> Result<Sample> {
    let (before, start) = (HostTime::now()?, std::time::Instant::now());
    let mut sample = measure()?;
    let (after, wall_s) = (HostTime::now()?, start.elapsed().as_secs_f64());
    let steal = (after.steal_s - before.steal_s) / wall_s;
    sample.insert("steal_cpus".into(), steal);
    Ok(sample)
}

fn to_cell(plan: &CellPlan, samples: Vec<Vec<Sample>>) -> Cell {
    let systems = plan.systems.iter().zip(samples);
    let systems = systems.map(|(name, samples)| Series::new(name.clone(), samples)).collect();
    Cell { id: plan.id.clone(), title: plan.title.clone(), systems }
}

#[cfg(test)]
mod tests;
