//! Rows of disks, computed from two samples.

use model::report::{DiskState, DiskStats, PollReason, PollStats, Stage, Stats};

/// Activity of one disk between two samples.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    /// Control socket of its process, if several are watched.
    pub(super) place: String,
    pub(super) disk: String,
    pub(super) state: &'static str,
    pub(super) read_iops: f64,
    pub(super) write_iops: f64,
    /// Requests a second, of all kinds.
    pub(super) iops: f64,
    pub(super) bytes_per_second: f64,
    /// Mean latency in seconds.
    pub(super) latency: f64,
    pub(super) p99: f64,
    /// Where requests spend the largest part of their time, and that part.
    pub(super) longest: Option<(&'static str, f64)>,
    /// Weight at its storage, if disks share that.
    pub(super) weight: Option<u16>,
    pub(super) in_flight: u64,
    pub(super) oldest: f64,
    pub(super) cpu: f64,
    pub(super) polled: &'static str,
    pub(super) errors: u64,
}

/// Returns one row for each disk of a process.
pub(super) fn rows(before: Option<&Stats>, now: &Stats, place: &str) -> Vec<Row> {
    let before = before.filter(|before| before.pid == now.pid);
    let seconds = before.map_or(0.0, |before| now.uptime_seconds - before.uptime_seconds);
    let row = |disk: &DiskStats| {
        let former = before.and_then(|before| before.disks.iter().find(|one| one.id == disk.id));
        Row { place: place.into(), ..of_disk(former, disk, seconds) }
    };
    now.disks.iter().map(row).collect()
}

fn of_disk(before: Option<&DiskStats>, now: &DiskStats, seconds: f64) -> Row {
    let grown = |count: &dyn Fn(&DiskStats) -> f64| {
        before.map_or(0.0, |before| (count(now) - count(before)).max(0.0))
    };
    let rate = |count: &dyn Fn(&DiskStats) -> f64| {
        if seconds > 0.0 { grown(count) / seconds } else { 0.0 }
    };
    let spent = |stage: Stage| {
        let sum = |disk: &DiskStats, of: &dyn Fn(&model::report::StageTimes) -> f64| {
            disk.stages.iter().filter(|one| one.stage == stage).map(of).sum::<f64>()
        };
        let count = grown(&|disk| sum(disk, &|one| one.times.count as f64));
        (count, grown(&|disk| sum(disk, &|one| one.sum_seconds)))
    };
    let (count, total) = spent(Stage::Total);
    // A request that waits for its share is in stage `device`.
    let device = spent(Stage::Device).1;
    let waited = grown(&|disk| disk.share.as_ref().map_or(0.0, |share| share.waited_seconds));
    let waited = waited.min(device);
    let parts = [
        ("ring", spent(Stage::Queue).1),
        ("cap", spent(Stage::Cap).1),
        ("share", waited),
        ("device", device - waited),
        ("back", spent(Stage::Completion).1),
    ];
    let longest = parts.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
    Row {
        place: String::new(),
        disk: now.id.clone(),
        state: state(now),
        read_iops: rate(&|disk| disk.requests.read as f64),
        write_iops: rate(&|disk| disk.requests.write as f64),
        iops: rate(&|disk| disk.requests.total() as f64),
        bytes_per_second: rate(&|disk| (disk.bytes.read + disk.bytes.write) as f64),
        latency: if count > 0.0 { total / count } else { 0.0 },
        p99: now.latency.p99_us / 1e6,
        longest: longest.filter(|_| total > 0.0).map(|(place, seconds)| (place, seconds / total)),
        weight: now.share.as_ref().map(|report| report.share.weight),
        in_flight: now.in_flight + now.queued,
        oldest: now.oldest.map_or(0.0, |oldest| oldest.age_seconds),
        cpu: rate(&|disk| disk.busy_seconds),
        polled: now.polling.map_or("-", polled),
        errors: now.errors,
    }
}

fn state(disk: &DiskStats) -> &'static str {
    match disk.state {
        _ if disk.fence.is_some() => "fenced",
        DiskState::Attached if disk.waiting > 0 => "full",
        DiskState::Attached => "attached",
        DiskState::Paused => "paused",
        DiskState::Stuck => "stuck",
        DiskState::Waiting => "full",
        DiskState::Refused => "refused",
        DiskState::Active if !disk.connected => "no guest",
        DiskState::Active if !disk.broken_rings.is_empty() => "ring broken",
        DiskState::Active if disk.throttled_queues > 0 => "capped",
        DiskState::Active => "active",
    }
}

/// Returns a short text on the polling of idle queues.
fn polled(polling: PollStats) -> &'static str {
    match polling.queues.reason {
        PollReason::Never | PollReason::Unknown => "-",
        // Polling is permitted, but the disk is not served.
        PollReason::Pays | PollReason::Probing | PollReason::Always if !polling.queues.polling => {
            "-"
        }
        PollReason::Pays => "pays",
        PollReason::Probing => "probing",
        PollReason::Always => "always",
        PollReason::TooLong => "too far apart",
        PollReason::Off => "off",
        PollReason::NoFreeCpu => "no free cpu",
        PollReason::CpuWanted => "cpu wanted",
        PollReason::BudgetUsed => "budget used",
        PollReason::QuotaUsed => "quota used",
    }
}

#[cfg(test)]
mod tests;
