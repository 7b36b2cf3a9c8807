//! Tests of the framework with known figures.

use super::*;
use crate::progress::Silent;
use crate::verdict::Verdict;

/// Two systems with known figures. Those of the second depend on the round.
struct Known;

struct PreparedExperiment {
    plan: Plan,
    turns: Vec<(usize, usize)>,
}

impl Experiment for Known {
    fn name(&self) -> &'static str {
        "known"
    }

    fn summary(&self) -> &'static str {
        "figures that are known"
    }

    fn prepare(&self, options: &Options) -> Result<Box<dyn Prepared>> {
        let cell = CellPlan {
            id: "c".into(),
            title: "Cell".into(),
            systems: vec!["a".into(), "b".into(), "b2".into()],
        };
        let comparison = |peers: &[&str], bar| Comparison {
            cell: "c".into(),
            ours: "a".into(),
            peers: peers.iter().map(|p| (*p).to_owned()).collect(),
            bar: Some(bar),
            ..Comparison::default()
        };
        let near = |system: &str, bar| Comparison {
            bound: Some(Bound { system: system.into(), bar }),
            ..comparison(&["b"], 3.5)
        };
        let plan = Plan {
            cells: vec![cell],
            rounds: options.rounds.unwrap_or(3),
            metric: "iops".into(),
            comparisons: vec![
                comparison(&["b"], 2.5),
                comparison(&["b", "b2"], 2.5),
                comparison(&["absent"], 1.0),
                near("b2", 1.4),
                near("b2", 2.1),
                near("b", 1.4),
            ],
            ..Plan::default()
        };
        Ok(Box::new(PreparedExperiment { plan, turns: Vec::new() }))
    }
}

impl Prepared for PreparedExperiment {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn measure(&mut self, cell: usize, system: usize) -> Result<Sample> {
        self.turns.push((cell, system));
        let value = [300.0, 100.0, 150.0][system];
        let (round, turn) = ((self.turns.len() - 1) / 3, (self.turns.len() - 1) % 3);
        assert_eq!(system, [[0, 1, 2], [2, 1, 0]][round % 2][turn]);
        Ok(Sample::from([("iops".to_owned(), value)]))
    }
}

fn run_known(options: &Options, stop: bool) -> Result<Results> {
    run(&Known, options, &mut Silent, &Arc::new(AtomicBool::new(stop)))
}

#[test]
fn bars_are_judged_on_pairs_and_on_the_better_peer() {
    let results = run_known(&Options::default(), false).unwrap();
    let judged: Vec<_> = results.compared.iter().map(|c| (c.ratio.median, c.verdict)).collect();
    let (kept, missed) = (Some(Verdict::Pass), Some(Verdict::Fail));
    let near = [(3.0, kept), (3.0, missed), (3.0, missed)];
    assert_eq!(judged, [&[(3.0, kept), (2.0, missed)], &near[..]].concat());
    assert_eq!(results.compared[2].bound.as_ref().unwrap().ratio.median, 2.0);
    assert_eq!(results.verdict, Some(Verdict::Fail));
    assert_eq!(results.cells[0].systems[1].samples.len(), 3);
}

#[test]
fn cells_of_pairs_come_one_after_the_other() {
    let cell = |id: &str| CellPlan { id: id.into(), title: id.into(), systems: Vec::new() };
    let plan = Plan { cells: vec![cell("a"), cell("b")], rounds: 2, ..Plan::default() };
    assert_eq!(order(&plan), [(0, 0), (0, 1), (1, 0), (1, 1)]);
    assert_eq!(order(&Plan { paired: true, ..plan }), [(0, 0), (1, 0), (0, 1), (1, 1)]);
}

#[test]
fn noisy_samples_are_repeated_within_the_budget() {
    let noises = [0.9, 0.5, 0.8, 0.1];
    let run = |mut budget: usize| {
        let mut turns = noises.iter();
        let measure = || Ok(Sample::from([("other_cpus".into(), *turns.next().unwrap())]));
        let sample = quietest(measure, &mut budget).unwrap();
        (sample["other_cpus"], sample["repeats"], budget)
    };
    assert_eq!(run(0), (0.9, 0.0, 0));
    assert_eq!(run(1), (0.5, 1.0, 0));
    assert_eq!(run(9), (0.5, 2.0, 7));
}

#[test]
fn an_interrupted_or_empty_run_is_an_error() {
    assert!(run_known(&Options::default(), true).unwrap_err().is::<Interrupted>());
    assert!(run_known(&Options { rounds: Some(0), ..Options::default() }, false).is_err());
}
