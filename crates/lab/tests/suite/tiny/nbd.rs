//! Disks over NBD.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use lab::experiment::Options;
use lab::nbd::NbdExport;
use lab::progress::Silent;

use super::{run, tiny};

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
