//! Tiny experiments. The tests check that figures exist and are consistent, never their values.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod baseline;
mod formats;
mod nbd;
mod net;
mod peers;
mod polling;
mod promises;
mod sleeping;
mod storage;
mod toolstack;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use lab::blk::aggregate::StorageAggregate;
use lab::blk::hung_disk::HungDisk;
use lab::blk::idle::IdleQueues;
use lab::blk::restart_pause::RestartPause;
use lab::blk::scale::Scale;
use lab::blk::stats_cost::StatsCost;
use lab::experiment::{Experiment, Options};
use lab::golden_boot::GoldenBoot;
use lab::greedy_front_ends::GreedyFrontEnds;
use lab::progress::{Progress, Silent};
use lab::results::{Results, Written};
use lab::upgrade_pause::UpgradePause;

/// Runs an experiment. Only one runs at a time, because each needs the CPUs for itself.
fn run(
    experiment: &dyn Experiment,
    options: &Options,
    progress: &mut dyn Progress,
    stop: &Arc<AtomicBool>,
) -> anyhow::Result<Results> {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    lab::experiment::run(experiment, options, progress, stop)
}

/// Runs an experiment that mostly waits for simulated storage. In a reduced run it may run beside
/// other experiments.
fn run_beside(experiment: &dyn Experiment, options: &Options) -> anyhow::Result<Results> {
    let stop = Arc::new(AtomicBool::new(false));
    if testkit::is_soak() {
        return run(experiment, options, &mut Silent, &stop);
    }
    lab::experiment::run(experiment, options, &mut Silent, &stop)
}

fn tiny(control: bool) -> Options {
    Options {
        quick: true,
        rounds: Some(2),
        window_ms: Some(30),
        only: Some("-d1-".into()),
        control,
        scratch: Some(std::env::temp_dir()),
        peers: Vec::new(),
        other_binary: None,
    }
}

/// Checks that the report shows each cell and each bar.
fn drawn(results: &Results, pictures: usize) {
    let dir = tempfile::tempdir().unwrap();
    let Written { plots, .. } = results.write(dir.path()).unwrap();
    assert_eq!(plots.len(), pictures);
    for plot in plots {
        let svg = std::fs::read_to_string(plot).unwrap();
        assert!(svg.starts_with("<svg ") && svg.contains("stroke-opacity") && !svg.contains("NaN"));
    }
}

#[test]
fn idle_queues_are_started_and_used_once() {
    let options = Options { only: Some("busy-d1".into()), ..tiny(false) };
    let stop = Arc::new(AtomicBool::new(false));
    let results = run(&IdleQueues, &options, &mut Silent, &stop).unwrap();
    assert_eq!(results.cells[0].systems.len(), 4);
    assert!(results.cells[0].systems.iter().all(|series| series.median("iops") > 0.0));
    assert_eq!(results.compared[0].bar, Some(0.95));
    let options = Options { only: Some("idle".into()), ..tiny(false) };
    let results = run(&IdleQueues, &options, &mut Silent, &stop).unwrap();
    let [ours, theirs] = &results.cells[0].systems[..] else { panic!("{:?}", results.cells) };
    for metric in ["seconds", "cpu_percent", "voluntary_switches"] {
        assert!(ours.summary[metric].count == 2 && theirs.summary[metric].count == 2);
    }
    assert_eq!(ours.summary["reactor_wakeups"].count, 2);
    let bars: Vec<_> = results.compared.iter().filter_map(|c| c.bar).collect();
    assert_eq!(bars, [0.5, 9.0, 0.0]);
    drawn(&results, 1);
}

#[test]
fn twenty_clients_and_every_number_of_reactors_meet() {
    let options = Options { only: Some("cached".into()), ..tiny(false) };
    let stop = Arc::new(AtomicBool::new(false));
    let results = run(&StorageAggregate, &options, &mut Silent, &stop).unwrap();
    let [cell] = &results.cells[..] else { panic!("{:?}", results.cells) };
    assert_eq!(cell.systems.len(), 6);
    for sample in cell.systems.iter().flat_map(|series| &series.samples) {
        // On a busy host, a client may get no request done in so short a time.
        let is_share = (0.0..=1.0).contains(&sample["slowest_share"]);
        assert!(sample["requests"] >= 20.0 && is_share, "{sample:?}");
    }
    assert_eq!(results.compared.iter().filter(|c| c.bar == Some(0.95)).count(), 2);
    drawn(&results, 2);
}

#[test]
fn queues_of_one_disk_are_served_by_several_reactors() {
    let options = Options { only: Some("q4".into()), ..tiny(false) };
    let stop = Arc::new(AtomicBool::new(false));
    let results = run(&Scale, &options, &mut Silent, &stop).unwrap();
    let names: Vec<_> = results.cells[0].systems.iter().map(|s| s.name.as_str()).collect();
    let ours = [1, 2, 4].map(|n| format!("ringway-blk --reactors {n}"));
    assert_eq!(names, [&ours[0], &ours[1], &ours[2], "qsd"]);
    let samples = results.cells[0].systems.iter().flat_map(|series| &series.samples);
    assert!(samples.into_iter().all(|sample| sample["requests"] >= 4.0));
    drawn(&results, 2);
}

#[test]
fn the_cost_of_recording_is_measured_in_one_process() {
    let options = Options { only: Some("d32-poll-off".into()), ..tiny(false) };
    let stop = Arc::new(AtomicBool::new(false));
    let results = run(&StatsCost, &options, &mut Silent, &stop).unwrap();
    let [cell] = &results.cells[..] else { panic!("{:?}", results.cells) };
    let names: Vec<_> = cell.systems.iter().map(|series| series.name.as_str()).collect();
    assert_eq!(names, ["record=true", "record=false"]);
    assert!(results.compared[0].bar == Some(0.98) && results.compared[0].passed.is_some());
}

#[test]
fn the_cost_of_a_share_is_measured_in_one_process() {
    for control in [false, true] {
        let options = Options { only: Some("share-4k-d1-".into()), ..tiny(control) };
        let stop = Arc::new(AtomicBool::new(false));
        let results = run(&StatsCost, &options, &mut Silent, &stop).unwrap();
        let [cell] = &results.cells[..] else { panic!("{:?}", results.cells) };
        let names: Vec<_> = cell.systems.iter().map(|series| series.name.as_str()).collect();
        assert_eq!(names, ["share=true", "share=false"]);
        let samples = cell.systems.iter().flat_map(|series| &series.samples);
        assert!(samples.into_iter().all(|sample| sample["iops"] > 0.0));
    }
}

#[test]
fn neighbours_of_a_hung_disk_are_measured_while_it_hangs_and_when_it_does_not() {
    let options = Options { only: Some("memory-4k-d1-p99".into()), ..tiny(false) };
    let stop = Arc::new(AtomicBool::new(false));
    let results = run(&HungDisk, &options, &mut Silent, &stop).unwrap();
    let [cell] = &results.cells[..] else { panic!("{:?}", results.cells) };
    let names: Vec<_> = cell.systems.iter().map(|series| series.name.as_str()).collect();
    assert_eq!(names, ["beside a hung disk", "beside an idle disk"]);
    for sample in cell.systems.iter().flat_map(|series| &series.samples) {
        assert!(sample["p99_us"] > 0.0 && sample["errors"] == 0.0, "{sample:?}");
    }
    assert!(results.compared[0].bar == Some(0.9) && results.compared[0].passed.is_some());
}

#[test]
fn clients_of_killed_programs_pause_and_lose_nothing() {
    let options = Options { only: Some("file".into()), rounds: Some(1), ..tiny(false) };
    let stop = Arc::new(AtomicBool::new(false));
    let results = run(&RestartPause, &options, &mut Silent, &stop).unwrap();
    let systems = &results.cells[0].systems;
    assert_eq!(systems.len(), 3);
    for series in systems {
        let [p50, max] = ["p50_ms", "max_ms"].map(|metric| series.median(metric));
        assert!(p50 > 0.0 && max >= p50 && series.median("requests") > 0.0, "{series:?}");
    }
    assert!(results.compared.iter().all(|c| c.bar == Some(100.0) && c.passed.is_some()));
}

#[test]
fn a_client_beside_greedy_front_ends_loses_nothing() {
    let options = Options { only: None, rounds: Some(1), ..tiny(false) };
    let stop = Arc::new(AtomicBool::new(false));
    let results = run(&GreedyFrontEnds, &options, &mut Silent, &stop).unwrap();
    assert_eq!(results.cells.len(), 3);
    for series in results.cells.iter().map(|cell| &cell.systems[0]) {
        let [p50, max] = ["p50_ms", "max_ms"].map(|metric| series.median(metric));
        assert!(p50 > 0.0 && max >= p50, "{series:?}");
    }
    assert!(results.compared.iter().all(|c| c.bar == Some(200.0) && c.passed.is_some()));
}

#[test]
fn clients_of_an_upgraded_program_pause_and_lose_nothing() {
    for cell in ["disk", "2-nics"] {
        let options = Options { only: Some(cell.into()), rounds: Some(1), ..tiny(false) };
        let stop = Arc::new(AtomicBool::new(false));
        let results = run(&UpgradePause, &options, &mut Silent, &stop).unwrap();
        let [series] = &results.cells[0].systems[..] else { panic!("{:?}", results.cells) };
        let [p50, max] = ["p50_ms", "max_ms"].map(|metric| series.median(metric));
        assert!(p50 > 0.0 && max >= p50, "{series:?}");
        assert!(results.compared.iter().all(|c| c.bar == Some(200.0) && c.passed.is_some()));
    }
}

#[test]
fn machines_boot_from_a_golden_image() {
    let options = Options { only: None, rounds: Some(1), ..tiny(false) };
    let stop = Arc::new(AtomicBool::new(false));
    let results = run(&GoldenBoot, &options, &mut Silent, &stop).unwrap();
    let [cell, in_turn] = &results.cells[..] else { panic!("{:?}", results.cells) };
    assert_eq!(cell.systems.len(), 5);
    let fetched: Vec<f64> = cell.systems.iter().map(|it| it.median("fetched_mib")).collect();
    let [cold, apart, boot_set, warm, qsd] = fetched[..] else { panic!("{fetched:?}") };
    // Two machines apart fetch each block twice. Each new process reads nothing else.
    assert_eq!((apart, boot_set, warm), (2.0 * cold, cold, 0.0));
    assert!(cold >= 1.0 && qsd >= 2.0, "{fetched:?}");
    assert!(cell.systems.iter().all(|it| it.median("slowest_s") >= it.median("mean_s")));
    let [shared] = &in_turn.systems[..] else { panic!("{in_turn:?}") };
    assert!(shared.median("fetched_mib") == cold && shared.median("last_over_second") > 0.0);
}
