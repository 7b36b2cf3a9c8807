//! Metrics of layers with a map.

use model::report::{DiskStats, LayerStats};

use super::text::{MetricType, Page};

/// Name, unit, help and value of a family.
type Row = (&'static str, Option<&'static str>, &'static str, fn(&LayerStats) -> f64);

const COUNTERS: [Row; 7] = [
    ("ringway_disk_map_questions", None, "Questions of requests to owners of images.", |layers| {
        layers.questions as f64
    }),
    ("ringway_disk_map_answers", None, "Answers of owners of images.", |layers| {
        layers.answers as f64
    }),
    ("ringway_disk_map_rounds", None, "Flush rounds of images.", |layers| layers.rounds as f64),
    ("ringway_disk_map_allocations", None, "Clusters allocated.", |layers| {
        layers.allocations as f64
    }),
    ("ringway_disk_map_fills", None, "Clusters that were filled as a whole.", |layers| {
        layers.fills as f64
    }),
    (
        "ringway_disk_map_read_modify_writes",
        None,
        "Fills that first read the rest of their cluster.",
        |layers| layers.read_modify_writes as f64,
    ),
    (
        "ringway_disk_map_wait_seconds",
        Some("seconds"),
        "Time for which requests waited for the owner of an image.",
        |layers| layers.wait_seconds,
    ),
];

const GAUGES: [Row; 4] = [
    ("ringway_disk_map_pages", None, "Pages of block maps in memory, 4 KiB each.", |layers| {
        layers.map_pages as f64
    }),
    (
        "ringway_disk_map_limbo_bytes",
        Some("bytes"),
        "Clusters that are not used any more and not free yet.",
        |layers| layers.limbo_bytes as f64,
    ),
    (
        "ringway_disk_map_held_bytes",
        Some("bytes"),
        "Clusters in limbo that only requests in flight keep there.",
        |layers| layers.held_bytes as f64,
    ),
    (
        "ringway_disk_map_held_seconds",
        Some("seconds"),
        "Time for which the same requests have kept them.",
        |layers| layers.held_seconds,
    ),
];

/// Writes the metrics of disks that have such layers.
pub(super) fn disks(page: &mut Page, all: &[DiskStats]) {
    let layered = || all.iter().filter_map(|disk| Some((disk, disk.layers.as_ref()?)));
    for (name, unit, help, value) in COUNTERS {
        let mut family = page.family(name, MetricType::Counter, unit, help);
        for (disk, layers) in layered() {
            let since = disk.counting_since_unix_seconds;
            family.count(&[("disk", &disk.id)], value(layers), since);
        }
    }
    for (name, unit, help, value) in GAUGES {
        let mut family = page.family(name, MetricType::Gauge, unit, help);
        layered().for_each(|(disk, layers)| family.add(&[("disk", &disk.id)], value(layers)));
    }
}
