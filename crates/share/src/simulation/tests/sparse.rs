//! A sparse reader among hogs.

use super::{KIB, MIB, MS, SECOND, length, profile};
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

/// A restore writes beside guests that write little and flush often (OpenZFS issue 5867).
#[test]
fn guests_that_flush_do_not_wait_for_the_writes_of_a_restore() {
    for model in [Model::Pipe(Pipe::ARRAY), Model::Flash(Flash::STRIPED)] {
        let run = |scheduled: bool| {
            let mut scenario = Scenario::new(model, scheduled.then(|| profile(model)));
            scenario.reactors = 2;
            let writes = Workload { mix: [100, 0, 0, 0], ..Workload::reads(MIB, 64) };
            scenario.add(100, writes.sequential());
            let guest = Workload { mix: [50, 0, 20, 0], ..Workload::reads(4 * KIB, 1) };
            let guest = Workload { think_ns: 5 * MS, ..guest };
            (0..4).for_each(|at| scenario.add(100, guest.clone().on(&[at % 2])));
            scenario.run()
        };
        let (free, shared) = (run(false), run(true));
        let worst = |report: &Report| report.disks[1..].iter().map(|it| it.percentile(99)).max();
        assert!(worst(&shared) < worst(&free).map(|it| it / 10), "{model:?}: {}", shared.line());
        assert!(shared.rate(0..1) >= 0.9 * free.rate(0..1), "{model:?}: {}", shared.line());
    }
}
