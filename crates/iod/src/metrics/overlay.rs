//! Metrics of overlays.

use model::report::{DiskStats, OverlayStats};

use super::text::{MetricType, Page};

/// Name, unit, help and value of a family. A value that is not known is absent.
type Row = (&'static str, Option<&'static str>, &'static str, fn(&OverlayStats) -> Option<u64>);

const COUNTERS: [Row; 6] = [
    ("ringway_disk_overlay_hits", None, "Reads that memory alone has answered.", |one| {
        Some(one.hits)
    }),
    ("ringway_disk_overlay_overflow_reads", None, "Reads of the overflow file.", |one| {
        Some(one.overflow_reads)
    }),
    ("ringway_disk_overlay_base_reads", None, "Reads of the base.", |one| Some(one.base_reads)),
    (
        "ringway_disk_overlay_moved_bytes",
        Some("bytes"),
        "Written blocks that were moved to the overflow file.",
        |one| Some(one.moved_bytes),
    ),
    ("ringway_disk_overlay_waits", None, "Writes that waited for memory.", |one| Some(one.waits)),
    ("ringway_disk_overlay_overflow_errors", None, "Failed writes to the overflow file.", |one| {
        Some(one.overflow_errors)
    }),
];

const GAUGES: [Row; 8] = [
    ("ringway_disk_overlay_ram_bytes", Some("bytes"), "Memory for written blocks.", |one| {
        Some(one.ram_bytes)
    }),
    ("ringway_disk_overlay_ram_used_bytes", Some("bytes"), "Memory with written blocks.", |one| {
        Some(one.ram_used_bytes)
    }),
    (
        "ringway_disk_overlay_overflow_used_bytes",
        Some("bytes"),
        "Written blocks in the overflow file.",
        |one| one.has_overflow.then_some(one.overflow_used_bytes),
    ),
    (
        "ringway_disk_overlay_overflow_limit_bytes",
        Some("bytes"),
        "Most bytes that the overflow file can have, with the room of its storage.",
        |one| one.overflow_limit_bytes,
    ),
    (
        "ringway_disk_overlay_growth_bytes_per_second",
        None,
        "Growth of the written blocks.",
        |one| one.bytes_per_second,
    ),
    (
        "ringway_disk_overlay_full_in_seconds",
        Some("seconds"),
        "Time until memory and overflow file are full at the present growth.",
        |one| one.full_in_seconds,
    ),
    (
        "ringway_disk_overlay_waiting_bytes",
        Some("bytes"),
        "Writes that wait for memory now.",
        |one| Some(one.waiting_bytes),
    ),
    (
        "ringway_disk_overlay_full",
        None,
        "1 if memory and overflow file are full, so that writes wait.",
        |one| Some(one.is_full.into()),
    ),
];

/// Writes the metrics of disks with an overlay.
pub(super) fn disks(page: &mut Page, all: &[DiskStats]) {
    let overlays = || all.iter().filter_map(|disk| Some((disk, disk.overlay.as_ref()?)));
    for (name, unit, help, value) in COUNTERS {
        let mut family = page.family(name, MetricType::Counter, unit, help);
        for (disk, overlay) in overlays() {
            let since = disk.counting_since_unix_seconds;
            let value = value(overlay).unwrap_or_default();
            family.count(&[("disk", &disk.id)], value as f64, since);
        }
    }
    for (name, unit, help, value) in GAUGES {
        let mut family = page.family(name, MetricType::Gauge, unit, help);
        for (disk, overlay) in overlays() {
            if let Some(value) = value(overlay) {
                family.add(&[("disk", &disk.id)], value as f64);
            }
        }
    }
}
