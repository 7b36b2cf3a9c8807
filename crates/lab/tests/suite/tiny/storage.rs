//! Disks on models of devices: figures exist, whatever they are.

use lab::storage::coalesce::Coalesce;
use lab::storage::fairness::Fairness;
use lab::storage::lun_scale::LunScale;
use lab::storage::splitting::Splitting;
use lab::storage::write_cache::WriteCache;

use super::*;

/// Time of a sample. Storage that other tests use, too, may answer no request for some tens of
/// milliseconds.
const WINDOW_MS: u64 = 300;

fn quick(experiment: &dyn Experiment, only: &str) -> Results {
    let only = Some(only.into());
    let options = Options { only, rounds: Some(1), window_ms: Some(WINDOW_MS), ..tiny(false) };
    run(experiment, &options, &mut Silent, &Arc::new(AtomicBool::new(false))).unwrap()
}

#[test]
fn four_disks_share_an_array() {
    let results = quick(&LunScale, "array-4k-4");
    let [cell] = &results.cells[..] else { panic!("{:?}", results.cells) };
    let names: Vec<_> = cell.systems.iter().map(|series| series.name.as_str()).collect();
    assert_eq!(names, ["ringway-io", "ringway-io without a profile", "qsd throttle-group"]);
    for sample in cell.systems.iter().flat_map(|series| &series.samples) {
        assert!(sample["max_over_min"] >= 1.0 && sample["requests"] > 0.0, "{sample:?}");
    }
    drawn(&results, 2);
}

#[test]
fn a_disk_with_four_queues_is_beside_one_with_one() {
    let results = quick(&LunScale, "array-deep-queues-4");
    let [cell] = &results.cells[..] else { panic!("{:?}", results.cells) };
    let share = |system: usize| cell.systems[system].samples[0]["max_over_min"];
    // Without a profile, four queues have four times as much in flight.
    assert!(share(0) >= 1.0 && share(1) >= 1.0, "{:?}", cell.systems);
    assert!(results.compared.iter().any(|it| it.metric == "max_over_min" && it.bar == Some(1.05)));
}

#[test]
fn a_request_is_split_and_compared_with_parts() {
    let results = quick(&Splitting, "striped-512k");
    assert_eq!(results.cells[0].systems.len(), 5);
    let bars: Vec<_> = results.compared.iter().map(|compared| compared.bar).collect();
    assert_eq!(bars, [None, Some(0.8)]);
    drawn(&results, 2);
}

#[test]
fn a_weight_changes_while_disks_are_busy() {
    let results = quick(&Fairness, "live");
    let bars: Vec<_> = results.compared.iter().map(|compared| compared.metric.as_str()).collect();
    assert_eq!(bars, ["weights_error_percent", "part_of_limit"]);
    let sample = &results.cells[0].systems[0].samples[0];
    assert!(sample.contains_key("mib_per_s_d3_t23"), "{sample:?}");
    drawn(&results, 2);
}

#[test]
fn writes_go_to_every_kind_of_write_cache() {
    let results = quick(&WriteCache, "d1");
    let [cell] = &results.cells[..] else { panic!("{:?}", results.cells) };
    assert_eq!(cell.systems.len(), 7);
    assert!(cell.systems.iter().all(|system| system.median("iops") > 0.0), "{cell:?}");
    let bars: Vec<_> = results.compared.iter().filter_map(|compared| compared.bar).collect();
    assert_eq!(bars, [0.7, 0.9, 200.0]);
    drawn(&results, 1);
}

#[test]
fn a_disk_is_measured_beside_a_merge() {
    let results = quick(&Coalesce, "write-4k-d1");
    let [cell] = &results.cells[..] else { panic!("{:?}", results.cells) };
    let sample = |system: usize| &cell.systems[system].samples[0];
    assert!((0..3).all(|system| sample(system)["requests"] > 0.0), "{cell:?}");
    // The storage decides how much is merged meanwhile, but nothing is without a merge.
    assert!(sample(0)["merged_mib_per_s"].abs() < f64::EPSILON, "{cell:?}");
    assert!(results.compared.iter().all(|compared| compared.bar.is_none()));
    drawn(&results, 1);
}
