//! Metrics of disks that share a storage.

use model::report::{DiskStats, ShareReport};

use super::text::{MetricType, Page};

/// Name, type, unit, help and value of a family.
type Row = (&'static str, MetricType, Option<&'static str>, &'static str, fn(&ShareReport) -> f64);

const FAMILIES: [Row; 5] = [
    (
        "ringway_disk_share_waited_seconds",
        MetricType::Counter,
        Some("seconds"),
        "Time for which requests waited for the disk's share of its storage; sum over all requests.",
        |report| report.waited_seconds,
    ),
    (
        "ringway_disk_share_splits",
        MetricType::Counter,
        None,
        "Requests that went to the storage in pieces.",
        |report| report.splits as f64,
    ),
    (
        "ringway_disk_share_waiting",
        MetricType::Gauge,
        None,
        "Requests that wait for the disk's share of its storage.",
        |report| report.waiting as f64,
    ),
    (
        "ringway_disk_share_depth_seconds",
        MetricType::Gauge,
        Some("seconds"),
        "Device time that may be in flight on the disk's storage.",
        |report| report.depth_seconds,
    ),
    (
        "ringway_disk_weight",
        MetricType::Gauge,
        None,
        "Weight of the disk at its storage.",
        |report| report.share.weight.into(),
    ),
];

/// Writes the metrics of disks whose storage has a scheduler.
pub(super) fn disks(page: &mut Page, all: &[DiskStats]) {
    for (name, metric_type, unit, help, value) in FAMILIES {
        let mut family = page.family(name, metric_type, unit, help);
        for disk in all {
            let Some(report) = &disk.share else { continue };
            let labels = [("disk", disk.id.as_str())];
            match metric_type {
                MetricType::Counter => {
                    family.count(&labels, value(report), disk.counting_since_unix_seconds);
                }
                _ => family.add(&labels, value(report)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use model::share::DiskShare;
    use model::spec::Backend;

    use super::*;

    #[test]
    fn only_disks_that_share_a_storage_have_a_weight() {
        let disk = |id: &str| DiskStats::new(id, Backend::Null(512), 512);
        let share = DiskShare { weight: 400, ..DiskShare::default() };
        let report = ShareReport {
            share,
            waited_seconds: 1.5,
            waiting: 3,
            splits: 7,
            depth_seconds: 0.5,
            ..ShareReport::default()
        };
        let mut page = Page::default();
        disks(&mut page, &[DiskStats { share: Some(report), ..disk("a") }, disk("b")]);
        let page = page.end();
        for sample in [
            "ringway_disk_share_waited_seconds_total{disk=\"a\"} 1.5",
            "ringway_disk_share_splits_total{disk=\"a\"} 7",
            "ringway_disk_share_depth_seconds{disk=\"a\"} 0.5",
            "ringway_disk_share_waiting{disk=\"a\"} 3",
            "ringway_disk_weight{disk=\"a\"} 400",
        ] {
            assert!(page.contains(sample), "{page}");
        }
        assert!(!page.contains("\"b\""), "{page}");
    }
}
