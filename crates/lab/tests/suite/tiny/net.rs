//! Frames between NICs. Needs root, for TAP devices and huge pages.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use lab::experiment::{Experiment, Options, Sample};
use lab::net::aggregate::NetAggregate;
use lab::net::balance::NetBalance;
use lab::net::latency::NetLatency;
use lab::net::pps::NetPps;
use lab::net::queues::NetQueues;
use lab::net::tso::NetTso;
use lab::progress::Silent;
use lab::results::Results;

use super::{drawn, run, tiny};

fn measured(experiment: &dyn Experiment, only: &str, window_ms: u64) -> Results {
    let options = Options {
        only: Some(only.into()),
        rounds: Some(1),
        window_ms: Some(window_ms),
        ..tiny(false)
    };
    run(experiment, &options, &mut Silent, &Arc::new(AtomicBool::new(false))).unwrap()
}

/// Returns the systems of the first cell and checks that each has this metric.
fn systems(results: &Results, metric: &str) -> Vec<String> {
    let all = results.cells[0].systems.iter();
    all.map(|series| {
        assert!(series.median(metric) > 0.0, "{series:?}");
        series.name.clone()
    })
    .collect()
}

#[test]
fn small_frames_go_through_every_switch() {
    let results = measured(&NetPps, "frames-64", 100);
    let names = systems(&results, "frames_per_cpu_s");
    let ours = ["ringway-net --poll auto", "ringway-net --poll always"];
    assert_eq!(names, [&ours[..], &["testpmd", "ovs-dpdk", "ovs-dpdk pmd-maxsleep"]].concat());
    assert_eq!(results.compared.iter().filter(|c| c.bar.is_some()).count(), 4);
    assert!(results.run.versions["testpmd"].starts_with("DPDK"), "{:?}", results.run.versions);
    drawn(&results, 1);
}

#[test]
fn idle_nics_are_watched() {
    let results = measured(&NetPps, "idle", 100);
    let [two, hundred] = &results.cells[..] else { panic!("{:?}", results.cells) };
    assert_eq!((two.systems.len(), hundred.systems.len()), (4, 1));
    for series in two.systems.iter().chain(&hundred.systems) {
        assert!(series.summary.contains_key("cpu_percent"), "{series:?}");
    }
}

#[test]
fn large_segments_go_through_the_kernel_too() {
    let results = measured(&NetTso, "64k", 50);
    let counts: Vec<usize> = results.cells.iter().map(|cell| cell.systems.len()).collect();
    assert_eq!(counts, [5, 4, 4], "few and many between NICs, and the uplink");
    for series in results.cells.iter().flat_map(|cell| &cell.systems) {
        assert!(series.median("gbit_per_cpu_s") > 0.0, "{series:?}");
        let lost = series.samples[0].get("lost_frames");
        assert!(lost.is_none_or(|lost| *lost == 0.0), "{series:?}");
    }
    let judged = results.compared.iter().filter(|c| c.bar == Some(1.5) && c.passed.is_some());
    assert_eq!(judged.count(), 2);
}

#[test]
fn frames_are_answered_by_ends_that_sleep() {
    let results = measured(&NetLatency, "asleep-64", 50);
    assert_eq!(systems(&results, "p50_us").len(), 6);
}

#[test]
fn twenty_pairs_of_nics_send_at_once() {
    let results = measured(&NetAggregate, "1500", 100);
    let names = ["1 pair of NICs", "20 pairs of NICs", "1 pair of NICs, buffers of 20"];
    assert_eq!(systems(&results, "gbit_per_s"), names);
    let samples = results.cells[0].systems.iter().flat_map(|series| &series.samples);
    for sample in samples {
        // On a busy host, a pair may send no frame in so short a time.
        let is_share = (0.0..=1.0).contains(&sample["slowest_share"]);
        assert!(is_share && sample["lost_frames"] == 0.0, "{sample:?}");
    }
    drawn(&results, 2);
}

#[test]
fn flows_are_drawn_and_counted_by_queue() {
    let results = measured(&NetBalance, "elephants", 100);
    let [ours, hash] = &results.cells[0].systems[..] else { panic!("{:?}", results.cells) };
    assert!(ours.median("imbalance_worst") >= 1.0 && hash.median("imbalance_worst") > 1.25);
    assert_eq!(results.compared[0].bar, Some(1.25));
}

#[test]
fn guests_stream_through_every_switch() {
    let results = measured(&NetQueues, "vif-s1", 100);
    let names = systems(&results, "gbit_per_s");
    let ours = ["1 pair", "8 pairs", "1 of 8 pairs", "8 pairs and 1 by turns"];
    let ours = ours.map(|pairs| format!("ringway-net, {pairs}"));
    let peers = ["kernel TAP, bridge, TAP", "testpmd, TSO", "ovs-dpdk", "ovs-dpdk pmd-maxsleep"];
    assert_eq!(names, [&ours[..], &peers.map(str::to_owned)].concat());
    let pairs = results.compared.iter().find(|compared| compared.ours == ours[3]).unwrap();
    assert!(pairs.metric == "all_over_one" && pairs.ratio.median > 0.0, "{pairs:?}");
    assert_eq!(systems(&results, "gbit_per_busy_s"), names);
    // On a quiet host other work is 0.
    let other_work = |sample: &Sample| sample.contains_key("other_cpus");
    assert!(results.cells[0].systems.iter().flat_map(|one| &one.samples).all(other_work));
    assert_eq!(results.compared.len(), 9);
}

#[test]
fn the_host_streams_with_a_guest() {
    let results = measured(&NetQueues, "uplink-s1", 100);
    assert_eq!(systems(&results, "gbit_per_s").len(), 6);
    let bars: Vec<_> = results.compared.iter().map(|compared| compared.bar).collect();
    assert_eq!(bars, [Some(1.0), Some(1.0), None, None, Some(0.95), Some(0.95)]);
}
