//! Metric families.

use std::sync::Arc;

use blk::{Op, Stage};
use model::report::{DiskState, DiskStats, ReactorStats, Stats, WorkerStart};

use super::ports::Residence;
use super::text::{MetricType, Page};
use super::{broken_rings, golden, layers, overlay, polling, ports, shares};
use crate::served_disk::ServedDisk;
use crate::stats::{op, stage, unix_seconds};

/// Upper bounds of buckets in nanoseconds, from a fast disk's latency to hung storage.
pub(super) const BOUNDS: [u64; 19] = [
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    10_000_000_000,
    60_000_000_000,
];

/// Data of a page.
#[derive(Debug)]
pub(crate) struct Source {
    /// Statistics.
    pub(crate) stats: Stats,
    /// Disks with their histograms.
    pub(crate) served_disks: Vec<Arc<ServedDisk>>,
    /// Histograms of NICs.
    pub(crate) residences: Vec<Residence>,
}

/// Formats the page.
pub(crate) fn page(source: &Source) -> String {
    let mut page = Page::default();
    let since = source.stats.start.as_ref().map(|worker_start| worker_start.unix_seconds);
    process(&mut page, &source.stats);
    reactors(&mut page, &source.stats.reactors, since);
    polling::reactors(&mut page, &source.stats.reactors, since);
    states(&mut page, &source.stats.disks);
    counters(&mut page, &source.stats.disks);
    gauges(&mut page, &source.stats.disks);
    layers::disks(&mut page, &source.stats.disks);
    golden::disks(&mut page, &source.stats.disks);
    overlay::disks(&mut page, &source.stats.disks);
    shares::disks(&mut page, &source.stats.disks);
    broken_rings::disks(&mut page, &source.stats.disks);
    polling::disks(&mut page, &source.stats.disks);
    durations(&mut page, &source.served_disks);
    ports::nics(&mut page, &source.stats.ports, &source.residences);
    page.end()
}

pub(super) fn process(page: &mut Page, stats: &Stats) {
    let mut build = page.family("ringway_build", MetricType::Info, None, "Version of the program.");
    build.add(&[("version", &stats.version)], 1);
    let help = "Time since the serving process started.";
    let name = "ringway_worker_uptime_seconds";
    page.family(name, MetricType::Gauge, Some("seconds"), help).add(&[], stats.uptime_seconds);
    if let Some(WorkerStart { reason, unix_seconds, previous_exit }) = &stats.start {
        let help =
            "Start reason of the serving process, and the exit of the process that it replaces.";
        let labels = [
            ("start_reason", reason.name()),
            ("previous_exit", previous_exit.as_deref().unwrap_or_default()),
        ];
        page.family("ringway_worker", MetricType::Info, None, help).add(&labels, 1);
        let help = "Start time of the serving process since 1970; its counters begin there.";
        let name = "ringway_worker_start_time_seconds";
        let mut start = page.family(name, MetricType::Gauge, Some("seconds"), help);
        start.add(&[], format_args!("{unix_seconds:.3}"));
    }
    if let Some(keeper) = &stats.keeper {
        let help = "Workers that were started to replace dead ones.";
        page.family("ringway_worker_restarts", MetricType::Counter, None, help)
            .add(&[], keeper.restarts);
    }
}

pub(super) fn reactors(page: &mut Page, all: &[ReactorStats], since: Option<f64>) {
    type Count = fn(&ReactorStats) -> u64;
    let families: [(&'static str, MetricType, &str, Count); 4] = [
        ("ringway_reactor_queues", MetricType::Gauge, "Queues of the reactor.", |one| one.queues),
        ("ringway_reactor_sleeps", MetricType::Counter, "Sleeps of the reactor.", |one| one.sleeps),
        ("ringway_reactor_syscalls", MetricType::Counter, "System calls of the reactor.", |one| {
            one.syscalls
        }),
        ("ringway_reactor_wakeups", MetricType::Counter, "Reactor wakeups.", |one| one.wakeups),
    ];
    for (name, kind, help, count) in families {
        let mut family = page.family(name, kind, None, help);
        for (at, one) in all.iter().enumerate() {
            let since = since.filter(|_| kind == MetricType::Counter);
            family.count(&[("reactor", &at.to_string())], count(one), since);
        }
    }
    let help = "Time that the reactor was ready to run and the host gave it no CPU.";
    let name = "ringway_reactor_cpu_wait_seconds";
    let mut family = page.family(name, MetricType::Counter, Some("seconds"), help);
    for (at, one) in all.iter().enumerate() {
        if let Some(waited) = one.cpu_wait_seconds {
            family.count(&[("reactor", &at.to_string())], waited, since);
        }
    }
}

fn states(page: &mut Page, disks: &[DiskStats]) {
    let names = [
        (DiskState::Attached, "attached"),
        (DiskState::Active, "active"),
        (DiskState::Paused, "paused"),
        (DiskState::Stuck, "stuck"),
        (DiskState::Waiting, "waiting"),
        (DiskState::Refused, "refused"),
    ];
    let help = "State of the disk; waiting means that its storage is full.";
    let mut family = page.family("ringway_disk_state", MetricType::StateSet, None, help);
    for disk in disks {
        for (state, name) in names {
            let labels = [("disk", disk.id.as_str()), ("ringway_disk_state", name)];
            family.add(&labels, u8::from(disk.state == state));
        }
    }
}

fn counters(page: &mut Page, disks: &[DiskStats]) {
    type Count = fn(&DiskStats) -> f64;
    let families: [(&'static str, Option<&str>, &str, Count); 14] = [
        ("ringway_disk_read_bytes", Some("bytes"), "Bytes that were read.", |disk| {
            disk.bytes.read as f64
        }),
        ("ringway_disk_written_bytes", Some("bytes"), "Bytes that were written.", |disk| {
            disk.bytes.write as f64
        }),
        ("ringway_disk_discarded_bytes", Some("bytes"), "Bytes that were discarded.", |disk| {
            disk.bytes.discard as f64
        }),
        ("ringway_disk_zeroed_bytes", Some("bytes"), "Bytes that were zeroed.", |disk| {
            disk.bytes.write_zeroes as f64
        }),
        ("ringway_disk_errors", None, "Requests that ended in an error.", |disk| {
            disk.errors as f64
        }),
        ("ringway_disk_kicks", None, "Kicks received.", |disk| disk.kicks as f64),
        ("ringway_disk_calls", None, "Calls sent.", |disk| disk.calls as f64),
        ("ringway_disk_publishes", None, "Times that completions were published.", |disk| {
            disk.publishes as f64
        }),
        (
            "ringway_disk_resubmitted_requests",
            None,
            "Requests of a dead predecessor that were resubmitted.",
            |disk| disk.resubmitted as f64,
        ),
        (
            "ringway_disk_failed_suspects",
            None,
            "Requests that failed because each was alone in flight when a process died by its own fault.",
            |disk| disk.failed_suspects as f64,
        ),
        (
            "ringway_disk_small_writes",
            None,
            "Read-modify-writes for requests smaller than the blocks of the storage.",
            |disk| disk.small_writes as f64,
        ),
        (
            "ringway_disk_storage_errors",
            None,
            "Requests that failed because of the storage.",
            |disk| disk.storage_errors.as_ref().map_or(0.0, |errors| errors.count as f64),
        ),
        (
            "ringway_disk_busy_seconds",
            Some("seconds"),
            "Time for which reactors served the disk.",
            |disk| disk.busy_seconds,
        ),
        (
            "ringway_disk_neighbour_seconds",
            Some("seconds"),
            "Time for which the disk waited for long turns of other disks on its reactors.",
            |disk| disk.neighbour_seconds,
        ),
    ];
    for (name, unit, help, count) in families {
        let mut family = page.family(name, MetricType::Counter, unit, help);
        for disk in disks {
            family.count(&[("disk", &disk.id)], count(disk), disk.counting_since_unix_seconds);
        }
    }
    requests_by_kind(page, disks);
}

fn requests_by_kind(page: &mut Page, disks: &[DiskStats]) {
    let help = "Requests that ended, by kind.";
    let mut family = page.family("ringway_disk_requests", MetricType::Counter, None, help);
    for disk in disks {
        let all = &disk.requests;
        let kinds = [
            ("read", all.read),
            ("write", all.write),
            ("flush", all.flush),
            ("discard", all.discard),
            ("write_zeroes", all.write_zeroes),
            ("get_id", all.get_id),
        ];
        for (kind, count) in kinds {
            let labels = [("disk", disk.id.as_str()), ("op", kind)];
            family.count(&labels, count, disk.counting_since_unix_seconds);
        }
    }
}

fn gauges(page: &mut Page, disks: &[DiskStats]) {
    type Value = fn(&DiskStats) -> f64;
    let families: [(&'static str, Option<&str>, &str, Value); 10] = [
        ("ringway_disk_size_bytes", Some("bytes"), "Size of the disk.", |disk| {
            disk.geometry.size_bytes as f64
        }),
        ("ringway_disk_connected", None, "A front-end is connected.", |disk| {
            f64::from(u8::from(disk.connected))
        }),
        ("ringway_disk_queues_started", None, "Queues that its driver has started.", |disk| {
            disk.queues_started.into()
        }),
        ("ringway_disk_in_flight_requests", None, "Requests in flight at the storage.", |disk| {
            disk.in_flight as f64
        }),
        ("ringway_disk_queued_requests", None, "Requests that wait in the disk's rings.", |disk| {
            disk.queued as f64
        }),
        (
            "ringway_disk_waiting_requests",
            None,
            "Requests that wait because the storage is full, also those of NBD clients.",
            |disk| disk.waiting as f64,
        ),
        ("ringway_disk_throttled_queues", None, "Queues that its cap throttles now.", |disk| {
            disk.throttled_queues as f64
        }),
        (
            "ringway_disk_oldest_request_seconds",
            Some("seconds"),
            "Age of the oldest pending request, 0 without one.",
            |disk| disk.oldest.map_or(0.0, |oldest| oldest.age_seconds),
        ),
        (
            "ringway_disk_fence_wait_seconds",
            Some("seconds"),
            "Time that the disk has waited for the I/O of a dead predecessor, 0 when it does not.",
            |disk| disk.fence.map_or(0.0, |fence| fence.since_seconds),
        ),
        (
            "ringway_disk_stuck_seconds",
            Some("seconds"),
            "Time since a stop abandoned I/O to hung storage, 0 when none did.",
            |disk| disk.stuck.as_ref().map_or(0.0, |stuck| stuck.since_seconds),
        ),
    ];
    for (name, unit, help, value) in families {
        let mut family = page.family(name, MetricType::Gauge, unit, help);
        for disk in disks {
            family.add(&[("disk", &disk.id)], value(disk));
        }
    }
}

fn durations(page: &mut Page, served_disks: &[Arc<ServedDisk>]) {
    let help = "Time of requests by kind and stage: queue (in the ring), cap, device (with the \
                storage), completion (back to the guest), and total.";
    let name = "ringway_disk_request_duration_seconds";
    let mut family = page.family(name, MetricType::Histogram, Some("seconds"), help);
    for served_disk in served_disks {
        let pairs = Stage::ALL.into_iter().flat_map(|one| Op::ALL.map(|kind| (one, kind)));
        for (one, kind) in pairs {
            let Some(all) = served_disk.device().durations(one, kind) else { continue };
            let (disk, kind, one) = (&served_disk.spec().id, op(kind).name(), stage(one).name());
            let labels = [("disk", disk.as_str()), ("op", kind), ("stage", one)];
            let buckets = BOUNDS.iter().map(|ns| (*ns as f64 / 1e9, all.count_up_to(*ns)));
            let sums = (all.count(), all.sum_ns() as f64 / 1e9);
            family.histogram(
                &labels,
                buckets,
                sums,
                Some(unix_seconds(served_disk.device().made())),
            );
        }
    }
}
