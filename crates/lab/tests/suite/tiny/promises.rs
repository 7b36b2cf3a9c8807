//! Compares the table of promises in `docs/measuring.md` with the bars in the code, and the names of
//! all systems and metrics with what pictures know.

use std::sync::OnceLock;

use lab::experiment::{Comparison, Experiment, Options, Plan, Side};
use lab::experiments;
use lab::plot::{Better, has_fixed_colour};
use testkit::process::find_binary;

/// Line of the table.
#[derive(Debug)]
struct Line {
    experiment: String,
    only: String,
    side: Side,
    bar: f64,
}

/// Parses a line `| what | at least 3.5 | `ringway lab run NAME --only CELL` |`. Returns `None` for
/// other lines.
fn line(text: &str) -> Option<Line> {
    let cells: Vec<&str> = text.trim_matches('|').split('|').map(str::trim).collect();
    let [_, bar, command] = cells.as_slice() else { return None };
    let words = command.trim_matches('`').strip_prefix("ringway lab run ")?;
    let mut words = words.split(' ');
    let experiment = words.next()?.to_owned();
    let only = words.skip_while(|word| *word != "--only").nth(1).unwrap_or_default().to_owned();
    let (side, bar) = match bar.rsplit_once(' ')? {
        ("at least", bar) => (Side::AtLeast, bar),
        ("at most", bar) => (Side::AtMost, bar),
        _ => panic!("{text}"),
    };
    Some(Line { experiment, only, side, bar: bar.parse().unwrap() })
}

fn lines() -> Vec<Line> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/measuring.md");
    std::fs::read_to_string(path).unwrap().lines().filter_map(line).collect()
}

/// Returns the name and the plan of every experiment.
fn planned(control: bool) -> Vec<(&'static str, Plan)> {
    let options = Options { scratch: Some(std::env::temp_dir()), control, ..Options::default() };
    let plan = |experiment: Box<dyn Experiment>| {
        // Some bars are those over another build.
        let takes_other = experiment.takes_other_binary();
        let other_binary = takes_other.then(|| find_binary("ringway-blk").unwrap());
        let options = Options { other_binary, ..options.clone() };
        (experiment.name(), experiment.prepare(&options).unwrap().plan().clone())
    };
    experiments().into_iter().map(plan).collect()
}

fn plans() -> &'static [(&'static str, Plan)] {
    static PLANS: OnceLock<Vec<(&str, Plan)>> = OnceLock::new();
    PLANS.get_or_init(|| planned(false))
}

#[test]
fn every_promise_has_its_bar_and_every_bar_its_promise() {
    let lines = lines();
    for (name, plan) in plans() {
        let bars: Vec<_> = plan.comparisons.iter().filter(|c| c.bar.is_some()).collect();
        let about = |line: &&Line| line.experiment == *name;
        let meets = |line: &Line, bar: &Comparison| {
            bar.cell.contains(&line.only) && bar.bar == Some(line.bar) && bar.side == line.side
        };
        for line in lines.iter().filter(about) {
            assert!(bars.iter().any(|bar| meets(line, bar)), "nothing judges {line:?}");
        }
        for bar in bars {
            let promised = lines.iter().filter(about).any(|line| meets(line, bar));
            assert!(promised, "docs/measuring.md does not tell {bar:?}");
        }
    }
    let all: Vec<_> = experiments().iter().map(|experiment| experiment.name()).collect();
    assert!(lines.iter().all(|line| all.contains(&line.experiment.as_str())), "{lines:?}");
    assert!(lines.len() > 20, "{lines:?}");
}

#[test]
fn every_picture_says_which_way_is_better_and_knows_its_systems() {
    for (name, plan) in plans().iter().chain(&planned(true)) {
        let panels = || plan.plots.iter().flat_map(|plot| &plot.panels);
        let compared = plan.comparisons.iter().filter_map(|c| c.metric.as_ref());
        let metrics = compared.chain([&plan.metric]).chain(panels().map(|panel| &panel.metric));
        for metric in metrics {
            assert!(Better::of(metric).is_some(), "{name}: {metric}");
        }
        let rows = plan.cells.iter().flat_map(|cell| &cell.systems);
        let lines = panels().flat_map(|panel| &panel.series).map(|series| &series.name);
        for system in rows.chain(lines) {
            assert!(has_fixed_colour(system), "{name}: {system}");
        }
    }
}
