//! What is told of polling.

use model::report::{DiskStats, PollReason, QueuePolling, ReactorStats};

use super::text::{Kind, Page};

/// What reactors spend on it.
pub(super) fn reactors(page: &mut Page, all: &[ReactorStats], since: Option<f64>) {
    let help = "Time for which it looked for work and found none.";
    let name = "ringway_reactor_spun_seconds";
    let mut family = page.family(name, Kind::Counter, Some("seconds"), help);
    for (at, one) in all.iter().enumerate() {
        family.count(&[("reactor", &at.to_string())], one.spun_seconds, since);
    }
}

/// What it costs and brings each disk, and why it is or is not polled.
pub(super) fn disks(page: &mut Page, disks: &[DiskStats]) {
    let polled = || disks.iter().filter_map(|disk| disk.polling.map(|polling| (disk, polling)));
    let help = "What its queues do when they have nothing to do, or did when they were served last: \
                they look for requests (pays, probing, always), or sleep for this reason.";
    let mut family = page.family("ringway_disk_poll_reason", Kind::StateSet, None, help);
    for (disk, polling) in polled() {
        for reason in PollReason::ALL {
            let labels = [("disk", disk.id.as_str()), ("ringway_disk_poll_reason", reason.name())];
            family.add(&labels, u8::from(polling.queues.reason == reason));
        }
    }
    let help = "Some queue of it looks for requests when it has nothing to do.";
    let mut family = page.family("ringway_disk_poll_armed", Kind::Gauge, None, help);
    for (disk, polling) in polled() {
        family.add(&[("disk", &disk.id)], u8::from(polling.queues.armed));
    }
    type Count = fn(&QueuePolling) -> f64;
    let families: [(&'static str, Option<&str>, &str, Count); 4] = [
        ("ringway_disk_poll_hits", None, "Waits that ended while it was looked at.", |one| {
            one.hits as f64
        }),
        ("ringway_disk_poll_misses", None, "Waits that outlasted a look.", |one| one.misses as f64),
        (
            "ringway_disk_poll_spun_seconds",
            Some("seconds"),
            "Time for which it was looked at while it had nothing to do.",
            |one| one.spun_seconds,
        ),
        (
            "ringway_disk_poll_saved_seconds",
            Some("seconds"),
            "Time that waking up would have taken instead.",
            |one| one.saved_us / 1e6,
        ),
    ];
    for (name, unit, help, count) in families {
        let mut family = page.family(name, Kind::Counter, unit, help);
        for (disk, polling) in polled() {
            let since = disk.counting_since_unix_seconds;
            family.count(&[("disk", &disk.id)], count(&polling.queues), since);
        }
    }
    let help = "Waits that it slept through at once, by what forbade to look.";
    let mut family = page.family("ringway_disk_poll_refused", Kind::Counter, None, help);
    for (disk, polling) in polled() {
        let refused = polling.refused;
        for (reason, count) in [
            (PollReason::TooLong, refused.too_long),
            (PollReason::NoFreeCpu, refused.no_free_cpu),
            (PollReason::CpuWanted, refused.cpu_wanted),
            (PollReason::BudgetUsed, refused.budget_used),
            (PollReason::QuotaUsed, refused.quota_used),
        ] {
            let labels = [("disk", disk.id.as_str()), ("reason", reason.name())];
            family.count(&labels, count, disk.counting_since_unix_seconds);
        }
    }
}
