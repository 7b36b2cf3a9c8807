//! A tiny `blk-baseline`: that figures are there and consistent, never how high they are.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use lab::blk::BlkBaseline;
use lab::blk::hung_disk::HungDisk;
use lab::blk::stats_cost::StatsCost;
use lab::experiment::{Options, run};
use lab::nbd::NbdExport;
use lab::progress::Silent;
use lab::results::{Results, Written};

fn tiny(control: bool) -> Options {
    Options {
        quick: true,
        rounds: Some(2),
        window_ms: Some(30),
        only: Some("-d1-".into()),
        control,
        scratch: Some(std::env::temp_dir()),
    }
}

fn measured(control: bool) -> Results {
    run(&BlkBaseline, &tiny(control), &mut Silent, &Arc::new(AtomicBool::new(false))).unwrap()
}

fn check(results: &Results) {
    assert_eq!(results.cells.len(), 3);
    assert_eq!(results.compared.len(), 3);
    for cell in &results.cells {
        for series in &cell.systems {
            assert_eq!(series.samples.len(), 2, "{}: {}", cell.title, series.name);
            for sample in &series.samples {
                let get = |metric: &str| sample[metric];
                assert!(get("requests") >= 1.0 && get("errors") == 0.0, "{sample:?}");
                assert!(get("iops") > 0.0, "{sample:?}");
                let sleeps = cell.id.ends_with("sleep");
                // A polling client takes no calls; one that sleeps cannot do without for long.
                let calls = get("calls_per_request") * get("requests");
                let enough =
                    if sleeps { calls >= 1.0 || get("requests") < 100.0 } else { calls == 0.0 };
                assert!(enough, "{sample:?}");
            }
        }
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
    assert_eq!(bars, [0.9, 2.0, 2.0]);
    assert!(results.compared.iter().all(|c| c.passed.is_some() && c.ratio.count == 2));
    assert!(results.run.versions["ringway-blk"].starts_with("ringway-blk "));
    for series in results.cells.iter().flat_map(|cell| &cell.systems) {
        if series.name.contains("--poll always") {
            assert!(series.median("kicks_per_request") < 0.5, "{series:?}");
        }
    }
}

#[test]
fn the_cost_of_recording_is_measured_on_the_same_program() {
    let options = Options { only: Some("d32-poll-off".into()), ..tiny(false) };
    let stop = Arc::new(AtomicBool::new(false));
    let results = run(&StatsCost, &options, &mut Silent, &stop).unwrap();
    let [cell] = &results.cells[..] else { panic!("{:?}", results.cells) };
    let names: Vec<_> = cell.systems.iter().map(|series| series.name.as_str()).collect();
    assert_eq!(names, ["--record on", "--record off"]);
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
