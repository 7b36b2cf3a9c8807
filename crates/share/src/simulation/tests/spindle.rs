//! Devices that seek.

use super::{KIB, MS, SECOND, profile};
use crate::device::{Model, Spindle};
use crate::simulation::workload::Workload;
use crate::simulation::world::Scenario;

const SPINDLE: Model = Model::Spindle(Spindle::DISK);

fn stream(reactor: usize) -> Workload {
    Workload::reads(256 * KIB, 1).sequential().on(&[reactor])
}

fn scenario(reactors: usize) -> Scenario {
    let mut scenario = Scenario::new(SPINDLE, Some(profile(SPINDLE)));
    scenario.reactors = reactors;
    scenario.warm_up_ns = SECOND;
    scenario.length_ns = 61 * SECOND;
    scenario
}

#[test]
fn sequential_streams_keep_most_of_a_spindle() {
    let mut alone = scenario(1);
    alone.add(100, stream(0));
    let alone = alone.run().total();
    for reactors in [1, 2, 8] {
        let mut scenario = scenario(reactors);
        (0..8).for_each(|at| scenario.add(100, stream(at % reactors)));
        let report = scenario.run();
        assert!(report.total() >= 0.85 * alone, "{} of {alone}", report.total());
        assert!(report.spread(0..8) <= 1.05, "{}", report.spread(0..8));
    }
    assert_eq!(profile(SPINDLE).piece, None);
}

#[test]
fn a_random_reader_pays_for_its_seeks() {
    let mut scenario = scenario(2);
    (0..4).for_each(|at| scenario.add(100, stream(at % 2)));
    scenario.add(100, Workload::reads(4 * KIB, 4).on(&[0]));
    let sparse = Workload { think_ns: 200 * MS, ..Workload::reads(4 * KIB, 1) };
    scenario.add(100, sparse.on(&[1]));
    let report = scenario.run();
    // A fifth of the time, and the sparse reader a bit.
    assert!(report.rate(0..4) >= 80e6, "{}", report.rate(0..4));
    assert!(report.disks[4].requests >= 60 * 12, "{}", report.disks[4].requests);
    assert!(report.disks[5].percentile(99) <= 250 * MS, "{}", report.disks[5].percentile(99));
}
