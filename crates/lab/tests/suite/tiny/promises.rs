//! Compares the table of promises in `docs/measuring.md` with the bars in the code.

use lab::experiment::{Comparison, Experiment, Options, Side};
use lab::experiments;

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

fn bars(experiment: &dyn Experiment) -> Vec<Comparison> {
    let scratch = Some(std::env::temp_dir());
    let prepared = experiment.prepare(&Options { scratch, ..Options::default() }).unwrap();
    prepared.plan().comparisons.iter().filter(|c| c.bar.is_some()).cloned().collect()
}

#[test]
fn every_promise_has_its_bar_and_every_bar_its_promise() {
    let lines = lines();
    for experiment in experiments() {
        let bars = bars(experiment.as_ref());
        let about = |line: &&Line| line.experiment == experiment.name();
        let meets = |line: &Line, bar: &Comparison| {
            bar.cell.contains(&line.only) && bar.bar == Some(line.bar) && bar.side == line.side
        };
        for line in lines.iter().filter(about) {
            assert!(bars.iter().any(|bar| meets(line, bar)), "nothing judges {line:?}");
        }
        for bar in &bars {
            let promised = lines.iter().filter(about).any(|line| meets(line, bar));
            assert!(promised, "docs/measuring.md does not tell {bar:?}");
        }
    }
    let all: Vec<_> = experiments().iter().map(|experiment| experiment.name()).collect();
    assert!(lines.iter().all(|line| all.contains(&line.experiment.as_str())), "{lines:?}");
    assert!(lines.len() > 20, "{lines:?}");
}
