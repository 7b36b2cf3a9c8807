//! Metrics of polling.

use model::report::{DiskStats, PollReason, PollStats, PortStats, QueuePolling, ReactorStats};

use super::text::{MetricType, Page};

/// Writes the polling cost of reactors.
pub(super) fn reactors(page: &mut Page, all: &[ReactorStats], since: Option<f64>) {
    let help = "Time for which the reactor polled and found no work.";
    let name = "ringway_reactor_poll_busy_seconds";
    let mut family = page.family(name, MetricType::Counter, Some("seconds"), help);
    for (at, one) in all.iter().enumerate() {
        family.count(&[("reactor", &at.to_string())], one.poll_seconds, since);
    }
}

/// Names of the families for one kind of device.
struct Names {
    /// Label that names the device.
    label: &'static str,
    reason: &'static str,
    armed: &'static str,
    hits: &'static str,
    misses: &'static str,
    spun: &'static str,
    saved: &'static str,
    refused: &'static str,
}

const DISKS: Names = Names {
    label: "disk",
    reason: "ringway_disk_poll_reason",
    armed: "ringway_disk_poll_active",
    hits: "ringway_disk_poll_hits",
    misses: "ringway_disk_poll_misses",
    spun: "ringway_disk_poll_busy_seconds",
    saved: "ringway_disk_poll_saved_seconds",
    refused: "ringway_disk_poll_denied",
};

const NICS: Names = Names {
    label: "nic",
    reason: "ringway_nic_poll_reason",
    armed: "ringway_nic_poll_active",
    hits: "ringway_nic_poll_hits",
    misses: "ringway_nic_poll_misses",
    spun: "ringway_nic_poll_busy_seconds",
    saved: "ringway_nic_poll_saved_seconds",
    refused: "ringway_nic_poll_denied",
};

/// Polling statistics of a disk or NIC, and the start of counting.
type Polled<'a> = (&'a str, PollStats, Option<f64>);

/// Writes the cost and benefit of polling for each disk, and why it is or is not polled.
pub(super) fn disks(page: &mut Page, disks: &[DiskStats]) {
    let all = disks.iter().filter_map(|disk| {
        Some((disk.id.as_str(), disk.polling?, disk.counting_since_unix_seconds))
    });
    families(page, &DISKS, &all.collect::<Vec<_>>());
}

/// Writes the polling metrics of each NIC.
pub(super) fn nics(page: &mut Page, ports: &[PortStats]) {
    let all = ports.iter().filter_map(|port| {
        Some((port.id.as_str(), port.polling?, port.counting_since_unix_seconds))
    });
    families(page, &NICS, &all.collect::<Vec<_>>());
}

fn families(page: &mut Page, names: &Names, all: &[Polled<'_>]) {
    reasons(page, names, all);
    let help = "Some queue busy-polls when it has nothing to do.";
    let mut family = page.family(names.armed, MetricType::Gauge, None, help);
    for (id, polling, _) in all {
        family.add(&[(names.label, id)], u8::from(polling.queues.polling));
    }
    type Count = fn(&QueuePolling) -> f64;
    let families: [(&'static str, Option<&str>, &str, Count); 4] = [
        (names.hits, None, "Waits that ended during a poll.", |one| one.hits as f64),
        (names.misses, None, "Waits that outlasted a poll.", |one| one.misses as f64),
        (
            names.spun,
            Some("seconds"),
            "Time for which it was polled while it had nothing to do.",
            |one| one.poll_seconds,
        ),
        (names.saved, Some("seconds"), "Time that wakeups would have taken instead.", |one| {
            one.saved_wakeup_us / 1e6
        }),
    ];
    for (name, unit, help, count) in families {
        let mut family = page.family(name, MetricType::Counter, unit, help);
        for (id, polling, since) in all {
            family.count(&[(names.label, id)], count(&polling.queues), *since);
        }
    }
    refusals(page, names, all);
}

fn reasons(page: &mut Page, names: &Names, all: &[Polled<'_>]) {
    let help = "Behavior of idle queues, now or when they were served last: they poll (pays, \
                probing, always), or sleep for this reason.";
    let mut family = page.family(names.reason, MetricType::StateSet, None, help);
    for (id, polling, _) in all {
        for reason in PollReason::ALL {
            let labels = [(names.label, *id), (names.reason, reason.name())];
            family.add(&labels, u8::from(polling.queues.reason == reason));
        }
    }
}

fn refusals(page: &mut Page, names: &Names, all: &[Polled<'_>]) {
    let help = "Waits without a poll, by the reason that forbade it.";
    let mut family = page.family(names.refused, MetricType::Counter, None, help);
    for (id, PollStats { refused, .. }, since) in all {
        for (reason, count) in [
            (PollReason::TooLong, refused.too_long),
            (PollReason::NoFreeCpu, refused.no_free_cpu),
            (PollReason::CpuWanted, refused.cpu_wanted),
            (PollReason::BudgetUsed, refused.budget_used),
            (PollReason::QuotaUsed, refused.quota_used),
        ] {
            let labels = [(names.label, *id), ("reason", reason.name())];
            family.count(&labels, count, *since);
        }
    }
}
