//! Experiments with the toolstack: a real daemon with a simulated host.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::available_parallelism;

use lab::experiment::Options;
use lab::progress::Silent;
use lab::toolstack::api_scale::ApiScale;
use lab::toolstack::bootstorm::Bootstorm;
use lab::toolstack::hung_sr::HungSr;
use lab::toolstack::responsive::Responsive;
use lab::toolstack::vbd_parallel::VbdParallel;
use testkit::ringwayd::Ringwayd;
use testkit::{is_soak, rounds};

use super::{drawn, run, run_beside, tiny};

fn only(cell: &str) -> Options {
    Options { only: Some(cell.to_owned()), rounds: Some(1), ..tiny(false) }
}

/// The daemon attaches ten slow disks concurrently. Only the lab, on an otherwise idle host,
/// measures how near the time is to that of one disk.
#[test]
fn disks_of_a_machine_are_attached_beside_each_other() {
    let results = run_beside(&VbdParallel, &only("attach-500")).unwrap();
    let names: Vec<_> = results.cells[0].systems.iter().map(|s| s.name.as_str()).collect();
    assert_eq!(names, ["1 disk", "10 disks", "10 disks, one step at a time"]);
    let start = |n: usize| results.cells[0].systems[n].median("start_ms");
    let [one, ten, serial] = [0, 1, 2].map(start);
    assert!(one >= 500.0 && ten >= 500.0 && serial >= 5000.0, "{one} {ten} {serial}");
    assert!(ten <= serial / 2.0, "{ten} ms, one by one {serial} ms");
    assert_eq!(results.compared.iter().filter(|c| c.bar == Some(1.3)).count(), 2);
    drawn(&results, 2);
}

/// The storage of 255 disks, every tenth of them slow, is never idle.
#[test]
fn many_disks_take_a_tenth_of_their_sum() {
    let results = run_beside(&VbdParallel, &only("attach-mixed")).unwrap();
    let most = &results.cells[0].systems[2];
    assert_eq!(most.name, "255 disks");
    assert_eq!((most.median("least_ms"), most.median("chunks_ms")), (2445.0, 13_000.0));
    for metric in ["start_ms", "stop_ms"] {
        let took = most.median(metric);
        assert!((2445.0..13_000.0).contains(&took), "{metric}: {took}");
    }
}

/// A VM of QEMU also attaches ten of its disks concurrently.
#[test]
fn disks_of_a_machine_of_qemu_are_attached_beside_each_other() {
    let results = run_beside(&VbdParallel, &only("qemu-500")).unwrap();
    let systems = &results.cells[0].systems;
    for metric in ["start_ms", "stop_ms"] {
        let [one, ten] = [0, 1].map(|n| systems[n].median(metric));
        assert!(one >= 500.0 && ten >= 500.0, "{metric}: {one} {ten}");
        assert!(ten <= 5.0 * one, "{metric}: {ten} ms, one disk takes {one} ms");
    }
    if is_soak() {
        let results = run_beside(&VbdParallel, &only("qemu-mixed")).unwrap();
        let most = &results.cells[0].systems[0];
        for metric in ["start_ms", "stop_ms"] {
            assert!(most.median(metric) < most.median("one_by_one_ms"), "{most:?}");
        }
    }
}

#[test]
fn two_machines_are_started_at_once() {
    let two = run_beside(&VbdParallel, &only("two")).unwrap();
    let two = &two.cells[0].systems;
    assert!(two.len() == 4 && two.iter().all(|system| system.median("start_ms") >= 500.0));
}

#[test]
fn the_memory_of_a_step_is_measured() {
    let options = Options { quick: !is_soak(), ..only("memory") };
    let results = run_beside(&VbdParallel, &options).unwrap();
    let memory: Vec<_> = results.compared.iter().filter(|c| c.metric == "mib_per_step").collect();
    assert_eq!(memory.len(), 2, "{memory:?}");
    assert!(memory.iter().all(|one| one.passed == Some(true)), "{memory:?}");
}

#[test]
fn a_pool_of_machines_is_measured_in_every_way() {
    let stop = Arc::new(AtomicBool::new(false));
    let machines = rounds(30, 1000);
    let options = Options { quick: !is_soak(), ..only(&format!("m{machines}-")) };
    let results = run(&ApiScale, &options, &mut Silent, &stop).unwrap();
    let ids: Vec<_> = results.cells.iter().map(|cell| cell.id.as_str()).collect();
    let cells = ["records", "wake", "list", "shutdown"].map(|cell| format!("m{machines}-{cell}"));
    assert_eq!(ids, cells);
    for (cell, metric) in [(0, "server_ms"), (1, "wake_p99_ms"), (2, "list_ms"), (3, "stop_ms")] {
        let systems = &results.cells[cell].systems;
        assert!(systems.iter().all(|system| system.median(metric) > 0.0), "{metric}");
    }
    let [many, one] = [0, 1].map(|n| results.cells[3].systems[n].median("stop_ms"));
    assert!(many >= 1000.0 && many < 10.0 * one, "{many} ms, one takes {one} ms");
}

#[test]
fn starts_and_calls_are_measured_beside_starts_that_hang() {
    let options = Options { rounds: Some(1), only: None, ..tiny(false) };
    let results = run_beside(&HungSr, &options).unwrap();
    for series in &results.cells[0].systems {
        // The slowest of a start's steps takes 200 ms.
        assert!(series.median("start_ms") >= 200.0 && series.median("call_p99_ms") > 0.0);
    }
    let bars: Vec<_> = results.compared.iter().filter_map(|c| c.bar).collect();
    assert_eq!(bars, [1.3, 100.0]);
}

/// The bar holds only for an otherwise idle host. This test checks that guests on all CPUs do not
/// prevent answers to `xe`.
#[test]
fn calls_are_answered_while_guests_want_all_cpus() {
    let Some(daemon) = Ringwayd::with_slices(&["--hypervisor", "simulator"]).unwrap() else {
        return;
    };
    drop(daemon);
    let stop = Arc::new(AtomicBool::new(false));
    let options = Options { window_ms: Some(1000), ..only("busy") };
    let options = match is_soak() {
        true => Options { quick: false, window_ms: None, ..options },
        false => options,
    };
    let results = run(&Responsive, &options, &mut Silent, &stop).unwrap();
    let [with, without] = &results.cells[0].systems[..] else { panic!("{:?}", results.cells) };
    assert_eq!((&*with.name, &*without.name), ("with the slices", "without"));
    for system in [with, without] {
        let [p50, max] = ["p50_ms", "max_ms"].map(|metric| system.median(metric));
        assert!(p50 > 0.0 && max >= p50 && system.median("calls") >= 5.0, "{system:?}");
        assert!(system.median("guests_cpus") > 0.1, "{system:?}");
    }
    let bars: Vec<_> = results.compared.iter().filter_map(|c| c.bar).collect();
    assert_eq!(bars, [50.0, 250.0, 50.0, 250.0, 1000.0, 1000.0, 5.0, 5.0]);
    // The number of ways to end is the number of guests less one: one guest per CPU, at least two. A
    // full run has enough guests for all ways.
    let ways = ["end_killed_ms", "end_panic_ms", "end_poweroff_ms", "end_reboot_ms"];
    let cpus = available_parallelism().unwrap().get();
    let seen = if is_soak() { ways.len() } else { (cpus.max(2) - 1).min(ways.len()) };
    for metric in
        ["end_max_ms", "end_message_max_ms"].into_iter().chain(ways.into_iter().take(seen))
    {
        assert!(with.median(metric) > 0.0, "{metric}: {with:?}");
    }
    drawn(&results, 1);
}

/// Soak runs start a hundred guests.
#[test]
fn guests_of_a_golden_image_start_together() {
    let stop = Arc::new(AtomicBool::new(false));
    let options = Options { quick: !is_soak(), ..only("all-at-once") };
    let results = run(&Bootstorm, &options, &mut Silent, &stop).unwrap();
    let [in_turn, at_once] = &results.cells[0].systems[..] else { panic!("{:?}", results.cells) };
    assert_eq!((&*in_turn.name, &*at_once.name), ("in turn", "all at once"));
    for system in [in_turn, at_once] {
        let [first, all] = ["first_ready_s", "all_ready_s"].map(|metric| system.median(metric));
        assert!(first > 0.0 && all >= first, "{system:?}");
        assert!(system.median("xe_calls") >= 1.0 && system.median("pss_mib") > 16.0, "{system:?}");
        assert!(system.median("fetched") > 0.0, "{system:?}");
        let stages = ["devices_s", "kernel_s", "services_s"];
        assert!(stages.into_iter().all(|stage| system.median(stage) > 0.0), "{system:?}");
    }
    drawn(&results, 1);
    let options = Options { quick: !is_soak(), ..only("full") };
    let results = run(&Bootstorm, &options, &mut Silent, &stop).unwrap();
    let [full] = &results.cells[0].systems[..] else { panic!("{:?}", results.cells) };
    let guests = if is_soak() { 30.0 } else { 2.0 };
    assert_eq!([full.median("waiting"), full.median("running")], [guests; 2], "{full:?}");
    assert!(full.median("xe_calls") >= 5.0 && results.compared[0].bar == Some(100.0));
    if is_soak() {
        let results =
            run(&Bootstorm, &Options { quick: false, ..only("storm") }, &mut Silent, &stop);
        let results = results.unwrap();
        let bars: Vec<_> = results.compared.iter().filter_map(|c| c.bar).collect();
        assert_eq!(bars, [1.5, 200.0, 160.0]);
    }
}
