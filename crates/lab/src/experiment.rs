//! The frame of every experiment: cells, systems, rounds, samples.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};

use crate::blk::peer::PeerArgument;
pub use crate::comparison::{Bound, Comparison, Figure, Side};
use crate::comparison::{compare, unjudged};
use crate::host::{Host, HostTime, load};
use crate::interrupted::Interrupted;
pub use crate::plot::{PanelPlan, PlotPlan, PointPlan, SeriesPlan};
use crate::progress::Progress;
use crate::results::{Cell, Results, Run, Series};

/// What one sample measured: names with their unit to values, for example `p50_us`.
pub type Sample = BTreeMap<String, f64>;

/// A set-up in which systems are compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CellPlan {
    /// Short name, unique in the plan.
    pub id: String,
    /// What a reader calls it.
    pub title: String,
    /// The systems, in the order in which they take turns, and in the next round backwards.
    pub systems: Vec<String>,
}

/// All that is measured in one run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    /// The cells.
    pub cells: Vec<CellPlan>,
    /// How often every system of every cell has its turn.
    pub rounds: usize,
    /// Turns are short and count only beside their neighbours: all rounds of a cell come before the
    /// next cell, and no turn is repeated.
    pub paired: bool,
    /// The metric that comparisons are about, unless they name another.
    pub metric: String,
    /// What is compared.
    pub comparisons: Vec<Comparison>,
    /// Versions of everything measured.
    pub versions: BTreeMap<String, String>,
    /// What a reader must know to read the figures.
    pub notes: Vec<String>,
    /// What is drawn beside the picture of every cell.
    pub plots: Vec<PlotPlan>,
}

/// How to run.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Under a minute: fewer cells, short windows.
    pub quick: bool,
    /// Rounds instead of the experiment's own number.
    pub rounds: Option<usize>,
    /// Window of one sample in milliseconds instead of the experiment's own.
    pub window_ms: Option<u64>,
    /// Only cells whose id contains this.
    pub only: Option<String>,
    /// A control run: peers measured against themselves, in the places of our systems. Ratios other
    /// than 1 are the noise of the method on this host.
    pub control: bool,
    /// Where images are made; a file system that knows direct I/O.
    pub scratch: Option<std::path::PathBuf>,
    /// Backends that somebody else has started, to be measured beside the others.
    pub peers: Vec<PeerArgument>,
}

/// An experiment that can be set up.
pub trait Experiment {
    /// Its name on the command line and in file names.
    fn name(&self) -> &'static str;

    /// What it shows, in one line.
    fn summary(&self) -> &'static str;

    /// True if backends that somebody else has started can join it.
    fn takes_peers(&self) -> bool {
        false
    }

    /// Makes images, looks for programs, decides what is measured.
    ///
    /// # Errors
    /// What is missing, with the next step.
    fn prepare(&self, options: &Options) -> Result<Box<dyn Prepared>>;
}

/// An experiment ready to run. Dropping it removes what it made.
pub trait Prepared {
    /// What will be measured.
    fn plan(&self) -> &Plan;

    /// Measures one system of one cell once, from start to end: nothing of it still runs after.
    ///
    /// # Errors
    /// A system that does not start, or a sample with errors in it.
    fn measure(&mut self, cell: usize, system: usize) -> Result<Sample>;
}

/// CPUs of foreign work, and of those that a hypervisor kept from this machine, above which a sample is
/// measured again, while the budget lasts. It is about the host alone: what the sample shows plays no
/// part in the decision.
pub(crate) const NOISY_CPUS: f64 = 0.25;

/// Repeated turns at most, as one in so many of all turns.
const REPEATS_ONE_IN: usize = 4;

/// Times that one turn is repeated at most.
const REPEATS_PER_TURN: usize = 2;

/// Runs an experiment to its end. `stop` is looked at between samples.
///
/// # Errors
/// What the experiment gives, or an interruption.
pub fn run(
    experiment: &dyn Experiment,
    options: &Options,
    progress: &mut dyn Progress,
    stop: &Arc<AtomicBool>,
) -> Result<Results> {
    if !options.peers.is_empty() && !experiment.takes_peers() {
        bail!("no peer can join {}: it starts its systems in its own way", experiment.name());
    }
    let mut host = Host::read();
    let started = std::time::SystemTime::now();
    let mut prepared = experiment.prepare(options)?;
    let plan = prepared.plan().clone();
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
                // Whoever was interrupted with us may have failed for that reason.
                return Err(Interrupted.into());
            }
            let sample =
                sample.with_context(|| format!("{}: {system}, round {}", cell.title, round + 1))?;
            samples[c][s].push(sample);
        }
    }
    progress.finish();
    host.load_after = load();
    let run = Run::new(experiment.name(), started, options, &plan, host);
    let cells = plan.cells.iter().zip(samples).map(|(cell, samples)| to_cell(cell, samples));
    let cells: Vec<Cell> = cells.collect();
    let compared = plan.comparisons.iter().filter_map(|c| compare(c, &plan, &cells)).collect();
    let unjudged = plan.comparisons.iter().filter_map(|c| unjudged(c, &plan, &cells)).collect();
    Ok(Results { run, cells, compared, unjudged })
}

/// Rounds and cells, in the order in which they come.
fn order(plan: &Plan) -> Vec<(usize, usize)> {
    let (rounds, cells) = (0..plan.rounds, 0..plan.cells.len());
    if plan.paired {
        return cells.flat_map(|cell| rounds.clone().map(move |round| (round, cell))).collect();
    }
    rounds.flat_map(|round| cells.clone().map(move |cell| (round, cell))).collect()
}

/// Who has which turn in a round: A B, then B A, so that nobody always comes after the other.
fn turns_of(round: usize, systems: usize) -> Vec<usize> {
    if round.is_multiple_of(2) { (0..systems).collect() } else { (0..systems).rev().collect() }
}

/// Measures once, and again while the host was busy with other work; keeps the quietest sample.
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

/// Adds what else the host did meanwhile to a sample that says how much it used itself.
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
