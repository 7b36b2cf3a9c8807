//! Metrics of golden images.

use golden::BLOCK_BYTES;
use model::report::{DiskStats, GoldenStats, WarmPhase};

use super::text::{MetricType, Page};

/// Name, unit, help and value of a family.
type Row = (&'static str, Option<&'static str>, &'static str, fn(&GoldenStats) -> u64);

const COUNTERS: [Row; 6] = [
    ("ringway_disk_golden_hits", None, "Blocks found in memory.", |golden| golden.hits),
    ("ringway_disk_golden_misses", None, "Blocks that requests waited for.", |golden| {
        golden.misses
    }),
    ("ringway_disk_golden_loaded", None, "Blocks from the cache file.", |golden| golden.loaded),
    ("ringway_disk_golden_fetched", None, "Blocks from the source.", |golden| golden.fetched),
    ("ringway_disk_golden_fetched_bytes", Some("bytes"), "Bytes from the source.", |golden| {
        golden.fetched_bytes
    }),
    ("ringway_disk_golden_evicted", None, "Blocks that left the memory.", |golden| golden.evicted),
];

const GAUGES: [Row; 5] = [
    ("ringway_disk_golden_source_gone", None, "1 if blocks wait for the source.", |golden| {
        golden.problem.is_some().into()
    }),
    ("ringway_disk_golden_size_bytes", Some("bytes"), "Size of the image.", |golden| golden.size),
    ("ringway_disk_golden_stored_bytes", Some("bytes"), "Blocks in the cache file.", |golden| {
        (golden.stored * BLOCK_BYTES).min(golden.size)
    }),
    (
        "ringway_disk_golden_file_problem",
        None,
        "1 if new blocks are not stored in the cache file.",
        |golden| golden.file_problem.is_some().into(),
    ),
    (
        "ringway_disk_golden_wrong_digest",
        None,
        "1 if the bytes have another digest than the identity.",
        |golden| golden.other_digest.is_some().into(),
    ),
];

/// Writes the metrics of disks on golden images.
pub(super) fn disks(page: &mut Page, all: &[DiskStats]) {
    let golden = || all.iter().filter_map(|disk| Some((disk, disk.golden.as_ref()?)));
    for (name, unit, help, value) in COUNTERS {
        let mut family = page.family(name, MetricType::Counter, unit, help);
        for (disk, golden) in golden() {
            let since = disk.counting_since_unix_seconds;
            family.count(&[("disk", &disk.id)], value(golden) as f64, since);
        }
    }
    for (name, unit, help, value) in GAUGES {
        let mut family = page.family(name, MetricType::Gauge, unit, help);
        for (disk, golden) in golden() {
            family.add(&[("disk", &disk.id)], value(golden) as f64);
        }
    }
    let name = "ringway_disk_golden_warm";
    let help = "1 for the phase of the fetching of the whole image, if an operator asked for it.";
    let mut family = page.family(name, MetricType::Gauge, None, help);
    for (disk, golden) in golden() {
        if let Some(warm) = &golden.warm {
            let phase = match warm.phase {
                WarmPhase::Running => "running",
                WarmPhase::Checking => "checking",
                WarmPhase::Done => "done",
                WarmPhase::Canceled => "canceled",
                WarmPhase::Failed => "failed",
            };
            family.add(&[("disk", &disk.id), ("phase", phase)], 1.0);
        }
    }
}
