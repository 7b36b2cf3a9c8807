//! Tiny experiments: that figures are there and consistent, never how high they are.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use lab::blk::aggregate::StorageAggregate;
use lab::blk::baseline::BlkBaseline;
use lab::blk::hung_disk::HungDisk;
use lab::blk::idle::IdleQueues;
use lab::blk::peer::PeerArgument;
use lab::blk::polling::Polling;
use lab::blk::scale::Scale;
use lab::blk::shared_cpu::SharedCpu;
use lab::blk::stats_cost::StatsCost;
use lab::experiment::{Experiment, Options};
use lab::nbd::NbdExport;
use lab::progress::{Progress, Silent};
use lab::results::{Results, Written};
use testkit::driver::{self, Driver};
use testkit::process::{Backend, StorageDaemon, Target};

/// Runs an experiment. One at a time: each wants the CPUs for itself.
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

fn tiny(control: bool) -> Options {
    Options {
        quick: true,
        rounds: Some(2),
        window_ms: Some(30),
        only: Some("-d1-".into()),
        control,
        scratch: Some(std::env::temp_dir()),
        peers: Vec::new(),
    }
}

fn measured(control: bool) -> Results {
    run(&BlkBaseline, &tiny(control), &mut Silent, &Arc::new(AtomicBool::new(false))).unwrap()
}

fn check(results: &Results) {
    let ids: Vec<_> = results.cells.iter().map(|cell| cell.id.as_str()).collect();
    assert_eq!(
        ids,
        [
            "null-4k-d1-sleep",
            "null-4k-d1-poll",
            "memory-4k-d1-poll",
            "cached-4k-d1-poll",
            "direct-4k-d1-poll"
        ]
    );
    for cell in &results.cells {
        for series in &cell.systems {
            assert_eq!(series.samples.len(), 2, "{}: {}", cell.title, series.name);
            for sample in &series.samples {
                let get = |metric: &str| sample[metric];
                assert!(get("requests") >= 1.0 && get("errors") == 0.0, "{sample:?}");
                assert!(get("iops") > 0.0, "{sample:?}");
                let sleeps = cell.id.ends_with("sleep");
                // fio and a copy know no calls.
                let Some(calls) = sample.get("calls_per_request") else { continue };
                // A polling client takes no calls; one that sleeps cannot do without for long.
                let calls = calls * get("requests");
                let enough =
                    if sleeps { calls >= 1.0 || get("requests") < 100.0 } else { calls == 0.0 };
                assert!(enough, "{sample:?}");
            }
        }
    }
}

/// What a run shows of each cell and of each bar.
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
fn a_control_run_gives_consistent_counts_and_files() {
    let results = measured(true);
    check(&results);
    let dir = tempfile::tempdir().unwrap();
    let Written { json, markdown, plots } = results.write(dir.path()).unwrap();
    assert!(json.is_file());
    let drawn = std::fs::read_to_string(&plots[0]).unwrap();
    for cell in &results.cells {
        assert!(drawn.contains(&cell.title) && drawn.contains("requests a second"), "{drawn}");
    }
    let text = std::fs::read_to_string(markdown).unwrap();
    assert!(text.contains("control run") && text.contains("## Ratios"), "{text}");
    assert!(!text.contains("FAIL"), "a control run promises nothing: {text}");
    let read = Results::newest(dir.path(), Some("blk-baseline")).unwrap();
    assert_eq!(read.len(), 1);
    assert_eq!(read[0].run, results.run);
    assert_eq!(read[0].cells.len(), results.cells.len());
    assert!(Results::newest(dir.path(), Some("other")).unwrap().is_empty());
}

#[test]
fn a_run_on_ringway_blk_gives_consistent_counts_and_judges_the_bars() {
    let results = measured(false);
    check(&results);
    let bars: Vec<_> = results.compared.iter().filter_map(|c| c.bar).collect();
    assert_eq!(bars, [0.9, 1.15, 3.5, 1.1, 3.5, 0.95]);
    assert!(results.compared.iter().all(|c| c.bar.is_some() == c.passed.is_some()));
    assert!(results.run.versions["ringway-blk"].starts_with("ringway-blk "));
    let [_, _, memory, ..] = &results.cells[..] else { panic!("{:?}", results.cells) };
    assert_eq!(memory.systems.len(), 3);
}

fn polled(only: &str) -> Results {
    let options = Options { only: Some(only.into()), ..tiny(false) };
    run(&Polling, &options, &mut Silent, &Arc::new(AtomicBool::new(false))).unwrap()
}

#[test]
fn a_client_that_thinks_is_no_faster_than_its_thoughts() {
    let results = polled("null-think-200");
    assert_eq!(results.cells[0].systems.len(), 6);
    for sample in results.cells[0].systems.iter().flat_map(|series| &series.samples) {
        // Between two requests lies a thought; before the first one there may be none.
        let seconds = sample["requests"] / sample["iops"];
        assert!((sample["requests"] - 1.0) * 200e-6 <= seconds, "{sample:?}");
        assert!(sample["p50_us"] > 0.0, "{sample:?}");
    }
    drawn(&results, 2);
}

#[test]
fn arrivals_at_random_do_not_wait_for_the_backend() {
    let results = polled("null-poisson-5000");
    for sample in results.cells[0].systems.iter().flat_map(|series| &series.samples) {
        assert!(sample["requests"] >= 1.0 && sample["p50_us"] > 0.0, "{sample:?}");
        assert!((0.0..=1.0).contains(&sample["late_arrivals"]), "{sample:?}");
    }
    let about: Vec<_> = results.compared.iter().map(|c| (c.metric.as_str(), c.bar)).collect();
    assert_eq!(about[..2], [("backend_cpus", Some(1.2)), ("p50_us", Some(1.1))]);
}

#[test]
fn a_guest_reads_from_every_mode() {
    let options = Options { only: Some("null-guest".into()), rounds: Some(1), ..tiny(false) };
    let stop = Arc::new(AtomicBool::new(false));
    let results = run(&Polling, &options, &mut Silent, &stop).unwrap();
    assert_eq!(results.cells[0].systems.len(), 4);
    assert!(results.cells[0].systems.iter().all(|series| series.median("iops") > 0.0));
}

#[test]
fn one_cpu_serves_both() {
    let options = Options { only: Some("null-4k-d1".into()), ..tiny(false) };
    let stop = Arc::new(AtomicBool::new(false));
    let results = run(&SharedCpu, &options, &mut Silent, &stop).unwrap();
    assert_eq!(results.cells[0].systems.len(), 5);
    let [promised, _] = &results.compared[..] else { panic!("{:?}", results.compared) };
    assert!(promised.bar == Some(0.9) && promised.ours.contains("auto"), "{promised:?}");
    let note = |note: &String| note.contains("share one CPU");
    assert!(results.run.notes.iter().any(note), "{:?}", results.run.notes);
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
        assert!(sample["requests"] >= 20.0 && sample["slowest_share"] > 0.0, "{sample:?}");
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

fn peer(name: &str, socket: &std::path::Path, pid: u32) -> PeerArgument {
    format!("{name}={},{pid}", socket.display()).parse().unwrap()
}

#[test]
fn a_peer_that_somebody_else_has_started_takes_part() {
    let ours = Backend::ringway_blk(&["--null", "64M"]).unwrap();
    let theirs = Backend::storage_daemon(&StorageDaemon::new(Target::Null(64 << 20))).unwrap();
    let peers = vec![
        peer("first", ours.socket(), ours.process.id()),
        peer("second", theirs.socket(), theirs.process.id()),
    ];
    let options = Options { only: Some("null-4k-d1-poll".into()), peers, ..tiny(false) };
    let stop = Arc::new(AtomicBool::new(false));
    let results = run(&BlkBaseline, &options, &mut Silent, &stop).unwrap();
    let systems = &results.cells[0].systems;
    for name in ["first", "second"] {
        let series = systems.iter().find(|series| series.name == name).unwrap();
        assert!(series.median("iops") > 0.0 && series.median("backend_cpus") > 0.0, "{series:?}");
        assert!(results.run.notes.iter().any(|note| note.starts_with(name)));
    }
    // Nobody is left stopped, and both still serve.
    for backend in [&ours, &theirs] {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", backend.process.id())).unwrap();
        assert!(!stat.contains(") T "), "{stat}");
        Driver::connect(backend.socket(), &driver::Options::default()).unwrap();
    }
}

#[test]
fn a_wrong_peer_is_refused_with_the_reason() {
    let ours = Backend::ringway_blk(&["--null", "64M"]).unwrap();
    let (socket, pid) = (ours.socket(), ours.process.id());
    let file = ours.dir().join("file");
    std::fs::write(&file, "").unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    for (peer, reason) in [
        (peer("p", &ours.dir().join("none"), pid), "there is no "),
        (peer("p", &file, pid), "is no socket"),
        (peer("p", socket, i32::MAX as u32), "there is no process 2147483647"),
        (peer("p", socket, u32::MAX), "is no process id"),
        (peer("p", socket, std::process::id()), "does not listen on"),
    ] {
        let options =
            Options { only: Some("null-4k-d1-poll".into()), peers: vec![peer], ..tiny(false) };
        let error = run(&BlkBaseline, &options, &mut Silent, &stop).unwrap_err();
        assert!(format!("{error:#}").contains(reason), "{error:#}");
        let error = run(&HungDisk, &options, &mut Silent, &stop).unwrap_err();
        assert!(format!("{error:#}").contains("no peer can join"), "{error:#}");
    }
    for wrong in ["", "a", "a=b", "a=b,", "a=b,c", "a=,1", "=b,1", "a=b,0", "a=b,-1"] {
        let error = wrong.parse::<PeerArgument>().unwrap_err();
        assert!(error.contains("NAME=SOCKET,PID"), "{error}");
    }
    let with_comma = "a=/b,c,7".parse::<PeerArgument>().unwrap();
    assert_eq!((with_comma.socket.to_str(), with_comma.pid), (Some("/b,c"), 7));
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
fn exports_are_measured_against_their_peers_and_the_clients_limit() {
    let options = Options { only: Some("null-randread-4k-d32".into()), ..tiny(false) };
    let stop = Arc::new(AtomicBool::new(false));
    let results = run(&NbdExport, &options, &mut Silent, &stop).unwrap();
    let [cell] = &results.cells[..] else { panic!("{:?}", results.cells) };
    let names: Vec<_> = cell.systems.iter().map(|series| series.name.as_str()).collect();
    let daemons = ["qsd read-zeroes=off", "qsd read-zeroes=on"];
    assert_eq!(names, ["ringway-io", daemons[0], daemons[1], "nbdkit null", "(reply only)"]);
    for sample in cell.systems.iter().flat_map(|series| &series.samples) {
        assert!(sample["requests"] >= 1.0 && sample["errors"] == 0.0, "{sample:?}");
        assert!(sample["p50_us"] > 0.0 && sample["backend_cpu_us_per_request"] > 0.0);
    }
    let [compared] = &results.compared[..] else { panic!("{:?}", results.compared) };
    assert!(compared.passed.is_some() && compared.peers == daemons, "{compared:?}");
    assert_eq!(compared.bound.as_ref().unwrap().ratio.count, 2);
    assert!(results.run.versions["nbdkit"].starts_with("nbdkit"), "{:?}", results.run.versions);
}

#[test]
fn writes_and_memory_are_served_by_all() {
    let options = Options { only: Some("memory-randwrite".into()), rounds: Some(1), ..tiny(false) };
    let stop = Arc::new(AtomicBool::new(false));
    let results = run(&NbdExport, &options, &mut Silent, &stop).unwrap();
    assert_eq!(results.cells[0].systems.len(), 5);
    assert!(results.cells[0].systems.iter().all(|series| series.median("iops") > 0.0));
}
