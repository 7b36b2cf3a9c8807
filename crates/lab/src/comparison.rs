//! Comparisons of systems: computes a figure from each round's samples and checks it against its
//! bar.

use serde::{Deserialize, Serialize};

use crate::experiment::Plan;
use crate::results::{Cell, Compared, ComparedBound};
use crate::stats::{Difference, Summary, ratios};
use crate::verdict::Verdict;

/// Figure that a comparison computes from the samples of one round.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// Ratio of ours over the best peer of the round, where more is better.
    #[default]
    OverBest,
    /// Ratio of ours over the peer with the highest median.
    OverLeader,
    /// Ratio of ours over the sum of the peers.
    OverSum,
    /// Share of the second peer's gain over the first that ours reaches. If the second peer gains
    /// no more than the spread, ours is compared with the first peer instead.
    Kept,
    /// Our value in its own unit.
    Alone,
    /// Our highest value of all rounds, in its own unit.
    Worst,
}

/// Side of the bar on which the median must be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// Median at or above the bar.
    #[default]
    AtLeast,
    /// Median at or below the bar.
    AtMost,
}

impl Side {
    /// Returns whether a median is on this side of the bar. Both have the figure's unit.
    #[must_use]
    pub fn is_met(self, median: f64, bar: f64) -> bool {
        match self {
            Self::AtLeast => median >= bar,
            Self::AtMost => median <= bar,
        }
    }
}

/// Comparison that is judged after the run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Comparison {
    /// Id of the cell.
    pub cell: String,
    /// Name of our system.
    pub ours: String,
    /// Names of the peers.
    pub peers: Vec<String>,
    /// Metric to compare. `None` means the plan's metric.
    pub metric: Option<String>,
    /// Figure to compute from the samples of a round.
    pub figure: Figure,
    /// Bar for the median. `None` if nothing is promised.
    pub bar: Option<f64>,
    /// Side of the bar on which the median must be.
    pub side: Side,
    /// True if a missed bar is undecided while the ratio's spread is as large as its distance from
    /// 1.
    pub spread_excuses: bool,
    /// True if a bar counts as missed while the ratio's spread is as large as its distance from 1.
    pub beyond_spread: bool,
    /// Alternative bar. The comparison also passes if this one is met.
    pub bound: Option<Bound>,
}

/// Upper bound: the most that the client reaches with any server. A system that comes this near
/// also passes.
#[derive(Debug, Clone, PartialEq)]
pub struct Bound {
    /// Name of the reply-only system, which does no work.
    pub system: String,
    /// Least median ratio of ours over the reply-only system.
    pub bar: f64,
}

/// Judges one comparison. Returns `None` if its cell or systems were not part of the run.
pub(crate) fn compare(comparison: &Comparison, plan: &Plan, cells: &[Cell]) -> Option<Compared> {
    let cell = cells.iter().find(|cell| cell.id == comparison.cell)?;
    let metric = comparison.metric.as_ref().unwrap_or(&plan.metric);
    if comparison.figure == Figure::Kept
        && let Some(fallback) = nothing_to_keep(comparison, cell, metric)
    {
        let mut compared = compare(&fallback, plan, cells)?;
        let always = comparison.peers.get(1)?;
        compared.note = Some(format!("{always} shows no gain here, so no share of it is judged"));
        return Some(compared);
    }
    let figures = figures(comparison, cell, metric)?;
    let ratio = Summary::of(&figures)?;
    let difference = match comparison.figure {
        Figure::Kept | Figure::Alone | Figure::Worst => Difference::NotARatio,
        _ => Difference::of(&ratio),
    };
    let bound = comparison.bound.as_ref().and_then(|Bound { system, bar }| {
        let of = |ours: &str, peers: &[String]| Summary::of(&best(cell, metric, ours, peers)?);
        let ratio = of(&comparison.ours, std::slice::from_ref(system))?;
        // A reply-only system that is slower than a peer was disturbed and is no bound.
        let holds = of(system, &comparison.peers)?.median >= *bar;
        Some(ComparedBound { system: system.clone(), ratio, bar: *bar, holds })
    });
    let unshown = difference == Difference::NoDifferenceShown;
    let hidden = comparison.beyond_spread && unshown;
    let near = bound.as_ref().is_some_and(ComparedBound::is_met);
    let meets = comparison.bar.map(|bar| comparison.side.is_met(ratio.median, bar));
    let verdict = meets.map(|meets| {
        if (meets && !hidden) || near {
            Verdict::Pass
        } else if comparison.spread_excuses && unshown {
            Verdict::Undecided
        } else {
            Verdict::Fail
        }
    });
    let by_spread = verdict == Some(Verdict::Undecided) || (meets == Some(true) && hidden);
    Some(Compared {
        cell: comparison.cell.clone(),
        ours: comparison.ours.clone(),
        peers: comparison.peers.clone(),
        metric: metric.clone(),
        figure: comparison.figure,
        ratio,
        difference,
        bar: comparison.bar,
        side: comparison.side,
        passed: verdict.map(|verdict| verdict == Verdict::Pass),
        verdict,
        note: by_spread.then(|| "the spread is larger".to_owned()),
        bound,
        other_cpus: cell.foreign_cpus(),
    })
}

/// Describes a bar whose systems were measured but produced no figure. Such a bar counts as missed.
/// Returns `None` if the comparison has no bar, was judged, or was not part of the run.
pub(crate) fn unjudged(comparison: &Comparison, plan: &Plan, cells: &[Cell]) -> Option<String> {
    comparison.bar?;
    let cell = cells.iter().find(|cell| cell.id == comparison.cell)?;
    let had_turns = |name: &String| cell.systems.iter().any(|system| system.name == *name);
    let all = comparison.peers.iter().chain([&comparison.ours]).all(had_turns);
    if !all || compare(comparison, plan, cells).is_some() {
        return None;
    }
    let metric = comparison.metric.as_ref().unwrap_or(&plan.metric);
    Some(format!("{}, {metric}: {} has no figure that can be judged", cell.id, comparison.ours))
}

/// Returns the replacement comparison if the second peer gains nothing over the first.
fn nothing_to_keep(comparison: &Comparison, cell: &Cell, metric: &str) -> Option<Comparison> {
    let [first, second] = comparison.peers.as_slice() else { return None };
    let gain = Summary::of(&ratios(&values(cell, metric, second)?, &values(cell, metric, first)?))?;
    if Difference::of(&gain) == Difference::Higher {
        return None;
    }
    Some(Comparison {
        peers: vec![first.clone()],
        figure: Figure::OverBest,
        bar: comparison.bar.map(|_| 1.0),
        spread_excuses: true,
        ..comparison.clone()
    })
}

fn values(cell: &Cell, metric: &str, name: &str) -> Option<Vec<f64>> {
    cell.systems.iter().find(|s| s.name == name).map(|s| s.values(metric))
}

/// Returns the figure of every round.
fn figures(comparison: &Comparison, cell: &Cell, metric: &str) -> Option<Vec<f64>> {
    let Comparison { ours, peers, .. } = comparison;
    match comparison.figure {
        Figure::OverBest => best(cell, metric, ours, peers),
        Figure::OverLeader => {
            let median = |name: &&String| {
                let values = values(cell, metric, name).unwrap_or_default();
                Summary::of(&values).map_or(0.0, |s| s.median)
            };
            let leader = peers.iter().max_by(|a, b| median(a).total_cmp(&median(b)))?;
            best(cell, metric, ours, std::slice::from_ref(leader))
        }
        Figure::OverSum => {
            let theirs = by_round(cell, metric, peers, |values| values.iter().sum())?;
            Some(ratios(&values(cell, metric, ours)?, &theirs))
        }
        Figure::Kept => {
            let three = [&peers[..], std::slice::from_ref(ours)].concat();
            by_round(cell, metric, &three, |values| match values {
                [first, second, ours] => (ours - first) / (second - first),
                _ => f64::NAN,
            })
            .map(|kept| kept.into_iter().filter(|kept| kept.is_finite()).collect())
        }
        Figure::Alone => values(cell, metric, ours),
        Figure::Worst => {
            let highest = values(cell, metric, ours)?.into_iter().reduce(f64::max);
            highest.map(|highest| vec![highest])
        }
    }
}

/// Returns the ratios of ours over the best peer, round by round.
fn best(cell: &Cell, metric: &str, ours: &str, peers: &[String]) -> Option<Vec<f64>> {
    let theirs =
        by_round(cell, metric, peers, |values| values.iter().copied().fold(0.0, f64::max))?;
    Some(ratios(&values(cell, metric, ours)?, &theirs))
}

/// Combines the values of several systems into one figure per round. Skips rounds that lack a
/// value.
fn by_round(
    cell: &Cell,
    metric: &str,
    names: &[String],
    figure: impl Fn(&[f64]) -> f64,
) -> Option<Vec<f64>> {
    let all: Vec<Vec<f64>> =
        names.iter().map(|name| values(cell, metric, name)).collect::<Option<_>>()?;
    let rounds = all.iter().map(Vec::len).min()?;
    let round = |r: usize| all.iter().filter_map(|v| v.get(r)).copied().collect::<Vec<_>>();
    Some((0..rounds).map(|r| figure(&round(r))).collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::results::Series;

    /// Returns a cell with three rounds of each system's requests per second.
    fn cell(systems: &[(&str, [f64; 3])]) -> Cell {
        let systems = systems.iter().map(|(name, values)| {
            let sample = |value: &f64| BTreeMap::from([("iops".to_owned(), *value)]);
            Series::new((*name).to_owned(), values.iter().map(sample).collect())
        });
        Cell { id: "c".into(), title: "C".into(), systems: systems.collect() }
    }

    fn judged(cell: &Cell, peers: &[&str], with: Comparison) -> Compared {
        let plan = Plan { metric: "iops".into(), ..Plan::default() };
        let peers = peers.iter().map(|p| (*p).to_owned()).collect();
        let comparison = Comparison { cell: "c".into(), ours: "a".into(), peers, ..with };
        compare(&comparison, &plan, std::slice::from_ref(cell)).unwrap()
    }

    fn with(figure: Figure, bar: f64, side: Side) -> Comparison {
        Comparison { figure, bar: Some(bar), side, ..Comparison::default() }
    }

    #[test]
    fn what_is_kept_of_a_gain() {
        let gains =
            cell(&[("off", [100.0; 3]), ("always", [200.0; 3]), ("a", [180.0, 190.0, 150.0])]);
        let kept = |bar| judged(&gains, &["off", "always"], with(Figure::Kept, bar, Side::AtLeast));
        assert_eq!((kept(0.8).ratio.median, kept(0.8).passed), (0.8, Some(true)));
        assert_eq!((kept(0.81).passed, kept(0.8).difference), (Some(false), Difference::NotARatio));
    }

    #[test]
    fn without_a_gain_there_is_nothing_to_keep() {
        let always = ("always", [102.0, 98.0, 100.0]);
        let undecided = ([99.0, 101.0, 97.0], Verdict::Undecided);
        for (ours, verdict) in [([101.0; 3], Verdict::Pass), undecided, ([50.0; 3], Verdict::Fail)]
        {
            let cell = cell(&[("off", [100.0; 3]), always, ("a", ours)]);
            let kept = judged(&cell, &["off", "always"], with(Figure::Kept, 0.8, Side::AtLeast));
            assert_eq!((kept.bar, kept.verdict), (Some(1.0), Some(verdict)), "{kept:?}");
            assert!(kept.note.unwrap().contains("always shows no gain"));
        }
    }

    #[test]
    fn sums_leaders_and_figures_alone() {
        let all = cell(&[("a", [3.0; 3]), ("b", [1.0, 2.0, 9.0]), ("c", [3.0; 3])]);
        let of = |peers: &[&str], figure| judged(&all, peers, with(figure, 1.0, Side::AtMost));
        let sum = of(&["b", "c"], Figure::OverSum);
        assert_eq!((sum.ratio.median, sum.passed), (0.6, Some(true)));
        // The best peer differs between rounds. The leader is the peer with the best median.
        assert_eq!(of(&["b", "c"], Figure::OverBest).ratio.min, 3.0 / 9.0);
        assert_eq!(of(&["b", "c"], Figure::OverLeader).ratio.min, 1.0);
        let alone = of(&[], Figure::Alone);
        assert_eq!((alone.ratio.median, alone.passed), (3.0, Some(false)));
    }

    #[test]
    fn the_worst_of_all_rounds_is_the_highest() {
        let all = cell(&[("a", [1.0, 1.3, 1.1])]);
        let worst = |bar| judged(&all, &[], with(Figure::Worst, bar, Side::AtMost)).passed;
        assert_eq!((worst(1.25), worst(1.3)), (Some(false), Some(true)));
    }

    #[test]
    fn a_bar_without_a_figure_is_told() {
        let plan = Plan { metric: "iops".into(), ..Plan::default() };
        let of = |peer: &str, bar, values: [f64; 3]| {
            let cell = cell(&[("a", values), ("b", [1.0; 3])]);
            let peers = vec![peer.to_owned()];
            let (cell_id, ours) = ("c".into(), "a".into());
            let judged = Comparison { cell: cell_id, ours, peers, bar, ..Comparison::default() };
            unjudged(&judged, &plan, &[cell])
        };
        let message = of("b", Some(1.0), [f64::NAN; 3]).unwrap();
        assert_eq!(message, "c, iops: a has no figure that can be judged");
        assert_eq!(of("b", Some(1.0), [2.0; 3]), None);
        assert_eq!(of("b", None, [f64::NAN; 3]), None, "nothing was promised");
        assert_eq!(of("absent", Some(1.0), [2.0; 3]), None, "it had no turn");
    }

    #[test]
    fn a_bar_beyond_the_spread_is_missed_within_it() {
        let mut bar = with(Figure::OverBest, 1.0, Side::AtLeast);
        bar.beyond_spread = true;
        for (ours, passed) in [([120.0, 121.0, 119.0], true), ([120.0, 160.0, 101.0], false)] {
            let cell = cell(&[("a", ours), ("b", [100.0; 3])]);
            assert_eq!(judged(&cell, &["b"], bar.clone()).passed, Some(passed));
        }
    }

    #[test]
    fn a_miss_within_the_spread_is_undecided_only_where_that_was_said() {
        let noisy = cell(&[("a", [90.0, 120.0, 80.0]), ("b", [100.0; 3])]);
        let mut bar = with(Figure::OverBest, 0.95, Side::AtLeast);
        assert_eq!(judged(&noisy, &["b"], bar.clone()).verdict, Some(Verdict::Fail));
        bar.spread_excuses = true;
        let excused = judged(&noisy, &["b"], bar.clone());
        assert_eq!((excused.ratio.median, excused.verdict), (0.9, Some(Verdict::Undecided)));
        assert_eq!(
            (excused.passed, excused.note.as_deref()),
            (Some(false), Some("the spread is larger"))
        );
        let far = cell(&[("a", [44.1, 30.0, 140.0]), ("b", [100.0; 3])]);
        let far = judged(&far, &["b"], bar.clone());
        assert_eq!((far.ratio.median, far.verdict), (0.441, Some(Verdict::Undecided)));
        let slower = cell(&[("a", [80.0, 81.0, 80.0]), ("b", [100.0; 3])]);
        assert_eq!(judged(&slower, &["b"], bar.clone()).verdict, Some(Verdict::Fail));
        let faster = cell(&[("a", [96.0, 120.0, 80.0]), ("b", [100.0; 3])]);
        assert_eq!(judged(&faster, &["b"], bar).verdict, Some(Verdict::Pass));
    }

    #[test]
    fn an_alternative_bar_that_is_met_decides() {
        let noisy = cell(&[("a", [90.0, 120.0, 80.0]), ("b", [100.0; 3]), ("bound", [100.0; 3])]);
        let near = |bar| Comparison {
            spread_excuses: true,
            bound: Some(Bound { system: "bound".into(), bar }),
            ..with(Figure::OverBest, 0.95, Side::AtLeast)
        };
        assert_eq!(judged(&noisy, &["b"], near(0.9)).verdict, Some(Verdict::Pass));
        assert_eq!(judged(&noisy, &["b"], near(0.91)).verdict, Some(Verdict::Undecided));
    }
}
