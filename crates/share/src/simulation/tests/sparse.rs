//! A sparse reader among hogs.

use super::{KIB, MS, SECOND, length, profile};
use crate::device::{Flash, Model, Pipe};
use crate::simulation::report::Report;
use crate::simulation::workload::Workload;
use crate::simulation::world::Scenario;

/// Runs a reader of 4 KiB each 4 ms among `hogs`, on the reactor with the highest number.
fn run(model: Model, reactors: usize, hogs: usize, scheduled: bool, seed: u64) -> Report {
    let mut scenario = Scenario::new(model, scheduled.then(|| profile(model)));
    scenario.reactors = reactors;
    scenario.warm_up_ns = SECOND;
    scenario.length_ns = SECOND + length(60 * SECOND, 8 * SECOND);
    scenario.seed = seed;
    let sparse = Workload { think_ns: 4 * MS, ..Workload::reads(4 * KIB, 1) };
    scenario.add(100, sparse.on(&[reactors - 1]));
    for at in 0..hogs {
        scenario.add(100, Workload::reads(128 * KIB, 32).on(&[at % reactors]));
    }
    scenario.run()
}

/// Asserts that the reader waits at most so many tenths of a knee longer than alone, and that the
/// hogs lose at most 6%.
fn assert_sparse(model: Model, tenths: u64) {
    let alone = run(model, 1, 0, true, 1).disks[0].percentile(99);
    let bound = alone + profile(model).knee_ns * tenths / 10;
    for reactors in [1, 2, 8] {
        let free = run(model, reactors, 99, false, 1);
        let report = run(model, reactors, 99, true, 1);
        let p99 = report.disks[0].percentile(99);
        assert!(p99 <= bound, "{reactors} reactors: p99 {p99}, alone {alone}, bound {bound}");
        let kept = report.rate(1..100) / free.rate(1..100);
        assert!(kept >= 0.94, "{reactors} reactors: hogs keep {kept}");
        assert!(report.starved <= 2 * MS, "{reactors} reactors: starved {} ns", report.starved);
        let (low, high) = report.depths;
        assert!(high * 10 <= low * 11, "{reactors} reactors: depth {low} to {high}");
    }
}

#[test]
fn a_sparse_reader_waits_at_most_a_knee_longer_on_an_array() {
    assert_sparse(Model::Pipe(Pipe::ARRAY), 10);
}

#[test]
fn a_sparse_reader_waits_at_most_two_and_a_half_knees_longer_on_flash() {
    assert_sparse(Model::Flash(Flash::STRIPED), 25);
}
