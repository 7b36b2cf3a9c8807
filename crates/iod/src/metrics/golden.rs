//! Metrics of golden images.

use model::report::{DiskStats, GoldenStats};

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
    let (name, help) = ("ringway_disk_golden_source_gone", "1 if blocks wait for the source.");
    let mut family = page.family(name, MetricType::Gauge, None, help);
    for (disk, golden) in golden() {
        family.add(&[("disk", &disk.id)], if golden.problem.is_some() { 1.0 } else { 0.0 });
    }
}
