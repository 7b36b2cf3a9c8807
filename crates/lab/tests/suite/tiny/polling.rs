//! Polling modes, think times and a shared CPU.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use lab::blk::polling::Polling;
use lab::blk::shared_cpu::SharedCpu;
use lab::experiment::Options;
use lab::progress::Silent;
use lab::results::Results;

use super::{drawn, run, tiny};

fn polled(only: &str) -> Results {
    let options = Options { only: Some(only.into()), ..tiny(false) };
    run(&Polling, &options, &mut Silent, &Arc::new(AtomicBool::new(false))).unwrap()
}

#[test]
fn a_client_that_thinks_is_no_faster_than_its_thoughts() {
    let results = polled("null-think-200");
    assert_eq!(results.cells[0].systems.len(), 6);
    for sample in results.cells[0].systems.iter().flat_map(|series| &series.samples) {
        // The client thinks between two requests, but not necessarily before the first one.
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
