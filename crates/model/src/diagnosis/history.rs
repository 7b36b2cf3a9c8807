//! Past events: a restart, requests that ended their process, and slow requests of a disk that is
//! well now.

use super::units::{bytes, duration};
use super::{Cause, DiskFacts, DiskVerdict, restart, storage_errors};
use crate::report::{SlowRequest, Stage};

/// Maximum age of a reported slow request, in seconds.
const MAX_AGE_SECONDS: f64 = 900.0;
/// Minimum duration of a reported slow request, in microseconds.
const MIN_DURATION_US: f64 = 10_000.0;

/// Adds a recent restart, failed suspects and storage errors to the verdict, and the slowest recent
/// request, unless something is wrong now.
pub(super) fn annotate(facts: &DiskFacts<'_>, verdict: DiskVerdict) -> DiskVerdict {
    let is_other = verdict.cause != Cause::Restarted;
    let restart = is_other.then(|| restart::restarted(facts)).flatten();
    let well = [
        Cause::Idle,
        Cause::Healthy,
        Cause::SmallWrites,
        Cause::DeepQueue,
        Cause::Inactive,
        Cause::NoFrontEnd,
    ];
    let slowest = well.contains(&verdict.cause).then(|| slowest(facts)).flatten();
    let is_other = verdict.cause != Cause::StorageFails;
    let errors = is_other.then(|| storage_errors::sentence(facts)).flatten();
    let past = [restart.map(|restart| restart.sentence), failed_suspects(facts), errors, slowest];
    let past: Vec<_> = past.into_iter().flatten().collect();
    DiskVerdict { past: (!past.is_empty()).then(|| past.join(" ")), ..verdict }
}

fn failed_suspects(facts: &DiskFacts<'_>) -> Option<String> {
    let count = facts.disk.failed_suspects;
    (count > 0).then(|| {
        format!(
            "Requests of it failed with an I/O error ({count}): each was alone in flight when the \
             process died; the log names them."
        )
    })
}

/// Returns the sentence on the slowest recent request.
fn slowest(facts: &DiskFacts<'_>) -> Option<String> {
    let is_reported = |one: &&SlowRequest| {
        one.ended_seconds_ago <= MAX_AGE_SECONDS && one.total_us >= MIN_DURATION_US
    };
    let all = facts.disk.slow.iter().filter(is_reported);
    let slowest = all.clone().max_by(|a, b| a.total_us.total_cmp(&b.total_us))?;
    Some(sentence(slowest, all.count()))
}

fn sentence(one: &SlowRequest, count: usize) -> String {
    let size = match one.bytes {
        0 => String::new(),
        count => format!(" of {}", bytes(count)),
    };
    let (stage, us) = match one.longest_stage() {
        Stage::Queue => ("in the ring", one.queue_us),
        Stage::Cap => ("held back by its cap", one.cap_us),
        Stage::Completion => ("on the way back to the guest", one.completion_us),
        Stage::Device | Stage::Total => ("with the storage", one.device_us),
    };
    let neighbour = match &one.neighbour {
        Some(other) if one.queue_us + one.completion_us > one.device_us / 2.0 => {
            let name = other.disk.as_deref().unwrap_or("a disk that no longer exists");
            format!(" while its reactor served {name} for {}", duration(other.turn_us / 1e6))
        }
        _ => String::new(),
    };
    let others = match count {
        0 | 1 => String::new(),
        count => format!(" It is the slowest of {count} in the last quarter of an hour."),
    };
    format!(
        "{} ago a {}{size} took {}, of which {} {stage}{neighbour}.{others}",
        duration(one.ended_seconds_ago),
        one.kind.name(),
        duration(one.total_us / 1e6),
        duration(us / 1e6),
    )
}
