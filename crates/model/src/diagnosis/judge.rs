//! Diagnosis of a disk.

use super::units::{bytes, duration};
use super::{Cause, DiskFacts, DiskVerdict, flow, history, polling};
use crate::report::{DiskState, OldestRequest, Stage, StartReason, WorkerStart};
use crate::spec::Backend;

/// A request in flight for this many seconds hangs, unless that is usual for its disk.
const HANGS_SECONDS: f64 = 0.5;
/// Multiple of the median from which a duration is unusual.
const UNUSUAL_MEDIANS: f64 = 10.0;
/// Seconds after a restart during which the restart explains a pause.
const RESTARTED_SECONDS: f64 = 30.0;
/// Seconds after the start of the process within which it takes over its disks. A disk that counts
/// from a later time was attached afterwards.
const TAKEN_OVER_SECONDS: f64 = 2.0;

/// Returns the verdict on a disk.
pub fn judge(facts: &DiskFacts<'_>) -> DiskVerdict {
    let verdict = not_served(facts)
        .or_else(|| hangs(facts))
        .or_else(|| restarted(facts))
        .unwrap_or_else(|| flow::judge(facts));
    history::annotate(facts, polling::annotate(facts, verdict))
}

/// Returns a verdict if the disk's state means that nothing is served.
fn not_served(facts: &DiskFacts<'_>) -> Option<DiskVerdict> {
    let disk = facts.disk;
    let id = &disk.id;
    if let Some(fence) = &disk.fence {
        let waited = duration(fence.since_seconds);
        let sentence = format!(
            "{id} waits behind its fence for {waited}: the kernel still works on requests of a \
             process that has died, and ours must come after them."
        );
        let verdict = DiskVerdict::new(Cause::Fence, sentence).at(Stage::Device);
        return Some(verdict.since(fence.since_seconds).next(storage_remedy(facts)));
    }
    match disk.state {
        DiskState::Waiting => {
            let alert = disk.alert.as_deref().unwrap_or("requests wait for full storage");
            let sentence = format!("{id} waits for room on its storage: {alert}.");
            return Some(DiskVerdict::new(Cause::Full, sentence).at(Stage::Device));
        }
        DiskState::Attached => {
            let sentence = format!("{id} is attached and not active, so its guest waits.");
            let step = format!("activate it: ringway io disk.activate id={id}");
            return Some(DiskVerdict::new(Cause::Inactive, sentence).next(step));
        }
        DiskState::Paused => {
            let sentence = format!("{id} is paused, so its guest waits.");
            let step = format!("when the pause may end: ringway io disk.resume id={id}");
            return Some(DiskVerdict::new(Cause::Paused, sentence).next(step));
        }
        DiskState::Stuck => return Some(stuck(facts)),
        DiskState::Refused => {
            let why = disk.refused.as_deref().unwrap_or("its image does not match its last state");
            let sentence = format!("{id} was not taken over after a restart: {why}.");
            let step = if disk.unknown_format {
                // Activating the disk does not help: this version cannot read its state.
                format!(
                    "use the version that wrote it: ringway io upgrade binary=PATH; or give \
                     the disk up: ringway io disk.detach id={id}"
                )
            } else {
                format!("fix that, then: ringway io disk.activate id={id}")
            };
            return Some(DiskVerdict::new(Cause::Refused, sentence).next(step));
        }
        DiskState::Active => {}
    }
    if !disk.connected {
        let sentence = format!("{id} has no front-end: no machine is connected to its socket.");
        let step = format!("start the machine with the socket {}", disk.socket);
        return Some(DiskVerdict::new(Cause::NoFrontEnd, sentence).next(step));
    }
    if disk.queues_started == 0 {
        let sentence =
            format!("{id} has a front-end, and its guest's driver has started no queue yet.");
        let step = "look at the guest's console: it boots, or has no driver for the disk";
        return Some(DiskVerdict::new(Cause::NoDriver, sentence).next(step));
    }
    None
}

/// Returns a verdict if a request has been in flight for too long.
fn hangs(facts: &DiskFacts<'_>) -> Option<DiskVerdict> {
    let disk = facts.disk;
    let oldest = disk.oldest.as_ref()?;
    if oldest.age_seconds < HANGS_SECONDS.max(facts.usual(Stage::Total) * UNUSUAL_MEDIANS) {
        return None;
    }
    let verdict = match oldest.stage {
        Stage::Cap => flow::capped(facts, Some(oldest.age_seconds)),
        Stage::Queue => reactor_stuck(facts, oldest)?,
        _ => storage_hangs(facts, oldest),
    };
    Some(verdict.since(oldest.in_stage_seconds))
}

fn storage_hangs(facts: &DiskFacts<'_>, oldest: &OldestRequest) -> DiskVerdict {
    let disk = facts.disk;
    let what = oldest.kind.map_or("request", |kind| kind.name());
    let range = match oldest.bytes {
        0 => String::new(),
        count => format!(" of {} at byte {}", bytes(count), oldest.offset),
    };
    let others = match disk.in_flight.saturating_sub(1) {
        0 => String::new(),
        count => format!(", and {count} more with it"),
    };
    let usual = match facts.usual(Stage::Device) {
        0.0 => String::new(),
        usual => format!("; the median is {}", duration(usual)),
    };
    let sentence = format!(
        "{} waits for its storage: a {what}{range} has been with it for {}{others}{usual}.",
        disk.id,
        duration(oldest.in_stage_seconds),
    );
    DiskVerdict::new(Cause::StorageHangs, sentence).at(Stage::Device).next(storage_remedy(facts))
}

fn storage_remedy(facts: &DiskFacts<'_>) -> String {
    let place = match &facts.disk.backend {
        Backend::File(path) => path.display().to_string(),
        Backend::Null(_) | Backend::Memory(_) => "the disk".into(),
    };
    format!("look at the storage under {place}: kernel log, mount, network, device")
}

/// Returns the verdict for a disk whose stop has passed its deadline.
fn stuck(facts: &DiskFacts<'_>) -> DiskVerdict {
    let disk = facts.disk;
    let (verb, seconds, requests) = match &disk.stuck {
        Some(stuck) => (stuck.verb.as_str(), stuck.since_seconds, stuck.requests),
        None => ("stop", 0.0, disk.in_flight),
    };
    let sentence = format!(
        "{} is stuck: its storage hangs, the {verb} gave up waiting {} ago, and {requests} requests \
         are still with the kernel.",
        disk.id,
        duration(seconds),
    );
    let verdict = DiskVerdict::new(Cause::Stuck, sentence).at(Stage::Device).since(seconds);
    verdict.next(storage_remedy(facts))
}

/// Returns a verdict if the request is in the ring and the reactor is stuck with another disk.
fn reactor_stuck(facts: &DiskFacts<'_>, oldest: &OldestRequest) -> Option<DiskVerdict> {
    let id = &facts.disk.id;
    let other = facts.stuck_with().filter(|other| other != id)?;
    let sentence = format!(
        "{id} waits in its ring for {}: its reactor is stuck with disk {other}.",
        duration(oldest.age_seconds)
    );
    let mut verdict = DiskVerdict::new(Cause::Neighbour, sentence).at(Stage::Queue);
    verdict.neighbour = Some(other.into());
    Some(verdict.next(format!("see what {other} does: ringway why {other}")))
}

/// Returns a verdict if the serving process has recently replaced a dead one. An upgrade pauses for
/// milliseconds and explains nothing.
fn restarted(facts: &DiskFacts<'_>) -> Option<DiskVerdict> {
    let (disk, process) = (facts.disk, facts.process);
    let uptime = process.uptime_seconds;
    let after = match &process.start {
        Some(WorkerStart { reason: StartReason::Restart, previous_exit: after, .. }) => {
            after.as_deref()
        }
        // A former version reports no start reason. Resubmitted requests imply a dead process.
        None if disk.resubmitted > 0 => {
            process.keeper.as_ref().and_then(|k| k.last_exit.as_deref())
        }
        _ => return None,
    };
    // A disk attached since the restart has no former process.
    let attached_since = disk.counting_since_unix_seconds.zip(process.start.as_ref()).is_some_and(
        |(counting, worker_start)| counting - worker_start.unix_seconds > TAKEN_OVER_SECONDS,
    );
    if uptime > RESTARTED_SECONDS || (attached_since && disk.resubmitted == 0) {
        return None;
    }
    let again = match disk.resubmitted {
        0 => String::new(),
        count => format!(", which submitted {count} requests of the former one again"),
    };
    let sentence = format!(
        "{} was taken over {} ago by a new process{again}; its guest saw a pause.",
        disk.id,
        duration(uptime),
    );
    let step = match after {
        Some(end) => format!("see in the log why the former process ended: it {end}"),
        None => "see in the log why the former process ended".into(),
    };
    Some(DiskVerdict::new(Cause::Restarted, sentence).since(uptime).next(step))
}
