//! Clients that sleep, and another build in the same run.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use lab::blk::polling::Polling;
use lab::blk::sleeping::Sleeping;
use lab::experiment::Options;
use lab::other_binary;
use lab::progress::Silent;
use testkit::process::find_binary;

use super::{drawn, run, tiny};

#[test]
fn a_client_that_sleeps_is_called_by_both_builds() {
    let program = find_binary("ringway-blk").unwrap();
    let other_binary = Some(program.clone());
    let options = Options { only: Some("null-4k-d4".into()), other_binary, ..tiny(false) };
    let stop = Arc::new(AtomicBool::new(false));
    let results = run(&Sleeping, &options, &mut Silent, &stop).unwrap();
    let [cell] = &results.cells[..] else { panic!("{:?}", results.cells) };
    assert_eq!(cell.systems.len(), 5);
    for sample in cell.systems.iter().flat_map(|series| &series.samples) {
        assert!(sample["requests"] >= 1.0 && sample["iops"] > 0.0, "{sample:?}");
        assert!(sample.contains_key("calls_per_request"), "{sample:?}");
        assert!(sample.contains_key("sleeps_per_request"), "{sample:?}");
    }
    let bars: Vec<_> = results.compared.iter().filter(|c| c.bar.is_some()).collect();
    let [bar] = bars[..] else { panic!("{bars:?}") };
    assert!(bar.bar == Some(1.2) && bar.passed.is_some() && bar.peers == [other_binary::NAME]);
    let version = &results.run.versions[other_binary::NAME];
    assert!(version.ends_with(&format!(" of {}", program.display())), "{version}");
    drawn(&results, 1);
}

#[test]
fn fio_in_a_guest_reads_from_every_system() {
    let options = Options { only: Some("guest-d32-batch".into()), rounds: Some(1), ..tiny(false) };
    let stop = Arc::new(AtomicBool::new(false));
    let results = run(&Sleeping, &options, &mut Silent, &stop).unwrap();
    let [cell] = &results.cells[..] else { panic!("{:?}", results.cells) };
    assert_eq!(cell.systems.len(), 4);
    let mut backends = 0.0;
    for sample in cell.systems.iter().flat_map(|series| &series.samples) {
        assert!(sample["requests"] >= 1.0 && sample["calls_per_request"] > 0.0, "{sample:?}");
        let [all, backend] = ["cpu_us_per_request", "backend_cpu_us_per_request"];
        assert!(sample[all] > sample[backend] && sample[backend] >= 0.0, "{sample:?}");
        backends += sample[backend];
    }
    // The time of threads that have ended counts in ticks, so a few requests may seem to take none.
    assert!(backends > 0.0, "{:?}", cell.systems);
    assert!(results.compared.iter().all(|c| c.bar.is_none()) && results.verdict.is_none());
}

#[test]
fn a_wrong_other_binary_is_refused_with_the_reason() {
    let stop = Arc::new(AtomicBool::new(false));
    let dir = tempfile::tempdir().unwrap();
    let options = Options { other_binary: Some(dir.path().join("none")), ..tiny(false) };
    let reason = |error: anyhow::Error| format!("{error:#}");
    let error = reason(run(&Sleeping, &options, &mut Silent, &stop).unwrap_err());
    assert!(error.contains("there is no program that can be executed"), "{error}");
    let error = reason(run(&Polling, &options, &mut Silent, &stop).unwrap_err());
    assert!(error.contains("polling has no place for --other-binary"), "{error}");
}
