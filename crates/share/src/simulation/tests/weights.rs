//! Weights, unused shares, floors, caps, and changes while all runs.

use super::{KIB, MS, SECOND, length, profile};
use crate::device::{Flash, Model, Pipe};
use crate::share::DiskConfig;
use crate::simulation::report::Report;
use crate::simulation::workload::Workload;
use crate::simulation::world::Scenario;

const ARRAY: Model = Model::Pipe(Pipe::ARRAY);
const FLASH: Model = Model::Flash(Flash::STRIPED);

fn scenario(model: Model, reactors: usize) -> Scenario {
    let mut scenario = Scenario::new(model, Some(profile(model)));
    scenario.reactors = reactors;
    scenario
}

/// Returns a disk that always has requests to send.
fn hog(queues: &[usize]) -> Workload {
    Workload::reads(128 * KIB, 32).on(queues)
}

#[test]
fn shares_follow_weights() {
    for model in [ARRAY, FLASH] {
        for reactors in [1, 2, 8] {
            let mut scenario = scenario(model, reactors);
            scenario.warm_up_ns = 2 * SECOND;
            scenario.length_ns = scenario.warm_up_ns + length(300 * SECOND, 30 * SECOND);
            for at in 0..16 {
                let queues: Vec<_> =
                    (0..=at % 3).map(|queue| (at * at + queue) % reactors).collect();
                scenario.add([50, 100, 200, 400][at % 4], hog(&queues));
            }
            let report = scenario.run();
            assert!(report.spread(0..16) <= 1.01, "{reactors} reactors: {}", report.line());
        }
    }
}

/// Returns bytes a second of a disk from one time to another, in nanoseconds.
fn rate(report: &Report, scenario: &Scenario, disk: usize, from: u64, to: u64) -> f64 {
    let buckets = (from / scenario.bucket_ns) as usize..(to / scenario.bucket_ns) as usize;
    let bytes: u64 = report.disks[disk].timeline[buckets].iter().sum();
    bytes as f64 * SECOND as f64 / (to - from) as f64
}

#[test]
fn an_unused_share_goes_to_the_others_at_once() {
    let mut scenario = scenario(ARRAY, 2);
    for at in 0..4 {
        scenario.add(100, hog(&[at % 2]));
    }
    scenario.disks[0].1.until_ns = 2 * SECOND;
    let report = scenario.run();
    let others =
        |from, to| (1..4).map(|disk| rate(&report, &scenario, disk, from, to)).sum::<f64>();
    let (all, before) = (report.total(), others(SECOND, 2 * SECOND));
    assert!((0.74..0.76).contains(&(before / all)), "{before} of {all}");
    // The requests of the disk that stopped end within 20 ms.
    let after = others(2 * SECOND + 20 * MS, 2 * SECOND + 40 * MS);
    assert!(after >= 0.98 * all, "{after} of {all}");
}

#[test]
fn a_disk_saves_nothing_while_it_is_idle() {
    for reactors in [1, 2] {
        let mut scenario = scenario(ARRAY, reactors);
        (0..4).for_each(|at| scenario.add(100, hog(&[at % reactors])));
        scenario.disks[0].1.on_off_ns = (500 * MS, 1500 * MS);
        let report = scenario.run();
        let back = 2 * SECOND;
        let own = rate(&report, &scenario, 0, back, back + 100 * MS);
        let other = rate(&report, &scenario, 1, back, back + 100 * MS);
        assert!((0.8..1.2).contains(&(own / other)), "{own} beside {other}");
    }
}

#[test]
fn a_change_of_weight_takes_effect_within_a_tenth_of_a_second() {
    let mut scenario = scenario(ARRAY, 2);
    for at in 0..40 {
        scenario.add(100, Workload::reads(128 * KIB, 32).on(&[at % 2]));
    }
    let change = 2 * SECOND;
    scenario.changes.push((change, 0, DiskConfig { weight: 1000, ..DiskConfig::default() }));
    let report = scenario.run();
    let share = |from, to| {
        let other = rate(&report, &scenario, 1, from, to);
        rate(&report, &scenario, 0, from, to) / other
    };
    assert!((0.98..1.02).contains(&share(SECOND, change)));
    let at_once = share(change + 100 * MS, change + 300 * MS);
    assert!((9.0..11.0).contains(&at_once), "{at_once}");
    let later = share(3 * SECOND, 5 * SECOND);
    assert!((9.9..10.1).contains(&later), "{later}");
}

#[test]
fn a_floor_is_met_whatever_the_others_do() {
    let others = |mix, bytes| Workload { mix, ..Workload::reads(bytes, 32) };
    for (model, reactors) in [(ARRAY, 1), (ARRAY, 2), (ARRAY, 8), (FLASH, 2)] {
        for other in
            [others([0; 4], 128 * KIB), others([40, 5, 5, 5], 64 * KIB), others([0; 4], 4096 * KIB)]
        {
            let mut scenario = scenario(model, reactors);
            let bytes = DiskConfig { weight: 1, floor_bytes: 100_000_000, ..DiskConfig::default() };
            let requests = DiskConfig { weight: 1, floor_requests: 2_000, ..DiskConfig::default() };
            scenario.disks.push((bytes, hog(&[0])));
            scenario.disks.push((requests, Workload::reads(4 * KIB, 32).on(&[reactors - 1])));
            for at in 0..20 {
                scenario.add(1000, other.clone().on(&[at % reactors]));
            }
            let report = scenario.run();
            let counted = report.counted_ns as f64 / 1e9;
            assert!(report.rate(0..1) >= 0.99 * 100e6, "{model:?}: {}", report.rate(0..1));
            let rate = report.disks[1].requests as f64 / counted;
            assert!(rate >= 0.99 * 2_000.0, "{model:?} {rate} requests a second");
        }
    }
}

#[test]
fn floors_beyond_the_storage_starve_no_disk() {
    let mut scenario = scenario(ARRAY, 2);
    for at in 0..4 {
        let config = DiskConfig { floor_bytes: 1_000_000_000, ..DiskConfig::default() };
        scenario.disks.push((config, hog(&[at % 2])));
    }
    scenario.add(100, hog(&[0]));
    let report = scenario.run();
    assert!(report.rate(4..5) >= 0.03 * report.total(), "{}", report.rate(4..5));
    assert!(report.disks[4].longest_wait < 20 * MS, "{}", report.disks[4].longest_wait);
}

#[test]
fn caps_and_weights_hold_together() {
    for reactors in [1, 2, 8] {
        let mut scenario = scenario(ARRAY, reactors);
        scenario.length_ns = length(300, 20) * SECOND;
        for at in 0..8 {
            scenario.add([100, 200][at % 2], hog(&[at % reactors]));
        }
        scenario.disks[0].1.cap = 20_000_000;
        scenario.disks[1].1.cap = 30_000_000;
        let report = scenario.run();
        for (disk, cap) in [(0, 20e6), (1, 30e6)] {
            let share = report.rate(disk..disk + 1) / cap;
            assert!((0.99..1.001).contains(&share), "{reactors} reactors: {share} of the cap");
        }
        assert!(report.spread(2..8) <= 1.01, "{}", report.spread(2..8));
        assert!(report.total() >= 0.98 * 810e6, "{}", report.line());
    }
}

#[test]
fn debt_is_paid() {
    // Urgent writes do not wait, and the disk gets no more than its share.
    let mut scenario = scenario(ARRAY, 2);
    scenario.length_ns = length(300, 20) * SECOND;
    for at in 0..8 {
        scenario.add(100, hog(&[at % 2]));
    }
    scenario.disks[0].1.mix = [0, 0, 0, 30];
    let report = scenario.run();
    let share = report.rate(0..1) / report.rate(1..2);
    assert!((0.97..1.03).contains(&share), "{share}");
}
