//! Equal disks: a total never falls, and shares are equal.

use super::{KIB, MIB, MS, SECOND, US, length, profile};
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

/// Disks that read 64 KiB at random places, at depth 4 on each of 1, 2 or 4 queues.
fn unequal_queues(count: usize) -> Scenario {
    let mut scenario = Scenario::new(ARRAY, Some(profile(ARRAY)));
    scenario.reactors = 2;
    for at in 0..count {
        let queues: Vec<usize> = (0..1 << (at % 3)).map(|queue| (at + queue) % 2).collect();
        let depth = 4 * queues.len() as u64;
        scenario.add(100, Workload::reads(64 * KIB, depth).on(&queues));
    }
    scenario
}

#[test]
fn a_disk_with_more_queues_gets_no_more() {
    for count in COUNTS {
        let report = unequal_queues(count).run();
        assert!(report.spread(0..count) <= 1.02, "{count} disks: {}", report.line());
    }
}

#[test]
fn a_request_waits_for_the_share_of_its_disk_and_for_stalls() {
    // 16 requests of 64 KiB at the hundredth part of 800 MB/s take 0.13 s.
    for (stall, most) in [(0, 145 * MS), (20 * MS, 360 * MS)] {
        let mut scenario = unequal_queues(100);
        scenario.stalls = stall;
        let report = scenario.run();
        let worst = report.disks.iter().map(|disk| disk.percentile(99)).max().unwrap();
        println!("stalls of up to {} ms: worst p99 {} ms", stall / MS, worst / MS);
        assert!(worst <= most, "{worst}: {}", report.line());
    }
}

#[test]
fn a_dispatch_looks_at_few_of_a_hundred_disks() {
    let report = unequal_queues(100).run();
    let looks = report.looks as f64 / report.commands as f64;
    assert!(looks <= 6.0, "{looks:.1} looks at disks for each dispatch");
}

/// Each reader has a reactor of its own. A piece of one and a piece of the other are in flight all
/// the time, so both must be large.
#[test]
fn two_readers_get_as_much_as_without_a_profile() {
    for think in [20 * US, 300 * US] {
        let run = |profile| {
            let mut scenario = readers(2, None, 2, |at| vec![at]);
            scenario.profile = profile;
            scenario.length_ns = 12 * SECOND;
            scenario.disks.iter_mut().for_each(|(_, workload)| workload.think_ns = think);
            scenario.run()
        };
        let (shared, plain) = (run(Some(profile(ARRAY))), run(None));
        assert!(shared.total() >= 0.98 * plain.total(), "{}, {}", shared.line(), plain.line());
        assert!(shared.spread(0..2) <= 1.02, "{}", shared.line());
    }
}
