//! Equal disks: a total never falls, and shares are equal.

use super::{KIB, MIB, SECOND, length, profile};
use crate::device::{Model, Pipe};
use crate::profile::Piece;
use crate::simulation::workload::Workload;
use crate::simulation::world::Scenario;

const ARRAY: Model = Model::Pipe(Pipe::ARRAY);
/// Disks of the runs.
const COUNTS: [usize; 6] = [4, 8, 16, 30, 60, 100];

/// Returns disks that read 4 MiB at a time, sequentially. `queues` has the reactors of each.
fn readers(
    count: usize,
    piece: Option<u64>,
    reactors: usize,
    queues: impl Fn(usize) -> Vec<usize>,
) -> Scenario {
    let mut profile = profile(ARRAY);
    profile.piece = piece.map(|bytes| Piece { bytes, gain_percent: 0 });
    let mut scenario = Scenario::new(ARRAY, Some(profile));
    scenario.reactors = reactors;
    scenario.warm_up_ns = 2 * SECOND;
    scenario.length_ns = scenario.warm_up_ns + length(300 * SECOND, 100 * SECOND);
    for at in 0..count {
        scenario.add(100, Workload::reads(4 * MIB, 1).sequential().on(&queues(at)));
    }
    scenario
}

/// Runs all numbers of disks, and asserts that each total is nearly the best, and each share
/// nearly equal.
fn assert_flat(name: &str, scenario: impl Fn(usize) -> Scenario) {
    let reports = COUNTS.map(|count| scenario(count).run());
    let best = reports.iter().map(|report| report.total()).fold(0.0, f64::max);
    for (count, report) in COUNTS.iter().zip(&reports) {
        assert!(report.total() >= 0.98 * best, "{name}: {count} disks: {}", report.line());
        assert!(report.spread(0..*count) <= 1.02, "{name}: {count} disks: {}", report.line());
    }
    assert!(best >= 0.98 * 820e6, "{name}: the array is busy: {best}");
}

#[test]
fn any_number_of_disks_gets_the_whole_array_in_equal_shares() {
    assert_flat("one reactor", |count| readers(count, None, 1, |_| vec![0]));
    assert_flat("split", |count| readers(count, Some(128 * KIB), 1, |_| vec![0]));
}

/// One to eight queues a disk. Most disks are on the first reactor.
fn uneven(at: usize, reactors: usize) -> Vec<usize> {
    let home = if at % 10 < 7 { 0 } else { at };
    (0..=at % 8).map(|queue| (home + queue * (at % 3)) % reactors).collect()
}

#[test]
fn queues_and_reactors_do_not_change_a_share() {
    for reactors in [2, 8] {
        for piece in [None, Some(128 * KIB)] {
            assert_flat(&format!("{reactors} reactors, pieces {piece:?}"), |count| {
                readers(count, piece, reactors, |at| uneven(at, reactors))
            });
        }
    }
}

#[test]
fn a_dispatch_looks_at_few_of_a_hundred_disks() {
    let mut scenario = Scenario::new(ARRAY, Some(profile(ARRAY)));
    scenario.reactors = 2;
    for at in 0..100 {
        let queues: Vec<usize> = (0..1 << (at % 3)).map(|queue| (at + queue) % 2).collect();
        let depth = 4 * queues.len() as u64;
        scenario.add(100, Workload::reads(64 * KIB, depth).on(&queues));
    }
    let report = scenario.run();
    assert!(report.spread(0..100) <= 1.05, "{}", report.line());
    let looks = report.looks as f64 / report.commands as f64;
    assert!(looks <= 6.0, "{looks:.1} looks at disks for each dispatch");
}
