//! Evidence on a disk.

use model::diagnosis::{DiskVerdict, bytes, duration};
use model::report::{
    DiskStats, OldestRequest, PollRefusals, PollStats, QueuePolling, QueueStats, ShareReport,
    SlowRequest, StartReason, Stats, WorkerStart,
};

use super::report;
use crate::table;

/// Maximum number of slow requests shown.
const SLOW_SHOWN: usize = 10;

/// Returns the verdict's sentences.
pub(super) fn verdict_text(verdict: &DiskVerdict) -> String {
    let mut text = format!("{}\n", verdict.sentence);
    if let Some(step) = &verdict.next {
        // No full stop: many remedies end in a command that users copy.
        text += &format!("Next: {step}\n");
    }
    if let Some(share) = &verdict.share {
        text += &format!("{share}\n");
    }
    if let Some(overlay) = &verdict.overlay {
        text += &format!("{overlay}\n");
    }
    if let Some(polling) = &verdict.polling {
        text += &format!("{polling}\n");
    }
    if let Some(past) = &verdict.past {
        text += &format!("{past}\n");
    }
    text
}

/// Returns the sentence, followed by the evidence.
pub(super) fn report_text(verdict: &DiskVerdict, disk: &DiskStats, process: &Stats) -> String {
    let mut text = verdict_text(verdict);
    if let Some(how) = process.start.as_ref().and_then(|worker_start| worker_start.summary()) {
        let up = duration(process.uptime_seconds);
        text += &format!("It has been served for {up} by process {}, {how}.\n", process.pid);
    }
    text += &report::broken_rings(&disk.broken_rings);
    if let Some(oldest) = &disk.oldest {
        text += &format!("\nOldest request: {}\n", under_way(oldest));
    }
    let (with_storage, in_rings) = (disk.in_flight, disk.queued);
    text += &format!("\nNow {with_storage} with the storage, {in_rings} in the rings.");
    text += &match disk.stages.is_empty() {
        true => " No request has ended yet.\n".into(),
        false => format!(" {}:\n{}\n", since(process), stages(disk)),
    };
    if let Some(overlay) = &disk.overlay {
        text += &format!("\n{}\n", overlay.summary());
    }
    if let Some(report) = &disk.share {
        text += &format!("\n{}\n", shared(report));
    }
    if let Some(polling) = &disk.polling {
        text += &format!("\n{}\n", polled(polling));
    }
    // A single queue would repeat the values above.
    if disk.each_queue.len() > 1 {
        text += &format!("{}\n", queues(&disk.each_queue));
    }
    if !disk.slow.is_empty() {
        text += &format!("\nSlow requests, the latest first:\n{}\n", slow(&disk.slow));
    }
    text
}

/// Returns the share of the storage, with the waits for it.
fn shared(report: &ShareReport) -> String {
    let ShareReport { share, waited_seconds, waiting, behind, splits, in_flight, .. } = report;
    let behind = behind.as_deref().map_or(String::new(), |other| format!(" behind {other}"));
    format!(
        "Its share of the storage: {share}; its requests have waited {} for it in sum, {waiting} wait \
         now{behind}, {splits} went there in pieces. The storage has {in_flight} in flight; its depth is {} of device \
         time.",
        duration(*waited_seconds),
        duration(report.depth_seconds)
    )
}

/// Returns the polling settings, with the cost and gain of polling.
pub(super) fn polled(polling: &PollStats) -> String {
    let PollStats { set, queues, refused } = *polling;
    let QueuePolling {
        hits, misses, poll_seconds: spun_seconds, saved_wakeup_us: saved_us, ..
    } = queues;
    let saved = duration(saved_us / 1e6);
    let PollRefusals { too_long, no_free_cpu, cpu_wanted, budget_used, quota_used } = refused;
    format!(
        "Polling is {} (up to {} us, {}% of a CPU free): {hits} hits, {misses} misses, {} spun, \
         {saved} of waking up saved; slept at once {too_long} times because waits are too long, \
         {no_free_cpu} with no CPU free, {cpu_wanted} because others want it, {budget_used} with the \
         budget used up, {quota_used} because of a quota.",
        set.mode.name(),
        set.max_us,
        set.idle_threshold,
        duration(spun_seconds),
    )
}

/// Returns a table of the polling of each queue.
fn queues(all: &[QueueStats]) -> comfy_table::Table {
    let header = ["queue", "looks", "reason", "hits", "misses", "spun", "saved"];
    let mut table = table::new(&header, 3);
    for (index, polling) in all.iter().filter_map(|one| Some((one.index, one.polling?))) {
        table.add_row([
            index.to_string(),
            if polling.polling { "yes" } else { "no" }.into(),
            polling.reason.name().into(),
            polling.hits.to_string(),
            polling.misses.to_string(),
            duration(polling.poll_seconds),
            duration(polling.saved_wakeup_us / 1e6),
        ]);
    }
    table
}

/// Returns the start of the counts: a worker that took a disk over begins anew.
fn since(process: &Stats) -> &'static str {
    let first = |worker_start: &WorkerStart| worker_start.reason == StartReason::Start;
    if process.start.as_ref().is_none_or(first) {
        "Since attach"
    } else {
        "Since this process serves it"
    }
}

fn under_way(oldest: &OldestRequest) -> String {
    let what = match oldest.kind {
        None => "unread".into(),
        Some(kind) if oldest.bytes == 0 => kind.name().to_owned(),
        Some(kind) => {
            format!("{} of {} at byte {}", kind.name(), bytes(oldest.bytes), oldest.offset)
        }
    };
    let age = duration(oldest.age_seconds);
    let here = duration(oldest.in_stage_seconds);
    format!("{what}, {age} old, for {here} in stage {}", oldest.stage)
}

fn stages(disk: &DiskStats) -> comfy_table::Table {
    let header = ["stage", "kind", "count", "p50", "p90", "p99", "p99.9", "max"];
    let mut table = table::new(&header, 2);
    for one in &disk.stages {
        let times = one.times;
        let mut row = vec![one.stage.to_string(), one.op.to_string(), times.count.to_string()];
        let all = [times.p50_us, times.p90_us, times.p99_us, times.p999_us, times.max_us];
        row.extend(all.map(|us| duration(us / 1e6)));
        table.add_row(row);
    }
    table
}

fn slow(all: &[SlowRequest]) -> comfy_table::Table {
    let header =
        ["ago", "kind", "size", "at byte", "total", "queue", "cap", "device", "back", "meanwhile"];
    let mut table = table::new(&header, 3);
    for one in all.iter().take(SLOW_SHOWN) {
        let meanwhile = one.neighbour.as_ref().map_or_else(String::new, |other| {
            let name = other.disk.as_deref().unwrap_or("a detached disk");
            format!("{name} for {}", duration(other.turn_us / 1e6))
        });
        let mut row = vec![
            duration(one.ended_seconds_ago),
            one.kind.name().into(),
            bytes(one.bytes),
            one.offset.to_string(),
        ];
        let stages = [one.total_us, one.queue_us, one.cap_us, one.device_us, one.completion_us];
        row.extend(stages.map(|us| duration(us / 1e6)));
        row.push(meanwhile);
        table.add_row(row);
    }
    table
}

#[cfg(test)]
mod tests;
